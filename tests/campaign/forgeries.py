"""Edits of a manifest, a run.json and a best.json by somebody who computes the digests again.

They come from the files' own structure: each value in turn is left out, or becomes one of another type, negative, huge
and so on. Those that need more than that stand by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

Forgery = Callable[[dict[str, Any]], object]

# What stands at the end of each path is typed, so each of these is wrong there, but for those that are left out below.
_WRONG: dict[str, Any] = {
    "null": None,
    "true": True,
    "a fraction": 1.5,
    "negative": -1,
    "huge": 10**400,
    "a NaN": float("nan"),
    "an infinity": float("inf"),
    "text": "x",
    "a break of the line": "x\nerror: y",
    "a lone surrogate": "\ud800",
    "an empty list": [],
    "an empty mapping": {},
    "lists in lists": json.loads("[" * 90 + "]" * 90),
}
_TEXT = {"null", "true", "a fraction", "negative", "huge", "a NaN", "an infinity"} | {
    "a break of the line",
    "a lone surrogate",
    "an empty list",
    "an empty mapping",
    "lists in lists",
}
_NUMBER = set(_WRONG)
_MAPPING = set(_WRONG) - {"an empty mapping"}
Path = tuple[str | int, ...]

_PART: Path = ("arrays", "d/kernel", "parts", 1)
_MANIFEST: dict[Path, set[str]] = {
    ("format",): _NUMBER - {"huge"},  # a newer format is refused in other words
    ("step",): _NUMBER,
    ("run",): _TEXT | {"text"},
    ("config",): _MAPPING,
    ("seed",): _NUMBER - {"huge"},
    ("versions",): _MAPPING,
    ("versions", "numpy"): _TEXT,
    ("saved_at",): _TEXT,
    ("metrics",): set(_WRONG),  # the best is compared with them
    ("metrics", "eval/loss"): _NUMBER - {"negative", "a fraction", "a NaN", "an infinity", "huge"},
    ("files",): set(_WRONG),
    ("files", "history.safetensors"): set(_WRONG),
    ("files", "history.safetensors", "bytes"): _NUMBER,
    ("files", "arrays-00000.safetensors", "sha256"): set(_WRONG),
    ("arrays",): set(_WRONG),
    ("arrays", "d/kernel"): set(_WRONG),
    ("arrays", "d/kernel", "shape"): set(_WRONG),
    ("arrays", "d/kernel", "shape", 0): _NUMBER,
    ("arrays", "d/kernel", "dtype"): set(_WRONG),
    ("arrays", "d/kernel", "parts"): set(_WRONG),
    _PART: set(_WRONG),
    (*_PART, "file"): set(_WRONG),
    (*_PART, "key"): set(_WRONG),
    (*_PART, "start"): set(_WRONG),
    (*_PART, "start", 1): _NUMBER,
    ("arrays", "optimizer/iterations", "shape"): set(_WRONG) - {"an empty list"},
    ("arrays", "optimizer/iterations", "parts", 0, "start"): set(_WRONG) - {"an empty list"},
}
_RECORD: dict[Path, set[str]] = {
    ("run",): set(_WRONG),
    ("tracked",): set(_WRONG) - {"true"},
    ("overrides",): set(_WRONG) - {"an empty list"},
    ("overrides", 0): _TEXT,
    ("process",): _MAPPING,
    ("process", "runner.pid"): _TEXT,
    ("started",): _NUMBER - {"a fraction", "negative"},
    ("ended",): set(_WRONG) - {"true"},
    ("finished",): set(_WRONG) - {"true"},
}
_BEST: dict[Path, set[str]] = {
    ("metric",): set(_WRONG),
    ("value",): set(_WRONG),
    ("step",): set(_WRONG),
}
_OPTIONAL = {("ended",), ("finished",), ("versions", "numpy"), ("metrics", "eval/loss")}


def _at(found: Any, path: Path) -> Any:
    for key in path:
        found = found[key]
    return found


def _put(path: Path, value: Any, found: dict[str, Any]) -> None:
    _at(found, path[:-1])[path[-1]] = value


def _drop(path: Path, found: dict[str, Any]) -> None:
    del _at(found, path[:-1])[path[-1]]


def _typed(wrong: dict[Path, set[str]]) -> dict[str, Forgery]:
    made: dict[str, Forgery] = {}
    for path, names in wrong.items():
        where = ".".join(map(str, path))
        made |= {f"{where} is {name}": partial(_put, path, _WRONG[name]) for name in sorted(names)}
        if path not in _OPTIONAL:
            made[f"no {where}"] = partial(_drop, path)
    return made


_KERNEL: Path = ("arrays", "d/kernel")
_OUTSIDE = "../outside/arrays-00000.safetensors"


def _file_outside(name: str, found: dict[str, Any]) -> None:
    """Has an array lie in a file elsewhere, digest and all."""
    for part in _at(found, (*_KERNEL, "parts")):
        part["file"] = name
    found["files"][name] = found["files"]["arrays-00000.safetensors"]


def _history_outside(found: dict[str, Any]) -> None:
    found["files"]["../outside/history.safetensors"] = found["files"].pop("history.safetensors")


def _twice_the_same(found: dict[str, Any]) -> None:
    parts = _at(found, (*_KERNEL, "parts"))
    parts[1] = parts[0]


_BY_HAND: dict[str, Forgery] = {
    "parts that overlap": partial(_put, (*_PART, "start"), [0, 1]),
    "parts with a gap": lambda found: _at(found, (*_KERNEL, "parts")).pop(),
    "parts in another order": lambda found: _at(found, (*_KERNEL, "parts")).reverse(),
    "one part twice": _twice_the_same,
    "a part too many": lambda found: _at(found, (*_KERNEL, "parts")).append(_at(found, _PART)),
    "a part outside": partial(_put, (*_PART, "start"), [4, 2]),
    "a start of three dims": partial(_put, (*_PART, "start"), [0, 2, 0]),
    "a larger whole": partial(_put, (*_KERNEL, "shape"), [6, 5]),
    "a huge whole": partial(_put, (*_KERNEL, "shape"), [10**6, 10**6]),
    "a whole without elements": partial(_put, (*_KERNEL, "shape"), [0, 4]),
    "a whole of other dims": partial(_put, (*_KERNEL, "shape"), [24]),
    "another dtype of as many bytes": partial(_put, (*_KERNEL, "dtype"), "int32"),
    "a dtype of objects": partial(_put, (*_KERNEL, "dtype"), "object"),
    "a file by ..": partial(_file_outside, _OUTSIDE),
    "a file by an absolute path": partial(_file_outside, "/dev/zero"),
    "a file by a path with .": partial(_file_outside, "./arrays-00000.safetensors"),
    "a file with a NUL": partial(_file_outside, "arrays-00000.safetensors\0"),
    "the manifest as a file": partial(_file_outside, "checkpoint.json"),
    "the history elsewhere": _history_outside,
    "a file that nothing uses": lambda found: found["files"].update(x=found["files"]["history.safetensors"]),
    "an array too few": lambda found: found["arrays"].pop("optimizer/m/d/kernel"),
    "an array by another name": lambda found: found["arrays"].update(w=found["arrays"].pop("d/kernel")),
    "another step": lambda found: found.update(step=found["step"] + 1),
    "a newer format": lambda found: found.update(format=2),
}
MANIFEST_FORGED: dict[str, Forgery] = _typed(_MANIFEST) | _BY_HAND
RECORD_FORGED: dict[str, Forgery] = _typed(_RECORD)
BEST_FORGED: dict[str, Forgery] = _typed(_BEST) | {
    "another checkpoint": lambda found: found.update(step=8),
    "a better value": lambda found: found.update(value=0.99),
    "another metric": lambda found: found.update(metric="eval/loss"),
}
