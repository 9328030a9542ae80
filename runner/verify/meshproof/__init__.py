"""Proves that a training step on a mesh computes what a reference computes on one device.

    report = meshproof.compare(step, reference, state, batches)
    print(report)                                              # verdict, table and what each check would have detected
    meshproof.assert_same(step, reference, state, batches)     # in a test

Imports NumPy, and JAX when a call is first used.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .call import Matrix as Matrix
    from .call import assert_same as assert_same
    from .call import compare as compare
    from .call import matrix as matrix
    from .report import StepReport as StepReport

__all__ = ["Matrix", "StepReport", "assert_same", "compare", "matrix"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    attribute: object = getattr(import_module(".call", __name__), name)
    return attribute
