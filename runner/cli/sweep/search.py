"""A search by Optuna: one process per trial, the study in a database for resumed sweeps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import matplotlib
import numpy as np
import optuna
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep, Transformer
from matplotlib import pyplot, rc_context
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.study import StudyDirection
from optuna.trial import TrialState
from optuna.visualization import matplotlib as drawing

from runner import figures
from runner.cli.runs.records import from_run, results_of
from runner.cli.sweep.sweep import Sweep
from runner.cluster.jobs import Job, JobStatus, Outcome
from runner.config.schema_hydra import SearchSweeper
from runner.errors import ConfigError
from runner.host.secrets import STUDIES, reveal
from runner.tracking.location import absolute, sqlite_path

_EARLIER = "a trial before the sweep was resumed"
_FEWEST_TO_DRAW = 3  # trials; below, a picture has nothing to show
_FEWEST_TO_WEIGH = 10  # trials; below, fANOVA fits noise


class Search:
    """Asks the study for trials, and reports their values and outcomes to it."""

    def __init__(self, sweep: Sweep, settings: SearchSweeper) -> None:
        """Records the sweep, and opens its study: a new one, or the one of the sweep that this one resumes."""
        self._sweep = sweep
        self._settings = settings
        self._space: dict[str, BaseDistribution] = {}
        self._fixed: list[str] = []
        for override in sweep.settings.overrides:
            if override.is_sweep_override():
                self._space[override.get_key_element()] = distribution(override)
            else:
                self._fixed.append(str(override.input_line))
        sweep.record()
        name = sweep.settings.folder.name if sweep.parent is None else sweep.parent.run_id
        # Optuna prints a line per trial otherwise, between those of the sweep.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        uri = absolute(reveal(STUDIES, settings.storage))
        path = sqlite_path(uri)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        direction = StudyDirection[str(sweep.settings.group.direction).upper()]
        self._study = optuna.create_study(
            storage=uri, sampler=_sampler(settings, 0), study_name=name, direction=direction, load_if_exists=True
        )

    @property
    def count(self) -> int:
        """How many trials are left."""
        ended = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))
        return max(0, self._settings.n_trials - len(ended))

    def trials(self) -> Iterator[Job]:
        """Yields trials as jobs until there are enough; one with an invalid config fails at once.

        Those of a sweep that is resumed come first: what ended is only listed, and what was interrupted runs again.
        """
        for frozen in self._study.get_trials(deepcopy=False):
            is_open = frozen.state == TrialState.RUNNING
            # Killed before all its values were drawn: run, it would have the defaults of the others.
            if is_open and not self._space.keys() <= frozen.params.keys():
                self._study.tell(frozen.number, state=TrialState.FAIL)
                is_open = False
            if is_open:
                yield from self._planned(frozen.number, frozen.params)
            else:
                self._sweep.add([*self._fixed, *_overrides_of(frozen.params)], frozen.number)
                status: JobStatus = "skipped" if frozen.state == TrialState.COMPLETE else "failed"
                self._sweep.outcomes[frozen.number] = Outcome(status, note=_EARLIER)
        while (begun := len(self._study.get_trials(deepcopy=False))) < self._settings.n_trials:
            self._study.sampler = _sampler(self._settings, begun)
            trial = self._study.ask(self._space)
            yield from self._planned(trial.number, trial.params)

    def _planned(self, number: int, params: Mapping[str, object]) -> Iterator[Job]:
        """Adds a trial to the sweep's jobs, and yields the job unless it needs no run, which ends the trial."""
        job = self._sweep.plan([*self._fixed, *_overrides_of(params)], number)
        if job is not None:
            yield job
        else:
            self.tell(self._sweep.jobs[-1], self._sweep.outcomes[number])

    def tell(self, job: Job, outcome: Outcome) -> None:
        """Ends a trial in the study; one that a signal ended stays open, for a resumed sweep."""
        if outcome.status == "killed" and self._sweep.stop.requested:
            return
        results: Mapping[str, float] = results_of(job.folder)
        if outcome.status == "skipped":
            results = from_run(self._sweep.finished_runs[job.number]).metrics
        value = results.get(self._sweep.settings.group.metric, math.nan)
        # A trial of an earlier sitting may have ended then.
        if outcome.status in ("passed", "skipped") and math.isfinite(value):
            self._study.tell(job.number, value, skip_if_finished=True)
        else:
            self._study.tell(job.number, state=TrialState.FAIL, skip_if_finished=True)

    def draw(self, folder: Path) -> list[Path]:
        """Draws Optuna's pictures that there are enough trials for into a folder, and returns their paths."""
        complete = self._study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        # A key with the same value in all trials says nothing, and a single one has no other to be compared with.
        keys = [key for key in self._space if len({trial.params.get(key) for trial in complete}) > 1]
        plots: dict[str, Callable[..., matplotlib.axes.Axes]] = {}
        if len(complete) >= _FEWEST_TO_DRAW:
            plots["search_history.png"] = drawing.plot_optimization_history
        if len(complete) >= _FEWEST_TO_WEIGH and len(keys) > 1:
            # With a fixed seed: fANOVA's random forest would draw another picture of the same trials each time.
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
            plots["search_importances.png"] = partial(drawing.plot_param_importances, evaluator=evaluator, params=keys)
        # Optuna draws with pyplot: not on the screen of whoever has one, and its style for its pictures only.
        with rc_context(), warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            matplotlib.use("Agg")
            for name, plot in plots.items():
                figure = plot(self._study, target_name=self._sweep.settings.group.metric).get_figure(root=True)
                assert figure is not None
                figures.save(figure, folder / name)
                pyplot.close(figure)
        return list(map(folder.joinpath, plots))


