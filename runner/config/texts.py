"""Values of keys whose type is text: kept as typed where Hydra or YAML would read a number, a boolean or null.

Hydra reads `name=1.10` as the number 1.1, and `name=83e2010` as infinity: both would name another run.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from antlr4 import CommonTokenStream, InputStream  # type: ignore[import-untyped]
from hydra.grammar.gen.OverrideLexer import OverrideLexer
from hydra.grammar.gen.OverrideParser import OverrideParser

from runner.config import schema_task
from runner.config.schema import DatasetConfig, RunConfig
from runner.errors import ConfigError, shown
from runner.host.quoting import quoted

_TARGET = "_target_"
# Keys of Hydra's own config that name something.
_OF_HYDRA = (
    *("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.output_subdir"),
    "hydra.job.name",
)
# Keys of any type that take a list of names; a value alone is a number or a boolean, not a list of one.
_NAMES = {"classes": tuple[str, ...], "standardize": tuple[str, ...]}
_VALUES = (OverrideLexer.INT, OverrideLexer.FLOAT, OverrideLexer.BOOL)
# Functions of Hydra's grammar whose arguments are values of the key; those of range, interval or a cast are not.
_OF_VALUES = ("choice", "shuffle", "sort", "tag")


def kept(override: str) -> str:
    """Returns an override whose texts are in quotes where Hydra would read another type; others are unchanged.

    Example:
      >>> kept("name=1.10"), kept("trainer.epochs=1"), kept("+tracking.tags.note=null")
      ("name='1.10'", 'trainer.epochs=1', "+tracking.tags.note='null'")
    """
    key, equals, _ = override.partition("=")
    path = key.lstrip("+~")
    # The name of a class may be an integer in YAML; on the command line, all are texts.
    kind = str if path in (*_OF_HYDRA, "task.positive") else _kind_at(path)
    if not equals or not _has_text(kind):
        return override
    lexer = OverrideLexer(InputStream(override))
    lexer.removeErrorListeners()
    parser: Any = OverrideParser(CommonTokenStream(lexer))
    parser.removeErrorListeners()
    value = parser.override().value()
    if parser.getNumberOfSyntaxErrors() or value is None:
        return override
    is_entry = path.rpartition(".")[0] == "tracking.tags"
    for start, stop in sorted(_texts(value, kind, is_entry=is_entry), reverse=True):
        text = override[start : stop + 1]
        # A folder may be named 2025.10, but a flag in place of one is a mistake, which `hydra_keys` rejects.
        if path not in _OF_HYDRA or text.lower() not in ("true", "false"):
            override = f"{override[:start]}{quoted(text)}{override[stop + 1 :]}"
    return override


def _texts(node: Any, kind: Any, *, is_entry: bool) -> Iterator[tuple[int, int]]:
    """Yields the first and last character of each text below a node that Hydra would read as another type.

    In an entry of a list or mapping of texts, null is a text too.
    """
    if isinstance(node, OverrideParser.PrimitiveContext):
        tokens = [child.symbol for child in node.getChildren() if child.symbol.type != OverrideLexer.WS]
        types = (*_VALUES, OverrideLexer.NULL) if is_entry else _VALUES
        # A name in place of a list is a list of one. Several tokens are a text already.
        if len(tokens) == 1 and tokens[0].type in types and kind in (str, list[str]):
            yield tokens[0].start, tokens[0].stop
    elif isinstance(node, OverrideParser.ListContainerContext):
        if get_origin(kind) in (list, tuple):
            entry = get_args(kind)[0]
            for element in node.element():
                yield from _texts(element, _plain(entry), is_entry=entry is str)
    elif isinstance(node, OverrideParser.DictContainerContext):
        for pair in node.dictKeyValuePair():
            inner = _inner(kind, pair.dictKey().getText().strip())
            yield from _texts(pair.element(), inner, is_entry=kind == dict[str, str])
    elif isinstance(node, OverrideParser.FunctionContext):
        if node.getChild(0).getText() in _OF_VALUES:
            for element in node.element():
                yield from _texts(element, kind, is_entry=is_entry)
    else:  # a value or an element, which holds one of the above, or a sweep, which holds elements
        for child in node.getChildren():
            if hasattr(child, "getChildren"):
                yield from _texts(child, kind, is_entry=is_entry)


def check(group: str, content: object) -> None:
    """Rejects numbers and booleans in place of texts: YAML has read them, and their texts are lost.

    Raises:
      ConfigError: names the first such value.
    """
    for key, value in _misread(content, _kind_at(group), group):
        raise ConfigError(
            f"{key}={shown(value)}: must be a string, but YAML reads it as another type, so its text is lost; put the "
            "text in quotes"
        )


def _misread(content: object, kind: Any, key: str) -> Iterator[tuple[str, object]]:
    if not _has_text(kind):
        return
    if isinstance(content, Mapping):
        for name, value in content.items():
            if kind == dict[str, str] and not isinstance(name, str):
                yield f"{key}.{name}", value  # a tag 1.10 would be a tag 1.1
            yield from _misread(value, _inner(kind, str(name)), f"{key}.{name}")
    elif isinstance(content, list):
        if get_origin(kind) in (list, tuple):
            for index, value in enumerate(content):
                yield from _misread(value, _plain(get_args(kind)[0]), f"{key}[{index}]")
    elif kind is str and isinstance(content, bool | int | float):
        yield key, content


def _kind_at(path: str) -> Any:
    """Returns the type of a dotted key, without None; None: it is of any type, or unknown."""
    kind: Any = RunConfig
    for name in path.split("."):
        kind = _inner(kind, name)
    return kind


def _inner(kind: Any, name: str) -> Any:
    """Returns the type of an entry of a mapping or dataclass, without None; None: any."""
    if get_origin(kind) is dict:
        return _plain(get_args(kind)[1])
    if not is_dataclass(kind):
        return None
    if name == _TARGET:
        return str
    if kind is DatasetConfig and name == "parts":
        return list[DatasetConfig]
    return _fields(cast("Hashable", kind)).get(name)


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """Returns the types of a dataclass's fields, with those of the options of every task and output."""
    hints = {name: _plain(hint) for name, hint in get_type_hints(kind).items()}
    if kind in (schema_task.TaskConfig, schema_task.OutputConfig):
        options: dict[str, set[Any]] = {}
        for task in schema_task.OPTIONS.values():
            for name, hint in get_type_hints(task).items():
                options.setdefault(name, set()).add(_plain(hint))
        for name, kinds in options.items():
            if name not in hints and len(kinds) == 1:
                hints[name] = next(iter(kinds))
    return {name: _NAMES.get(name) if hint is None else hint for name, hint in hints.items()}


def _plain(kind: Any) -> Any:
    """Returns a type without None; None for any type."""
    if get_origin(kind) in (Union, UnionType):
        kind = next(option for option in get_args(kind) if option is not type(None))
    return None if kind is Any else kind


def _has_text(kind: Any) -> bool:
    """Returns whether a value of a type may be or hold a text."""
    if get_origin(kind) in (list, dict):
        return _has_text(_plain(get_args(kind)[-1]))
    return kind in (str, *_NAMES.values()) or is_dataclass(kind)
