"""The command line before Hydra reads it."""

from pathlib import Path

import pytest

from runner.cli.command_line import arranged
from runner.errors import ConfigError


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("dataset=digits -m trainer.seed=1,2", "-m dataset=digits trainer.seed=1,2"),
        ("trainer.epochs=1 --cfg job dataset=digits", "--cfg job trainer.epochs=1 dataset=digits"),
        ("trainer.epochs=1 --cfg=job", "--cfg job trainer.epochs=1"),
        ("dataset=digits --config-dir tests trainer.epochs=1", "--config-dir tests dataset=digits trainer.epochs=1"),
        ("-m trainer.seed=1,2 -m", "-m -m trainer.seed=1,2"),
        ("-m -- trainer.seed=1,2", "-m trainer.seed=1,2"),
        ("mesh.axes.model=2", "++mesh.axes.model=2"),
        ("mesh.axes={batch:2}", "~mesh.axes +mesh.axes={batch:2}"),
        ("tracking.tags={a:b}", "~tracking.tags +tracking.tags={a:b}"),
        ("resume=/some/folder", "resume=/some/folder"),
        ("dataset=sub/mine", "dataset=sub/mine"),
    ],
)
def test_flags_and_overrides_stand_in_any_order(typed: str, expected: str) -> None:
    assert arranged(typed.split()) == expected.split()
    assert arranged(arranged(typed.split())) == expected.split(), "and once more changes nothing"


@pytest.mark.parametrize("given", ["=5", "~", "==", "", " ", "+", "++", "~~", "-", "@mesh=single", "x" * 5000])
def test_what_names_no_key_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r": .*write|unknown flag") as found:
        arranged([given])
    assert len(str(found.value)) < 600


@pytest.mark.parametrize(
    ("value", "problem"),
    [*((value, "be the path of a folder") for value in ("null", "[a]", "''")), ("/tmp/..", "not be the root of")],
)
def test_where_to_write_is_a_path(value: str, problem: str) -> None:
    for key in ("hydra.run.dir", "hydra.sweep.dir"):
        with pytest.raises(ConfigError, match=rf"{key}=.*: must {problem}.*; set {key}="):
            arranged([f"{key}={value}"])


@pytest.mark.parametrize("group", ["mesh", "+mesh@a.b", "hydra/launcher", "experiment"])
def test_an_options_name_does_not_leave_its_folder(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.yaml").write_text("axes: {batch: 8}\n")
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    evil = str(tmp_path / "evil")
    climbed = "../" * 20 + evil.lstrip("/")
    swept = (f"single,{climbed}", f"choice({climbed},a)", f"[single,{climbed}]")
    for option in ("../evil", climbed, evil, f"'{climbed}'", *swept):
        with pytest.raises(ConfigError, match="a path that leaves it"):
            arranged([f"{group}={option}"])
