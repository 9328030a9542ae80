"""Every layer of keras.layers is in the table, computes what stock Keras computes, or is refused in a line."""

import re
from typing import Any

import pytest

from tests import forks
from tests.layers.table import NAMED, PARTS

PAGE = forks.ROOT / "docs" / "layers.md"
LAYERS = {layer for part in PARTS.values() for case in part for layer in case.layers}


def ask(question: str) -> Any:
    # Gradients of maxima over a whole dim are wrong in the code that compiles fastest.
    variables = {"XLA_FLAGS": forks.RIGHT_MAXIMA, "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax", "PJRT_NPROC": "16"}
    return forks.answer("-m", "tests.layers.worker", question, library="jax", timeout=1800, **variables)


@pytest.mark.nightly
@pytest.mark.parametrize("part", PARTS)
def test_layers_on_a_mesh_of_two_axes_compute_what_stock_keras_does_on_one_device(part: str) -> None:
    assert ask(part) == []


@pytest.mark.nightly
def test_every_class_of_the_library_is_called_or_named() -> None:
    assert set(ask("names")) == LAYERS | set(NAMED)
    assert not LAYERS & set(NAMED)


def test_the_page_lists_every_layer() -> None:
    assert LAYERS | set(NAMED) <= set(re.findall(r"\w+", PAGE.read_text()))
