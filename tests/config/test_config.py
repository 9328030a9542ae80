"""The config folder and the conversion to dataclasses."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from runner.config import schema, schema_hydra
from runner.config.build import fields_of
from runner.config.convert import resolved
from runner.config.options import arranged
from runner.host import paths
from runner.layout.axes import batch_axis
from runner.plan.checks.run import convert

CONF = paths.conf_dir()
GROUPS = {spec.name for spec in fields(schema.RunConfig)} - {"resume", "name", "branch", "run"}
OPTIONS = sorted(path for path in CONF.glob("*/*.yaml") if not path.name.startswith("_"))
# What an option needs besides itself: the axes that a layout names, a builder for custom.
NEEDS = {
    "engine/core_dtensor": ["model=mlp_core"],
    "cluster/local": ["mesh=batch2", "engine=jax"],
    "cluster/auto": [
        *("mesh=batch2", "engine=jax", "cluster.processes=2", "cluster.index=1"),
        "cluster.coordinator=127.0.0.1:29400",
    ],
    "cluster/explicit": [
        *("mesh=batch2", "engine=jax", "cluster.processes=2", "cluster.index=1"),
        "cluster.coordinator=127.0.0.1:294",
    ],
    "layout": ["mesh=batch4_model2"],
    "layout/spatial": ["mesh=batch2_height2", "engine=jax"],
    "layout/spatial2d": ["mesh=batch2_height2_width2", "engine=jax"],
    "layout/fsdp_spatial": ["mesh=batch4_height2", "engine=jax"],
    "layout/experts": ["mesh=batch2_experts4"],
    "layout/sequence": ["mesh=batch4_sequence2", "engine=jax"],
    "layout/keras_hub": ["mesh=batch4_model2", "engine=jax"],
    "model/custom": ["model._target_=runner.model.mlp.sequential"],
    "model/keras_hub": [
        *("engine=jax", "model.backbone=GPT2Backbone", "+model.vocabulary_size=8", "+model.num_layers=1"),
        *("+model.num_heads=1", "+model.hidden_dim=8", "+model.intermediate_dim=8"),
    ],
    "dataset/arrays": ["dataset.path=own.csv"],
    "dataset/custom": ["dataset._target_=own_code.load"],
    "dataset/huggingface": ["dataset.path=photos"],
    "dataset/image_folder": ["dataset.path=photos"],
    "dataset/tfds": ["dataset.name=emnist/letters"],
    "dataset/mixture": ["dataset.parts=[{name: arrays, path: own.csv}, {name: arrays, path: own.csv, weight: 2}]"],
    "dataset/parquet": ["dataset.path=own.parquet"],
    "dataset/pydoc": ["task=language_model", "model=gpt"],
    "dataset/text": ["dataset.path=words.txt", "task=language_model", "model=gpt"],
    "task/language_model": ["dataset=pydoc", "model=gpt"],
    "task/custom": ["task._target_=own_code.loss"],
    "task/step": ["task._target_=tests.task.own_steps.Line", "engine=jax"],
    "task/compiled": ["engine=jax"],
    "task/several": ["task.outputs={price:regression,sick:binary}"],
    "hardware": ["engine=jax"],
    "optimizer/keras": ["engine=jax"],
    "optimizer/optax": ["engine=jax", "optimizer._target_=optax.adamw"],
}
OWN_CODE = "def load(): ...\ndef loss(ops, outputs, batch): ...\n"
# Keys that the head comment of their file explains.
EXPLAINED_BY_THE_HEAD = {"defaults", "name", "_target_"}


def name_of(path: Path) -> str:
    return str(path.relative_to(CONF).with_suffix(""))


def composed(*overrides: str, with_hydra: bool = False) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return compose("config", overrides=list(overrides), return_hydra_config=with_hydra)


@pytest.mark.parametrize("option", OPTIONS, ids=name_of)
def test_every_option_composes_and_passes_every_check(
    option: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "words.txt").write_text("words\n")
    (tmp_path / "own.csv").write_text("price\n1\n")
    (tmp_path / "own.parquet").touch()
    (tmp_path / "own.keras").touch()
    (tmp_path / "own_code.py").write_text(OWN_CODE)
    (tmp_path / "photos").mkdir()
    group = option.parent.name
    needs = [*NEEDS.get(group, []), *NEEDS.get(name_of(option), [])]
    config = convert(composed(f"{group}={option.stem}", *needs))
    assert rest_of_the_batch(config) == 0


@pytest.mark.parametrize("preset", sorted(path.stem for path in CONF.glob("experiment/*.yaml")))
def test_every_preset_gives_its_sweeper_and_launcher_the_keys_that_they_take(preset: str) -> None:
    node = composed(f"experiment={preset}", with_hydra=True).hydra
    assert "_target_" not in node.launcher
    kind = schema_hydra.SearchSweeper if "n_trials" in node.sweeper else schema_hydra.GridSweeper
    assert set(node.sweeper) <= set(fields_of(kind))


def rest_of_the_batch(config: schema.RunConfig) -> int:
    """Returns what is left of a batch when the axis of its first dim splits it."""
    axis = batch_axis(config.layout, config.mesh.axes)
    return config.dataset.batch_size % (config.mesh.axes[axis] if axis else 1)


def test_every_group_of_the_schema_has_a_folder_and_every_folder_is_a_group() -> None:
    folders = {path.name for path in CONF.iterdir() if path.is_dir()}
    assert folders == {*GROUPS, "experiment", "hydra"}


@pytest.mark.parametrize("path", sorted(CONF.rglob("*.yaml")), ids=name_of)
def test_every_file_has_a_head_comment_that_is_a_sentence(path: Path) -> None:
    head = [line for line in path.read_text().splitlines() if line.startswith("#") and "@package" not in line]
    assert head
    assert path.read_text().startswith("#")
    assert re.match(r"# [A-Z0-9`].*[.,:;\w)\]]$", head[0])


@pytest.mark.parametrize("path", [p for p in sorted(CONF.glob("*/*.yaml")) if p.parent.name in GROUPS], ids=name_of)
def test_every_key_has_a_comment_or_is_explained_by_the_head(path: Path) -> None:
    bare = []
    for line in path.read_text().splitlines():
        key = re.match(r"\s*(\w+):\s*\S", line)
        if key and " # " not in line and key[1] not in EXPLAINED_BY_THE_HEAD:
            bare.append(line)
    assert bare == []


def test_conversion_settles_a_free_axis_and_whole_numbers_of_float_keys() -> None:
    config = convert(composed("mesh.axes.batch=-1", "optimizer.learning_rate=1"))
    assert config.mesh.axes == {"batch": 8}
    assert (config.optimizer.learning_rate, type(config.optimizer.learning_rate)) == (1.0, float)


@pytest.mark.parametrize(
    ("overrides", "rate"),
    [
        ([], 0.01),  # the MLP of TensorFlow's tutorial
        (["model=mlp_subclassed", "dataset=digits"], 0.01),
        (["model=convnet"], 0.001),
        (["model=vit", "optimizer=adamw"], 0.001),
        (["model=convnet", "optimizer=sgd"], 0.05),
        (["model=convnet", "optimizer.learning_rate=0.02"], 0.02),
        (["experiment=keras_tutorial"], 0.01),
        (["experiment=jax_guide"], 0.001),
    ],
)
def test_adam_has_the_default_rate_of_keras_except_for_the_tutorial_model(overrides: list[str], rate: float) -> None:
    made = composed(*overrides)
    config = convert(made)
    assert config.optimizer.learning_rate == rate
    assert resolved(made, config.mesh, None)["optimizer"]["learning_rate"] == rate


def test_the_builder_is_the_target_and_the_other_keys_are_its_options() -> None:
    model = convert(composed("model=mlp", "model.hidden=[64,32]")).model
    assert model == schema.ModelConfig("runner.model.mlp.sequential", {"hidden": [64, 32], "activation": "relu"})


def test_keys_beside_a_target_are_its_options_whatever_the_group() -> None:
    data = arranged("dataset", {"name": "custom", "_target_": "my.load", "size": 3, "batch_size": 8})
    assert data == {"name": "custom", "batch_size": 8, "target": "my.load", "options": {"size": 3}}
    steps = arranged("dataset", {"augment": [{"name": "flip", "probability": 0.5}, {"_target_": "my.turn"}]})
    assert steps["augment"] == [
        {"name": "flip", "target": "", "options": {"probability": 0.5}},
        {"target": "my.turn", "options": {}},
    ]
    task = arranged("task", {"name": "custom", "_target_": "my.loss", "target": "price", "units": 2})
    assert task["target"] == ["price"]
    assert task["options"] == {"target": "my.loss", "maximize": [], "minimize": [], "units": 2, "whole_batch": False}


def test_interpolations_are_resolved() -> None:
    assert convert(composed("dataset.eval_batch_size=${dataset.batch_size}")).dataset.eval_batch_size == 128
    # A thousand rows of 2,048 tokens would need more memory than a training step.
    rows = convert(composed("dataset=synthetic", "dataset.batch_size=32", "task=language_model", "model=gpt")).dataset
    assert rows.eval_batch_size == 32


@pytest.mark.parametrize(
    ("typed", "stops", "reduces"),
    [
        ("", None, None),
        ("trainer.early_stopping.patience=1", "auto", None),
        # A typed value counts, although it is the one that null stands for.
        ("trainer.early_stopping.patience=3", "auto", None),
        ("trainer.early_stopping.min_delta=0", "auto", None),
        ("trainer.early_stopping={patience:2}", "auto", None),
        ("trainer.early_stopping.patience=1 trainer.early_stopping.metric=eval/loss", "eval/loss", None),
        ("trainer.early_stopping.patience=1 trainer.early_stopping.metric=null", None, None),
        ("optimizer.schedule.plateau.patience=10", None, "auto"),
        ("optimizer.schedule.plateau.min_factor=0.1", None, "auto"),
    ],
)
def test_a_key_of_early_stopping_or_of_a_plateau_switches_its_metric_on(
    typed: str, stops: str | None, reduces: str | None
) -> None:
    config = convert(composed(*typed.split()))
    assert config.trainer.early_stopping.metric == stops
    assert config.optimizer.schedule.plateau.metric == reduces
