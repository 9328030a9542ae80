"""Convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.layers.case import Case, Of, Tensor, numbers

Arguments = Mapping[str, Any]

BF16, F16 = 0.06, 0.01  # relative: some 16 roundings of half an ulp of the largest entry
BF16_SUM = 0.2  # a bias's gradient is added up in bfloat16: four half ulps times the root of some 160 terms
SMALL_NORM = Of("constraints.MaxNorm", {"max_value": 0.3})
PENALTIES = {"kernel_regularizer": "l2", "bias_regularizer": "l1", "activity_regularizer": "l2"}
CONSTRAINTS = {"kernel_constraint": SMALL_NORM, "bias_constraint": Of("constraints.NonNeg")}
# The sizes of an example without channels, by rank.
SIZES = {1: (9,), 2: (7, 6), 3: (4, 5, 4)}

_ANY_RANK: Sequence[Arguments] = (
    {},
    {"strides": 2},
    {"strides": 2, "padding": "same"},
    {"padding": "same"},
    {"padding": "same", "kernel_size": 2},
    {"kernel_size": 1},
    {"kernel_size": 2, "strides": 3},
    {"dilation_rate": 2, "kernel_size": 2},
    {"dilation_rate": 2, "kernel_size": 2, "padding": "same"},
    {"use_bias": False},
    {"activation": "tanh"},
    {"data_format": "channels_first"},
    PENALTIES,
    CONSTRAINTS,
    {"trainable": False},
)
_UNEVEN = {
    1: (),
    2: (
        {"kernel_size": (3, 2), "strides": (2, 1)},
        {"kernel_size": (1, 3), "padding": "same", "strides": (1, 2)},
        {"kernel_size": 2, "dilation_rate": (1, 3)},
        {"kernel_size": (2, 3), "dilation_rate": (2, 1), "padding": "same"},
    ),
    3: (
        {"kernel_size": (2, 3, 1), "strides": (1, 2, 1)},
        {"kernel_size": (1, 2, 3), "padding": "same", "strides": (2, 1, 2)},
        {"kernel_size": 2, "dilation_rate": (1, 2, 1)},
    ),
}


def _example(rank: int, arguments: Arguments, channels: int) -> Tensor:
    first = arguments.get("data_format") == "channels_first"
    return numbers(*((channels, *SIZES[rank]) if first else (*SIZES[rank], channels)))


def _cases(layer: str, rank: int, sets: Sequence[Arguments], base: Arguments, channels: int = 3) -> list[Case]:
    return [Case(layer, {**base, **each}, (_example(rank, each, channels),)) for each in sets]


def _convolutions() -> list[Case]:
    found = []
    for rank in (1, 2, 3):
        layer, base = f"Conv{rank}D", {"filters": 4, "kernel_size": 3}
        found += _cases(layer, rank, [*_ANY_RANK, *_UNEVEN[rank]], base)
        found += _cases(layer, rank, [{"groups": 2}, {"groups": 4, "padding": "same"}], base, channels=4)
        found += [
            Case(layer, {**base, "lora_rank": 2, "kernel_size": 2}, (_example(rank, {}, 3),)),
        ]
    causal: list[Arguments] = [
        {"padding": "causal"},
        {"padding": "causal", "dilation_rate": 2},
        {"padding": "causal", "strides": 2},
        {"padding": "causal", "kernel_size": 1},
    ]
    found += _cases("Conv1D", 1, causal, {"filters": 4, "kernel_size": 3})
    return found


def _transposed() -> list[Case]:
    found = []
    sets: list[Arguments] = [
        {},
        {"strides": 2},
        {"strides": 2, "padding": "same"},
        {"padding": "same"},
        {"kernel_size": 2, "strides": 3},
        {"use_bias": False, "activation": "tanh"},
        {"data_format": "channels_first"},
        PENALTIES,
        CONSTRAINTS,
    ]
    for rank in (1, 2, 3):
        layer, base = f"Conv{rank}DTranspose", {"filters": 4, "kernel_size": 3}
        found += _cases(layer, rank, sets, base)
        found += _cases(layer, rank, [{"strides": 2, "output_padding": 1}, {"dilation_rate": 2}], base)
        if rank > 1:
            sizes = (2, 1, 2)[:rank]
            found += _cases(layer, rank, [{"kernel_size": (3, 2, 1)[:rank], "strides": sizes}], base)
    return found


def _by_channel() -> list[Case]:
    """Depthwise and separable ones."""
    found = []
    shared: list[Arguments] = [
        {},
        {"strides": 2},
        {"strides": 2, "padding": "same"},
        {"padding": "same"},
        {"padding": "same", "kernel_size": 2},
        {"depth_multiplier": 2},
        {"depth_multiplier": 2, "strides": 2, "padding": "same"},
        {"dilation_rate": 2, "kernel_size": 2},
        {"dilation_rate": 2, "kernel_size": 2, "padding": "same"},
        {"use_bias": False, "activation": "tanh"},
        {"data_format": "channels_first"},
        {"depthwise_regularizer": "l2", "bias_regularizer": "l1", "activity_regularizer": "l2"},
        {"depthwise_constraint": SMALL_NORM, "bias_constraint": Of("constraints.NonNeg")},
    ]
    for rank in (1, 2):
        uneven: list[Arguments] = [{"kernel_size": (3, 2)}, {"kernel_size": (1, 3), "padding": "same"}]
        uneven += [{"kernel_size": 2, "dilation_rate": (1, 2)}]
        sets = [*shared, *(uneven if rank == 2 else [])]
        found += _cases(f"DepthwiseConv{rank}D", rank, sets, {"kernel_size": 3})
        points: list[Arguments] = [
            *sets,
            {"pointwise_regularizer": "l2"},
            {"pointwise_constraint": SMALL_NORM},
        ]
        found += _cases(f"SeparableConv{rank}D", rank, points, {"filters": 4, "kernel_size": 3})
    found += _cases("SeparableConv1D", 1, [{"padding": "causal"}], {"filters": 4, "kernel_size": 3})
    return found


def _in_less() -> list[Case]:
    """Precisions."""
    policies = (("mixed_bfloat16", BF16_SUM), ("mixed_float16", F16), ("bfloat16", BF16_SUM), ("float16", F16))
    found = [
        Case(layer, {**arguments, "dtype": dtype}, (numbers(*shape),), tolerance=tolerance)
        for layer, arguments, shape in (
            ("Conv2D", {"filters": 4, "kernel_size": 3}, (7, 6, 3)),
            ("Conv1D", {"filters": 4, "kernel_size": 3, "padding": "causal"}, (9, 3)),
            ("DepthwiseConv2D", {"kernel_size": 3}, (7, 6, 3)),
            ("SeparableConv2D", {"filters": 4, "kernel_size": 3}, (7, 6, 3)),
            ("Conv2DTranspose", {"filters": 4, "kernel_size": 3}, (4, 4, 3)),
        )
        for dtype, tolerance in policies[: 4 if layer == "Conv2D" else 1]
    ]
    return [*found, Case("Conv2D", {"filters": 4, "kernel_size": 3, "dtype": "float64"}, (numbers(7, 6, 3),))]


CASES = [*_convolutions(), *_transposed(), *_by_channel(), *_in_less()]
