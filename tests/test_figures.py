"""The axes and colors that pictures share."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from runner import figures
from runner.figures import SERIES, examples, ink, of_shard


def contrast(one: object, other: object) -> float:
    """Returns the ratio of WCAG 2.2."""

    def luminance(color: tuple[float, ...]) -> float:
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color]
        return float(np.dot((0.2126, 0.7152, 0.0722), linear))

    low, high = sorted((luminance(to_rgb(one)), luminance(to_rgb(other))))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("axes", [{"batch": 8}, {"batch": 4, "model": 2}, {"a": 2, "b": 2, "c": 2, "d": 2}])
def test_text_on_a_part_is_read_whatever_its_color(axes: dict[str, int]) -> None:
    for count in range(1, len(axes) + 1):
        for cut in itertools.combinations(axes, count):
            for place in itertools.product(*(range(axes[axis]) for axis in cut)):
                color = of_shard(axes, dict(zip(cut, place, strict=True)))
                assert contrast(ink(color), color) >= 4.5


def test_the_colors_of_runs_are_told_from_white_and_from_each_other() -> None:
    assert all(contrast("white", one) > 2 for one in SERIES)
    colors = [np.array(to_rgb(one)) for one in SERIES]
    assert min(float(np.abs(a - b).max()) for a, b in itertools.combinations(colors, 2)) > 0.2
    assert (ink("#0072B2"), ink("#FDDCC8")) == ("white", "black")


@pytest.mark.parametrize("channels", [1, 3])
def test_examples_are_drawn_whatever_their_values(tmp_path: Path, channels: int) -> None:
    images = np.random.default_rng(0).normal(size=(5, 4, 4, channels))
    examples(tmp_path / "a.png", images, [("1", "")] * 5, "some")
    height, width = image.imread(tmp_path / "a.png").shape[:2]
    assert width > height > 50


def test_the_axis_of_an_advice_ends_at_twice_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Figure] = []
    monkeypatch.setattr(figures, "save", lambda figure, _: saved.append(figure))
    series = {"fsdp, fits": (SERIES[0], "o", [(10.0, 5.0), (400.0, 9.0)])}
    for capacity in (80.0, 0.0):
        figures.front(tmp_path / "x.png", "", series, [(10.0, 5.0)], ("1", (10.0, 5.0)), capacity)
    cut, whole = (figure.axes[0] for figure in saved)
    assert cut.get_xlim() == (0.0, 160.0)
    assert "1 candidates with more than twice" in cut.get_xlabel()
    assert whole.get_xlim()[1] > 400
