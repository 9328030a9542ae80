"""docs/keras_hub_models.md: the backbones of KerasHub, and what became of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.backbones_of_hub.proof import Row
from tests.docs import verdicts

PAGE = Path(__file__).parents[2] / "docs" / "keras_hub_models.md"
MESH, LAYOUT = "batch4_model2", "auto"  # of the page
# Errors of libraries name files by their place on this machine.
_FOLDER = re.compile(r"\S*/site-packages/")
WORDS = [f"mesh={MESH}", f"layout={LAYOUT}"]
COLUMNS = (
    "| backbone | verdict | note | parameters | sharded | collectives, layout=auto | collectives, its own map |",
    "|---|---|---|---|---|---|---|",
)
_HEAD = """# KerasHub compatibility table

This page lists every backbone of KerasHub at tiny sizes (`tests/backbones_of_hub/own.py`), with the engine `jax`. Each
is planned on `mesh=batch4_model2` with `layout=auto`, and compared with stock Keras on one device by
`python -m runner.verify`.

> **Limits.** Tiny configs, 2 steps, 8 virtual CPU devices. BASNet is only planned: its decoder has 50 million
> parameters for every config, and verifying it needs more than 20 GB.

- **verdict**: `verified`, `planned`, or `not supported`: it can't be built from a config, or the run ends before
  training with one error line.
- **note**: which errors the comparison detects ([the verdict](verify.md#the-verdict)), or why a backbone is not
  supported. [Full results](#full-results) has the whole line.
- **sharded**: share of the parameters that are sharded, and the number of sharded variables.
- **collectives**: those of a training step, with `layout=auto` and with KerasHub's own layout map
  (`layout=keras_hub`), which five families have. `does not fit`: an axis does not divide a dim that the map shards.

Causal language models and encoder-decoders predict the next token. Encoders of text and images, and backbones with
other inputs, predict a class, with KerasHub's own head if there is one. `model.trainable` excludes variables that a
class creates but does not use.

`python -m tests.backbones_of_hub --write` writes this page; append names to run single backbones. `--mesh` and
`--layout` select others, without writing the page. The command needs minutes and the extra `hub`:

```sh title="Needs: minutes, and the extra hub"
python -m tests.backbones_of_hub --mesh batch4_sequence2 --layout fsdp layout.sequence=sequence GPT2Backbone
```
"""


def written() -> dict[str, str]:
    """Returns the page's rows by backbone."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    rows = [line for line in lines if line.startswith("| ") and line not in COLUMNS]
    return {line.split("|")[1].strip(): line for line in rows}


def put(row: Row) -> None:
    """Puts a row and its full result into the page, in the place of older ones; in alphabetical order."""
    full = verdicts.details(PAGE.read_text()) if PAGE.exists() else {}
    full.pop(row.name, None)
    if row.said:
        full[row.name] = _FOLDER.sub("", verdicts.plain(row.said))
    PAGE.write_text(rendered(written() | {row.name: row.line()}, full))


def rendered(rows: Mapping[str, str], full: Mapping[str, str]) -> str:
    """Returns the page.

    Args:
      rows: of the table, by backbone.
      full: the whole lines of the verdicts, by backbone.
    """
    table = [rows[name] for name in sorted(rows)]
    listed = [f"- `{name}`: {full[name]}" for name in sorted(full)]
    return "\n".join([_HEAD, *COLUMNS, *table, "", verdicts.DETAILS, "", *listed]) + "\n"
