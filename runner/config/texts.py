"""Values of keys whose type is text: kept as typed where Hydra or YAML would read a number, a boolean or null.

Hydra reads `name=1.10` as the number 1.1, and `name=83e2010` as infinity: both would name another run.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import is_dataclass
from functools import cache
from typing import Any, cast, get_args, get_origin, get_type_hints

from runner.config import schema_task
from runner.config.build import without_none
from runner.config.quoting import quoted
from runner.config.schema import RunConfig

_TARGET = "_target_"
# Keys of Hydra's own config that name something.
_OF_HYDRA = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.output_subdir", "hydra.job.name")
# A sweep of values by a function of Hydra's grammar, which may be within another; the numbers of a range are no texts.
_SWEEP = re.compile(r"(.*\b(?:choice|shuffle|sort)\()([^()]*)(\)+)")
# What a value has that is more than a text, or a sweep of texts: its texts are quoted by the user.
_STRUCTURE = frozenset("'\"[]{}()$\\")


def kept(override: str) -> str:
    """Returns an override whose texts are in quotes where Hydra would read another type; others are unchanged.

    Texts within lists and mappings are left as they are; those that were misread are rejected with the config.

    Example:
      >>> kept("name=1.10"), kept("trainer.epochs=1"), kept("+tracking.tags.note=null")
      ("name='1.10'", 'trainer.epochs=1', "+tracking.tags.note='null'")
      >>> kept("name=choice(1.10,a)"), kept("task.target=2024")
      ("name=choice('1.10',a)", "task.target='2024'")
    """
    key, _, value = override.partition("=")
    path = key.lstrip("+~")
    # A name in place of a list of names is a list of one.
    is_text = path in _OF_HYDRA or kind_at(path) in (str, list[str])
    tail = ""
    sweep = _SWEEP.fullmatch(value)
    if sweep is not None:
        _, value, tail = sweep.groups()
    if not is_text or not _STRUCTURE.isdisjoint(value):
        return override
    # A folder may be named 2025.10, but a flag in place of one is a mistake, which `hydra_keys` rejects.
    others = [] if path in _OF_HYDRA else ["true", "false"]
    if path.rpartition(".")[0] == "tracking.tags":
        others.append("null")
    texts = value.split(",")
    for index, spaced in enumerate(texts):
        text = spaced.strip()
        if text.lower() in others or is_number(text):
            texts[index] = spaced.replace(text, quoted(text))
    return override.removesuffix(value + tail) + ",".join(texts) + tail


def is_number(text: str) -> bool:
    """Returns whether a string reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def kind_at(path: str) -> Any:
    """Returns the type of a dotted key, without None; None: it is unknown."""
    kind: Any = RunConfig
    for name in path.split("."):
        if get_origin(kind) is dict:
            kind = without_none(get_args(kind)[1])
        elif not is_dataclass(kind):
            return None
        elif name == _TARGET:
            kind = str
        else:
            kind = _fields(cast("Hashable", kind)).get(name)
    return kind


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """Returns the types of a dataclass's fields, with those of the options of every task and output."""
    hints = {name: without_none(hint) for name, hint in get_type_hints(kind).items()}
    if kind in (schema_task.TaskConfig, schema_task.OutputConfig):
        options: dict[str, set[Any]] = {}
        for task in schema_task.OPTIONS.values():
            for name, hint in get_type_hints(task).items():
                options.setdefault(name, set()).add(without_none(hint))
        for name, kinds in options.items():
            if name not in hints and len(kinds) == 1:
                hints[name] = next(iter(kinds))
    return hints
