"""Static imports between this checkout's modules, late ones included; nothing is imported to find them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def modules(package: str) -> Mapping[str, Path]:
    """Returns the path of every module of a top-level package by its dotted name."""
    paths = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        paths[".".join(parts)] = path
    return paths


@cache
def tree(path: Path) -> ast.Module:
    """Returns a module's syntax tree."""
    return ast.parse(path.read_text())


def imported_names(module: ast.AST) -> Iterator[str]:
    """Yields the dotted names that a module imports at run time, also in functions and by `late` or `import_module`.

    What only a type checker reads, below `if TYPE_CHECKING`, is left out.
    """
    for node in _at_run_time(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if called in ("late", "import_module"):
                yield str(node.args[0].value)


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        is_guard = isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"
        if is_guard:
            assert isinstance(child, ast.If)
            for other in child.orelse:
                yield other
                yield from _at_run_time(other)
        else:
            yield child
            yield from _at_run_time(child)


def module_of(name: str, known: Mapping[str, Path]) -> str | None:
    """Returns the module that an imported name is, or is defined in; None if it is not one of the known."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None
