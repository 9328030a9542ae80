"""Damages and forges checkpoints; each must be refused in one line, with nothing read beside it and nothing deleted.

What a bit that flipped on a disk does is in it, and what somebody does who can compute a digest. Each case goes the
ways of `resume=` and of `run=`: the record of the run is found, the checkpoint opened, every array and the history
read. Some cases change nothing that matters, and must be accepted, so that a campaign that refuses all does not hold.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np

from runner.config.schema import RunConfig
from runner.engine.base import Engine, Shard
from runner.errors import ConfigError
from runner.evaluate.saved import open_saved
from runner.task.base import Evaluation
from runner.training.checkpoint import index, reading, resume, runs, storage
from runner.training.checkpoint.reading import Checkpoint
from runner.training.checkpoint.saver import take_state
from runner.training.recorder import MetricRecorder
from tests.campaign.base import Case
from tests.campaign.damages import KINDS, STEPS, Damage
from tests.configs import with_keys

CASES = 44
_RUN = "r"
_SECONDS, _BYTES = 10, 200 << 20  # that a case may take
_CONFIG = {"trainer": {"early_stopping": {"metric": "eval/accuracy"}}, "dataset": {"name": "toy"}}


class _Engine:
    """As much of an engine as a checkpoint is made of: one array in four shards, one whole, and a scalar."""

    def __init__(self, step: int) -> None:
        self._step = step

    def shards(self) -> dict[str, list[Shard]]:
        kernel = np.random.default_rng(self._step).normal(size=(6, 4)).astype(np.float32)
        quarters = [Shard((i, j), kernel[i : i + 3, j : j + 2].copy(), (6, 4)) for i in (0, 3) for j in (0, 2)]
        return {
            "d/kernel": quarters,
            "optimizer/m/d/kernel": [Shard((0, 0), kernel * 2, (6, 4))],
            "optimizer/iterations": [Shard((), np.array(self._step, np.int64), ())],
        }


def _make(folder: Path) -> None:
    """Writes a run with three checkpoints, the last of them the best."""
    saved = runs.register(folder, _RUN, tracked=False, overrides=["dataset=digits"])
    about = {"run": _RUN, "config": _CONFIG, "seed": 1, "versions": {"numpy": np.__version__}}
    history = MetricRecorder(lambda *_: None, 4, lambda _: 0.1, metrics=["accuracy"])
    for step in STEPS:
        history.history.train.append((step, {"loss": 1.0 / step, "accuracy": 0.5}))
        metrics = {"loss": 1.0 / step, "accuracy": step / 32}
        history.add_evaluation(step, Evaluation(metrics, 10, {}, np.zeros(0, np.float32)))
        storage.write(saved.folder, take_state(cast(Engine, _Engine(step)), about)(step, history))
    index.write_best(saved.folder, {"metric": "eval/accuracy", "value": STEPS[-1] / 32, "step": STEPS[-1]})
    runs.end(saved, finished=False)


def run(cases: int, seed: int, folder: Path) -> Iterator[Case]:
    """Damages a run once a case; see `tests.campaign.base.Campaign`."""
    template = folder / "template"
    _make(template)
    _watch_opens()
    with _watched(template / _RUN):  # what is imported only now is no part of a case
        _read_all(template, STEPS[-1])
    for number in range(cases):
        draw = Random(f"{seed}/{number}")
        place = folder / f"case-{number}"
        shutil.copytree(template, place)
        damage = KINDS[number % len(KINDS)](draw, place / _RUN)
        yield _tried(damage, place)
        shutil.rmtree(place)


def _tried(damage: Damage, place: Path) -> Case:
    before = _snapshot(place)
    wrong = []
    # A file of the run's own is looked at whatever is opened, except the record of the best checkpoint, which a named
    # step does not need; a checkpoint, where it is asked for.
    steps = [damage.step] if damage.step is not None else [None, *STEPS]
    said = ""
    for step in steps:
        with _watched(place / _RUN) as seen:
            said = _read_all(place, step)
        refused = said.startswith("refused: ")
        is_needless = step is not None and "best.json" in damage.name
        if refused == (damage.harmless or is_needless) or not (refused or said == "read"):
            wrong.append(said)
        wrong += seen
        if "\n" in said:
            wrong.append("in more than a line")
    if _snapshot(place) != before:
        wrong.append("something was changed or deleted")
    return Case(damage.name, not wrong, "; ".join(wrong) or said)


def _read_all(place: Path, step: int | None) -> str:
    """Goes the ways of `resume=` and `run=`; returns what came of it, the same for both."""
    at = "latest" if step is None else f"{place / _RUN}@{step}"
    ended = []
    for key in ("resume", "run"):
        config = RunConfig(**{key: at})
        config = with_keys(config, {"trainer.checkpoint.folder": str(place)})
        try:
            with ExitStack() as held:
                if key == "resume":
                    previous = resume.open_previous(config, _CONFIG, held)
                    assert previous is not None
                    previous.describe_other_checkpoints()
                    storage.clean(place / _RUN)
                else:
                    previous = open_saved(config, "runner.evaluate")
                _use(previous.checkpoint)
        except ConfigError as error:
            ended.append(f"refused: {error}")
        except Exception as error:
            ended.append(f"{type(error).__name__}: {error}")
        else:
            ended.append("read")
    kinds = {one.split(":")[0] for one in ended}
    return ended[0] if len(kinds) == 1 else f"resume is {ended[0]}, and run is {ended[1]}"


def _use(checkpoint: Checkpoint) -> None:
    for path in checkpoint:
        assert checkpoint[path].shape == checkpoint.shape(path)
    MetricRecorder(lambda *_: None, 4, lambda _: 0.1).restore(checkpoint.step, checkpoint.history())


def _snapshot(place: Path) -> dict[str, tuple[int, int, int]]:
    """Returns what lies in a folder, by name; the lock of a run that is held comes and stays."""
    found = {}
    for path in place.rglob("*"):
        if path.name != "run.lock":
            stat = path.lstat()
            found[str(path)] = (stat.st_mode, stat.st_size if path.is_file() else 0, stat.st_mtime_ns)
    return {name: seen if not name.endswith(_RUN) else (seen[0], 0, 0) for name, seen in found.items()}


_opened: list[str] = []
_watching = [False]


def _watch_opens() -> None:
    """Notes every file that this process opens, those that safetensors opens past Python included."""
    if _opened:
        return
    _opened.append("")

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if _watching[0] and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            _opened.append(os.fsdecode(arguments[0]))

    sys.addaudithook(audit)
    real = reading.safe_open

    def safe_open(path: Any, *given: Any, **options: Any) -> Any:
        if _watching[0]:
            _opened.append(os.fsdecode(path))
        return real(path, *given, **options)

    reading.safe_open = safe_open  # type: ignore[assignment,misc]


class _TooLongError(BaseException):
    """A case that takes more time than one may."""


@contextmanager
def _watched(run: Path) -> Iterator[list[str]]:
    """Yields what a case did that it may not: time, memory, and files opened elsewhere."""
    wrong: list[str] = []

    def too_long(*_: object) -> None:
        raise _TooLongError

    before, began = signal.signal(signal.SIGALRM, too_long), time.monotonic()
    signal.alarm(_SECONDS)
    tracemalloc.start()
    _opened[1:] = []
    _watching[0] = True
    try:
        yield wrong
    except _TooLongError:
        wrong.append(f"still at it after {time.monotonic() - began:.0f} s")
    finally:
        _watching[0] = False
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if taken > _BYTES:
        wrong.append(f"took {taken:,} bytes")
    inside = run.resolve()
    for path in _opened[1:]:
        if not Path(path).resolve().is_relative_to(inside) and not path.startswith("/proc/"):
            wrong.append(f"opened {path}")
