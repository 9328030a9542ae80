"""The pure functions of the engine `jax`: a step, a call of several steps, gradients, an evaluated batch.

Shapes: K steps a call, B global batch, C classes, HWD an image's height, width and channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.config.schema import RunConfig
from runner.engine.base import Array
from runner.engine.jax.layers.kernel_gradient import Spread, exact_kernel_gradients
from runner.model import scope
from runner.optim import rules as optimizer

if TYPE_CHECKING:
    from runner.engine.jax.layers.batch_norm import Parts

_BRIGHTEST = 255.0  # images are uint8 until a step scales them to [0, 1]
# Where the batches' example counts begin among a call's numbers: after rounds to do, steps done, the rate's factor.
COUNTS = 3


class State(NamedTuple):
    """What a step reads and gives anew.

    Attributes:
      trained: trainable variables, in the model's order.
      held: the other weights, as batch statistics, in the model's order.
      slots: one list a slot name, each aligned with `trained`.
      averages: of the trained variables, aligned with them; none where the run keeps none.
      sums: of the gradients of a step's micro-batches so far, likewise; none where a step has one part.
    """

    trained: list[Any]
    held: list[Any]
    slots: list[list[Any]]
    averages: list[Any]
    sums: list[Any]


@dataclass(frozen=True)
class Randomness:
    """The model's random generators as functions of the step, so that no state of theirs has to be kept.

    Keras's generator is a seed and a counter of its draws. Setting the counter to the step times the draws of a step
    gives the numbers that Keras's own training draws, on any mesh and after any resume.

    Attributes:
      places: of the generators' states among the model's non-trainable variables.
      seeds: uint32 (len(places), 2), the states before the first step.
      draws: how far a step moves each counter.
    """

    places: Sequence[int]
    seeds: Array
    draws: Sequence[int]

    def insert(self, held: Sequence[Any], done: Any) -> list[Any]:
        """Returns the model's non-trainable variables: its weights, and the states after `done` micro-batches."""
        import jax.numpy as jnp

        full = list(held)
        for place, seed, draws in zip(self.places, self.seeds, self.draws, strict=True):
            moved = jnp.asarray(done, jnp.uint32) * jnp.uint32(draws)
            full.insert(place, jnp.stack([jnp.uint32(seed[0]), jnp.uint32(seed[1]) + moved]))
        return full

    def remove(self, full: Sequence[Any]) -> list[Any]:
        """Returns the weights among the model's non-trainable variables."""
        return [value for place, value in enumerate(full) if place not in set(self.places)]


