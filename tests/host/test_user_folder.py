"""The folder for locks that a user's processes share: another user of the machine can't get in the way."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from runner.host.folders import user_folder

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="users of a POSIX system")
NOBODY, OTHER = 65534, 54321  # two users without a right of their own

OPEN_AS = """
import os, sys
from pathlib import Path
from runner.host.lock import locked
from runner.host.folders import user_folder
os.umask(0o077)
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
folder = user_folder()
print(folder)
with locked((folder or Path(sys.argv[2])) / 'store.lock'):
    print('locked')
"""


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of all users, as /tmp."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_what_another_put_in_its_place_is_not_used(shared: Path, tmp_path: Path) -> None:
    place = shared / f"runner-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir()
    place.symlink_to(tmp_path / "elsewhere")
    assert user_folder() is None
    place.unlink()
    place.symlink_to(tmp_path / "nowhere")
    assert user_folder() is None
    place.unlink()
    place.write_text("")
    assert user_folder() is None
    place.unlink()
    place.mkdir()
    place.chmod(0o777)
    assert user_folder() is None
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs the right to become another user")
def test_a_second_user_gets_a_folder_and_a_lock_of_its_own(shared: Path) -> None:
    for parent in (shared, *shared.parents):
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    for user in (NOBODY, OTHER):
        done = subprocess.run(
            [sys.executable, "-c", OPEN_AS, str(user), str(shared)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(shared)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.splitlines() == [str(shared / f"runner-{user}"), "locked"], done.stderr
        assert (shared / f"runner-{user}").stat().st_uid == user
