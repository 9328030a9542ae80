"""Equal and hostile names: commands of one second and process id, and names that would control a terminal.

What must hold: every run and sweep has a folder of its own, and a sweep a parent run with its own jobs alone; of
several processes that are given one folder, one gets it and the others end with one line; a folder is free as soon as
its process is gone, however it ended; a name reaches the terminal whole, except for characters that would control it.
"""

from __future__ import annotations

import io
import json
import logging
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from hydra import compose, initialize_config_dir
from rich.table import Table
from rich.text import Text

from runner.cli.resolvers import register_resolvers
from runner.errors import ConfigError
from runner.evaluate.report import EvaluationReport
from runner.host import folders, stages
from runner.host.console import Console
from runner.host.logs import MaskedFormatter
from runner.host.paths import conf_dir
from runner.host.tables import Column, fitted
from runner.host.terminal import Output
from runner.sweep.display import JobsDisplay
from runner.sweep.jobs import Job, Outcome
from tests import forks
from tests.campaign.base import Case
from tests.stores import store_in

CASES = 60
_KINDS = ("runs", "sweeps", "one folder", "one folder, killed", "name", "name", "name", "name", "name")
_REAL_EVERY = 20  # of so many cases one starts two real sweeps, which takes as long as hundreds of the others
_SECOND = "2026-01-01_00-00-00"
_PID = 7
_MOST = 12  # processes at once
_REFUSED = "refused: "
_PIECES = (
    # Escape sequences of seven and eight bits, and single control characters.
    *("\x1b[31m", "\x1b[2J", "\x1b[1A\x1b[2K", "\x1b]0;title\x07", "\x1bc", "\x9b5m", "\x90q"),
    *("\r", "\x08", "\x00", "\x7f"),
    # What reorders or breaks a line, and halves of characters.
    *("\u202e", "\u202c", "\u2066", "\u200f", "\u061c", "\u2028", "\u2029", "\udc80", "\ud83d"),
    # What Rich or a format reads as more than text.
    *("[red]", "[/old]", "[/]", "[link=file:///x]", "[bold", "\\[", ":dog:", "]", "{name}", "%s"),
    *("dog", "Hündin", "狗", " "),
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def run(cases: int, seed: int, folder: Path) -> Iterator[Case]:
    """Tries cases: equal names by forked processes and, now and then, real sweeps; hostile names in every place."""
    draw = random.Random(seed)
    for index in range(cases):
        place = folder / str(index)
        place.mkdir()
        if index % _REAL_EVERY == _REAL_EVERY - 1:
            yield _real_sweeps(place)
            continue
        kind = draw.choice(_KINDS)
        count = draw.randint(2, _MOST)
        if kind in ("runs", "sweeps"):
            yield _equal(kind, count, place)
        elif kind == "one folder":
            yield _one_folder(count, place)
        elif kind == "one folder, killed":
            yield _killed(draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV]), place)
        else:
            yield _hostile("".join(draw.choices(_PIECES, k=draw.randint(1, 6))))


@dataclass(frozen=True)
class _Process:
    """A forked process that said what became of it, and waits for its end."""

    pid: int
    said: str

    def end(self, signum: int) -> None:
        os.kill(self.pid, signum)
        os.waitpid(self.pid, 0)


def _together(bodies: Sequence[Callable[[], str]]) -> list[_Process]:
    """Forks a process per body, lets all of them go at once, and returns them when each has said something."""
    starts, go = os.pipe()
    begun: list[tuple[int, int]] = []
    for body in bodies:
        reads, writes = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(go)
            os.read(starts, 1)  # returns when the parent closes the other end
            try:
                said = body()
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writes, said.encode(errors="replace"))
            os.close(writes)
            while True:
                signal.pause()
        os.close(writes)
        begun.append((pid, reads))
    os.close(starts)
    os.close(go)
    processes = []
    for pid, reads in begun:
        with os.fdopen(reads, "rb") as pipe:
            processes.append(_Process(pid, pipe.read().decode()))
    return processes


def _claim(key: str, folder: Path) -> str:
    """Claims a folder as a process whose id others have too; returns the folder, or why not."""
    os.getpid = lambda: _PID  # in a forked process alone
    try:
        return str(folders.claim(key, folder).folder)
    except ConfigError as error:
        return f"{_REFUSED}{error}"


def _default(key: str, place: Path) -> str:
    """Claims the folder that the config names by default, in the same second as all others."""
    register_resolvers()
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        composed = compose("config", return_hydra_config=True)
    group = "run" if key == "hydra.run.dir" else "sweep"
    stamp, _, ending = Path(composed.hydra[group].dir).name.rpartition("-")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", stamp):
        return f"no time in {stamp}"
    return _claim(key, place / f"{_SECOND}-{ending}")


def _equal(kind: str, count: int, place: Path) -> Case:
    key = "hydra.run.dir" if kind == "runs" else "hydra.sweep.dir"
    processes = _together([lambda: _default(key, place)] * count)
    said = [process.said for process in processes]
    for process in processes:
        process.end(signal.SIGKILL)
    made = sorted(str(path) for path in place.iterdir())
    held = sorted(said) == made and len(set(said)) == count
    return Case(f"{count} {kind} of one second and process id", held, f"{len(set(said))} folders")


