"""Recurrent layers, their cells and wrappers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tests.layers.case import By, Case, Of, numbers
from tests.layers.cases_conv import BF16, F16, SMALL_NORM

Sets = list[dict[str, Any]]
X, PADDED = numbers(5, 3), numbers(5, 3, masked=0.5)
UNITS = {"units": 4}
MASKED = (Of("Masking", {"mask_value": 0.5}),)
_SEQUENCES = {"return_sequences": True}


def _swap(library: ModuleType) -> Any:
    return lambda x: library.backend.permute_dimensions(x, (1, 0, 2))


SWAPPED = (Of("Lambda", {"function": By("batch and time swapped", _swap)}),)

_ANY: Sets = [
    {},
    _SEQUENCES,
    {"return_state": True},
    {"return_sequences": True, "return_state": True},
    {"go_backwards": True},
    {"go_backwards": True, **_SEQUENCES},
    {"unroll": True},
    {"unroll": True, **_SEQUENCES},
    {"stateful": True},
    {"use_bias": False},
    {"activation": "sigmoid"},
    {"dropout": 0.4},
    {"recurrent_dropout": 0.4},
    {"dropout": 0.3, "recurrent_dropout": 0.3, "seed": 5, **_SEQUENCES},
    {"kernel_regularizer": "l2", "recurrent_regularizer": "l2", "bias_regularizer": "l1"},
    {"activity_regularizer": "l2"},
    {"kernel_constraint": SMALL_NORM, "recurrent_constraint": SMALL_NORM},
    {"bias_constraint": Of("constraints.NonNeg")},
    {"recurrent_initializer": "glorot_uniform"},
    {"trainable": False},
]
_GATED: Sets = [{"recurrent_activation": "hard_sigmoid"}, {"recurrent_activation": "tanh"}]
_OWN: dict[str, Sets] = {
    "SimpleRNN": [],
    "LSTM": [*_GATED, {"unit_forget_bias": False}],
    "GRU": [*_GATED, {"reset_after": False}, {"reset_after": False, **_SEQUENCES}],
}


def _layers() -> list[Case]:
    found = []
    for layer, own in _OWN.items():
        found += [Case(layer, {**UNITS, **each}, (X,)) for each in (*_ANY, *own)]
        found += [Case(layer, {**UNITS, **each}, (PADDED,), before=MASKED) for each in ({}, _SEQUENCES)]
        found += [Case(layer, {**UNITS, "dtype": "mixed_bfloat16"}, (X,), tolerance=BF16)]
        found += [Case(layer, UNITS, (X,), then=(Of("RepeatVector", {"n": 2}), Of(layer, UNITS)))]
        count = 2 if layer == "LSTM" else 1
        states = tuple(numbers(4) for _ in range(count))
        found += [Case(layer, UNITS, (X, *states), style="state")]
    for layer in ("LSTM", "GRU"):
        found += [Case(layer, {**UNITS, "use_cudnn": False}, (X,))]
    found += [Case("LSTM", {**UNITS, "dtype": "mixed_float16"}, (X,), tolerance=F16)]
    return found


def _cells() -> list[Case]:
    sets: Sets = [{}, {"use_bias": False}, {"activation": "relu"}, {"dropout": 0.4}, {"recurrent_dropout": 0.4}]
    found = []
    for cell, own in (
        ("SimpleRNNCell", [{"recurrent_regularizer": "l2"}]),
        ("LSTMCell", [{"recurrent_activation": "tanh"}, {"unit_forget_bias": False}]),
        ("GRUCell", [{"recurrent_activation": "tanh"}, {"reset_after": False}]),
    ):
        found += [Case(cell, {**UNITS, **each}, (X,), within="RNN") for each in (*sets, *own)]
    return found


def _of_cells() -> list[Case]:
    simple = Of("SimpleRNNCell", UNITS)
    two = [Of("LSTMCell", UNITS), Of("LSTMCell", {"units": 3})]
    sets: Sets = [
        {"cell": simple},
        {"cell": simple, **_SEQUENCES},
        {"cell": simple, "return_state": True},
        {"cell": simple, "go_backwards": True},
        {"cell": simple, "unroll": True},
        {"cell": simple, "stateful": True},
        {"cell": two},
        {"cell": two, **_SEQUENCES},
        {"cell": [Of("GRUCell", UNITS), Of("LSTMCell", {"units": 3})]},
    ]
    found = [Case("RNN", each, (X,)) for each in sets]
    found += [Case("RNN", {"cell": simple, "zero_output_for_mask": True, **_SEQUENCES}, (PADDED,), before=MASKED)]
    stacked: Sets = [{"cells": two}, {"cells": [simple, Of("GRUCell", UNITS)]}, {"cells": [simple]}]
    return [*found, *(Case("StackedRNNCells", each, (X,), within="RNN") for each in stacked)]


def _wrapped() -> list[Case]:
    lstm = Of("LSTM", {"units": 4, **_SEQUENCES})
    found = [Case("Bidirectional", {"layer": Of(layer, UNITS)}, (X,)) for layer in ("LSTM", "GRU", "SimpleRNN")]
    modes = ("concat", "sum", "mul", "ave")
    found += [Case("Bidirectional", {"layer": lstm, "merge_mode": mode}, (X,)) for mode in (*modes, None)]
    backward = Of("LSTM", {"units": 4, "go_backwards": True, "activation": "relu", **_SEQUENCES})
    found += [
        Case("Bidirectional", {"layer": lstm, "backward_layer": backward}, (X,)),
        Case("Bidirectional", {"layer": Of("LSTM", {"units": 4, "return_state": True})}, (X,)),
        Case("Bidirectional", {"layer": Of("LSTM", {"units": 4, "dropout": 0.4})}, (X,)),
        Case("Bidirectional", {"layer": Of("RNN", {"cell": Of("LSTMCell", UNITS)})}, (X,)),
        Case("Bidirectional", {"layer": Of("LSTM", UNITS)}, (PADDED,), before=MASKED),
        Case("Bidirectional", {"layer": Of("LSTM", {"units": 4, "stateful": True})}, (X,)),
    ]
    image = numbers(3, 5, 4, 2)
    inner = (Of("Dense", {"units": 4}), Of("Dropout", {"rate": 0.5}), Of("BatchNormalization"))
    found += [Case("TimeDistributed", {"layer": each}, (X,)) for each in inner]
    convolution = Of("Conv2D", {"filters": 3, "kernel_size": 2})
    found += [Case("TimeDistributed", {"layer": each}, (image,)) for each in (convolution, Of("MaxPooling2D"))]
    found += [Case("TimeDistributed", {"layer": Of("LSTM", UNITS)}, (numbers(2, 5, 3),))]
    found += [Case("TimeDistributed", {"layer": Of("Dense", {"units": 4})}, (PADDED,), before=MASKED)]
    return found


def _convolved() -> list[Case]:
    found = []
    for rank, sizes in ((1, (5,)), (2, (4, 4)), (3, (3, 3, 3))):
        layer, base = f"ConvLSTM{rank}D", {"filters": 2, "kernel_size": 2}
        sets: Sets = [
            {},
            {"padding": "same", **_SEQUENCES},
            {"strides": 2},
            {"dilation_rate": 2, "padding": "same"} if rank < 3 else {"padding": "same"},
            {"go_backwards": True},
            {"return_state": True},
            {"use_bias": False, "recurrent_activation": "sigmoid"},
            {"unit_forget_bias": False},
            {"data_format": "channels_first"},
            {"stateful": True},
            {"dropout": 0.4},
            {"recurrent_dropout": 0.4},
            {"kernel_regularizer": "l2", "kernel_constraint": SMALL_NORM},
        ]
        for each in sets[: None if rank < 3 else 9]:
            example = (2, *sizes) if each.get("data_format") else (*sizes, 2)
            found.append(Case(layer, {**base, **each}, (numbers(3, *example),)))
    return found


CASES = [*_layers(), *_cells(), *_of_cells(), *_wrapped(), *_convolved()]
