"""The tables of verified models: one short status and note per row, and the whole line of each below the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.backbones_of_hub import page as hub
from tests.backbones_of_hub.case import Planned
from tests.backbones_of_hub.proof import Row
from tests.docs import verdicts
from tests.layers import page as layers
from tests.models_of_keras import page as models
from tests.models_of_keras.proof import Proof

STATUSES = {"verified", "inconclusive", "not supported", "planned"}
# Most words of a note.
LONGEST = 12


def rows_of(text: str) -> list[list[str]]:
    """Returns the cells of each row of a page's table, without the names of the columns."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return rows[1:]


@pytest.mark.parametrize(
    ("page", "column", "note_column"), [(hub, 1, 2), (models, 3, 6)], ids=["keras_hub_models", "models"]
)
def test_a_row_has_a_short_status_and_note_of_its_full_result(page: object, column: int, note_column: int) -> None:
    text = page.PAGE.read_text()
    full = verdicts.details(text)
    rows = rows_of(text)
    assert rows
    for cells in rows:
        key = cells[0] if page is hub else ", ".join(cells[:3])
        assert cells[column] in STATUSES, cells
        if cells[column] == "planned":
            assert key not in full
            continue
        note = cells[note_column]
        assert note == verdicts.note(full[key]), cells
        assert 0 < len(note.split()) <= LONGEST, cells
        assert note != verdicts.UNKNOWN, f"{cells}: name the reason in verdicts"


def test_the_committed_pages_are_as_their_programs_write_them() -> None:
    text = hub.PAGE.read_text()
    assert hub.rendered(hub.written(), verdicts.details(text)) == text
    text = models.PAGE.read_text()
    rows = {models._key(line): line for line in text.splitlines() if line.startswith("| ")}
    assert models.rendered(rows, verdicts.details(text)) == text
    assert layers.PAGE.read_text().startswith(layers._HEAD)


def test_a_new_result_replaces_the_row_and_the_full_result() -> None:
    text = models.PAGE.read_text()
    line = "error: model._target_=nets_jax.gru: layer gru is a stateful RNN, which hands its state on"
    changed = models.with_row(text, Proof("gru", "jax", "batch8", "refused", line, 0.0, 7.0, 1))
    assert "| gru | jax | batch8 | not supported | - | 7 | stateful RNN; set stateful=False |" in changed
    assert "- `gru, jax, batch8`: layer gru is a stateful RNN, which hands its state on\n" in changed
    assert len(changed.splitlines()) == len(text.splitlines())


def test_a_new_backbone_is_put_into_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = hub.PAGE.read_text()
    monkeypatch.setattr(hub, "PAGE", tmp_path / "page.md")
    hub.PAGE.write_text(text)
    plan = Planned("", "", 200, 150, 4, 3, {"all-reduce": 2}, {"refused": 1})
    hub.put(Row("AaBackbone", plan, "differs", "error: mismatch at /x/site-packages/keras/src/a.py"))
    changed = hub.PAGE.read_text()
    row = "| AaBackbone | mismatch | see the full results | 200 | 75%, 3 of 4 | 2 all-reduce | does not fit |"
    assert row in changed
    assert "- `AaBackbone`: mismatch at keras/src/a.py\n" in changed
    assert len(changed.splitlines()) == len(text.splitlines()) + 2


def test_a_note_says_what_is_detected_or_why_it_is_not_verified() -> None:
    verified = "verified: 2 steps match one device; 3 of 3 variables are sensitive (detects errors of 1.5% or more)"
    assert verdicts.note(verified) == "detects errors of 1.5% or more"
    inconclusive = f"in{verified}; not sensitive: conv/bias (rounding hides errors)"
    assert verdicts.note(inconclusive) == "not sensitive: conv/bias"
    assert verdicts.note("error: layer lstm is a stateful RNN, which") == "stateful RNN; set stateful=False"
    assert verdicts.note("error: something new") == verdicts.UNKNOWN
    assert verdicts.note("") == ""


def test_a_full_result_leaves_out_the_builder_and_its_config() -> None:
    line = "error: model._target_=nets.lstm: the builder raised; it was given model.units=3, model.config={'a': 1}"
    assert verdicts.plain(line) == "the builder raised"


def test_full_results_are_found_again_by_their_key() -> None:
    page = f"| a |\n\n{verdicts.DETAILS}\n\n- `lstm, jax, batch8`: verified: 2 steps\n- `gru`: x\n"
    assert verdicts.details(page) == {"lstm, jax, batch8": "verified: 2 steps", "gru": "x"}
    assert re.fullmatch(r"## .+", verdicts.DETAILS)
