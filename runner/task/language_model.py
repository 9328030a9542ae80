"""The next token of each: cross-entropy over a vocabulary, perplexity, bits a byte, text that the model writes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from runner.config.schema_task import LanguageModelOptions, SampleOptions, TaskConfig
from runner.data.base import TARGETS, WEIGHT, Array, ArraySpec, Batch, DataSource, column
from runner.data.vocabulary import Vocabulary
from runner.errors import ConfigError, invalid
from runner.layout.axes import SEQUENCE
from runner.task import generation
from runner.task.base import LOSS, Ask, Evaluation, Outputs, OutputSpec, Report, Tensor
from runner.task.metrics import MAXIMIZE, MINIMIZE
from runner.task.namespace import Namespace
from runner.task.supervised import Supervised, as_vector, is_real, roles
from runner.task.token_checks import are_tags, check_tokens, check_weights, checked_prompt, tags_mend
from runner.task.token_losses import of_logits

# arrays that go by these names
TOKENS = "tokens"
SEGMENTS = "segments"
LABEL_WEIGHT = "label_weight"
# outputs of a model that leaves the logits to the loss
HIDDEN = "hidden"
HEAD = "head"
HEAD_BIAS = "head_bias"
_ENTROPY = "entropy"
_RIGHT = "right"
_COUNTED = "counted"
_BYTES = "bytes"
_LARGEST = 700.0  # nats, of which float64 holds the exponential


def directions(options: LanguageModelOptions) -> dict[str, str]:
    """Returns the metrics of an evaluation beside the loss, each with its better direction."""
    del options
    return {"perplexity": MINIMIZE, "bits_per_byte": MINIMIZE, "accuracy": MAXIMIZE}


def of_steps(options: LanguageModelOptions) -> tuple[str, ...]:
    """Returns the metrics of a training step beside the loss."""
    del options
    return ("accuracy",)


def check(options: LanguageModelOptions) -> None:
    """Checks options, without a dataset.

    Raises:
      ConfigError: a value that can't work.
    """
    del options  # The schema has checked each of them, and none depends on another.


class LanguageModel(Supervised):
    """The next token of each token, of arrays (B, T) of tokens, of their labels, and perhaps of the labels' weights.

    A model gives logits (B, T, V); or the last hidden layer (B, T, D) as `hidden` and the kernel (D, V) of its head as
    `head`, perhaps with `head_bias` (V,): the loss then takes the logits in parts, and never holds them whole. Means
    are over the counted tokens of a step, whatever examples they are of.

    Shapes: B examples, T tokens each, D features, V tokens of the vocabulary.

    Attributes:
      vocabulary: of the tokens; None where the dataset has none.
    """

    keeps_outputs = False

    def __init__(
        self,
        config: TaskConfig,
        options: LanguageModelOptions,
        arrays: Mapping[str, ArraySpec],
        train: DataSource | None,
        constants: Mapping[str, Sequence[float]],
        vocabulary: Vocabulary | None = None,
    ) -> None:
        """Takes what `runner.task.registry.make_task` does, with the options typed."""
        self._label_weight = self._weight_of(options, arrays)
        found = roles(self._with_inputs(config, arrays), arrays)
        metrics = directions(options)
        self._token_bytes = None if vocabulary is None else np.asarray(vocabulary.token_bytes(), np.float32)
        if self._token_bytes is None:
            del metrics["bits_per_byte"]
        super().__init__(found, arrays, metrics)
        if self._label_weight is not None:
            self.arrays = {**self.arrays, self._label_weight: arrays[self._label_weight]}
        self._options = options
        self.vocabulary = vocabulary
        self.step_metrics = of_steps(options)
        self._label = self._check_arrays()
        self.tokens = self.arrays[self._label].shape[0]
        self.arrays = {name: self._with_sequence(name) for name in self.arrays}
        self.units = self._units(constants)
        self.outputs = OutputSpec(self.units)
        self.constants = {"vocabulary": [self.units]}
        self._prompt = None if options.sample is None else self._checked_prompt(options.sample, "task.sample.prompt")
        if train is not None:
            self.check_split(train, "train")

    @staticmethod
    def _weight_of(options: LanguageModelOptions, arrays: Mapping[str, ArraySpec]) -> str | None:
        """Returns the array of the labels' weights."""
        name = options.label_weight
        if name is None:
            return LABEL_WEIGHT if LABEL_WEIGHT in arrays else None
        if name not in arrays:
            raise invalid(
                "task.label_weight",
                name,
                problem=f"the dataset has {', '.join(arrays)}",
                fix="name one of these, or leave it out",
            )
        return name

    def _with_inputs(self, config: TaskConfig, arrays: Mapping[str, ArraySpec]) -> TaskConfig:
        """Returns the config with the inputs named that a text's arrays have."""
        if config.inputs is not None:
            return config
        if TOKENS in arrays:
            return replace(config, inputs=[name for name in (TOKENS, SEGMENTS) if name in arrays])
        target = config.target or [name for name in TARGETS if name in arrays][:1]
        taken = {*target, config.example_weight, self._label_weight}
        return replace(config, inputs=[name for name in arrays if name not in taken])

    def _check_arrays(self) -> str:
        """Returns the label's name, of arrays that all have one number a token."""
        if len(self.target_names) != 1:
            raise invalid("task.target", list(self.target_names), problem="one array of tokens", fix="name one")
        (label,) = self.target_names
        spec = self.arrays[label]
        if len(spec.shape) != 1 or np.dtype(spec.dtype).kind not in "iu":
            raise invalid(
                "task.target",
                label,
                problem="the number of the next token of each token, [tokens] an example; this array is "
                f"{spec.dtype} of shape {list(spec.shape)}",
                fix="set dataset=text or dataset=shakespeare, or task=classification for one class an example",
            )
        for key, names in (("inputs", self.input_names), ("label_weight", [self._label_weight])):
            for name in names:
                shape = () if name is None else self.arrays[name].shape
                if name is not None and (shape[:1] if key == "inputs" else shape) != spec.shape:
                    raise invalid(
                        f"task.{key}",
                        name,
                        problem=f"{spec.shape[0]} numbers an example, as {label} has; this array has shape "
                        f"{list(shape)}",
                        fix="name another array",
                    )
        return label

    def _with_sequence(self, name: str) -> ArraySpec:
        """Returns an array's spec, of which the dim of the tokens is named, as a user's own arrays have no names."""
        spec = self.arrays[name]
        by_token = name in (self._label, self._label_weight, *self.input_names)
        dims = spec.dims or ("",) * len(spec.shape)
        return replace(spec, dims=(SEQUENCE, *dims[1:])) if by_token and not dims[0] else spec

    def _units(self, constants: Mapping[str, Sequence[float]]) -> int:
        """Returns V."""
        given = self._options.vocabulary
        size = None if self.vocabulary is None else self.vocabulary.size
        names = self.arrays[self._label].names
        size = size or (int(constants["vocabulary"][0]) if "vocabulary" in constants else None) or len(names) or None
        if given is None and size is None:
            raise invalid(
                "task.vocabulary",
                None,
                problem=f"how many tokens there are, which array {self._label} does not tell",
                fix="say how many, as task.vocabulary=256",
            )
        if given is not None and size is not None and given < size:
            raise invalid(
                "task.vocabulary",
                given,
                problem=f"at least {size}, the tokens of the dataset's vocabulary",
                fix="leave it out, or set it to a larger number, as a multiple of 128",
            )
        return given or size or 0

    def check_split(self, source: DataSource, split: str) -> None:
        """Checks that labels have weights and one counts; and that tokens are from 0 to V - 1, of a user's arrays."""
        name = self._label_weight
        weight = None if name is None else column(source, name)
        if name is not None and weight is not None:
            of_text = self.vocabulary is not None and self._options.label_weight is None
            check_weights(weight, name, split, of_text=of_text)
        if self.vocabulary is not None:  # the dataset was made by it
            return
        tokens, label = (column(source, name) for name in (self.input_names[0], self._label))
        tags = ""
        if tokens is not None and label is not None and are_tags(tokens, label):
            tags = tags_mend(self._label, int(label.max(initial=0)) + 1)
        for key, name, held in (("inputs", self.input_names[0], tokens), ("target", self._label, label)):
            if held is not None and np.dtype(held.dtype).kind in "iu":
                check_tokens(held, key, name, self.units, split, tags)

    def _checked_prompt(self, sample: SampleOptions, key: str) -> Array | None:
        """Returns the tokens that samples begin with; None where there is no vocabulary to write by."""
        if self.vocabulary is None:
            if sample.prompt is not None:
                allowed = "a dataset with a vocabulary, by which text is read and written; this one has none"
                raise invalid(key, sample.prompt, problem=allowed, fix="leave it out")
            return None
        return checked_prompt(sample, key, self.vocabulary, self.tokens, ends_are_inputs=self._label_weight is None)

    def check_prompt(self, prompt: str) -> None:
        """Checks what a sample is to begin with; it has as many tokens as there is room for.

        Raises:
          ConfigError: the vocabulary has no tokens for it, or a row no room behind it.
        """
        self._checked_prompt(SampleOptions(prompt=prompt), "evaluate.prompt")

    def sample(self, ask: Ask, step: int, seed: int, multiple: int = 1, prompt: str | None = None) -> str | None:
        """Returns text that the model writes, the likeliest and drawn; None where the config wants none.

        Args:
          ask: gives the logits (R, V) of each row's marked token, of a batch's arrays.
          step: training steps done.
          seed: of the run.
          multiple: the batch axis's size, which must divide R.
          prompt: in place of the config's.
        """
        options = self._options.sample or (SampleOptions() if prompt is not None else None)
        if options is None or self.vocabulary is None:
            return None
        begun = self._prompt
        if prompt is not None:
            begun = self._checked_prompt(SampleOptions(prompt=prompt), "evaluate.prompt")
        assert begun is not None
        temperatures = [0.0] if options.temperature == 0 else [0.0, options.temperature]
        count = min(options.tokens or generation.MOST_TOKENS, self.tokens - len(begun))
        size = self.vocabulary.size

        def asked(rows: Array, place: int) -> Array:
            whole = np.resize(rows, (-(-len(rows) // multiple) * multiple, rows.shape[1]))
            return ask(self._marked(whole, place))[: len(rows), :size]

        found = generation.write(asked, begun, count, self.tokens, temperatures, seed, step)
        titles = [f"temperature {each:g}" if each else "greedy" for each in temperatures]
        parts = [f"--- {title}\n{self.vocabulary.decode(row)}" for title, row in zip(titles, found, strict=True)]
        return "\n".join([f"step {step:,}, seed {seed}", *parts]) + "\n"

    def _marked(self, rows: Array, place: int) -> dict[str, Array]:
        """Returns the arrays of a batch of tokens (R, T), in which the labels mark the place that is asked for."""
        batch = {name: np.ones((len(rows), *spec.shape), spec.dtype) for name, spec in self.arrays.items()}
        tokens = TOKENS if TOKENS in self.input_names else self.input_names[0]
        batch[tokens] = rows.astype(self.arrays[tokens].dtype)
        batch[self._label] = np.zeros_like(batch[self._label])
        batch[self._label][:, place] = 1
        return batch | {WEIGHT: np.ones(len(rows), np.float32)}

    def next_logits(self, ops: Namespace, outputs: Outputs, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, V), the logits of what follows the token that an example's labels mark by 1."""
        mark_bt1 = ops.expand_dims(ops.cast(batch[self._label], "float32"), -1)
        if not isinstance(outputs, Mapping):
            return ops.sum(ops.cast(outputs, "float32") * mark_bt1, axis=1)
        hidden_bd = ops.sum(ops.cast(outputs[HIDDEN], "float32") * mark_bt1, axis=1)
        logits = ops.matmul(hidden_bd, ops.cast(outputs[HEAD], "float32"))
        bias = outputs.get(HEAD_BIAS)
        return logits if bias is None else logits + ops.cast(bias, "float32")

    @property
    def weighs_arrays(self) -> bool:
        """Tells whether `weights` reads more than which examples are padding."""
        return self._label_weight is not None

    def weights(self, batch: Batch) -> Array:
        """Returns how many tokens each example counts for, float32 (..., B)."""
        real = np.asarray(batch[WEIGHT], np.float32)
        if self._label_weight is None:
            return real * np.float32(self.tokens)
        return np.asarray(real * np.asarray(batch[self._label_weight], np.float32).sum(-1))

    def _counts(self, ops: Namespace, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns float32 (B, T), what each label counts for; 0 in padding."""
        label = batch[self._label]
        real_bt = ops.cast(is_real(ops, batch, 2), "float32") + ops.cast(ops.zeros_like(label), "float32")
        return real_bt if self._label_weight is None else real_bt * ops.cast(batch[self._label_weight], "float32")

    def reduced(self, ops: Namespace, outputs: Outputs, batch: Mapping[str, Tensor]) -> Outputs:
        """Returns `_summed`, or the logits where they are kept, as of the few examples that an export compares."""
        return self.predictions(ops, outputs)["logits"] if self.keeps_outputs else self._summed(ops, outputs, batch)

    def _summed(self, ops: Namespace, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns sums (B,) over each example's counted tokens, of one pass over the logits.

        They are the loss; the cross-entropy in nats, which is the loss but for the weights of examples; and how many
        tokens are right.
        """
        label_bt = ops.cast(batch[self._label], "int32")
        counts_bt = self._counts(ops, batch)
        weights_bt = counts_bt
        if self._example_weight is not None:
            own_b = as_vector(ops, ops.cast(batch[self._example_weight], "float32"))
            weights_bt = counts_bt * ops.expand_dims(own_b, -1)
        if isinstance(outputs, Mapping):
            nats_bt, right_bt = ops.head_losses(
                outputs[HIDDEN], outputs[HEAD], outputs.get(HEAD_BIAS), label_bt, weights_bt
            )
        else:
            nats_bt, right_bt = of_logits(ops, outputs, label_bt)

        def summed(values_bt: Tensor, by_bt: Tensor) -> Tensor:
            counted_bt = ops.greater(counts_bt, 0.0)  # chosen: what padding gives may be no number
            kept = ops.where(counted_bt, values_bt, ops.zeros_like(values_bt))
            return ops.sum(kept * ops.cast(by_bt, kept.dtype), axis=-1)

        found = {LOSS: summed(nats_bt, weights_bt), _RIGHT: summed(right_bt, counts_bt)}
        entropy = found[LOSS] if self._example_weight is None else summed(nats_bt, counts_bt)
        return found | {_ENTROPY: entropy}

    def _sums(self, ops: Namespace, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns what `_summed` gives, of a model's outputs or of that itself."""
        if isinstance(outputs, Mapping) and _ENTROPY in outputs:
            return dict(outputs)
        return self._summed(ops, outputs, batch)

    def loss(self, ops: Namespace, outputs: Outputs, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns each example's cross-entropy (B,) in nats, summed over its counted tokens, times its weight."""
        return self._sums(ops, outputs, batch)[LOSS]

    def metrics(self, ops: Namespace, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns how many counted tokens of each example are the likeliest."""
        return {"accuracy": self._sums(ops, outputs, batch)[_RIGHT]}

    def totals(self, ops: Namespace, outputs: Outputs, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns sums by example (B,), 0 of padding: nats, tokens that are right, tokens, and their bytes."""
        sums = self._sums(ops, outputs, batch)
        counts_bt = self._counts(ops, batch)
        found = {_ENTROPY: sums[_ENTROPY], _RIGHT: sums[_RIGHT], _COUNTED: ops.sum(counts_bt, axis=-1)}
        if self._token_bytes is not None:
            table = np.pad(self._token_bytes, (0, self.units - len(self._token_bytes)))
            bytes_bt = ops.take(table, ops.cast(batch[self._label], "int32"))
            found[_BYTES] = ops.sum(bytes_bt * counts_bt, axis=-1)
        return found

    def addends(self, totals: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the sums over a batch's examples, which float64 adds the same way on every mesh."""
        return {name: values.sum() for name, values in totals.items()}

    def summary(self, totals: Mapping[str, Array]) -> dict[str, float]:
        """Returns means over all tokens: perplexity is e to the mean, not a mean of batches' perplexities."""
        counted = float(totals[_COUNTED]) or 1.0
        nats = float(totals[_ENTROPY])
        found = {"perplexity": float(np.exp(min(nats / counted, _LARGEST)))}
        if _BYTES in totals:
            found["bits_per_byte"] = nats / math.log(2.0) / (float(totals[_BYTES]) or 1.0)
        return found | {"accuracy": float(totals[_RIGHT]) / counted}

    def check(self, shape: Sequence[int | None]) -> None:
        """Checks that a model gives one logit a token of the vocabulary, for each token."""
        if len(shape) != 3 or shape[1] not in (None, self.tokens) or shape[2] != self.units:
            raise ConfigError(
                f"model._target_: the model gives {list(shape)}, allowed is [batch, {self.tokens}, "
                f"{self.units}], one logit a token of the vocabulary for each token; use a model of sequences, as "
                "model=gpt"
            )

    def check_named(self, shapes: Mapping[str, Sequence[int | None]]) -> None:
        """Checks that a model of several outputs gives `hidden`, `head` and perhaps `head_bias`."""
        hidden, head, bias = (tuple(shapes.get(name, ())) for name in (HIDDEN, HEAD, HEAD_BIAS))
        known = {HIDDEN, HEAD} <= set(shapes) <= {HIDDEN, HEAD, HEAD_BIAS}
        fits = len(hidden) == 3 and head == (hidden[2], self.units) and bias in ((), (self.units,))
        if not (known and fits):
            told = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise ConfigError(
                f"model._target_: the model gives {told}; allowed are logits [batch, {self.tokens}, "
                f"{self.units}], or {HIDDEN} [batch, {self.tokens}, D] with {HEAD} [D, {self.units}] and perhaps "
                f"{HEAD_BIAS} [{self.units}]; give one of the two"
            )

    def predictions(self, ops: Namespace, outputs: Outputs) -> dict[str, Tensor]:
        """Returns the logits (B, T, V) of the token behind each."""
        logits = outputs
        if isinstance(outputs, Mapping):
            logits = ops.matmul(outputs[HIDDEN], outputs[HEAD])
            logits = logits if outputs.get(HEAD_BIAS) is None else logits + outputs[HEAD_BIAS]
        return {"logits": logits}

    def report(self, evaluation: Evaluation, source: DataSource, split: str = "test") -> Report:
        """Returns a table of what was counted, and what of it was right."""
        del source, split
        names = {"tokens": _COUNTED, "tokens that were right": _RIGHT, "bytes": _BYTES}
        totals = evaluation.totals
        rows = [(name, round(float(totals[key]))) for name, key in names.items() if key in totals]
        return Report({}, {"counted": (("counted", "number"), rows)} if rows else {})
