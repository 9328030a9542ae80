"""Keras's published examples, written anew at tiny sizes: what this project trains of them, and how."""
