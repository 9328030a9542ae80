"""Fuzzes command lines: each is refused in one line that names a key of it, or works.

Each is answered first by `tests.campaign.fuzz_worker`, which composes and checks the config and runs nothing. What
it accepts is run for real, on scikit-learn's digits for two steps. Both happen in a folder with files that must be as
they were afterwards. Command lines that come to the same config under the same command share a run: a config is all
that a command is given. An option that makes a sweep is one run here, by `hydra.mode=RUN`.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import forks
from tests.campaign.base import Case
from tests.campaign.fuzz_cases import SAVED, Drawer, Line, key_of, preset_keys

CASES = 150
_ANSWER_S, _RUN_S, _END_S = 60.0, 90.0, 60.0
_MEMORY = 16 << 30  # of addresses, which a library takes many more of than of memory
_BASE = (
    *("dataset=digits", "tracking=none", "trainer.epochs=1", "trainer.limit_train_batches=2"),
    *("trainer.limit_eval_batches=1", "verify.steps=2", "dataset.download=false", "trainer.progress=lines"),
    *("trainer.checkpoint.folder=checkpoints", "export.folder=export", "hydra.run.dir=run"),
)
_READ_BY = {"verify.steps=2": "runner.verify", "export.folder=export": "runner.export"}  # rejected elsewhere
_ONE = "hydra.mode=RUN"  # whatever an option says
_CANARIES = {"data.csv": "1,2\n", "keep/notes.txt": "notes\n", "run.txt": "mine\n", ".hidden": "too\n"}


@dataclass(frozen=True)
class Ended:
    """How a command line ended.

    Attributes:
      code: the exit code; None where it hung or broke what ran it.
      out: what it printed.
      err: what it printed on stderr.
    """

    code: int | None
    out: str
    err: str


def run(cases: int, seed: int, folder: Path, real: int | None = None) -> Iterator[Case]:
    """Tries command lines.

    Args:
      cases: how many.
      seed: decides what they are.
      folder: an empty one.
      real: how many of those that are accepted are run; null: all of them.
    """
    drawer, campaign = Drawer(random.Random(seed)), _Campaign(folder, real)
    try:
        for number in range(cases):
            yield campaign.tried(number, drawer.line())
    finally:
        campaign.answerer.close()


class _Campaign:
    """What the cases share: the process that answers, saved runs, and what came of runs that stand for several."""

    def __init__(self, folder: Path, real: int | None) -> None:
        self.answerer = _Answerer()
        self._folder, self._left = folder, real
        self._runs: dict[tuple[str, str], tuple[bool, str]] = {}
        self._saved = ""

    def tried(self, number: int, line: Line) -> Case:
        """Tries one command line."""
        place = self._folder / str(number) / "work"
        lay_out(place)
        base = tuple(word for word in _BASE if _READ_BY.get(word, line.command) == line.command)
        shown = " ".join(["-m", line.command, *line.arguments(())]).replace("\n", "\\n")
        held, note = self._outcome(place, line, line.arguments((*base, _ONE)))
        if held and (changed := touched(place)):
            held, note = False, f"{note}; {changed}"
        shutil.rmtree(place.parent, ignore_errors=True)
        return Case(f"{number}: {shown[:300]}", held, note)

    def _outcome(self, place: Path, line: Line, arguments: list[str]) -> tuple[bool, str]:
        answer = self.answerer.ask(place, line.command, arguments)
        if answer["reached"]:
            return self._run_once(place, line, arguments, json.loads(answer["config"]))
        held, note = judged(line, Ended(answer["code"], answer["out"], answer["err"]))
        if held and answer["heavy"]:
            return False, f"{note}; imported {', '.join(answer['heavy'])}"
        left = {path.name for path in place.iterdir()} - {Path(name).parts[0] for name in _CANARIES}
        return held and not left, f"{note}; left {', '.join(sorted(left))}" if left else note

    def _run_once(self, place: Path, line: Line, arguments: list[str], config: dict[str, Any]) -> tuple[bool, str]:
        """Runs what was accepted, unless another case has run the same config."""
        key = line.command, _looked_at(line.command, config)
        if key in self._runs:
            held, note = self._runs[key]
            return held, f"as before: {note}"
        if self._left == 0:
            return True, "accepted, not run"
        self._left = None if self._left is None else self._left - 1
        if line.command in SAVED and "run" not in map(key_of, line.overrides):
            arguments = [*arguments, f"run='{self._saved_run()}'"]
        shutil.rmtree(place / "run", ignore_errors=True)
        library = forks.JAX if config["engine"]["name"] == "jax" else forks.TENSORFLOW
        self._runs[key] = judged(line, _run(line.command, arguments, place, library))
        return self._runs[key]

    def _saved_run(self) -> str:
        """Returns the folder of a run that left checkpoints, made once."""
        if not self._saved:
            place = self._folder / "saved"
            place.mkdir()
            ended = _run("runner", ["engine=jax", *(word for word in _BASE if word not in _READ_BY)], place, forks.JAX)
            (record,) = place.glob("checkpoints/*/run.json")
            assert ended.code == 0, ended.err
            self._saved = str(record.parent)
        return self._saved


def _looked_at(command: str, config: dict[str, Any]) -> str:
    """Returns what a command may look at of a config: nothing of the groups of the other commands."""
    idle = {"sweep", "advise", "generate", "replay"} | ({"export"} if command != "runner.export" else set())
    if command != "runner.verify" and not config["trainer"]["verify_first"]:
        idle.add("verify")
    return json.dumps({key: value for key, value in config.items() if key not in idle})


def lay_out(place: Path) -> None:
    """Writes the files that must stay as they are, in a folder and in the one above it."""
    for name, text in _CANARIES.items():
        for path in (place / name, place.parent / name):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def touched(place: Path) -> str:
    """Returns which of the files that were there are gone or changed, in words."""
    for name, text in _CANARIES.items():
        for path in (place / name, place.parent / name):
            if not path.is_file() or path.read_text() != text:
                return f"{path} is gone or changed"
    return ""


def _environment(place: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("HYDRA_FULL_ERROR", "PYTHONPATH")}
    store = {"MLFLOW_TRACKING_URI": f"sqlite:///{place / 'mlflow.db'}", "TFDS_DATA_DIR": str(place / "tfds")}
    return kept | store | {"PYTHONPATH": str(forks.ROOT)}


def _run(module: str, arguments: list[str], place: Path, library: str | None = None) -> Ended:
    """Runs a command to its end; one that takes too long is ended as by Ctrl-C, which it has to obey."""
    command = [sys.executable, "-m", module, *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
    started = {"cwd": place, "env": _environment(place), "start_new_session": True}
    with forks.Popen(command, library=library, **started, **streams) as process:
        resource.prlimit(process.pid, resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        try:
            out, err = process.communicate(timeout=_RUN_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                out, err = process.communicate(timeout=_END_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
                return Ended(None, out, err)
    return Ended(process.returncode, out, err)


def judged(line: Line, ended: Ended) -> tuple[bool, str]:
    """Returns whether a command line ended as it must, and how it did, in a line."""
    lines = ended.err.strip().splitlines()
    last = " ".join((lines[-1] if lines else "").split())[:300]
    if "Traceback" in ended.err or "Traceback" in ended.out:
        return False, f"traceback, code {ended.code}: {last}"
    if ended.code is None:
        return False, f"hung: {last}"
    if ended.code == 0:
        return True, "works"
    if ended.code == 130:
        return True, "works, for longer than this campaign waits, and ended by Ctrl-C"
    errors = [each for each in lines if each.startswith("error: ")]
    one_line = len(errors) == 1 and (ended.code != 2 or len(lines) == 1)
    if ended.code not in (1, 2) or not one_line:
        return False, f"code {ended.code}, {len(lines)} lines on stderr: {last}"
    if not _named(line, errors[0]):
        return False, f"names no key, code {ended.code}: {last}"
    return True, f"code {ended.code}: {last}"


def _named(line: Line, text: str) -> bool:
    """Tells whether a message names something of the command line."""
    words: list[str] = []
    for override in line.overrides:
        key = key_of(override)
        words += [override, key, key.partition("@")[0], key.rpartition(".")[2]]
        if key == "experiment":  # stands for the keys that it sets, which may not go with those of this campaign
            words += preset_keys(override.partition("=")[2])
    return any(re.search(rf"(?<![\w]){re.escape(word)}(?![\w])", text) for word in words if word)


class _Answerer:
    """A process that says whether a command line is refused; a new one takes the place of one that died or hung."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, place: Path, command: str, arguments: list[str]) -> dict[str, Any]:
        """Returns what `fuzz_worker.answer` found."""
        if self._process is None:
            worker = [sys.executable, "-m", "tests.campaign.fuzz_worker"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._process = subprocess.Popen(worker, cwd=forks.ROOT, env=_environment(place), **pipes)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"cwd": str(place), "command": command, "args": arguments}) + "\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            text = process.stdout.readline() if selector.select(_ANSWER_S) else ""
        if not text:
            self.close()
            return {"code": None, "reached": False, "out": "", "err": "no answer", "heavy": [], "config": ""}
        found: dict[str, Any] = json.loads(text)
        if found["heavy"]:  # it would be there for the next too
            self.close()
        return found

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
