"""Configs of tasks, with all options of each."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from runner.config.schema_task import OPTIONS, TaskConfig

Arrays = dict[str, np.ndarray]


def config(
    name: str,
    targets: Sequence[str] = (),
    example_weight: str | None = None,
    inputs: list[str] | None = None,
    **options: Any,
) -> TaskConfig:
    return TaskConfig(name, list(targets), inputs, example_weight, asdict(OPTIONS[name](**options)))
