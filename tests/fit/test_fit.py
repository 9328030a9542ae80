"""`runner.fit` beside Keras's own `fit`: the same compiled model, data, and order of the examples."""

from pathlib import Path

import pytest

from tests import forks
from tests.nightly import nightly_except

CASES = (
    *("weighted", "outputs", "batch normalization of a PyDataset", "subclass", "masked", "flags", "fsdp", "verified"),
    *("masked, with a partial batch and weights of two dims", "resumed", "another", "class weights"),
)
# The largest difference was 1.2e-7: sums of float32 numbers in another order.
TOLERANCE = 2e-6


@pytest.mark.parametrize("case", nightly_except(["weighted"], CASES))
def test_weights_optimizer_and_logged_numbers_are_those_of_fit(case: str, tmp_path: Path) -> None:
    found = forks.answer("-m", "tests.fit.worker", case, folder=tmp_path, library=forks.JAX)
    assert "weights" in found
    assert {name: value for name, value in found.items() if not value <= TOLERANCE} == {}


def test_what_a_run_cannot_take_is_one_line(tmp_path: Path) -> None:
    lines = forks.answer("-m", "tests.fit.worker", "rejected", folder=tmp_path, library=forks.JAX)
    parts = [
        "model=sequential_1: is not compiled; call its compile before",
        "model=object: is no model of Keras 3 on JAX; set os.environ",
        "fit: its number of batches is unknown",
        "optimizer.use_ema=true: is an option of the run",
        "mesh=batch7: unknown option",
        "x=ndarray: has no targets; give arrays and y",
        "validation_split=1.0: must be from 0 to below 1",
        "dataset.batch_size=0: must be",
        "class_weight={1:2.0}: needs one output",
        "model=sequential: the builder raised ValueError: Input 0",
        "fit, split train: x has 40 examples and label has 30",
        "initial_epoch=2: unknown key",
    ]
    for line, part in zip(lines, parts, strict=True):
        assert line.startswith(part)
        assert "\n" not in line
