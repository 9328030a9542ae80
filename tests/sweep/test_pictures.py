"""The pictures of a search: no line between trials, the best as a staircase, and none from too few trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from matplotlib.figure import Figure
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from runner import figures as drawing
from runner.cli.sweep import pictures

SPACE = {
    "optimizer.learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
    "mesh": CategoricalDistribution(["single", "batch8"]),
}


def study(count: int, *, direction: str = "maximize") -> optuna.Study:
    """Returns a study of so many trials whose value is the rate's place, and one more that was ended early."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    made = optuna.create_study(direction=direction)
    for index in range(count):
        params = {"optimizer.learning_rate": 10 ** (-4 + 3 * ((7 * index) % count) / count), "mesh": "single"}
        params["mesh"] = "batch8" if index % 2 else "single"
        value = ((7 * index) % count) / count
        made.add_trial(create_trial(params=params, distributions=SPACE, value=value))
    made.add_trial(
        create_trial(params=params, distributions=SPACE, state=TrialState.PRUNED, intermediate_values={1: 0.5, 2: 0.6})
    )
    return made


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    monkeypatch.setattr(drawing, "save", lambda figure, path: found.update({path.name: figure}))
    return found


def test_pictures_are_left_out_where_there_are_too_few_trials(figures: dict[str, Figure], tmp_path: Path) -> None:
    for count, names in [(2, []), (3, ["history", "parallel"]), (10, ["history", "parallel", "importances"])]:
        files = pictures.draw(study(count), tmp_path, "eval/accuracy")
        assert [file.name for file in files] == [f"search_{name}.png" for name in names]
    assert set(figures) == {"search_history.png", "search_parallel.png", "search_importances.png"}


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_the_history_joins_no_trials_but_steps_to_the_best(
    figures: dict[str, Figure], tmp_path: Path, direction: str
) -> None:
    pictures.draw(study(11, direction=direction), tmp_path, "eval/score")
    lines: dict[str, Any] = {line.get_label(): line for line in figures["search_history.png"].axes[0].lines}
    best, trials, early = lines["best so far"], lines["trial"], lines["ended early, its last value"]
    assert {trials.get_linewidth(), early.get_linewidth()} == {0.0}
    values = [((7 * index) % 11) / 11 for index in range(11)]
    run = np.maximum.accumulate(values) if direction == "maximize" else np.minimum.accumulate(values)
    np.testing.assert_array_equal(best.get_ydata()[1:-1:2], run)
    np.testing.assert_array_equal(early.get_ydata(), [0.6])
