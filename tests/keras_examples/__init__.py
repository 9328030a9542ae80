"""Keras's published examples, rewritten at tiny sizes: what this project trains of them, and how."""
