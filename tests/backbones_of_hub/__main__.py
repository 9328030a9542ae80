"""Plans and verifies backbones of KerasHub: `python -m tests.backbones_of_hub [--mesh M] [--layout L ...] [names]`.

Each is built at tiny sizes, planned under a layout (auto) and under KerasHub's own layout map if it has one, and
compared with one device by `python -m runner.verify`. Prints a summary and the verdict's line of each, and exits with
1 if one is neither verified nor rejected with a reason. `--write` puts the verdict into the page,
docs/keras_hub_models.md, where others stay as they are.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests import forks
from tests.backbones_of_hub import page, tiny
from tests.backbones_of_hub.proof import plans, prove


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.backbones_of_hub")
    parser.add_argument("names", nargs="*", metavar="backbone")
    parser.add_argument("--mesh", default=page.MESH)
    parser.add_argument("--layout", nargs="+", default=[page.LAYOUT], metavar="word", help="option, and its keys")
    parser.add_argument("--steps", type=int, default=2, help="that verify compares; 0: plans alone")
    parser.add_argument("--write", action="store_true", help="writes docs/keras_hub_models.md")
    parser.add_argument("--missing", action="store_true", help="only those that the page does not have")
    chosen = parser.parse_args()
    names = chosen.names or tiny.names()
    words = [f"mesh={chosen.mesh}", f"layout={chosen.layout[0]}", *chosen.layout[1:]]
    if chosen.write and words != page.WORDS:
        parser.error(f"the page is of {' '.join(page.WORDS)}")
    if chosen.missing:
        names = [name for name in names if name not in page.written()]
    os.environ.setdefault("XLA_FLAGS", forks.SLOW_CODE)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (plan,) = plans([name], words, Path(folder)).values()
            row = prove(name, plan, words, Path(folder), chosen.steps)
            failed += not row.sound
            print(row.line(), flush=True)
            print(row.said, flush=True)
            if chosen.write:
                page.put(row)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
