"""Wide tables run again only where something that they depend on has changed.

A test with the marker `when_changed` is skipped if the digest of all that it depends on equals the one in
`tests/digests.json`, which says what it was when the test last passed. It depends on the modules that its file and the
marker's `roots` import, directly or not, on the options in conf/, on the pinned versions, on this Python, and on the
marker's `files`. A module of the tests also depends on those that its strings name, since it starts programs by name
or by their text. Comments, docstrings and blank lines do not count, so that a change of wording runs nothing again.
Nothing of it depends on the machine, on the folder of the checkout or on what else is installed.

    python -m pytest -m campaign                      # what has changed
    python -m pytest -m campaign --whole              # everything
    python -m pytest -m campaign --record-digests     # what has changed, and keeps the digests of what passes
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import imports
from tests.imports import ROOT

RECORD = ROOT / "tests" / "digests.json"
PACKAGES = ("runner", "tests", "hydra_plugins", "benchmarks")
MARKER = "when_changed"
# Its strings tell commands apart, and are in every test that starts one.
_NAMES_WITHOUT_STARTING = {"tests.forks"}
_PROPERTY = "digest of what it depends on"


def _parsed_without_docstrings(source: str) -> ast.Module:
    module = ast.parse(source)
    for node in ast.walk(module):
        has_body = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if has_body and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return module


def without_docstrings(source: str) -> str:
    """Returns a module's code as text that does not depend on comments, docstrings and layout."""
    return ast.dump(_parsed_without_docstrings(source))


@cache
def _code_digest(path: Path) -> str:
    return hashlib.sha256(without_docstrings(path.read_text()).encode()).hexdigest()


@cache
def _file_digest(path: Path) -> str:
    if path.suffix == ".yaml":
        content = repr(yaml.safe_load(path.read_text())).encode()
    else:
        content = path.read_bytes()
    return hashlib.sha256(content).hexdigest()


@cache
def _known() -> dict[str, Path]:
    paths: dict[str, Path] = {}
    for package in PACKAGES:
        paths |= imports.modules(package)
    return paths


@cache
def _imported_by(name: str) -> frozenset[str]:
    known = _known()
    module = imports.tree(known[name])
    # A package is imported before any module in it.
    names = {imports.module_of(imported, known) for imported in imports.imported_names(module)}
    parents = {name.rpartition(".")[0]}
    if name.startswith("tests.") and name not in _NAMES_WITHOUT_STARTING:
        names |= _named_by(_parsed_without_docstrings(known[name].read_text()))
    return frozenset(other for other in names | parents if other in known)


def _named_by(module: ast.Module) -> set[str | None]:
    """Returns the modules that the strings of a module name; for a command, also what starts it."""
    known = _known()
    names = {imports.module_of(named, known) for named in imports.names_in_texts(module, PACKAGES)}
    commands = {f"{name}.__main__" for name in names}
    return names | commands


def closure(roots: Iterable[str]) -> set[str]:
    """Returns the modules that some modules import, directly or not, and these themselves.

    Args:
      roots: dotted names; a package counts for every module in it.
    """
    known = _known()
    waiting = {name for root in roots for name in known if f"{name}.".startswith(f"{root}.")}
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        reached.add(name)
        waiting |= _imported_by(name) - reached
    return reached


@cache
def digest(roots: tuple[str, ...], files: tuple[str, ...]) -> str:
    """Returns the digest of what some modules and files come to.

    Args:
      roots: dotted names of modules or packages.
      files: patterns of paths, relative to the checkout.

    Raises:
      ValueError: a root matches no module, or the patterns match no file.
    """
    known = _known()
    unknown = [root for root in roots if not any(f"{name}.".startswith(f"{root}.") for name in known)]
    if unknown:
        raise ValueError(f"no module is called {', '.join(unknown)}")
    lines = [f"python {sys.version_info.major}.{sys.version_info.minor}"]
    for name in sorted(closure(roots)):
        lines.append(f"{name} {_code_digest(known[name])}")
    named = {path for pattern in files for path in ROOT.glob(pattern)}
    if files and not named:
        raise ValueError(f"no file matches {', '.join(files)}")
    shared = {*ROOT.glob("conf/**/*.yaml"), ROOT / "constraints.txt"}
    for path in sorted(shared | named):
        lines.append(f"{path.relative_to(ROOT)} {_file_digest(path)}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def digest_of(item: pytest.Item) -> str | None:
    """Returns the digest of what a test depends on; None if it has no marker.

    In the marker's `files`, `{name}` is the value of the test's parameter `name`.
    """
    marker = item.get_closest_marker(MARKER)
    if marker is None:
        return None
    own = ".".join(item.path.relative_to(ROOT).with_suffix("").parts)
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    files = tuple(pattern.format(**parameters) for pattern in marker.kwargs.get("files", ()))
    return digest((own, *marker.kwargs.get("roots", ())), files)


def recorded(path: Path = RECORD) -> dict[str, str]:
    """Returns the digest at which each test last passed, by node id."""
    content: dict[str, str] = json.loads(path.read_text()) if path.is_file() else {}
    return content


def skip_if_unchanged(item: pytest.Item, record: dict[str, str]) -> None:
    """Skips a test whose digest is the recorded one, and notes the digest of one that runs.

    It is called as a test is set up, since digests take seconds, and most sessions leave the tables out.
    """
    current = digest_of(item)
    if current is None:
        return
    if record.get(item.nodeid) == current:
        pytest.skip("nothing that it depends on has changed since it passed; --whole runs it")
    item.user_properties.append((_PROPERTY, current))


class Recorder:
    """Collects the digests of the tests that pass and writes them at the end of the session.

    It runs in the process that all reports reach, so that workers do not write over each other.
    """

    def __init__(self, path: Path = RECORD) -> None:
        self._path = path
        self._passed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" or not report.passed:
            return
        properties: dict[str, Any] = dict(report.user_properties)
        if _PROPERTY in properties:
            self._passed[report.nodeid] = properties[_PROPERTY]

    def pytest_sessionfinish(self) -> None:
        content = recorded(self._path) | self._passed
        self._path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
