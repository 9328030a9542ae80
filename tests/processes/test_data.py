"""Each process reads the rows that its devices need, and no others; every example counts once."""

import json
from pathlib import Path

import pytest

from runner.layout import mesh
from tests.processes.running import differences, last, run, several

COUNTED = """
import json, os
import numpy as np

class Counted:
    def __init__(self, size=96, log=""):
        self.size, self.log = size, log

    def __len__(self):
        return self.size

    def __getitem__(self, row):
        with open(f"{self.log}-{os.getpid()}", "a") as file:
            file.write(f"{row}\\n")
        rng = np.random.default_rng(row)
        return {"image": rng.integers(0, 256, (8, 8, 1), np.uint8), "label": int(rng.integers(0, 10))}
"""


@pytest.mark.parametrize(
    ("axes", "axis", "count", "places"),
    [
        ({"batch": 4}, "batch", 2, [[0, 1], [2, 3]]),
        ({"batch": 2, "model": 4}, "batch", 4, [[0], [0], [1], [1]]),
        ({"model": 2, "batch": 2}, "batch", 2, [[0, 1], [0, 1]]),
        ({"model": 2, "batch": 4}, "batch", 4, [[0, 1], [2, 3], [0, 1], [2, 3]]),
    ],
)
def test_a_process_has_its_places_along_an_axis(
    axes: dict[str, int], axis: str, count: int, places: list[list[int]]
) -> None:
    assert [mesh.columns(axes, axis, process, count) for process in range(count)] == places


@pytest.mark.nightly
@pytest.mark.slow
def test_rows_are_read_in_proportion_to_what_a_process_needs(tmp_path: Path) -> None:
    count = 2
    more = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    (tmp_path / "counted.py").write_text(COUNTED)
    chosen = (
        *("dataset=custom", "dataset._target_=counted.Counted", f"+dataset.log={tmp_path}/rows", "dataset.test=null"),
        *("dataset.holdout=0", "dataset.batch_size=24", "engine=jax", "mesh=batch2", "trainer.epochs=2"),
        *("trainer.accumulate_steps=2", "task.classes=10", "tracking=none"),
    )
    run(tmp_path / "alone", *chosen, more=more)
    (alone,) = _read(tmp_path)
    run(tmp_path / "together", *chosen, *several(count), more=more)
    found = _read(tmp_path)
    assert differences(last(tmp_path / "alone"), last(tmp_path / "together")) == {}
    assert len(found) == count
    trained = 2 * 72  # rows of both epochs, without what the task or a digest asks of all
    for rows in found:
        assert len(rows) <= trained / count + (len(alone) - trained) + 1, json.dumps([len(rows), len(alone)])


def _read(folder: Path) -> list[list[int]]:
    """Returns the rows that each process has read since this was asked last."""
    files = sorted(folder.glob("rows-*"))
    found = [[int(row) for row in file.read_text().split()] for file in files]
    for file in files:
        file.unlink()
    return found
