"""A search by Optuna: one process a trial, bad trials ended early, the study in a file that a resumed sweep reads."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from runner.host.late import late
from runner.host.secrets import STUDIES, reveal
from runner.sweep.jobs import Job, JobStatus, Outcome
from runner.sweep.member import VALUES_FILE
from runner.sweep.space import distribution
from runner.sweep.state import Sweep, arguments_of, own_overrides
from runner.tracking.location import absolute, sqlite_path

if TYPE_CHECKING:
    from runner.sweep import pictures
else:
    pictures = late("runner.sweep.pictures")

_INTERRUPTED = "interrupted"  # user attribute of a trial that had no fair chance; it is tried again
_DONE = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
_WORDS: dict[TrialState, JobStatus] = {
    TrialState.COMPLETE: "skipped",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class Settings:
    """What `hydra.sweeper` says of a search.

    Attributes:
      n_trials: in all, those of earlier sittings included.
      storage: URI of the study's database.
      study: its name; null: the sweep's run id, so that a resumed sweep finds it.
      seed: of the sampler.
      startup_trials: drawn at random before the sampler learns from them, and compared before any is pruned.
      warmup_values: evaluations of a trial before it may be pruned.
      prune: whether bad trials are ended early.
      from_default: whether the first trial is the config as it would run without a search.
    """

    n_trials: int
    storage: str
    study: str | None
    seed: int
    startup_trials: int
    warmup_values: int
    prune: bool
    from_default: bool


class Search:
    """Asks the study for trials, hands it their values, and tells it how they ended; a `schedule.Watcher`."""

    def __init__(self, sweep: Sweep, master: DictConfig, loader: ConfigLoader, settings: Settings) -> None:
        """Opens the study, or the one that an earlier sitting left.

        Args:
          sweep: whose jobs the trials are.
          master: the multirun's config.
          loader: composes the trials' configs.
          settings: of the search.

        Raises:
          ConfigError: a range that can't be.
        """
        self._sweep = sweep
        self._loader = loader
        self._settings = settings
        overrides = OverridesParser.create(config_loader=loader).parse_overrides(arguments_of(master))
        self._space = {one.get_key_element(): distribution(one) for one in overrides if one.is_sweep_override()}
        self._fixed = [str(one.input_line) for one in overrides if not one.is_sweep_override()]
        self._study = _open_study(sweep, settings)
        self._open: dict[int, optuna.Trial] = {}
        self._read: dict[int, tuple[int, int]] = {}  # bytes and values of a trial's file that were seen
        self._take_up(master)

    @property
    def metric(self) -> str:
        """What is searched for, and reported by the trials as they go."""
        return self._sweep.settings.metric

    @property
    def count(self) -> int:
        """How many trials are left."""
        return max(0, self._settings.n_trials - self._count())

    def trials(self) -> Iterator[Job]:
        """Yields trials as jobs until there are enough; one whose config is refused fails at once."""
        while self._count() + len(self._open) < self._settings.n_trials:
            trial = self._study.ask(self._space)
            self._open[trial.number] = trial
            words = [f"{key}={_typed(value)}" for key, value in trial.params.items()]
            job = self._sweep.plan(self._loader, [*self._fixed, *words], number=trial.number)
            if job is not None:
                yield job
            else:
                planned = self._sweep.ledger.jobs[-1]
                outcome = self._sweep.ledger.outcome(planned)
                self._tell(trial, planned, outcome)
                print(f"job {planned.number}, {planned.name}: {outcome.status}, {outcome.note}", flush=True)

    def should_stop(self, job: Job) -> bool:
        """Hands the trial's new values to the study, and asks whether it is worth going on."""
        trial = self._open[job.number]
        path = job.folder / VALUES_FILE
        size = path.stat().st_size if path.exists() else 0
        seen_bytes, seen = self._read.get(job.number, (0, 0))
        if not self._settings.prune or size == seen_bytes:
            return False
        values = _values(path)
        self._read[job.number] = (size, len(values))
        for index, value in enumerate(values[seen:], start=seen + 1):  # by evaluation: steps differ with batch sizes
            trial.report(value, index)
        return len(values) > self._settings.warmup_values and trial.should_prune()

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Tells the study and the sweep how a trial ended."""
        self._sweep.ended(job, outcome)
        self._tell(self._open[job.number], job, outcome)

    def draw(self, folder: Path) -> list[Path]:
        """Draws the search into a folder, and returns the pictures' paths."""
        return pictures.draw(self._study, folder, self.metric)

    def _tell(self, trial: optuna.Trial, job: Job, outcome: Outcome) -> None:
        del self._open[trial.number]
        values = _values(job.folder / VALUES_FILE)
        if outcome.status == "skipped" and job.number in self._sweep.before:
            values = [self._sweep.before[job.number].data.metrics.get(self.metric, math.nan)]
        if outcome.status == "pruned":
            self._study.tell(trial, state=TrialState.PRUNED)
        elif outcome.status in ("passed", "skipped") and values and math.isfinite(values[-1]):
            self._study.tell(trial, values[-1])
        else:
            if outcome.status == "killed" and self._sweep.stop.requested:
                trial.set_user_attr(_INTERRUPTED, True)
                self._study.enqueue_trial(trial.params)
            self._study.tell(trial, state=TrialState.FAIL)

    def result(self, job: Job, outcome: Outcome) -> str:
        """Returns a trial's last value, and the best so far."""
        del outcome
        values = _values(job.folder / VALUES_FILE)
        complete = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        said = [f"{self.metric} {values[-1]:.4g}"] if values else []
        said += [f"best {self._study.best_value:.4g} of job {self._study.best_trial.number}"] if complete else []
        return ", ".join(said)

    def _count(self) -> int:
        return sum(not one.user_attrs.get(_INTERRUPTED) for one in self._study.get_trials(False, states=_DONE))

    def _take_up(self, master: DictConfig) -> None:
        """Enters earlier trials into the ledger; those that a killed search left open are tried again."""
        earlier = self._study.get_trials(deepcopy=False)
        for frozen in earlier:
            if frozen.state == TrialState.RUNNING:
                trial = optuna.Trial(self._study, frozen._trial_id)
                trial.set_user_attr(_INTERRUPTED, True)
                self._study.enqueue_trial(frozen.params)
                self._study.tell(trial, state=TrialState.FAIL)
            elif frozen.state in _DONE and not frozen.user_attrs.get(_INTERRUPTED):
                self._enter(frozen)
        default = _default(master, self._space)
        if not earlier and self._settings.from_default and default is not None:
            self._study.enqueue_trial(default)

    def _enter(self, frozen: FrozenTrial) -> None:
        varied = {key.lstrip("+"): _typed(value) for key, value in frozen.params.items()}
        overrides = own_overrides([*self._fixed, *(f"{key}={_typed(value)}" for key, value in frozen.params.items())])
        job = Job(frozen.number, overrides, self._sweep.folder / str(frozen.number), varied)
        self._sweep.ledger.add(job, Outcome(_WORDS[frozen.state], note="a trial of an earlier sitting"))
        if (run := self._sweep.earlier_run(job)) is not None:
            self._sweep.before[frozen.number] = run


