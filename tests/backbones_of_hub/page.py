"""docs/keras_hub_models.md: the backbones of KerasHub, and what became of each."""

from __future__ import annotations

import re
from pathlib import Path

from tests.backbones_of_hub.proof import Row

PAGE = Path(__file__).parents[2] / "docs" / "keras_hub_models.md"
MESH, LAYOUT = "batch4_model2", "auto"  # of the page
# Errors of libraries name files by their place on this machine.
_FOLDER = re.compile(r"\S*/site-packages/")
WORDS = [f"mesh={MESH}", f"layout={LAYOUT}"]
COLUMNS = (
    "| backbone | parameters | split | collectives, layout=auto | collectives, its own map | verdict | said |",
    "|---|---|---|---|---|---|---|",
)
_HEAD = """# KerasHub compatibility table

This page lists every backbone of KerasHub at tiny sizes (`tests/backbones_of_hub/own.py`), with the engine `jax`. Each
is planned on `mesh=batch4_model2` with `layout=auto`, and compared with stock Keras on one device by
`python -m runner.verify`. The table shows the collectives of a training step, and those of KerasHub's own layout map
(`layout=keras_hub`) for the five families that have one (`refused`: an axis does not divide a dim that the map
shards). Causal language models and encoder-decoders predict the next token. Encoders of text and images, and backbones
with other inputs, predict a class, with KerasHub's own head if there is one. `model.trainable` excludes variables that
a class creates but does not use. If a backbone can't be built from a config, or can't be computed, the last column has
the error. In older rows, *sharp* means [sensitive](verify.md#the-verdict). BASNet is only planned: its decoder has 50
million parameters for every config, and verifying it needs more than 20 GB.

`python -m tests.backbones_of_hub --write` writes this page; append names to run single backbones. `--mesh` and
`--layout` select others, without writing the page. The command needs minutes and the extra `hub`:

```sh title="Needs: minutes, and the extra hub"
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
    rows = written() | {row.name: _FOLDER.sub("", row.line())}
    PAGE.write_text("\n".join([_HEAD, *COLUMNS, *(rows[name] for name in sorted(rows))]) + "\n")
