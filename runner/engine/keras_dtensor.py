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
from runner.engine.dtensor import pack, prepare_environment, unpack, zeros
from runner.engine.explain import compile_error, is_compile_error
from runner.engine.graph import check_indexing, check_order
from runner.engine.storage import gather_for_use, read_held
from runner.errors import ConfigError, EngineError
from runner.model import scope
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

        from runner.engine.keras_model import ModelFactory, check_layouts, check_model, named_variables

        self._mesh = mesh.configure_dtensor(self._config.mesh, self._config.engine.intra_op_threads)
        tf_keras.backend.experimental.enable_tf_random_generator()
        if self._config.engine.canary:
            canary.check(self._mesh, self._batch_axis, reread=not self._config.engine.combine_all_reduces)
        self._factory = ModelFactory(self._config.model, self._data, self._config.trainer.seed)
        plain = self._factory.plain()
        check_model(plain, self._config, self._data.num_classes)
        initial = {path: variable.numpy() for path, variable in named_variables(plain).items()}
        shapes = {path: value.shape for path, value in initial.items()}
        axes, images = self._config.mesh.axes, (self._config.dataset.batch_size, *self._data.input_shape)
        layout.check_inputs(self._config.layout, images, axes)
        self.placements: Mapping[str, layout.Placement] = layout.resolve(self._config.layout, shapes, axes)
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
        """Gathers for use what is split over an axis of the inputs, and kernels that an operation needs whole."""
        from runner.engine.keras_model import whole_paths

        data_axes = {axis for spec in self._config.layout.inputs.values() for axis in spec if axis}
        whole = whole_paths(self._model)
        for path, placement in self.placements.items():
            used = tuple(None if axis in data_axes or path in whole else axis for axis in placement.spec)
            if used != placement.spec:
                gather_for_use(self._variables[path], path, self._layout(used))

    def _layout(self, spec: layout.Spec) -> Any:
        from tensorflow.experimental import dtensor

        return dtensor.Layout([dtensor.UNSHARDED if axis is None else axis for axis in spec], self._mesh)

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

    def compile(self, batches: PlacedBatches) -> None:
        """Makes the training program for batches of these shapes.

        Raises:
          ConfigError: the model or the layout has a form that DTensor can't compute.
        """
        import tensorflow as tf

        if self._train is not None:
            return
        try:
            self._train = self._compiled(batches)
        except tf.errors.OpError as error:
            if not is_compile_error(str(error)):
                raise
            logger.error("DTensor could not compile the step:\n%s", error)
            operations = [(operation.type, operation.name) for operation in self._traced.get_operations()]
            raise compile_error(str(error), operations, [layer.name for layer in self._model.submodules]) from None
        except Exception:
            if self._refusal is not None:  # AutoGraph wraps it in an error of its own
                raise self._refusal from None
            raise

    def train_steps(self, batches: PlacedBatches, first_step: int) -> _Pending:
        """Runs the steps in one call; their number is an input, so that it needs no new trace."""
        self.compile(batches)
        loss, hit, penalty = self._train(*self._train_inputs(batches, batches.steps, first_step))
        return _Pending(loss, hit, penalty, batches.weights, batches.steps)

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

        gradients, loss_b, logits_bc, penalty = self._gradients(x_bhwd, y_b, count, done)
        with tf.name_scope(program.UPDATE_SCOPE):
            self._update(gradients, done)
        self._traced = tf.compat.v1.get_default_graph()
        if self._mesh.size > 1:
            check_indexing(self._traced)
        if self._config.engine.combine_all_reduces:
            handles = {id(held.handle): path for path, held in (self._variables | self._slots).items()}
            check_order(self._traced, handles)
        hit_b = tf.cast(tf.equal(tf.argmax(logits_bc, -1, output_type=tf.int32), y_b), tf.float32)
        return loss_b * tf.cast(y_b >= 0, tf.float32), hit_b, penalty

    def _gradients(self, x_bhwd: Any, y_b: Any, count: Any, done: Any) -> tuple[list[Any], Any, Any, Any]:
        """Returns the gradients of the mean loss, each example's loss (B,), the logits (B, C) and the penalty."""
        import tensorflow as tf

        variables = [self._variables[path] for path in self._trained]
        with tf.GradientTape() as tape:
            with scope.enter(self._scope(done)):
                logits_bc = self._logits(x_bhwd, training=True)
            loss_b = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.maximum(y_b, 0), logits=logits_bc)
            targets = [loss_b, *self._model.losses]
        # Seeded with each example's share of the mean: the mean itself would cost a collective.
        weight_b = tf.cast(y_b >= 0, tf.float32)
        shares = [weight_b / count, *(tf.ones_like(penalty) for penalty in self._model.losses)]
        gradients = tape.gradient(targets, variables, output_gradients=shares)
        for path, gradient in zip(self._trained, gradients, strict=True):
            if gradient is None:
                raise ConfigError(
                    f"model._target_={self._config.model.target} is refused: the loss does not depend on trainable "
                    f"variable {path}; use it or make it trainable=False"
                )
        penalty = tf.add_n(self._model.losses) if self._model.losses else tf.constant(0.0)
        return gradients, loss_b, logits_bc, penalty

    def gradients(self, batches: HostBatches, step: int) -> dict[str, Array]:
        """Returns the first batch's whole gradients; batch statistics are put back as they were."""
        import tensorflow as tf

        def call(images: Any, labels: Any, numbers: Any) -> list[Any]:
            x, y = tf.cast(tf.gather(images, 0), tf.float32) / _BRIGHTEST, tf.gather(labels, 0)
            found, *_ = self._gradients(x, y, tf.gather(numbers, _COUNTS), tf.gather(numbers, 1))
            return found

        placed = self.place(HostBatches(batches.images[:1], batches.labels[:1], batches.weights[:1], 1))
        held = {path: self._variables[path] for path in self._variables if path not in self._trained}
        before = {path: unpack(variable) for path, variable in held.items()}
        found = tf.function(call)(*self._train_inputs(placed, 1, step))
        gradients = {path: unpack(gradient) for path, gradient in zip(self._trained, found, strict=True)}
        for path, value in before.items():
            held[path].assign(pack(value, held[path].layout))
        return gradients

    def _scope(self, done: Any) -> scope.Scope:
        import tensorflow as tf

        step = None if done is None else tf.cast(done, tf.int32)
        image = tuple(self._config.layout.inputs["image"])
        return scope.Scope(self._config.trainer.seed, step, self._mesh, image)

    def _logits(self, x_bhwd: Any, *, training: bool) -> Any:
        """Returns float32 logits (B, C), whole along C."""
        import tensorflow as tf

        return scope.by_batch(tf.cast(self._model(x_bhwd, training=training), tf.float32))

    def _update(self, gradients: list[Any], done: Any) -> None:
        import tensorflow as tf

        rate = optimizer.learning_rate(self._config.optimizer, done, self._total_steps, tf)
        writes: list[tuple[Any, Any]] = []
        gradients = optimizer.clip(self._config.optimizer.clip, gradients)
        for path, gradient in zip(self._trained, gradients, strict=True):
            variable = self._variables[path]
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
        with scope.enter(self._scope(None)):
            logits_bc = self._logits(x_bhwd, training=False)
        weight_b = tf.cast(y_b >= 0, tf.float32)
        loss_b = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.maximum(y_b, 0), logits=logits_bc)
        predicted_bc = tf.one_hot(tf.argmax(logits_bc, -1), classes)
        label_bc = tf.one_hot(y_b, classes)  # a row of zeros for padding
        return (
            loss_sum + tf.reduce_sum(loss_b * weight_b),
            confusion_cc + tf.matmul(label_bc, predicted_bc, transpose_a=True),
        )

    def layer_outputs(self) -> list[LayerOutput]:
        """Returns every layer's output for one global batch, in the order of the calls."""
        from runner.engine.keras_model import layer_outputs

        return layer_outputs(self._factory.plain(), self._config.dataset.batch_size, self._data)

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

        model = self._factory.plain(stock=True)
        for path, variable in named_variables(model).items():
            variable.assign(unpack(self._variables[path]))
        return model
