"""A disk that can't be written makes a run's config invalid before it begins, and is a warning later."""

import logging
from pathlib import Path

import pytest

from runner.cli.messages import one_line
from runner.errors import ConfigError
from runner.host import outputs
from runner.host.outputs import LogFile
from tests import forks

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")


def test_a_folder_that_can_not_be_written_refuses_the_run() -> None:
    refused = r"^hydra.run.dir=/x: .*No space left.*hydra.run.dir=<another"
    with pytest.raises(ConfigError, match=refused), outputs.required(Path("/x")):
        FULL.write_text("x")


def test_hydras_own_failure_to_make_the_folder_is_refused_alike(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as error:  # noqa: PT011 - which one differs between systems
        (tmp_path / "file" / "run").mkdir(parents=True)
    assert one_line(error.value, []).startswith(f"hydra.run.dir={tmp_path}/file/run: ")
    wrapped = ValueError("Unable to configure handler 'file'")
    wrapped.__cause__ = PermissionError(13, "Permission denied", "/y/runner.log")
    assert one_line(wrapped, []).startswith("hydra.run.dir=/y/runner.log: ")
    assert one_line(ValueError("something else"), []) == "something else"


def test_a_full_disk_under_the_log_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runner.log").symlink_to(FULL)
    handler = LogFile(tmp_path / "runner.log")
    for number in range(50):
        handler.handle(logging.LogRecord("a", logging.INFO, "p", 1, "record %d", (number,), None))
    handler.close()
    warning = f"warning: could not write {tmp_path / 'runner.log'} (No space left on device); continuing without a log"
    assert capsys.readouterr().err.splitlines() == [warning]


def test_a_warning_is_on_the_terminal_and_in_the_log_while_native_output_is_in_the_log(tmp_path: Path) -> None:
    code = (
        "import os\nfrom pathlib import Path\nfrom runner.host import outputs\n"
        "with outputs.quiet_native_log(Path('runner.log')):\n"
        "    os.write(2, b'native words\\n')\n    outputs.warn('the store is slow')\noutputs.warn('it is gone')"
    )
    done = forks.python("-c", code, folder=tmp_path)
    assert done.stderr == "warning: the store is slow\nwarning: it is gone\n"
    assert (tmp_path / "runner.log").read_text() == "native words\nwarning: the store is slow\n"
