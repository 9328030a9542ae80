"""Losses, gradients, metrics and totals are the same in every library, on a mesh, and Keras's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from runner import arrays
from tests import forks
from tests.task import cases
from tests.task.functions import CALLS
from tests.task.worker import of_case

ROOT = Path(__file__).parents[2]
Numbers = Callable[[str, str], cases.Arrays]  # of a library and a place
CASES = cases.make()
LIBRARIES = {"tensorflow": "tensorflow", "jax.numpy": "jax"}
# The mesh's numbers are those of its devices' halves, added up in another order.
MESH = "mesh "
PLACES = [("tensorflow", ""), pytest.param("tensorflow", MESH, marks=pytest.mark.campaign), ("jax.numpy", "")]
# Sums of float32, of up to 13 examples, in another order and form: a few units in the last place of the largest term.
CLOSE = {"rtol": 3e-6, "atol": 3e-6}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    folder = tmp_path_factory.mktemp("numbers")
    return cache(lambda library, place: _of_library(folder / f"{library} {place}.npz", library, place))


def _of_library(out: Path, library: str, place: str) -> cases.Arrays:
    environment = os.environ | {"KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "1", "PYTHONPATH": str(ROOT)}
    environment["DTENSOR_ENABLE_COMBINE_ALL_REDUCES_OPTIMIZATION"] = "0"  # as the engine sets it
    command = [sys.executable, "-m", "tests.task.worker", library, str(out), place.strip()]
    done = forks.run(command, library=LIBRARIES[library], cwd=ROOT, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


def _of_case(numbers: Numbers, name: str, library: str, place: str) -> cases.Arrays:
    prefix = f"{name}: "
    of_place = numbers(library, place)
    return {key.removeprefix(prefix): value for key, value in of_place.items() if key.startswith(prefix)}


@pytest.mark.slow
@pytest.mark.parametrize(("library", "place"), PLACES)
def test_losses_and_their_gradients_are_those_of_keras(numbers: Numbers, library: str, place: str) -> None:
    """Mean losses to float32's last places; padding, whose outputs are NaN, adds nothing to either."""
    for name, case in CASES.items():
        if library not in case.libraries:
            continue
        found = _of_case(numbers, name, library, place)
        keras = _of_case(numbers, name, library, "")
        np.testing.assert_allclose(found["sum"] / case.terms, keras["keras loss"], **CLOSE, err_msg=name)
        gradient = found["gradient"][: cases.REAL] / case.terms
        largest = np.abs(keras["keras gradient"]).max()
        np.testing.assert_allclose(
            gradient, keras["keras gradient"], rtol=3e-6, atol=3e-6 * largest, err_msg=f"{name}, gradient"
        )


@pytest.mark.slow
@pytest.mark.parametrize(("library", "place"), PLACES)
def test_every_library_computes_what_numpy_does(numbers: Numbers, library: str, place: str) -> None:
    """Totals as what is added up of them: sums about a mean are 0 but for rounding, and have no digits to compare."""
    ops = arrays.of(np)
    for name, case in CASES.items():
        if len(case.libraries) < len(LIBRARIES):
            # Its loss is a function of Keras 3, which NumPy does not have.
            continue
        found = _of_case(numbers, name, library, place)
        with np.errstate(invalid="ignore", over="ignore"):
            wanted = {key: np.asarray(value) for key, value in of_case(case, ops, case.outputs, case.batch).items()}
        assert {key: value.shape for key, value in found.items() if key in wanted} == {
            key: value.shape for key, value in wanted.items()
        }
        for key in wanted:
            if not key.startswith("total"):
                real = ... if key == "sum" else slice(None, cases.REAL)
                np.testing.assert_allclose(found[key][real], wanted[key][real], **CLOSE, err_msg=f"{name}, {key}")
        totals, theirs = (case.task.addends(_totals(of)) for of in (found, wanted))
        for key, value in theirs.items():
            np.testing.assert_allclose(totals[key], value, **CLOSE, err_msg=f"{name}, {key}")


def _totals(numbers: cases.Arrays) -> cases.Arrays:
    return {k.removeprefix("total "): v.astype(np.float64) for k, v in numbers.items() if k.startswith("total ")}


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_function_is_that_of_numpy(numbers: Numbers, library: str) -> None:
    ops = arrays.of(np)
    for name, call in CALLS.items():
        wanted, found = np.asarray(call(ops)), numbers(library, "")[f"function: {name}"]
        assert found.dtype == wanted.dtype or name == "shape", name
        np.testing.assert_allclose(found, wanted, **CLOSE, err_msg=name)


def test_every_function_of_the_namespace_is_called() -> None:
    called = {name.split()[0] for name in CALLS}
    assert called == set(arrays.FIELDS) - {"name", "keras_name"} | {"shape"}


def test_a_namespace_of_another_library_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown array module os; known modules: numpy, tensorflow, jax\.numpy"):
        arrays.of(os)
