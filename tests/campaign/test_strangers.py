"""A short campaign of strangers at the coordinator."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.campaign import strangers

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")]

KEPT = (strangers.huge, strangers.taken)  # what ended runs once
OTHERS = tuple(act for act in strangers.ACTS if act not in KEPT)


@pytest.mark.parametrize("act", KEPT, ids=lambda act: act.__name__)
def test_a_stranger_ends_no_run(tmp_path: Path, act: Callable[[int, random.Random], str]) -> None:
    case = strangers.tried(act, random.Random(0), tmp_path)
    assert case.held, case.note


@pytest.mark.nightly
@pytest.mark.parametrize("act", OTHERS, ids=lambda act: act.__name__)
def test_no_other_stranger_does(tmp_path: Path, act: Callable[[int, random.Random], str]) -> None:
    case = strangers.tried(act, random.Random(0), tmp_path)
    assert case.held, case.note
