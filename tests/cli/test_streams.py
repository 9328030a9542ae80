"""Standard streams that are closed, readers that leave and a folder that is gone: no command prints a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the shell is POSIX's")


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a line with `$P` as the interpreter."""
    environment = {key: value for key, value in os.environ.items() if key != "HYDRA_FULL_ERROR"}
    environment |= {"PYTHONPATH": str(ROOT), "P": sys.executable, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/m.db"}
    return subprocess.run(
        ["/bin/sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_stream_changes_no_exit_code(closed: str, tmp_path: Path) -> None:
    done = shell(f"exec $P -m runner --bad {closed}", tmp_path)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 2, done.stdout + done.stderr


def test_a_file_that_is_opened_later_does_not_take_a_closed_streams_place(tmp_path: Path) -> None:
    code = (
        "import os, sys; sys.argv = ['x']; from runner.cli import entry\n"
        "def body():\n"
        "    handle = os.open('victim', os.O_WRONLY | os.O_CREAT)\n"
        "    print('to nobody'); print('to nobody', file=sys.stderr); os.write(1, b'native'); os.write(2, b'native')\n"
        "    return 0 if handle > 2 else 9\n"
        "entry.call('__main__', 'body')"
    )
    (tmp_path / "code.py").write_text(code)
    assert shell("exec $P code.py <&- >&- 2>&-", tmp_path).returncode == 0
    assert (tmp_path / "victim").read_text() == ""


def test_a_reader_that_leaves_ends_a_command_quietly(tmp_path: Path) -> None:
    done = shell("$P -m runner.runs --help | head -c 1", tmp_path)
    assert len(done.stdout) == 1
    assert not done.stderr


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    done = shell("mkdir gone && cd gone && rmdir ../gone && exec $P -m runner", tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "error: the current directory can't be used (No such file or directory); change to one that is there with cd\n"
    )
