"""The traced parts of a DTensor engine: a call of training steps, a step's gradients, an evaluation.

Shapes: K steps per call, B global batch.
"""

from __future__ import annotations

import itertools
import operator
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner import arrays
from runner.config.import_path import raised
from runner.config.schema import RunConfig
from runner.data.base import WEIGHT
from runner.engine.dtensor import operations, packed
from runner.engine.dtensor.devices import MeshPlacer
from runner.engine.dtensor.guards import check_indexing, check_order, check_resources
from runner.engine.dtensor.state import State, Update
from runner.engine.dtensor.variable_reads import deferred
from runner.errors import ConfigError, EngineError
from runner.layout import Spec
from runner.model import scope
from runner.task.base import LOSS, DataSpec, Outputs

Batch = Mapping[str, tf.Tensor]
# Index of the first example count among a call's numbers. The vector is longer than its three numbers need: DTensor
# compiles the values of an input of less than 20 elements into the program, and compiles again when they change.
COUNTS = 32
# Letters alone: DTensor numbers the functions that it makes of loops, and reads a digit at the end as such a number.
_loop_names = ("train_steps_" + "".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=3))


@dataclass(frozen=True)
class _Backward:
    """The forward and the backward pass of one step.

    Attributes:
      gradients: in the order of `State.trainable`.
      loss: (B,), each example's.
      regularization: scalar, the sum of the losses that layers add.
    """

    gradients: list[tf.Tensor]
    loss: tf.Tensor
    outputs: Outputs
    regularization: tf.Tensor


