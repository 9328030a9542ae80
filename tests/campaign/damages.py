"""What is done to a run of checkpoints, drawn by a seed: by a disk, by a hand, or by somebody who knows the format."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from runner.training.checkpoint import index, manifest, runs, storage
from tests.campaign.forgeries import BEST_FORGED, MANIFEST_FORGED, RECORD_FORGED, Forgery

STEPS = (8, 16, 24)
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


# Damage of bytes and of files: what a disk, a copy that stopped, or a slip of a hand does.


def _file(draw: Random, run: Path) -> tuple[Path, int | None]:
    """Draws a file, and the step that is lost with it; those that are the run's own are drawn now and then."""
    name = draw.choice([*_FILES, *_FILES, "run.json", index.BEST_FILE])
    if name in _FILES:
        step = draw.choice(STEPS)
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
    step = draw.choice(STEPS)
    path = draw.choice([run / "run.json", *(storage.place(run, step) / name for name in _FILES)])
    path.unlink()
    return Damage(f"no {path.relative_to(run)}", None if path.parent == run else step)


def _swapped_files(draw: Random, run: Path) -> Damage:
    step, name = draw.choice(STEPS), draw.choice(_FILES)
    other = draw.choice([one for one in STEPS if one != step])
    shutil.copy(storage.place(run, other) / name, storage.place(run, step) / name)
    return Damage(f"{name} of step {other} in step {step}", step)


def _swapped_folders(draw: Random, run: Path) -> Damage:
    one, other = draw.sample(STEPS, 2)
    storage.place(run, one).rename(run / "swap")
    storage.place(run, other).rename(storage.place(run, one))
    (run / "swap").rename(storage.place(run, other))
    return Damage(f"folders of steps {one} and {other} swapped", draw.choice([one, other]))


def _renamed_folder(draw: Random, run: Path) -> Damage:
    step, other = draw.choice(STEPS), draw.choice([9, 25, 10**9, 10**18])
    shutil.copytree(storage.place(run, step), storage.place(run, other))
    return Damage(f"folder of step {step} as step {other}", other)


def _other_run(draw: Random, run: Path) -> Damage:
    step = draw.choice(STEPS)
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
    step = draw.choice(STEPS)
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
    step, (name, change) = draw.choice(STEPS), draw.choice(list(MANIFEST_FORGED.items()))
    outside = run.parent / "outside"
    shutil.copytree(storage.place(run, step), outside)
    _edit(storage.place(run, step) / manifest.NAME, change)
    return Damage(f"manifest of step {step}: {name}", step)


def _forged_tensors(draw: Random, run: Path) -> Damage:
    """Writes other tensors, with all digests right."""
    from safetensors.numpy import load_file, save_file

    step, name = draw.choice(STEPS), draw.choice([manifest.ARRAYS, manifest.HISTORY])
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
    _edit(run / index.BEST_FILE, change)
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
    step = draw.choice(STEPS)
    path = draw.choice([run / "run.json", run / index.BEST_FILE, storage.place(run, step) / manifest.NAME])
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found, indent=draw.choice([None, 0, 7]), sort_keys=draw.random() < 0.5) + "\n\n")
    return Damage(f"{path.relative_to(run)} in other words", step, harmless=True)


KINDS: tuple[Callable[[Random, Path], Damage], ...] = (
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
