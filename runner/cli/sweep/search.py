"""A search by Optuna: one process per trial, bad trials ended early, the study in a database for resumed sweeps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from runner.cli.sweep.jobs import (
    Job,
    JobStatus,
    Outcome,
)
from runner.cli.sweep.space import distribution
from runner.cli.sweep.state import (
    Sweep,
    arguments_of,
    own_overrides,
)
from runner.host.late import late
from runner.host.secrets import STUDIES, reveal
from runner.tracking.location import absolute, sqlite_path
from runner.tracking.member import VALUES_FILE

if TYPE_CHECKING:
    from runner.cli.sweep import pictures
else:
    pictures = late("runner.cli.sweep.pictures")

# User attribute of a trial that a signal ended: it says nothing of its values, and these are tried again.
_INTERRUPTED = "interrupted"
_ENDED_STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
_STATUS_OF_EARLIER_TRIALS: dict[TrialState, JobStatus] = {
    TrialState.COMPLETE: "skipped",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class Settings:
    """Settings of a search, `hydra.sweeper`.

    Attributes:
      n_trials: in total, including those before a resumption.
      storage: URI of the study's database.
      study: its name; None: the sweep's run id, so that a resumed sweep finds it.
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
    """Asks the study for trials, reports their values and outcomes to it; a `schedule.Watcher`."""

    def __init__(self, sweep: Sweep, master: DictConfig, loader: ConfigLoader, settings: Settings) -> None:
        """Opens the study: a new one, or the one of the sweep that this one resumes.

        Args:
          sweep: whose jobs the trials are.
          master: the multirun's config.
          loader: composes the trials' configs.
          settings: the settings of the search.

        Raises:
          ConfigError: an invalid range.
        """
        self._sweep = sweep
        self._loader = loader
        self._settings = settings
        self._space: dict[str, BaseDistribution] = {}
        self._fixed: list[str] = []  # overrides that all trials have
        for override in OverridesParser.create(config_loader=loader).parse_overrides(arguments_of(master)):
            if override.is_sweep_override():
                self._space[override.get_key_element()] = distribution(override)
            else:
                self._fixed.append(str(override.input_line))
        self._study = _open_study(sweep, settings)
        self._open_trials: dict[int, optuna.Trial] = {}
        self._read: dict[int, tuple[int, int]] = {}  # of each trial's file: bytes and values that were read
        self._add_earlier_trials(master)

    @property
    def metric(self) -> str:
        """The metric that is optimized; trials report it as they run."""
        return self._sweep.settings.metric

    @property
    def count(self) -> int:
        """How many trials are left."""
        return max(0, self._settings.n_trials - self._ended_trials())

    def trials(self) -> Iterator[Job]:
        """Yields trials as jobs until there are enough; one with an invalid config fails at once."""
        while self._ended_trials() + len(self._open_trials) < self._settings.n_trials:
            self._study.sampler = _sampler(self._settings, self._begun_trials())
            trial = self._study.ask(self._space)
            self._open_trials[trial.number] = trial
            overrides = [*self._fixed, *_overrides_of(trial.params)]
            job = self._sweep.plan(self._loader, overrides, number=trial.number)
            if job is not None:
                yield job
                continue
            # The display only knows jobs that ran.
            job = self._sweep.ledger.jobs[-1]
            outcome = self._sweep.ledger.outcome(job)
            self._tell(trial, job, outcome)
            print(f"job {job.number}, {job.name}: {outcome.status}, {outcome.note}", flush=True)

    def should_stop(self, job: Job) -> bool:
        """Reports the trial's new values to the study, and returns whether it should be pruned."""
        if not self._settings.prune:
            return False
        trial = self._open_trials[job.number]
        path = job.folder / VALUES_FILE
        size = path.stat().st_size if path.exists() else 0
        read_bytes, read_values = self._read.get(job.number, (0, 0))
        if size == read_bytes:
            return False
        values = _values(path)
        self._read[job.number] = (size, len(values))
        # By the number of the evaluation, since steps differ with batch sizes.
        for evaluation, value in enumerate(values[read_values:], start=read_values + 1):
            trial.report(value, evaluation)
        return len(values) > self._settings.warmup_values and trial.should_prune()

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Passes a trial's outcome on to the sweep and the study."""
        self._sweep.ended(job, outcome)
        self._tell(self._open_trials[job.number], job, outcome)

    def draw(self, folder: Path) -> list[Path]:
        """Draws the search into a folder, and returns the pictures' paths."""
        return pictures.draw(self._study, folder, self.metric)

    def _tell(self, trial: optuna.Trial, job: Job, outcome: Outcome) -> None:
        """Ends a trial in the study."""
        del self._open_trials[trial.number]
        values = _values(job.folder / VALUES_FILE)
        if outcome.status == "skipped" and job.number in self._sweep.finished_runs:
            metrics = self._sweep.finished_runs[job.number].data.metrics
            values = [metrics.get(self.metric, math.nan)]
        has_value = bool(values) and math.isfinite(values[-1])
        if outcome.status == "pruned":
            self._study.tell(trial, state=TrialState.PRUNED)
        elif outcome.status in ("passed", "skipped") and has_value:
            self._study.tell(trial, values[-1])
        elif outcome.status == "killed" and self._sweep.stop.requested:
            self._fail_interrupted(trial)
        else:
            self._study.tell(trial, state=TrialState.FAIL)

    def _fail_interrupted(self, trial: optuna.Trial) -> None:
        """Ends a trial as failed whose values a resumed sweep tries again."""
        trial.set_user_attr(_INTERRUPTED, True)
        self._study.enqueue_trial(trial.params)
        self._study.tell(trial, state=TrialState.FAIL)

    def result(self, job: Job, outcome: Outcome) -> str:
        """Returns a trial's last value, and the best so far."""
        del outcome
        parts = []
        values = _values(job.folder / VALUES_FILE)
        if values:
            parts.append(f"{self.metric} {values[-1]:.4g}")
        if self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
            parts.append(f"best {self._study.best_value:.4g} of job {self._study.best_trial.number}")
        return ", ".join(parts)

    def _ended_trials(self) -> int:
        """Returns how many trials have ended, other than by a signal."""
        trials = self._study.get_trials(False, states=_ENDED_STATES)
        return sum(not trial.user_attrs.get(_INTERRUPTED) for trial in trials)

    def _begun_trials(self) -> int:
        """Returns how many trials have begun; one that a signal ended counts when it is tried again."""
        trials = self._study.get_trials(False, states=(*_ENDED_STATES, TrialState.RUNNING))
        return sum(not trial.user_attrs.get(_INTERRUPTED) for trial in trials)

    def _add_earlier_trials(self, master: DictConfig) -> None:
        """Adds the trials before a resumption to the ledger; those that a killed sweep left open are tried again."""
        earlier = self._study.get_trials(deepcopy=False)
        for frozen in earlier:
            if frozen.state == TrialState.RUNNING:
                # Optuna has no public way to continue a trial of another process.
                self._fail_interrupted(optuna.Trial(self._study, frozen._trial_id))
            elif frozen.state in _ENDED_STATES and not frozen.user_attrs.get(_INTERRUPTED):
                self._add_earlier_trial(frozen)
        if not earlier and self._settings.from_default:
            default = _default(master, self._space)
            if default is not None:
                self._study.enqueue_trial(default)

    def _add_earlier_trial(self, frozen: FrozenTrial) -> None:
        overrides = own_overrides([*self._fixed, *_overrides_of(frozen.params)])
        varied = {key.lstrip("+"): _as_typed(value) for key, value in frozen.params.items()}
        job = Job(frozen.number, overrides, self._sweep.folder / str(frozen.number), varied)
        status = _STATUS_OF_EARLIER_TRIALS[frozen.state]
        self._sweep.ledger.add(job, Outcome(status, note="a trial before the sweep was resumed"))
        run = self._sweep.earlier_run(job)
        if run is not None:
            self._sweep.finished_runs[frozen.number] = run


