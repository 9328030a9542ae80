"""The campaign itself, shortened, and that it would see what it is for."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from runner.training.checkpoint import files, manifest, reading
from tests.campaign import corruption, damages

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links, FIFOs and alarms")


def test_no_damage_is_taken_for_a_checkpoint(tmp_path: Path) -> None:
    cases = list(corruption.run(corruption.CASES, 0, tmp_path))
    assert len(cases) == corruption.CASES
    assert [case for case in cases if not case.held] == []
    assert {case.note.split(":")[0] for case in cases} == {"refused", "read"}


def test_a_seed_tells_what_the_cases_are(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    first, again, other = (
        [case.name for case in corruption.run(3, seed, tmp_path / name)]
        for name, seed in (("a", 5), ("b", 5), ("c", 6))
    )
    assert first == again != other


def test_it_sees_a_reader_that_takes_what_it_should_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading.manifest, "check_tensors", lambda *_: None)
    monkeypatch.setattr(files, "digest", lambda _: "x")
    monkeypatch.setattr(manifest, "_digest", lambda _: "x")
    assert [case for case in corruption.run(22, 1, tmp_path) if not case.held]


def test_it_sees_a_reader_that_hangs_looks_elsewhere_or_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corruption._make(tmp_path)
    corruption._watch_opens()
    monkeypatch.setattr(corruption, "_SECONDS", 1)
    os.mkfifo(tmp_path / "fifo")
    with corruption._watched(tmp_path / "r") as seen:
        (tmp_path / "fifo").read_bytes()
    assert [line.split(" after")[0] for line in seen] == ["still at it", f"opened {tmp_path / 'fifo'}"]
    before = corruption._snapshot(tmp_path)
    (tmp_path / "r" / "step-000000008" / "checkpoint.json").unlink()
    assert corruption._snapshot(tmp_path) != before


def test_a_number_written_in_another_way_is_no_damage() -> None:
    assert damages._same(b'{"a": 1e-7}', b'{"a": 1E-7}', Path("x.json"))
    assert not damages._same(b'{"a": 1}', json.dumps({"a": 2}).encode(), Path("x.json"))
