"""Compiled programs are native code: they are kept in, and taken from, a folder that only this user can write to."""

import os
import stat
from pathlib import Path

import pytest

from runner.engine.jax import environment
from tests import forks
from tests.engine.jax_runs import FAST_CODE

SHORT = ["trainer.epochs=1", "trainer.limit_train_batches=4", "tracking=none"]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="access is not by bits there")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, which others can look into but not write to."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_folder_is_made_once_and_only_for_this_user(cache: Path) -> None:
    before = os.umask(0)
    try:
        assert environment.cache_folder() == environment.cache_folder() == str(cache / "runner" / "jax")
    finally:
        os.umask(before)
    for path in (cache / "runner", cache / "runner" / "jax"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("name", "how", "reason"),
    [
        ("runner", "link", "is a link"),
        ("runner/jax", "file", "is no folder"),
        ("runner", "group", "can be written by other users ("),
        ("runner/jax", "all", "can be written by other users ("),
    ],
)
def test_a_folder_that_others_may_have_written_to_is_not_used(
    cache: Path, capsys: pytest.CaptureFixture[str], name: str, how: str, reason: str
) -> None:
    environment.cache_folder()
    path = cache / name
    if how == "group":
        path.chmod(0o770)
    elif how == "all":
        path.chmod(0o1777)
    else:
        path.rename(cache / "moved")
        if how == "link":
            path.symlink_to(cache / "moved")
        else:
            path.write_text("")
    assert environment.cache_folder() is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {path} {reason}")
    if how in ("group", "all"):
        assert f"({'rm -r' if name == 'runner/jax' else 'chmod go-w'} {path})" in line
    assert line.endswith("so compiled programs are not cached; set engine.compilation_cache=false to silence this")


@pytest.mark.parametrize(("mode", "is_used"), [(0o755, True), (0o775, True), (0o777, False), (0o1777, True)])
def test_a_cache_in_a_folder_where_others_can_replace_it_is_not_used(cache: Path, *, mode: int, is_used: bool) -> None:
    cache.mkdir()
    cache.chmod(mode)
    assert (environment.cache_folder() is not None) == is_used


def test_a_folder_of_another_user_is_not_used(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.cache_folder()
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert environment.cache_folder() is None
    assert f"{cache / 'runner'} belongs to another user" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_run_keeps_its_programs_outside_of_the_outputs(tmp_path: Path, cache: Path) -> None:
    overrides = ["engine=jax", "dataset=digits", "model=convnet", "mesh=batch2", *SHORT]
    overrides.append(f"hydra.run.dir={tmp_path / 'outputs'}")
    # Fast code takes long enough to compile to be kept.
    forks.python("-m", "runner", *overrides, folder=tmp_path, library="jax", **FAST_CODE)
    assert not list((tmp_path / "outputs").rglob("*-cache"))
    assert list((cache / "runner" / "jax").glob("*-cache"))