class Step:
    """The functions of one model and config; all are traced, none holds an array."""

    def __init__(
        self,
        model: Any,
        config: RunConfig,
        total_steps: int,
        random: Randomness,
        pin: Callable[..., Any],
        spread: Spread | None = None,
        parts: Parts | None = None,
    ) -> None:
        """Takes what is the same for every step.

        Args:
          model: Keras 3 model.
          config: optimizer, schedule and clipping.
          total_steps: of the whole training.
          random: the model's generators.
          pin: (images or state, "image" or "state") -> the same, held to its placement.
          spread: for `runner.engine.jax.layers.kernel_gradient.exact_kernel_gradients`.
          parts: how the mesh splits a batch's examples.
        """
        import jax.numpy as jnp

        self._model, self._config, self._total_steps = model, config, total_steps
        self._random, self._pin, self._parts = random, pin, config.trainer.accumulate_steps
        self._spread, self._split_into = spread, parts
        self._rule = optimizer.make_rule(config.optimizer, jnp)

    def losses(self, trained: list[Any], held: list[Any], x_bhwd: Any, y_b: Any, count: Any, drawn: Any) -> Any:
        """Returns the mean loss, with each example's loss (B,), the logits (B, C), the penalties and new weights.

        Of a step of several parts it is a micro-batch's share: the parts' losses add up to the mean loss.
        """
        import jax.numpy as jnp

        full = self._random.insert(held, drawn)
        with scope.enter(scope.Scope(self._config.trainer.seed, drawn, parts=self._split_into)):
            logits, full, penalties = self._model.stateless_call(
                trained, full, x_bhwd, training=True, return_losses=True
            )
        logits_bc = logits.astype(jnp.float32)
        loss_b = _entropy(logits_bc, y_b) * (y_b >= 0)
        penalty = jnp.asarray(sum(penalties), jnp.float32)
        return jnp.sum(loss_b / count) + penalty / self._parts, (loss_b, logits_bc, penalty, self._random.remove(full))

    def gradients(self, state: State, x_bhwd: Any, y_b: Any, count: Any, drawn: Any) -> tuple[list[Any], Any]:
        """Returns the gradients of the mean loss, and what `losses` gives beside it."""
        import jax

        grad = jax.grad(self.losses, has_aux=True)
        with exact_kernel_gradients(self._spread):
            found: tuple[list[Any], Any] = grad(state.trained, state.held, x_bhwd, y_b, count, drawn)
        return found

    def step(
        self, state: State, split: Any, images: Any, labels: Any, numbers: Any, index: Any
    ) -> tuple[State, Any, Any, Any]:
        """Round `index` of a call, see `many`: the new state, each example's loss and hit (B,), and the penalty."""
        import jax
        import jax.numpy as jnp

        x_bhwd, y_b, count, drawn = self._batch(split, images, labels, numbers, index)
        gradients, (loss_b, logits_bc, penalty, weights) = self.gradients(state, x_bhwd, y_b, count, drawn)
        done = (numbers[1] + index // self._parts).astype(jnp.float32)
        factor = jax.lax.bitcast_convert_type(numbers[2], jnp.float32)
        with jax.named_scope("update"):
            state = self._update(state._replace(held=weights), gradients, done, index % self._parts, factor)
        hit_b = (jnp.argmax(logits_bc, -1) == y_b).astype(jnp.float32)
        return self._pin(state, "state"), loss_b, hit_b, penalty

    def _update(self, state: State, gradients: list[Any], done: Any, part: Any, factor: Any) -> State:
        import jax
        import jax.numpy as jnp

        rate = optimizer.learning_rate(self._config.optimizer, done, self._total_steps, jnp) * factor
        if self._parts > 1:
            begun = [jnp.where(part > 0, old, jnp.zeros_like(old)) for old in state.sums]
            gradients = [old + new for old, new in zip(begun, gradients, strict=True)]
        clipped = optimizer.clip(self._config.optimizer.clip, gradients, jnp)
        trained: list[Any] = []
        slots: list[list[Any]] = [[] for _ in self._rule.slots]
        for index, (weight, gradient) in enumerate(zip(state.trained, clipped, strict=True)):
            old = {slot: held[index] for slot, held in zip(self._rule.slots, state.slots, strict=True)}
            new_weight, new = self._rule.update(gradient, weight, old, rate, done + 1.0)
            trained.append(new_weight)
            for name, held in zip(self._rule.slots, slots, strict=True):
                held.append(new[name])
        pairs = zip(state.averages, trained, strict=bool(state.averages))
        averages = [optimizer.average(self._config.optimizer.ema.decay or 0.0, a, w, done, jnp) for a, w in pairs]
        changed = state._replace(trained=trained, slots=slots, averages=averages)
        if self._parts == 1:
            return changed
        last = part == self._parts - 1  # else all but the sums stays as it was
        chosen: State = jax.tree.map(lambda new, old: jnp.where(last, new, old), changed, state)
        return chosen._replace(held=state.held, sums=gradients)

    def many(self, state: State, split: Any, images: Any, labels: Any, numbers: Any) -> tuple[State, Any, Any, Any]:
        """A call's steps as one program, their number an input so that it needs no compilation of its own.

        A step of several parts is as many rounds of the loop, each over one micro-batch; K and B are then theirs.

        Args:
          state: before.
          split: uint8 (N, H, W, D), the split's images where the devices hold them, else None.
          images: uint8 (K, B, H, W, D), or int32 (K, B), their places in `split`.
          labels: int32 (K, B), -1 for padding.
          numbers: int32 (3 + K,): rounds to do, steps done before, the bits of the float32 that the learning rate is
            multiplied by, and the count of examples of each round's step.

        Returns:
          The new state, losses (K, B), hits (K, B) and penalties (K,), 0 for what was not computed.
        """
        import jax
        import jax.numpy as jnp

        def body(index: Any, carried: tuple[State, Any, Any, Any]) -> tuple[State, Any, Any, Any]:
            state, *found = carried
            state, *new = self.step(state, split, images, labels, numbers, index)
            return state, *(
                jax.lax.dynamic_update_index_in_dim(a, b, index, 0) for a, b in zip(found, new, strict=True)
            )

        empty = jnp.zeros(labels.shape, jnp.float32)
        start = (state, self._pin(empty, "loss"), self._pin(empty, "loss"), jnp.zeros(labels.shape[:1], jnp.float32))
        found: tuple[State, Any, Any, Any] = jax.lax.fori_loop(0, numbers[0], body, start)
        return found

    def _batch(self, split: Any, images: Any, labels: Any, numbers: Any, index: Any) -> tuple[Any, Any, Any, Any]:
        """Returns images in [0, 1], labels, the count of examples and the micro-batches done, of a round of a call."""
        import jax
        import jax.numpy as jnp

        x_bhwd = jax.lax.dynamic_index_in_dim(images, index, 0, keepdims=False)
        if split is not None:
            x_bhwd = split.at[self._pin(x_bhwd, "label")].get(mode="clip")
        x_bhwd = scaled(self._pin(x_bhwd, "image"))
        y_b = self._pin(jax.lax.dynamic_index_in_dim(labels, index, 0, keepdims=False), "label")
        return x_bhwd, y_b, numbers[COUNTS + index].astype(jnp.float32), numbers[1] * self._parts + index

    def whole_gradients(
        self, state: State, split: Any, images: Any, labels: Any, numbers: Any, index: Any
    ) -> list[Any]:
        """The gradients of one micro-batch of a call's first batch."""
        found, _ = self.gradients(state, *self._batch(split, images, labels, numbers, index))
        return found

    def evaluated(
        self, weights: tuple[list[Any], list[Any]], images: Any, labels: Any, sums: tuple[Any, Any]
    ) -> tuple[tuple[Any, Any], Any]:
        """Adds a batch, images (1, B, H, W, D), to the sum of the losses and the confusion matrix int32 (C, C).

        Returns:
          The new sums, and the batch's logits (B, C).
        """
        import jax
        import jax.numpy as jnp

        trained, held = weights
        x_bhwd, y_b = scaled(images[0]), labels[0]
        full = self._random.insert(held, 0)
        logits, _ = self._model.stateless_call(trained, full, x_bhwd, training=False)
        logits_bc = logits.astype(jnp.float32)
        classes = logits_bc.shape[-1]
        label_bc = jax.nn.one_hot(y_b, classes)  # a row of zeros for padding
        predicted_bc = jax.nn.one_hot(jnp.argmax(logits_bc, -1), classes)
        counted = jnp.round(label_bc.T @ predicted_bc).astype(jnp.int32)
        loss = jnp.sum(_entropy(logits_bc, y_b) * (y_b >= 0))
        return (sums[0] + loss, sums[1] + counted), logits_bc


def scaled(images: Any) -> Any:
    """Returns float32 images in [0, 1] of uint8 ones."""
    return images.astype("float32") / _BRIGHTEST


def _entropy(logits_bc: Any, y_b: Any) -> Any:
    """Cross-entropy in nats (B,); labels of padding, -1, are taken for 0."""
    import jax
    import jax.numpy as jnp

    # By a product with the one-hot labels: a gather along a split dim would communicate.
    chosen_b = jnp.sum(logits_bc * jax.nn.one_hot(jnp.maximum(y_b, 0), logits_bc.shape[-1]), -1)
    return jax.nn.logsumexp(logits_bc, -1) - chosen_b
