"""The table of every layer: its cases, and what of `keras.layers` has none and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tests.layers import cases_attention, cases_conv, cases_core, cases_data, cases_norm, cases_rnn, cases_shape
from tests.layers.case import Case

# Order of the page.
PARTS: Mapping[str, tuple[Case, ...]] = {
    "Dense, embedding, activations": tuple(cases_core.CASES),
    "Convolution": tuple(cases_conv.CASES),
    "Merging, reshaping, pooling": tuple(cases_shape.CASES),
    "Normalization and regularization": tuple(cases_norm.CASES),
    "Recurrent": tuple(cases_rnn.CASES),
    "Attention": tuple(cases_attention.CASES),
    "Preprocessing": tuple(cases_data.CASES),
}

# Classes of `keras.layers` that no case holds: what a user can't call alone, and what takes no arrays of numbers.
NAMED: Mapping[str, str] = {
    "Layer": "the base of all layers, see your own layers in the models of docs and README",
    "InputLayer": "what `keras.Input` makes: in every case",
    "Wrapper": "the base of wrappers, without arithmetic",
    "StringLookup": "takes words: a dataset's arrays hold numbers, and words are numbered as they are read",
    "TextVectorization": "takes words: a dataset's arrays hold numbers, and words are numbered as they are read",
    "FlaxLayer": "wraps a module of Flax, which is no dependency",
    "TorchModuleWrapper": "wraps a module of PyTorch, which JAX can't compute",
    "TFSMLayer": "wraps a SavedModel of TensorFlow, which JAX can't compute",
    "MaxNumBoundingBoxes": "pads lists of bounding boxes, and passes images on as they are",
}

# Between them, the arithmetic of most layers, in seconds; the rest run in `python -m tests.layers`.
SAMPLES = (
    "Dense: units=4 on [5]",
    'Conv2D: filters=4, kernel_size=3, strides=2, padding="same" on [7, 6, 3]',
    "LayerNormalization: axis=1 on [4, 3, 5]",
)


# A layer's first cases are run on every mesh, all of them on this one, whose axes are two.
ALL_CASES, _ON_EVERY_MESH = "batch4_model2", 2


def on_mesh(mesh: str) -> list[Case]:
    """Returns the cases that are run on a mesh, in the page's order."""
    if mesh == ALL_CASES:
        return cases()
    seen: Counter[str] = Counter()
    found = []
    for case in cases():
        seen[case.layer] += 1
        found += [case] if seen[case.layer] <= _ON_EVERY_MESH else []
    return found


def cases() -> list[Case]:
    """Returns the cases, in the page's order."""
    return [case for part in PARTS.values() for case in part]


def by_name() -> dict[str, Case]:
    """Returns name -> case.

    Raises:
      ValueError: two cases are one.
    """
    found = cases()
    twice = [name for name, count in Counter(case.name for case in found).items() if count > 1]
    if twice:
        raise ValueError(f"cases are there twice: {', '.join(twice[:5])}")
    return {case.name: case for case in found}
