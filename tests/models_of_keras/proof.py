"""One model, trained by `python -m runner` and held against one device by `python -m runner.verify`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests import forks
from tests.docs import verdicts

ROOT = Path(__file__).parents[2]
ENGINES = ("jax", "keras_dtensor")
MESHES = ("batch8", "batch4_model2")
_EXAMPLES, _CLASSES = 256, 5
_SECONDS = 600


@dataclass(frozen=True)
class Model:
    """A builder of `nets`, and what it is fed.

    Attributes:
      data: file of `write_data`.
      batch: examples a batch, over all devices.
      steps: that verify compares.
      short: its tests are quick.
      refused: words of the refusal, by engine, where a mesh can't train it.
    """

    data: str
    batch: int = 32
    steps: int = 6
    short: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)


_LARGE = {"batch": 16, "steps": 3}
_NOT_TAKEN = {"keras_dtensor": "DTensor can't compute layer"}
MODELS: Mapping[str, Model] = {
    "mobilenet_v2": Model("images", **_LARGE, refused=_NOT_TAKEN),
    "efficientnet_b0": Model("images", **_LARGE, refused=_NOT_TAKEN),
    "densenet121": Model("images", **_LARGE),
    "resnet50": Model("images", **_LARGE),
    "convnext_tiny": Model("images", **_LARGE, refused=_NOT_TAKEN),
    "transformer": Model("words", short=True),
    "words_lstm": Model("words", refused=_NOT_TAKEN),
    "lstm": Model("sequences", short=True, refused=_NOT_TAKEN),
    "gru": Model("sequences", refused=_NOT_TAKEN),
    "bidirectional": Model("sequences", refused=_NOT_TAKEN),
    "stateful_lstm": Model("sequences", short=True, refused=dict.fromkeys(ENGINES, "stateful")),
    "conv1d_dilated": Model("sequences", refused=_NOT_TAKEN),
    "conv3d": Model("volumes", refused=_NOT_TAKEN),
    "average_pooling3d": Model("volumes", refused=_NOT_TAKEN),
    "separable": Model("images", refused=_NOT_TAKEN),
    "spectral": Model("images"),
    "group_normalization": Model("images"),
    "sequential_inside": Model("images", short=True),
    "mixed_precision": Model("images"),
    "integer_variable": Model("images", short=True),
    "preprocessing": Model("images"),
    "augmentation": Model("images", refused={"keras_dtensor": "ImageProjectiveTransformV3"}),
    "relu_bias": Model("images", short=True),
    "layer_norm_axis": Model("images", short=True),
    "dropout_twice": Model("images"),
    "constraints": Model("images"),
}


@dataclass(frozen=True)
class Proof:
    """What became of a model on a mesh.

    Attributes:
      verdict: `verified`, `inconclusive`, `differs`, `refused`, or `failed`.
      said: the verdict's line, or the refusal.
      run_seconds: of `python -m runner`; 0: not run.
      verify_seconds: of `python -m runner.verify`.
      lines: of what a command that failed printed to stderr.
    """

    model: str
    engine: str
    mesh: str
    verdict: str
    said: str
    run_seconds: float
    verify_seconds: float
    lines: int

    @property
    def sound(self) -> bool:
        """Tells whether it is verified, or refused in one line without a traceback."""
        return self.verdict == "verified" or (self.verdict == "refused" and self.lines == 1)

    def row(self) -> str:
        """Returns a line that sums it up."""
        times = f"{self.run_seconds:.0f} s and {self.verify_seconds:.0f} s"
        return f"{self.model}, {self.engine}, {self.mesh}: {verdicts.cell(self.verdict, self.said)} ({times})"


def write_models(folder: Path) -> None:
    """Writes the modules `nets_jax` and `nets_keras_dtensor`, and the data, as a user has them beside each other."""
    source = (Path(__file__).parent / "nets.py").read_text()
    assert "\nimport keras\n" in source
    (folder / "nets_jax.py").write_text(source)
    (folder / "nets_keras_dtensor.py").write_text(source.replace("\nimport keras\n", "\nimport tf_keras as keras\n"))
    write_data(folder)


def write_data(folder: Path) -> None:
    """Writes one file a kind of input, whose class is what its numbers tell."""
    rng = np.random.default_rng(1)
    label = rng.integers(0, _CLASSES, _EXAMPLES).astype(np.int64)
    marks = rng.normal(size=(_CLASSES, 32, 32, 3))
    bright = 1 / (1 + np.exp(-(marks[label] + rng.normal(size=(_EXAMPLES, 32, 32, 3)))))
    held = {
        "images": (bright * 255).astype(np.uint8),
        "sequences": (marks[label][:, :12, :6, 0] + rng.normal(size=(_EXAMPLES, 12, 6))).astype(np.float32),
        "volumes": (marks[label][:, :8, :8, 0, None, None] + rng.normal(size=(_EXAMPLES, 8, 8, 8, 1))).astype(
            np.float32
        ),
        "words": ((label[:, None] * 3 + rng.integers(0, 6, (_EXAMPLES, 12))) % 20).astype(np.int32),
    }
    for name, array in held.items():
        np.savez(folder / f"{name}.npz", x=array, label=label)


def overrides(name: str, engine: str, mesh: str) -> list[str]:
    """Returns the command line that both commands share."""
    model = MODELS[name]
    data = [f"dataset.path={model.data}.npz", "task.target=label", f"dataset.batch_size={model.batch}"]
    data += ["dataset.standardize=false"]
    builder = ["model=custom", f"model._target_=nets_{engine}.{name}"]
    return ["dataset=arrays", *data, *builder, f"engine={engine}", f"mesh={mesh}", "optimizer.learning_rate=0.001"]


def prove(name: str, engine: str, mesh: str, folder: Path, *, train: bool = True) -> Proof:
    """Runs both commands; what one refuses or fails is the verdict.

    Args:
      name: of `MODELS`.
      engine: of `ENGINES`.
      mesh: of `MESHES`.
      folder: of `write_models`.
      train: whether `python -m runner` is run too.
    """
    out = folder / f"{name}-{engine}-{mesh}"
    spent = {"runner": 0.0, "runner.verify": 0.0}
    short = ["trainer.epochs=1", "trainer.limit_train_batches=3", "trainer.limit_eval_batches=2"]
    short += ["trainer.checkpoint.enabled=false", "trainer.log_model=false"]
    commands = {"runner": short} if train else {}
    commands |= {"runner.verify": [f"verify.steps={MODELS[name].steps}"]}
    for command, more in commands.items():
        words = [*overrides(name, engine, mesh), *more, "tracking=none", f"hydra.run.dir={out}-{command}"]
        begun = time.monotonic()
        code, said, lines = _command(command, words, folder)
        spent[command] = time.monotonic() - begun
        if code:
            verdict = {1: "failed", 2: "refused"}.get(code, "failed")
            written = Path(f"{out}-{command}") / "verify.json"
            if code == 1 and written.exists():
                verdict = json.loads(written.read_text())["verdict"]
            return Proof(name, engine, mesh, verdict, said, *spent.values(), lines)
    return Proof(name, engine, mesh, "verified", said, *spent.values(), lines)


def _command(command: str, words: list[str], folder: Path) -> tuple[int, str, int]:
    """Returns exit code, the last line that was said, and how many lines of stderr are no warnings."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    full = [sys.executable, "-m", command, *words]
    try:
        done = forks.run(full, cwd=folder, env=environment, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return 1, f"{command} took more than {_SECONDS} s", 1
    errors = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("warning:")]
    said = errors[-1] if done.returncode and errors else (done.stdout.strip().splitlines() or [""])[-1]
    return done.returncode, said, len(errors)
