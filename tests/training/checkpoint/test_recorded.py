"""A recorded command line sets keys of a run and nothing else, unless it is the user's own."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.checkpoint import arguments, recorded, runs, storage
from runner.errors import ConfigError
from tests import forks
from tests.refusals import without_libraries
from tests.training.checkpoint.test_storage import content, register

USUAL = [
    "experiment=core_tutorial",
    "mesh=batch8",
    "mesh=single,batch2",
    "++mesh.axes.batch=4",
    "~mesh.axes",
    "layout=null",
    "+layout.inputs.image=[batch,null,null,null]",
    "model.hidden=[64,64]",
    "+optimizer.epsilon_1=1e-16",
    "dataset.train='train[:5000]'",
    "+tracking.tags.note='a, b = c'",
    "trainer.checkpoint.best=eval/loss",
    "dataset.tokenizer=bytes",
    "dataset.path=null",
    "dataset.parts=[]",
]
CODE = "joblib.load"
# No key of a run, no name of an option, import paths and places.
EVIL = [
    f"+hydra.callbacks.x={{_target_: {CODE}, filename: x}}",
    "hydra.run.dir=/tmp/elsewhere",
    "hydra.searchpath=[file:///tmp]",
    "--config-dir=/tmp",
    "hydra/launcher=basic",
    "hydra={}",
    "~hydra.callbacks",
    "model@hydra.callbacks.x=evil",
    "mesh=../../etc/passwd",
    "mesh=batch2,../x",
    "model=[../x]",
    "experiment/x=y",
    "+nosuch=5",
    "resume=/tmp/other",
    "run=latest",
    "-m",
    "--experimental-rerun=x.pickle",
    "trainer.epochs",
    "trainer.epochs=5\nhydra.run.dir=x",
    "",
    f"dataset.features={'[' * 1200}{{}}{']' * 1200}",
    "model._target_=evil.build",
    "+model={_target_: evil.build}",
    "model._target_=runner.cli.app.run_command",
    "model._target_=${oc.env:HOME}",
    "tracking.uri=http://evil",
    "++tracking={uri: 'http://evil'}",
    "dataset.data_dir=/tmp/evil",
    "dataset.path=/tmp/evil",
    f"+dataset._target_={CODE}",
    f"++dataset={{_target_: {CODE}}}",
    "dataset.augment=[{name: flip}, {_target_: evil.step}]",
    "optimizer._target_=evil.optimizer",
    "task.minimize=[evil.metric]",
    "task.outputs={age: {name: custom, _target_: evil.loss}}",
    "+task.outputs.age._target_=evil.loss",
    "dataset.parts=[{name: arrays, path: /tmp/evil}]",
    "++dataset.parts.1.data_dir=/tmp/evil",
    "++dataset.parts.1_0._target_=evil.load",
    "dataset.tokenizer=/tmp/evil.json",
    "model.preset=hf://evil/model",
    "export.folder=/tmp/evil",
    "+tracking.tags.x=${oc.env:HOME}",
    "+model.x=[{a: '${oc.create:x}'}]",
    "+tracking.tags.x='\\x24{oc.env:HOME}'",
]


def checked(overrides: list[str], *, own: bool = False) -> list[str]:
    return recorded.checked("run=/shared/run", "" if own else "a stranger wrote it", overrides)


def test_plain_keys_are_accepted_from_any_record() -> None:
    assert checked(USUAL) == USUAL


@pytest.mark.parametrize("override", EVIL)
def test_code_and_places_are_accepted_from_own_records_only(override: str) -> None:
    assert checked([override], own=True) == [override]
    with pytest.raises(ConfigError, match="a stranger wrote it") as error:
        checked([*USUAL, override])
    assert str(error.value).startswith(f"run=/shared/run: its recorded {override[:120]!r}"[:150])
    assert len(str(error.value).splitlines()) == 1
    assert "${" not in str(error.value).partition("if you trust it")[2]


def test_the_checkpoint_folder_of_a_foreign_record_is_ignored() -> None:
    override = "trainer.checkpoint.folder=/tmp/other"
    assert checked([override, "mesh=single"]) == ["mesh=single"]
    assert checked([override], own=True) == [override]


@given(st.sampled_from(["", "+", "++", "~"]), st.sampled_from(["hydra.", "hydra/", "hydra@", "x@hydra."]), st.text())
def test_hydra_overrides_are_never_accepted(prefix: str, key: str, rest: str) -> None:
    with pytest.raises(ConfigError):
        checked([f"{prefix}{key}{rest}"])


# Whose a record is.

BUILDER = "model._target_=my_models.build"
OTHER = 54321
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs the right to give files to another user")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The user's checkpoints, with a run of a builder of the user's, written under a wide umask."""
    before = os.umask(0)
    try:
        _saved(tmp_path / "own", "aaaa", [BUILDER])
    finally:
        os.umask(before)
    return tmp_path / "own"


