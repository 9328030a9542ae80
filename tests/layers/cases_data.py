"""Preprocessing layers in a model: numbers, and images in Keras 3 and tf_keras."""

from __future__ import annotations

from typing import Any

from tests.layers.case import Case, Of, Tensor, counts, numbers, pixels

Sets = list[dict[str, Any]]
IMAGE = pixels(8, 9, 3)
UNIT = {"value_range": (0, 1)}
POOLED = (Of("GlobalAveragePooling2D"),)


def _by(layer: str, sets: Sets, *inputs: Tensor, **more: Any) -> list[Case]:
    return [Case(layer, each, inputs, **more) for each in sets]


def _numbers() -> list[Case]:
    words, x = counts(4, below=6), numbers(4)
    encoded: Sets = [{"num_tokens": 6}, {"num_tokens": 6, "output_mode": "count"}]
    found = _by("CategoryEncoding", encoded, words)
    found += _by("CategoryEncoding", [{"num_tokens": 6, "output_mode": "one_hot"}], counts(1, below=6))
    weights = numbers(4, keyword="count_weights")
    found += _by("CategoryEncoding", [{"num_tokens": 6, "output_mode": "count"}], words, weights)
    bins = {"bin_boundaries": [-1.0, 0.0, 0.7]}
    modes: Sets = [{**bins, "output_mode": mode} for mode in ("int", "multi_hot", "count")]
    found += _by("Discretization", modes, x)
    found += _by("Discretization", [{**bins, "output_mode": "one_hot"}], numbers(1))
    found += _by("Normalization", [{"mean": 0.5, "variance": 2.0}, {"mean": 0.5, "variance": 2.0, "invert": True}], x)
    found += _by("Normalization", [{"axis": -1, "mean": [0.1, 0.2, 0.3, 0.4], "variance": [1.0, 2.0, 3.0, 4.0]}], x)
    found += _by("Normalization", [{"axis": 1, "mean": [0.1, 0.2, 0.3], "variance": [1.0, 2.0, 3.0]}], numbers(3, 4))
    found += _by("Normalization", [{"axis": None, "mean": 0.1, "variance": 3.0}], numbers(3, 4))
    found += _by("Rescaling", [{"scale": 0.5}, {"scale": 2.0, "offset": -1.0}], x)
    found += _by("Hashing", [{"num_bins": 5}, {"num_bins": 5, "salt": 7}, {"num_bins": 5, "mask_value": 0}], words)
    found += _by("Hashing", [{"num_bins": 5, "output_mode": "multi_hot"}], words)
    crossed = counts(below=4), counts(below=5)
    found += _by("HashedCrossing", [{"num_bins": 5}, {"num_bins": 5, "output_mode": "one_hot"}], *crossed)
    looked: Sets = [
        {"vocabulary": [1, 3, 4]},
        {"vocabulary": [1, 3, 4], "num_oov_indices": 2},
        {"vocabulary": [1, 3, 4], "mask_token": 0},
        {"vocabulary": [1, 3, 4], "output_mode": "multi_hot"},
        {"vocabulary": [1, 3, 4], "output_mode": "count"},
    ]
    found += _by("IntegerLookup", looked, words)
    return found


_DYNAMIC: dict[str, Any] = {"vocabulary_size": 4, "initial_vocabulary": [1, 3, 4]}


def _sounds() -> list[Case]:
    wave = numbers(64)
    mel = {"fft_length": 16, "sequence_stride": 8, "num_mel_bins": 4, "sampling_rate": 100}
    sets: Sets = [mel, {**mel, "power_to_db": False}, {**mel, "window": None}, {**mel, "mag_exp": 1.0}]
    found = _by("MelSpectrogram", sets, wave)
    frames = {"frame_length": 16, "frame_step": 8}
    modes = ("log", "magnitude", "psd", "real", "imag", "angle", "stft")
    spectra: Sets = [{**frames, "mode": mode} for mode in modes]
    spectra += [{**frames, "padding": "same"}, {**frames, "fft_length": 32}, {**frames, "expand_dims": True}]
    spectra += [{**frames, "window": "hamming"}, {**frames, "scaling": "spectrum"}]
    return [*found, *_by("STFTSpectrogram", spectra, wave)]


def _sizes() -> list[Case]:
    found = _by("CenterCrop", [{"height": 4, "width": 5}, {"height": 12, "width": 5}], IMAGE)
    size = {"height": 5, "width": 4}
    kinds = ("bilinear", "nearest", "bicubic", "lanczos3", "lanczos5")
    sets: Sets = [{**size, "interpolation": kind} for kind in kinds]
    found += _by("Resizing", [*sets, {"height": 12, "width": 11}, {**size, "crop_to_aspect_ratio": True}], IMAGE)
    found += _by("Resizing", [{**size, "antialias": True}, {**size, "pad_to_aspect_ratio": True}], IMAGE)
    found += _by("RandomCrop", [{"height": 4, "width": 5}, {"height": 4, "width": 5, "seed": 5}], IMAGE)
    return found


