"""The part of the run config that says what is to be learned. Imports no TensorFlow, JAX or MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# OmegaConf resolves these annotations at run time, so they must stay importable, plain types.


@dataclass
class TaskConfig:
    """Loss and metrics, and which arrays of the dataset they are of.

    Attributes:
      name: `classification`, `multilabel`, `regression` or `custom`.
      target: `target` in YAML; name of the array to be predicted; null: the dataset's own, as `label`.
      inputs: names of the arrays that the model takes; null: all that is not the target or the example weight.
      options: what else the task's option has, as `label_smoothing`.
    """

    name: str = "classification"
    target: str | None = None
    inputs: list[str] | None = None
    options: dict[str, Any] = field(default_factory=dict)
