"""The campaign of foreign files, shortened, and that it would see what it is for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from runner.tracking import private_copy, process, replaying, signed, unsent_folders
from tests.campaign import foreign

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="owners, links and boots as Linux has them")


def test_what_others_put_into_shared_folders_is_left_alone(tmp_path: Path) -> None:
    cases = list(foreign.run(8, 1, tmp_path))
    assert len(cases) == 8
    assert [case for case in cases if not case.held] == []


@pytest.mark.nightly
def test_every_case_holds(tmp_path: Path) -> None:
    cases = list(foreign.run(foreign.CASES, 0, tmp_path))
    assert len(cases) == foreign.CASES - (0 if foreign._IS_ROOT else len(foreign._NEEDS_ROOT))
    assert [case for case in cases if not case.held] == []


@pytest.mark.parametrize(
    ("name", "owner", "attribute", "broken"),
    [
        ("not signed", replaying, "_replay", None),
        ("signed with another key", signed.Chain, "check", lambda _, line: signed._split(line)[0]),
        ("a folder that all can write", unsent_folders, "_is_private", lambda *_: True),
        ("a link in the run's folder", private_copy, "_NO_LINKS", 0),
        ("a run of a clone of this machine", process.Machine, "is_earlier_boot_of", lambda *_: True),
    ],
)
def test_it_sees_a_start_that_takes_what_it_should_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, owner: object, attribute: str, broken: object
) -> None:
    if attribute == "_replay":
        real = replaying._replay
        broken = lambda path, uri, warn, *, signed_only: real(path, uri, warn, signed_only=False)  # noqa: E731, ARG005
    monkeypatch.setattr(owner, attribute, broken)
    if attribute == "_NO_LINKS":
        monkeypatch.setattr(private_copy, "_FILE_FLAGS", os.O_RDONLY)
    assert not foreign._try(name, tmp_path).held
