"""Dense and embedding layers, activations, functions, and what stands between layers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tests.layers.case import By, Case, Of, counts, numbers
from tests.layers.cases_conv import BF16, CONSTRAINTS, F16, PENALTIES, SMALL_NORM

_POLICIES = (("mixed_bfloat16", BF16), ("mixed_float16", F16), ("bfloat16", BF16), ("float16", F16))


def _dense() -> list[Case]:
    sets: list[dict[str, Any]] = [
        {},
        {"use_bias": False},
        {"activation": "relu"},
        {"activation": "gelu"},
        {"kernel_initializer": "he_normal", "bias_initializer": "ones"},
        PENALTIES,
        CONSTRAINTS,
        {"kernel_constraint": Of("constraints.UnitNorm", {"axis": 0})},
        {"kernel_constraint": Of("constraints.MinMaxNorm", {"min_value": 0.2, "max_value": 0.4, "rate": 0.5})},
        {"kernel_regularizer": Of("regularizers.L1L2", {"l1": 0.01, "l2": 0.02})},
        {"kernel_regularizer": Of("regularizers.OrthogonalRegularizer", {"factor": 0.1})},
        {"trainable": False},
        {"dtype": "float64"},
    ]
    found = [Case("Dense", {"units": 4, **each}, (numbers(5),)) for each in sets]
    found += [Case("Dense", {"units": 4}, (numbers(*shape),)) for shape in ((3, 5), (2, 3, 5), (2, 2, 3, 5))]
    found += [Case("Dense", {"units": 4, "dtype": dtype}, (numbers(5),), tolerance=t) for dtype, t in _POLICIES]
    found += [Case("Dense", {"units": 5}, (numbers(5),), again=2)]
    found += [Case("Dense", {"units": 4, **each}, (numbers(5),)) for each in _OF_DENSE_3]
    return found


_OF_DENSE_3: list[dict[str, Any]] = [
    {"lora_rank": 2},
    {"lora_rank": 2, "lora_alpha": 4},
    {"dtype": "int8_from_float32"},
]


def _einsum() -> list[Case]:
    base = {"equation": "abc,cd->abd", "output_shape": (None, 4)}
    mean = (Of("GlobalAveragePooling1D"),)  # Keras does not tell the size of a dim that is given as None
    return [
        Case("EinsumDense", {"equation": "ab,bc->ac", "output_shape": 4}, (numbers(5),)),
        Case("EinsumDense", {"equation": "ab,bc->ac", "output_shape": 4, "bias_axes": "c"}, (numbers(5),)),
        Case("EinsumDense", {**base, "bias_axes": "d"}, (numbers(3, 5),), then=mean),
        Case("EinsumDense", {**base, "bias_axes": "bd", "output_shape": (3, 4)}, (numbers(3, 5),)),
        Case("EinsumDense", {"equation": "...x,xy->...y", "output_shape": 4, "bias_axes": "y"}, (numbers(3, 5),)),
        Case("EinsumDense", {"equation": "abc,cde->abde", "output_shape": (3, 2, 3)}, (numbers(3, 5),)),
        Case("EinsumDense", {"equation": "abcd,cde->abe", "output_shape": (3, 4)}, (numbers(3, 2, 5),)),
        Case("EinsumDense", {**base, "activation": "tanh"}, (numbers(3, 5),), then=mean),
        Case("EinsumDense", {**base, "bias_axes": "d", **CONSTRAINTS}, (numbers(3, 5),), then=mean),
        Case("EinsumDense", {**base, "kernel_regularizer": "l2"}, (numbers(3, 5),), then=mean),
        Case("EinsumDense", {**base, "dtype": "mixed_bfloat16"}, (numbers(3, 5),), then=mean, tolerance=BF16),
        Case("EinsumDense", {**base, "lora_rank": 2}, (numbers(3, 5),), then=mean),
    ]


def _embedding() -> list[Case]:
    base, words = {"input_dim": 7, "output_dim": 4}, counts(5, below=7)
    pooled = (Of("GlobalAveragePooling1D"),)
    return [
        Case("Embedding", base, (words,)),
        Case("Embedding", base, (counts(2, 3, below=7),)),
        Case("Embedding", {**base, "mask_zero": True}, (words,), then=(Of("LSTM", {"units": 3}),)),
        Case("Embedding", {**base, "mask_zero": True}, (words,), then=pooled),
        Case("Embedding", {**base, "embeddings_regularizer": "l2"}, (words,)),
        Case("Embedding", {**base, "embeddings_constraint": SMALL_NORM}, (words,)),
        Case("Embedding", {**base, "embeddings_initializer": "ones"}, (words,)),
        Case("Embedding", {**base, "trainable": False}, (words,)),
        Case("Embedding", {**base, "dtype": "mixed_bfloat16"}, (words,), tolerance=BF16),
        Case("Embedding", {**base, "lora_rank": 2}, (words,)),
        Case("ReversibleEmbedding", base, (words,)),
        Case("ReversibleEmbedding", base, (numbers(3, 4),), call={"reverse": True}),
        Case("ReversibleEmbedding", {**base, "logit_soft_cap": 2.0}, (words,), style="reverse"),
        Case("ReversibleEmbedding", {**base, "tie_weights": False}, (words,), style="reverse"),
    ]


_FUNCTIONS = ("elu", "exponential", "gelu", "hard_sigmoid", "linear", "mish", "relu", "selu", "sigmoid", "softmax")
_FUNCTIONS += ("softplus", "softsign", "swish", "tanh")
_FUNCTIONS_3 = ("celu", "glu", "hard_shrink", "hard_silu", "hard_tanh", "leaky_relu", "log_sigmoid", "log_softmax")
_FUNCTIONS_3 += ("relu6", "silu", "soft_shrink", "sparse_plus", "sparse_sigmoid", "sparsemax", "squareplus")
_FUNCTIONS_3 += ("tanh_shrink", "threshold")


def _activations() -> list[Case]:
    x = (numbers(3, 4),)
    found = [Case("Activation", {"activation": name}, x) for name in _FUNCTIONS]
    found += [Case("Activation", {"activation": name}, x) for name in _FUNCTIONS_3 if name != "threshold"]
    found += [Case("ELU", each, x) for each in ({}, {"alpha": 0.3})]
    found += [Case("LeakyReLU", {"negative_slope": 0.2}, x), Case("LeakyReLU", {}, x)]
    found += [Case("PReLU", {}, x), Case("PReLU", {"shared_axes": [1]}, x)]
    found += [Case("PReLU", {"shared_axes": [1, 2]}, (numbers(3, 3, 2),))]
    found += [Case("PReLU", {"alpha_regularizer": "l2", "alpha_constraint": Of("constraints.NonNeg")}, x)]
    sets: list[dict[str, float]] = [{}, {"max_value": 1.0}, {"negative_slope": 0.2}, {"threshold": 0.5}]
    sets += [{"max_value": 1.5, "negative_slope": 0.1, "threshold": 0.2}]
    found += [Case("ReLU", each, x) for each in sets]
    found += [Case("Softmax", each, x) for each in ({}, {"axis": 1}, {"axis": [1, 2]})]
    found += [Case("Softmax", {"axis": -1, "dtype": "mixed_bfloat16"}, x, tolerance=BF16)]
    return found


def _square(library: ModuleType) -> Any:
    del library
    return lambda x: x * x


def _scaled(library: ModuleType) -> Any:
    del library
    return lambda x, factor: x * factor


def _mean(library: ModuleType) -> Any:
    mean = library.ops.mean if hasattr(library, "ops") else library.backend.mean
    return lambda x: mean(x, axis=1)


def _between() -> list[Case]:
    x = (numbers(3, 4),)
    return [
        Case("Identity", {}, x),
        Case("Lambda", {"function": By("lambda x: x * x", _square)}, x),
        Case("Lambda", {"function": By("lambda x, factor: x * factor", _scaled), "arguments": {"factor": 0.5}}, x),
        Case("Lambda", {"function": By("lambda x: mean(x, axis=1)", _mean), "output_shape": (4,)}, x),
        Case("Masking", {}, (numbers(3, 4, masked=0.0),), then=(Of("LSTM", {"units": 3}),)),
        Case(
            "Masking",
            {"mask_value": 0.5},
            (numbers(3, 4, masked=0.5),),
            then=(Of("GRU", {"units": 3, "return_sequences": True}), Of("GlobalAveragePooling1D")),
        ),
        Case("ActivityRegularization", {"l1": 0.01}, x),
        Case("ActivityRegularization", {"l1": 0.01, "l2": 0.02}, x),
    ]


def _from_jax(library: ModuleType) -> Any:
    del library

    def init(rng: Any, inputs: Any) -> Any:
        del rng
        return {"w": inputs[0] * 0 + 0.5}

    def call(params: Any, inputs: Any) -> Any:
        return inputs * params["w"]

    return {"call_fn": call, "init_fn": init}


def _foreign() -> list[Case]:
    call = By("call_fn(params, inputs)", lambda library: _from_jax(library)["call_fn"])
    init = By("init_fn(rng, inputs)", lambda library: _from_jax(library)["init_fn"])
    return [Case("JaxLayer", {"call_fn": call, "init_fn": init}, (numbers(4),))]


CASES = [
    *_dense(),
    *_einsum(),
    *_embedding(),
    *_activations(),
    *_between(),
    *_foreign(),
]
