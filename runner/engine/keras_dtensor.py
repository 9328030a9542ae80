"""The engine `keras_dtensor`: a tf_keras model on a DTensor mesh, stepped by pure functions of its variables.

Shapes: K steps a call, B global batch, C classes, HWD an image's height, width and channels.
"""

from __future__ import annotations

import itertools
import logging
import math
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner import layout, mesh, optimizer
from runner.engine import canary, program
from runner.engine.base import (
    Array,
    Collective,
    DataSpec,
    EvalMetrics,
    HostBatches,
    LayerOutput,
    PlacedBatches,
    StepMetrics,
    VariableInfo,
)
from runner.engine.dtensor import check_order, pack, prepare_environment, unpack, zeros
from runner.engine.storage import gather_for_use, read_held
from runner.errors import ConfigError, EngineError
from runner.schema import RunConfig

logger = logging.getLogger(__name__)

_COMPILATIONS = 5
_COUNTS = 16  # where the batches' example counts begin among a call's numbers
_IGNORE = -1  # label of padding
_BRIGHTEST = 255.0  # images are uint8 until a step scales them to [0, 1]
# Letters alone: DTensor numbers the functions that it makes of loops, and reads a digit at the end as such a number.
_loop_names = ("train_steps_" + "".join(pair) for pair in itertools.product(string.ascii_lowercase, repeat=3))


@dataclass(frozen=True)
class _Pending:
    """Losses and hits of single examples, (K, B), still on the devices: no collective is spent on metrics."""

    loss_kb: Any
    hit_kb: Any
    penalty_k: Any
    weights: Array
    steps: int

    def read(self) -> StepMetrics:
        weights = self.weights[: self.steps]
        count = np.maximum(weights.sum(axis=1), 1.0)
        loss = (unpack(self.loss_kb)[: self.steps] * weights).sum(axis=1) / count
        accuracy = (unpack(self.hit_kb)[: self.steps] * weights).sum(axis=1) / count
        return StepMetrics(loss + unpack(self.penalty_k)[: self.steps], accuracy)


