"""The traced parts of a DTensor engine: a call of several training steps, a step's gradients, an evaluation.

Shapes: K steps a call, B global batch; of a step in several micro-batches, K and B are those of the micro-batches.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from runner.config.schema import RunConfig
from runner.data.base import WEIGHT
from runner.engine.dtensor import operations, packed
from runner.engine.dtensor.adapters import Model
from runner.engine.dtensor.explain import trace_error
from runner.engine.dtensor.guards import check_indexing, check_order, check_resources, written
from runner.engine.dtensor.masks import handed_in
from runner.engine.dtensor.mesh import MeshPlacer
from runner.engine.dtensor.origins import UPDATE_SCOPE
from runner.engine.dtensor.packing import Packing
from runner.engine.dtensor.state import State
from runner.engine.dtensor.update import Position, Update
from runner.engine.dtensor.variable_reads import deferred, lent
from runner.errors import ConfigError, EngineError
from runner.layout import Spec
from runner.model import scope
from runner.task import namespace
from runner.task.base import LOSS, DataSpec, Outputs

Batch = Mapping[str, tf.Tensor]
# Where the batches' example counts begin among a call's numbers. DTensor compiles an input of less than 20 elements in
# as a constant, and compiles all again when its value changes.
COUNTS = 32
# Letters alone: DTensor numbers the functions that it makes of loops, and reads a digit at the end as such a number.
_loop_names = ("train_steps_" + "".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=3))


class Steps:
    """Functions to be traced.

    Attributes:
      loop: name of the training call's loop, as it was traced last.
      packing: of the state, until a trace finds that the model's gradients can't be packed; None: each variable is
        updated by itself.
      refusal: what a trace was refused for; AutoGraph wraps an error in one of its own.
      graph: of the step that was traced last.
    """

    def __init__(
        self,
        config: RunConfig,
        data: DataSpec,
        total_steps: int,
        model: Model,
        state: State,
        mesh: dtensor.Mesh,
        specs: Mapping[str, Spec],
        packing: Packing | None,
    ) -> None:
        """Takes what the functions compute with.

        Args:
          config: a checked config.
          data: what batches hold, and the task.
          total_steps: of the whole run, for schedules that end with it.
          model: whose variables the state holds.
          state: variables and slots.
          mesh: DTensor mesh.
          specs: how a batch's arrays lie on it, by name.
          packing: of the trainable variables in one vector.
        """
        self._config = config
        self._data = data
        self._model = model
        self._state = state
        self._specs = specs
        self._ops = namespace.of(tf)
        self._placer = MeshPlacer(mesh)
        self._update = Update(config, total_steps, state)
        self._microbatches = config.trainer.accumulate_steps
        self._devices = mesh.size
        self._space = _space(data, specs)
        self.loop = ""
        self.packing = packing
        self.refusal: ConfigError | EngineError | None = None
        self.graph: tf.Graph | None = None

    def train(self, arrays: Batch, numbers: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """The traced training call: returns each example's loss and metrics (K, B), and regularization (K,).

        A step of several micro-batches is as many rounds of the loop.

        Args:
          arrays: (K, B, ...) by name.
          numbers: how many rounds, steps done before, the rate's factor; from `COUNTS` on, what the examples of each
            round's step count for.
        """
        names = (LOSS, *self._data.task.step_metrics)
        calls = int(arrays[WEIGHT].shape[0])
        self.loop = next(_loop_names)
        rounds, first, factor = (tf.gather(numbers, i) for i in range(3))
        share_kb = _shares(arrays, numbers)
        counts_k = numbers[COUNTS:]

        def body(i: tf.Tensor, regularization_k: tf.Tensor, *carried: tf.Tensor) -> tuple[tf.Tensor, ...]:
            sums_kb = carried[: len(names)]
            vectors = carried[len(names) :]
            batch = _batch(arrays, i)
            at = self._position(first, i)
            try:
                sums_b, regularization, vectors = self._step(batch, tf.gather(share_kb, i), at, factor, vectors)
            except (ConfigError, EngineError) as error:
                self.refusal = error
                raise
            except packed.NotPacked:
                self.packing = None
                raise
            except Exception as error:  # whatever a user's layers raise
                self.refusal = trace_error(error, self._config.model.target)
                raise self.refusal from error
            row_k = tf.one_hot(i, calls) > 0.0  # chosen, not multiplied: a NaN would spread to the other steps
            row_k1 = tf.expand_dims(row_k, 1)
            sums_kb = tuple(
                tf.where(row_k1, tf.expand_dims(sums_b[name], 0), sum_kb)
                for name, sum_kb in zip(names, sums_kb, strict=True)
            )
            return i + 1, tf.where(row_k, regularization, regularization_k), *sums_kb, *vectors

        empty = [share_kb * 0.0] * len(names)
        start = (tf.constant(0), counts_k * 0.0, *empty, *self._read_packed())
        # DTensor names the function of a loop's body after the loop, and two bodies of one name collide.
        _, regularization, *carried = tf.while_loop(
            lambda i, *_: tf.cast(i, tf.float32) < rounds, body, start, parallel_iterations=1, name=self.loop
        )
        self._write_packed(carried[len(names) :])
        return dict(zip(names, carried, strict=False)), regularization

    def gradients(self, arrays: Batch, numbers: tf.Tensor) -> list[tf.Tensor]:
        """The gradients of one micro-batch of K, whose number comes first, in the order of `State.trainable`.

        What layers assign is kept where a step has more micro-batches: the next may read it.
        """
        i = tf.cast(tf.gather(numbers, 0), tf.int32)
        share_b = tf.gather(_shares(arrays, numbers), i)
        with deferred(list(self._state.variables.values()), kept=self._microbatches > 1):
            return self._gradients(_batch(arrays, i), share_b, tf.gather(numbers, 1))[0]

    def evaluate(self, arrays: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor], Outputs]:
        """The traced evaluation of one batch, arrays (1, B, ...): losses (B,), the task's totals, the outputs.

        Those are left out where the task keeps none.
        """
        task = self._data.task
        batch = {name: tf.squeeze(array, 0) for name, array in arrays.items()}
        outputs = self._outputs(batch, None)
        loss_b = task.loss(self._ops, outputs, batch)
        totals = task.totals(self._ops, outputs, batch)
        return loss_b, totals, outputs if task.keeps_outputs else {}

    def outputs(self, arrays: Batch) -> Outputs:
        """The traced outputs of one batch, arrays (1, B, ...), for `judged`."""
        return self._outputs({name: tf.squeeze(array, 0) for name, array in arrays.items()}, None)

    def judged(self, outputs: Outputs, arrays: Batch, examples: int | None) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The traced losses (B,) and the task's totals, of what `outputs` gave for the same batch.

        Args:
          outputs: of the batch.
          arrays: (1, B, ...) by name.
          examples: the task is given the first so many rows alone, so that no padding is among them; each device then
            computes with all of them, as the mesh need not divide their number. None: all rows.
        """
        batch = {name: tf.squeeze(array, 0) for name, array in arrays.items()}
        size = int(batch[WEIGHT].shape[0])

        def cut(x: tf.Tensor) -> tf.Tensor:
            whole = self._placer.lay(x, [None] * x.shape.rank, None)
            return whole[:examples] if x.shape.rank and x.shape[0] == size else whole

        if examples is not None:
            outputs = tf.nest.map_structure(cut, outputs)
            batch = {name: cut(array) for name, array in batch.items()}
        loss_b = self._data.task.loss(self._ops, outputs, batch)
        totals = self._data.task.totals(self._ops, outputs, batch)
        return tf.pad(loss_b, [[0, size - loss_b.shape[0]]]) if examples is not None else loss_b, totals

    def next_logits(self, arrays: Batch) -> tf.Tensor:
        """The traced logits (B, V) that the task takes of one batch, arrays (1, B, ...)."""
        batch = {name: tf.squeeze(array, 0) for name, array in arrays.items()}
        return self._outputs(batch, None, self._data.task.next_logits)

    def _position(self, first: tf.Tensor, i: tf.Tensor) -> Position:
        """Returns where round `i` of a call stands."""
        if self._microbatches == 1:
            done = first + tf.cast(i, tf.float32)
            return Position(done, done)
        microstep = first * float(self._microbatches) + tf.cast(i, tf.float32)
        done = first + tf.cast(i // self._microbatches, tf.float32)
        return Position(done, microstep, tf.cast(i % self._microbatches, tf.float32))

    def _read_packed(self) -> list[tf.Tensor]:
        """Returns the vectors that a call's loop carries from step to step; nothing where none is packed."""
        if self.packing is None:
            return []
        every = self._update.packed_variables(self.packing)
        return [packed.pack([variable.read_value() for variable in variables]) for variables in every]

    def _write_packed(self, vectors: Sequence[tf.Tensor]) -> None:
        """Writes the vectors that a call ends with."""
        if self.packing is None:
            return
        for variables, vector in zip(self._update.packed_variables(self.packing), vectors, strict=True):
            for variable, value in zip(variables, packed.unpack(self.packing, vector), strict=True):
                variable.assign(value)

    def _step(
        self, batch: Batch, share_b: tf.Tensor, at: Position, factor: tf.Tensor, vectors: tuple[tf.Tensor, ...]
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, tuple[tf.Tensor, ...]]:
        """One step. Everything is read, then everything is computed, then everything is written.

        State that is packed is handed in and out; else it is read from the variables, and written to them.
        """
        if self.packing is None:
            with deferred(list(self._state.variables.values())):
                gradients, loss_b, outputs, regularization = self._gradients(batch, share_b, at.microstep)
                with tf.name_scope(UPDATE_SCOPE):
                    self._update.apply(gradients, at, factor)
        else:
            variables = self._update.packed_variables(self.packing)[0]
            weights = packed.unpack(self.packing, vectors[0])
            with lent(variables, weights), deferred(list(self._state.non_trainable.values())):
                gradients, loss_b, outputs, regularization = self._gradients(batch, share_b, at.microstep, weights)
            # A layer that sets its own weights would set the variables, and go on reading what was lent.
            names = {id(variable.handle): variable.name for variable in variables}
            if written(tf.compat.v1.get_default_graph(), names):
                raise packed.NotPacked("a layer assigns a weight")
            gradient = packed.summed(self.packing, gradients)
            with tf.name_scope(UPDATE_SCOPE):
                vectors = self._update.apply_packed(self.packing, gradient, at.done, factor, vectors)
        self._check(tf.compat.v1.get_default_graph())
        return {LOSS: loss_b, **self._data.task.metrics(self._ops, outputs, batch)}, regularization, vectors

    def _check(self, graph: tf.Graph) -> None:
        """Checks the order and the forms of a step that was traced."""
        self.graph = graph
        if self._devices > 1:
            check_indexing(graph)
        own = {**self._state.saved, **{f"the sum of gradients of {p}": v for p, v in self._state.grad_accum.items()}}
        names = {id(variable.handle): path for path, variable in own.items()}
        check_resources(graph, names)
        if self._config.engine.combine_all_reduces and not self._config.optimizer.reread_slots:
            check_order(graph, names)

    def _gradients(
        self, batch: Batch, share_b: tf.Tensor, microstep: tf.Tensor, weights: Sequence[tf.Tensor] = ()
    ) -> tuple[list[tf.Tensor], tf.Tensor, Outputs, tf.Tensor]:
        """Returns the gradients of the mean loss, each example's loss (B,), the outputs and the regularization.

        With `weights`, tensors that are lent to the trainable variables, the gradients are theirs.
        """
        variables = weights or [self._state.variables[path] for path in self._state.trainable]
        with tf.GradientTape() as tape:
            for weight in weights:
                tape.watch(weight)
            outputs = self._outputs(batch, microstep)
            loss_b = self._data.task.loss(self._ops, outputs, batch)
            added = [tf.cast(loss, tf.float32) for loss in self._model.losses]
        self._check_added(added)
        # Seeded with each example's share of the mean: the mean itself would cost a collective.
        shares = [share_b, *(tf.ones_like(loss) / self._microbatches for loss in added)]
        found = tape.gradient([loss_b, *added], variables, output_gradients=shares)
        # A table's rows come as slices, which are not laid on a mesh.
        gradients = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in found]
        for path, gradient in zip(self._state.trainable, gradients, strict=True):
            if gradient is None:
                raise ConfigError(
                    f"model._target_={self._config.model.target}: the loss does not depend on trainable "
                    f"variable {path}; use it or make it trainable=False"
                )
        return gradients, loss_b, outputs, tf.add_n(added) if added else tf.constant(0.0)

    def _check_added(self, losses: Sequence[tf.Tensor]) -> None:
        """Refuses losses of layers that are not one number each, as tf_keras itself does."""
        shapes = [list(loss.shape) for loss in losses if loss.shape.rank]
        if shapes:
            raise ConfigError(
                f"model._target_={self._config.model.target}: a layer adds a loss of shape {shapes[0]}, "
                "and tf_keras takes one number; add its tf.reduce_mean or tf.reduce_sum"
            )

    def _outputs(
        self,
        batch: Batch,
        microstep: tf.Tensor | None,
        reduced: Callable[[namespace.Namespace, Outputs, Batch], Outputs] | None = None,
    ) -> Outputs:
        """Returns what the task makes of the model's outputs, float32 (B, ...), split as batches are, all else whole.

        Args:
          batch: arrays by name.
          microstep: micro-batches done before; None in an evaluation.
          reduced: what the task makes of the model's outputs; None: `Task.reduced`.
        """
        step = None if microstep is None else tf.cast(microstep, tf.int32)
        entered = scope.Scope(self._config.trainer.seed, step, self._placer, self._specs[WEIGHT][0], self._space)
        with scope.enter(entered), handed_in(self._model), operations.replaced():
            given = self._model(self._inputs(batch), training=microstep is not None)
            outputs = (reduced or self._data.task.reduced)(self._ops, given, batch)
            return tf.nest.map_structure(lambda y: scope.by_batch(tf.cast(y, tf.float32)), outputs)

    def _inputs(self, batch: Batch) -> Any:
        """Returns what the model takes, split as the layout says, whatever split the first layers would have it in.

        Left to itself DTensor hands a layer's wish on to the operation that takes a batch out of several, and refuses
        it.
        """
        task = self._data.task
        taken = task.inputs(self._ops, batch)
        if isinstance(taken, Mapping):
            return {name: scope.lay(x, self._specs[name]) for name, x in taken.items()}
        return scope.lay(taken, self._specs[task.input_names[0]])


def _batch(arrays: Batch, i: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns one batch of a call's."""
    return {name: tf.gather(array, i) for name, array in arrays.items()}


def _shares(arrays: Batch, numbers: tf.Tensor) -> tf.Tensor:
    """Returns (K, B), what each example's loss counts for in the mean of its step: 0 of padding."""
    return tf.cast(arrays[WEIGHT] > 0.0, tf.float32) / tf.expand_dims(numbers[COUNTS:], 1)


def _space(data: DataSpec, specs: Mapping[str, Spec]) -> tuple[str | None, str | None]:
    """Returns the axes that split the height and the width of the model's images; those of the first that is split."""
    for name, spec in data.inputs.items():
        if spec.is_image:
            height, width = (specs[name][1 + spec.dims.index(dim)] for dim in ("height", "width"))
            if height or width:
                return height, width
    return None, None
