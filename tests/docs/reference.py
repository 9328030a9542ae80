"""Generator of docs/reference.md: every command, flag, option, key and exit code, from conf/ and the code.

`python -m tests.docs.reference` writes the page; a test compares it with the code. Type and meaning of a key come from
its field and the docstring of its dataclass, or for keys of a builder, which are no fields, from the comment in conf/.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from runner import errors
from runner.cli import command_line
from runner.cli.commands import TRAIN, commands
from runner.cli.runs import request
from runner.config import schema, schema_task
from runner.config.build import type_in_words
from runner.config.fields import Constraint, constraint_of
from runner.config.search_path import options_in
from runner.host import paths
from runner.task.keras_metrics import KINDS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference.md"
CONF = paths.conf_dir()
_LINE = re.compile(r"^(?P<indent> *)(?P<key>\w+):(?P<value>[^#]*?)(?:\s+#\s*(?P<says>.*))?$")
_FLAGS = {
    "--help": "what a command does, with examples; with a group: its options and keys",
    "--version": "the program's version, and those of its libraries",
    "--cfg": "prints the composed config and runs nothing: `job`, `hydra` or `all`",
    "--package": "with `--cfg`: only this part",
    "--resolve": "with `--cfg`: interpolations resolved",
    "--info": "what Hydra knows: `all`, `config`, `defaults`, `defaults-tree`, `plugins`, `searchpath`",
    "--multirun": "runs every combination of comma-separated values ([sweeps](sweeps.md))",
    "--run": "one run, which is the default",
    "--config-dir": "a folder with more groups and options, such as your own `conf`",
    "--config-name": "another config than `config`",
    "--hydra-help": "Hydra's own help",
    "--shell-completion": "Hydra's completion for a shell",
}
_SHORT = {"--multirun": "-m", "--config-dir": "-cd", "--cfg": "-c", "--help": "-h", "--config-name": "-cn"}
_NAMED = ("dataset", "sweep")  # groups whose key `name` is for a user to set
# Resolver of an interpolation -> the default that it gives.
_RESOLVED = {
    "${oc.select": "null",
    "${adam_learning_rate": "by the model",
    "${default_epochs": "3",
    "${auto_if_any": "null",
}
_CODES = (
    (errors.EXIT_DONE, "done; of a sweep: every job passed; of `runner.verify`: verified"),
    (errors.EXIT_FAILED, "the run, the check, or a job of a sweep failed; the last line says why"),
    (errors.EXIT_REFUSED, "the config, the command line, the model or the data is invalid; one line with the fix"),
    (errors.EXIT_FINAL, "with `cluster.restarts` or `runner.supervise`: a NaN or Inf loss, not started again"),
    (129, "ended by a closed terminal (SIGHUP)"),
    (130, "ended by Ctrl-C (SIGINT)"),
    (138, "ended by SIGUSR1, which a scheduler sends before the time limit"),
    (143, "ended by SIGTERM"),
)
_VARIABLES = (
    ("MLFLOW_TRACKING_URI", "tracking URI, unless `tracking.uri` is set"),
    ("MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_PASSWORD", "credentials of a tracking server"),
    ("TFDS_DATA_DIR", "folder of prepared data, unless `dataset.data_dir` is set"),
    ("XDG_CACHE_HOME", "scans, compiled programs: `runner` in it, else in `~/.cache`"),
    ("CUDA_VISIBLE_DEVICES", "visible GPUs"),
    ("PJRT_NPROC", "number of XLA threads; set by the runner if unset"),
    ("HYDRA_FULL_ERROR", "`1` shows the traceback of an error"),
)


def listed(option: Path) -> Iterator[tuple[str, str, str]]:
    """Yields (dotted key, value as written, comment) of a YAML file and of those that it includes by `defaults`.

    Keys whose value is a mapping are left out. A key of the file itself takes the place of an included one.
    """
    keys: dict[str, tuple[str, str]] = {}
    parents: list[tuple[int, str]] = []
    for line in option.read_text().splitlines():
        match = _LINE.match(line)
        if match is None or line.startswith("#"):
            continue
        indent = len(match["indent"])
        parents = [parent for parent in parents if parent[0] < indent]
        parents.append((indent, match["key"]))
        value = match["value"].strip()
        if match["key"] == "defaults" and indent == 0:
            for name in re.findall(r"_\w+", value):
                if name != "_self_":
                    keys |= {key: (shared, says) for key, shared, says in listed(option.with_name(f"{name}.yaml"))}
        elif value or match["key"] in ("rules", "inputs"):
            keys[".".join(key for _, key in parents)] = (value or "the preset's", match["says"] or "")
    for key, (value, says) in keys.items():
        yield key, value, says


def attributes(kind: type) -> dict[str, str]:
    """Returns what a dataclass's docstring says of each field."""
    said = {}
    for base in reversed(kind.__mro__):
        body = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        entries = re.findall(r"^  (\w+): (.*?)(?=^  \w+:|\Z)", body, flags=re.M | re.S)
        said |= {name: " ".join(says.split()) for name, says in entries}
    return said


