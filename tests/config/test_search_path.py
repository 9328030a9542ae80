"""Options of one's own: where they are found, what they hide, and what is refused there."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner.config import search_path
from runner.config.invocation import command, composed_with
from runner.host import paths, session
from tests.refusals import assert_refused, refuse_all


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with options of a user's: a model, an experiment that takes it, and a builder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["runner"])
    put(tmp_path / "conf/model/mine.yaml", "_target_: my_model.build\nwidth: 16\n")
    put(
        tmp_path / "conf/experiment/mine.yaml",
        "# @package _global_\ndefaults: [override /model: mine]\ntrainer: {epochs: 2}\n",
    )
    put(tmp_path / "my_model.py", "def build(keras, inputs, outputs, width): ...\n")
    return tmp_path


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def composed(*overrides: str) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(paths.conf_dir())):
        return compose("config", overrides=list(overrides))


def test_the_folder_conf_is_found_where_one_stands(project: Path) -> None:
    assert search_path.user_folders() == [project / "conf"]
    assert "mine" in search_path.options("model")
    config = composed("experiment=mine")
    assert (config.model.width, config.trainer.epochs, config.engine.name) == (16, 2, "keras_dtensor")


@pytest.mark.parametrize("flag", ["--config-dir others", "--config-dir=others", "-cd others", "-cd=others"])
def test_a_folder_that_is_named_comes_first(project: Path, monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    put(project / "others/model/mine.yaml", "_target_: my_model.build\nwidth: 99\n")
    monkeypatch.setattr(session.current(), "arguments", ("experiment=mine", *flag.split()))
    assert search_path.user_folders() == [project / "others", project / "conf"]
    assert composed("experiment=mine").model.width == 99


def test_the_checkouts_own_folder_is_no_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(paths.conf_dir().parent)
    assert search_path.user_folders() == []


@pytest.mark.parametrize("found", ["conf/nginx.conf", "conf/model/readme.md", "conf/sites/a.yaml", "conf/config.yaml"])
def test_another_programs_conf_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    put(tmp_path / found, "x: 1\n")
    monkeypatch.chdir(tmp_path)
    assert search_path.user_folders() == []
    assert composed().engine.name == "keras_dtensor"


def test_an_own_option_hides_the_programs_and_an_own_config_does_not(project: Path) -> None:
    put(project / "conf/optimizer/adam.yaml", "name: adam\nlearning_rate: 0.5\n")
    put(project / "conf/config.yaml", "defaults: [model: mine]\n")
    config = composed()
    assert config.optimizer.learning_rate == 0.5
    assert config.engine.name == "keras_dtensor"
    told = list(search_path.replacement_notes(DictConfig({"hydra": {"runtime": {"choices": {"optimizer": "adam"}}}})))
    assert told == [
        "conf/config.yaml is ignored: only options can be replaced; use conf/experiment/mine.yaml",
        "conf/optimizer/adam.yaml is used instead of the built-in optimizer=adam",
    ]


MISTAKES = {
    "experiment=mine model.widht=8": "keys of model: _target_, width); did you mean model.width=8?",
    "--config-dir options experiment=other trainer.epochz=8": "did you mean trainer.epochs=8?",
    "experiment=no_yaml": "no_yaml.yaml, line 3: invalid YAML",
    "experiment=no_key": "trainer.epochz: unknown key",
    # What is wrong with an option that is not chosen is in no other's way.
    "trainer.epochz=3": "did you mean trainer.epochs=3?",
}


def test_mistakes_in_a_command_line_and_in_the_users_own_files_are_one_line(project: Path) -> None:
    put(project / "options/experiment/other.yaml", "# @package _global_\ntrainer: {epochs: 2}\n")
    put(project / "conf/experiment/no_yaml.yaml", "# @package _global_\ntrainer: {epochs: 2\n")
    put(project / "conf/experiment/no_key.yaml", "# @package _global_\ntrainer: {epochz: 2}\n")
    put(project / "conf/mesh/bad.yaml", "{")
    found = refuse_all([typed.split() for typed in MISTAKES], project)
    for answer, told in zip(found, MISTAKES.values(), strict=True):
        assert (answer["code"], answer["left"]) == (2, False)
        assert_refused([told], answer["out"], answer["err"])


def test_a_recorded_command_line_has_its_folder_of_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_task = OmegaConf.create({"hydra": [], "task": ["experiment=mine"]})
    made = SimpleNamespace(job=SimpleNamespace(config_name="config"), overrides=of_task)
    monkeypatch.setattr(HydraConfig, "get", lambda: made)
    monkeypatch.chdir(tmp_path)
    with session.opened("runner", ["--config-dir", "options", "experiment=mine"]):
        assert composed_with() == ["--config-dir=options"]
        assert command("runner") == "python -m runner --config-dir=options experiment=mine"
