"""Command lines for `tests.campaign.fuzz`, drawn from the typed schema, the options in `conf/` and Hydra's grammar.

No key is named here: a key that is added to the schema is drawn from then on, and so is an option of a group.
"""

import random
import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from omegaconf import OmegaConf

from runner.cli.messages import key_paths
from runner.config.fields import Constraint, constraint_of
from runner.config.schema import ModelConfig, RunConfig
from runner.config.search_path import content_of, options_in
from runner.errors import shown
from runner.host.paths import conf_dir

COMMANDS = ("runner", "runner.plan", "runner.verify", "runner.evaluate", "runner.export")
_OFTEN = (65, 16, 8, 7, 4)  # of a hundred draws; an export takes a minute
SAVED = ("runner.evaluate", "runner.export")  # commands that look at a run

# Values as they are typed, by what they are meant as; any may be drawn for any key.
_OF_TYPE: dict[type, tuple[str, ...]] = {
    int: ("1", "2", "3", "4", "8", "0", "-1", "7", "360", "100000", "2147483647", "99999999999999999999"),
    float: ("0.5", "1e-3", "1.0", "0.0", "-0.1", "0.999", "1e39", "1e-50", "-0.0", "1e6"),
    bool: ("true", "false", "yes", "0", "maybe"),
    str: ("x", "train", "a/b", "'a b'", "'../../x'", "'*'", "latest", "'1'"),
}
_ODD = (
    *("null", "???", "nan", "inf", "-inf", "-1", "0", "1e400", "", "''", "ünïcödé", "x]", "[", "{", "a=b", "a,b"),
    *("[]", "{}", "[1,[2,{a: b}]]", "{a: {b: c}}", "[null]", "[nan]", "[???]", "{a: ???}", "'quo\"te'", r"'it\'s'"),
    *("'two\nlines'", "'[x]'", "${trainer.seed}", "${nope}", "${oc.env:NO_SUCH_VARIABLE}", "${", "'${model}'"),
    *("true", "0x10", "1_000", "٣", "'" + "long" * 300 + "'", "range(1,3)", "choice(1)", "glob(*)", "sort(2,1)"),
)


@dataclass(frozen=True)
class Key:
    """A key of the schema.

    Attributes:
      name: dotted.
      kind: its annotation, resolved.
      words: values that its constraint or its documentation names: choices, bounds and the numbers around them.
    """

    name: str
    kind: Any
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """A command line.

    Attributes:
      command: the module.
      overrides: those drawn.
      engine: where none is drawn.
    """

    command: str
    overrides: tuple[str, ...]
    engine: str = "jax"

    def arguments(self, base: Sequence[str]) -> list[str]:
        """Returns the whole command line, without what of the base is drawn too."""
        drawn = [key_of(each) for each in self.overrides]
        whole = (f"engine={self.engine}", *base)
        return [*(each for each in whole if not any(_same(key_of(each), key) for key in drawn)), *self.overrides]


def key_of(override: str) -> str:
    """Returns what an override sets."""
    return override.lstrip("+~").partition("=")[0]


def _same(one: str, other: str) -> bool:
    return one == other or (one.startswith(f"{other}.") and "." in other)


def schema_keys() -> list[Key]:
    """Returns every key of the schema, and of the options of its models and tasks."""
    found = list(_keys(RunConfig, ""))
    for group in ("model", "task"):
        for option in options_in(conf_dir() / group):
            for name, value in content_of(f"{group}/{option}").items():
                kind = list[int] if isinstance(value, list) else type(value)
                found.append(Key(f"{group}.{name}", kind))
    by_name: dict[str, Key] = {}
    for key in found:
        by_name.setdefault(key.name, key)
    return list(by_name.values())


def _keys(kind: type, prefix: str) -> Iterator[Key]:
    hints = typing.get_type_hints(kind)
    for spec in fields(kind):
        name, hint = f"{prefix}{spec.name}", hints[spec.name]
        if hint is ModelConfig:
            continue
        if is_dataclass(hint):
            assert isinstance(hint, type)
            yield from _keys(hint, f"{name}.")
            if prefix:
                yield Key(name, hint)
        else:
            yield Key(name, hint, (*_words(kind, spec.name), *_limits(constraint_of(spec))))
            if typing.get_origin(hint) is dict:
                yield from (Key(f"{name}.{part}", typing.get_args(hint)[1]) for part in ("batch", "image", "x y"))


