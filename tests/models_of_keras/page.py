"""docs/models.md: the models, and what became of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.docs import verdicts
from tests.models_of_keras.proof import ENGINES, MESHES, MODELS, Proof

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
_PLACES = [(engine, mesh) for engine in ENGINES for mesh in MESHES]
_HEAD = """# Verified models

This page lists models of `keras.applications` and other typical models (`tests/models_of_keras/nets.py`: stock Keras,
imported at the top of the module). Each is trained on a mesh and compared with stock Keras on one device by
`python -m runner.verify`, with both engines and on two meshes.

> **Limits.** A few steps each, on 8 virtual CPU devices. Models without a cell have not been run since verify last
> changed.

A percentage means `verified`, and is the smallest relative error that the comparison detects. `inconclusive` names the
variable that is not sensitive ([the verdict](verify.md#the-verdict)). `not supported` means that the run ends before
training, with one error line. `python -m tests.models_of_keras --write` writes this page; append names to run single
models.
"""


def cells(page: str) -> dict[tuple[str, ...], str]:
    """Returns (model, engine, mesh) -> cell of a page."""
    found = {}
    for line in page.splitlines():
        name, *rest = (cell.strip() for cell in line.strip("|").split("|"))
        if name in MODELS:
            found |= {(name, *place): cell for place, cell in zip(_PLACES, rest, strict=True)}
    return found


def with_proof(page: str, proof: Proof) -> str:
    """Returns the page with a proof's cell, in the place of an older one."""
    key = (proof.model, proof.engine, proof.mesh)
    return rendered(cells(page) | {key: verdicts.cell(proof.verdict, proof.said)})


def rendered(known: Mapping[tuple[str, ...], str]) -> str:
    """Returns the page.

    Args:
      known: cells of the table, by model, engine and mesh.
    """
    places = [f"`{engine}`, {mesh}" for engine, mesh in _PLACES]
    lines = [f"| model | {' | '.join(places)} |", "|---" * (1 + len(places)) + "|"]
    for model in MODELS:
        row = [known.get((model, *place), "") for place in _PLACES]
        if any(row):
            lines.append(f"| {model} | {' | '.join(row)} |")
    return "\n".join([_HEAD, *lines]) + "\n"
