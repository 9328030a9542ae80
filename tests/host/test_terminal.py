"""What reaches a terminal: no foreign text controls it, and none is read as markup."""

from __future__ import annotations

import ast
import errno
import io
import logging
import os
import re
from pathlib import Path

import pytest
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runner.evaluate.report import EvaluationReport
from runner.host import stages, terminal
from runner.host.console import Console, clean_redirected
from runner.host.logs import MaskedFormatter
from runner.host.tables import Column, fitted
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


def screen_of(output: Output) -> str:
    return str(output.getvalue())


@pytest.mark.parametrize("name", HOSTILE)
def test_control_characters_are_replaced_one_by_one(name: str) -> None:
    shown = clean(name)
    assert not CONTROLS.search(shown)
    assert len(shown) == len(name)
    assert shown.count("?") == len(CONTROLS.findall(name))


@pytest.mark.parametrize("text", ["dog\tcat\n", "two\r\nlines\r\n", "Hündin 🐕‍🦺 狗 0.91 ± 0.02", "", "\n"])
def test_what_controls_no_terminal_is_left_as_it_is(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize("name", HOSTILE)
def test_a_stream_cleans_what_is_printed_and_not_what_is_styled(name: str) -> None:
    output = Output(Screen(), lambda: False)
    print(f"run {name} ended", file=output)  # type: ignore[call-overload]
    output.writelines([name, "\n"])
    assert not CONTROLS.search(screen_of(output))
    assert screen_of(output) == f"run {clean(name)} ended\n{clean(name)}\n"
    output.rich_proxied_file.write("\x1b[1mbold\x1b[0m")
    assert screen_of(output).endswith("\x1b[1mbold\x1b[0m")


def test_a_bar_may_begin_its_line_again_but_no_name_may() -> None:
    output = Output(Screen(), lambda: False)
    for text in ("\r 10%", "\r 20%", "\n", "\x1b[A", "\x1b[A\x1b[A", "passed\rfailed", "\r"):
        output.write(text)
    print("failed:", "\rpassed", file=output)  # type: ignore[call-overload]
    output.write("lines\r\n")
    assert screen_of(output) == "\r 10%\r 20%\npassed?failed?failed: ?passed\nlines\r\n"


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


def test_a_live_display_keeps_its_own_control_sequences_and_loses_those_of_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stdout", Output(screen, lambda: False))
    console = Console(force_terminal=True, width=80, color_system="standard")
    with Live(console=console, get_renderable=lambda: Text("job \x1b[5mlive"), auto_refresh=False) as live:
        clean_redirected()
        live.refresh()
        print("printed \x1b[5mmeanwhile")
        console.print("bold", style="bold")
    shown = screen.getvalue()
    assert "\x1b[5m" not in shown
    assert "\x1b[1mbold\x1b[0m" in shown
    assert "\x1b[2K" in shown, "the display erases its own lines"


def test_class_names_of_an_evaluation_neither_vanish_nor_raise() -> None:
    names = [*HOSTILE, *MARKUP]
    rows = [(name, 0.5) for name in names]
    report = EvaluationReport("run", 1, "data", "test", "single", {}, 1, {"[/classes]": (("class", "recall"), rows)})
    terminal = Screen()
    console = Console(file=terminal, width=200, color_system=None, force_terminal=False)
    for table in report.printed():
        console.print(table)
    assert not CONTROLS.search(terminal.getvalue())
    for name in MARKUP:
        assert f" {name} " in terminal.getvalue()


def test_a_stage_erases_its_line_and_no_name_does(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stdout", Output(screen, lambda: False))
    monkeypatch.setenv("TERM", "xterm")
    stages.speak(wanted=True)
    with stages.stage("reading \x1b[5mdog"):
        pass
    stages.speak(wanted=False)
    assert screen.getvalue() == "reading ?[5mdog ...\r\x1b[2K"


def test_a_log_that_is_looked_at_later_is_clean() -> None:
    record = logging.LogRecord("runner", logging.INFO, "", 0, "run %s", ("\x1b[2Jdog",), None)
    assert MaskedFormatter("%(message)s").format(record) == "run ?[2Jdog"


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
    assert not makers, "names would be read as markup; use runner.host.console"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_costs_only_what_is_printed_meanwhile_once_a_run_began(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_incomplete", {})

    class Disk(io.StringIO):
        """A file whose disk may be full."""

        name = "<stdout>"
        is_full = True

        def write(self, text: str) -> int:
            """Writes if there is room."""
            if self.is_full:
                raise OSError(code, os.strerror(code))
            return super().write(text)

    disk = Disk()
    output = Output(disk, lambda: False)
    with pytest.raises(OSError, match=re.escape(os.strerror(code))):
        output.write("a command whose result is what it prints")
    output.is_spared = True
    print("epoch 1", file=output, flush=True)
    disk.is_full = False
    print("epoch 2", file=output, flush=True)
    assert disk.getvalue() == "epoch 2\n"
    assert incomplete()[0].startswith("stdout could not be written (")


def test_a_name_that_the_encoding_lacks_is_printed_by_its_codes() -> None:
    disk = io.BytesIO()
    output = Output(io.TextIOWrapper(disk, "latin-1", write_through=True), lambda: False)
    output.write("caf\u00e9 \u65e5")
    assert disk.getvalue() == b"caf\xe9 \\u65e5"
