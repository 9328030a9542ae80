"""The examples that every contender trains on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BATCH_SIZE = 128  # of the MLP, and of the peers that train nothing else
IMAGE_SHAPE = (28, 28, 1)
NUM_CLASSES = 10
MNIST_TRAIN = 60_000


@dataclass(frozen=True)
class Task:
    """What is trained; the same for every contender of a model.

    Attributes:
      title: of the table.
      batch_size: global.
      learning_rate: of Adam.
    """

    title: str
    batch_size: int
    learning_rate: float


TASKS = {
    "mlp": Task("784-128-10 MLP, Adam 0.01, batch 128", BATCH_SIZE, 0.01),
    "convnet": Task("convnet of the Keras guide for JAX, Adam 0.001, batch 64", 64, 0.001),
}


@dataclass(frozen=True)
class Examples:
    """Training examples.

    Attributes:
      images: uint8, (N, 28, 28, 1).
      labels: int32, (N,).
      batch_size: of a training step.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int32]
    batch_size: int = BATCH_SIZE

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass."""
        return len(self.labels) // self.batch_size


def whole_batches(wanted: int) -> int:
    """Rounds a number of examples down to whole batches, so that no contender meets a partial one.

    Raises:
      ValueError: fewer than three batches are left (the first step of an epoch is not part of the window).
    """
    count = min(wanted, MNIST_TRAIN) // BATCH_SIZE * BATCH_SIZE
    if count < 3 * BATCH_SIZE:
        raise ValueError(f"--examples must be at least {3 * BATCH_SIZE}, got {wanted}")
    return count


def synthetic(count: int) -> Examples:
    """Makes a set in MNIST's shapes that an MLP can learn, from a fixed seed.

    Ten fixed patterns under noise; a tenth of the labels is drawn again, so that the loss does not run to zero.
    """
    rng = np.random.default_rng(1337)
    patterns = rng.integers(0, 160, (NUM_CLASSES, *IMAGE_SHAPE), dtype=np.uint8)
    labels = rng.integers(0, NUM_CLASSES, count, dtype=np.int32)
    images = patterns[labels] + rng.integers(0, 96, (count, *IMAGE_SHAPE), dtype=np.uint8)
    redrawn = rng.random(count) < 0.1
    labels[redrawn] = rng.integers(0, NUM_CLASSES, int(redrawn.sum()), dtype=np.int32)
    return Examples(images, labels)


def mnist(count: int, data_dir: str | None) -> Examples:
    """Takes the first `count` training images of MNIST, as the runner reads them."""
    from runner.config.schema import DatasetConfig
    from runner.data.loading import load

    found = load(DatasetConfig(name="mnist", data_dir=data_dir), seed=0).train.read(np.arange(count))
    images = found["image"]
    labels = found["label"]
    if images.dtype != np.uint8 or images.shape != (count, *IMAGE_SHAPE):
        raise ValueError(f"MNIST images must be uint8 {(count, *IMAGE_SHAPE)}, got {images.dtype} {images.shape}")
    return Examples(images, labels.astype(np.int32))


def save(examples: Examples, path: Path) -> None:
    """Writes examples where the children find them."""
    np.savez(path, images=examples.images, labels=examples.labels)


def read(path: Path, batch_size: int = BATCH_SIZE) -> Examples:
    """Reads what `save` wrote."""
    with np.load(path) as stored:
        return Examples(stored["images"], stored["labels"], batch_size)


def mlp_loss(weights: list[npt.NDArray[Any]], examples: Examples, count: int = 2048) -> float:
    """Mean cross-entropy of the benchmark's MLP, in NumPy, so that one definition holds for every peer.

    Args:
      weights: kernel (784, 128), bias (128,), kernel (128, 10), bias (10,).
      examples: the training examples.
      count: examples to average over, from the front.

    Returns:
      The mean loss in nats.
    """
    kernel_1, bias_1, kernel_2, bias_2 = (np.asarray(w, np.float64) for w in weights)
    inputs = examples.images[:count].reshape(-1, 784) / 255.0
    return cross_entropy(np.maximum(inputs @ kernel_1 + bias_1, 0) @ kernel_2 + bias_2, examples.labels[:count])


def cross_entropy(logits: npt.NDArray[Any], labels: npt.NDArray[np.int32]) -> float:
    """Mean cross-entropy in nats of logits (N, classes) and labels (N,)."""
    logits = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(logits).sum(axis=1))
    return float(np.mean(log_sum - logits[np.arange(len(logits)), labels]))
