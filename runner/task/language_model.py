"""Language models: cross-entropy of the next token, perplexity, bits per byte, and text that the model samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np

from runner.arrays import Arrays, Tensor, token_losses
from runner.config.schema_task import LanguageModelOptions, TaskConfig
from runner.data.base import WEIGHT, Array, ArraySpec, DataSource
from runner.data.packing import LABEL_WEIGHT, POSITIONS, SEGMENTS, TOKENS
from runner.errors import ConfigError, invalid
from runner.task import classes, generation
from runner.task.base import LOSS, Ask, Outputs, OutputSpec, Shapes, TaskData
from runner.task.metrics import MAXIMIZE, MINIMIZE
from runner.task.positions import PerPosition, without_roles
from runner.task.supervised import counted_sum, is_real

# Names of the outputs of a model that leaves the logits to the loss.
HIDDEN = "hidden"
HEAD = "head"
# Names of the sums of `LanguageModel._sums` and `totals`.
_ENTROPY = "entropy"
_RIGHT = "right"
_COUNTED = "counted"
_BYTES = "bytes"

# Examples whose tokens are checked where a source can't return an array as a whole: few, since each may be decoded.
_FIRST_EXAMPLES = 8
# Nats per token above which a perplexity is not computed: float64 overflows at the exponential of 710.
_MOST_NATS = 700.0


class LanguageModel(PerPosition):
    """The next token of each token, from arrays (B, T): tokens, their labels, and perhaps weights of the labels.

    A model returns logits (B, T, V); or the last hidden layer (B, T, D) as `hidden` and the kernel (D, V) of its head
    as `head`. The loss then computes the logits in chunks, if the engine can, and they are never all in memory. Means
    are over the counted tokens of a step, whatever examples these are in.

    Shapes: B examples, T tokens each, D features, V tokens of the vocabulary.

    Attributes:
      vocabulary: meaning of the tokens; None: the dataset has none.
      units: V.
    """

    own_metrics = {"perplexity": MINIMIZE, "bits_per_byte": MINIMIZE, "accuracy": MAXIMIZE}  # noqa: RUF012 - as in the base class
    # Logits of a whole split need gigabytes.
    keeps_outputs = False

    def __init__(self, config: TaskConfig, options: LanguageModelOptions, data: TaskData) -> None:
        label_weight = options.label_weight
        if label_weight is None and LABEL_WEIGHT in data.arrays:
            label_weight = LABEL_WEIGHT
        if config.inputs is None:
            config = replace(config, inputs=_default_inputs(config, data.arrays, label_weight))
        super().__init__(config, options, data)
        self.vocabulary = data.vocabulary
        self._token_bytes = None
        if data.vocabulary is None:
            self.directions = {name: way for name, way in self.directions.items() if name != "bits_per_byte"}
        else:
            self._token_bytes = np.asarray(data.vocabulary.token_bytes(), np.float32)
        self.label = self._find_label()
        self.positions = self.arrays[self.label].shape
        self.tokens = self.positions[0]
        self.find_label_weight(label_weight, data.arrays)
        self._name_sequence_dims()
        self.units = self._vocabulary_size(data.constants)
        self.outputs = OutputSpec(self.units)
        self.constants = {"vocabulary": [self.units]}
        self._prompt = None
        if options.sample is not None:
            keys = ("task.sample.prompt", "task.sample.tokens")
            self._prompt = self._encode_prompt(options.sample.prompt, options.sample.tokens, keys)
        if data.train is not None:
            self.check_split(data.train, "train")

    def _find_label(self) -> str:
        label = self._sole_target("task=language_model needs one array of tokens")
        spec = self.arrays[label]
        if len(spec.shape) != 1 or np.dtype(spec.dtype).kind not in "iu":
            problem = "must have the number of the next token of each token, shape [tokens] per example, but its "
            problem += f"dtype is {spec.dtype} and its shape {list(spec.shape)}"
            fix = "set dataset=text or dataset=pydoc, or task=classification for one class per example"
            raise invalid("task.target", label, problem=problem, fix=fix)
        return label

    def _vocabulary_size(self, constants: Mapping[str, Sequence[float]]) -> int:
        """Returns V: of the config, of the dataset's vocabulary, of the resumed run, or the label's categories."""
        chosen: int | None = self._options.vocabulary
        known = None
        if self.vocabulary is not None:
            known = self.vocabulary.size
        elif "vocabulary" in constants:
            known = int(constants["vocabulary"][0])
        elif self.arrays[self.label].names:
            known = len(self.arrays[self.label].names)
        if chosen is None:
            if known is None:
                problem = f"needs the vocabulary size, which array {self.label} does not show"
                raise invalid("task.vocabulary", None, problem=problem, fix="set it, such as task.vocabulary=256")
            return known
        if known is not None and chosen < known:
            problem = f"must be at least {known}, the size of the dataset's vocabulary"
            fix = "remove task.vocabulary, or set a larger number, such as a multiple of 128"
            raise invalid("task.vocabulary", chosen, problem=problem, fix=fix)
        return chosen

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks the weights of the labels, and the tokens of a user's arrays, those of the input and the labels.

        A device invents an embedding or a loss for a token out of range: NaN, or that of another token.
        """
        self.check_label_weight(source, split)
        # A dataset with a vocabulary was encoded with it.
        if self.vocabulary is not None:
            return
        checked = {"task.target": self.label}
        read = self._tokens_name()
        spec = self.arrays[read]
        # A model's input may also be something else, such as features of an image.
        if spec.shape == self.positions and np.dtype(spec.dtype).kind in "iu":
            checked["task.inputs"] = read
        first: Mapping[str, Array] = {}
        for key, name in checked.items():
            tokens = source.column(name)
            if tokens is None:
                # A source that makes each example as it is read.
                if not first:
                    first = source.read(np.arange(min(source.size, _FIRST_EXAMPLES)))
                tokens = first[name]
            classes.check_range(tokens, self.units, name, split, _fix_of_token, key=key)

    def _tokens_name(self) -> str:
        if TOKENS in self.input_names:
            return TOKENS
        return self.input_names[0]

    def check(self, shapes: Shapes) -> None:
        """Checks that a model has logits of each token, or `hidden` and `head`."""
        logits = f"[batch, {self.tokens}, {self.units}]"
        if len(shapes) == 1:
            (shape,) = shapes.values()
            if len(shape) != 3 or shape[1] not in (None, self.tokens) or shape[2] != self.units:
                raise ConfigError(
                    f"model._target_: the model's output has shape {list(shape)}, but the task needs {logits} (one "
                    "logit per token of the vocabulary, for each token); use a model of sequences, such as model=gpt"
                )
            return
        hidden = tuple(shapes.get(HIDDEN, ()))
        if set(shapes) != {HIDDEN, HEAD} or len(hidden) != 3 or tuple(shapes[HEAD]) != (hidden[2], self.units):
            listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise ConfigError(
                f"model._target_: the model's outputs are {listed}, but the task needs logits {logits}, or {HIDDEN} "
                f"[batch, {self.tokens}, D] with {HEAD} [D, {self.units}]; return one of the two"
            )

    def predictions(self, ops: Arrays, outputs: Outputs) -> dict[str, Tensor]:
        """Returns the logits (B, T, V) after each token."""
        if not isinstance(outputs, Mapping):
            return {"logits": outputs}
        return {"logits": ops.matmul(outputs[HIDDEN], outputs[HEAD])}

    def counts(self, ops: Arrays, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, T), the weight of each label; 0 for padding."""
        label = batch[self.label]
        # Adding zeros broadcasts (B, 1) to the labels' (B, T).
        counts_bt = ops.cast(is_real(ops, batch, 2), "float32") + ops.cast(ops.zeros_like(label), "float32")
        if self._label_weight is not None:
            counts_bt = counts_bt * ops.cast(self._without_channel(ops, batch[self._label_weight]), "float32")
        return counts_bt

    def reduced(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> Outputs:
        """Returns `_sums`, or the logits if they are kept, as for the few examples that an export compares."""
        if self.keeps_outputs:
            return self.predictions(ops, outputs)["logits"]
        return self._sums(ops, outputs, batch)

    def _sums(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns sums (B,) over each example's counted tokens, from one pass over the logits.

        They are the loss, the cross-entropy in nats (the loss without sample weights), and the number of tokens that
        are predicted correctly. Outputs that `reduced` made are these sums already.
        """
        if isinstance(outputs, Mapping) and _ENTROPY in outputs:
            return dict(outputs)
        label_bt = self.labels(ops, batch)
        counts_bt = self.counts(ops, batch)
        weights_bt = counts_bt
        if self._example_weight is not None:
            weights_bt = counts_bt * ops.expand_dims(self._example_weights(ops, batch), -1)
        if isinstance(outputs, Mapping) and ops.head_losses is not None:
            nats_bt, right_bt = ops.head_losses(outputs[HIDDEN], outputs[HEAD], label_bt, weights_bt)
        else:
            nats_bt, right_bt = token_losses(ops, self.predictions(ops, outputs)["logits"], label_bt)
        loss = counted_sum(ops, nats_bt, counts_bt, weights_bt)
        right = counted_sum(ops, right_bt, counts_bt, counts_bt)
        entropy = loss
        if self._example_weight is not None:
            entropy = counted_sum(ops, nats_bt, counts_bt, counts_bt)
        return {LOSS: loss, _RIGHT: right, _ENTROPY: entropy}

    def loss(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's cross-entropy (B,) in nats, summed over its counted tokens and weighted."""
        return self._sums(ops, outputs, batch)[LOSS]

    def metrics(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the number of counted tokens of each example that are predicted correctly."""
        return {"accuracy": self._sums(ops, outputs, batch)[_RIGHT]}

    def totals(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns sums per example (B,), 0 for padding: nats, correct tokens, tokens, and their bytes."""
        sums = self._sums(ops, outputs, batch)
        counts_bt = self.counts(ops, batch)
        totals = {_ENTROPY: sums[_ENTROPY], _RIGHT: sums[_RIGHT], _COUNTED: ops.sum(counts_bt, axis=-1)}
        if self._token_bytes is not None:
            table = np.pad(self._token_bytes, (0, self.units - len(self._token_bytes)))
            bytes_bt = ops.take(table, ops.cast(batch[self.label], "int32"))
            totals[_BYTES] = ops.sum(bytes_bt * counts_bt, axis=-1)
        return totals

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns means over all tokens: perplexity is e to the mean, not a mean of the batches' perplexities."""
        # A split without counted tokens or bytes has metrics of 0, not a division by 0.
        tokens = float(totals[_COUNTED]) or 1.0
        nats = float(totals[_ENTROPY])
        metrics = {"perplexity": math.exp(min(nats / tokens, _MOST_NATS))}
        if _BYTES in totals:
            metrics["bits_per_byte"] = nats / math.log(2.0) / (float(totals[_BYTES]) or 1.0)
        metrics["accuracy"] = float(totals[_RIGHT]) / tokens
        return metrics

    def _encode_prompt(self, text: str | None, tokens: int | None, keys: tuple[str, str]) -> Array | None:
        """Returns the tokens that samples start with; None: there is no vocabulary to read and write text with."""
        if self.vocabulary is None:
            if text is not None:
                problem = "needs a dataset with a vocabulary, which encodes and decodes text"
                raise invalid(keys[0], text, problem=problem, fix=f"remove {keys[0]}")
            return None
        of_ends = self._label_weight is None
        return generation.encode_prompt(text, tokens, keys, self.vocabulary, self.tokens, of_ends=of_ends)

    def sample(self, ask: Ask, step: int, seed: int, multiple: int = 1) -> str | None:
        """Returns text that the model samples, greedily and at random; None if the config has no samples."""
        options = self._options.sample
        if options is None or self._prompt is None:
            return None
        temperatures = [0.0]
        titles = ["greedy"]
        if options.temperature != 0:
            temperatures.append(options.temperature)
            titles.append(f"temperature {options.temperature:g}")
        prompts = [self._prompt] * len(temperatures)
        texts = self.generate(ask, prompts, options.tokens, temperatures, seed, step, multiple)
        lines = [f"step {step:,}, seed {seed}"]
        for title, text in zip(titles, texts, strict=True):
            lines += [f"--- {title}", text]
        return "\n".join(lines) + "\n"

    def encode_prompts(self, prompts: Sequence[str], key: str, tokens: int | None) -> list[Array]:
        """Returns the tokens (n,) of each prompt for `generate`, which come from the config key `key`.

        Raises:
          ConfigError: the vocabulary does not take one, or a row has no room for it and `tokens` more.
        """
        encoded = []
        for prompt in prompts:
            start = self._encode_prompt(prompt, tokens, (key, "generate.tokens"))
            if start is not None:
                encoded.append(start)
        return encoded

    def generate(
        self,
        ask: Ask,
        prompts: Sequence[Array],
        tokens: int | None,
        temperatures: Sequence[float],
        seed: int,
        step: int = 0,
        multiple: int = 1,
    ) -> list[str]:
        """Returns prompts, as of `encode_prompts`, with what the model writes after each; see `sample`.

        With step 0, the draws depend on the seed alone, not on how long the model was trained.
        """
        assert self.vocabulary is not None
        # A padded vocabulary has logits of tokens that don't exist.
        vocabulary_size = self.vocabulary.size

        def next_logits(rows: Array, positions: Array) -> Array:
            count = len(rows)
            # Padding repeats rows with their positions.
            indices = np.arange(math.ceil(count / multiple) * multiple) % count
            return ask(self._batch_that_asks(rows[indices], positions[indices]))[:count, :vocabulary_size]

        counts = [min(tokens or generation.DEFAULT_TOKENS, self.tokens - len(prompt)) for prompt in prompts]
        samples = generation.sample_tokens(next_logits, prompts, counts, self.tokens, temperatures, seed, step)
        return [self.vocabulary.decode(sample) for sample in samples]

    def _batch_that_asks(self, rows: Array, positions: Array) -> dict[str, Array]:
        """Returns a batch of tokens (R, T) whose labels mark, by 1, each row's token whose successor is asked for."""
        batch = {name: np.ones((len(rows), *spec.shape), spec.dtype) for name, spec in self.arrays.items()}
        tokens = self._tokens_name()
        batch[tokens] = rows.astype(self.arrays[tokens].dtype)
        if POSITIONS in self.input_names:
            # The row is one document.
            batch[POSITIONS][:] = np.arange(self.tokens)
        batch[self.label] = np.zeros_like(batch[self.label])
        batch[self.label][np.arange(len(rows)), positions] = 1
        return {**batch, WEIGHT: np.ones(len(rows), np.float32)}

    def next_logits(self, ops: Arrays, outputs: Outputs, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, V), the logits after the token that an example's labels mark by 1."""
        mark_bt = ops.cast(batch[self.label], "float32")
        mark_bt1 = ops.expand_dims(mark_bt, -1)
        if not isinstance(outputs, Mapping):
            return ops.sum(ops.cast(outputs, "float32") * mark_bt1, axis=1)
        hidden_bd = ops.sum(ops.cast(outputs[HIDDEN], "float32") * mark_bt1, axis=1)
        return ops.matmul(hidden_bd, ops.cast(outputs[HEAD], "float32"))


def _fix_of_token(token: int) -> str:
    if token < 0:
        return "store token numbers that start at 0"
    return f"set task.vocabulary={token + 1} or more, or task=positions for a class per token (tags)"


def _default_inputs(config: TaskConfig, arrays: Mapping[str, ArraySpec], label_weight: str | None) -> list[str]:
    if TOKENS not in arrays:
        return without_roles(config, arrays, label_weight)
    return list(takewhile(lambda name: name in arrays, (TOKENS, SEGMENTS, POSITIONS)))
