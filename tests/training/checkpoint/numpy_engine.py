"""An engine in NumPy, small enough to run a training hundreds of times: softmax regression with momentum."""

from collections.abc import Iterable, Mapping

import numpy as np

from runner.config.schema import RunConfig
from runner.data.base import WEIGHT, Array
from runner.engine.base import HostBatches, PlacedBatches
from runner.task.base import Evaluation
from runner.train import feed
from tests.numpy_engine import HostEngine, Read, means, splits


class NumpyEngine(HostEngine):
    """As much of an engine as the loop and its checkpoints use."""

    def __init__(self, features: int, classes: int, rate: float = 0.1) -> None:
        """Makes the weights."""
        self.weight = np.random.default_rng(0).normal(size=(features, classes))
        self.momentum = np.zeros_like(self.weight)
        self._rate = rate

    def train_steps(self, batches: PlacedBatches, first_step: int, rate_factor: float = 1.0) -> Read:
        rows = []
        for index in range(batches.steps):
            x = _features(batches.arrays["image"][index])
            noise = np.random.default_rng([1, first_step + index]).random(x.shape) > 0.1  # a dropout of its own
            rows.append(self._step(x * noise, batches.arrays["label"][index], rate_factor))
        loss, accuracy = np.array(rows, np.float64).T
        return Read(means(loss, accuracy, float(len(x))))

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

    def evaluate(self, batches: Iterable[HostBatches], *, keep_outputs: bool = False) -> Evaluation:
        loss, hits, outputs = 0.0, 0, []
        for batch in batches:
            kept = batch.arrays[WEIGHT][0] > 0
            labels = batch.arrays["label"][0][kept]
            scores = self._scores(_features(batch.arrays["image"][0])[kept])
            loss -= np.log(scores[np.arange(len(labels)), labels]).sum()
            hits += int((scores.argmax(1) == labels).sum())
            outputs.append(scores)
        whole = np.concatenate(outputs)
        count = len(whole)
        metrics = {"loss": float(loss / count), "accuracy": hits / count}
        return Evaluation(metrics, count, {"hits": np.array(float(hits))}, whole if keep_outputs else whole[:0])

    def state(self) -> dict[str, Array]:
        return {"d/kernel": self.weight, "optimizer/momentum/d/kernel": self.momentum}

    def load_state(self, state: Mapping[str, Array]) -> None:
        self.weight, self.momentum = state["d/kernel"], state["optimizer/momentum/d/kernel"]


def _features(images: Array) -> Array:
    return (images.astype(np.float32) / np.float32(255)).reshape(len(images), -1)


# What every checkpoint of a run says of it.
ABOUT = {"run": "r", "config": {"trainer": {}}, "seed": 1, "versions": {"numpy": np.__version__}}


def examples(size: int = 70, classes: int = 3) -> dict[str, Array]:
    """Returns random images that can be told apart, and their labels."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, classes, size).astype(np.int32)
    images = (rng.random((size, 4, 4, 1)) * 127 + 40 * labels[:, None, None, None]).astype(np.uint8)
    return {"image": images, "label": labels}


def dataset(run: RunConfig) -> feed.Splits:
    """Returns a train and a test split of the same examples."""
    return splits(run, examples(), examples())
