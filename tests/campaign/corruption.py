"""Damages and forges checkpoints; each must be refused in one line, with nothing read beside it and nothing deleted.

What a bit that flipped on a disk does is in it, and what somebody does who can compute a digest. Each case goes the
ways of `resume=` and of `run=`: the record of the run is found, the checkpoint opened, every array and the history
read. Some cases change nothing that matters, and must be accepted, so that a campaign that refuses all does not hold.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import safetensors

from runner.checkpoint import manifest, recovery, runs, storage
from runner.checkpoint.saver import take_state
from runner.checkpoint.storage import Checkpoint
from runner.engine.base import Engine, EvalMetrics, Part
from runner.errors import ConfigError
from runner.evaluate.saved import open_saved
from runner.history import History
from runner.schema import RunConfig
from tests.campaign.base import Case
from tests.campaign.forgeries import BEST_FORGED, MANIFEST_FORGED, RECORD_FORGED, Forgery

CASES = 44
_RUN, _STEPS = "r", (8, 16, 24)
_SECONDS, _BYTES = 10, 200 << 20  # that a case may take
_CONFIG = {"trainer": {"early_stopping": {"metric": "eval/accuracy"}}, "dataset": {"name": "toy"}}
_FILES = (manifest.NAME, manifest.ARRAYS, manifest.HISTORY)


@dataclass(frozen=True)
class Damage:
    """What is done to a run.

    Attributes:
      name: so that a person can do it again.
      step: whose checkpoint can't be opened any more; null: none of the run's.
      harmless: whether it changes no meaning.
    """

    name: str
    step: int | None
    harmless: bool = False


class _Engine:
    """As much of an engine as a checkpoint is made of: one array in four parts, one whole, and a scalar."""

    def __init__(self, step: int) -> None:
        self._step = step

    def parts(self) -> dict[str, list[Part]]:
        kernel = np.random.default_rng(self._step).normal(size=(6, 4)).astype(np.float32)
        quarters = [Part((i, j), kernel[i : i + 3, j : j + 2].copy(), (6, 4)) for i in (0, 3) for j in (0, 2)]
        return {
            "d/kernel": quarters,
            "optimizer/m/d/kernel": [Part((0, 0), kernel * 2, (6, 4))],
            "optimizer/iterations": [Part((), np.array(self._step, np.int64), ())],
        }


def _make(folder: Path) -> None:
    """Writes a run with three checkpoints, the last of them the best."""
    saved = runs.register(folder, _RUN, tracked=False, overrides=["dataset=digits"])
    about = {"run": _RUN, "config": _CONFIG, "seed": 1, "versions": {"numpy": np.__version__}}
    history = History(lambda *_: None, 4, lambda _: 0.1)
    for step in _STEPS:
        history.train.append((step, 1.0 / step, 0.5))
        history.add_evaluation(step, EvalMetrics(1.0 / step, step / 32, 10, np.eye(3, dtype=np.int64)))
        storage.write(saved.folder, take_state(cast(Engine, _Engine(step)), about)(step, history))
    storage.write_best(saved.folder, {"metric": "eval/accuracy", "value": _STEPS[-1] / 32, "step": _STEPS[-1]})
    runs.end(saved, finished=False)


# Damage of bytes and of files: what a disk, a copy that stopped, or a slip of a hand does.


def _file(draw: Random, run: Path) -> tuple[Path, int | None]:
    """Draws a file, and the step that is lost with it; those that are the run's own are drawn now and then."""
    name = draw.choice([*_FILES, *_FILES, "run.json", storage.BEST])
    if name in _FILES:
        step = draw.choice(_STEPS)
        return storage.place(run, step) / name, step
    return run / name, None


def _rewritten(draw: Random, run: Path, how: str, change: Callable[[bytearray], None]) -> Damage:
    path, step = _file(draw, run)
    before = path.read_bytes()
    data = bytearray(before)
    change(data)
    path.write_bytes(bytes(data))
    return Damage(f"{how} of {path.relative_to(run)}", step, _same(before, bytes(data), path))


def _same(before: bytes, after: bytes, path: Path) -> bool:
    """Returns whether a file means what it did: a number may be written in several ways."""
    if path.suffix != ".json":
        return before == after
    try:
        return bool(json.loads(before) == json.loads(after))
    except ValueError:
        return False


def _flipped(draw: Random, run: Path) -> Damage:
    at, bit = draw.random(), 1 << draw.randrange(8)

    def flip(data: bytearray) -> None:
        data[int(at * len(data))] ^= bit

    return _rewritten(draw, run, f"bit {bit} at {at:.4f}", flip)


def _cut(draw: Random, run: Path) -> Damage:
    at = draw.random()

    def cut(data: bytearray) -> None:
        del data[int(at * (len(data) - 2)) :]

    return _rewritten(draw, run, f"the end from {at:.4f} on", cut)


