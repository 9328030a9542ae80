"""Verification: compares a config's mesh with one device, from the same weights and with the same batches.

Importing this package imports no TensorFlow; both sides run in processes of their own.
"""
