"""Engines: objects that own devices and state.

The loop drives them through `base.Engine`.
"""

from runner.engine.registry import make_engine

__all__ = ["make_engine"]