def _longer(draw: Random, run: Path) -> Damage:
    more = draw.choice([b"\0", b"x", b"{}", b"\0" * 4096])
    return _rewritten(draw, run, f"{len(more)} bytes more at the end", lambda data: data.extend(more))


def _zeroed(draw: Random, run: Path) -> Damage:
    at, part = draw.random(), draw.choice([0.01, 0.1, 1.0])

    def zero(data: bytearray) -> None:
        first = int(at * len(data) * (1 - part))
        last = min(len(data), first + 1 + int(part * len(data)))
        data[first:last] = bytes(last - first)

    return _rewritten(draw, run, f"zeros over {part} from {at:.4f}", zero)


def _missing(draw: Random, run: Path) -> Damage:
    step = draw.choice(_STEPS)
    path = draw.choice([run / "run.json", *(storage.place(run, step) / name for name in _FILES)])
    path.unlink()
    return Damage(f"no {path.relative_to(run)}", None if path.parent == run else step)


def _swapped_files(draw: Random, run: Path) -> Damage:
    step, name = draw.choice(_STEPS), draw.choice(_FILES)
    other = draw.choice([one for one in _STEPS if one != step])
    shutil.copy(storage.place(run, other) / name, storage.place(run, step) / name)
    return Damage(f"{name} of step {other} in step {step}", step)


def _swapped_folders(draw: Random, run: Path) -> Damage:
    one, other = draw.sample(_STEPS, 2)
    storage.place(run, one).rename(run / "swap")
    storage.place(run, other).rename(storage.place(run, one))
    (run / "swap").rename(storage.place(run, other))
    return Damage(f"folders of steps {one} and {other} swapped", draw.choice([one, other]))


def _renamed_folder(draw: Random, run: Path) -> Damage:
    step, other = draw.choice(_STEPS), draw.choice([9, 25, 10**9, 10**18])
    shutil.copytree(storage.place(run, step), storage.place(run, other))
    return Damage(f"folder of step {step} as step {other}", other)


def _other_run(draw: Random, run: Path) -> Damage:
    step = draw.choice(_STEPS)
    _edit(storage.place(run, step) / manifest.NAME, lambda found: found.update(run="another"))
    return Damage(f"step {step} of another run", step)


def _other_kind(draw: Random, run: Path) -> Damage:
    """Puts something that is no file into a file's place; links lead to the very bytes, or out of all bounds."""
    path, step = _file(draw, run)
    outside = run.parent / "outside" / path.name
    outside.parent.mkdir(exist_ok=True)
    path.rename(outside)
    kind = draw.choice(["fifo", "folder", "link", "link to nothing", "link to a fifo", "device", "socket"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        os.mknod(path, 0o140600)
    elif kind == "link to a fifo":
        os.mkfifo(outside.with_suffix(".fifo"))
        path.symlink_to(outside.with_suffix(".fifo"))
    else:
        path.symlink_to({"link": outside, "device": "/dev/zero"}.get(kind, run.parent / "nothing"))
    return Damage(f"a {kind} as {path.relative_to(run)}", step)


def _linked_folder(draw: Random, run: Path) -> Damage:
    step = draw.choice(_STEPS)
    outside = run.parent / "outside"
    storage.place(run, step).rename(outside)
    kind = draw.choice(["link", "file", "fifo"])
    if kind == "link":
        storage.place(run, step).symlink_to(outside)
    elif kind == "file":
        storage.place(run, step).write_bytes(b"x")
    else:
        os.mkfifo(storage.place(run, step))
    return Damage(f"a {kind} as the folder of step {step}", step)


def _huge(draw: Random, run: Path) -> Damage:
    path, step = _file(draw, run)
    size = draw.choice([1 << 27, 1 << 33, 1 << 40])
    os.truncate(path, size)  # takes no room
    return Damage(f"{path.relative_to(run)} of {size:,} bytes", step)


# Forgeries: what somebody does who knows the format, and computes the digests again.


def _edit(path: Path, change: Forgery) -> None:
    found = json.loads(path.read_text())
    signed = found.pop("sha256", None) is not None
    change(found)
    if path.name == manifest.NAME:
        path.write_bytes(manifest.sealed(found))
    else:
        sealed = {**found, "sha256": runs._digest(found)} if signed else found
        path.write_text(json.dumps(sealed, indent=1))


def _forged_manifest(draw: Random, run: Path) -> Damage:
    step, (name, change) = draw.choice(_STEPS), draw.choice(list(MANIFEST_FORGED.items()))
    outside = run.parent / "outside"
    shutil.copytree(storage.place(run, step), outside)
    _edit(storage.place(run, step) / manifest.NAME, change)
    return Damage(f"manifest of step {step}: {name}", step)


def _forged_tensors(draw: Random, run: Path) -> Damage:
    """Writes other tensors, with all digests right."""
    from safetensors.numpy import load_file, save_file

    step, name = draw.choice(_STEPS), draw.choice([manifest.ARRAYS, manifest.HISTORY])
    path = storage.place(run, step) / name
    tensors = load_file(path)
    key, how = draw.choice(sorted(tensors)), draw.choice(["none", "smaller", "larger", "another type", "one more"])
    if key == "restores" and how == "none":  # as in a run of before there were any
        how = "smaller"
    if how == "none":
        del tensors[key]
    elif how == "one more":
        tensors["more"] = tensors[key]
    else:
        shape = tensors[key].shape
        other = np.zeros((*shape, 2) if how == "larger" or not shape else shape[:-1], tensors[key].dtype)
        tensors[key] = tensors[key].astype(np.float16) if how == "another type" else other
    save_file(tensors, path)
    files = {"bytes": path.stat().st_size, "sha256": storage.files.digest(path)}
    _edit(path.parent / manifest.NAME, lambda found: found["files"].update({name: files}))
    return Damage(f"{key} in {name} of step {step}: {how}", step)


def _forged_record(draw: Random, run: Path) -> Damage:
    name, change = draw.choice(list(RECORD_FORGED.items()))
    _edit(run / "run.json", change)
    return Damage(f"run.json: {name}", None)


def _forged_best(draw: Random, run: Path) -> Damage:
    name, change = draw.choice(list(BEST_FORGED.items()))
    _edit(run / storage.BEST, change)
    return Damage(f"best.json: {name}", None)


def _twice(draw: Random, run: Path) -> Damage:
    path, step = _file(draw, run)
    while path.suffix != ".json":
        path, step = _file(draw, run)
    key = draw.choice(list(json.loads(path.read_text())))
    path.write_text(path.read_text().rstrip()[:-1] + f', "{key}": {draw.choice(["0", "null", "[]", "true"])}}}')
    return Damage(f"{key} twice in {path.relative_to(run)}", step)


def _deep(draw: Random, run: Path) -> Damage:
    path, step = _file(draw, run)
    depth = draw.choice([100, 900, 100_000])
    path.write_bytes(b"[" * depth + b"]" * depth if draw.random() < 0.5 else b'{"a":' * depth + b"1" + b"}" * depth)
    return Damage(f"{path.relative_to(run)} of {depth} levels", step)


def _harmless(draw: Random, run: Path) -> Damage:
    step = draw.choice(_STEPS)
    path = draw.choice([run / "run.json", run / storage.BEST, storage.place(run, step) / manifest.NAME])
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found, indent=draw.choice([None, 0, 7]), sort_keys=draw.random() < 0.5) + "\n\n")
    return Damage(f"{path.relative_to(run)} in other words", step, harmless=True)