def _one_folder(count: int, place: Path) -> Case:
    target = place / "parent" / "run"
    processes = _together([lambda: _claim("hydra.run.dir", target)] * count)
    said = [process.said for process in processes]
    for process in processes:
        process.end(signal.SIGKILL)
    lines = [text for text in said if text.startswith(f"{_REFUSED}hydra.run.dir=") and "\n" not in text]
    held = said.count(str(target)) == 1 and len(lines) == count - 1
    return Case(
        f"{count} processes and one folder", held, f"{said.count(str(target))} got it, {len(lines)} were refused"
    )


def _killed(signum: int, place: Path) -> Case:
    target = place / "run"
    (first,) = _together([lambda: _claim("hydra.run.dir", target)])
    (second,) = _together([lambda: _claim("hydra.run.dir", target)])
    first.end(signum)
    (third,) = _together([lambda: _claim("hydra.run.dir", target)])
    second.end(signal.SIGKILL)
    third.end(signal.SIGKILL)
    held = first.said == third.said == str(target) and second.said.startswith(_REFUSED)
    name = f"one folder whose process ends by {signal.Signals(signum).name}"
    return Case(name, held, "" if held else f"{first.said} | {second.said} | {third.said}")


class _Judge:
    """Knows of every job that it came to a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def should_stop(self, _job: Job) -> bool:
        return False

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Takes nothing."""

    def result(self, _job: Job, _outcome: Outcome) -> str:
        return self._name


def _hostile(name: str) -> Case:
    """Sends a name through each way to a terminal."""
    screen = io.StringIO()
    output = Output(screen, lambda: False)
    rows = [(name, 0.5)]
    report = EvaluationReport(
        name, 1, name, name, "single", {name: 0.5}, 1, {name: ((name, "recall"), rows), "": ((), [])}
    )
    table = Table(title=name)
    table.add_column(name)
    table.add_row(name)
    job = Job(0, (), Path(), {"class": name})
    record = logging.LogRecord("runner", logging.INFO, "", 0, "%s", (name,), None)
    raised = ""
    with redirect_stdout(output):  # type: ignore[type-var]
        try:
            console = Console(width=300)
            print(f"error: {name}")
            print(name)
            print(MaskedFormatter("%(message)s").format(record))
            stages.speak(wanted=True)
            with stages.stage(f"reading {name}"):
                pass
            for content in (name, Text(name), table, *report.printed()[:1]):
                console.print(content)
            console.print(fitted([Column(name)], [[name]], 300, title=name))
            with JobsDisplay(_Judge(name), Console(width=300)) as display:
                display.started(job)
                display.said(job, f"warning: {name}")
                display.ended(job, Outcome("failed", 1, 1.0, note=name))
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
        finally:
            stages.speak(wanted=False)
    shown = screen.getvalue()
    # A carriage return at the beginning or the end of a whole line moves nothing.
    lines = [line.strip("\r") for line in shown.split("\n")]
    left = sorted({repr(letter) for line in lines for letter in _CONTROLS.findall(line)})
    whole = _CONTROLS.sub("?", name)
    held = not raised and not left and lines.count(f"error: {whole}") == 1
    # Where Rich lays a text out, words move to other lines: a name of one word must be whole in each place.
    if _CONTROLS.search(name) is None and not re.search(r"\s", name):
        held = held and shown.count(name) >= 13
    return Case(f"the name {name!r}", held, raised or ", ".join(left))


def _real_sweeps(place: Path) -> Case:
    """Starts two sweeps at the same moment, with one second in their names and one store."""
    store = store_in(place)
    command = [sys.executable, "-m", "runner", "-m", "dataset=digits", "engine=jax", "trainer.epochs=1"]
    command += [
        "trainer.log_model=false",
        f"hydra.sweep.dir=sweeps/{_SECOND}-${{runner_random:}}",
    ]
    environment = os.environ | {"PYTHONPATH": str(forks.ROOT), "MLFLOW_TRACKING_URI": store}
    started = [
        subprocess.Popen(
            [*command, f"trainer.seed={seeds}"],
            cwd=place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for seeds in ("1,2", "3,4")
    ]
    outputs = [process.communicate(timeout=600)[0] for process in started]
    codes = [process.returncode for process in started]
    children = _children(store.removeprefix("sqlite:///"))
    parents = {json.loads(path.read_text())["run_id"] for path in place.glob("sweeps/*/parent.json")}
    held = codes == [0, 0] and sorted(children.values()) == [["seed=1", "seed=2"], ["seed=3", "seed=4"]]
    held = held and parents == set(children)
    note = (
        "" if held else f"exit codes {codes}, {children}, parents {parents}: {' | '.join(o[-300:] for o in outputs)}"
    )
    return Case("two sweeps of one second", held, " ".join(note.split()))


def _children(database: str) -> dict[str, list[str]]:
    """Returns the names of each parent's runs."""
    query = (
        "SELECT tags.value, runs.name FROM tags JOIN runs ON runs.run_uuid = tags.run_uuid "
        "WHERE tags.key = 'mlflow.parentRunId' ORDER BY runs.name"
    )
    children: dict[str, list[str]] = {}
    connection = sqlite3.connect(database)
    try:
        for parent, name in connection.execute(query):
            children.setdefault(parent, []).append(name)
    finally:
        connection.close()
    return children
