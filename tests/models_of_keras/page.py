"""docs/models.md: the models, and what became of each."""

from __future__ import annotations

from pathlib import Path

from tests.models_of_keras.proof import ENGINES, MESHES, MODELS, Proof

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
COLUMNS = ("| model | engine | mesh | verdict | run s | verify s | said |", "|---|---|---|---|---|---|---|")
_HEAD = """# Verified models

This page lists models of `keras.applications` and other typical models (`tests/models_of_keras/nets.py`: stock Keras,
imported at the top of the module). Each is trained on a mesh and compared with stock Keras on one device by
`python -m runner.verify`, with both engines and on two meshes. If an engine can't compute a model, the last column has
the one-line error. Times are seconds on two shared cores, including the start of the command. A dash means that
`python -m runner` was not run separately, because verify trains the model too. Models without a row have not been run
since verify last changed. `python -m tests.models_of_keras --write` writes this page; append names to run single
models. In older rows, *sharp* means [sensitive](verify.md#the-verdict). See also [layers](layers.md), [language
models](language_models.md) and [KerasHub models](keras_hub.md).
"""


def with_row(page: str, proof: Proof) -> str:
    """Returns the page with a proof's row put in, or in the place of an older one; in the order of the table."""
    rows = {_key(line): line for line in page.splitlines() if line.startswith("| ")}
    rows[_key(proof.row())] = proof.row()
    order = [(model, engine, mesh) for model in MODELS for engine in ENGINES for mesh in MESHES]
    return "\n".join([_HEAD, *COLUMNS, *(rows[key] for key in order if key in rows)]) + "\n"


def _key(row: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in row.split("|")[1:4])
