"""docs/keras_hub_models.md: the backbones of KerasHub, and what became of each."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from tests.backbones_of_hub.proof import Row

PAGE = Path(__file__).parents[2] / "docs" / "keras_hub_models.md"
MESH, LAYOUT = "batch4_model2", "auto"  # of the page
WORDS = [f"mesh={MESH}", f"layout={LAYOUT}"]
_HEAD = """# KerasHub compatibility table

This page lists every backbone of KerasHub at tiny sizes (`tests/backbones_of_hub/own.py`), with the engine `jax`. Each
is planned on `mesh=batch4_model2` with `layout=auto`, and compared with stock Keras on one device by
`python -m runner.verify`.

> **Limits.** Tiny configs, 2 steps, 8 virtual CPU devices. BASNet is only planned: its decoder has 50 million
> parameters for every config, and verifying it needs more than 20 GB.

Causal language models and encoder-decoders predict the next token. Encoders of text and images, and backbones with
other inputs, predict a class, with KerasHub's own head if there is one. `model.trainable` excludes variables that a
class creates but does not use.

`python -m tests.backbones_of_hub --write` writes this page; append names to run single backbones. It also prints what
share of the parameters is sharded, and the collectives of a step. `--mesh` and `--layout` select others, without
writing the page:

```sh title="Needs: minutes, and the extra hub"
python -m tests.backbones_of_hub --mesh batch4_sequence2 --layout fsdp layout.sequence=sequence GPT2Backbone
```
"""
_VERIFIED = """
## Verified

The percentage is the smallest relative error that the comparison detects ([the verdict](verify.md#the-verdict)):
"""
_OTHERS = """
## Not verified

Not supported: it can't be built from a config, or the run ends before training with one error line.
"""
_MAPS = """
## KerasHub's own layout maps

Collectives of a training step with `layout=auto`, and with KerasHub's own map (`layout=keras_hub`), which these
families have. `does not fit`: an axis does not divide a dim that the map shards.

| backbone | `layout=auto` | its own map |
|---|---|---|
"""


def written() -> dict[str, str]:
    """Returns what the page says of each backbone: the smallest error that is detected, or why it is not verified."""
    text = PAGE.read_text() if PAGE.exists() else ""
    return dict(re.findall(r"`(\w+)` ([\d.]+%)", text) + re.findall(r"^- `(\w+)`: (.+)$", text, flags=re.M))


def _maps() -> dict[str, str]:
    text = PAGE.read_text() if PAGE.exists() else ""
    return dict(re.findall(r"^\| (\w+) \| (.+) \|$", text.partition(_MAPS)[2], flags=re.M))


def put(row: Row) -> None:
    """Puts a row into the page, in the place of an older one."""
    maps = {row.name: row.collectives()} if row.plan.own is not None else {}
    PAGE.write_text(rendered(written() | {row.name: row.cell()}, _maps() | maps))


def rendered(cells: Mapping[str, str], maps: Mapping[str, str]) -> str:
    """Returns the page.

    Args:
      cells: by backbone.
      maps: collectives of both layouts, by backbone.
    """
    verified = [f"`{name}`\N{NO-BREAK SPACE}{cells[name]}" for name in sorted(cells) if cells[name].endswith("%")]
    lines = textwrap.wrap(", ".join(verified), 120, break_on_hyphens=False)
    others = [f"- `{name}`: {cells[name]}" for name in sorted(cells) if not cells[name].endswith("%")]
    table = [f"| {name} | {maps[name]} |" for name in sorted(maps)]
    listed = "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")
    body = f"{_VERIFIED}\n{listed}\n{_OTHERS}\n" + "\n".join(others)
    return f"{_HEAD}{body}\n{_MAPS}" + "\n".join(table) + "\n"
