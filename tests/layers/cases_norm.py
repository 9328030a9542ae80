"""Normalization and random regularization layers."""

from __future__ import annotations

from typing import Any

from tests.layers.case import Case, Of, Tensor, numbers
from tests.layers.cases_conv import BF16, F16, SMALL_NORM

Sets = list[dict[str, Any]]
_SCALED: Sets = [
    {"center": False},
    {"scale": False},
    {"center": False, "scale": False},
    {"epsilon": 0.1},
    {"gamma_initializer": "zeros", "beta_initializer": "ones"},
    {"gamma_regularizer": "l2", "beta_regularizer": "l1"},
    {"gamma_constraint": Of("constraints.NonNeg"), "beta_constraint": Of("constraints.NonNeg")},
    {"trainable": False},
]


def _by(layer: str, sets: Sets, *inputs: Tensor, **more: Any) -> list[Case]:
    return [Case(layer, each, inputs, **more) for each in sets]


def _batch() -> list[Case]:
    layer, image = "BatchNormalization", numbers(4, 3, 5)
    found = [Case(layer, {}, (numbers(*shape),)) for shape in ((5,), (3, 5), (4, 3, 5), (2, 3, 2, 5))]
    found += _by(layer, [*_SCALED, {"momentum": 0.5}, {"synchronized": True}], image)
    found += _by(layer, [{"axis": 1}, {"axis": 2}, {"axis": -1, "scale": False}], image)
    found += _by(layer, [{"renorm": True}], image)
    found += _by(layer, [{"renorm": True, "renorm_clipping": {"rmax": 1.1, "rmin": 0.9, "dmax": 0.1}}], image)
    found += [Case(layer, {}, (numbers(5, 3, masked=0.5),), before=(Of("Masking", {"mask_value": 0.5}),))]
    found += [Case(layer, {"dtype": dtype}, (image,), tolerance=BF16) for dtype in ("mixed_bfloat16",)]
    found += [Case(layer, {"dtype": "mixed_float16"}, (image,), tolerance=F16)]
    found += [
        Case(
            layer,
            {},
            (
                numbers(
                    5,
                ),
            ),
            call={"training": False},
        ),
        Case(layer, {}, (numbers(5),), again=2),
    ]
    return found


def _layer() -> list[Case]:
    layer, image = "LayerNormalization", numbers(4, 3, 5)
    found = [Case(layer, {}, (numbers(*shape),)) for shape in ((5,), (3, 5), (4, 3, 5), (2, 3, 2, 5))]
    found += _by(layer, [{"axis": 1}, {"axis": 2}, {"axis": [1, 2]}, {"axis": [2, 3]}, {"axis": [1, 2, 3]}], image)
    found += _by(layer, [{"axis": [1, 3]}, {"axis": -2, "epsilon": 1e-6}], image)
    found += _by(layer, _SCALED, image)
    found += [Case(layer, {"dtype": "mixed_bfloat16"}, (numbers(3, 5),), tolerance=BF16)]
    found += [Case(layer, {"dtype": "mixed_float16"}, (numbers(3, 5),), tolerance=F16)]
    return found


def _others() -> list[Case]:
    image = numbers(4, 3, 6)
    group: Sets = [{"groups": 2}, {"groups": 1}, {"groups": -1}, {"groups": 6}, {"groups": 3, "epsilon": 0.1}]
    group += [{"groups": 2, "axis": 1}, *({"groups": 2, **each} for each in _SCALED)]
    found = _by("GroupNormalization", group, image)
    found += [Case("GroupNormalization", {"groups": 2}, (numbers(*shape),)) for shape in ((6,), (3, 6), (2, 3, 2, 6))]
    found += [Case("GroupNormalization", {"groups": 2, "dtype": "mixed_bfloat16"}, (image,), tolerance=BF16)]
    unit: Sets = [{}, {"axis": 1}, {"axis": [1, 2]}]
    found += _by("UnitNormalization", unit, image)
    found += _by("RMSNormalization", [{}, {"axis": 1}, {"axis": [1, 2]}, {"epsilon": 0.1}], image)
    spectral: Sets = [
        {"layer": Of("Dense", {"units": 4})},
        {"layer": Of("Dense", {"units": 4}), "power_iterations": 3},
        {"layer": Of("Dense", {"units": 4, "kernel_constraint": SMALL_NORM})},
    ]
    found += _by("SpectralNormalization", spectral, numbers(5))
    conv = {"filters": 4, "kernel_size": 2}
    found += [Case("SpectralNormalization", {"layer": Of("Conv2D", conv)}, (numbers(4, 4, 3),))]
    found += [Case("SpectralNormalization", {"layer": Of("Conv1D", conv)}, (numbers(4, 3),))]
    return found


def _random() -> list[Case]:
    x = numbers(4, 5)
    found = _by("Dropout", [{"rate": 0.5}, {"rate": 0.3, "seed": 7}, {"rate": 0.0}], x)
    # Keras 3 wants the batch's dim told, tf_keras takes None for it.
    found += _by(
        "Dropout", [{"rate": 0.5, "noise_shape": (None, 1, 5)}, {"rate": 0.5, "noise_shape": (None, 4, 1)}], x
    )
    found += _by("Dropout", [{"rate": 0.5, "noise_shape": (1, 4, 5)}], x)
    found += [Case("Dropout", {"rate": 0.5}, (x,), again=2)]
    found += [Case("Dropout", {"rate": 0.5, "dtype": "mixed_bfloat16"}, (x,), tolerance=BF16)]
    found += [Case("Dropout", {"rate": 0.5}, (x,), call={"training": False})]
    found += [Case("Dropout", {"rate": 0.5}, (x,), call={"training": True})]
    found += _by("AlphaDropout", [{"rate": 0.3}, {"rate": 0.3, "noise_shape": (None, 1, 5)}], x)
    found += _by("AlphaDropout", [{"rate": 0.3, "seed": 5}], x)
    found += _by("GaussianDropout", [{"rate": 0.3}, {"rate": 0.3, "seed": 5}, {"rate": 0.0}], x)
    found += _by("GaussianNoise", [{"stddev": 0.3}, {"stddev": 0.3, "seed": 5}, {"stddev": 0.0}], x)
    for rank in (1, 2, 3):
        sizes = (4, 3, 2)[:rank]
        layer = f"SpatialDropout{rank}D"
        found += _by(layer, [{"rate": 0.5}, {"rate": 0.3, "seed": 5}], numbers(*sizes, 5))
        if rank > 1:
            found += _by(layer, [{"rate": 0.5, "data_format": "channels_first"}], numbers(5, *sizes))
    return found


CASES = [*_batch(), *_layer(), *_others(), *_random()]
