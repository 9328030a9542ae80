"""Checks of a language model's arrays and of the prompt of its samples."""

from __future__ import annotations

import math

import numpy as np

from runner.config.schema_task import SampleOptions
from runner.data.base import Array
from runner.data.packing import no_label_counts
from runner.data.vocabulary import EncodingError, Vocabulary
from runner.errors import ConfigError, invalid

# Rows that are compared to tell tokens from tags: enough for a share, and read in milliseconds.
_COMPARED_ROWS = 1000
# Share of labels that agree with the next token, or with the same one, below which they are tags. Labels of a language
# model agree nearly everywhere, and so do those of a masked one; tags agree by chance.
_LEAST_AGREEMENT = 0.5


def check_weights(weight: Array, name: str, split: str, *, of_text: bool) -> None:
    """Checks that the weights of a split's labels are finite, at least 0 and not all 0.

    Args:
      weight: (N, T).

    Raises:
      ConfigError: they are not.
    """
    low = float(weight.min(initial=0))
    high = float(weight.max(initial=0))
    if low < 0 or not math.isfinite(low + high):
        wrong = low if low < 0 else high
        raise invalid(
            "task.label_weight",
            name,
            problem=f"must have finite numbers of at least 0, but the {split} split has {wrong:g}",
            fix="fix the array, or name another",
        )
    if high > 0:
        return
    if of_text:
        raise no_label_counts(split)
    raise invalid(
        "task.label_weight",
        name,
        problem=f"needs a label with a weight above 0, but the {split} split has none",
        fix="fix the array, or name another",
    )


def tags_fix(name: str, count: int) -> str:
    """Returns how to train on one class per token, as in named entity recognition."""
    return f"for a class per token (tags), set task=positions task.target={name} task.classes={count}"


def are_tags(tokens: Array, label: Array) -> bool:
    """Returns whether labels are something else than tokens: neither the next ones nor those of the inputs.

    Args:
      tokens: (N, T), of the inputs.
      label: (N, T).
    """
    if tokens.shape != label.shape or tokens.ndim != 2 or tokens.shape[1] < 2:
        return False
    # A vocabulary has more tokens than there are tags.
    if tokens.max(initial=0) <= label.max(initial=0):
        return False
    first_tokens = tokens[:_COMPARED_ROWS]
    first_labels = label[:_COMPARED_ROWS]
    next_agreement = float(np.mean(first_tokens[:, 1:] == first_labels[:, :-1]))
    same_agreement = float(np.mean(first_tokens == first_labels))
    return max(next_agreement, same_agreement) < _LEAST_AGREEMENT


def check_tokens(
    tokens: Array, key: str, name: str, units: int, split: str, tags: str = "", *, is_whole: bool = True
) -> None:
    """Checks that a user's tokens are from 0 to V - 1.

    Args:
      tokens: integers (N, T).
      tags: the fix if the labels are tags, see `tags_fix`; empty: they are tokens.

    Raises:
      ConfigError: one is not.
    """
    low = int(tokens.min(initial=0))
    high = int(tokens.max(initial=0))
    if tags and high >= units and low >= 0:
        raise invalid(
            f"task.{key}",
            name,
            problem="task=language_model reads and predicts tokens of one vocabulary, of size "
            f"task.vocabulary={units}, but the {split} split has token {high}",
            fix=tags,
        )
    if low < 0:
        raise _outside(key, name, units, split, low, fix="store token numbers that start at 0")
    if high >= units:
        fix = f"set task.vocabulary={high + 1}"
        if not is_whole:
            fix = f"set task.vocabulary to the number of different tokens, {high + 1} or more"
        raise _outside(key, name, units, split, high, fix=fix)


def _outside(key: str, name: str, units: int, split: str, token: int, fix: str) -> ConfigError:
    problem = f"tokens must be from 0 to {units - 1}, but the {split} split has {token}"
    return invalid(f"task.{key}", name, problem=problem, fix=fix)


def encode_prompt(
    sample: SampleOptions, key: str, vocabulary: Vocabulary, length: int, *, ends_are_inputs: bool
) -> Array:
    """Returns the tokens (n,) that samples start with.

    Raises:
      ConfigError: the vocabulary can't encode the prompt, or a row has no room for it and the sample.
    """
    if sample.prompt is None:
        prompt = _default_prompt(vocabulary, ends_are_inputs=ends_are_inputs)
    else:
        prompt = _encoded(sample.prompt, vocabulary)
        # A tokenizer may drop or replace every character that it does not know.
        is_lost = bool(sample.prompt.strip()) and not vocabulary.decode(prompt).strip()
        if not len(prompt) or is_lost:
            raise invalid(key, sample.prompt, problem="has no tokens in the vocabulary", fix="write another prompt")
    if len(prompt) >= length:
        fix = "shorten it"
        if key.startswith("task."):
            fix += ", or set a larger dataset.sequence_length"
        raise invalid(
            key, sample.prompt, problem=f"must have fewer tokens than a row, {length}, but has {len(prompt)}", fix=fix
        )
    room = length - len(prompt)
    if sample.tokens is not None and sample.tokens > room:
        raise invalid(
            "task.sample.tokens",
            sample.tokens,
            problem=f"must be at most {room}: a row has {length} tokens, and the prompt needs {len(prompt)}",
            fix=f"set task.sample.tokens={room}",
        )
    return prompt


def _default_prompt(vocabulary: Vocabulary, *, ends_are_inputs: bool) -> Array:
    """Returns the end-of-document token, else a new line, else token 0."""
    if ends_are_inputs and vocabulary.end is not None:
        return np.array([vocabulary.end], np.int32)
    new_line = _encoded("\n", vocabulary)
    return new_line if len(new_line) else np.zeros(1, np.int32)


def _encoded(text: str, vocabulary: Vocabulary) -> Array:
    """Returns the tokens of a text; none if the vocabulary can't encode it."""
    try:
        return vocabulary.encode(text)
    except EncodingError:
        return np.zeros(0, np.int32)
