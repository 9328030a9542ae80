"""docs/models.md: the models, and what became of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.docs import verdicts
from tests.models_of_keras.proof import ENGINES, MESHES, MODELS, Proof

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
COLUMNS = ("| model | engine | mesh | verdict | run s | verify s | note |", "|---|---|---|---|---|---|---|")
_HEAD = """# Verified models

This page lists models of `keras.applications` and other typical models (`tests/models_of_keras/nets.py`: stock Keras,
imported at the top of the module). Each is trained on a mesh and compared with stock Keras on one device by
`python -m runner.verify`, with both engines and on two meshes.

> **Limits.** A few steps each, on 8 virtual CPU devices. Models without a row have not been run since verify last
> changed.

- **verdict**: `verified`, `inconclusive` ([what that means](verify.md#the-verdict)) or `not supported`: the run ends
  before training, with one error line.
- **run s**, **verify s**: seconds on two shared cores, including the start of the command. A dash means that
  `python -m runner` was not run separately, because verify trains the model too.
- **note**: which errors the comparison detects, or why the model is not verified. [Full results](#full-results) has
  the whole line.

`python -m tests.models_of_keras --write` writes this page; append names to run single models. See also
[layers](layers.md), [language models](language_models.md) and [KerasHub models](keras_hub.md).
"""


def with_row(page: str, proof: Proof) -> str:
    """Returns the page with a proof's row and full result, in the place of older ones; in the order of the table."""
    rows = {_key(line): line for line in page.splitlines() if line.startswith("| ")}
    key = (proof.model, proof.engine, proof.mesh)
    full = verdicts.details(page) | {", ".join(key): verdicts.plain(proof.said)}
    return rendered(rows | {key: proof.row()}, full)


def rendered(rows: Mapping[tuple[str, ...], str], full: Mapping[str, str]) -> str:
    """Returns the page.

    Args:
      rows: of the table, by model, engine and mesh.
      full: the whole lines of the verdicts, by model, engine and mesh with commas.
    """
    order = [(model, engine, mesh) for model in MODELS for engine in ENGINES for mesh in MESHES]
    table = [rows[key] for key in order if key in rows]
    names = [", ".join(key) for key in order]
    listed = [f"- `{name}`: {full[name]}" for name in names if name in full]
    return "\n".join([_HEAD, *COLUMNS, *table, "", verdicts.DETAILS, "", *listed]) + "\n"


def _key(row: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in row.split("|")[1:4])
