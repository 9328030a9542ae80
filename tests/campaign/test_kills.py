"""Runs of the real command that are killed end, resumed, as the run that was never killed; what differs is seen."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.training.checkpoint import storage
from runner.training.checkpoint.reading import Checkpoint
from tests import forks
from tests.campaign import dying, kills
from tests.campaign.base import Case
from tests.campaign.dying import Moment
from tests.campaign.kills import Config, Life, References
from tests.campaign.left import Left, differences, rounded_differences
from tests.training.checkpoint.test_storage import content

WRITES = """
import os, pathlib, sys
here = pathlib.Path(sys.argv[1])
(here / "checkpoints").mkdir()
for name in ("one", "two", "three"):
    (here / "checkpoints" / name).write_text(name)
(here / "elsewhere").write_text("not watched")
"""


@pytest.mark.parametrize(
    ("moment", "code", "there"),
    [
        ("checkpoint:2", -signal.SIGKILL, ["one"]),
        ("checkpoint:3:SIGTERM:5", -signal.SIGTERM, ["one", "two"]),
        ("checkpoint:9", 0, ["one", "three", "two"]),
        ("start:1", -signal.SIGKILL, []),
        ("never", 0, ["one", "three", "two"]),
    ],
)
def test_a_process_dies_at_its_moment_and_not_at_another(
    tmp_path: Path, moment: str, code: int, there: list[str]
) -> None:
    (tmp_path / "writes_files.py").write_text(WRITES)
    (tmp_path / "case").mkdir()
    folder = str(tmp_path / "case")
    command = [sys.executable, "-m", "tests.campaign.dying", folder, moment, "writes_files", folder]
    environment = {"PYTHONPATH": f"{forks.ROOT}:{tmp_path}"}
    assert subprocess.run(command, env=environment, cwd=tmp_path, check=False).returncode == code
    assert sorted(path.name for path in (tmp_path / "case" / "checkpoints").glob("*")) == there


@pytest.fixture
def left(tmp_path: Path) -> Left:
    """What a run may leave."""
    points = {"train/loss": [(2, 0.5), (4, 0.25)], "throughput/step_ms": [(4, 7.0)]}
    return Left(Checkpoint(storage.write(tmp_path, content(4))), {"step": 4}, points, ("a.png",), {"steps": 4}, ())


def with_points(left: Left, key: str, points: list[tuple[int, float]]) -> Left:
    return replace(left, points={**left.points, key: points})


def test_times_may_differ_and_nothing_else(tmp_path: Path, left: Left) -> None:
    assert differences(left, left) == []
    assert differences(left, with_points(left, "throughput/step_ms", [(2, 1.0), (4, 9.0)])) == []
    for other in (
        with_points(left, "train/loss", [(2, 0.5)]),
        with_points(left, "train/loss", [(2, 0.5), (4, 0.25), (4, 0.25)]),
        with_points(left, "train/loss", [(2, 0.5), (4, np.nextafter(0.25, 1.0))]),
        with_points(left, "train/loss", [(2, 0.5), (3, 0.5), (4, 0.25)]),
        with_points(left, "throughput/step_ms", [(4, 7.0), (4, 8.0)]),
        with_points(left, "eval/loss", [(4, 0.5)]),
        replace(left, best={"step": 2}),
        replace(left, artifacts=()),
        replace(left, results={"steps": 3}),
        replace(left, faults=("run 1 is RUNNING",)),
        replace(left, checkpoint=Checkpoint(storage.write(tmp_path / "other", content(5)))),
    ):
        assert differences(left, other) != []


def test_how_fast_each_epoch_was_is_not_lost(left: Left) -> None:
    whole = with_points(left, "eval/loss", [(2, 0.5), (4, 0.5)])
    whole = with_points(whole, "throughput/step_ms", [(2, 7.0), (4, 7.0)])
    assert differences(whole, whole) == []
    other = with_points(whole, "throughput/step_ms", [(3, 7.0), (4, 7.0)])
    assert differences(whole, other) == ["throughput/step_ms lacks steps [2]"]


def test_a_run_that_was_asked_to_end_logs_its_rest_besides(left: Left) -> None:
    other = with_points(left, "train/loss", [(2, 0.5), (3, 0.5), (4, 0.25)])
    assert differences(left, other, asked=1) == []


def test_elsewhere_rounding_may_differ_and_nothing_else(left: Left) -> None:
    def wrong(other: Left, moved_at: int = 0) -> list[str]:
        return rounded_differences(left, other, moved_at=moved_at, rtol=1e-3, atol=1e-6)

    assert wrong(left) == []
    assert wrong(with_points(left, "train/loss", [(2, 0.5), (4, 0.2500001)])) == []
    assert wrong(with_points(left, "train/loss", [(2, 0.5)])) == ["train/loss lacks points"]
    assert wrong(replace(left, faults=("run 1 is RUNNING",))) == ["run 1 is RUNNING"]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("whole"))


def killed(references: References, config: Config, folder: Path, *deaths: tuple[str, float]) -> Case:
    """Tries a case whose processes die at a kind of event, each after a share of those that the whole run sees."""
    whole = references.of(config)
    found = [Moment(kind, math.ceil(share * whole.counts[kind])) for kind, share in deaths]
    places = kills.PLACES if config.moves else ((),) * 4
    chosen = [Life(*pair) for pair in zip([*found, None], ((), *places), strict=False)]
    return kills.tried(config, chosen, folder / "case", whole)


@pytest.mark.nightly
@pytest.mark.parametrize(("engine", "feature"), [("keras_dtensor", "steps"), ("jax", "stopping")])
def test_killed_in_a_checkpoint_in_the_start_and_while_the_best_is_noted_it_ends_the_same(
    tmp_path: Path, references: References, engine: str, feature: str
) -> None:
    config = Config(engine, "batch2", feature)
    case = killed(references, config, tmp_path, ("checkpoint", 0.3), ("folder", 0.3), ("record", 0.5))
    assert case.held, case.note
    assert case.note.startswith("killed 3 times")


@pytest.mark.nightly
def test_it_goes_on_elsewhere_with_the_same_losses(tmp_path: Path, references: References) -> None:
    config = Config("keras_dtensor", "batch2", "elsewhere")
    case = killed(references, config, tmp_path, ("checkpoint", 0.2), ("checkpoint", 0.2), ("checkpoint", 0.2))
    assert case.held, case.note
    assert case.note.startswith("killed 3 times")


def test_the_same_seed_gives_the_same_cases_and_many_cases_have_every_engine_and_feature() -> None:
    chosen = kills.configs(100, 7)
    assert chosen == kills.configs(100, 7) != kills.configs(100, 8)
    assert {one.engine for one in chosen} == set(kills.ENGINES)
    assert {one.feature for one in chosen} == set(kills.FEATURES)
    pairs = {(one.engine, one.feature) for one in kills.configs(1000, 7)}
    assert len(pairs) == len(kills.ENGINES) * len(kills.FEATURES)
    assert dying.parsed(str(Moment("store", 3, "SIGTERM", 0.2))) == Moment("store", 3, "SIGTERM", 0.2)
