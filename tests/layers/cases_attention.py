"""Attention."""

from __future__ import annotations

from typing import Any

from tests.layers.case import Case, Of, flags, numbers
from tests.layers.cases_conv import BF16, F16, SMALL_NORM

Sets = list[dict[str, Any]]
QUERY, VALUE, KEY = numbers(4, 3), numbers(5, 3), numbers(5, 3)
SELF = numbers(4, 6)


def _dot_and_sum() -> list[Case]:
    found = []
    for layer in ("Attention", "AdditiveAttention"):
        sets: Sets = [{}, {"use_scale": layer == "Attention"}, {"dropout": 0.4}, {"trainable": False}]
        sets += [{"score_mode": "concat"}] if layer == "Attention" else []
        found += [Case(layer, each, (QUERY, VALUE)) for each in sets]
        found += [Case(layer, {}, (QUERY, VALUE, KEY))]
        found += [Case(layer, {}, (QUERY, QUERY), call={"use_causal_mask": True})]
        found += [Case(layer, {}, (QUERY, VALUE), call={"return_attention_scores": True})]
        found += [Case(layer, {"dtype": "mixed_bfloat16"}, (QUERY, VALUE), tolerance=BF16)]
        found += [Case(layer, {}, (numbers(4, 3, masked=0.5), VALUE), before=(Of("Masking", {"mask_value": 0.5}),))]
    found += [Case("Attention", {"dropout": 0.4, "seed": 5}, (QUERY, VALUE))]
    return found


def _many_heads() -> list[Case]:
    layer, base = "MultiHeadAttention", {"num_heads": 2, "key_dim": 3}
    sets: Sets = [
        {},
        {"value_dim": 4},
        {"use_bias": False},
        {"output_shape": 5},
        {"dropout": 0.4},
        {"kernel_regularizer": "l2", "bias_regularizer": "l1", "activity_regularizer": "l2"},
        {"kernel_constraint": SMALL_NORM, "bias_constraint": Of("constraints.NonNeg")},
        {"kernel_initializer": "he_normal"},
        {"trainable": False},
    ]
    found = [Case(layer, {**base, **each}, (SELF, SELF), style="spread") for each in sets]
    pair = (numbers(4, 6), numbers(5, 7))
    found += [
        Case(layer, base, pair, style="spread"),
        Case(layer, base, (*pair, numbers(5, 2)), style="spread"),
        Case(layer, base, (SELF, SELF), style="spread", call={"use_causal_mask": True}),
        Case(layer, base, (SELF, SELF), style="spread", call={"return_attention_scores": True}),
        Case(layer, base, (*pair, flags(4, 5, keyword="attention_mask")), style="spread"),
        Case(
            layer,
            {**base, "dropout": 0.3},
            (*pair, flags(4, 5, keyword="attention_mask")),
            style="spread",
            call={"use_causal_mask": False},
        ),
        Case(layer, {**base, "attention_axes": (1, 2)}, (numbers(2, 3, 4), numbers(2, 3, 4)), style="spread"),
        Case(layer, {**base, "attention_axes": 2}, (numbers(2, 3, 4), numbers(2, 3, 4)), style="spread"),
        Case(
            layer,
            base,
            (numbers(4, 6, masked=0.5), SELF),
            style="spread",
            before=(Of("Masking", {"mask_value": 0.5}),),
        ),
        Case(layer, {**base, "dtype": "mixed_bfloat16"}, (SELF, SELF), style="spread", tolerance=BF16),
        Case(layer, {**base, "dtype": "mixed_float16"}, (SELF, SELF), style="spread", tolerance=F16),
    ]
    keras_3: Sets = [
        {"sliding_window": 2},
        {"flash_attention": False},
        {"use_gate": True},
        {"dropout": 0.3, "seed": 5},
    ]
    found += [Case(layer, {**base, **each}, (SELF, SELF), style="spread") for each in keras_3]
    for mask, length in (("query_mask", 4), ("value_mask", 5), ("key_mask", 5)):
        found += [Case(layer, base, (*pair, flags(length, keyword=mask)), style="spread")]
    return found


def _grouped() -> list[Case]:
    layer, base = "GroupQueryAttention", {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2}
    sets: Sets = [
        {},
        {"use_bias": False},
        {"dropout": 0.4},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"sliding_window": 2},
        {"use_gate": True},
        {"flash_attention": False},
        {"kernel_regularizer": "l2", "kernel_constraint": SMALL_NORM},
    ]
    found = [Case(layer, {**base, **each}, (SELF, SELF), style="spread") for each in sets]
    pair = (numbers(4, 6), numbers(5, 7))
    return [
        *found,
        Case(layer, base, pair, style="spread"),
        Case(layer, base, (SELF, SELF), style="spread", call={"use_causal_mask": True}),
        Case(layer, base, (SELF, SELF), style="spread", call={"return_attention_scores": True}),
        Case(layer, base, (*pair, flags(4, 5, keyword="attention_mask")), style="spread"),
    ]


CASES = [*_dot_and_sum(), *_many_heads(), *_grouped()]