def _words(kind: type, name: str) -> tuple[str, ...]:
    """Returns what stands in backquotes where the class's documentation tells of a key."""
    text = re.search(rf"^ +{name}: (.*?)(?=^ +\w+: |\Z)", kind.__doc__ or "", re.MULTILINE | re.DOTALL)
    return tuple(word for word in re.findall(r"`([^`\s]+)`", text[1])) if text else ()


def _limits(constraint: Constraint) -> tuple[str, ...]:
    """Returns the values at the edge of what a constraint allows."""
    values = [*constraint.choices]
    for limit in (constraint.at_least, constraint.above, constraint.at_most, constraint.below):
        if limit is not None:
            values += (limit - 1, limit, limit + 1)
    if constraint.example is not None:
        values.append(constraint.example)
    return tuple(shown(value) for value in values)


def groups() -> dict[str, list[str]]:
    """Returns the options of each group."""
    folders = [path for path in sorted(conf_dir().iterdir()) if path.is_dir() and path.name != "hydra"]
    return {path.name: options_in(path) for path in folders}


class Drawer:
    """Draws command lines; the same generator gives the same ones."""

    def __init__(self, draw: random.Random) -> None:
        """Takes a seeded generator; reads the schema and the options."""
        self._draw, self._keys, self._groups = draw, schema_keys(), groups()
        self._of_group: dict[str, list[Key]] = {}
        for key in self._keys:
            self._of_group.setdefault(key.name.partition(".")[0], []).append(key)

    def line(self) -> Line:
        """Returns the next command line."""
        draw = self._draw
        (command,) = draw.choices(COMMANDS, _OFTEN)
        count = draw.choices((1, 2, 3, 4), (55, 25, 13, 7))[0]
        overrides = tuple(self._override() for _ in range(count))
        engine = "jax" if command in SAVED or draw.random() < 0.85 else "keras_dtensor"
        return Line(command, overrides, engine)

    def _override(self) -> str:
        draw = self._draw
        if draw.random() < 0.2:
            return self._option()
        key = draw.choice(self._of_group[draw.choice(list(self._of_group))])
        sign = draw.choices(("", "+", "++", "~"), (88, 5, 5, 2))[0]
        name = key.name if draw.random() > 0.04 else self._misspelt(key.name)
        if sign == "~":
            return f"~{name}"
        return f"{sign}{name}={self._value(key)}"

    def _option(self) -> str:
        draw = self._draw
        group = draw.choice(list(self._groups))
        option = draw.choice(self._groups[group])
        odd = draw.choice(
            ("{g}={m}", "{n}={o}", "+{g}={o}", "~{g}", "{g}=../{g}/{o}", "{g}=[{o}]", "{g}={v}", "{g}@x={o}")
        )
        form = "{g}={o}" if draw.random() < 0.6 else odd
        misspelt = {"m": self._misspelt(option), "n": self._misspelt(group)}
        return form.format(g=group, o=option, v=draw.choice(_ODD), **misspelt)

    def _misspelt(self, word: str) -> str:
        place = self._draw.randrange(len(word))
        return word[:place] + self._draw.choice(("", "q", word[place] * 2)) + word[place + 1 :]

    def _value(self, key: Key) -> str:
        draw = self._draw
        return self._typed(key.kind, key.words) if draw.random() < 0.6 else draw.choice(_ODD)

    def _typed(self, kind: Any, words: Sequence[str]) -> str:
        """Returns a value of an annotation."""
        draw, origin, inner = self._draw, typing.get_origin(kind), typing.get_args(kind)
        if words and draw.random() < 0.7:
            return draw.choice(words)
        if kind in _OF_TYPE:
            return draw.choice(_OF_TYPE[kind])
        if origin is list:
            return f"[{','.join(self._typed(inner[0], ()) for _ in range(draw.randrange(5)))}]"
        if origin is dict:
            return f"{{{draw.choice(('batch', 'x', 'image'))}: {self._typed(inner[1], ())}}}"
        if is_dataclass(kind):
            assert isinstance(kind, type)
            hints = typing.get_type_hints(kind)
            names = draw.sample(list(hints), min(2, len(hints)))
            return f"{{{','.join(f'{name}: {self._typed(hints[name], ())}' for name in names)}}}"
        if inner:  # a union
            chosen = draw.choice(inner)
            return "null" if chosen is type(None) else self._typed(chosen, words)
        return draw.choice(_ODD)


def preset_keys(name: str) -> list[str]:
    """Returns the dotted keys that an option of `experiment` sets."""
    options = {path.stem: path for path in (conf_dir() / "experiment").glob("*.yaml")}
    keys = key_paths(OmegaConf.load(options[name])) if name in options else []  # type: ignore[arg-type]
    return [key for key in keys if "." in key]
