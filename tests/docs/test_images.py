"""Pictures of the pages that a program drew once: they show what their pages say."""

from __future__ import annotations

import html
import re
import shlex

from benchmarks import terminal
from tests.docs import pages


def test_a_drawn_terminal_names_no_font_of_another_host() -> None:
    drawn = terminal.picture("python -m runner.plan", "written: plan.md in /home/me/outputs/runs/1")
    assert not re.search(r"url\(.?https?:|@font-face", drawn)
    assert "Fira" not in drawn
    assert ".../outputs/runs/1" in html.unescape(drawn).replace("\xa0", " ")


def test_the_terminal_shows_the_plan_of_choose_layout() -> None:
    text = html.unescape((pages.ROOT / "docs" / "images" / "terminal.svg").read_text())
    title = re.search(r"<title>Terminal with the output of python -m (.*)</title>", text)
    assert title
    planned = [command for command in pages.commands("choose_layout") if "model.dim=4096" in command.words]
    assert tuple(shlex.split(title[1])) == planned[0].words[2:]
    outputs = [output for kind, output in pages.blocks("choose_layout") if not kind and output.startswith("fits: ")]
    # A terminal wraps long lines, and its spaces are hard ones.
    shown = " ".join(re.sub(r"<[^>]+>", " ", text).replace("\xa0", " ").split())
    for line in outputs[-1].splitlines():
        words = line.split(" per device")[0]
        assert " ".join(words.split()) in shown, line
