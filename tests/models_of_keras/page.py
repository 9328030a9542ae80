"""docs/models.md: the models, and what became of each."""

from __future__ import annotations

from pathlib import Path

from tests.models_of_keras.proof import ENGINES, MESHES, MODELS, Proof

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
COLUMNS = ("| model | engine | mesh | verdict | run s | verify s | said |", "|---|---|---|---|---|---|---|")
_HEAD = """# Models

Models of `keras.applications` and others as users have them (`tests/models_of_keras/nets.py`: stock Keras, imported
at the module's top), each trained on a mesh and held against stock Keras on one device by `python -m runner.verify`,
by both engines and on two meshes. What an engine can't compute is refused in the one line that stands there. Seconds
are of two cores that other work shared, the start of the command included; a dash: `python -m runner` was not run, as
verify trains the model too. What has no row was not run since verify last changed.
`python -m tests.models_of_keras --write` makes this page again; single models are named behind it. Layer by layer:
[layers](layers.md). Transformers that learn text have pages of their own: [language models](language_models.md) and
[models of KerasHub](keras_hub.md).
"""


def with_row(page: str, proof: Proof) -> str:
    """Returns the page with a proof's row put in, or in the place of an older one; in the order of the table."""
    rows = {_key(line): line for line in page.splitlines() if line.startswith("| ")}
    rows[_key(proof.row())] = proof.row()
    order = [(model, engine, mesh) for model in MODELS for engine in ENGINES for mesh in MESHES]
    return "\n".join([_HEAD, *COLUMNS, *(rows[key] for key in order if key in rows)]) + "\n"


def _key(row: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in row.split("|")[1:4])
