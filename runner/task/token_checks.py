"""What is checked of a language model's arrays and of the prompt of its samples; each raises `ConfigError`."""

from __future__ import annotations

import math

import numpy as np

from runner.config.schema_task import SampleOptions
from runner.data.base import Array
from runner.data.packing import no_label_counts
from runner.data.vocabulary import EncodingError, Vocabulary
from runner.errors import invalid

_SEEN = 1000  # rows by which labels are known as tokens or as tags
# Labels of a language model are the next tokens nearly everywhere, those of a masked one the same tokens; tags agree
# with them by chance.
_TAGS = 0.5


def check_weights(weight: Array, name: str, split: str, *, of_text: bool) -> None:
    """Checks that the weights of a split's labels are numbers that a mean can be taken by.

    Args:
      weight: (N, T).
      name: the array's.
      split: its name.
      of_text: whether it tells documents apart that the dataset has encoded.
    """
    low = float(weight.min(initial=0))
    high = float(weight.max(initial=0))
    if low < 0 or not math.isfinite(low + high):
        raise invalid(
            "task.label_weight",
            name,
            problem=f"finite numbers from 0 on, the {split} split has {low if low < 0 else high:g}",
            fix="fix the array, or name another",
        )
    if high > 0:
        return
    if of_text:
        raise no_label_counts(split)
    raise invalid(
        "task.label_weight",
        name,
        problem=f"a label that counts, and split {split} has none",
        fix="fix the array, or name another",
    )


def tags_mend(name: str, count: int) -> str:
    """Returns how to learn a class per token, as in named entity recognition.

    Args:
      name: of the array that holds the classes.
      count: of the classes.
    """
    return (
        f"for a class per token (tags), set task=custom task.target={name} task.units={count} and return "
        f'ops.mean(ops.sparse_cross_entropy(batch["{name}"], outputs), axis=-1) in the function of task._target_'
    )


def are_tags(tokens: Array, label: Array) -> bool:
    """Returns whether labels are something else than tokens of the inputs: neither the next ones nor the same.

    Args:
      tokens: (N, T), of the inputs.
      label: (N, T).
    """
    if tokens.shape != label.shape or tokens.ndim != 2 or tokens.shape[1] < 2:
        return False
    if tokens.max(initial=0) <= label.max(initial=0):  # there are fewer tags than tokens
        return False
    some = tokens[:_SEEN]
    seen = label[:_SEEN]
    following = float(np.mean(some[:, 1:] == seen[:, :-1]))
    same = float(np.mean(some == seen))
    return max(following, same) < _TAGS


def check_tokens(tokens: Array, key: str, name: str, units: int, split: str, tags: str = "") -> None:
    """Checks that a user's tokens are from 0 to V - 1.

    Args:
      tokens: (N, T), whole numbers.
      key: of the task's config, that says what they are.
      name: the array's.
      units: V.
      split: its name.
      tags: what to do if the labels are no tokens of the inputs, see `tags_mend`; empty: they are.
    """
    low = int(tokens.min(initial=0))
    high = int(tokens.max(initial=0))
    if tags and high >= units and low >= 0:
        raise invalid(
            f"task.{key}",
            name,
            problem="task=language_model reads and predicts tokens of one vocabulary, of size "
            f"task.vocabulary={units}, and the {split} split has token {high}",
            fix=tags,
        )
    if low < 0 or high >= units:
        raise invalid(
            f"task.{key}",
            name,
            problem=f"tokens from 0 to {units - 1}, the {split} split has {low if low < 0 else high}",
            fix=f"set task.vocabulary={high + 1}" if low >= 0 else "store the tokens' numbers from 0 on",
        )


def checked_prompt(
    sample: SampleOptions, key: str, vocabulary: Vocabulary, length: int, *, ends_are_inputs: bool
) -> Array:
    """Returns the tokens (n,) that samples begin with.

    Args:
      sample: of the config.
      key: that says the prompt.
      vocabulary: encodes it.
      length: of a row, T.
      ends_are_inputs: whether the model learns what follows the end of a document, which then is the prompt of null.
    """
    text = sample.prompt
    end = vocabulary.end if ends_are_inputs else None
    try:
        found = vocabulary.encode("\n" if text is None else text)
    except EncodingError:
        found = np.zeros(0, np.int32)
    if text is None:
        found = np.array([end], np.int32) if end is not None else found if len(found) else np.zeros(1, np.int32)
    elif not len(found) or (text.strip() and not vocabulary.decode(found).strip()):
        raise invalid(key, text, problem="text that the vocabulary has tokens for", fix="write another")
    if len(found) >= length:
        raise invalid(
            key,
            text,
            problem=f"fewer tokens than the {length} of a row; this one has {len(found)}",
            fix="shorten it" + (", or set dataset.sequence_length to more" if key.startswith("task.") else ""),
        )
    room = length - len(found)
    if sample.tokens is not None and sample.tokens > room:
        raise invalid(
            "task.sample.tokens",
            sample.tokens,
            problem=f"at most {room}: a row has {length} tokens, and the prompt takes {len(found)}",
            fix=f"set task.sample.tokens={room}",
        )
    return found
