"""The traced parts of a DTensor engine: a call of several training steps, a step, an evaluation.

Shapes: K steps a call, B global batch, C classes, HWD an image's height, width and channels.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.config.errors import ConfigError, EngineError
from runner.config.schema import RunConfig
from runner.engine.dtensor import program
from runner.engine.dtensor.graph import check_indexing, check_order
from runner.engine.dtensor.packing import NotPacked, Packing
from runner.engine.dtensor.variable_reads import lent, read_held
from runner.model import scope
from runner.optim import rules as optimizer

COUNTS = 16  # where the batches' example counts begin among a call's numbers
_BRIGHTEST = 255.0  # images are uint8 until a step scales them to [0, 1]
# Letters alone: DTensor numbers the functions that it makes of loops, and reads a digit at the end as such a number.
_loop_names = ("train_steps_" + "".join(pair) for pair in itertools.product(string.ascii_lowercase, repeat=3))


@dataclass(frozen=True)
class Held:
    """What a step computes with.

    Attributes:
      model: (images in [0, 1] (B, H, W, D), training) -> logits (B, C); its `losses` are penalties.
      variables: by canonical path.
      slots: `optimizer/<slot>/<path>` and, for averages of weights, `ema/<path>` to variable.
      sums: path to the sum of the gradients of a step's micro-batches so far; none where a step has one part.
      trained: paths of the trainable variables.
      mesh: DTensor mesh.
      packing: where the trained variables lie in one vector; null: each is updated by itself.
    """

    model: Any
    variables: Mapping[str, Any]
    slots: Mapping[str, Any]
    sums: Mapping[str, Any]
    trained: Sequence[str]
    mesh: Any
    packing: Packing | None = None


@dataclass(frozen=True)
class _Place:
    """Where a round of a call's loop stands; float32 scalars.

    Attributes:
      done: steps done before.
      drawn: micro-batches done before, which dropout masks depend on.
      part: number of the micro-batch in its step; None where a step has one.
    """

    done: Any
    drawn: Any
    part: Any = None


class Steps:
    """Functions to be traced.

    Attributes:
      loop: name of the training call's loop, as it was traced last.
      packing: that of the state, until a trace finds that the model's gradients can't be packed.
      refusal: what a trace was refused for; AutoGraph wraps an error in one of its own.
      graph: of the step that was traced last.
    """

    def __init__(self, config: RunConfig, num_classes: int, total_steps: int, held: Held) -> None:
        self._config, self._classes, self._total_steps, self._held = config, num_classes, total_steps, held
        self._rule, self._decay = optimizer.make_rule(config.optimizer), config.optimizer.ema.decay
        self._parts = config.trainer.accumulate_steps
        self.loop = ""
        self.packing = held.packing
        self.refusal: ConfigError | EngineError | None = None
        self.graph: Any = None

    def train(self, images: Any, labels: Any, numbers: Any) -> tuple[Any, Any, Any]:
        """The traced training call: `steps` steps over images (K, B, H, W, D) and labels (K, B).

        A step of several parts is as many rounds of the loop, each over one micro-batch; K and B are then theirs.
        """
        import tensorflow as tf

        calls = int(images.shape[0])
        self.loop = next(_loop_names)
        steps, first, factor, counts = *(tf.gather(numbers, i) for i in range(3)), numbers[COUNTS:]

        def body(i: Any, loss_kb: Any, hit_kb: Any, penalty_k: Any, *state: Any) -> tuple[Any, ...]:
            x, y = tf.cast(tf.gather(images, i), tf.float32) / _BRIGHTEST, tf.gather(labels, i)
            try:
                place = self._place(first, i)
                loss_b, hit_b, penalty, state = self._step(x, y, tf.gather(counts, i), place, factor, state)
            except (ConfigError, EngineError) as error:
                self.refusal = error
                raise
            except NotPacked:
                self.packing = None
                raise
            row_k = tf.one_hot(i, calls) > 0.0  # chosen, not multiplied: a NaN would spread to the other steps
            loss_kb = tf.where(tf.expand_dims(row_k, 1), tf.expand_dims(loss_b, 0), loss_kb)
            hit_kb = tf.where(tf.expand_dims(row_k, 1), tf.expand_dims(hit_b, 0), hit_kb)
            return i + 1, loss_kb, hit_kb, tf.where(row_k, penalty, penalty_k), *state

        empty = tf.cast(labels, tf.float32) * 0.0
        start = (tf.constant(0), empty, empty, counts * 0.0, *self._read_packed())
        # DTensor names the function of a loop's body after the loop, and two bodies of one name collide.
        _, loss, hit, penalty, *state = tf.while_loop(
            lambda i, *_: tf.cast(i, tf.float32) < steps, body, start, parallel_iterations=1, name=self.loop
        )
        self._write_packed(state)
        return loss, hit, penalty

    def _place(self, first: Any, i: Any) -> _Place:
        """Returns where round `i` of a call stands."""
        import tensorflow as tf

        if self._parts == 1:
            done = first + tf.cast(i, tf.float32)
            return _Place(done, done)
        drawn = first * float(self._parts) + tf.cast(i, tf.float32)
        return _Place(first + tf.cast(i // self._parts, tf.float32), drawn, tf.cast(i % self._parts, tf.float32))

    def _packed(self) -> list[list[Any]]:
        """Returns the variables behind each packed vector: the weights, slot by slot, the weights' averages."""
        if self.packing is None:
            return []
        weights = [self._held.variables[path] for path in self.packing.paths]
        slots = [[self._held.slots[f"optimizer/{s}/{p}"] for p in self.packing.paths] for s in self._rule.slots]
        averages = [[self._held.slots[f"ema/{p}"] for p in self.packing.paths]] if self._decay is not None else []
        return [weights, *slots, *averages]

    def _read_packed(self) -> list[Any]:
        """Returns the vectors that a call's loop carries from step to step; nothing where none is packed."""
        if self.packing is None:
            return []
        return [self.packing.pack([held.read_value() for held in variables]) for variables in self._packed()]

    def _write_packed(self, state: Sequence[Any]) -> None:
        """Writes the vectors that a call ends with."""
        if self.packing is None:
            return
        for variables, vector in zip(self._packed(), state, strict=True):
            for variable, value in zip(variables, self.packing.unpack(vector), strict=True):
                variable.assign(value)

    def _step(
        self, x_bhwd: Any, y_b: Any, count: Any, place: _Place, factor: Any, state: tuple[Any, ...]
    ) -> tuple[Any, Any, Any, tuple[Any, ...]]:
        """One step. Everything is read, then everything is computed, then everything is written.

        State that is packed is handed in and out; else it is read from the variables, and written to them.
        """
        import tensorflow as tf

        if self.packing is None:
            gradients, loss_b, logits_bc, penalty = self._gradients(x_bhwd, y_b, count, place.drawn)
            with tf.name_scope(program.UPDATE_SCOPE):
                self._update(gradients, place, factor)
        else:
            variables, weights = self._packed()[0], self.packing.unpack(state[0])
            with lent(variables, weights):
                gradients, loss_b, logits_bc, penalty = self._gradients(x_bhwd, y_b, count, place.drawn, weights)
            gradient = self.packing.summed(gradients)
            with tf.name_scope(program.UPDATE_SCOPE):
                state = self._update_packed(gradient, place.done, factor, state)
        self._check(tf.compat.v1.get_default_graph())
        hit_b = tf.cast(tf.equal(tf.argmax(logits_bc, -1, output_type=tf.int32), y_b), tf.float32)
        return loss_b * tf.cast(y_b >= 0, tf.float32), hit_b, penalty, state

    def _check(self, graph: Any) -> None:
        """Checks the order and the forms of a step that was traced."""
        self.graph = graph
        if self._held.mesh.size > 1:
            check_indexing(graph)
        if self._config.engine.combine_all_reduces and not self._config.optimizer.reread_slots:
            own = {**self._held.variables, **self._held.slots, **self._held.sums}
            check_order(graph, {id(held.handle): path for path, held in own.items()})

    def _gradients(
        self, x_bhwd: Any, y_b: Any, count: Any, done: Any, weights: Sequence[Any] = ()
    ) -> tuple[list[Any], Any, Any, Any]:
        """Returns the gradients of the mean loss, each example's loss (B,), the logits (B, C) and the penalty.

        With `weights`, tensors that are lent to the trained variables, the gradients are theirs.
        """
        import tensorflow as tf

        variables = weights or [self._held.variables[path] for path in self._held.trained]
        with tf.GradientTape() as tape:
            for weight in weights:
                tape.watch(weight)
            with scope.enter(self._scope(done)):
                logits_bc = self._logits(x_bhwd, training=True)
            loss_b = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.maximum(y_b, 0), logits=logits_bc)
            targets = [loss_b, *self._held.model.losses]
        # Seeded with each example's share of the mean: the mean itself would cost a collective.
        weight_b = tf.cast(y_b >= 0, tf.float32)
        shares = [weight_b / count, *(tf.ones_like(penalty) / self._parts for penalty in self._held.model.losses)]
        gradients = tape.gradient(targets, variables, output_gradients=shares)
        for path, gradient in zip(self._held.trained, gradients, strict=True):
            if gradient is None:
                raise ConfigError(
                    f"model._target_={self._config.model.target} is refused: the loss does not depend on trainable "
                    f"variable {path}; use it or make it trainable=False"
                )
        penalty = tf.add_n(self._held.model.losses) if self._held.model.losses else tf.constant(0.0)
        return gradients, loss_b, logits_bc, penalty

    def gradients(self, images: Any, labels: Any, numbers: Any) -> list[Any]:
        """The gradients of one micro-batch of K, whose number comes first, in the order of `trained`."""
        import tensorflow as tf

        i = tf.cast(tf.gather(numbers, 0), tf.int32)
        x, y = tf.cast(tf.gather(images, i), tf.float32) / _BRIGHTEST, tf.gather(labels, i)
        found, *_ = self._gradients(x, y, tf.gather(numbers, COUNTS), tf.gather(numbers, 1))
        return found

    def _scope(self, done: Any) -> scope.Scope:
        import tensorflow as tf

        step = None if done is None else tf.cast(done, tf.int32)
        image = tuple(self._config.layout.inputs["image"])
        return scope.Scope(self._config.trainer.seed, step, self._held.mesh, image)

    def _logits(self, x_bhwd: Any, *, training: bool) -> Any:
        """Returns float32 logits (B, C), whole along C."""
        import tensorflow as tf

        return scope.by_batch(tf.cast(self._held.model(scope.as_inputs(x_bhwd), training=training), tf.float32))

    def _rate(self, done: Any, factor: Any) -> Any:
        import tensorflow as tf

        return optimizer.learning_rate(self._config.optimizer, done, self._total_steps, tf) * factor

    def _update(self, gradients: list[Any], place: _Place, factor: Any) -> None:
        import tensorflow as tf

        done, rate = place.done, self._rate(place.done, factor)
        writes = [] if place.part is None else self._summed(gradients, place.part)
        gradients = optimizer.clip(self._config.optimizer.clip, [value for _, value in writes] or gradients)
        for path, gradient in zip(self._held.trained, gradients, strict=True):
            variable = self._held.variables[path]
            slots = {slot: self._held.slots[f"optimizer/{slot}/{path}"] for slot in self._rule.slots}
            with tf.name_scope(path.replace("/", ".")):
                old, values = read_held(variable), {slot: held.read_value() for slot, held in slots.items()}
                weight, new = self._rule.update(gradient, old, values, rate, done + 1.0)
            if self._config.optimizer.reread_slots:
                weight = self._reread(variable, slots, new, rate, done + 1.0)
                new = {}
            changes = [(variable, old, weight), *((slots[slot], values[slot], new[slot]) for slot in new)]
            if self._decay is not None:
                changes.append(self._averaged(path, weight, done))
            writes += [(held, self._at_last(place.part, value, before)) for held, before, value in changes]
        for held, value in writes:
            held.assign(value)

    def _summed(self, gradients: list[Any], part: Any) -> list[tuple[Any, Any]]:
        """Returns each sum's variable and its new value; the first part of a step begins it anew."""
        import tensorflow as tf

        held = [self._held.sums[path] for path in self._held.trained]
        before = [each.read_value() for each in held]
        begun = [_chosen(part > 0.0, value, tf.zeros_like(value)) for value in before]
        return [(each, old + new) for each, old, new in zip(held, begun, gradients, strict=True)]

    def _averaged(self, path: str, weight: Any, done: Any) -> tuple[Any, Any, Any]:
        """Returns the variable of a weight's average, its value and its new value."""
        held = self._held.slots[f"ema/{path}"]
        before = held.read_value()
        return held, before, self._average(before, weight, done)

    def _average(self, before: Any, weight: Any, done: Any) -> Any:
        import tensorflow as tf

        assert self._decay is not None
        return optimizer.average(self._decay, before, weight, done, tf)

    def _at_last(self, part: Any, value: Any, before: Any) -> Any:
        """Returns the new value where all parts of a step are summed, else the one before."""
        return value if part is None else _chosen(part > self._parts - 1.5, value, before)

    def _update_packed(self, gradient: Any, done: Any, factor: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the new vectors (N,) of weights, slots, averages. The rules go by elements: one serves them all."""
        assert self.packing is not None
        clip = self._config.optimizer.clip
        if clip.norm is not None:  # of each gradient by itself
            gradient = self.packing.pack(optimizer.clip(clip, self.packing.unpack(gradient)))
        else:
            (gradient,) = optimizer.clip(clip, [gradient])
        rate = self._rate(done, factor)
        old, *others = state
        slots = dict(zip(self._rule.slots, others, strict=False))
        weight, new = self._rule.update(gradient, old, slots, rate, done + 1.0)
        averages = [] if self._decay is None else [self._average(others[-1], weight, done)]
        return weight, *(new[slot] for slot in self._rule.slots), *averages

    def _reread(self, variable: Any, slots: Mapping[str, Any], new: Mapping[str, Any], rate: Any, step: Any) -> Any:
        """Assigns the slots and computes the weight from what is read back: wrong under the all-reduce combiner."""
        assert self._rule.apply is not None
        for slot, held in slots.items():
            held.assign(new[slot])
        return self._rule.apply(
            read_held(variable), {slot: held.read_value() for slot, held in slots.items()}, rate, step
        )

    def evaluate(self, images: Any, labels: Any, loss_sum: Any, confusion_cc: Any) -> tuple[Any, Any, Any]:
        """The traced evaluation of one batch, images (1, B, H, W, D), labels (1, B): new sums, and logits (B, C)."""
        import tensorflow as tf

        classes = self._classes
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
            logits_bc,
        )


def _chosen(condition: Any, value: Any, other: Any) -> Any:
    """Returns one of two tensors by a scalar; DTensor crashes on a condition of another rank than theirs."""
    import tensorflow as tf

    if not value.shape.rank:  # of rank 0 too
        return tf.reshape(_chosen(condition, tf.reshape(value, [1]), tf.reshape(other, [1])), [])
    return tf.where(tf.reshape(condition, [1] * value.shape.rank), value, other)