def _open_study(sweep: Sweep, settings: Settings) -> optuna.Study:
    # Optuna prints a line per trial otherwise, between those of the display.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    uri = absolute(reveal(STUDIES, settings.storage))
    path = sqlite_path(uri)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    pruner = optuna.pruners.MedianPruner(
        n_startup_trials=settings.startup_trials, n_warmup_steps=settings.warmup_values
    )
    parent = sweep.parent
    sweep.check()  # without its run the sweep could not be resumed
    default_name = sweep.folder.name if parent is None else parent.run_id
    return optuna.create_study(
        storage=uri,
        sampler=_sampler(settings, 0),
        pruner=pruner,
        study_name=settings.study or default_name,
        direction=sweep.direction,
        load_if_exists=True,
    )


def _sampler(settings: Settings, number: int) -> optuna.samplers.BaseSampler:
    """Returns the sampler of one trial.

    What it draws depends on the seed, the trial's place in the study and the values before it. A sampler of all trials
    would have a state that a resumed search does not know: it would draw the first trials again.

    Args:
      settings: of the search.
      number: trials that have begun before this one.
    """
    (seed,) = np.random.SeedSequence([settings.seed, number]).generate_state(1)
    return optuna.samplers.TPESampler(seed=int(seed), n_startup_trials=settings.startup_trials)


def _default(master: DictConfig, space: Mapping[str, BaseDistribution]) -> dict[str, Any] | None:
    """Returns the config's own values of the keys that are searched; None where one is outside its range."""
    params: dict[str, Any] = {}
    for key, allowed in space.items():
        value = master.hydra.runtime.choices.get(key) or OmegaConf.select(master, key)
        if isinstance(allowed, CategoricalDistribution):
            same = [choice for choice in allowed.choices if str(choice) == str(value)]
            if not same:
                return None
            value = same[0]
        elif isinstance(allowed, FloatDistribution | IntDistribution):
            is_inside = isinstance(value, int | float) and allowed.low <= value <= allowed.high
            if not is_inside:
                return None
        params[key] = value
    return params


def _overrides_of(params: Mapping[str, object]) -> list[str]:
    return [f"{key}={_as_typed(value)}" for key, value in params.items()]


def _as_typed(value: object) -> str:
    """Returns a value as an override has it; a float with all its digits, so that a trial can be repeated."""
    return repr(value) if isinstance(value, float) else str(value)


def _values(path: Path) -> list[float]:
    """Returns the metric's values in a trial's file; its last line may be half written."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    values = []
    for line in lines:
        try:
            values.append(float(json.loads(line)["value"]))
        except (ValueError, KeyError):
            break
    return values
