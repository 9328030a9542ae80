"""The pages of docs/ that a user follows: their files are written, their commands run, in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("regression", "multilabel", "photographs", "own_dataset", "own_loss")
# The picture of the page's task, which its run must leave.
PICTURES = {
    "regression": "predicted.png",
    "multilabel": "labels.png",
    "photographs": "confusion.png",
    "own_dataset": "confusion.png",
    "own_loss": "curves.png",
}


def blocks(page: str) -> list[tuple[str, str]]:
    """Returns (what stands behind the fence, the text) of each block of a page."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return re.findall(r"^```(\S[^\n]*)\n(.*?)^```$", text, flags=re.M | re.S)


def commands(page: str) -> list[list[str]]:
    """Returns the words of each command of a page, in order."""
    shell = "".join(text for kind, text in blocks(page) if kind == "sh")
    return [shlex.split(line) for line in shell.splitlines() if line.strip()]


def follow(page: str, folder: Path, engine: str, mesh: str) -> None:
    """Does what a page says, on an engine, and on a mesh in place of the page's batch8.

    Raises:
      AssertionError: a command failed; shows what it printed.
    """
    for kind, text in blocks(page):
        if kind.startswith("python "):
            (folder / kind.removeprefix("python ")).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    recorded = [f"trainer.checkpoint.folder={folder}/checkpoints"]
    for words in commands(page):
        assert words[0] == "python"
        given = [word.replace("mesh=batch8", f"mesh={mesh}") for word in words[1:]]
        if given[:2] == ["-m", "runner"] or given[:2] == ["-m", "runner.verify"]:
            given += [f"engine={engine}"] if not any(word.startswith("resume=") for word in given) else []
        if given[:1] == ["-m"]:
            name = given[1].rpartition(".")[2]
            count = len(list(folder.glob("out-*")))
            given += [*recorded, f"hydra.run.dir={folder}/out-{count}-{name}"]
        done = subprocess.run(
            [sys.executable, *given], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{shlex.join(given)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def test_the_commands_of_every_page_are_read() -> None:
    for page in PAGES:
        assert len(commands(page)) >= 4, page


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("page", "engine", "mesh"),
    [
        ("regression", "keras_dtensor", "batch8"),
        ("multilabel", "jax", "batch4_model2"),
        ("photographs", "jax", "batch8"),
        ("own_dataset", "keras_dtensor", "batch4_model2"),
        ("own_loss", "jax", "batch4_model2"),
    ],
)
def test_a_page_does_what_it_says(page: str, engine: str, mesh: str, tmp_path: Path) -> None:
    follow(page, tmp_path, engine, mesh)
    assert (tmp_path / "out-0-runner" / PICTURES[page]).stat().st_size > 10_000
