"""Draws what a command prints: `python -m benchmarks.terminal docs/images/terminal.svg runner mesh=batch8 model=mlp`.

With `--from FILE` it draws what that file holds, which the command has printed.
"""

from __future__ import annotations

import argparse
import html
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

_COLUMNS = 108


def picture(command: str, printed: str) -> str:
    """Returns an SVG of a terminal that shows a command and what it printed; folders of this machine as `...`."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold"))
    shown = re.sub(r"(?<=[\s:/=(])/(?!/)[\w.-]+(/[\w.@-]+)*/(?=outputs/)", ".../", printed)
    console.print(Text.from_ansi(shown.rstrip()), soft_wrap=False)
    drawn = console.export_svg(title="runner", unique_id="terminal")
    # Rich names a font of another host; pages must not fetch anything.
    drawn = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.S)
    drawn = drawn.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    # For screen readers.
    opened, root, rest = drawn.partition(">")
    title = html.escape(f"Terminal with the output of {command}")
    return f'{opened} role="img"{root}\n<title>{title}</title>{rest}'


def main() -> None:
    """Runs the command, or reads what it printed, and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--from", dest="printed", type=Path)
    parser.add_argument("command", nargs="+", help="a module and its arguments, as runner.plan mesh=batch8")
    options = parser.parse_args()
    if options.printed:
        printed = options.printed.read_text()
    else:
        printed = subprocess.run(
            [sys.executable, "-m", *options.command], capture_output=True, text=True, check=True
        ).stdout
    options.out.write_text(picture(shlex.join(["python", "-m", *options.command]), printed))


if __name__ == "__main__":
    main()