_KINDS: tuple[Callable[[Random, Path], Damage], ...] = (
    _forged_manifest,
    _flipped,
    _forged_manifest,
    _cut,
    _other_kind,
    _forged_manifest,
    _longer,
    _zeroed,
    _forged_tensors,
    _missing,
    _swapped_files,
    _forged_record,
    _swapped_folders,
    _other_kind,
    _renamed_folder,
    _forged_best,
    _other_run,
    _linked_folder,
    _huge,
    _twice,
    _deep,
    _harmless,
)


def run(cases: int, seed: int, folder: Path) -> Iterator[Case]:
    """Damages a run once a case; see `tests.campaign.base.Campaign`."""
    template = folder / "template"
    _make(template)
    _watch_opens()
    with _watched(template / _RUN):  # what is imported only now is no part of a case
        _read_all(template, _STEPS[-1])
    for number in range(cases):
        draw = Random(f"{seed}/{number}")
        place = folder / f"case-{number}"
        shutil.copytree(template, place)
        damage = _KINDS[number % len(_KINDS)](draw, place / _RUN)
        yield _tried(damage, place)
        shutil.rmtree(place)


def _tried(damage: Damage, place: Path) -> Case:
    before = _snapshot(place)
    wrong = []
    # A file of the run's own is looked at whatever is opened; a checkpoint, where it is asked for.
    steps = [damage.step] if damage.step is not None else [None, *_STEPS]
    said = ""
    for step in steps:
        with _watched(place / _RUN) as seen:
            said = _read_all(place, step)
        refused = said.startswith("refused: ")
        if refused == damage.harmless or not (refused or said == "read"):
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
        config.trainer.checkpoint.folder = str(place)
        try:
            with ExitStack() as held:
                if key == "resume":
                    previous = recovery.open_previous(config, _CONFIG, held)
                    assert previous is not None
                    previous.says()
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
        assert checkpoint.read(path).shape == checkpoint.shape(path)
    History(lambda *_: None, 4, lambda _: 0.1).restore(checkpoint.step, checkpoint.history())


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
    real = safetensors.safe_open

    def safe_open(path: Any, *given: Any, **options: Any) -> Any:
        if _watching[0]:
            _opened.append(os.fsdecode(path))
        return real(path, *given, **options)

    safetensors.safe_open = safe_open  # type: ignore[assignment,misc]


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
