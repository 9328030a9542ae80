"""Engines: objects that own devices and state, which the loop drives through `common.Engine`."""

from runner.engine.registry import make_engine

__all__ = ["make_engine"]
