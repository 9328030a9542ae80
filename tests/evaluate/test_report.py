import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from runner.cli.evaluate import _chosen, printed
from runner.config.schema import DatasetConfig


def test_of_many_rows_the_first_are_printed() -> None:
    columns = ("class", "precision", "recall", "examples")
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(*printed({"classes": (columns, [(f"kind{index}", 1.0, None, 10) for index in range(50)])}))
    said = " ".join(console.export_text().split())
    assert "kind39 │ 1.0000 │ - │ 10" in said
    assert "kind40" not in said
    assert "the first 40 of 50; all: evaluate.json" in said


@pytest.mark.parametrize(("holdout", "named"), [(0.0, "train[:80%]"), (None, "train"), (0.2, "train")])
def test_a_training_split_that_examples_were_held_out_of_is_not_named_by_its_expression(
    holdout: float | None, named: str
) -> None:
    data: Any = SimpleNamespace(train=None)
    assert _chosen(DatasetConfig(train="train[:80%]", holdout=holdout), "train", data)[1] == named
