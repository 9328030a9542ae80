"""Models as users have them are verified with both engines, or rejected in one line that names a fix."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests import forks

ENGINES = ("jax", "keras_dtensor")
_EXAMPLES, _CLASSES = 256, 5


@dataclass(frozen=True)
class Model:
    """A builder of `nets`, and what it is fed.

    Attributes:
      data: file of `write_data`.
      refused: words of the line with which `keras_dtensor` rejects it; empty: it doesn't.
      everywhere: words of the line with which both engines reject it.
      more: overrides.
    """

    data: str
    refused: str = ""
    everywhere: str = ""
    more: tuple[str, ...] = ()


_NOT_TAKEN = "DTensor can't compute layer"
MODELS = {
    "mobilenet_v2": Model("images", _NOT_TAKEN, more=("dataset.batch_size=16", "verify.steps=3")),
    "transformer": Model("words"),
    "words_lstm": Model("words", _NOT_TAKEN),
    "bidirectional": Model("sequences", _NOT_TAKEN),
    "stateful_lstm": Model("sequences", everywhere="stateful"),
    "spectral": Model("images"),
    "group_normalization": Model("images"),
    "sequential_inside": Model("images"),
    "mixed_precision": Model("images", "mixed precision", more=("verify.allow_inconclusive=true",)),
    "integer_variable": Model("images"),
    "preprocessing": Model("images"),
    "augmentation": Model("images", "RandomFlip"),
    "relu_bias": Model("images"),
    "layer_norm_axis": Model("images"),
    "dropout_twice": Model("images"),
    "constraints": Model("images", more=("layout=fsdp",)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    source = (Path(__file__).parent / "nets.py").read_text()
    assert "\nimport keras\n" in source
    (made / "nets_jax.py").write_text(source)
    (made / "nets_keras_dtensor.py").write_text(source.replace("\nimport keras\n", "\nimport tf_keras as keras\n"))
    write_data(made)
    return made


def write_data(folder: Path) -> None:
    """Writes one file a kind of input, whose class is what its numbers tell."""
    rng = np.random.default_rng(1)
    label = rng.integers(0, _CLASSES, _EXAMPLES).astype(np.int64)
    marks = rng.normal(size=(_CLASSES, 32, 32, 3))
    bright = 1 / (1 + np.exp(-(marks[label] + rng.normal(size=(_EXAMPLES, 32, 32, 3)))))
    held = {
        "images": (bright * 255).astype(np.uint8),
        "sequences": (marks[label][:, :12, :6, 0] + rng.normal(size=(_EXAMPLES, 12, 6))).astype(np.float32),
        "words": ((label[:, None] * 3 + rng.integers(0, 6, (_EXAMPLES, 12))) % 20).astype(np.int32),
    }
    for name, array in held.items():
        np.savez(folder / f"{name}.npz", x=array, label=label)


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MODELS)
def test_a_users_model_is_verified_on_a_mesh_or_rejected_in_a_line(name: str, engine: str, folder: Path) -> None:
    model = MODELS[name]
    words = ["dataset=arrays", f"dataset.path={model.data}.npz", "task.target=label", "dataset.batch_size=32"]
    words += ["dataset.standardize=false", "model=custom", f"model._target_=nets_{engine}.{name}", f"engine={engine}"]
    words += ["mesh=batch4_model2", "optimizer.learning_rate=0.001", "verify.steps=6", "tracking=none", *model.more]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(forks.ROOT), str(folder)])}
    command = [sys.executable, "-m", "runner.verify", *words, f"hydra.run.dir={folder / f'{name}-{engine}'}"]
    done = forks.run(command, cwd=folder, env=environment, timeout=600)
    refused = model.everywhere or (model.refused if engine == "keras_dtensor" else "")
    if not refused:
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return
    assert done.returncode == 2, done.stdout[-2000:] + done.stderr[-2000:]
    (line,) = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("warning:")]
    assert refused in line


def test_the_page_says_which_models_are_verified() -> None:
    rows = []
    for name, model in MODELS.items():
        both = model.everywhere or model.refused
        words = ["rejected" if model.everywhere else "verified", "rejected" if both else "verified"]
        rows.append(f"| `{name}` | {' | '.join(words)} |")
    page = (forks.ROOT / "docs" / "models.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("| `")] == rows
