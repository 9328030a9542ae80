"""Pictures of a search: its history, and Optuna's own of its trials in parallel coordinates and its keys."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import optuna
from matplotlib import pyplot, rc_context
from matplotlib.ticker import StrMethodFormatter
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization.matplotlib import plot_parallel_coordinate, plot_param_importances

from runner import figures

_FEWEST_TRIALS = 3  # below, there is nothing to see
_FEWEST_TO_WEIGH = 10  # below, fANOVA fits noise


def draw(study: optuna.Study, folder: Path, metric: str) -> list[Path]:
    """Draws the pictures that there are enough trials for.

    Args:
      study: of the search.
      folder: gets `search_history.png`, `search_parallel.png` and `search_importances.png`.
      metric: that is optimized.

    Returns:
      The files.
    """
    trials = study.get_trials(deepcopy=False)
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if len(complete) < _FEWEST_TRIALS:
        return []
    maximize = study.direction == optuna.study.StudyDirection.MAXIMIZE
    files = [folder / "search_history.png"]
    title = f"{metric} ({'more' if maximize else 'less'} is better)"
    rising = [title] if maximize else []
    figures.curves(files[0], {title: history(trials, maximize=maximize)}, "trial", rising=rising)
    # A key with the same value in all trials says nothing, and a single one has no other to be compared with.
    keys = [key for key in complete[-1].params if len({trial.params.get(key) for trial in complete}) > 1]
    # Optuna draws with pyplot: not on the screen of whoever has one, and its style for its pictures only.
    with rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        matplotlib.use("Agg")
        if len(keys) > 1:
            files.append(folder / "search_parallel.png")
            _save(plot_parallel_coordinate(study, params=keys, target_name=metric), files[-1], 3.0 + 1.8 * len(keys))
        if len(keys) > 1 and len(complete) >= _FEWEST_TO_WEIGH:
            files.append(folder / "search_importances.png")
            # With a fixed seed: fANOVA's random forest would draw another picture of the same trials each time.
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
            _save(plot_param_importances(study, evaluator=evaluator, params=keys, target_name=metric), files[-1], 8.0)
    return files


def _save(axes: matplotlib.axes.Axes, path: Path, width: float) -> None:
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_size_inches(width, 4.8)
    for one in figure.axes:
        if one.get_yscale() == "log":
            # Powers of ten would be formulas, and `save` draws none.
            one.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    figures.save(figure, path)
    pyplot.close(figure)


def history(trials: Sequence[FrozenTrial], *, maximize: bool) -> list[figures.Curve]:
    """Returns each trial's value, and the best up to it as a staircase.

    Args:
      trials: some of them complete.
      maximize: more is better.
    """
    points: list[tuple[float, float]] = []
    pruned: list[tuple[float, float]] = []
    stairs: list[tuple[float, float]] = []
    for trial in trials:
        if trial.state == TrialState.COMPLETE:
            assert trial.value is not None
            points.append((trial.number, trial.value))
            best = stairs[-1][1] if stairs else trial.value
            stairs += [
                (trial.number, best),
                (trial.number, max(best, trial.value) if maximize else min(best, trial.value)),
            ]
        elif trial.state == TrialState.PRUNED and trial.intermediate_values:
            pruned.append((trial.number, trial.intermediate_values[max(trial.intermediate_values)]))
    # The staircase continues to the last trial, which may have been pruned.
    stairs.append((max(trial.number for trial in trials), stairs[-1][1]))
    drawn = [
        figures.Curve("best so far", stairs, figures.EVALUATED, ","),
        figures.Curve("trial", points, marker="o", width=0.0),
    ]
    if pruned:
        drawn.append(figures.Curve("ended early, its last value", pruned, "#7A7A7A", "x", 0.0))
    return drawn
