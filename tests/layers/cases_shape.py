"""Merging, reshaping and pooling layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.layers.case import Case, Of, numbers
from tests.layers.cases_conv import BF16, SIZES


def _merging() -> list[Case]:
    two, three = (numbers(3, 4), numbers(3, 4)), (numbers(3, 4),) * 3
    found = []
    for layer in ("Add", "Average", "Maximum", "Minimum", "Multiply"):
        found += [Case(layer, {}, two), Case(layer, {}, three)]
        found += [Case(layer, {}, (numbers(3, 4), numbers(1, 4))), Case(layer, {}, (numbers(3, 4), numbers(4)))]
    found += [Case("Subtract", {}, two), Case("Subtract", {}, (numbers(3, 4), numbers(1, 4)))]
    found += [Case("Add", {"dtype": "mixed_bfloat16"}, two, tolerance=BF16)]
    found += [Case("Concatenate", {}, two), Case("Concatenate", {}, three), Case("Concatenate", {"axis": 1}, two)]
    found += [Case("Concatenate", {"axis": -2}, (numbers(3, 4), numbers(2, 4)))]
    found += [Case("Concatenate", {"axis": 3}, (numbers(2, 3, 4), numbers(2, 3, 1)))]
    found += [
        Case("Dot", {"axes": 1}, (numbers(4), numbers(4))),
        Case("Dot", {"axes": (1, 2)}, (numbers(3, 4), numbers(2, 3))),
        Case("Dot", {"axes": 2}, (numbers(3, 4), numbers(2, 4))),
        Case("Dot", {"axes": -1}, (numbers(3, 4), numbers(3, 4))),
        Case("Dot", {"axes": 1, "normalize": True}, (numbers(4), numbers(4))),
        Case("Dot", {"axes": (2, 1), "normalize": True}, (numbers(3, 4), numbers(4, 2))),
    ]
    return found


def _reshaping() -> list[Case]:
    first = {"data_format": "channels_first"}
    found = [
        Case("Flatten", {}, (numbers(3, 4),)),
        Case("Flatten", {}, (numbers(2, 3, 2, 2),)),
        Case("Flatten", {}, (numbers(),)),
        Case("Flatten", first, (numbers(2, 3, 4),)),
        Case("Permute", {"dims": (2, 1)}, (numbers(3, 4),)),
        Case("Permute", {"dims": (3, 1, 2)}, (numbers(2, 3, 4),)),
        Case("RepeatVector", {"n": 3}, (numbers(4),)),
        Case("Reshape", {"target_shape": (2, 6)}, (numbers(12),)),
        Case("Reshape", {"target_shape": (-1, 2, 2)}, (numbers(3, 4),)),
        Case("Reshape", {"target_shape": (12,)}, (numbers(3, 4),)),
        Case("Reshape", {"target_shape": (4, 3)}, (numbers(2, 6),)),
    ]
    for layer, key, one, two in (
        ("Cropping", "cropping", 1, (1, 2)),
        ("ZeroPadding", "padding", 2, (1, 2)),
    ):
        found += [Case(f"{layer}1D", {key: each}, (numbers(6, 3),)) for each in (one, two)]
        found += [Case(f"{layer}1D", {}, (numbers(6, 3),))]
        for rank, sizes in ((2, (5, 6)), (3, (5, 6, 5))):
            uneven = ((1, 0), (0, 2), (1, 1))[:rank]
            sets: list[dict[str, Any]] = [{key: one}, {key: two if rank == 2 else (1, 2, 1)}, {key: uneven}]
            found += [Case(f"{layer}{rank}D", each, (numbers(*sizes, 2),)) for each in [{}, *sets]]
            found += [Case(f"{layer}{rank}D", {key: one, **first}, (numbers(2, *sizes),))]
    found += [Case("ZeroPadding1D", {"padding": 1, **first}, (numbers(3, 6),))]
    found += [Case("UpSampling1D", each, (numbers(3, 2),)) for each in ({}, {"size": 3})]
    found += [
        Case("UpSampling2D", {"size": (2, 3)}, (numbers(3, 2, 2),)),
        Case("UpSampling2D", {}, (numbers(3, 2, 2),)),
    ]
    found += [Case("UpSampling2D", first, (numbers(2, 3, 2),))]
    found += [
        Case("UpSampling2D", {"size": 2, "interpolation": each}, (numbers(3, 4, 2),))
        for each in ("bilinear", "bicubic", "lanczos3", "lanczos5")
    ]
    sizes_3d: list[dict[str, Any]] = [{}, {"size": (1, 2, 3)}]
    found += [Case("UpSampling3D", each, (numbers(2, 3, 2, 2),)) for each in sizes_3d]
    found += [Case("UpSampling3D", first, (numbers(2, 2, 3, 2),))]
    return found


def _windows() -> list[Case]:
    found = []
    for rank in (1, 2, 3):
        sets: list[dict[str, Any]] = [
            {"pool_size": 2},
            {"pool_size": 3, "strides": 1},
            {"pool_size": 3, "strides": 2, "padding": "same"},
            {"pool_size": 2, "padding": "same"},
            {"pool_size": 2, "strides": 3},
            {"pool_size": 2, "data_format": "channels_first"},
        ]
        if rank > 1:
            sets += [{"pool_size": (3, 2, 1)[:rank], "strides": (1, 2, 2)[:rank]}]
            sets += [{"pool_size": (2, 3, 2)[:rank], "strides": (2, 1, 1)[:rank], "padding": "same"}]
        for layer in (f"AveragePooling{rank}D", f"MaxPooling{rank}D"):
            found += [Case(layer, each, (_image(rank, each),)) for each in sets]
            found += [Case(layer, {"pool_size": 2, "dtype": "mixed_bfloat16"}, (_image(rank, {}),), tolerance=BF16)]
    return found


def _image(rank: int, arguments: dict[str, Any]) -> Any:
    first = arguments.get("data_format") == "channels_first"
    return numbers(*((2, *SIZES[rank]) if first else (*SIZES[rank], 2)))


def _whole() -> list[Case]:
    found = []
    for rank in (1, 2, 3):
        sets: Sequence[dict[str, Any]] = ({}, {"keepdims": True}, {"data_format": "channels_first"})
        found += [Case(f"GlobalAveragePooling{rank}D", each, (_image(rank, each),)) for each in sets]
        for each in sets:  # XLA, told to compile fast, computes a product twice, and no maximum equals it: so a Dense
            image = _image(rank, each)
            before = (Of("Dense", {"units": image.shape[-1]}),)
            found += [Case(f"GlobalMaxPooling{rank}D", each, (image,), before=before)]
    masked = (Of("Masking", {"mask_value": 0.5}),)
    found += [Case("GlobalAveragePooling1D", {}, (numbers(5, 3, masked=0.5),), before=masked)]
    for rank in (1, 2, 3):
        size = (4, 3, 2)[:rank] if rank > 1 else 4
        adaptive: list[dict[str, Any]] = [{"output_size": 2}, {"output_size": size}]
        adaptive += [{"output_size": 2, "data_format": "channels_first"}]
        for layer in (f"AdaptiveAveragePooling{rank}D", f"AdaptiveMaxPooling{rank}D"):
            found += [Case(layer, each, (_image(rank, each),)) for each in adaptive]
    return found


CASES = [*_merging(), *_reshaping(), *_windows(), *_whole()]
