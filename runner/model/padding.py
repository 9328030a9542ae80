"""Checks that the padding of a batch affects nothing that is kept, by calling a built model with several paddings.

The mean of the task's loss ignores padding. Padding may still affect whatever else a training call keeps: running
statistics and other variables without a gradient, losses that layers add, and the outputs of the batch's other
examples if a layer mixes them. Each is compared between two paddings, and what is kept with a call without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from runner.data.base import Array, ArraySpec, Batch
from runner.errors import ConfigError

# How to give arrays of a loss one shape, if they were broadcast by mistake.
BROADCAST = "arrays are broadcast, such as outputs [batch, 1] minus a target [batch]: give both one shape"

# Examples per call: two are the fewest whose batch statistics differ from those of a single example.
_REAL = 2
_PADDING = 2

# Two calls whose padding differs may differ by at most this multiple of the difference of two equal calls. On a CPU
# equal calls are bitwise identical, so padding may change nothing at all.
_NOISE_FACTOR = 8.0

# Relative tolerance between calls whose batches differ in size: their sums have another order, in bfloat16 too.
_SIZE_TOLERANCE = 1e-3

# Relative tolerance of a user's function whose float32 inputs are bitwise identical: sums in another order err by a
# few 1e-7, one row of padding among thousands counts for 1e-4 or more.
_FUNCTION_TOLERANCE = 1e-5


# The variables without a gradient after a training call with the losses that layers add, and the outputs (B, ...).
Call = Callable[[Batch], tuple[Sequence[Array], Sequence[Array]]]


def check(call: Call, inputs: Mapping[str, ArraySpec]) -> None:
    """Rejects padded batches if padding affects anything a model computes; `call` leaves the model unchanged."""
    rng = np.random.default_rng(0)
    real = random_examples(inputs, rng, _REAL)
    padding = random_examples(inputs, rng, _PADDING)
    other_padding = random_examples(inputs, rng, _PADDING)

    def called(padding: Batch) -> list[Array]:
        kept, outputs = call({name: np.concatenate([array, padding[name]]) for name, array in real.items()})
        return [*kept, *(output[:_REAL] for output in outputs)]

    first = called(padding)
    changed = called(other_padding)
    # The same call again, to measure the noise of equal calls.
    is_read = differ(first, changed, first) and differ(first, changed, called(padding))
    # Padding may count whatever it contains, as a number of rows. Outputs are left out: dropout depends on the size.
    unpadded, _ = call(real)
    is_counted = False
    for value, expected in zip(first, unpadded, strict=False):
        if _difference(value, expected) > _SIZE_TOLERANCE * _largest(expected):
            is_counted = True
    if is_read or is_counted:
        raise invalid(
            "a variable that a training call of the model changes, a loss that a layer adds (add_loss or an "
            "activity_regularizer), or the model's outputs for the other examples of a batch"
        )


def differ(first: Sequence[Array], changed: Sequence[Array], repeated: Sequence[Array]) -> bool:
    """Returns whether the results of a changed call differ by more than those of two equal calls do."""
    for one, other, again in zip(first, changed, repeated, strict=True):
        if _difference(one, other) > _NOISE_FACTOR * _difference(one, again):
            return True
    return False


def check_functions(seen: Mapping[str, Array], unseen: Mapping[str, Array]) -> None:
    """Rejects padded batches if they change the values of a task's functions.

    A function that itself ignores rows of weight 0 returns the same values up to rounding, and passes.
    """
    for name, value in seen.items():
        if _is_other(value, unseen[name]):
            function = f"metric {name}"
            if name == "loss":
                function = "the loss"
            raise ConfigError(
                f"dataset.remainder=pad: {function} of an example depends on other rows of its batch, so it would "
                "depend on padding; set dataset.remainder=drop, or let the function ignore rows whose "
                'batch["weight"] is 0'
            )


def reads_others(seen: Mapping[str, Array], unseen: Mapping[str, Array]) -> bool:
    """Returns whether the loss of a batch's first examples depends on its other rows."""
    return _is_other(seen["loss"], unseen["loss"])


def _is_other(value: Array, expected: Array) -> bool:
    return _difference(value, expected) > _FUNCTION_TOLERANCE * _largest(expected)


def invalid(subject: str) -> ConfigError:
    """Returns the error that rejects padded batches."""
    return ConfigError(f"dataset.remainder=pad: padding would count in {subject}; set dataset.remainder=drop")


def random_examples(inputs: Mapping[str, ArraySpec], rng: np.random.Generator, count: int) -> dict[str, Array]:
    """Returns random examples: normal floats, and integers 0 and 1. Every embedding table has these two rows."""
    arrays: dict[str, Array] = {}
    for name, spec in inputs.items():
        shape = (count, *spec.shape)
        if np.dtype(spec.dtype).kind == "f":
            values: Array = rng.normal(size=shape)
        else:
            values = rng.integers(0, 2, shape)
        arrays[name] = values.astype(spec.dtype)
    return arrays


def _difference(one: Array, other: Array) -> float:
    a = np.asarray(one).astype(np.float64)
    b = np.asarray(other).astype(np.float64)
    if a.shape != b.shape:
        return float("inf")
    is_equal = (a == b) | (np.isnan(a) & np.isnan(b))
    differences = np.where(is_equal, 0.0, np.abs(a - b))
    return float(np.max(np.nan_to_num(differences, nan=np.inf), initial=0.0))


def _largest(values: Array) -> float:
    numbers = np.nan_to_num(np.asarray(values).astype(np.float64))
    return float(np.max(np.abs(numbers), initial=0.0))
