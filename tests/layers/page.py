"""docs/layers.md, made of what became of the table."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.layers.case import Case
from tests.layers.setup import MESHES
from tests.layers.table import NAMED, PARTS, on_mesh
from tests.layers.worker import EQUAL, REFUSED, STOCK, WRONG, Outcome

PAGE = Path(__file__).parents[2] / "docs" / "layers.md"
UNKNOWN = "not run"
# Most characters of an error on the page; longer ones repeat whole tensors.
_LONGEST = 200
_WORST = (EQUAL, UNKNOWN, STOCK, REFUSED, WRONG)

_HEAD = """# Verified layers

This page shows which layers of `keras.layers` compute with `engine=jax` on a mesh what stock Keras computes on one
device. Each case is a small model with the layer, built with `import keras` as in your own code and trained for two
steps. It is compared with stock Keras on one device: outputs, losses, the gradients of its variables and inputs, and
all variables afterwards. The first two cases of a layer run on `mesh=single`, `batch8` and `batch4_model2`, the others
on the last. Dropout masks are the same on both sides. `python -m tests.layers --write` writes this page.

`engine=keras_dtensor` takes dense layers, convolutions over one and two dims, pooling, normalization, dropout,
activations, embeddings, attention, and layers that merge and reshape. It rejects recurrent layers, depthwise,
separable, transposed, grouped and dilated convolutions, noise, mixed precision, and layers over three dims.

> **Limits.** Small models, two steps, 8 virtual CPU devices.