class KerasDTensorEngine:
    """tf_keras on DTensor; see `runner.engine.base.Engine` for what the methods promise."""

    def __init__(self, config: RunConfig, data: DataSpec, total_steps: int) -> None:
        prepare_environment(config)
        self._config, self._data, self._total_steps = config, data, total_steps
        self._rule = optimizer.make_rule(config.optimizer)
        self._batch_axis = config.layout.inputs["image"][0]

    def build(self) -> None:
        """Makes devices, mesh, model and slots, checks the plan and runs the canary.

        Raises:
          ConfigError: a layout that does not fit the model, or a builder that fails.
          EngineError: the canary found wrong arithmetic on this mesh.
        """
        import tf_keras

        from runner.engine.keras_model import ModelFactory, check_layouts, named_variables

        self._mesh = mesh.configure_dtensor(self._config.mesh, self._config.engine.intra_op_threads)
        tf_keras.backend.experimental.enable_tf_random_generator()
        if self._config.engine.canary:
            canary.check(self._mesh, self._batch_axis, reread=not self._config.engine.combine_all_reduces)
        self._factory = ModelFactory(self._config.model, self._data, self._config.trainer.seed)
        plain = self._factory.plain()
        self._check_output(plain)
        initial = {path: variable.numpy() for path, variable in named_variables(plain).items()}
        shapes = {path: value.shape for path, value in initial.items()}
        self.placements = layout.resolve(self._config.layout, shapes, self._config.mesh.axes)
        layouts = {path: self._layout(placement.spec) for path, placement in self.placements.items()}
        self._model = self._factory.on_mesh(self._mesh, layouts)
        self._variables = named_variables(self._model)
        check_layouts(self._variables, layouts)
        trainable = {id(variable) for variable in self._model.trainable_variables}
        self._trained = [path for path, variable in self._variables.items() if id(variable) in trainable]
        self._slots = {
            f"optimizer/{slot}/{path}": zeros(self._variables[path])
            for path in self._trained
            for slot in self._rule.slots
        }
        self._gather_for_use()
        for path, value in initial.items():  # drawn whole: a value drawn under a sharded layout depends on the mesh
            self._variables[path].assign(pack(value, self._variables[path].layout))
        self._compile()

    def _gather_for_use(self) -> None:
        """Gathers for use what is split over an axis that splits the inputs, and kernels that an operation needs whole."""
        data_axes = {axis for spec in self._config.layout.inputs.values() for axis in spec if axis}
        for path, placement in self.placements.items():
            used = tuple(None if axis in data_axes else axis for axis in placement.spec)
            if used != placement.spec:
                gather_for_use(self._variables[path], path, self._layout(used))

    def _layout(self, spec: layout.Spec) -> Any:
        from tensorflow.experimental import dtensor

        return dtensor.Layout([dtensor.UNSHARDED if axis is None else axis for axis in spec], self._mesh)

    def _check_output(self, model: Any) -> None:
        shape = tuple(model.output_shape) if hasattr(model, "output_shape") else None
        if shape is not None and shape[1:] != (self._data.num_classes,):
            raise ConfigError(
                f"model._target_={self._config.model.target} is refused: the model gives {list(shape)}, allowed is "
                f"[batch, {self._data.num_classes}], one logit a class of the dataset; end it in a layer of that size"
            )

    def _compile(self) -> None:
        import tensorflow as tf

        image, label = self._config.layout.inputs["image"], self._config.layout.inputs["label"]
        self._image_layout = self._layout((None, *image))
        self._label_layout = self._layout((None, *label))
        self._scalar = self._layout(())
        self._vector = self._layout((None,))
        self._train: Any = None
        self._refusal: ConfigError | EngineError | None = None
        self._eval = tf.function(self._eval_call)

    def place(self, batches: HostBatches) -> PlacedBatches:
        """Packs images as uint8, and labels with -1 in place of padding."""
        labels = np.where(batches.weights > 0, batches.labels, _IGNORE).astype(np.int32)
        return PlacedBatches(
            pack(batches.images, self._image_layout), pack(labels, self._label_layout), batches.weights, batches.steps
        )

    def train_steps(self, batches: PlacedBatches, first_step: int) -> _Pending:
        """Runs the steps in one call; their number is an input, so that it needs no new trace."""
        self.compile(batches)
        loss, hit, penalty = self._train(*self._train_inputs(batches, batches.steps, first_step))
        return _Pending(loss, hit, penalty, batches.weights, batches.steps)

    def compile(self, batches: PlacedBatches) -> None:
        """Makes the step's program, once, for batches of these shapes."""
        if self._train is not None:
            return
        try:
            self._train = self._compiled(batches)
        except Exception:
            if self._refusal is not None:  # AutoGraph wraps it in an error of its own
                raise self._refusal from None
            raise

    @property
    def trained(self) -> tuple[str, ...]:
        """Returns the canonical paths of the trainable variables."""
        return tuple(self._trained)

    def collectives(self) -> list[Collective]:
        """Returns what the compiled step communicates, read from the program that DTensor made.

        Raises:
          EngineError: nothing was compiled yet.
        """
        if self._train is None:
            raise EngineError("the step's collectives are asked for before it was compiled")
        data_axes = {axis for spec in self._config.layout.inputs.values() for axis in spec if axis}
        return program.collectives(self._loop, self._before, self._config.mesh.axes, self.placements, data_axes)

    def layer_outputs(self) -> list[LayerOutput]:
        """Returns the outputs of the layers of a Sequential or functional model that have variables."""
        batch = self._config.dataset.batch_size
        named = {path.rpartition("/")[0] for path in self._variables}
        found = []
        for layer in self._model.layers:
            shape = getattr(layer, "output_shape", None)  # a layer of a subclassed model knows none
            if layer.name in named and isinstance(shape, tuple) and all(isinstance(dim, int) for dim in shape[1:]):
                found.append(LayerOutput(layer.name, type(layer).__name__, (batch, *shape[1:]), layer.compute_dtype))
        return found

    def _train_inputs(self, batches: PlacedBatches, steps: int, first_step: int) -> tuple[Any, ...]:
        """Returns images, labels and all numbers of a call in one vector.

        DTensor takes an input of a few elements for a constant, and compiles anew when its value changes.
        """
        counts = np.maximum(batches.weights.sum(axis=1), 1.0)
        numbers = np.concatenate([[steps, first_step], np.zeros(_COUNTS - 2), counts]).astype(np.float32)
        return batches.images, batches.labels, pack(numbers, self._vector)

    def _compiled(self, batches: PlacedBatches) -> Any:
        """Returns the training call, compiled by calling it for no step.

        DTensor names the functions that it makes of a loop itself, and in a few compilations of a hundred it refuses
        one as "a different function with the same name". Nothing has run then: a new trace under a new name is tried.

        Raises:
          tf.errors.InvalidArgumentError: it was refused each time, or something else is wrong.
        """
        import tensorflow as tf

        self._before = program.function_names()
        for left in reversed(range(_COMPILATIONS)):
            call = tf.function(self._train_call)
            try:
                call(*self._train_inputs(batches, 0, 0))
                break
            except tf.errors.InvalidArgumentError as error:
                if "different function with the same name" not in str(error) or not left:
                    raise
                logger.warning("compiling again: %s", error.message)
        return call

    def _train_call(self, images: Any, labels: Any, numbers: Any) -> tuple[Any, Any, Any]:
        """The traced training call: `steps` steps over images (K, B, H, W, D) and labels (K, B)."""
        import tensorflow as tf

        calls = int(images.shape[0])
        self._loop = next(_loop_names)
        steps, first, counts = tf.gather(numbers, 0), tf.gather(numbers, 1), numbers[_COUNTS:]

        def body(i: Any, loss_kb: Any, hit_kb: Any, penalty_k: Any) -> tuple[Any, ...]:
            x, y = tf.cast(tf.gather(images, i), tf.float32) / _BRIGHTEST, tf.gather(labels, i)
            try:
                loss_b, hit_b, penalty = self._step(x, y, tf.gather(counts, i), first + tf.cast(i, tf.float32))
            except (ConfigError, EngineError) as error:
                self._refusal = error
                raise
            row = tf.one_hot(i, calls)
            loss_kb += tf.expand_dims(row, 1) * tf.expand_dims(loss_b, 0)
            hit_kb += tf.expand_dims(row, 1) * tf.expand_dims(hit_b, 0)
            return i + 1, loss_kb, hit_kb, penalty_k + row * penalty

        empty = tf.cast(labels, tf.float32) * 0.0
        start = (tf.constant(0), empty, empty, counts * 0.0)
        # DTensor names the function of a loop's body after the loop, and two bodies of one name collide.
        _, loss, hit, penalty = tf.while_loop(
            lambda i, *_: tf.cast(i, tf.float32) < steps, body, start, parallel_iterations=1, name=self._loop
        )
        return loss, hit, penalty

    def _step(self, x_bhwd: Any, y_b: Any, count: Any, done: Any) -> tuple[Any, Any, Any]:
        """One step. Every variable is read, then everything is computed, then every variable is written."""
        import tensorflow as tf

        variables = [self._variables[path] for path in self._trained]
        weight_b = tf.cast(y_b >= 0, tf.float32)
        with tf.GradientTape() as tape:
            logits_bc = tf.cast(self._model(x_bhwd, training=True), tf.float32)
            loss_b = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.maximum(y_b, 0), logits=logits_bc)
            targets = [loss_b, *self._model.losses]
        # Seeded with each example's share of the mean: the mean itself would cost a collective.
        shares = [weight_b / count, *(tf.ones_like(penalty) for penalty in self._model.losses)]
        gradients = tape.gradient(targets, variables, output_gradients=shares)
        penalty = tf.add_n(self._model.losses) if self._model.losses else tf.constant(0.0)
        self._update(variables, gradients, done)
        if self._config.engine.combine_all_reduces:
            handles = {id(held.handle): path for path, held in (self._variables | self._slots).items()}
            check_order(tf.compat.v1.get_default_graph(), handles)
        hit_b = tf.cast(tf.equal(tf.argmax(logits_bc, -1, output_type=tf.int32), y_b), tf.float32)
        return loss_b * weight_b, hit_b, penalty

    def _update(self, variables: list[Any], gradients: list[Any], done: Any) -> None:
        import tensorflow as tf

        for path, gradient in zip(self._trained, gradients, strict=True):
            if gradient is None:
                raise ConfigError(
                    f"model._target_={self._config.model.target} is refused: the loss does not depend on trainable "
                    f"variable {path}; use it or make it trainable=False"
                )
        rate = optimizer.learning_rate(self._config.optimizer, done, self._total_steps, tf)
        writes: list[tuple[Any, Any]] = []
        gradients = optimizer.clip(self._config.optimizer.clip, gradients)
        for path, variable, gradient in zip(self._trained, variables, gradients, strict=True):
            slots = {slot: self._slots[f"optimizer/{slot}/{path}"] for slot in self._rule.slots}
            values = {slot: held.read_value() for slot, held in slots.items()}
            weight, new = self._rule.update(gradient, read_held(variable), values, rate, done + 1.0)
            writes += [(variable, weight), *((slots[slot], new[slot]) for slot in self._rule.slots)]
        for variable, value in writes:
            variable.assign(value)

    def evaluate(self, batches: Iterable[HostBatches]) -> EvalMetrics:
        """Evaluates batch by batch, sums kept on the devices and read once."""
        classes = self._data.num_classes
        sums = tuple(
            pack(np.zeros(shape, np.float32), self._layout((None,) * len(shape))) for shape in ((), (classes, classes))
        )
        for batch in batches:
            placed = self.place(batch)
            for _ in range(batch.steps):
                sums = self._eval(placed.images, placed.labels, *sums)
        confusion = np.rint(unpack(sums[1])).astype(np.int64)
        examples = int(confusion.sum())
        share = 1.0 / max(examples, 1)
        return EvalMetrics(float(unpack(sums[0])) * share, float(np.trace(confusion)) * share, examples, confusion)

    def _eval_call(self, images: Any, labels: Any, loss_sum: Any, confusion_cc: Any) -> tuple[Any, Any]:
        """The traced evaluation of one batch: images (1, B, H, W, D), labels (1, B)."""
        import tensorflow as tf

        classes = self._data.num_classes
        x_bhwd, y_b = tf.cast(tf.squeeze(images, 0), tf.float32) / _BRIGHTEST, tf.squeeze(labels, 0)
        logits_bc = tf.cast(self._model(x_bhwd, training=False), tf.float32)
        weight_b = tf.cast(y_b >= 0, tf.float32)
        loss_b = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.maximum(y_b, 0), logits=logits_bc)
        predicted_bc = tf.one_hot(tf.argmax(logits_bc, -1), classes)
        label_bc = tf.one_hot(y_b, classes)  # a row of zeros for padding
        return (
            loss_sum + tf.reduce_sum(loss_b * weight_b),
            confusion_cc + tf.matmul(label_bc, predicted_bc, transpose_a=True),
        )

    def variables(self) -> dict[str, VariableInfo]:
        """Returns variables and slots as DTensor holds them."""
        from tensorflow.experimental import dtensor

        found = {}
        for path, variable in {**self._variables, **self._slots}.items():
            spec = tuple(None if axis == dtensor.UNSHARDED else axis for axis in variable.layout.sharding_specs)
            local = layout.Placement(path, tuple(variable.shape), spec, None).shard_shape(self._config.mesh.axes)
            size = math.prod(local) * variable.dtype.size
            found[path] = VariableInfo(tuple(variable.shape), variable.dtype.name, spec, size)
        return found

    def state(self) -> dict[str, Array]:
        """Returns whole arrays of variables and slots."""
        return {path: unpack(variable) for path, variable in {**self._variables, **self._slots}.items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Sets variables and slots.

        Raises:
          ValueError: a path that is missing or unknown, or an array of another shape.
        """
        own = {**self._variables, **self._slots}
        if set(own) != set(state):
            raise ValueError(f"state differs in {', '.join(sorted(set(own) ^ set(state)))}")
        for path, variable in own.items():
            if tuple(variable.shape) != state[path].shape:
                raise ValueError(f"{path} has shape {tuple(variable.shape)}, the state has {state[path].shape}")
            variable.assign(pack(state[path].astype(variable.dtype.as_numpy_dtype), variable.layout))

    def plain_model(self) -> Any:
        """Returns the plain tf_keras model with the present weights."""
        from runner.engine.keras_model import named_variables

        model = self._factory.plain()
        for path, variable in named_variables(model).items():
            variable.assign(unpack(self._variables[path]))
        return model
