"""Runs cases in a process of its own, for virtual devices can't change within one.

Usage: python -m tests.layers.worker MESH[,MESH]; each line of stdin is a JSON list of cases' names, answered on
stdout by a line {"mesh": name} as each mesh begins, and {"outcomes": a dict a case and mesh, "seconds": of all}.
`python -m tests.layers.worker names` prints the classes of `keras.layers`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType

from runner.engine import registry
from runner.errors import ConfigError
from tests.layers.setup import Arrays, Setup, config

EQUAL, REFUSED, WRONG, STOCK = "equal", "refused", "wrong", "stock"
_LAYER = re.compile(r"(?:layer|weighted|before|then|head)(\d+)\b")


@dataclass(frozen=True)
class Outcome:
    """What became of a case on a mesh.

    Attributes:
      name: of the case.
      mesh: where.
      kind: `equal`; `refused`, by a ConfigError; `stock`, where stock Keras itself can't train it on one device; or
        `wrong`.
      told: the line of the refusal, or what is wrong.
      ratio: the largest difference over its tolerance.
      seconds: the case's share of the time of its model.
    """

    name: str
    mesh: str
    kind: str
    told: str = ""
    ratio: float = 0.0
    seconds: float = 0.0


class _FailedError(Exception):
    """A model of several cases came to nothing; holds what it would be for one alone."""

    def __init__(self, kind: str, told: str) -> None:
        super().__init__(told)
        self.kind, self.told = kind, told


def outcomes(
    meshes: Sequence[str], names: Sequence[str], begin: Callable[[str], None] = lambda _: None
) -> Iterator[Outcome]:
    """Yields what becomes of some cases as one model; a model that fails is made of fewer.

    Args:
      meshes: names.
      names: of the cases.
      begin: is told of each mesh, when stock Keras is done.
    """
    try:
        stock = _stock(names)
    except _FailedError as failed:
        yield from _of_fewer(meshes, names, failed)
        return
    for mesh in meshes:
        begun = time.monotonic()
        begin(mesh)
        try:
            told = _judged(mesh, names, stock)
        except _FailedError as failed:
            yield from _of_fewer([mesh], names, failed)
            continue
        seconds = round((time.monotonic() - begun) / len(names), 2)
        for name, (kind, what, ratio) in zip(names, told, strict=True):
            if kind == EQUAL or len(names) == 1:
                yield Outcome(name, mesh, kind, what, ratio, seconds)
            else:
                yield from outcomes([mesh], [name])


def _of_fewer(meshes: Sequence[str], names: Sequence[str], failed: _FailedError) -> Iterator[Outcome]:
    if len(names) == 1:
        for mesh in meshes:
            yield Outcome(names[0], mesh, failed.kind, failed.told)
        return
    named = {int(number) for number in _LAYER.findall(failed.told)} & set(range(len(names)))
    alone = [names[number] for number in sorted(named)]
    rest = [name for name in names if name not in alone]
    half = len(rest) // 2 if not alone else len(rest)
    for some in ([one] for one in alone):
        yield from outcomes(meshes, some)
    for some in (rest[:half], rest[half:]):
        if some:
            yield from outcomes(meshes, some)


def _stock(names: Sequence[str]) -> Arrays:
    setup = Setup(names)
    module = importlib.import_module("tests.layers.stock_jax")
    try:
        found: Arrays = module.train(setup)
    except Exception as error:
        raise _FailedError(STOCK, _line(error)) from error
    compare = importlib.import_module("tests.layers.compare")
    strange = [*compare.not_finite(found), *compare.unowned(setup, found)]
    if strange:
        raise _FailedError(STOCK, f"it computes no number, or is no case's own: {strange[0]}")
    return found


def _judged(mesh: str, names: Sequence[str], stock: Arrays) -> list[tuple[str, str, float]]:
    setup = Setup(names)
    compare, on_mesh = (importlib.import_module(f"tests.layers.{name}") for name in ("compare", "on_mesh"))
    start = {key.removeprefix("start/"): value for key, value in stock.items() if key.startswith("start/")}
    try:
        found = on_mesh.train(setup, mesh, start)
        ratios = compare.differences(setup, found, stock)
    except ConfigError as error:
        raise _FailedError(REFUSED, _line(error)) from error
    except Exception as error:
        if os.environ.get("LAYERS_TRACEBACK"):
            traceback.print_exc()
        raise _FailedError(WRONG, _line(error)) from error
    loss = compare.loss_ratio(setup, found, stock)
    if loss > 1 and all(ratio <= 1 for ratio, _ in ratios):
        ratios = [(loss, "loss")] * len(names)
    return [
        (EQUAL, "", ratio) if ratio <= 1 else (WRONG, f"{what} is {ratio:.3g} tolerances off", ratio)
        for ratio, what in ratios
    ]


def _line(error: Exception) -> str:
    told = " ".join(str(error).split())
    return told if isinstance(error, ConfigError) else f"{type(error).__name__}: {told}"[:600]


def classes(library: ModuleType) -> dict[str, list[str]]:
    """Returns each layer class of `library.layers` by its own name, with the other names that it goes by."""
    found: dict[str, list[str]] = {}
    for name in sorted(dir(library.layers)):
        value = getattr(library.layers, name)
        if inspect.isclass(value) and issubclass(value, library.layers.Layer):
            found.setdefault(_public(library, value), []).append(name)
    return found


def _public(library: ModuleType, value: type) -> str:
    """Returns a class's name as `keras.layers` has it: its own, or the one that it is exported under."""
    if getattr(library.layers, value.__name__, None) is value:
        return value.__name__
    return next(name for name in sorted(dir(library.layers)) if getattr(library.layers, name) is value)


def main() -> None:
    """Answers until stdin ends."""
    what = sys.argv[1]
    answers = os.fdopen(os.dup(1), "w")  # whatever a library prints goes to stderr
    os.dup2(2, 1)
    meshes = ["batch8"] if what == "names" else what.split(",")
    first = config(meshes[0], [])  # the mesh of the most devices
    registry.load(first)
    if what == "names":
        print(json.dumps(classes(importlib.import_module("keras"))), file=answers)
        return
    # Before the stock side makes one alone.
    importlib.import_module("runner.engine.jax.mesh").configure(first.mesh)

    def begin(mesh: str) -> None:
        print(json.dumps({"mesh": mesh}), file=answers, flush=True)

    for line in sys.stdin:
        begun = time.monotonic()
        found = [asdict(outcome) for outcome in outcomes(meshes, json.loads(line), begin)]
        seconds = time.monotonic() - begun
        print(json.dumps({"outcomes": found, "seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
