"""Keras 3 on JAX. Imported in a child process only, after its environment is set."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np

from benchmarks.contenders import Contender
from benchmarks.data import IMAGE_SHAPE, NUM_CLASSES, Examples, Task, cross_entropy
from benchmarks.meter import Budget, Meter
from runner.model import convnet

DEVICES = 8
_MEASURED = 2048  # examples that the final loss is over


def versions() -> dict[str, str]:
    """Names the libraries that did the work."""
    return {"keras": keras.__version__, "jax": jax.__version__}


def train(contender: Contender, examples: Examples, budget: Budget) -> tuple[Meter, float]:
    """Trains a peer on its mesh.

    Returns:
      The meter, and the trained model's loss on the first examples.
    """
    if contender.mesh == "batch8":
        jax.config.update("jax_num_cpu_devices", DEVICES)
        if len(jax.devices()) != DEVICES:
            raise RuntimeError(f"JAX made {len(jax.devices())} devices, {DEVICES} were asked for")
    keras.utils.set_random_seed(1337)
    if contender.name.startswith("guide"):
        meter, model = _guide(_model(contender.model, scales=True), contender.task, examples, budget)
        images = examples.images[:_MEASURED].astype(np.float32)
    else:
        if contender.mesh == "batch8":
            keras.distribution.set_distribution(keras.distribution.DataParallel())
        meter, model = _fit(_model(contender.model, scales=False), contender.task, examples, budget)
        images = examples.images[:_MEASURED].astype(np.float32) / 255.0
    logits = np.asarray(model.predict(images, verbose=0))
    return meter, cross_entropy(logits, examples.labels[:_MEASURED])


def _model(name: str, *, scales: bool) -> Any:
    """Builds a model of images in [0, 255], which it scales itself, or in [0, 1]."""
    layers = [keras.Input(shape=IMAGE_SHAPE), *([keras.layers.Rescaling(1.0 / 255.0)] if scales else [])]
    if name == "convnet":
        layers += [convnet.build(keras, IMAGE_SHAPE, NUM_CLASSES)]
    else:
        layers += [
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(NUM_CLASSES),
        ]
    return keras.Sequential(layers)


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


def _fit(model: Any, task: Task, examples: Examples, budget: Budget) -> tuple[Meter, Any]:
    """Trains as https://keras.io/examples/vision/mnist_convnet/ does: arrays in memory, `fit` with a batch size."""
    model.compile(
        optimizer=keras.optimizers.Adam(task.learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    images = examples.images.astype(np.float32) / 255.0
    labels = examples.labels
    batch = task.batch_size
    whole = examples.steps_per_epoch * batch
    warm = budget.warmup_steps * batch
    model.fit(images[:warm], labels[:warm], batch_size=batch, epochs=1, verbose=0)

    def sync() -> None:
        # The newest state of an epoch under way; the public attributes are behind it until the epoch ends.
        jax.block_until_ready(getattr(model, "_jax_state", None))

    meter = Meter(budget, sync)
    model.fit(images[:whole], labels[:whole], batch_size=batch, epochs=1_000_000, verbose=0, callbacks=[_Clock(meter)])
    return meter, model


class _Guide:
    """The loop of https://keras.io/guides/distributed_training_with_jax/ on every device there is."""

    def __init__(self, model: Any, task: Task) -> None:
        """Replicates the state; variables are put by their values, which this version of JAX asks for."""
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        self.model = model
        self._optimizer = keras.optimizers.Adam(task.learning_rate)
        self._optimizer.build(model.trainable_variables)
        devices = np.array(jax.devices())
        self._data = NamedSharding(Mesh(devices, ("batch",)), PartitionSpec("batch"))
        whole = NamedSharding(Mesh(devices, ("_",)), PartitionSpec())
        groups = (model.trainable_variables, model.non_trainable_variables, self._optimizer.variables)
        self.state = tuple(jax.device_put([variable.value for variable in group], whole) for group in groups)
        self._step = jax.jit(self._train_step)
        self._gradients = jax.value_and_grad(self._loss, has_aux=True)

    def _loss(self, trainable: Any, others: Any, x: Any, y: Any) -> Any:
        logits, others = self.model.stateless_call(trainable, others, x, training=True)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, logits), others

    def _train_step(self, state: Any, x: Any, y: Any) -> Any:
        trainable, others, slots = state
        (loss, others), gradients = self._gradients(trainable, others, x, y)
        trainable, slots = self._optimizer.stateless_apply(slots, gradients, trainable)
        return loss, (trainable, others, slots)

    def step(self, x: Any, y: Any) -> None:
        """Places a batch and dispatches a step."""
        _, self.state = self._step(self.state, jax.device_put(x.numpy(), self._data), y.numpy())

    def write_back(self) -> None:
        """Assigns the state to the model's variables."""
        host = jax.device_get(self.state)
        for variable, value in zip(self.model.trainable_variables, host[0], strict=True):
            variable.assign(value)
        for variable, value in zip(self.model.non_trainable_variables, host[1], strict=True):
            variable.assign(value)


def _guide(model: Any, task: Task, examples: Examples, budget: Budget) -> tuple[Meter, Any]:
    """Trains with the guide's loop and its tf.data pipeline, unshuffled and in float32 as there."""
    import tensorflow as tf

    images = np.asarray(examples.images, np.float32)
    data = tf.data.Dataset.from_tensor_slices((images, examples.labels)).batch(task.batch_size, drop_remainder=True)
    loop = _Guide(model, task)
    for x, y in data.take(budget.warmup_steps):
        loop.step(x, y)
    meter = Meter(budget, lambda: jax.block_until_ready(loop.state))
    while not meter.done:
        meter.epoch_begin()
        for x, y in data:
            if meter.step_begin():
                break
            loop.step(x, y)
        meter.epoch_end()
    loop.write_back()
    return meter, loop.model
