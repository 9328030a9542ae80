"""Holds a config's mesh against one device: the same weights, the same batches, the same numbers.

Importing this package imports no TensorFlow; both sides run in processes of their own.
"""
