"""The task: a loss and a metric, each a function (ops, outputs, batch) -> one number per example.

`ops` has NumPy's functions for the arrays of the engine that is chosen; `batch` has the dataset's arrays by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SMOOTHING = 0.05  # share of the probability that goes to all classes alike


def loss(ops: Any, outputs: Any, batch: Mapping[str, Any]) -> Any:
    """Returns the cross entropy with smoothed labels, (batch,)."""
    classes = outputs.shape[-1]
    wanted = ops.one_hot(batch["label"], classes) * (1.0 - SMOOTHING) + SMOOTHING / classes
    return ops.cross_entropy(wanted, outputs)


def hits(ops: Any, outputs: Any, batch: Mapping[str, Any]) -> Any:
    """Returns 1 where the most likely class is the label, else 0, (batch,)."""
    return ops.cast(ops.equal(ops.argmax(outputs, -1), batch["label"]), "float32")
