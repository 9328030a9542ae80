"""A run computes what `compile` and `fit` of stock Keras compute on one device, or differs for a reason on a page."""

from pathlib import Path

import pytest

from tests.parity.compare import MESHES, ROOT, compared, page, train
from tests.parity.rows import ROWS

CASES = [pytest.param(row.name, id=row.name, marks=[] if row.always else pytest.mark.nightly) for row in ROWS.values()]


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the rows that this session tests, which one process per side has trained."""
    made = tmp_path_factory.mktemp("parity")
    tested = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    train([ROWS[item.callspec.params["name"]] for item in tested], made)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_losses_metrics_and_weights_are_those_of_fit(name: str, folder: Path) -> None:
    row = ROWS[name]
    assert {mesh: compared(row, mesh, folder).problems(row) for mesh in MESHES} == {mesh: [] for mesh in MESHES}


def test_each_difference_that_is_meant_is_on_the_page_with_its_reason() -> None:
    text = (ROOT / "docs" / "coming_from.md").read_text()
    assert [line for line in page() if line not in text] == []