def _sampler(settings: SearchSweeper, number: int) -> optuna.samplers.BaseSampler:
    """Returns the sampler of one trial, before which `number` trials have begun.

    What it draws depends on the seed, the trial's place in the study and the values before it. A sampler of all trials
    would have a state that a resumed search does not know: it would draw the first trials again.
    """
    (seed,) = np.random.SeedSequence([settings.seed, number]).generate_state(1)
    return optuna.samplers.TPESampler(seed=int(seed), n_startup_trials=settings.startup_trials)


def _overrides_of(params: Mapping[str, object]) -> list[str]:
    # `str` of a float has all its digits, so that a trial can be repeated.
    return [f"{key}={value}" for key, value in params.items()]


def distribution(override: Override) -> BaseDistribution:
    """Returns the distribution of a sweep override, log-uniform with `tag(log, ...)`; or raises ConfigError."""
    value = override.value()
    try:
        if isinstance(value, IntervalSweep):
            log = "log" in value.tags
            if isinstance(value.start, int) and isinstance(value.end, int):
                return IntDistribution(value.start, value.end, log=log)
            assert value.start is not None
            assert value.end is not None
            return FloatDistribution(float(value.start), float(value.end), log=log)
        if isinstance(value, RangeSweep):
            # A range of integers is searched as one, and may count down. A range of fractions is a choice among its
            # values, as they are typed.
            numbers = list(override.sweep_iterator())
            if len(numbers) > 1 and all(isinstance(number, int) for number in numbers):
                low, high = sorted((int(str(numbers[0])), int(str(numbers[-1]))))
                return IntDistribution(low, high, step=abs(int(str(numbers[1])) - int(str(numbers[0]))))
        return CategoricalDistribution(list(map(str, override.sweep_iterator(transformer=Transformer.encode))))
    except (ValueError, AssertionError) as error:
        problem = f"can't be searched ({str(error).rstrip('.')})"
        fix = "write the lower end first, and above 0 for log"
        raise ConfigError(f"{override.input_line}: {problem}; {fix}") from error
