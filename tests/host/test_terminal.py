"""What reaches a terminal: no foreign text controls it, and none is read as markup."""

import ast
import errno
import io
import os
import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from runner.console import Column, Console, fitted
from runner.host import terminal
from runner.host.terminal import Output, clean, incomplete

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = [
    "\x1b[2J\x1b[31mdog",
    "\x1b]0;title\x07dog",
    "\x9b31mdog",
    "dog\rcat",
    "dog\x08\x08\x08cat",
    "\u202edog\u202c",
    "\u2066dog\u2069",
    "dog\u2028cat",
    "do\x00g\x7f",
    "dog\udc80",
    "\x1b[1A\x1b[2Kdog",
]
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MARKUP = ["[red]dog[/red]", "[/old]", "[link=http://x]dog[/link]", ":dog:", "[bold", "\\[red]", "[@click=f]dog"]


class Screen(io.StringIO):
    """A terminal that keeps what it gets."""

    def isatty(self) -> bool:
        """It is one."""
        return True


@pytest.mark.parametrize("name", HOSTILE)
def test_a_stream_cleans_what_is_printed_and_not_what_is_styled(name: str) -> None:
    output = Output(Screen())
    print(f"run {name} ended", file=output)
    output.writelines([name, "\n"])
    assert not CONTROLS.search(output.getvalue())
    assert output.getvalue() == f"run {clean(name)} ended\n{clean(name)}\n"
    output.rich_proxied_file.write("\x1b[1mbold\x1b[0m")
    assert output.getvalue().endswith("\x1b[1mbold\x1b[0m")


@pytest.mark.parametrize("name", [*HOSTILE, *MARKUP])
def test_a_console_prints_a_name_as_it_is(name: str) -> None:
    terminal = Screen()
    console = Console(file=terminal, width=200, color_system=None, force_terminal=False)
    table = Table(title=name)
    table.add_column(name)
    table.add_row(name)
    for content in (name, table, Text(name), fitted([Column(name)], [[name], [Text(name)]], 200, title=name)):
        terminal.seek(0)
        terminal.truncate()
        console.print(content)
        shown = terminal.getvalue()
        # Rich itself leaves out some control characters of a text of its own.
        assert not CONTROLS.search(shown)
        if name in MARKUP:
            assert name in shown


def test_every_console_of_a_command_is_this_one() -> None:
    makers = set()
    for path in (ROOT / "runner").rglob("*.py"):
        tree = ast.parse(path.read_text())
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        of_rich = any(node.module == "rich.console" and "Console" in {n.name for n in node.names} for node in imports)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        if of_rich and any(isinstance(node.func, ast.Name) and node.func.id == "Console" for node in calls):
            makers.add(str(path))
        assert not any(isinstance(node.func, ast.Attribute) and node.func.attr == "from_markup" for node in calls)
    assert not makers, "names would be read as markup; use runner.console"


def test_a_full_disk_costs_only_what_is_printed_meanwhile_once_a_run_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_incomplete", {})

    class Disk(io.StringIO):
        """A file whose disk may be full."""

        name = "<stdout>"
        is_full = True

        def write(self, text: str) -> int:
            """Writes if there is room."""
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(text)

    disk = Disk()
    output = Output(disk)
    with pytest.raises(OSError, match="No space left"):
        output.write("a command whose result is what it prints")
    monkeypatch.setattr(Output, "is_spared", True)
    print("epoch 1", file=output, flush=True)
    disk.is_full = False
    print("epoch 2", file=output, flush=True)
    assert disk.getvalue() == "epoch 2\n"
    assert incomplete()[0].startswith("stdout could not be written (")
