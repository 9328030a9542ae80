"""A run computes what `compile` and `fit` of stock Keras compute on one device, or differs for a reason on a page."""

import csv
import json
from pathlib import Path

import pytest

from tests.nightly import nightly_except
from tests.parity.compare import MESHES, ROOT, compared, page, train
from tests.parity.rows import ROWS

# By day on the mesh alone: its batches are split, and padded, beside all that one device computes.
CASES = [(row.name, mesh) for row in ROWS.values() for mesh in MESHES]
ALWAYS = [(row.name, "batch8") for row in ROWS.values() if row.always]


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the rows that this session tests, which one process per side has trained."""
    made = tmp_path_factory.mktemp("parity")
    tested = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    names, meshes = ({item.callspec.params[key] for item in tested} for key in ("name", "mesh"))
    train([row for row in ROWS.values() if row.name in names], made, sorted(meshes))
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mesh"), nightly_except(ALWAYS, CASES))
def test_losses_metrics_and_weights_are_those_of_fit(name: str, mesh: str, folder: Path) -> None:
    row = ROWS[name]
    assert compared(row, mesh, folder).problems(row) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mesh"), nightly_except([("callbacks", "batch8")], [("callbacks", mesh) for mesh in MESHES])
)
def test_callbacks_get_the_events_and_logs_of_fit_and_write_the_same_table(name: str, mesh: str, folder: Path) -> None:
    found = {}
    for side in ("keras", mesh):
        header, *rows = csv.reader((folder / f"{name}.{side}.csv").read_text().splitlines())
        events = json.loads((folder / f"{name}.{side}.json").read_text())
        names = [header, *([*event[:-1], *event[-1]] for event in events)]
        values = [float(value) for row in [*rows, *(event[-1].values() for event in events)] for value in row]
        found[side] = names, values
    assert found[mesh][0] == found["keras"][0]
    assert found[mesh][1] == pytest.approx(found["keras"][1], rel=ROWS[name].tolerance)


def test_each_difference_that_is_meant_is_on_the_page_with_its_reason() -> None:
    text = (ROOT / "docs" / "coming_from.md").read_text()
    assert [line for line in page() if line not in text] == []
