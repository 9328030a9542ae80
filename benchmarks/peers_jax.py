"""Keras 3 on JAX. Imported in a child process only, after its environment is set."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np

from benchmarks.data import BATCH_SIZE, IMAGE_SHAPE, NUM_CLASSES, Examples
from benchmarks.meter import Budget, Meter

DEVICES = 8


def versions() -> dict[str, str]:
    """Names the libraries that did the work."""
    return {"keras": keras.__version__, "jax": jax.__version__}


class _Clock(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Drives a meter from `fit`, by hooks that leave its asynchronous dispatch on."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.meter = meter

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.meter.epoch_begin()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.model.stop_training = self.meter.step_begin()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.meter.epoch_end()
        self.model.stop_training = self.meter.done


def _fit(examples: Examples, budget: Budget) -> tuple[Meter, Any]:
    """Trains as https://keras.io/examples/vision/mnist_convnet/ does: arrays in memory, `fit` with a batch size."""
    keras.utils.set_random_seed(1337)
    model = keras.Sequential(
        [
            keras.Input(shape=IMAGE_SHAPE),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(NUM_CLASSES),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    images = examples.images.astype(np.float32) / 255.0
    labels = examples.labels
    warm = budget.warmup_steps * BATCH_SIZE
    model.fit(images[:warm], labels[:warm], batch_size=BATCH_SIZE, epochs=1, verbose=0)

    def sync() -> None:
        # The newest state of an epoch under way; the public attributes are behind it until the epoch ends.
        jax.block_until_ready(getattr(model, "_jax_state", None))

    meter = Meter(budget, sync)
    model.fit(images, labels, batch_size=BATCH_SIZE, epochs=1_000_000, verbose=0, callbacks=[_Clock(meter)])
    return meter, [np.asarray(w) for w in model.get_weights()]


def fit(examples: Examples, budget: Budget) -> tuple[Meter, Any]:
    """Trains with Keras 3 `fit` on one JAX device."""
    return _fit(examples, budget)


def data_parallel(examples: Examples, budget: Budget) -> tuple[Meter, Any]:
    """Trains with Keras 3 `fit` under `DataParallel` on eight virtual JAX devices."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    if len(jax.devices()) != DEVICES:
        raise RuntimeError(f"JAX made {len(jax.devices())} devices, {DEVICES} were asked for")
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    return _fit(examples, budget)
