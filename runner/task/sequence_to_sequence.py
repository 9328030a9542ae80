"""Sequence to sequence: the next token of a target sequence, given the source and the target's tokens so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from runner.arrays import Arrays, Tensor, token_losses
from runner.config.schema_task import SequenceToSequenceOptions, TaskConfig
from runner.data.base import Array, Batch, DataSource
from runner.errors import ConfigError, invalid
from runner.layout.axes import SEQUENCE
from runner.task.base import OutputSpec, TaskData
from runner.task.metrics import MAXIMIZE, MINIMIZE
from runner.task.per_position import PerPosition, perplexity, without_roles
from runner.task.supervised import default_target

# Names of the sums of `SequenceToSequence.totals`.
_ENTROPY = "entropy"
_RIGHT = "right"
_COUNTED = "counted"


class SequenceToSequence(PerPosition):
    """The next token of each token of the target, from arrays of tokens (B, S) and (B, T).

    The model takes the source and the whole target by name, and must not look ahead in the target. Its output at a
    position predicts the target's next token; that of the last position predicts nothing and is not counted. So a
    target of T tokens, such as `start a b end`, has T - 1 loss terms, without those whose token is padding.

    Shapes: B examples, S source tokens, T target tokens, V tokens of the target's vocabulary.
    """

    own_metrics = {"accuracy": MAXIMIZE, "perplexity": MINIMIZE}  # noqa: RUF012 - as in the base class
    # Logits of a whole split need gigabytes.
    keeps_outputs = False
    # The last position has no label even without padding.
    _skips_labels = True

    def __init__(self, config: TaskConfig, options: SequenceToSequenceOptions, data: TaskData) -> None:
        if config.inputs is None:
            target = tuple(config.target) or default_target(data.arrays)
            config = replace(config, inputs=[*without_roles(config, data.arrays, None), *target])
        super().__init__(config, options, data)
        self._label_smoothing = options.label_smoothing
        self.label = self._check_arrays()
        self.positions = self.arrays[self.label].shape
        self.tokens = self.positions[0]
        for name, spec in self.arrays.items():
            if np.dtype(spec.dtype).kind in "iu" and len(spec.shape) == 1 and not spec.dims:
                self.arrays = {**self.arrays, name: replace(spec, dims=(SEQUENCE,))}
        self.units = self._vocabulary_size(data)
        self.outputs = OutputSpec(self.units)
        self.constants = {"vocabulary": [self.units]}
        if data.train is not None:
            self.check_split(data.train, "train")

    def _check_arrays(self) -> str:
        name = self._sole_target("task=sequence_to_sequence needs one array of tokens")
        spec = self.arrays[name]
        inputs = list(self.input_names)
        if len(spec.shape) != 1 or spec.shape[0] < 2 or np.dtype(spec.dtype).kind not in "iu":
            problem = "must have at least two tokens per example, integers of shape [tokens], but its dtype is "
            problem += f"{spec.dtype} and its shape {list(spec.shape)}"
            fix = "name the array of the target's tokens, from the start token to the end token"
            raise invalid("task.target", name, problem=problem, fix=fix)
        if name not in inputs:
            problem = f"needs the target too, {name}, whose tokens so far the decoder reads"
            fix = f"add it, or remove task.inputs: [{','.join([*inputs, name])}]"
            raise invalid("task.inputs", inputs, problem=problem, fix=fix)
        if len(inputs) < 2:
            fix = "name the source's array, or set task=language_model for one sequence"
            raise invalid("task.inputs", inputs, problem="needs a source beside the target", fix=fix)
        return name

    def _vocabulary_size(self, data: TaskData) -> int:
        """Returns V: of the config, of the resumed run, of the target's names, or counted in the train split."""
        if self._options.vocabulary is not None:
            return int(self._options.vocabulary)
        if "vocabulary" in data.constants:
            return int(data.constants["vocabulary"][0])
        names = self.arrays[self.label].names
        if names:
            return len(names)
        tokens = None if data.train is None else data.train.column(self.label)
        if tokens is None:
            problem = f"needs the size of the target's vocabulary, which array {self.label} does not show"
            raise invalid("task.vocabulary", None, problem=problem, fix="set it, such as task.vocabulary=256")
        return int(tokens.max(initial=0)) + 1

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks that the target's tokens are from 0 to V - 1 or padding, and that some are counted."""
        tokens = source.column(self.label)
        if tokens is None:
            return
        padding = self._options.padding
        following = tokens[:, 1:].reshape(-1)
        counted = following
        if padding is not None:
            counted = following[following != padding]
        low = int(counted.min(initial=0))
        high = int(counted.max(initial=0))
        if low < 0 or high >= self.units:
            wrong = low if low < 0 else high
            problem = f"tokens must be from 0 to {self.units - 1}, but the {split} split has {wrong}"
            fix = f"set task.padding={wrong} if it is padding" if low < 0 else f"set task.vocabulary={high + 1}"
            raise invalid("task.target", self.label, problem=problem, fix=fix)
        if len(following) and not len(counted):
            problem = f"must leave tokens to predict, but the {split} split has no other token after the first"
            raise invalid("task.padding", padding, problem=problem, fix="set task.padding=null, or another number")

    def _shifted(self, ops: Arrays, values_bt: Tensor) -> Tensor:
        """Returns float32 (B, T), the value of the next position, and 0 at the last one.

        By a sum with one term that is not 0, which is exact and needs no slice of a dim that may be sharded.
        """
        shift_tt = np.eye(self.tokens, k=1, dtype=np.float32)
        return ops.sum(ops.expand_dims(ops.cast(values_bt, "float32"), 1) * shift_tt, axis=-1)

    def labels(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns int32 (B, T), the next token; 0 at the last position."""
        return ops.cast(self._shifted(ops, batch[self.label]), "int32")

    def is_counted(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor | None:
        """Returns whether there is a next token that is not padding."""
        tokens_bt = ops.cast(batch[self.label], "int32")
        counted_bt = ops.ones_like(tokens_bt)
        if self._options.padding is not None:
            counted_bt = ops.not_equal(tokens_bt, self._options.padding)
        return ops.greater(self._shifted(ops, counted_bt), 0.5)

    def is_counted_on_host(self, batch: Batch) -> Array | None:
        """Returns what `is_counted` does."""
        tokens = np.asarray(batch[self.label])
        counted = np.zeros(tokens.shape, bool)
        counted[..., :-1] = True
        if self._options.padding is not None:
            counted[..., :-1] = tokens[..., 1:].astype(np.int32) != self._options.padding
        return counted

    def totals(self, ops: Arrays, outputs: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns sums per example (B,), 0 for padding: nats without smoothing, correct tokens, and tokens."""
        counts_bt = self.counts(ops, batch)
        nats_bt, right_bt = token_losses(ops, outputs, self.labels(ops, batch))
        return {
            _ENTROPY: self.summed(ops, nats_bt, counts_bt),
            _RIGHT: self.summed(ops, right_bt, counts_bt),
            _COUNTED: ops.sum(counts_bt, axis=-1),
        }

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns means over all tokens: perplexity is e to the mean, not a mean of the batches' perplexities."""
        tokens = float(totals[_COUNTED]) or 1.0
        return {"accuracy": float(totals[_RIGHT]) / tokens, "perplexity": perplexity(float(totals[_ENTROPY]) / tokens)}

    def check(self, shape: Sequence[int | None]) -> None:
        """Checks that a model has one logit per token of the vocabulary, for each token of the target."""
        if len(shape) != 3 or shape[1] not in (None, self.tokens) or shape[2] != self.units:
            raise ConfigError(
                f"model._target_: the model's output has shape {list(shape)}, but the task needs "
                f"[batch, {self.tokens}, {self.units}], one logit per token of the vocabulary for each token of the "
                "target; end the model in a layer of that shape, or set task.vocabulary"
            )

    def predictions(self, ops: Arrays, outputs: Tensor) -> dict[str, Tensor]:
        """Returns the logits (B, T, V) after each token of the target."""
        del ops
        return {"logits": outputs}