class Steps:
    """Functions to be traced."""

    def __init__(
        self,
        config: RunConfig,
        data: DataSpec,
        total_steps: int,
        model: tf.Module,
        state: State,
        mesh: dtensor.Mesh,
        specs: Mapping[str, Spec],
        groups: int | None,
    ) -> None:
        self._config = config
        self._data = data
        self._model = model
        self._state = state
        self._specs = specs
        self._placer = MeshPlacer(mesh)
        self._ops = replace(arrays.of(tf), all_rows=self._whole)
        self._update = Update(config.optimizer, total_steps, state, packs=groups is not None)
        self._devices = mesh.size
        self._groups = groups

    def train(self, arrays: Batch, numbers: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Runs a call's steps, arrays (K, B, ...): each example's loss and metrics (K, B), and regularization (K,).

        `numbers` are the number of steps, of earlier ones, the factor on the learning rate and, from `COUNTS` on, the
        total weight of each step.

        The steps are a while loop and not unrolled: DTensor's passes take longer than linear time in the size of a
        program, and the number of steps can be an input.
        """
        names = (LOSS, *self._data.task.step_metrics)
        calls = int(arrays[WEIGHT].shape[0])
        rounds = tf.gather(numbers, 0)
        first = tf.gather(numbers, 1)
        factor = tf.gather(numbers, 2)
        share_kb = _shares(arrays, numbers)
        counts_k = numbers[COUNTS:]

        def body(i: tf.Tensor, regularization_k: tf.Tensor, *carried: tf.Tensor) -> tuple[tf.Tensor, ...]:
            sums_kb = carried[: len(names)]
            packed_state = carried[len(names) :]
            batch = _batch(arrays, i)
            done = first + tf.cast(i, tf.float32)
            try:
                sums_b, regularization, packed_state = self._step(
                    batch, tf.gather(share_kb, i), done, factor, packed_state
                )
            except (ConfigError, EngineError):
                raise
            except Exception as error:  # a user's layers may raise anything
                reason = f"a training step of the model raised {raised(error)}; correct it, or set engine=jax"
                raise ConfigError(f"model._target_={self._config.model.target}: {reason}") from error
            # Row i of the results is selected by `where`: in a product with a mask, a NaN would reach all rows.
            row_k = tf.one_hot(i, calls) > 0.0
            row_k1 = tf.expand_dims(row_k, 1)
            new_sums_kb = []
            for name, sum_kb in zip(names, sums_kb, strict=True):
                new_sums_kb.append(tf.where(row_k1, tf.expand_dims(sums_b[name], 0), sum_kb))
            return i + 1, tf.where(row_k, regularization, regularization_k), *new_sums_kb, *packed_state

        # A product and not `tf.zeros`: it has the layout of its factor, (K, B) sharded over the batch axis, before the
        # loop begins, and a loop's carried tensors must have one layout. In a small loop DTensor gives `tf.zeros` the
        # same layout, but there it depends on what its propagation finds in the whole body.
        zeros_kb = share_kb * 0.0
        zeros_k = counts_k * 0.0
        start = (tf.constant(0), zeros_k, *([zeros_kb] * len(names)), *self._update.packed_state())
        # DTensor names the function of a loop's body after the loop, and two bodies of one name collide.
        _, regularization, *carried = tf.while_loop(
            lambda i, *_: tf.cast(i, tf.float32) < rounds, body, start, parallel_iterations=1, name=next(_loop_names)
        )
        self._update.write_state(carried[len(names) :])
        return dict(zip(names, carried, strict=False)), regularization

    def gradients(self, arrays: Batch, numbers: tf.Tensor) -> list[tf.Tensor]:
        """Returns the gradients of step `numbers[0]` of K, after `numbers[1]` earlier ones."""
        i = tf.cast(tf.gather(numbers, 0), tf.int32)
        share_b = tf.gather(_shares(arrays, numbers), i)
        with deferred(list(self._state.variables.values()), kept=False):
            return self._backward(_batch(arrays, i), share_b, tf.gather(numbers, 1), self._state.trained).gradients

    def evaluate(self, arrays: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor], Outputs, tf.Tensor | None]:
        """Evaluates one batch, arrays (1, B, ...): losses (B,), the task's totals, outputs, losses of layers.

        The outputs are empty if the task keeps none. The last is None if layers add none.
        """
        task = self._data.task.without_class_weights()
        batch = _only_batch(arrays)
        # What a layer assigns in an inference is dropped, as by the engine jax.
        with deferred(list(self._state.variables.values()), kept=False):
            outputs = self._outputs(batch, None)
            added = self._added()
        self._check_model()
        loss_b = task.loss(self._ops, outputs, batch)
        totals = task.totals(self._ops, outputs, batch)
        return (
            loss_b,
            totals,
            outputs if task.keeps_outputs or task.reads_batch else {},
            tf.add_n(added) if added else None,
        )

    def next_logits(self, arrays: Batch) -> tf.Tensor:
        """Returns the logits (B, V) that the task selects, arrays (1, B, ...)."""
        with deferred(list(self._state.variables.values()), kept=False):
            logits: tf.Tensor = self._outputs(_only_batch(arrays), None, self._data.task.next_logits)
        self._check_model()
        return logits

    def _whole(self, x: tf.Tensor) -> tf.Tensor:
        return self._placer.lay(x, [None] * x.shape.rank)

    def _step(
        self, batch: Batch, share_b: tf.Tensor, done: tf.Tensor, factor: tf.Tensor, packed_state: tuple[tf.Tensor, ...]
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, tuple[tf.Tensor, ...]]:
        """Runs one step: reads everything, then computes everything, then writes everything.

        DTensor's all-reduce combiner does not keep the order of reads and writes; a step without such an order has
        none to lose, and `check_order` verifies that.
        """
        trained = self._state.trained
        sources: Sequence[tf.Tensor] = trained
        lent = {}
        if packed_state:
            sources = packed.unpack(packed_state[0], trained)
            lent = dict(zip(map(id, trained), sources, strict=True))
        with deferred(list(self._state.variables.values()), lent) as assigned:
            backward = self._backward(batch, share_b, done, sources)
            gradients = backward.gradients
            weights = [assigned.get(id(variable)) for variable in trained]
            if packed_state and any(map(operator.is_not, weights, sources)):
                # A layer has set a weight of its own.
                packed_state = (packed.pack(weights), *packed_state[1:])
            vector = packed.summed(gradients, self._groups or 1)
            if self._update.packs:
                if vector is None:
                    vector = packed.pack(gradients)
                packed_state = self._update.apply_packed(vector, done, factor, packed_state)
            else:
                if vector is not None:
                    gradients = packed.unpack(vector, gradients)
                self._update.apply(gradients, done, factor)
        names = self._check_model()
        if self._config.engine.combine_all_reduces and not self._config.optimizer.reread_slots:
            check_order(tf.compat.v1.get_default_graph(), names)
        metrics = self._data.task.metrics(self._ops, backward.outputs, batch)
        return {LOSS: backward.loss, **metrics}, backward.regularization, packed_state

    def _check_model(self) -> dict[int, str]:
        """Rejects what DTensor computes wrongly in the graph so far; returns the path of each variable's handle."""
        graph = tf.compat.v1.get_default_graph()
        if self._devices > 1:
            check_indexing(graph)
        names = {id(variable.handle): path for path, variable in self._state.saved.items()}
        check_resources(graph, names)
        return names

    def _backward(self, batch: Batch, share_b: tf.Tensor, done: tf.Tensor, sources: Sequence[tf.Tensor]) -> _Backward:
        """Runs the forward and the backward pass; sources are the trainable variables, or tensors lent to them."""
        with tf.GradientTape() as tape:
            if not isinstance(sources[0], tf.Variable):
                tape.watch(sources)
            outputs = self._outputs(batch, done)
            loss_b = self._data.task.loss(self._ops, outputs, batch)
            added = self._added()
        # The backward pass starts from each example's share of the mean: the mean itself would cost a collective.
        shares = [share_b]
        for loss in added:
            shares.append(tf.ones_like(loss))
        tape_gradients = tape.gradient([loss_b, *added], sources, output_gradients=shares)
        gradients = []
        for path, gradient in zip(self._state.trainable, tape_gradients, strict=True):
            if gradient is None:
                raise ConfigError(
                    f"model._target_={self._config.model.target}: the loss does not depend on trainable "
                    f"variable {path}; use it or make it trainable=False"
                )
            if isinstance(gradient, tf.IndexedSlices):
                # An embedding's gradient comes as slices, which have no layout on a mesh.
                gradient = tf.convert_to_tensor(gradient)
            gradient.set_shape(self._state.variables[path].shape)
            gradients.append(gradient)
        regularization = tf.add_n(added) if added else tf.constant(0.0)
        return _Backward(gradients, loss_b, outputs, regularization)

    def _added(self) -> list[tf.Tensor]:
        """Returns the losses that layers added in the latest call; rejects all but scalars, as tf_keras does."""
        losses = [tf.cast(loss, tf.float32) for loss in getattr(self._model, "losses", ())]
        for loss in losses:
            if loss.shape.rank:
                raise ConfigError(
                    f"model._target_={self._config.model.target}: a layer adds a loss of shape {list(loss.shape)}, "
                    "but tf_keras needs a scalar; add its tf.reduce_mean or tf.reduce_sum"
                )
        return losses

    def _outputs(
        self,
        batch: Batch,
        done: tf.Tensor | None,
        reduced: Callable[[arrays.Arrays, Outputs, Batch], Outputs] | None = None,
    ) -> Outputs:
        """Returns the model's outputs, float32 (B, ...), reduced by the task and sharded as batches are."""
        step = None if done is None else tf.cast(done, tf.int32)
        entered = scope.Scope(self._config.trainer.seed, step, self._placer, self._specs[WEIGHT][0])
        with scope.enter(entered), operations.masks_from_scope(self._model), operations.replaced():
            model_outputs = self._model(self._inputs(batch), training=done is not None)
            outputs = (reduced or self._data.task.reduced)(self._ops, model_outputs, batch)
            return tf.nest.map_structure(lambda y: scope.by_batch(tf.cast(y, tf.float32)), outputs)

    def _inputs(self, batch: Batch) -> tf.Tensor:
        """Returns the model's inputs, sharded as the layout says, whichever sharding the first layers prefer.

        Else DTensor passes a layer's preference on to the operation that takes a batch out of several, which fails.
        """
        task = self._data.task
        inputs = task.inputs(self._ops, batch)
        if isinstance(inputs, Mapping):
            return {name: scope.lay(x, self._specs[name]) for name, x in inputs.items()}
        return scope.lay(inputs, self._specs[task.input_names[0]])


def _batch(arrays: Batch, i: tf.Tensor) -> dict[str, tf.Tensor]:
    return {name: tf.gather(array, i) for name, array in arrays.items()}


def _only_batch(arrays: Batch) -> dict[str, tf.Tensor]:
    return {name: tf.squeeze(array, 0) for name, array in arrays.items()}


def _shares(arrays: Batch, numbers: tf.Tensor) -> tf.Tensor:
    """Returns (K, B), each example's share of the mean over its step: 0 for padding."""
    return tf.cast(arrays[WEIGHT] > 0.0, tf.float32) / tf.expand_dims(numbers[COUNTS:], 1)
