"""Fuzzes command lines: each is refused in one line that names a key of it, or works.

Each runs as a user would run it, on scikit-learn's digits for two steps, in a folder with files that must be as they
were afterwards. An option that makes a sweep is one run here, by `hydra.mode=RUN`.
"""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests import forks
from tests.campaign.base import Case
from tests.campaign.fuzz_cases import SAVED, Drawer, Line, key_of, preset_keys

CASES = 150
_RUN_S, _END_S = 90.0, 60.0
_MEMORY = 16 << 30  # of addresses, which a library takes many more of than of memory
_BASE = (
    *("dataset=digits", "tracking=none", "trainer.epochs=1", "trainer.limit_train_batches=2"),
    *("trainer.limit_eval_batches=1", "verify.steps=2", "dataset.download=false", "trainer.progress=lines"),
    *("trainer.checkpoint.folder=checkpoints", "export.folder=export", "hydra.run.dir=run"),
)
_READ_BY = {"verify.steps=2": "runner.verify", "export.folder=export": "runner.export"}  # rejected elsewhere
_ONE = "hydra.mode=RUN"  # whatever an option says
_CANARIES = {"data.csv": "1,2\n", "keep/notes.txt": "notes\n", "run.txt": "mine\n", ".hidden": "too\n"}


class Ended(NamedTuple):
    """How a command line ended: its exit code, None where it hung, and what it printed on stdout and stderr."""

    code: int | None
    out: str
    err: str


def run(cases: int, seed: int, folder: Path) -> Iterator[Case]:
    """Tries command lines.

    Args:
      cases: how many.
      seed: decides what they are.
      folder: an empty one.
    """
    drawer = Drawer(random.Random(seed))
    saved = ""
    for number in range(cases):
        line = drawer.line()
        place = folder / str(number) / "work"
        lay_out(place)
        base = [word for word in _BASE if _READ_BY.get(word, line.command) == line.command]
        if line.command in SAVED and "run" not in map(key_of, line.overrides):
            saved = saved or _saved_run(folder / "saved")
            base.append(f"run='{saved}'")
        held, note = judged(line, _run(line.command, line.arguments((*base, _ONE)), place))
        changed = touched(place)
        if held and changed:
            held, note = False, f"{note}; {changed}"
        shutil.rmtree(place.parent, ignore_errors=True)
        shown = " ".join(["-m", line.command, *line.arguments(())]).replace("\n", "\\n")
        yield Case(f"{number}: {shown[:300]}", held, note)


def _saved_run(place: Path) -> str:
    """Returns the folder of a run that left checkpoints."""
    place.mkdir()
    ended = _run("runner", ["engine=jax", *(word for word in _BASE if word not in _READ_BY)], place)
    (record,) = place.glob("checkpoints/*/run.json")
    assert ended.code == 0, ended.err
    return str(record.parent)


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


def _run(module: str, arguments: list[str], place: Path) -> Ended:
    """Runs a command to its end; one that takes too long is ended as by Ctrl-C, which it has to obey."""
    command = [sys.executable, "-m", module, *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
    started = {"cwd": place, "env": _environment(place), "start_new_session": True}
    with subprocess.Popen(command, **started, **streams) as process:
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
