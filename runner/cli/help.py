"""`--help`: of all commands, of one, and of a group of the config; and what completes a line, beside Hydra's."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

import yaml  # type: ignore[import-untyped]

from runner.cli import command_line, suggestions
from runner.cli.commands import TRAIN, commands
from runner.cli.messages import is_group
from runner.cli.runs.request import ACTIONS, KEYS
from runner.config import search_path
from runner.errors import EXIT_DONE, ConfigError, did_you_mean
from runner.host import paths, session

_USAGE = {
    "runs": "runner runs [action] [key=value ...]",
    "ui": "runner ui [uri=...] [port=5000]",
    "init": "runner init <folder>",
    "supervise": "runner supervise -- <command>",
}
# Commands with a group of their own, which has their name; runner.verify has a second one.
_WITH_A_GROUP = ("plan", "advise", "evaluate", "generate", "export", "verify")
_FOOTER = "--cfg job prints the whole config, --version versions; HYDRA_FULL_ERROR=1 shows tracebacks"
_LINE = re.compile(r"(?P<indent> *)(?P<key>\w+):(?P<value>.*?)(?: # (?P<says>.*))?")


def main(arguments: Sequence[str]) -> int:
    """Prints what `--help` among a command's arguments asks for; returns the exit code, or raises ConfigError."""
    with session.opened("runner", arguments):
        topics = command_line.split(arguments)[1]
        name = session.command_module().partition(".")[2] or TRAIN
        if len(topics) == 1 and name == TRAIN:
            name = topics[0]
        known = commands()
        if name in known:
            lines = _of_command(name, *known[name])
        elif is_group(name.partition("=")[0]):
            lines = _of_group(*name.split("=", 1))
        else:
            fix = did_you_mean(name, [*known, *_groups()], "see runner --help")
            raise ConfigError(f"{name}: is no command and no group; {fix}")
        print("\n".join(lines))
    return EXIT_DONE


def completed(line: str) -> tuple[str, list[str]]:
    """Returns the line that Hydra completes, without the command, and what else completes it; empty: Hydra knows none.

    >>> completed("runner plan mesh=ba"), completed("runner pl"), completed("runner runs comp")
    (('runner mesh=ba', []), ('runner pl', ['plan']), ('', ['compare']))
    """
    program, *words = line.split(" ")
    names = {"ui": ["port=", "uri="], "runs": [*ACTIONS, *(f"{key}=" for key in KEYS)], "init": [], "supervise": []}
    if len(words) < 2:
        return line, [name for name in commands() if words and name.startswith(words[0])]
    if words[0] in names:
        return "", [name for name in names[words[0]] if name.startswith(words[-1])]
    return " ".join([program, *words[words[0] in commands() :]]), []


def _groups() -> list[str]:
    found: set[str] = set()
    for folder in search_path.folders():
        found.update(path.name for path in folder.iterdir() if path.is_dir())
    return sorted(found - {"hydra"})


def _of_command(name: str, does: str, examples: Sequence[str]) -> list[str]:
    usual = f"runner {name} [group=option] [key=value ...]".replace(f" {TRAIN}", "")
    lines = [f"{does[0].upper()}{does[1:]}.", "", f"usage: {_USAGE.get(name, usual)}", "", "examples:"]
    for example in examples:
        lines.append(f"  {example}")
    rows: dict[str, str] = {}
    if name == TRAIN:
        rows = {command: does for command, (does, _) in commands().items() if command != TRAIN}
        lines += ["", "commands, each with --help:", *_table(rows), "", "groups, each with --help <group>:"]
        groups = textwrap.wrap(", ".join(_groups()), 100, initial_indent="  ", subsequent_indent="  ")
        return [*lines, *groups, _FOOTER]
    if name == "runs":
        rows = ACTIONS | {f"{key}=": does for key, does in KEYS.items()}
    if name in _WITH_A_GROUP:
        rows = _keys(name, "default")
    if name == "verify":
        rows |= _keys("replay", "default")
    if rows:
        lines += ["", "actions and keys:" if name == "runs" else "its own keys:", *_table(rows)]
    if name not in _USAGE:
        lines += ["", "All groups and options of a run are accepted: runner --help"]
    return lines


def _of_group(group: str, option: str = "") -> list[str]:
    """Returns the options of a group, and the keys of one: by default of the one that a run takes."""
    options = search_path.options(group)
    if option and option not in options:
        _, fix = suggestions.for_option(group, option)
        raise ConfigError(f"{group}={option}: unknown option; {fix or f'see runner --help {group}'}")
    heads: dict[str, str] = {}
    for name in options:
        text = search_path.file_of(f"{group}/{name}").read_text("utf-8")
        heads[name] = "".join(re.findall(r"^# (?!@package)(.*)$", text, re.MULTILINE)[:1])
    lines = [f"options of {group}:", *_table(heads)]
    primary = yaml.safe_load((paths.conf_dir() / f"{search_path.PRIMARY}.yaml").read_text("utf-8"))
    chosen = option or next((entry[group] for entry in primary["defaults"] if group in entry), None)
    if chosen in options:
        lines += ["", f"keys of {group}={chosen}; of another option: runner --help {group}=<option>"]
        lines += _table(_keys(group, chosen))
    return lines


def _keys(group: str, option: str) -> dict[str, str]:
    """Returns the keys of an option, as they are typed, with their comments; those that it shares come first."""
    rows = {}
    for key, (value, says) in _commented(group, option).items():
        if says:
            rows[f"{key}={value}".removesuffix("=")] = says
    return rows


def _commented(group: str, option: str) -> dict[str, tuple[str, str]]:
    file = search_path.file_of(f"{group}/{option}")
    text = file.read_text("utf-8")
    found: dict[str, tuple[str, str]] = {}
    for name in yaml.safe_load(text).get("defaults") or []:
        if isinstance(name, str) and name != "_self_":
            found |= _commented(group, name)
    prefix = [] if "@package _global_" in text else [group]
    path = prefix
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is not None and match["key"] != "defaults":
            path = [*path[: len(prefix) + len(match["indent"]) // 2], match["key"]]
            key = ".".join(path)
            value = match["value"].strip()
            # It follows from other keys, or a file of the user's may have passwords.
            if value.startswith("${") or not file.is_relative_to(paths.conf_dir()):
                value = ""
            found[key] = (value, match["says"] or found.get(key, ("", ""))[1])
    return found


def _table(rows: Mapping[str, str]) -> list[str]:
    width = max(map(len, rows), default=0)
    return [f"  {name:{width}}  {says}".rstrip() for name, says in rows.items()]
