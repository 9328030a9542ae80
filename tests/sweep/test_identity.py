"""When two configs are the same, and what a multirun is and varies."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from runner.cli.resolvers import register_resolvers
from runner.cli.sweep import run
from runner.cli.sweep.run import combinations
from runner.cli.sweep.settings import checked, varied_values
from runner.cli.sweep.sweep import varied_of
from runner.cluster import accelerators
from runner.cluster.jobs import Job, Outcome
from runner.config.compose import application, compose_command
from runner.config.options import import_paths
from runner.config.schema import AugmentConfig, DatasetConfig, ModelConfig, RunConfig, TaskConfig, TrainerConfig
from runner.engine import devices
from runner.errors import ConfigError
from runner.train import identity
from tests import fake_machine


@pytest.mark.parametrize(
    ("key", "counts"),
    [
        ("tracking.uri", False),
        ("dataset.data_dir", False),
        ("trainer.progress", False),
        ("cluster.restarts", False),
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
        RunConfig(trainer=TrainerConfig(callbacks=[{"_target_": "own_parts.Seen"}])),
        RunConfig(dataset=DatasetConfig(augment=[AugmentConfig(target="own_parts.turn")])),
        RunConfig(dataset=DatasetConfig(name="mixture", parts=[{"name": "custom", "_target_": "own_parts.load"}])),
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
    names = import_paths(config.model, config.optimizer, config.dataset, config.task, config.trainer)
    before = identity.code_version(names)
    assert identity.code_version(names) == before
    module.write_text("a = 2\n")
    assert identity.code_version(names) != before
    ours = ["runner.model.mlp.sequential"]
    assert identity.code_version(ours) == identity.code_version(ours) != before


def test_what_varies_is_what_has_several_values() -> None:
    arguments = ["dataset=digits", "dataset.batch_size=64,128", "+mesh.axes.model=choice(1,2)", "layout.rules=[a,b]"]
    overrides = tuple(OverridesParser.create().parse_overrides(arguments))
    assert varied_values(overrides) == {"dataset.batch_size": "64,128", "mesh.axes.model": "choice(1,2)"}
    job = ["dataset=digits", "dataset.batch_size=128", "+mesh.axes.model=1", "tracking.run_name='1.10'"]
    assert varied_of(job, ["dataset.batch_size", "mesh.axes.model", "tracking.run_name"]) == {
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


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["hydra.launcher.max_parallel=0"], "hydra.launcher.max_parallel=0: must be at least 1"),
        (["hydra/sweeper=optuna", "hydra.sweeper.n_trials=0"], "hydra.sweeper.n_trials=0: must be at least 1"),
        (["hydra/sweeper=optuna", "+hydra.sweeper.prune=true"], "hydra.sweeper.prune: unknown key (hydra.sweeper has"),
        (["hydra/sweeper=optuna", "hydra.sweeper.storage=x.db"], "hydra.sweeper.storage=x.db: must be the URI of a"),
        (["+hydra.launcher._target_=a.Launcher"], "hydra.launcher._target_: unknown key"),
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


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["optimizer.lr=1,.5", "trainer.seed=1,2"], r"^all 4 jobs: optimizer\.lr=1,\.5: unknown .*_rate=1,\.5\?$"),
        (["sweep.nam=a,b"], r"sweep\.nam=.*unknown key"),
        (["mesh.axes.batch=5"], r"^dataset\.batch_size=64: must be a multiple of 5"),
        (["mesh.axes.batch=5,7"], r"none of 2 jobs is valid, the first: .* multiple of 5"),
        (["++mesh.axes.batch=0,5"], r"none of 2 jobs is valid, the first: mesh\.axes\.batch=0,5: must be at least 1"),
    ],
)
def test_a_sweep_without_a_valid_job_is_refused_once_and_not_recorded(
    words: list[str], shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*words, "dataset.batch_size=64", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"]
    register_resolvers()
    with application() as hydra:
        config = compose_command(hydra, "config", [*words, f"hydra.sweep.dir={tmp_path}/sweep"], is_multirun=True)
        with pytest.raises(ConfigError, match=shown):
            run.run(checked(config), config, hydra.config_loader, [])
    assert not (tmp_path / "mlflow.db").exists()
    assert not capsys.readouterr().out


class Pretended:
    """A job's process that runs nothing: the one of seed 2 fails, and each ends when it is looked at twice."""

    started: ClassVar[list[str]] = []
    held: ClassVar[set[str]] = set()

    def __init__(self, job: Job, _command: object, _environment: object, gpus: Sequence[str]) -> None:
        assert self.held.isdisjoint(gpus)
        self.held.update(gpus)
        self.started.append("".join(gpus) or "-")
        self.job, self.gpus, self.looks = job, gpus, 0

    def outcome(self) -> Outcome | None:
        self.looks += 1
        if self.looks < 2:
            return None
        self.held.difference_update(self.gpus)
        return Outcome("failed" if self.job.varied.get("trainer.seed") == "2" else "passed")


ONE = ["mesh=single", "trainer.seed=1,2,3,4,5"]


@pytest.mark.parametrize(
    ("words", "gpus_of_each"),
    [
        ([*ONE, "hydra.launcher.max_parallel=8"], "0 1 2 3 0"),  # a job waits for a GPU
        ([*ONE, "mesh.device=cpu", "hydra.launcher.max_parallel=4"], "- - - - -"),
        ([*ONE, "sweep.stop_on_failure=true"], "- -"),  # the only job at a time may see all
        ([*ONE, "hydra.launcher.max_parallel=4", "sweep.stop_on_failure=true"], "0 1 2 3"),
        # Eight devices are not here, so `mesh.device=auto` computes on CPUs. Batches of 3 x 16 can't be divided by 5.
        (["mesh=batch2", "mesh.axes.batch=2,4,8,3,1", "hydra.launcher.max_parallel=3"], "01 0123 - 012 3"),
        (["mesh.axes.batch=1,5,2", "hydra.launcher.max_parallel=3", "sweep.stop_on_failure=true"], ""),
    ],
)
def test_as_many_jobs_run_at_once_as_asked_for_with_gpus_of_their_own(
    words: list[str], gpus_of_each: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_machine.gpus(tmp_path, *["NVIDIA L4"] * 4)
    monkeypatch.setattr(accelerators, "ROOT", tmp_path)
    monkeypatch.setattr(devices, "_CUDA_PLUGINS", ("json",))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(run, "RunningJob", Pretended)
    Pretended.started.clear()
    words = ["engine=jax", "tracking=none", "dataset.batch_size=48", f"hydra.sweep.dir={tmp_path}/sweep", *words]
    register_resolvers()
    with application() as hydra:
        config = compose_command(hydra, "config", words, is_multirun=True)
        run.run(checked(config), config, hydra.config_loader, [])
    assert Pretended.started == gpus_of_each.split()
