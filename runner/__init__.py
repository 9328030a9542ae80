"""Config-driven training on device meshes: planned, proven and recorded."""

__version__ = "0.1.0"