The number after a layer says in how many cases, each with other arguments or shapes, the mesh computes what stock
Keras does. [The other cases](#other-cases) are rejected before a step is trained, with exit code 2 and one line."""

_OTHERS = (
    'A line that starts with "Keras:" shows why stock Keras can\'t train it on one CPU device either. Long lines are',
    "shortened (`...`).",
)


@dataclass(frozen=True)
class _Told:
    """A case on its meshes: the worst of what became of it there, and where, unless on all of them."""

    case: Case
    kind: str
    told: str
    meshes: tuple[str, ...]


def rendered(found: Sequence[Outcome]) -> str:
    """Returns the page.

    Args:
      found: outcomes of the cases on their meshes; the page says how many were not run.
    """
    told = _merged(found)
    lines = [_HEAD, *_counts(told), *_run(found)]
    notes: dict[str, list[str]] = {}
    for title, part in PARTS.items():
        by_layer = _by_layer(told, part)
        counted = [_counted(layer, mine) for layer, mine in by_layer.items()]
        lines += ["", f"## {title}", "", *_wrapped(counted)]
        for layer, mine in by_layer.items():
            for reason, cases in _reasons(layer, mine).items():
                notes.setdefault(reason, []).extend(cases)
    lines += ["", "## Other cases", "", *_OTHERS, ""]
    for reason, cases in notes.items():
        lines += [f"- {reason}", *cases]
    lines += ["", "## Without a case", ""]
    lines += [f"- `{name}`: {why}" for name, why in NAMED.items()]
    return "\n".join(lines) + "\n"


def _merged(outcomes: Iterable[Outcome]) -> dict[str, _Told]:
    by_case: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_case.setdefault(outcome.name, []).append(outcome)
    on: dict[str, list[str]] = {}
    for mesh in MESHES:
        for case in on_mesh(mesh):
            on.setdefault(case.name, []).append(mesh)
    found = {}
    for case in (case for part in PARTS.values() for case in part):
        mine, meshes = by_case.get(case.name, []), on[case.name]
        if not mine:
            found[case.name] = _Told(case, UNKNOWN, "", ())
            continue
        worst = max(mine, key=lambda each: _WORST.index(each.kind))
        failed = [each.mesh for each in mine if each.kind == worst.kind]
        where = () if len(failed) == len(mine) else tuple(mesh for mesh in meshes if mesh in failed)
        found[case.name] = _Told(case, worst.kind, _plain(worst.told), where)
    return found


def _plain(told: str) -> str:
    """Returns a refusal as it concerns the layer: without the builder's path, and with one name for all layers."""
    told = re.sub(r"^model\._target_=\S+: ", "", told)
    told = re.sub(r"; it was given model\.cases=.*$", "", told)
    told = re.sub(r"\blayer '?layer\d+'?", "the layer", told)
    # Keras writes some errors in bold.
    told = re.sub(r"\x1b?\[\d+m", "", told)
    return re.sub(r"\b(layer|weighted|before|then|head)\d+(_\d+)?\b", r"\1", told)


def shortened(told: str) -> str:
    """Returns an error without the end of a long problem, which names tensors and layouts; its fix stays."""
    if len(told) <= _LONGEST:
        return told
    problem, _, fix = told.rpartition("; ")
    if not problem or len(fix) > _LONGEST // 2:
        problem, fix = told, ""
    kept = problem[: _LONGEST - len(fix)].rsplit(" ", 1)[0]
    if kept.count("`") % 2:
        kept = kept[: kept.rindex("`")].rstrip()
    return f"{kept} ...; {fix}" if fix else f"{kept} ..."


def excepted(text: str) -> set[tuple[str, str]]:
    """Returns layer and arguments of each case that a page says is not equal to stock Keras."""
    found = set()
    for line in text.splitlines():
        if note := re.match(r"  - `([\w.]+)`: (?:`(.*)`|all cases)$", line):
            layer, case = note.groups()
            every = [each.told for part in PARTS.values() for each in part if each.layer == layer]
            found |= {(layer, one) for one in ([case] if case else every)}
    return found


def not_run(text: str) -> set[str]:
    """Returns the layers of which a page says that some case was not run."""
    return set(re.findall(rf"`([\w.]+)` \(\d+ {UNKNOWN}", text))


def _counts(told: Mapping[str, _Told]) -> list[str]:
    lines = ["", "| | cases |", "|---|---|"]
    rows = (("equal to stock Keras", EQUAL), ("not supported", REFUSED), ("stock Keras can't train it", STOCK))
    more = [(kind, kind) for kind in (UNKNOWN, WRONG) if _of(kind, told.values())]
    lines += [f"| {title} | {_of(kind, told.values())} |" for title, kind in (*rows, *more)]
    return lines


def _run(found: Sequence[Outcome]) -> list[str]:
    """Returns for each mesh how many cases were run there, of how many."""
    lines = []
    for mesh in MESHES:
        count = sum(outcome.mesh == mesh for outcome in found)
        lines.append(f"| run on {mesh} | {count} of {len(on_mesh(mesh))} |")
    return lines


def _counted(layer: str, mine: Sequence[_Told]) -> str:
    """Returns a layer and in how many of its cases it is equal to stock Keras."""
    equal, unknown = _of(EQUAL, mine), _of(UNKNOWN, mine)
    left = f"{unknown} {UNKNOWN}, " if unknown else ""
    return f"`{layer}` ({equal})" if equal == len(mine) else f"`{layer}` ({left}{equal} of {len(mine)})"


def _wrapped(items: Iterable[str]) -> list[str]:
    """Returns the lines of a list, each item on one line."""
    text = ", ".join(item.replace(" ", "\N{NO-BREAK SPACE}") for item in items)
    wrapped = textwrap.wrap(text, 120, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped]


def _of(kind: str, told: Iterable[_Told]) -> int:
    """Returns how many cases came to that."""
    return sum(each.kind == kind for each in told)


def _by_layer(told: Mapping[str, _Told], part: Iterable[Case]) -> dict[str, list[_Told]]:
    found: dict[str, list[_Told]] = {}
    for case in part:
        found.setdefault(case.layer, []).append(told[case.name])
    return found


def _reasons(layer: str, mine: Sequence[_Told]) -> dict[str, list[str]]:
    """Returns reason -> lines of the cases of a layer that are not equal to stock Keras for it."""
    by_reason: dict[str, list[str]] = {}
    for each in mine:
        if each.kind not in (EQUAL, UNKNOWN):
            where = f"on {' and '.join(each.meshes)} alone: " if each.meshes else ""
            who = {REFUSED: "", STOCK: "Keras: ", WRONG: "WRONG: "}[each.kind]
            by_reason.setdefault(f"{where}{who}{shortened(each.told)}", []).append(each.case.told)
    found = {}
    for reason, cases in by_reason.items():
        every = len(cases) == len(mine)
        found[reason] = [f"  - `{layer}`: all cases"] if every else [f"  - `{layer}`: `{case}`" for case in cases]
    return found
