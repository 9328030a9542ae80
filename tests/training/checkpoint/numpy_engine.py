"""An engine in NumPy, small enough to run a training hundreds of times: softmax regression with momentum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from runner.engine.base import (
    Array,
    EvalMetrics,
    HostBatches,
    Part,
    PlacedBatches,
    StepMetrics,
    VariableInfo,
    as_float,
)


@dataclass
class Done:
    """Metrics of a call, at once."""

    metrics: StepMetrics

    def read(self) -> StepMetrics:
        return self.metrics


class NumpyEngine:
    """As much of an engine as the loop and its checkpoints use."""

    def __init__(self, features: int, classes: int, rate: float = 0.1, explodes: int | None = None) -> None:
        """Makes the weights; step `explodes` ruins them at the full rate."""
        self._explodes = explodes
        self.weight = np.random.default_rng(0).normal(size=(features, classes))
        self.momentum = np.zeros_like(self.weight)
        self._rate = rate

    def place(self, batches: HostBatches) -> PlacedBatches:
        return PlacedBatches(batches.images, batches.labels, batches.weights, batches.steps)

    def train_steps(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> Done:
        rows = []
        for index in range(batches.steps):
            x = as_float(batches.images[index]).reshape(len(batches.images[index]), -1)
            noise = np.random.default_rng([1, first_step + index]).random(x.shape) > 0.1  # a dropout of its own
            rows.append(self._step(x * noise, batches.labels[index], rate_factor))
            if first_step + index + 1 == self._explodes and rate_factor == 1.0:
                self.weight = self.weight + np.nan
        loss, accuracy = np.array(rows, np.float64).T
        return Done(StepMetrics(loss, accuracy))

    def _step(self, x: Array, labels: Array, factor: float) -> tuple[float, float]:
        scores = self._scores(x)
        chosen = scores[np.arange(len(labels)), labels]
        gradient = x.T @ (scores - np.eye(scores.shape[1])[labels]) / len(labels)
        self.momentum = 0.9 * self.momentum + gradient
        self.weight = self.weight - factor * self._rate * self.momentum
        return float(-np.log(chosen).mean()), float((scores.argmax(1) == labels).mean())

    def _scores(self, x: Array) -> Array:
        raw = np.exp(x @ self.weight)
        return np.asarray(raw / raw.sum(1, keepdims=True))

    def evaluate(self, batches: Iterable[HostBatches]) -> EvalMetrics:
        classes = self.weight.shape[1]
        confusion, loss = np.zeros((classes, classes), np.int64), 0.0
        for batch in batches:
            kept = batch.weights[0] > 0
            x, labels = as_float(batch.images[0][kept]).reshape(int(kept.sum()), -1), batch.labels[0][kept]
            scores = self._scores(x)
            loss -= np.log(scores[np.arange(len(labels)), labels]).sum()
            np.add.at(confusion, (labels, scores.argmax(1)), 1)
        count = int(confusion.sum())
        return EvalMetrics(loss / count, float(np.trace(confusion)) / count, count, confusion)

    def state(self) -> dict[str, Array]:
        return {"d/kernel": self.weight, "optimizer/momentum/d/kernel": self.momentum}

    def variables(self) -> dict[str, VariableInfo]:
        return {path: VariableInfo(v.shape, str(v.dtype), (None, None), v.nbytes) for path, v in self.state().items()}

    def parts(self) -> dict[str, list[Part]]:
        return {path: [Part((0, 0), value.copy(), value.shape)] for path, value in self.state().items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        self.weight, self.momentum = state["d/kernel"], state["optimizer/momentum/d/kernel"]


# What every checkpoint of a run says of it.
ABOUT = {"run": "r", "config": {"trainer": {}}, "seed": 1, "versions": {"numpy": np.__version__}}


def dataset(size: int = 70, classes: int = 3) -> Any:
    """Returns a train and a test split of random images that can be told apart."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, classes, size).astype(np.int32)
    images = (rng.random((size, 4, 4, 1)) * 127 + 40 * labels[:, None, None, None]).astype(np.uint8)
    split = SimpleNamespace(images=images, labels=labels, size=size)
    return SimpleNamespace(train=split, eval=split)
