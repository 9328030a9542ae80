"""TensorFlow peers. Imported in a child process only, after its environment is set."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from benchmarks.data import BATCH_SIZE, NUM_CLASSES, Examples
from benchmarks.meter import Budget, Meter

DEVICES = 8
keras: Any = tf.keras  # tf_keras: the parent sets TF_USE_LEGACY_KERAS


def versions() -> dict[str, str]:
    """Names the libraries that did the work."""
    return {"tensorflow": tf.__version__, "tf_keras": metadata.version("tf-keras")}


def _virtual_cpus(count: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)


def _pipeline(examples: Examples) -> Any:
    """The tutorial's input pipeline, over examples that lie in memory."""

    def normalize_img(image: Any, label: Any) -> Any:
        return tf.cast(image, tf.float32) / 255.0, label

    ds_train = tf.data.Dataset.from_tensor_slices((examples.images, examples.labels))
    ds_train = ds_train.map(normalize_img, num_parallel_calls=tf.data.AUTOTUNE)
    ds_train = ds_train.cache()
    ds_train = ds_train.shuffle(len(examples.labels))
    ds_train = ds_train.batch(BATCH_SIZE, drop_remainder=True)
    return ds_train.prefetch(tf.data.AUTOTUNE)


# --- The tutorial's own loop: https://www.tensorflow.org/tutorials/distribute/dtensor_keras_tutorial


def _tutorial_model(mesh: Any) -> Any:
    unsharded_layout_2d = dtensor.Layout.replicated(mesh, 2)
    unsharded_layout_1d = dtensor.Layout.replicated(mesh, 1)
    return keras.models.Sequential(
        [
            keras.layers.Flatten(input_shape=(28, 28, 1)),
            keras.layers.Dense(
                128,
                activation="relu",
                name="d1",
                kernel_layout=unsharded_layout_2d,
                bias_layout=unsharded_layout_1d,
            ),
            keras.layers.Dense(
                NUM_CLASSES, name="d2", kernel_layout=unsharded_layout_2d, bias_layout=unsharded_layout_1d
            ),
        ]
    )


@tf.function  # type: ignore[untyped-decorator,unused-ignore]
def _tutorial_step(model: Any, x: Any, y: Any, optimizer: Any, metrics: Any) -> Any:
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = tf.reduce_sum(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905 (as in the document)
    for metric in metrics.values():
        metric.update_state(y_true=y, y_pred=logits)
    loss_per_sample = loss / len(x)
    return {"loss": loss_per_sample}


def _pack_dtensor_inputs(images: Any, labels: Any, image_layout: Any, label_layout: Any) -> Any:
    num_local_devices = image_layout.mesh.num_local_devices()
    images = tf.split(images, num_local_devices)
    labels = tf.split(labels, num_local_devices)
    images = dtensor.pack(images, image_layout)
    labels = dtensor.pack(labels, label_layout)
    return images, labels


class _TutorialLoop:
    """The document's loop: pack, step, read every metric and update the progress bar at each step."""

    def __init__(self, examples: Examples) -> None:
        _virtual_cpus(DEVICES)
        keras.backend.experimental.enable_tf_random_generator()
        keras.utils.set_random_seed(1337)
        mesh = dtensor.create_mesh([("batch", DEVICES)], devices=[f"CPU:{i}" for i in range(DEVICES)])
        self.model = _tutorial_model(mesh)
        self.optimizer = keras.dtensor.experimental.optimizers.Adam(0.01, mesh=mesh)
        self.metrics = {"accuracy": keras.metrics.SparseCategoricalAccuracy(mesh=mesh)}
        self.image_layout = dtensor.Layout.batch_sharded(mesh, "batch", rank=4)
        self.label_layout = dtensor.Layout.batch_sharded(mesh, "batch", rank=1)
        self.ds_train = _pipeline(examples)
        self.results: dict[str, Any] = {}

    def sync(self) -> None:
        for value in self.results.values():
            value.numpy()

    def epoch(self, meter: Meter | None, limit: int | None = None) -> None:
        for metric in self.metrics.values():
            metric.reset_state()
        step = 0
        results = self.results = {}
        pbar = keras.utils.Progbar(target=None, stateful_metrics=[])
        for batch in self.ds_train:
            if meter.step_begin() if meter else step == limit:
                break
            images = batch[0]
            labels = batch[1]
            images, labels = _pack_dtensor_inputs(images, labels, self.image_layout, self.label_layout)
            results.update(_tutorial_step(self.model, images, labels, self.optimizer, self.metrics))
            for metric_name, metric in self.metrics.items():
                results[metric_name] = metric.result()
            pbar.update(step, values=results.items(), finalize=False)
            step += 1
        if step:
            pbar.update(step, values=results.items(), finalize=True)


def tutorial(examples: Examples, budget: Budget) -> tuple[Meter, Any]:
    """Trains with the tutorial's loop on eight virtual devices."""
    loop = _TutorialLoop(examples)
    meter = Meter(budget, loop.sync)
    loop.epoch(None, budget.warmup_steps)
    while not meter.done:
        meter.epoch_begin()
        loop.epoch(meter)
        meter.epoch_end()
    return meter, loop.model.get_weights()


# --- tf_keras fit: https://www.tensorflow.org/datasets/keras_example


class _Clock(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Drives a meter from `fit`, without a look at the logs, which would cost `fit` a copy of them each step."""

    _supports_tf_logs = True

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


def _compiled(steps_per_execution: int) -> Any:
    keras.utils.set_random_seed(1337)
    model = keras.models.Sequential(
        [
            keras.layers.Flatten(input_shape=(28, 28, 1)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(NUM_CLASSES),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        steps_per_execution=steps_per_execution,
    )
    return model


def _fit(model: Any, examples: Examples, budget: Budget, steps_per_execution: int = 1) -> tuple[Meter, Any]:
    ds_train = _pipeline(examples)
    warmup = min(examples.steps_per_epoch, max(budget.warmup_steps, 2 * steps_per_execution))
    model.fit(ds_train, epochs=1, steps_per_epoch=warmup, verbose=0)
    meter = Meter(budget, lambda: None, steps_per_execution)  # `fit` on a CPU returns when a step is done
    model.fit(ds_train, epochs=1_000_000, verbose=0, callbacks=[_Clock(meter)])
    return meter, model.get_weights()


def fit(examples: Examples, budget: Budget) -> tuple[Meter, Any]:
    """Trains with tf_keras `fit` on one device."""
    return _fit(_compiled(1), examples, budget)


def fit_many(examples: Examples, budget: Budget) -> tuple[Meter, Any]:
    """Trains with tf_keras `fit` on one device, several steps a call."""
    steps = next(n for n in (26, 36, 18, 13, 12, 9, 8, 6, 5, 4, 3, 2, 1) if examples.steps_per_epoch % n == 0)
    return _fit(_compiled(steps), examples, budget, steps)


def mirrored(examples: Examples, budget: Budget, cross_device_ops: str) -> tuple[Meter, Any]:
    """Trains with tf_keras `fit` under MirroredStrategy on eight virtual devices.

    Args:
      examples: the training examples.
      budget: when to stop.
      cross_device_ops: `default`, `one_device` or `hierarchical`.

    Returns:
      The meter and the trained weights.
    """
    _virtual_cpus(DEVICES)
    ops = {
        "default": lambda: None,
        "one_device": tf.distribute.ReductionToOneDevice,
        "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    }[cross_device_ops]()
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(DEVICES)], cross_device_ops=ops)
    with strategy.scope():
        model = _compiled(1)
    return _fit(model, examples, budget)