def _saved(folder: Path, name: str, overrides: list[str]) -> Path:
    saved = register(folder, name, tracked=False, overrides=overrides)
    storage.write(saved.folder, content(5))
    assert isinstance(saved.folder, Path)
    return saved.folder


def expand(own: Path, *typed: str) -> list[str]:
    return arguments.expand([f"trainer.checkpoint.folder={own}", *typed])


def _edit(folder: Path, **values: Any) -> None:
    """Writes other values, whose digest is right."""
    record = json.loads((folder / "run.json").read_text()) | values
    runs.write_record(folder, {key: value for key, value in record.items() if key != "sha256"})


def test_a_typed_config_folder_wins_over_the_recorded_one(own: Path) -> None:
    _saved(own, "cccc", ["--config-dir=mine", "--config-name=other", "model=mine"])
    assert expand(own, "run=cccc")[:3] == ["--config-dir=mine", "--config-name=other", "model=mine"]
    found = expand(own, "run=cccc", "--config-dir", "yours")
    assert found[:2] == ["--config-name=other", "model=mine"]
    assert found[-3:-1] == ["--config-dir", "yours"]


def test_the_builder_of_an_own_run_is_accepted(own: Path) -> None:
    assert expand(own, "resume=latest")[0] == BUILDER
    assert expand(own, f"run={own / 'aaaa'}")[0] == BUILDER


# What others may have written: a path, its mode, or None for a link to it, and the reason that is shown.
NOT_OWN = [
    ("own/aaaa", None, "aaaa is a link"),
    ("own/aaaa", 0o775, "aaaa can be written by other users"),
    ("own/aaaa", 0o757, "aaaa can be written by other users"),
    ("own/aaaa/run.json", 0o664, "run.json belongs to another user, or can be written by others"),
]


@pytest.mark.parametrize(("name", "mode", "reason"), NOT_OWN)
def test_no_code_is_taken_from_what_others_may_have_written(
    own: Path, tmp_path: Path, name: str, mode: int | None, reason: str
) -> None:
    path = tmp_path / name
    if mode is None:
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
    else:
        path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"could run code .* \(\S*{reason}.*type model\._target_="):
        expand(own, "run=aaaa")
    found = expand(own, "run=aaaa", BUILDER)
    assert found.count(BUILDER) == 1
    assert expand(own, "run=aaaa", "model=mlp")[0] != BUILDER


@needs_root
@pytest.mark.parametrize("planted", ["own/aaaa", "own/aaaa/run.json"])
def test_no_code_is_taken_from_what_a_second_user_planted(own: Path, tmp_path: Path, planted: str) -> None:
    os.chown(tmp_path / planted, OTHER, OTHER)
    with pytest.raises(ConfigError, match=r"could run code .* another user"):
        expand(own, "run=aaaa")


def test_a_run_id_that_is_a_path_is_rejected(own: Path) -> None:
    _edit(own / "aaaa", run="../../elsewhere")
    with pytest.raises(ConfigError, match="run must be a name"):
        expand(own, f"run={own / 'aaaa'}")


def test_a_command_rejects_a_foreign_record_before_it_imports_or_opens_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _saved(tmp_path / "foreign", "bbbb", ["model._target_=evil.run"])
    (folder / "step-000000005" / "checkpoint.json").write_text("not to be read")
    folder.chmod(0o777)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef run(**given): ...\n")
    monkeypatch.setenv(*forks.REAL)
    words = ("-m", "runner", f"resume={folder}", f"hydra.run.dir={tmp_path / 'out'}")
    done = forks.python(*words, folder=tmp_path, code=2, PYTHONPATH=without_libraries(tmp_path))
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: resume={folder}: its recorded 'model._target_=evil.run' could run")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()