def described(kind: type, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yields (dotted key, type, docstring) of a dataclass and of those in it."""
    hints, says = get_type_hints(kind), attributes(kind)
    for spec in fields(kind):
        hint = hints[spec.name]
        if is_dataclass(hint) and isinstance(hint, type):
            yield from described(hint, f"{prefix}{spec.name}.")
        else:
            yield f"{prefix}{spec.name}", allowed(hint, constraint_of(spec)), says.get(spec.name, "")


def allowed(hint: Any, constraint: Constraint) -> str:
    """Returns the values that a key may hold: its type and its constraint in words."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] if type(None) in get_args(hint) else [hint]
    text = type_in_words(kinds[0]).removeprefix("an ").removeprefix("a ")
    parts = [constraint.bounds(), constraint.rule] if not constraint.choices else []
    if constraint.choices:
        text = " | ".join(map(str, constraint.choices))
    elif constraint.entry_names:
        text = f"[{', '.join(constraint.entry_names)}]"
    elif kinds[0] is Any:
        text = ""
    words = ", ".join(part for part in (text, *parts) if part) or "any value"
    return f"{words}, or null" if type(None) in get_args(hint) else words


def options(group: str) -> list[Path]:
    """Returns the files of a group, the default first."""
    default = defaults().get(group)
    names = sorted(options_in(CONF / group), key=lambda name: (name != default, name))
    return [CONF / group / f"{name}.yaml" for name in names]


def defaults() -> dict[str, str]:
    """Returns the option that each group has by itself."""
    entries = yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
    return {key: value for entry in entries if isinstance(entry, dict) for key, value in entry.items() if value}


def head(option: Path) -> str:
    """Returns what the first lines of a file say, the commands in them left out."""
    said = []
    for line in option.read_text().splitlines():
        if not line.startswith("#"):
            break
        text = line.removeprefix("#")
        if not text.startswith(("   ", " @package")):
            said.append(text.strip())
    return " ".join(said)


def cell(text: str) -> str:
    """Returns a text as a table's cell may hold it."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{' '.join(text.split())}`" if text else ""


def entry(key: str, kind: str, default: str, meaning: str) -> str:
    """Returns a key's item of a list; the site makes an entry of a definition list of it."""
    facts = "; ".join(fact for fact in (kind, f"default {default}") if fact)
    return f"- `{key}`: {facts}" + (f"\\\n  {' '.join(meaning.split())}" if meaning else "")


def _group(group: str) -> list[str]:
    files = options(group)
    lines = [f"### `{group}`", ""]
    if len(files) > 1:
        lines += ["| option | |", "|---|---|"]
        first = defaults().get(group)
        lines += [
            f"| `{file.stem}`{' (default)' if file.stem == first else ''} | {cell(head(file))} |" for file in files
        ]
        sizes = sorted((CONF / group / "size").glob("*.yaml"))
        lines += [f"| `model.size={file.stem}` | {cell(head(file))} |" for file in sizes]
        lines.append("")
    elif head(files[0]):
        lines += [head(files[0]), ""]
    if group == "experiment":
        return lines
    kinds = {spec.name: spec.default_factory for spec in fields(schema.RunConfig)}
    typed = {key: (kind, says) for key, kind, says in described(kinds[group])} if group in kinds else {}  # type: ignore[arg-type]
    if group == "task":
        for one in schema_task.OPTIONS.values():
            typed |= {key: (kind, says) for key, kind, says in described(one) if key != "target"}
    keys: dict[str, dict[str, str]] = {}  # by option
    meanings: dict[str, str] = {}
    for file in files:
        for name, value, says in listed(file):
            keys.setdefault(name, {})[file.stem] = _RESOLVED.get(value.partition(":")[0], value)
            if meanings.get(name, "").startswith("not used") or not meanings.get(name):
                meanings[name] = says
    for name in typed:
        if name not in ("options", "target", "rules", "name"):
            keys.setdefault(name, {})
    if not keys:
        return lines
    for name, values in keys.items():
        if name == "name" and group not in _NAMED:
            continue
        kind, says = typed.get(name, ("", ""))
        default = _defaults(values, len(files))
        lines.append(entry(f"{group}.{name}", kind, default, says or meanings.get(name, "")))
    lines.append("")
    if group == "task":
        lines += _keras_metrics()
    return lines


def _keras_metrics() -> list[str]:
    """Returns the metrics that `task.metrics` takes."""
    lines = ["#### Keras metrics", "", "| class | name in logs | better | targets |", "|---|---|---|---|"]
    for name, kind in KINDS.items():
        better = "larger" if kind.direction == "maximize" else "smaller"
        lines.append(f"| `{name}` | `{kind.name}` | {better} | {', '.join(kind.targets)} |")
    return [*lines, ""]


def _defaults(values: dict[str, str], files: int) -> str:
    """Returns a key's value, or the values by option."""
    by_value: dict[str, list[str]] = {}
    for option, value in values.items():
        by_value.setdefault(value, []).append(option)
    if not by_value:
        return "as the option has it"
    if len(by_value) > 4:
        return "by the option"
    if len(by_value) == 1 and (len(values) == files or len(values) > 5):
        return code(*by_value)
    most = max(by_value, key=lambda value: len(by_value[value]))
    if len(values) == files and len(by_value[most]) > 3:
        by_value[most] = ["other options"]
        by_value[most] = by_value.pop(most)  # last
    return "; ".join(f"{code(value)} ({', '.join(given)})" for value, given in by_value.items())


def _arguments() -> list[str]:
    lines = ["### `runner runs`", "", "An action, then keys.", "", "| argument | |", "|---|---|"]
    lines += [f"| `{name}` | {cell(says)} |" for name, says in request.ACTIONS.items()]
    return [*lines, *(f"| `{name}=` | {cell(says)} |" for name, says in request.KEYS.items()), ""]


def page() -> str:
    """Returns the page."""
    lines = [
        *("# Commands and config keys", ""),
        "Generated from `conf/` and the code by `python -m tests.docs.reference`; a test keeps it up to date.",
        *("", "## Commands", "", "| command | |", "|---|---|"),
    ]
    for name, (does, _) in sorted(commands().items()):
        lines.append(f"| `runner {name}` | {cell(does)} |".replace(f" {TRAIN}`", "`"))
    lines += [
        "",
        "`runner plan` is also `python -m runner.plan`, and so on. Commands with a config have the same groups.",
        *("", "### Keys without a group", "", "| key | meaning |", "|---|---|"),
    ]
    words = {key: says for key, _, says in listed(CONF / "config.yaml") if key in ("resume", "name", "branch", "run")}
    lines += [f"| `{key}=` | {cell(says)} |" for key, says in words.items()]
    lines += ["", "### Flags", "", "| flag | |", "|---|---|"]
    known = list(dict.fromkeys(flag for flag in command_line.FLAGS if flag.startswith("--")))
    shown = [f"`{flag}`" + (f", `{_SHORT[flag]}`" if flag in _SHORT else "") for flag in known]
    lines += [f"| {flag} | {_FLAGS.get(name, '')} |" for flag, name in zip(shown, known, strict=True)]
    lines.append("")
    lines += _arguments()
    lines += ["## Exit codes", "", "| code | |", "|---|---|"]
    lines += [f"| {number} | {says} |" for number, says in _CODES]
    lines += ["", "## Groups and keys", ""]
    groups = [spec.name for spec in fields(schema.RunConfig) if (CONF / spec.name).is_dir()]
    more = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name not in (*groups, "hydra"))
    for group in (*groups, *more):
        lines += _group(group)
    lines += ["### Hydra: launchers, sweepers and logging", "", "| option | |", "|---|---|"]
    of_hydra = sorted((CONF / "hydra").rglob("*.yaml"))
    lines += [f"| `{file.relative_to(CONF).parent}={file.stem}` | {cell(head(file))} |" for file in of_hydra]
    lines.append("")
    for file in of_hydra:
        if file.parent.name in ("launcher", "sweeper"):
            for name, value, says in listed(file):
                if name != "_target_":
                    key = f"hydra.{file.parent.name}.{name} ({file.stem})"
                    lines.append(entry(key, "", code(value) or "empty", says))
    lines += ["", "## Environment", "", "| variable | |", "|---|---|"]
    lines += [f"| `{name}` | {says} |" for name, says in _VARIABLES]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
