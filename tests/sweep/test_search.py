"""The search: ranges, NaN and resuming, with trials that are made up instead of trained."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from runner.cli.sweep.search import Search, distribution
from runner.cli.sweep.sweep import varied_of
from runner.cluster.jobs import Job, Outcome
from runner.config.schema import SweepConfig
from runner.config.schema_hydra import SearchSweeper
from runner.errors import ConfigError

RATE = "optimizer.learning_rate"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("a=tag(log,interval(1e-4,1e-1))", FloatDistribution(1e-4, 1e-1, log=True)),
        ("a=interval(0.0,1.0)", FloatDistribution(0.0, 1.0)),
        ("a=int(tag(log,interval(1,64)))", IntDistribution(1, 64, log=True)),
        ("a=range(2,9,3)", IntDistribution(2, 8, step=3)),
        ("a=64,128", CategoricalDistribution(["64", "128"])),
        ("a=choice(fsdp,megatron)", CategoricalDistribution(["fsdp", "megatron"])),
    ],
)
def test_a_sweep_override_is_a_distribution(override: str, expected: object) -> None:
    (parsed,) = OverridesParser.create().parse_overrides([override])
    assert distribution(parsed) == expected


@pytest.mark.parametrize("override", ["a=tag(log,interval(0.0,1.0))", "a=interval(2.0,1.0)"])
def test_an_invalid_range_is_an_error(override: str) -> None:
    (parsed,) = OverridesParser.create().parse_overrides([override])
    with pytest.raises(ConfigError, match="can't be searched"):
        distribution(parsed)


class MadeUp:
    """A sweep whose jobs run nowhere: `score` says what a learning rate gives."""

    def __init__(self, folder: Path, score: Callable[[float], float], *others: str) -> None:
        self.folder, self.score, self.parent = folder, score, None
        overrides = OverridesParser.create().parse_overrides(
            [f"{RATE}=tag(log,interval(1e-4,1.0))", "trainer.epochs=4", *others]
        )
        group = SweepConfig(metric="eval/accuracy", direction="maximize")
        self.settings = SimpleNamespace(group=group, folder=Path("made up"), overrides=overrides)
        self.jobs: list[Job] = []
        self.planned: list[int] = []
        self.outcomes: dict[int, Outcome] = {}
        self.stop = SimpleNamespace(requested=False)
        self.folder.mkdir(exist_ok=True)

    def record(self) -> None:
        """Nothing is tracked."""

    def plan(self, overrides: list[str], number: int) -> Job:
        self.planned.append(number)
        return self.add(overrides, number)

    def add(self, overrides: list[str], number: int) -> Job:
        job = Job(number, tuple(overrides), self.folder / str(number), varied_of(overrides, [RATE]))
        self.jobs.append(job)
        return job

    def open(self, n_trials: int, startup_trials: int = 2) -> Search:
        storage = f"sqlite:///{self.folder.parent / 'study.db'}"
        settings = SearchSweeper(n_trials=n_trials, storage=storage, seed=1, startup_trials=startup_trials)
        return Search(self, settings)  # type: ignore[arg-type]

    def run(self, search: Search, most: int = 100) -> None:
        """Runs trials; after `most` a signal comes in the middle of the next."""
        trials: Iterator[Job] = search.trials()
        for count, job in enumerate(trials):
            job.folder.mkdir()
            if count == most:
                self.stop.requested = True
                search.tell(job, Outcome("killed"))
                return
            search.tell(job, self._train(job))

    def _train(self, job: Job) -> Outcome:
        value = self.score(float(job.varied[RATE]))
        (job.folder / "summary.json").write_text(json.dumps({"eval_accuracy": value}))
        return Outcome("failed" if math.isnan(value) else "passed")

    @property
    def study(self) -> optuna.Study:
        storage = f"sqlite:///{self.folder.parent / 'study.db'}"
        return optuna.load_study(study_name="made up", storage=storage)


def peak(rate: float) -> float:
    """Best at a rate of 0.01."""
    return 1.0 - abs(math.log10(rate) + 2) / 4


def test_a_search_goes_on_after_an_interruption_up_to_its_number(tmp_path: Path) -> None:
    first = MadeUp(tmp_path / "first", peak)
    first.run(first.open(12), most=5)
    assert len(first.study.get_trials(states=[TrialState.COMPLETE])) == 5
    (cut_off,) = first.study.get_trials(states=[TrialState.RUNNING])

    second = MadeUp(tmp_path / "second", peak)
    second.run(second.open(12))
    fair = second.study.get_trials(states=[TrialState.COMPLETE])
    assert len(fair) == 12
    assert fair[cut_off.number].params == cut_off.params, "what was cut off is tried again"
    assert [second.outcomes[number].status for number in range(5)] == ["skipped"] * 5
    assert len(second.jobs) == 12, "the table has the trials of both sittings"
    assert second.planned == list(range(5, 12)), "what ended is not composed again"


def test_a_trial_that_was_killed_before_its_values_were_drawn_has_failed(tmp_path: Path) -> None:
    first = MadeUp(tmp_path / "first", peak)
    first.open(2)
    first.study.ask()
    second = MadeUp(tmp_path / "second", peak)
    second.run(second.open(2))
    states = [trial.state for trial in second.study.trials]
    assert (states, second.planned) == ([TrialState.FAIL, TrialState.COMPLETE], [1])
    assert second.outcomes[0].status == "failed"


def tried(made_up: MadeUp) -> list[float]:
    return [trial.params[RATE] for trial in made_up.study.get_trials(states=[TrialState.COMPLETE])]


@pytest.mark.parametrize(("first_number", "interrupted_in", "startup_trials"), [(3, 100, 2), (6, 4, 9)])
def test_a_resumed_search_draws_what_an_uninterrupted_one_draws(
    tmp_path: Path, first_number: int, interrupted_in: int, startup_trials: int
) -> None:
    (tmp_path / "whole").mkdir()
    whole = MadeUp(tmp_path / "whole" / "sweep", peak)
    whole.run(whole.open(6, startup_trials))
    assert len(set(tried(whole))) == 6

    first = MadeUp(tmp_path / "first", peak)
    first.run(first.open(first_number, startup_trials), most=interrupted_in)
    second = MadeUp(tmp_path / "second", peak)
    search = second.open(6, startup_trials)
    second.run(search)
    assert tried(second) == tried(whole)
    drawn = search.draw(tmp_path)
    assert [file.name for file in drawn if file.exists()] == ["search_history.png"], "one key has no other beside it"


def test_a_nan_is_a_failed_trial_and_never_the_best(tmp_path: Path) -> None:
    made_up = MadeUp(tmp_path / "first", lambda rate: math.nan if rate > 0.03 else peak(rate))
    made_up.run(made_up.open(8))
    states = {trial.state for trial in made_up.study.trials if trial.params[RATE] > 0.03}
    assert states == {TrialState.FAIL}
    assert made_up.study.best_trial.params[RATE] <= 0.03


def test_a_search_of_ten_trials_draws_what_its_keys_explain(tmp_path: Path) -> None:
    made_up = MadeUp(tmp_path / "first", peak, "dataset.batch_size=32,64")
    search = made_up.open(10)
    made_up.run(search)
    drawn = [file.name for file in search.draw(tmp_path) if file.exists()]
    assert drawn == ["search_history.png", "search_importances.png"]
