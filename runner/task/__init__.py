"""What is learned: losses, metrics and reports of named arrays.

Classes, pixels and accuracy are words of this package, of `data` and of `model`.
Other packages know names and numbers.
"""
