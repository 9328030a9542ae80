"""docs/keras_hub_models.md: the backbones of KerasHub, and what became of each."""

from __future__ import annotations

from pathlib import Path

from tests.backbones_of_hub.proof import Row

PAGE = Path(__file__).parents[2] / "docs" / "keras_hub_models.md"
MESH, LAYOUT = "batch4_model2", "auto"  # of the page
WORDS = [f"mesh={MESH}", f"layout={LAYOUT}"]
COLUMNS = (
    "| backbone | parameters | split | collectives, layout=auto | collectives, its own map | verdict | said |",
    "|---|---|---|---|---|---|---|",
)
_HEAD = """# Backbones of KerasHub

Every backbone of KerasHub at tiny sizes (`tests/backbones_of_hub/own.py`), planned on `mesh=batch4_model2` under
`layout=auto` and held against stock Keras on one device by `python -m runner.verify`; engine `jax`. Beside our own
collectives of a training step stand those of KerasHub's layout map (`layout=keras_hub`), of the five families that
have one (`refused`: an axis does not divide a dim that it splits). Causal language models and encoder-decoders learn
the next token; encoders of text and of images, and what takes other arrays, a class, through KerasHub's own head where
there is one. Variables that a class makes and does not use are left out by `model.trainable`. What can't be built from
a config, or can't be computed, is refused in the words that stand there; of BASNet, whose decoder has 50 million
parameters whatever the config says, only the plan was made: its proof takes more than 20 GB.
`python -m tests.backbones_of_hub --write` makes this page again; single backbones are named behind it. `--mesh` and
`--layout` choose others, without the page:

```sh needs minutes, and the extra hub
python -m tests.backbones_of_hub --mesh batch4_sequence2 --layout fsdp layout.sequence=sequence GPT2Backbone
```
"""


def written() -> dict[str, str]:
    """Returns the page's lines by backbone."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    rows = [line for line in lines if line.startswith("| ") and line not in COLUMNS]
    return {line.split("|")[1].strip(): line for line in rows}


def put(row: Row) -> None:
    """Puts a row into the page, in the place of an older one; in alphabetical order."""
    rows = written() | {row.name: row.line()}
    PAGE.write_text("\n".join([_HEAD, *COLUMNS, *(rows[name] for name in sorted(rows))]) + "\n")
