"""Children run so many at a time, in a limit of time, and never outlive an error of the one that waits for them."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.errors import Interrupted
from runner.host import children


def start(code: str) -> children.Child:
    return subprocess.Popen([sys.executable, "-c", code])


def test_a_child_that_takes_too_long_is_killed_and_has_no_code() -> None:
    codes: dict[str, int | None] = {}
    begun = time.monotonic()
    slow = functools.partial(start, "import time; time.sleep(60)")
    children.run_all({"slow": slow, "quick": functools.partial(start, "")}, codes.__setitem__, longest_s=1.0)
    assert codes == {"slow": None, "quick": 0}
    assert time.monotonic() - begun < 30


def test_an_interrupt_ends_the_children_at_once(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    slow = f"import os, pathlib, time; pathlib.Path({str(file)!r}).write_text(str(os.getpid())); time.sleep(60)"
    quick = (
        f"import pathlib, time; file = pathlib.Path({str(file)!r})\n"
        "while not file.exists() or not file.read_text(): time.sleep(0.01)"
    )

    def ended(name: str, code: int | None) -> None:
        assert (name, code) == ("quick", 0)
        # As a signal's handler does in this thread.
        raise Interrupted(15)

    starts = {"slow": functools.partial(start, slow), "quick": functools.partial(start, quick)}
    with pytest.raises(Interrupted):
        children.run_all(starts, ended, concurrency=2)
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)