def _open_study(sweep: Sweep, settings: Settings) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    uri = absolute(reveal(STUDIES, settings.storage))
    path = sqlite_path(uri)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    sampler = optuna.samplers.TPESampler(seed=settings.seed, n_startup_trials=settings.startup_trials)
    pruner = optuna.pruners.MedianPruner(
        n_startup_trials=settings.startup_trials, n_warmup_steps=settings.warmup_values
    )
    parent = sweep.parent
    sweep.check()
    name = settings.study or (parent.run_id if parent else sweep.folder.name)
    return optuna.create_study(
        storage=uri,
        sampler=sampler,
        pruner=pruner,
        study_name=name,
        direction=sweep.direction,
        load_if_exists=True,
    )


def _default(master: DictConfig, space: Mapping[str, BaseDistribution]) -> dict[str, Any] | None:
    """Returns the config's own values of what is searched; None where one lies outside its range."""
    found: dict[str, Any] = {}
    for key, one in space.items():
        value = master.hydra.runtime.choices.get(key) or OmegaConf.select(master, key)
        if isinstance(one, CategoricalDistribution):
            value = next((choice for choice in one.choices if str(choice) == str(value)), None)
        elif isinstance(one, FloatDistribution | IntDistribution):
            inside = isinstance(value, int | float) and one.low <= value <= one.high
            value = value if inside else None
        if value is None:
            return None
        found[key] = value
    return found


def _typed(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _values(path: Path) -> list[float]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    values = []
    for line in lines:
        try:
            values.append(float(json.loads(line)["value"]))
        except (ValueError, KeyError):  # the last line may be half written
            break
    return values
