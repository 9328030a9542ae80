"""A builder that returns a compiled model: losses, metrics and updates are those of Keras's own `fit`."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tests.commands import ran

RUN = (
    "engine=jax model=custom model._target_=tests.task.compiled_nets.build task.example_weight=share "
    "dataset=arrays dataset.path=data dataset.holdout=0 dataset.batch_size=12 dataset.remainder=pad "
    "dataset.shuffle=false dataset.standardize=false trainer.epochs=2 tracking=none mesh=batch4 "
    "hydra.run.dir=run name=of_compile resume=auto"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def stock(folder: Path) -> dict[str, Any]:
    done = forks.python("-m", "tests.task.compiled_nets", str(folder), folder=forks.ROOT, library=forks.JAX)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_run_computes_what_fit_does(folder: Path, stock: dict[str, Any]) -> None:
    # The last batch of training and of the evaluation has padding. Task and optimizer are the config's defaults.
    said = ran(folder, "runner", *RUN.split()).stdout
    assert "so task=compiled takes its optimizer, loss and metrics\n" in said
    assert "optimizer: Adam, learning rate 0.05, exponential schedule; loss and metrics are of the model's" in said
    assert "name=of_compile: the run has finished" in ran(folder, "runner", *RUN.split()).stdout
    summary = json.loads((folder / "run" / "summary.json").read_text())
    for name, expected in stock["history"].items():
        split = "eval" if name.startswith("val_") else "train"
        metric = name.removeprefix("val_")
        if split == "train" and metric in ("weighted_accuracy", "far"):
            # Keras weights them over the epoch, and steps don't.
            assert f"train_{metric}" not in summary
            continue
        # Both add up float32 numbers near 1, in another order.
        assert summary[f"{split}_{metric}"] == pytest.approx(expected, abs=3e-7), name


@pytest.mark.usefixtures("stock")
def test_what_no_run_takes_of_a_compile_is_one_line_without_a_traceback(folder: Path) -> None:
    words = [*RUN.replace("nets.build", "nets.averaged").replace("of_compile", "averaged").split(), "hydra.run.dir=a"]
    said = ran(folder, "runner", *words, code=2).stderr
    assert said.startswith("error: optimizer.use_ema=true: is an option of the run"), said


@pytest.mark.usefixtures("stock")
def test_the_log_has_the_whole_traceback_of_a_users_error(folder: Path) -> None:
    words = [*RUN.replace("nets.build", "nets.broken").replace("of_compile", "broken").split(), "hydra.run.dir=b"]
    assert "in broken" in ran(folder, "runner", *words, code=2).stderr
    assert "Traceback (most recent call last):" in (folder / "b" / "runner.log").read_text()


def test_an_optimizer_that_no_run_has_is_one_line(stock: dict[str, Any]) -> None:
    parts = [
        "optimizer.class_name=Own: is no optimizer of Keras that a run has; compile with one of",
        "optimizer.class_name=AdamW: has exclude_from_weight_decay; compile without it, and set optimizer.groups",
        "optimizer.use_ema=true: is an option of the run; compile without it, and set optimizer.ema.decay",
        "optimizer.gradient_accumulation_steps=2: is an option of the run; compile without it, and set trainer.accum",
        "optimizer.learning_rate=InverseTimeDecay: is no schedule of Keras that a run has",
    ]
    for error, part in zip(stock["errors"], parts, strict=True):
        assert error.startswith(part)
        assert "\n" not in error