def _moved() -> list[Case]:
    found = _by("RandomFlip", [{}, {"mode": "horizontal"}, {"mode": "vertical", "seed": 5}], IMAGE)
    found += _by("RandomRotation", [{"factor": 0.2}, {"factor": (0.1, 0.2), "seed": 5}], IMAGE)
    moved: Sets = [{"fill_mode": mode} for mode in ("constant", "wrap", "nearest")]
    moved += [{"interpolation": "nearest"}, {"fill_mode": "constant", "fill_value": 0.5}]
    found += _by("RandomRotation", [{"factor": 0.2, **each} for each in moved], IMAGE)
    shift = {"height_factor": 0.2, "width_factor": 0.3}
    found += _by("RandomTranslation", [shift, {**shift, "seed": 5}, *({**shift, **each} for each in moved)], IMAGE)
    zoomed: Sets = [{"height_factor": 0.2}, shift, {"height_factor": (-0.3, -0.1), "seed": 5}]
    found += _by("RandomZoom", [*zoomed, *({"height_factor": 0.2, **each} for each in moved)], IMAGE)
    found += _by("RandomShear", [{"x_factor": 0.2}, {"x_factor": 0.2, "y_factor": 0.3, "seed": 5}], IMAGE)
    found += _by("RandomPerspective", [{}, {"factor": 0.5, "scale": 0.3, "seed": 5}], IMAGE)
    found += _by("RandomElasticTransform", [UNIT, {**UNIT, "factor": 0.5, "seed": 5}], IMAGE)
    found += _by("RandomErasing", [UNIT, {**UNIT, "fill_value": 0.5, "seed": 5}], IMAGE)
    found += _by("CutMix", [{}, {"factor": 0.5, "seed": 5}], IMAGE)
    found += _by("MixUp", [{}, {"alpha": 0.5, "seed": 5}], IMAGE)
    return found


def _colored() -> list[Case]:
    part = {"factor": 0.3, **UNIT}
    found = _by("RandomBrightness", [part, {**part, "seed": 5}], IMAGE)
    found += _by("RandomBrightness", [{"factor": 0.3}], pixels(4, 5, 3, most=255.0))
    found += _by("RandomContrast", [{"factor": 0.3}, {"factor": (0.1, 0.2), "seed": 5}], IMAGE)
    found += _by("RandomContrast", [part], IMAGE)
    for layer in ("ColorDegeneration", "Hue", "Saturation", "Sharpness", "Posterization"):
        own = {**UNIT, "factor": 4 if layer == "Posterization" else 0.3}
        found += _by(f"Random{layer}", [own, {**own, "seed": 5}], IMAGE)
    jitter = {"brightness_factor": 0.2, "contrast_factor": 0.2, "saturation_factor": 0.3, "hue_factor": 0.1}
    found += _by("RandomColorJitter", [{**UNIT, **jitter}, {**UNIT, "brightness_factor": 0.2}], IMAGE)
    found += _by("RandomGaussianBlur", [UNIT, {**UNIT, "kernel_size": (3, 5), "sigma": 0.5}], IMAGE)
    found += _by("RandomGrayscale", [{}, {"factor": 1.0, "seed": 5}], IMAGE)
    found += _by("RandomInvert", [UNIT, {**UNIT, "factor": 0.5, "seed": 5}], IMAGE)
    found += _by("AugMix", [UNIT, {**UNIT, "num_chains": 2, "chain_depth": 1, "seed": 5}], IMAGE)
    found += _by("RandAugment", [UNIT, {**UNIT, "num_ops": 1, "seed": 5}], IMAGE)
    found += _by("AutoContrast", [UNIT], IMAGE)
    found += _by("AutoContrast", [{}], pixels(4, 5, 3, most=255.0))
    found += _by("Equalization", [UNIT, {**UNIT, "bins": 16}], IMAGE)
    lit = {**UNIT, "tile_grid_size": (2, 2)}
    found += _by("ContrastLimitedAdaptiveHistogramEqualization", [lit], pixels(8, 8, 3))
    found += _by("Solarization", [{**UNIT, "threshold_factor": 0.5}], IMAGE)
    found += _by("Solarization", [{**UNIT, "addition_factor": 0.2, "threshold_factor": 0.3}], IMAGE)
    steps = [Of("Rescaling", {"scale": 0.5}), Of("RandomFlip", {"mode": "horizontal"})]
    found += _by("Pipeline", [{"layers": steps}, {"layers": steps[:1]}], IMAGE)
    return found


CASES = [*_numbers(), *_sounds(), *_sizes(), *_moved(), *_colored()]
