"""A recorded command line sets keys of a run and nothing else, whoever wrote it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from runner.cli.messages import key_paths
from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.host import folders
from runner.training.checkpoint import arguments, recorded, runs, storage
from runner.training.checkpoint.recorded import Record, _is_known
from tests.training.checkpoint.test_storage import content

ROOT = Path(__file__).parents[3]

USUAL = [
    "experiment=core_tutorial",
    "mesh=batch8",
    "++mesh.axes.batch=4",
    "~mesh.axes",
    "+mesh.axes={batch: 2, model: 4}",
    "layout=null",
    "layout.rules=[{match: 'd1/kernel', spec: [null, model], optional: true}]",
    "+layout.inputs.image=[batch,null,null,null]",
    "model._target_=runner.model.mlp.sequential",
    "model.hidden=[64,64]",
    "+model.more={a: {b: [1, 2]}}",
    "optimizer=sgd",
    "optimizer.schedule.boundaries=[5,10]",
    "optimizer.class_name=Adafactor",
    "+optimizer.epsilon_1=1e-16",
    "dataset.train='train[:5000]'",
    "dataset.image_size=[8,8]",
    "trainer.checkpoint.every_minutes=null",
    "+tracking.tags.note='a, b = c'",
    "tracking.run_name=x",
    "plan.gflops=100",
    "sweep.metric=eval/loss",
    "task=regression",
    "task.target=[price]",
    "task.loss=huber",
    "dataset.augment=[{name: random_crop, padding: 2}, {name: flip}]",
    "dataset.holdout=0.1",
    "dataset.tokenizer=bpe",
    "dataset.path=null",
    "evaluate.split='train[:10%]'",
]
CODE = "joblib.load"
CONFIGS = ["hydra.searchpath=[file:///tmp]", "--config-dir=/tmp", "--config-dir", "--config-name=mine"]
EVIL = [
    f"+hydra.callbacks.x={{_target_: {CODE}, filename: x}}",
    f"++hydra.callbacks.sweep._target_={CODE}",
    "hydra.run.dir=/tmp/elsewhere",
    "hydra/launcher=basic",
    "+hydra/callbacks=x",
    "hydra={}",
    "~hydra.callbacks",
    "model@hydra.callbacks.x=evil",
    "+tracking@hydra.callbacks.x=mlflow",
    f"+model.x={{_target_: {CODE}}}",
    f"+model.x=[[{{a: {{_target_: {CODE}}}}}]]",
    f"+model.x._target_={CODE}",
    f"+dataset.x._target_={CODE}",
    f"+optimizer.x._target_={CODE}",
    f"task.outputs={{age: {{x: {{_target_: {CODE}}}}}}}",
    f"+task.outputs._target_={CODE}",
    f"task.outputs={{age: {{_target_: {{_target_: {CODE}}}}}}}",
    f"dataset.parts=[{{x: {{_target_: {CODE}}}}}]",
    f"dataset.parts.0.x._target_={CODE}",
    f"dataset.augment.0._target_={CODE}",
    f"++task={{x: {{_target_: {CODE}}}}}",
    f"+tracking.tags={{_target_: {CODE}}}",
    "mesh=../../etc/passwd",
    "mesh=/etc/passwd",
    "model=[../x]",
    "experiment/x=y",
    "experiment.x=y",
    "trainer.epoch=5",
    "+nosuch=5",
    "trainer.epochs.x=5",
    "resume=/tmp/other",
    "branch=/tmp/other",
    "run=latest",
    "-m",
    "--experimental-rerun=x.pickle",
    "trainer.epochs",
    "trainer.epochs=5\nhydra.run.dir=x",
    "",
]
ELSEWHERE = [
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
    "dataset.builder=evil.Builder",
    "dataset.augment=[{name: flip}, {_target_: evil.step}]",
    "optimizer._target_=evil.optimizer",
    "optimizer.schedule._target_=evil.rate",
    "task._target_=evil.loss",
    "+task={_target_: evil.loss}",
    "task.minimize=[evil.metric]",
    "task.outputs={age: {name: custom, _target_: evil.loss}}",
    "+task.outputs.age._target_=evil.loss",
    "+task={outputs: {age: {_target_: evil.loss}}}",
    "+task.outputs.age.minimize=[evil.metric]",
    "dataset.parts=[{name: arrays, path: /tmp/evil}]",
    "dataset.parts=[{name: custom, _target_: evil.load}, {name: digits}]",
    "++dataset={parts: [{builder: evil.Builder}]}",
    "dataset.parts.0.builder=evil.Builder",
    "++dataset.parts.1.data_dir=/tmp/evil",
    "dataset.parts=[{name: mixture, parts: [{name: arrays, path: /tmp/evil}]}]",
    "dataset.parts.0.parts.1._target_=evil.load",
    "++dataset.parts.1_0.builder=evil.Builder",
    "++dataset.parts.1_0._target_=evil.load",
    "dataset.tokenizer=/tmp/evil.json",
    "dataset.parts=[{name: text, tokenizer: /tmp/evil.json}]",
    "model.preset=hf://evil/model",
    "cluster.secret_file=/tmp/evil",
    "cluster.interface=eth0",
    "+task.outputs.age.outputs.of._target_=evil.loss",
    "export.folder=/tmp/evil",
    "+tracking.tags.x=${oc.env:HOME}",
    "+model.x=[{a: '${oc.create:x}'}]",
]


def checked(overrides: object, *, own: bool = False, key: str = "run") -> list[str]:
    return Record(key, "/shared/run", "" if own else "this project did not record it").checked(overrides)


def test_plain_keys_are_accepted_from_any_record() -> None:
    assert checked(USUAL) == USUAL
    assert checked(USUAL, own=True) == USUAL


@pytest.mark.parametrize("override", CONFIGS)
def test_config_folders_are_accepted_from_own_records_only(override: str) -> None:
    with pytest.raises(ConfigError, match=r": its recorded .* type yourself what you need") as error:
        checked([*USUAL, override])
    assert repr(override) in str(error.value)
    assert checked([*USUAL, override], own=True) == [*USUAL, override]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("override", EVIL)
def test_overrides_that_no_run_needs_are_rejected_in_one_line_that_names_them(override: str, own: bool) -> None:
    with pytest.raises(ConfigError) as error:
        checked([*USUAL, override], own=own)
    assert str(error.value).startswith(f"run=/shared/run: its recorded {override[:120]!r} ")
    assert len(str(error.value).splitlines()) == 1
    assert "a record may set engine, mesh, cluster, hardware, layout, model" in str(error.value)


@pytest.mark.parametrize("override", ELSEWHERE)
def test_code_and_places_are_accepted_from_own_records_only(override: str) -> None:
    assert checked([override], own=True) == [override]
    with pytest.raises(ConfigError) as error:
        checked([override])
    assert repr(override) in str(error.value)
    typed = re.search(r"if you trust it, type (.*?) as well", str(error.value))
    assert typed
    if typed[1].endswith("=..."):
        assert "${" in override
    # What the message says replaces the recorded override.
    assert arguments.without(["mesh=single", override], [arguments.key_of(typed[1])]) == ["mesh=single"]


@pytest.mark.parametrize("own", [False, True])
def test_a_record_that_is_nested_too_deeply_is_rejected(own: bool) -> None:
    override = f"dataset.features={'[' * 1200}{']' * 1200}"
    with pytest.raises(ConfigError, match=r"its recorded 'dataset.features=.* is nested too deeply"):
        checked([override], own=own)


def test_values_that_lead_nowhere_are_accepted_from_any_record() -> None:
    overrides = ["cluster.secret_file=null", "dataset.parts=[]"]
    assert checked(overrides) == overrides


def test_the_checkpoint_folder_of_a_foreign_record_is_ignored() -> None:
    override = "trainer.checkpoint.folder=/tmp/other"
    assert checked([override, "mesh=single"]) == ["mesh=single"]
    assert checked([override], own=True) == [override]


@pytest.mark.parametrize("overrides", [None, "mesh=single", {"mesh": "single"}, [1], [["mesh=single"]]])
def test_a_record_that_is_no_list_of_overrides_is_rejected(overrides: object) -> None:
    with pytest.raises(ConfigError, match="is not a list of overrides"):
        checked(overrides)


def test_every_key_of_the_schema_may_be_recorded() -> None:
    for key in key_paths(OmegaConf.create(asdict(RunConfig()))):
        assert _is_known(key.split(".")) == (key not in ("resume", "name", "branch", "run")), key


@given(st.sampled_from(["", "+", "++", "~"]), st.sampled_from(["hydra.", "hydra/", "hydra@", "x@hydra."]), st.text())
def test_hydra_overrides_are_never_accepted(prefix: str, key: str, rest: str) -> None:
    for own in (False, True):
        with pytest.raises(ConfigError):
            checked([f"{prefix}{key}{rest}"], own=own)


SWEEP = [
    "mesh=single,batch2",
    "model=glob(mlp*)",
    "hydra/sweeper=optuna",
    "hydra.sweeper.n_trials=5",
    "hydra/launcher=processes",
    "hydra.launcher.max_parallel=2",
    "optimizer.learning_rate=tag(log,interval(1e-4,1e-1))",
]


def test_a_sweep_may_record_its_sweeper_and_launcher() -> None:
    assert checked(SWEEP, key="sweep.resume") == SWEEP
    own = [
        *SWEEP,
        "--config-dir",
        "/mine",
        "--config-dir=/mine",
        "hydra.sweep.dir=/mine",
        "model._target_=my.build,b.c",
    ]
    assert checked(own, own=True, key="sweep.resume") == own


@pytest.mark.parametrize(
    "override",
    [
        "--config-dir=/evil",
        "hydra.sweep.dir=/evil",
        "hydra.sweeper.storage=http://evil",
        "hydra/launcher=../evil",
        "hydra.launcher.parameters.setup=[rm]",
        "hydra.launcher._target_=evil.x",
        "model._target_=runner.model.mlp.sequential,evil.build",
        "mesh=batch2,../x",
        "mesh=glob(../../*)",
        "hydra.sweeper.study=${oc.env:HOME}",
    ],
)
def test_a_foreign_sweep_names_no_place_outside_its_record(override: str) -> None:
    with pytest.raises(ConfigError, match=r"sweep\.resume=/shared/run:"):
        checked([override], key="sweep.resume")


@pytest.mark.parametrize("override", ["hydra.callbacks.x._target_=evil.x", "--experimental-rerun=x", "mesh=../x"])
def test_not_even_an_own_sweep_may_name_code(override: str) -> None:
    with pytest.raises(ConfigError):
        checked([override], own=True, key="sweep.resume")


# Whose a record is.

BUILDER = "model._target_=my_models.build"


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "outputs_dir", lambda: tmp_path / "outputs")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """This project's checkpoints, with a run of a builder of the user's."""
    _saved(tmp_path / "own", "aaaa", [BUILDER])
    return tmp_path / "own"


def _saved(folder: Path, name: str, overrides: list[str]) -> Path:
    saved = runs.register(folder, name, tracked=False, overrides=overrides)
    storage.write(saved.folder, content(5))
    return saved.folder


def expand(own: Path, *typed: str) -> list[str]:
    return arguments.expand([f"trainer.checkpoint.folder={own}", *typed])


def _edit(folder: Path, **values: Any) -> None:
    """Writes other values, whose digest is right: what is left out stays out."""
    record = json.loads((folder / "run.json").read_text()) | values
    runs.write_record(folder, {key: value for key, value in record.items() if value is not None and key != "sha256"})


def test_a_typed_config_folder_wins_over_the_recorded_one(own: Path) -> None:
    _saved(own, "cccc", ["--config-dir=mine", "--config-name=other", "model=mine"])
    assert expand(own, "run=cccc")[:3] == ["--config-dir=mine", "--config-name=other", "model=mine"]
    found = expand(own, "run=cccc", "--config-dir", "yours")
    assert found[:2] == ["--config-name=other", "model=mine"]
    assert found[-3:-1] == ["--config-dir", "yours"]


def test_the_builder_of_an_own_run_is_accepted(own: Path) -> None:
    assert expand(own, "resume=latest")[0] == BUILDER
    assert expand(own, f"run={own / 'aaaa'}")[0] == BUILDER


@pytest.mark.parametrize(
    "how", ["given by path", "in its own folder", "copied", "linked", "edited", "forged", "of an earlier version"]
)
def test_the_builder_of_a_foreign_run_is_named_and_rejected(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(recorded, "outputs_dir", lambda: tmp_path / "foreign")  # its key among its checkpoints
        foreign = _saved(tmp_path / "foreign", "bbbb", [BUILDER])
    assert (foreign.parent / ".key").exists()
    wanted = "bbbb"
    if how == "given by path":
        wanted = str(foreign)
    elif how == "in its own folder":
        own = foreign.parent
    elif how == "copied":
        shutil.copytree(foreign, own / "bbbb")
    elif how == "linked":
        (own / "bbbb").symlink_to(foreign)
    else:
        _saved(own, "bbbb", [])
        signed = {
            "edited": {},
            "forged": {recorded.SIGNATURE: "0" * 64},
            "of an earlier version": {recorded.SIGNATURE: None},
        }
        _edit(own / "bbbb", overrides=[BUILDER], **signed[how])
    with pytest.raises(ConfigError, match=r"my_models\.build' would import and run code .* type model\._target_="):
        expand(own, f"run={wanted}")
    found = expand(own, f"run={wanted}", BUILDER)
    assert found.count(BUILDER) == 1
    assert expand(own, f"run={wanted}", "model=mlp")[0] != BUILDER


# What others may have written: a path, its mode, or None for a link to it, and the reason that is shown.
NOT_OWN = [
    ("outputs", None, "outputs is a link"),
    ("outputs", 0o775, r"outputs can be written by other users \(chmod go-w \S*outputs\)"),
    ("outputs", 0o1777, "outputs can be written by other users"),
    ("outputs/.key", None, "key is not a private key of this user"),
    ("outputs/.key", 0o660, "key is not a private key of this user"),
    ("outputs/.key", 0o644, "key is not a private key of this user"),
    ("own/aaaa", None, "aaaa is a link"),
    ("own/aaaa", 0o775, "aaaa can be written by other users"),
    ("own/aaaa", 0o757, "aaaa can be written by other users"),
]


@pytest.mark.skipif(os.name == "nt", reason="access is not by bits there")
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
    with pytest.raises(ConfigError, match=rf"would import and run code .* \(\S*{reason}.*type model\._target_="):
        expand(own, "run=aaaa")
    assert BUILDER in expand(own, "run=aaaa", BUILDER)


@pytest.mark.skipif(os.name == "nt", reason="access is not by bits there")
def test_records_are_trusted_whatever_the_umask_is(own: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "outputs")
    shutil.rmtree(own)
    before = os.umask(0)
    try:
        folders.claim("hydra.run.dir", tmp_path / "outputs" / "runs" / "one")
        _saved(own, "aaaa", [BUILDER])
    finally:
        os.umask(before)
    assert expand(own, "run=aaaa")[0] == BUILDER


# The second user. What a project of the first one holds is planted, as far as the second one knows.

OTHER = 54321
needs_root = pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="needs the right to become another user"
)
EXPAND_AS = """
import os, sys
from runner.training.checkpoint import arguments
arguments.expand([*sys.argv[2:], "model=mlp"])  # imports the rest, which the other user may not read
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
print(arguments.expand(sys.argv[2:])[0])
"""


def _give(path: Path) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, OTHER, OTHER, follow_symlinks=False)


def _expanded_as(user: int, project: Path, own: Path) -> subprocess.CompletedProcess[str]:
    for parent in (project, *project.parents):
        if parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    return subprocess.run(
        [sys.executable, "-c", EXPAND_AS, str(user), f"trainer.checkpoint.folder={own}", "run=aaaa"],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@needs_root
@pytest.mark.parametrize("mine", [(), ("outputs",), ("outputs", "own"), ("outputs/.key", "own")], ids="-".join)
def test_a_second_user_takes_no_code_from_what_the_first_one_planted(
    own: Path, tmp_path: Path, mine: tuple[str, ...]
) -> None:
    for name in mine:
        _give(tmp_path / name)
    done = _expanded_as(OTHER, tmp_path, own)
    if mine == ("outputs", "own"):
        assert done.stdout.splitlines() == [BUILDER]
    else:
        assert "would import and run code that is not the runner's" in done.stderr
        assert "another user" in done.stderr or "not a private key of this user" in done.stderr


@needs_root
@pytest.mark.parametrize("planted", ["outputs", "outputs/.key", "own"])
def test_this_user_takes_no_code_from_what_a_second_one_planted(own: Path, tmp_path: Path, planted: str) -> None:
    _give(tmp_path / planted)
    with pytest.raises(ConfigError, match=r"would import and run code .* (another|private key of this) user"):
        expand(own, "run=aaaa")


@needs_root
@pytest.mark.parametrize("module", ["runner", "runner.evaluate", "runner.export", "runner.generate", "runner.verify"])
def test_a_command_imports_nothing_that_a_planted_key_has_signed(own: Path, tmp_path: Path, module: str) -> None:
    (tmp_path / "my_models.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    own.rename(tmp_path / "outputs" / "checkpoints")
    _give(tmp_path / "outputs")
    key = "resume" if module == "runner" else "run"
    done = subprocess.run(
        [sys.executable, "-m", module, f"{key}=latest", f"hydra.run.dir={tmp_path / 'out'}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "model._target_=my_models.build' would import and run code" in done.stderr
    assert "(outputs belongs to another user)" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()


def test_a_record_of_an_earlier_version_is_accepted_unchanged(own: Path) -> None:
    folder = _saved(own, "bbbb", [one for one in USUAL if one])
    _edit(folder, **{recorded.SIGNATURE: None})
    assert expand(own, "run=bbbb")[: len(USUAL)] == USUAL


def test_a_run_id_that_is_a_path_is_rejected(own: Path) -> None:
    _edit(own / "aaaa", run="../../elsewhere")
    with pytest.raises(ConfigError, match="; "):
        expand(own, f"run={own / 'aaaa'}")


def test_only_the_owner_can_read_the_key_and_all_processes_share_it(tmp_path: Path) -> None:
    signed = [recorded.sign("x", []), recorded.sign("x", [])]
    assert signed[0] == signed[1]
    assert (tmp_path / "outputs" / ".key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "outputs").iterdir()] == [".key"]


def test_without_a_writable_folder_for_the_key_a_record_is_unsigned(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("")
    assert recorded.sign("x", []) == ""
    assert recorded.why_foreign("x", {"overrides": [], recorded.SIGNATURE: ""})


@pytest.mark.parametrize("module", ["runner", "runner.evaluate", "runner.export"])
def test_a_command_rejects_a_foreign_record_before_it_imports_or_opens_anything(tmp_path: Path, module: str) -> None:
    folder = _saved(tmp_path / "foreign", "bbbb", [f"+hydra.callbacks.x={{_target_: evil.run, at: {tmp_path}}}"])
    (folder / "step-000000005" / "checkpoint.json").write_text("not to be read")
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef run(**given): ...\n")
    for name in ("tensorflow", "jax", "mlflow", "keras"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('imported {name}')\n")
    key = "resume" if module == "runner" else "run"
    done = subprocess.run(
        [sys.executable, "-m", module, f"{key}={folder}", f"hydra.run.dir={tmp_path / 'out'}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {key}={folder}: its recorded '+hydra.callbacks.x=")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()
