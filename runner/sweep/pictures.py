"""Pictures of a search: how its best came, which keys mattered, and where in its space its trials were."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import optuna
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.ticker import LogLocator, MaxNLocator
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from runner.config.names import short_keys, short_value
from runner.report import palette
from runner.report.figures import save, show_last_tenth, subplots

# trials below which there is nothing to see, and nothing to weigh keys by
_FEW = 3
_FEW_TO_WEIGH = 10
_TICKS = 5  # of a key that is a number
_APART = 0.08  # of an axis, from its end to the next number
_SPREAD = 0.5  # of a choice's room, over which the trials that have it are spread
_LONGEST = 14  # characters of a choice
_SHADES = (0.1, 0.9)  # of the map that are seen on white


def draw(study: optuna.Study, folder: Path, metric: str) -> list[Path]:
    """Draws what there are trials enough for.

    Args:
      study: of the search.
      folder: gets `search_history.png`, `search_importances.png` and `search_parallel.png`.
      metric: what is searched for.

    Returns:
      The files.
    """
    trials = study.get_trials(deepcopy=False)
    done = [one for one in trials if one.state == TrialState.COMPLETE]
    if len(done) < _FEW:
        return []
    maximize = study.direction == optuna.study.StudyDirection.MAXIMIZE
    files = [folder / "search_history.png"]
    history(files[-1], trials, metric, maximize=maximize)
    keys = [key for key in done[-1].params if len({one.params.get(key) for one in done}) > 1]
    if len(keys) > 1:
        files.append(folder / "search_parallel.png")
        parallel(files[-1], trials, keys, metric, maximize=maximize)
    if len(keys) > 1 and len(done) >= _FEW_TO_WEIGH:
        files.append(folder / "search_importances.png")
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator, params=keys)
        importances(files[-1], found, metric, len(done))
    return files


def history(path: Path, trials: Sequence[FrozenTrial], metric: str, *, maximize: bool) -> None:
    """Draws each trial's value, and the best up to it as a staircase.

    Args:
      path: PNG file to write.
      trials: some of them complete.
      metric: its name.
      maximize: more of it is better.
    """
    done = [(one.number, _value(one)) for one in trials if one.state == TrialState.COMPLETE]
    pruned = [(one.number, value) for one in trials if one.state == TrialState.PRUNED and (value := _last(one))]
    numbers = [number for number, _ in done]
    values = [value for _, value in done]
    best = (np.maximum if maximize else np.minimum).accumulate(values)
    figure, axes = subplots(1, 1, figsize=(8.0, 4.4))
    last = max(one.number for one in trials)
    axes.step([*numbers, last], [*best, best[-1]], where="post", color=palette.EVALUATED, lw=1.8, label="best so far")
    axes.plot(numbers, values, "o", color=palette.TRAIN, label="trial", ms=6)
    if pruned:
        axes.plot(*zip(*pruned, strict=True), "x", color="#7A7A7A", label="ended early, its last value", ms=6)
    axes.set(xlabel="trial", title=f"{metric} ({'more' if maximize else 'less'} is better)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    show_last_tenth(axes, [value for _, value in (*done, *pruned)], rises=maximize)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    save(figure, path)


def importances(path: Path, shares: Mapping[str, float], metric: str, count: int) -> None:
    """Draws how much of the trials' differences each key explains, the largest on top.

    Args:
      path: PNG file to write.
      shares: key to its share.
      metric: its name.
      count: complete trials.
    """
    names = short_keys(list(shares))
    shown = sorted(shares.items(), key=lambda pair: -pair[1])
    figure, axes = subplots(1, 1, figsize=(7.0, 1.4 + 0.45 * len(shown)))
    bars = axes.barh([names[key] for key, _ in shown], [share for _, share in shown], color=palette.TRAIN, height=0.6)
    axes.bar_label(bars, [f"{share:.0%}" for _, share in shown], padding=4)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.08 * max(shares.values())), xlabel=f"share of the variance of {metric}, by fANOVA")
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_title(f"what {count} trials say of each key; few trials say little")
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    save(figure, path)


def parallel(path: Path, trials: Sequence[FrozenTrial], keys: Sequence[str], metric: str, *, maximize: bool) -> None:
    """Draws a trial as one line through its values of every key, colored by its result; those ended early are gray.

    Args:
      path: PNG file to write.
      trials: some of them complete.
      keys: across, in order.
      metric: its name.
      maximize: more of it is better; the best lines are dark and on top.
    """
    done = [one for one in trials if one.state == TrialState.COMPLETE and all(key in one.params for key in keys)]
    pruned = [one for one in trials if one.state == TrialState.PRUNED and all(key in one.params for key in keys)]
    done.sort(key=_value, reverse=not maximize)  # the best is drawn last
    values = [_value(one) for one in done]
    # a few that failed to learn would take all shades
    low = float(np.quantile(values, 0.1))
    high = max(values)
    if not maximize:
        low = min(values)
        high = float(np.quantile(values, 0.9))
    norm = Normalize(low, high if high > low else low + 1, clip=True)
    shades = ListedColormap(colormaps["viridis_r" if maximize else "viridis"](np.linspace(*_SHADES, 256)))
    figure, axes = subplots(1, 1, figsize=(2.2 + 1.9 * len(keys), 4.8))
    scales = [_Scale([*pruned, *done], key) for key in keys]
    places = range(len(keys))
    for index, one in enumerate([*pruned, *done]):
        line = [scale.place(one.params[key], index) for key, scale in zip(keys, scales, strict=True)]
        if one.state == TrialState.PRUNED:
            axes.plot(places, line, color=palette.OTHER, lw=0.8, zorder=1)
        else:
            axes.plot(places, line, color=shades(norm(_value(one))), lw=1.6, marker="o", ms=4, zorder=2)
    for at, scale in enumerate(scales):
        scale.draw(axes, at)
    axes.set_xticks(places, list(short_keys(list(keys)).values()))
    axes.tick_params(axis="x", length=0)
    axes.set(xlim=(-0.3, len(keys) - 0.8), ylim=(-0.04, 1.04), yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    left = f"; {len(pruned)} ended early, in gray" if pruned else ""
    axes.set_title(f"{len(done)} trials, a line each{left}")
    ends = ("min" if maximize else "max") if min(values) < low or max(values) > high else "neither"
    figure.colorbar(ScalarMappable(norm, shades), ax=axes, label=metric, extend=ends)
    save(figure, path)


class _Scale:
    """One key's axis: its values from 0 to 1, by logarithm where the search draws them so."""

    def __init__(self, trials: Sequence[FrozenTrial], key: str) -> None:
        distribution = trials[0].distributions[key]
        self._choices: list[object] = []
        self._count = max(len(trials) - 1, 1)
        self._log = False
        if isinstance(distribution, CategoricalDistribution):
            self._choices = list(distribution.choices)
        elif isinstance(distribution, FloatDistribution | IntDistribution):
            self._log = distribution.log
            self._low, self._high = self._number(distribution.low), self._number(distribution.high)

    def _number(self, value: float) -> float:
        return math.log10(value) if self._log else float(value)

    def place(self, value: object, index: int) -> float:
        """Returns where a value lies, from 0 to 1; the trials of one choice lie beside each other."""
        if self._choices:
            return (self._choices.index(value) + 0.5 + _SPREAD * (index / self._count - 0.5)) / len(self._choices)
        assert isinstance(value, int | float)
        return (self._number(value) - self._low) / ((self._high - self._low) or 1.0)

    def draw(self, axes: Axes, at: float) -> None:
        """Draws the axis with its numbers or words."""
        axes.axvline(at, color="#555555", lw=0.8, zorder=0)
        ticks = [((index + 0.5) / len(self._choices), str(one)) for index, one in enumerate(self._choices)]
        if not self._choices:
            ticks = [(self.place(value, 0), f"{value:.3g}") for value in self._round()]
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
        for place, text in ticks:
            text = short_value(text)[:_LONGEST]
            axes.text(at - 0.03, place, text, fontsize=8, ha="right", va="center", bbox=box, zorder=3)

    def _round(self) -> list[float]:
        """Returns the ends and round numbers between them."""
        ends = [10**end if self._log else end for end in (self._low, self._high)]
        locator = LogLocator() if self._log and self._high - self._low >= 2 else MaxNLocator(_TICKS)
        between = [one for one in locator.tick_values(*ends) if ends[0] < one < ends[1]]
        near = [one for one in between if min(abs(self.place(one, 0) - edge) for edge in (0, 1)) > _APART]
        return [ends[0], *map(float, near), ends[1]]


def _value(trial: FrozenTrial) -> float:
    assert trial.value is not None
    return trial.value


def _last(trial: FrozenTrial) -> float | None:
    return trial.intermediate_values[max(trial.intermediate_values)] if trial.intermediate_values else None
