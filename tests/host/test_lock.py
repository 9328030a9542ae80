import subprocess
from pathlib import Path

import pytest

from runner.host.lock import HeldError, locked
from tests.data.conftest import python

HOLD = """
import sys, time
from pathlib import Path
from runner.host.lock import locked
with locked(Path(sys.argv[1]), lambda text: print(text, flush=True), 'mnist'):
    print('held', flush=True)
    time.sleep(float(sys.argv[2]))
    print('left', flush=True)
"""


def _started(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdout is not None
    text = process.stdout.readline().strip()
    assert line in text
    return text


def test_a_second_process_says_once_that_it_waits_and_then_gets_the_lock(tmp_path: Path) -> None:
    first = python(HOLD, str(tmp_path / "lock"), "1.5")
    _started(first, "held")
    second = python(HOLD, str(tmp_path / "lock"), "0")
    _started(second, "mnist: waiting for another process")
    assert first.poll() is None
    assert second.communicate(timeout=20)[0].splitlines() == ["held", "left"]
    assert first.communicate(timeout=20)[0].splitlines() == ["left"]


def test_what_may_not_wait_is_told_that_another_process_has_the_lock(tmp_path: Path) -> None:
    first = python(HOLD, str(tmp_path / "lock"), "600")
    _started(first, "held")
    with pytest.raises(HeldError), locked(tmp_path / "lock", wait=False):
        pytest.fail("two hold it")
    first.kill()
    first.wait(10)
    for _ in range(2):
        with locked(tmp_path / "lock", wait=False):
            pass


def test_what_is_no_lock_file_is_left_as_it_is(tmp_path: Path) -> None:
    thesis, lock = tmp_path / "thesis.txt", tmp_path / "lock"
    thesis.write_text("of the user")
    lock.symlink_to(thesis)
    with pytest.raises(OSError, match="lock"), locked(lock, wait=False):
        pytest.fail("it is no lock")
    assert thesis.read_text() == "of the user"
    # A file of the same name, such as `uv.lock` beside `uv`, is locked and keeps its content.
    with locked(thesis, wait=False):
        assert thesis.read_text() == "of the user"
