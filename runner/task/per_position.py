"""What tasks with one label per position share: pixels of an image, steps of a series, tokens of a text.

Means are over the counted positions of a step, whatever examples these are in. An example's loss is a sum, and its
weight the number of its counted positions, so a mean over the examples of a mesh is the mean over all positions.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from runner.arrays import Arrays, Tensor, token_losses
from runner.config.schema_task import TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec, Batch, DataSource
from runner.data.packing import no_label_counts
from runner.errors import invalid
from runner.layout.axes import SEQUENCE
from runner.task import losses
from runner.task.supervised import Supervised, default_target, is_real, no_array

_LABEL_WEIGHT = "task.label_weight"
# Nats per token above which a perplexity is not computed: float64 overflows at the exponential of 710.
_MOST_NATS = 700.0


def spatial_shape(spec: ArraySpec) -> tuple[int, ...]:
    """Returns the shape of an array of one number per position, without a last dim of 1 such as a channel."""
    if len(spec.shape) > 1 and spec.shape[-1] == 1:
        return spec.shape[:-1]
    return spec.shape


def without_roles(config: TaskConfig, arrays: Mapping[str, ArraySpec], label_weight: str | None) -> list[str]:
    """Returns the names of the arrays that are no target and no weight."""
    target = tuple(config.target) or default_target(arrays)
    return [name for name in arrays if name not in {*target, config.example_weight, label_weight}]


def perplexity(nats: float) -> float:
    """Returns e to the mean cross-entropy per token."""
    return math.exp(min(nats, _MOST_NATS))


class PerPosition(Supervised):
    """Softmax cross-entropy and accuracy over positions.

    Shapes: B examples, *P positions in one dim or more, C classes.

    Attributes:
      label: name of the array of the labels.
      positions: P, sizes of the dims of the positions.
    """

    label: str
    positions: tuple[int, ...]
    step_metrics = ("accuracy",)
    # Whether `is_counted` depends on the labels.
    _skips_labels: bool = False
    # Array with a weight per label; None: all labels count as 1.
    _label_weight: str | None = None
    _label_smoothing: float = 0.0
    # The chosen loss of probabilities, if it has one number per example, not one per position.
    _loss_of_examples: losses.Loss | None = None

    @abstractmethod
    def labels(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns int32 (B, *P), one label per position; any number where it is not counted."""

    def is_counted(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor | None:
        """Returns bool (B, *P), whether a position has a label; None: all have one."""
        del ops, batch
        return None

    def is_counted_on_host(self, batch: Batch) -> Array | None:
        """Returns what `is_counted` does, bool (..., B, *P), of arrays on the host."""
        del batch
        return None

    def find_label_weight(self, name: str | None, arrays: Mapping[str, ArraySpec]) -> None:
        """Adds the array of the labels' weights, if `task.label_weight` names one.

        Raises:
          ConfigError: the dataset does not have it, or it does not have one number per position.
        """
        if name is None:
            return
        if name not in arrays:
            fix = "name one of these, or remove task.label_weight"
            raise invalid(_LABEL_WEIGHT, name, problem=no_array(name, arrays), fix=fix)
        spec = arrays[name]
        if spatial_shape(spec) != self.positions or np.dtype(spec.dtype).kind not in "biuf":
            problem = f"must have one number per label, shape {list(self.positions)} per example, but its dtype is "
            problem += f"{spec.dtype} and its shape {list(spec.shape)}"
            fix = "name another array, or remove task.label_weight"
            raise invalid(_LABEL_WEIGHT, name, problem=problem, fix=fix)
        self._label_weight = name
        self.arrays = {**self.arrays, name: spec}

    def check_label_weight(self, source: DataSource, split: str, *, of_text: bool = False) -> None:
        """Checks that the weights of a split's labels are finite, at least 0 and not all 0.

        `of_text`: the dataset has computed them, from the ends of documents that it has encoded.
        """
        if self._label_weight is None:
            return
        weight = source.column(self._label_weight)
        if weight is None:
            return
        low = float(weight.min(initial=0))
        high = float(weight.max(initial=0))
        if low >= 0 and high > 0 and math.isfinite(high):
            return
        problem = f"needs a label with a weight above 0, but the {split} split has none"
        if low < 0 or not math.isfinite(low + high):
            problem = f"must have finite numbers of at least 0, but the {split} split has {low if low < 0 else high:g}"
        elif of_text:
            raise no_label_counts(split)
        raise invalid(_LABEL_WEIGHT, self._label_weight, problem=problem, fix="fix the array, or name another")

    def _name_sequence_dims(self) -> None:
        """Names the dim of the steps in the specs, which a user's arrays don't have."""
        if len(self.positions) != 1:
            return
        specs = dict(self.arrays)
        for name, spec in specs.items():
            dims = spec.dims or ("",) * len(spec.shape)
            if spec.shape[:1] == self.positions and not dims[0]:
                specs[name] = replace(spec, dims=(SEQUENCE, *dims[1:]))
        self.arrays = specs

    @property
    def weighs_arrays(self) -> bool:
        """Whether `weights` reads other arrays than `weight`, which marks padding."""
        return self._label_weight is not None or self._skips_labels

    def weights(self, batch: Batch) -> Array:
        """Returns the number of counted positions of each example, float32 (..., B), 0 for padding."""
        real = np.asarray(batch[WEIGHT], np.float32)
        if not self.weighs_arrays:
            return real * np.float32(np.prod(self.positions))
        shape = (*real.shape, *self.positions)
        counts = np.ones(shape, np.float32)
        if self._skips_labels:
            counts = np.asarray(self.is_counted_on_host(batch), np.float32)
        if self._label_weight is not None:
            counts = counts * np.asarray(batch[self._label_weight], np.float32).reshape(shape)
        # In float64: a large image has more positions than float32 sums exactly one by one.
        return np.asarray(real * counts.reshape(*real.shape, -1).sum(-1, dtype=np.float64), np.float32)

    def counted_terms(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the number of counted positions of each example (B,), 0 for padding."""
        return ops.sum(self.counts(ops, batch), axis=tuple(range(1, len(self.positions) + 1)))

    def _without_channel(self, ops: Arrays, array: Tensor) -> Tensor:
        """Returns an array (B, *P) or (B, *P, 1) as (B, *P)."""
        if len(array.shape) > 1 + len(self.positions):
            return ops.squeeze(array, -1)
        return array

    def counts(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, *P), the weight of each label; 0 for padding and for what is not counted."""
        label = self.labels(ops, batch)
        counts = ops.cast(ops.ones_like(label), "float32")
        is_counted = self.is_counted(ops, batch)
        if is_counted is not None:
            counts = ops.cast(is_counted, "float32")
        if self._label_weight is not None:
            weight = ops.cast(self._without_channel(ops, batch[self._label_weight]), "float32")
            counts = counts * weight
        return ops.where(is_real(ops, batch, len(counts.shape)), counts, ops.zeros_like(counts))

    def logits(self, ops: Arrays, outputs: Tensor) -> Tensor:
        """Returns the logits (B, *P, C) of a model's outputs."""
        del ops
        return outputs

    def summed(self, ops: Arrays, values: Tensor, counts: Tensor) -> Tensor:
        """Returns the sums (B,) of values (B, *P) times their counts (B, *P)."""
        # Selected, not only multiplied by 0: the values of padding may be NaN.
        selected = ops.where(ops.greater(counts, 0.0), values, ops.zeros_like(values))
        return ops.sum(selected * counts, axis=tuple(range(1, len(self.positions) + 1)))

    def loss(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,), cross-entropy in nats, summed over its counted positions and weighted."""
        if self._loss is not None:
            return self._weighted(ops, self._chosen_loss(ops, self._loss, outputs, batch), batch)
        logits = self.logits(ops, outputs)
        label = self.labels(ops, batch)
        nats, _ = token_losses(ops, logits, label)
        smoothing = self._label_smoothing
        if smoothing:
            # The cross-entropy of the uniform distribution.
            uniform = ops.logsumexp(logits) - ops.mean(logits, axis=-1)
            nats = (1.0 - smoothing) * nats + smoothing * uniform
        if self._class_weights is not None:
            one_hot = ops.one_hot(label, len(self._class_weights))
            nats = nats * ops.sum(one_hot * self._class_weights, axis=-1)
        return self._weighted(ops, self.summed(ops, nats, self.counts(ops, batch)), batch)

    def _chosen_loss(self, ops: Arrays, loss: losses.Loss, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's loss (B,) of a Keras loss, summed over its counted positions."""
        label = self.labels(ops, batch)
        counts = self.counts(ops, batch)
        classes = int(outputs.shape[-1])
        one_hot = ops.one_hot(label, classes)
        target = one_hot * (1.0 - self._label_smoothing) + self._label_smoothing / classes
        if self._loss_of_examples is not None:
            # What is not counted is neither in the target nor in the output. The mean of a step is over the positions.
            is_counted = ops.expand_dims(ops.cast(ops.greater(counts, 0.0), "float32"), -1)
            share = self.predictions(ops, outputs)["probabilities"] * is_counted
            return self._loss_of_examples(ops, target * is_counted, share) * self.counted_terms(ops, batch)
        terms = loss(ops, target, outputs)
        if len(terms.shape) > len(counts.shape):
            terms = ops.mean(terms, axis=-1)
        if self._class_weights is not None:
            terms = terms * ops.sum(one_hot * self._class_weights, axis=-1)
        return self.summed(ops, terms, counts)

    def metrics(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the number of counted positions of each example that are predicted correctly."""
        _, right = token_losses(ops, self.logits(ops, outputs), self.labels(ops, batch))
        return {"accuracy": self.summed(ops, right, self.counts(ops, batch))}

    def addends(self, totals: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the sums over a batch's examples: float64 adds them exactly, however many positions there are."""
        return {name: values.sum(0) for name, values in totals.items()}
