"""Pictures of a search: its history, the importance of its keys, and its trials in parallel coordinates.

Optuna's own plots show no pruned trials, join the best values by slanted lines, and print ticks over each other.
"""

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
from matplotlib.ticker import Locator, LogLocator, MaxNLocator
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from runner.config.names import short_keys, short_value
from runner.report import palette
from runner.report.figures import save, show_last_tenth, subplots

_FEWEST_TRIALS = 3  # below, there is nothing to see
_FEWEST_TO_WEIGH = 10  # below, fANOVA fits noise
_TICKS = 5  # of a key that is a number
_APART = 0.08  # share of an axis that the next number keeps from its end, so that the texts don't overlap
_SPREAD = 0.5  # share of a choice's part of its axis over which the trials that have it are spread
_SHOWN_CHARACTERS = 14  # of a choice: longer ones reach the next axis
_SHADES = (0.1, 0.9)  # part of the color map that is visible on white
_OUTLIERS = 0.1  # share of the trials, the worst, that get the color of the end of the scale


def draw(study: optuna.Study, folder: Path, metric: str) -> list[Path]:
    """Draws the pictures that there are enough trials for.

    Args:
      study: of the search.
      folder: gets `search_history.png`, `search_importances.png` and `search_parallel.png`.
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
    history(files[-1], trials, metric, maximize=maximize)
    # A single key has no other to be compared with: `plots.against` shows it.
    keys = [key for key in complete[-1].params if _differs(complete, key)]
    if len(keys) > 1:
        files.append(folder / "search_parallel.png")
        parallel(files[-1], trials, keys, metric, maximize=maximize)
    if len(keys) > 1 and len(complete) >= _FEWEST_TO_WEIGH:
        files.append(folder / "search_importances.png")
        # With a fixed seed: fANOVA's random forest would draw another picture of the same trials each time.
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator, params=keys)
        importances(files[-1], shares, metric, len(complete))
    return files


def _differs(trials: Sequence[FrozenTrial], key: str) -> bool:
    """Returns whether trials have several values of a key: one that is the same in all says nothing."""
    return len({trial.params.get(key) for trial in trials}) > 1


def history(path: Path, trials: Sequence[FrozenTrial], metric: str, *, maximize: bool) -> None:
    """Draws each trial's value, and the best up to it as a staircase.

    Args:
      path: PNG file to write.
      trials: some of them complete.
      metric: its name.
      maximize: more of it is better.
    """
    numbers: list[int] = []
    values: list[float] = []
    pruned_numbers: list[int] = []
    pruned_values: list[float] = []
    for trial in trials:
        last_value = _last_value(trial)
        if trial.state == TrialState.COMPLETE:
            numbers.append(trial.number)
            values.append(_value(trial))
        elif trial.state == TrialState.PRUNED and last_value is not None:
            pruned_numbers.append(trial.number)
            pruned_values.append(last_value)
    best = (np.maximum if maximize else np.minimum).accumulate(values)
    # The staircase continues to the last trial, which may have been pruned.
    steps = [*numbers, max(trial.number for trial in trials)]
    figure, axes = subplots(1, 1, figsize=(8.0, 4.4))
    axes.step(steps, [*best, best[-1]], where="post", color=palette.EVALUATED, lw=1.8, label="best so far")
    axes.plot(numbers, values, "o", color=palette.TRAIN, label="trial", ms=6)
    if pruned_numbers:
        axes.plot(pruned_numbers, pruned_values, "x", color="#7A7A7A", label="ended early, its last value", ms=6)
    better = "more" if maximize else "less"
    axes.set(xlabel="trial", title=f"{metric} ({better} is better)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    show_last_tenth(axes, [*values, *pruned_values], rises=maximize)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    save(figure, path)


def importances(path: Path, shares: Mapping[str, float], metric: str, count: int) -> None:
    """Draws how much of the variance between trials each key explains, the largest on top.

    Args:
      path: PNG file to write.
      shares: key -> its share.
      metric: its name.
      count: complete trials.
    """
    names = short_keys(list(shares))
    labels: list[str] = []
    widths: list[float] = []
    for key in sorted(shares, key=lambda key: -shares[key]):
        labels.append(names[key])
        widths.append(shares[key])
    figure, axes = subplots(1, 1, figsize=(7.0, 1.4 + 0.45 * len(labels)))
    bars = axes.barh(labels, widths, color=palette.TRAIN, height=0.6)
    axes.bar_label(bars, [f"{width:.0%}" for width in widths], padding=4)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.08 * max(shares.values())), xlabel=f"share of the variance of {metric}, by fANOVA")
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_title(f"importance of each key in {count} trials; unreliable with few trials")
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    save(figure, path)


def parallel(path: Path, trials: Sequence[FrozenTrial], keys: Sequence[str], metric: str, *, maximize: bool) -> None:
    """Draws each trial as a line through its values of every key, colored by its result; pruned ones are gray.

    Args:
      path: PNG file to write.
      trials: some of them complete.
      keys: across, in order.
      metric: its name.
      maximize: more of it is better; the best lines are dark and on top.
    """
    pruned: list[FrozenTrial] = []
    complete: list[FrozenTrial] = []
    for trial in trials:
        if not set(keys) <= set(trial.params):  # a trial of a study with another space
            continue
        if trial.state == TrialState.PRUNED:
            pruned.append(trial)
        elif trial.state == TrialState.COMPLETE:
            complete.append(trial)
    complete.sort(key=_value, reverse=not maximize)  # the best is drawn last, on top of the others
    norm, extend = _color_scale(list(map(_value, complete)), maximize=maximize)
    color_map = colormaps["viridis_r" if maximize else "viridis"]
    shades = ListedColormap(color_map(np.linspace(*_SHADES, 256)))
    figure, axes = subplots(1, 1, figsize=(2.2 + 1.9 * len(keys), 4.8))
    drawn = [*pruned, *complete]
    scales = [_Scale(drawn, key) for key in keys]
    places = range(len(keys))
    for index, trial in enumerate(drawn):
        heights = []
        for key, scale in zip(keys, scales, strict=True):
            heights.append(scale.place(trial.params[key], index))
        if trial.state == TrialState.PRUNED:
            axes.plot(places, heights, color=palette.OTHER, lw=0.8, zorder=1)
        else:
            axes.plot(places, heights, color=shades(norm(_value(trial))), lw=1.6, marker="o", ms=4, zorder=2)
    for place, scale in enumerate(scales):
        scale.draw(axes, place)
    axes.set_xticks(places, list(short_keys(list(keys)).values()))
    axes.tick_params(axis="x", length=0)
    axes.set(xlim=(-0.3, len(keys) - 0.8), ylim=(-0.04, 1.04), yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    title = f"{len(complete)} trials, one line each"
    if pruned:
        title += f"; {len(pruned)} ended early, in gray"
    axes.set_title(title)
    figure.colorbar(ScalarMappable(norm, shades), ax=axes, label=metric, extend=extend)
    save(figure, path)


def _color_scale(values: Sequence[float], *, maximize: bool) -> tuple[Normalize, str]:
    """Returns the scale of the colors, and which of its ends covers the values beyond it.

    The worst tenth is beyond it: a few trials that failed to learn would take all shades.
    """
    low = min(values)
    high = max(values)
    extend = "neither"
    if maximize:
        low = float(np.quantile(values, _OUTLIERS))
        if min(values) < low:
            extend = "min"
    else:
        high = float(np.quantile(values, 1 - _OUTLIERS))
        if max(values) > high:
            extend = "max"
    if high <= low:  # all values are the same
        high = low + 1
    return Normalize(low, high, clip=True), extend


class _Scale:
    """One key's axis: its values from 0 to 1, by logarithm where the search draws them so."""

    def __init__(self, trials: Sequence[FrozenTrial], key: str) -> None:
        distribution = trials[0].distributions[key]
        self._choices: list[object] = []
        self._last_index = max(len(trials) - 1, 1)
        self._is_log = False
        if isinstance(distribution, CategoricalDistribution):
            self._choices = list(distribution.choices)
        elif isinstance(distribution, FloatDistribution | IntDistribution):
            self._is_log = distribution.log
            self._low = self._number(distribution.low)
            self._high = self._number(distribution.high)

    def _number(self, value: float) -> float:
        return math.log10(value) if self._is_log else float(value)

    def place(self, value: object, index: int) -> float:
        """Returns the height of a value, from 0 to 1; trials with the same choice are spread by their index."""
        if self._choices:
            spread = _SPREAD * (index / self._last_index - 0.5)
            return (self._choices.index(value) + 0.5 + spread) / len(self._choices)
        assert isinstance(value, int | float)
        return (self._number(value) - self._low) / ((self._high - self._low) or 1.0)

    def draw(self, axes: Axes, x: float) -> None:
        """Draws the axis with its numbers or choices."""
        axes.axvline(x, color="#555555", lw=0.8, zorder=0)
        ticks: list[tuple[float, str]] = []
        if self._choices:
            for index, choice in enumerate(self._choices):
                ticks.append(((index + 0.5) / len(self._choices), str(choice)))
        else:
            for value in self._round_numbers():
                ticks.append((self.place(value, 0), f"{value:.3g}"))
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
        for height, text in ticks:
            shown = short_value(text)[:_SHOWN_CHARACTERS]
            axes.text(x - 0.03, height, shown, fontsize=8, ha="right", va="center", bbox=box, zorder=3)

    def _round_numbers(self) -> list[float]:
        """Returns the ends of the axis and round numbers between them."""
        low = self._low
        high = self._high
        locator: Locator = MaxNLocator(_TICKS)
        if self._is_log:
            low = 10**self._low
            high = 10**self._high
            if self._high - self._low >= 2:  # decades
                locator = LogLocator()
        between = []
        for number in map(float, locator.tick_values(low, high)):
            if low < number < high and _APART < self.place(number, 0) < 1 - _APART:
                between.append(number)
        return [low, *between, high]


def _value(trial: FrozenTrial) -> float:
    assert trial.value is not None
    return trial.value


def _last_value(trial: FrozenTrial) -> float | None:
    """Returns the value that a trial reported last; None: it reported none."""
    if not trial.intermediate_values:
        return None
    return trial.intermediate_values[max(trial.intermediate_values)]
