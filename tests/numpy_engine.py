"""An engine of one weight and no model, for tests of the loop: what it computes is known without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from runner.engine.base import Array, EvalMetrics, HostBatches, Part, PlacedBatches, StepMetrics, VariableInfo


@dataclass
class Read:
    """Metrics that are there already."""

    metrics: StepMetrics

    def read(self) -> StepMetrics:
        return self.metrics


@dataclass
class NumpyEngine:
    """A step adds the mean label, times the rate's factor, to `w`; its loss is `w` from before.

    Attributes:
      explodes: step that makes `w` infinite where the factor is above `stable`.
      stable: a factor at which nothing explodes.
      accuracies: of the evaluations, one after another; else the share of examples below `w`.
      calls: (first step, steps, factor) of each call.
      traced: the folder of each trace, and the steps that ran in it.
    """

    explodes: int | None = None
    stable: float = 0.0
    accuracies: list[float] = field(default_factory=list)
    w: float = 0.0
    calls: list[tuple[int, int, float]] = field(default_factory=list)
    seen: list[tuple[int, ...]] = field(default_factory=list)
    traced: list[tuple[Path, list[int]]] = field(default_factory=list)
    _tracing: bool = False

    def place(self, batches: HostBatches) -> PlacedBatches:
        return PlacedBatches(batches.images, batches.labels, batches.weights, batches.steps)

    def train_steps(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> Read:
        self.calls.append((first_step, batches.steps, rate_factor))
        losses = []
        for index in range(batches.steps):
            losses.append(self.w)
            labels = batches.labels[index][batches.weights[index] > 0]
            self.seen.append(tuple(int(label) for label in labels))
            self.w += rate_factor * float(labels.mean())
            if self.explodes == first_step + index + 1 and rate_factor > self.stable:
                self.w = float("inf")
            if self._tracing:
                self.traced[-1][1].append(first_step + index)
        loss = np.asarray(losses)
        return Read(StepMetrics(loss, np.full_like(loss, 0.5)))

    def evaluate(self, batches: Iterable[HostBatches]) -> EvalMetrics:
        labels = np.concatenate([batch.labels[batch.weights > 0] for batch in batches])
        accuracy = self.accuracies.pop(0) if self.accuracies else float((labels < self.w).mean())
        return EvalMetrics(self.w, accuracy, len(labels), np.eye(2, dtype=np.int64))

    @contextmanager
    def trace(self, folder: Path) -> Iterator[None]:
        self.traced.append((folder, []))
        self._tracing = True
        yield
        self._tracing = False

    def variables(self) -> dict[str, VariableInfo]:
        return {"d1/w": VariableInfo((), "float64", (), 8)}

    def parts(self) -> dict[str, list[Part]]:
        return {"d1/w": [Part((), np.array(self.w), ())]}

    def state(self) -> dict[str, Array]:
        return {"d1/w": np.array(self.w)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.w = float(state["d1/w"])
