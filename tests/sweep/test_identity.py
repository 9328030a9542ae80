"""When two configs are the same, what a multirun is and varies, and what a resumed command line is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from runner.cli.resolvers import register_resolvers
from runner.cli.sweep import resume
from runner.cli.sweep.parent import ARGV_TAG
from runner.cli.sweep.run import combinations
from runner.cli.sweep.settings import checked, varied_values
from runner.cli.sweep.sweep import varied_of
from runner.config.compose import application, compose_command
from runner.config.schema import AugmentConfig, DatasetConfig, ModelConfig, RunConfig, TaskConfig
from runner.errors import ConfigError
from runner.tracking.store import open_store
from runner.tracking.sweeps import KIND_TAG
from runner.train import identity


@pytest.mark.parametrize(
    ("key", "counts"),
    [
        ("tracking.uri", False),
        ("dataset.data_dir", False),
        ("trainer.progress", False),
        ("cluster.restart_window", False),
        ("dataset.batch_size", True),
        ("optimizer.learning_rate", True),
    ],
)
def test_a_key_counts_that_decides_what_a_run_computes(key: str, counts: bool) -> None:
    assert identity.counts(key) == counts


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(model=ModelConfig("own_parts.build")),
        RunConfig(dataset=DatasetConfig(name="custom", target="own_parts.load")),
        RunConfig(dataset=DatasetConfig(builder="own_parts.Builder")),
        RunConfig(dataset=DatasetConfig(augment=[AugmentConfig(target="own_parts.turn")])),
        RunConfig(dataset=DatasetConfig(name="mixture", parts=[{"name": "custom", "_target_": "own_parts.load"}])),
        RunConfig(dataset=DatasetConfig(name="mixture", parts=[{"name": "tfds", "builder": "own_parts.Builder"}])),
        RunConfig(task=TaskConfig("custom", options={"target": "own_parts.loss", "maximize": [], "units": 1})),
        RunConfig(task=TaskConfig("custom", options={"target": "ours.loss", "maximize": ["own_parts.gain"]})),
    ],
)
def test_code_is_another_where_a_users_own_part_changed(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "own_parts.py"
    module.write_text("a = 1\n")
    before = identity.code_version(config)
    assert identity.code_version(config) == before
    module.write_text("a = 2\n")
    assert identity.code_version(config) != before
    ours = RunConfig(model=ModelConfig("runner.model.mlp.sequential"))
    assert identity.code_version(ours) == identity.code_version(ours) != before


def test_what_varies_is_what_has_several_values() -> None:
    arguments = ["dataset=digits", "dataset.batch_size=64,128", "+mesh.axes.model=choice(1,2)", "layout.rules=[a,b]"]
    overrides = tuple(OverridesParser.create().parse_overrides(arguments))
    assert varied_values(overrides) == {"dataset.batch_size": "64,128", "+mesh.axes.model": "choice(1,2)"}
    job = ["dataset=digits", "dataset.batch_size=128", "+mesh.axes.model=1", "tracking.run_name='1.10'"]
    assert varied_of(job, ["dataset.batch_size", "+mesh.axes.model", "tracking.run_name"]) == {
        "dataset.batch_size": "128",
        "mesh.axes.model": "1",
        "tracking.run_name": "1.10",
    }


def test_a_grid_is_every_combination_and_leaves_the_other_words_as_typed() -> None:
    words = [
        "~mesh.axes",
        "+mesh.axes={batch: 2}",
        "dataset.batch_size=64,128",
        "mesh.device=cpu",
        "trainer.epochs=1,2",
    ]
    jobs = combinations(OverridesParser.create().parse_overrides(words))
    assert len(jobs) == 4
    assert jobs[1] == ["~mesh.axes", words[1], "dataset.batch_size=64", "mesh.device=cpu", "trainer.epochs=2"]


def test_a_resumed_command_line_is_the_recorded_one_and_what_is_typed_wins(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    store = open_store(uri, "runner")
    recorded = ["-m", "mesh=single,batch2", "trainer.epochs=3", f"tracking.uri={uri}"]
    tags = {KIND_TAG: "sweep", ARGV_TAG: json.dumps(recorded)}
    run_id = store.client.create_run(store.experiment_id, tags=tags).info.run_id
    typed = ["sweep.resume=latest", f"tracking.uri={uri}", "trainer.epochs=5"]
    expected = ["-m", "mesh=single,batch2", f"tracking.uri={uri}", "trainer.epochs=5", f"sweep.resume={run_id}"]
    assert resume.expand(typed) == expected
    assert resume.expand([f"sweep.resume={run_id[:8]}", *typed[1:]]) == expected
    with pytest.raises(ConfigError, match="no such sweep"):
        resume.expand(["sweep.resume=feed", f"tracking.uri={uri}"])


@pytest.mark.parametrize("flag", [["--config-dir", "{}"], ["-cd={}"]])
def test_a_sweep_is_found_in_a_store_that_a_users_own_option_names(tmp_path: Path, flag: list[str]) -> None:
    uri, own = f"sqlite:///{tmp_path / 'team.db'}", tmp_path / "our's"
    (own / "tracking").mkdir(parents=True)
    (own / "tracking" / "team.yaml").write_text(f'defaults: [mlflow]\nuri: "{uri}"\n')
    store = open_store(uri, "runner")
    tags = {KIND_TAG: "sweep", ARGV_TAG: json.dumps(["-m", "mesh=single,batch2"])}
    run_id = store.client.create_run(store.experiment_id, tags=tags).info.run_id
    typed = [*(one.format(own) for one in flag), "tracking=team"]
    expected = ["-m", "mesh=single,batch2", *typed, f"sweep.resume={run_id}"]
    assert resume.expand([*typed, "sweep.resume=latest"]) == expected


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["hydra.launcher.max_parallel=0"], "hydra.launcher.max_parallel=0: must be at least 1"),
        (["+hydra.sweeper.prune=true"], "hydra.sweeper.prune=true: unknown key (it has params)"),
        (["hydra/sweeper=optuna", "hydra.sweeper.n_trials=0"], "hydra.sweeper.n_trials=0: must be at least 1"),
        (["hydra/sweeper=optuna", "hydra.sweeper.prune=often"], "hydra.sweeper.prune=often: must be true or false"),
        (["hydra/sweeper=optuna", "hydra.sweeper.storage=x.db"], "hydra.sweeper.storage=x.db: must be the URI of a"),
        (["+hydra.launcher._target_=a.Launcher"], "hydra/launcher: the plugin a.Launcher is not supported"),
        (["trainer.epochs=interval(1,3)"], "trainer.epochs=interval(1,3): a grid needs values"),
        (["tracking=none", "sweep.resume=abc"], "sweep.resume=abc: needs a tracked sweep"),
    ],
)
def test_a_sweep_that_can_not_work_is_refused_before_anything_is_opened(words: list[str], shown: str) -> None:
    register_resolvers()
    with application() as hydra:
        config = compose_command(hydra, "config", [*words, "trainer.seed=1,2"], is_multirun=True)
    with pytest.raises(ConfigError) as found:
        checked(config)
    assert str(found.value).startswith(shown)
