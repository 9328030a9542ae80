"""What an import path leads to, as far as source code tells: nothing is imported, so no code runs."""

from __future__ import annotations

import ast
import copy
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Literal


@dataclass(frozen=True)
class Found:
    """What a name stands for.

    Attributes:
      kind: `function` (with its parameters), `compiled` (has no source to read), `value` (not callable), `missing`,
        `no module`, or `unknown`, where only the import can tell.
      arguments: of a function, a lambda or a class's `__init__` without `self`.
      where: the module that defines it, or that is not there.
      names: what that module defines, where the name is missing.
    """

    kind: Literal["function", "compiled", "value", "missing", "no module", "unknown"]
    arguments: ast.arguments | None = None
    where: str = ""
    names: tuple[str, ...] = ()


_Known = dict[tuple[str, str], Found]  # what has been looked at, by module and name


class UnreadableError(ValueError):
    """A module whose source does not parse."""

    def __init__(self, source: Path, error: SyntaxError) -> None:
        super().__init__(f"{source.name} must parse ({error.msg}, line {error.lineno})")


def find(path: str) -> Found:
    """Follows an import path to a definition, through imports and other names for the same.

    Args:
      path: `package.module.name`.

    Raises:
      UnreadableError: a module on the way does not parse.
    """
    module, _, name = path.rpartition(".")
    if _spec(module) is None:
        return Found("no module", where=_first_missing(module))
    return _find(module, name, {})


def source_of(module: str) -> Path | None:
    """Returns a module's source file; None where there is no such module, or it has no source."""
    spec = _spec(module)
    path = Path(spec.origin) if spec is not None and spec.origin else Path()
    return path if path.suffix == ".py" and path.is_file() else None


def _spec(module: str) -> ModuleSpec | None:
    """Returns what an import of a module would load; `importlib.util.find_spec` imports the packages around it."""
    spec = None
    places = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = _one_spec(".".join(parts[:count]), places)
        places = None if spec is None else _places(spec)
        if spec is None or (places is None and count < len(parts)):
            loaded = getattr(sys.modules.get(module), "__spec__", None)  # as os.path, which no finder knows
            return loaded and _unfrozen(loaded, None)
    return spec


def _one_spec(name: str, places: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, places)
        except (ImportError, AttributeError, ValueError):
            continue
        except KeyError:  # a folder without __init__.py in another: its search asks for the imported parent
            return _namespace(name, places or [])
        if spec is not None:
            return _unfrozen(spec, places)
    return None


def _namespace(name: str, places: list[str]) -> ModuleSpec:
    spec = ModuleSpec(name, None, is_package=True)
    inner = [Path(place) / name.rpartition(".")[2] for place in places]
    spec.submodule_search_locations = [str(folder) for folder in inner if folder.is_dir()]
    return spec


def _unfrozen(spec: ModuleSpec, places: list[str] | None) -> ModuleSpec:
    """Returns the source in place of the copy that the interpreter holds of some of its own modules."""
    return (
        (PathFinder.find_spec(spec.name, places) or spec)
        if isinstance(spec.loader, type) and issubclass(spec.loader, FrozenImporter)
        else spec
    )


def _places(spec: ModuleSpec) -> list[str] | None:
    """Returns where a package's modules lie; those of a namespace package in another ask for the imported parent."""
    places = spec.submodule_search_locations
    try:
        return None if places is None else list(places)
    except KeyError:
        return list(getattr(places, "_path", []))


def _first_missing(module: str) -> str:
    parts = module.split(".")
    names = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return next((name for name in names if _spec(name) is None), module)


def _find(module: str, name: str, known: _Known) -> Found:
    if (module, name) not in known:
        known[module, name] = Found("unknown")  # to whom it leads in a circle
        source = source_of(module)
        known[module, name] = (
            _compiled(module, name) if source is None else _in_module(_parsed(source), module, name, known)
        )
    return known[module, name]


def _parsed(source: Path) -> ast.Module:
    try:
        return ast.parse(source.read_bytes(), filename=str(source))
    except SyntaxError as error:
        raise UnreadableError(source, error) from error


def _compiled(module: str, name: str) -> Found:
    """Looks at what no source tells of: a module that is loaded, as `posix`, has the name and its signature."""
    loaded = sys.modules.get(module)
    if not isinstance(loaded, ModuleType):
        return Found("compiled", where=module)
    if name not in vars(loaded):
        return Found("missing", where=module)
    if not callable(vars(loaded)[name]):
        return Found("value", where=module)
    try:
        text = str(inspect.signature(vars(loaded)[name]).replace(return_annotation=inspect.Signature.empty))
        function = ast.parse(f"def f{text}: ...").body[0]
    except (TypeError, ValueError, SyntaxError):
        return Found("compiled", where=module)
    assert isinstance(function, ast.FunctionDef)
    return Found("function", function.args, module)


def _in_module(tree: ast.Module, module: str, name: str, known: _Known) -> Found:
    bound = _binding(tree, name)
    if bound is not None:
        return _follow(bound, module, name, known)
    stars = [item for item in _statements(tree) if isinstance(item, ast.ImportFrom) and item.names[0].name == "*"]
    there = [item for item in stars if item in tree.body or _spec(_imported(item, module)) is not None]
    found = [_find_import(item, module, name, known) for item in there]
    for one in found:
        if one.kind not in ("missing", "unknown"):
            return one
    if found and any(one.kind == "unknown" for one in found):
        return Found("unknown")
    if any(isinstance(item, ast.FunctionDef) and item.name == "__getattr__" for item in tree.body):
        return Found("unknown")
    names = tuple(item.name for item in tree.body if isinstance(item, ast.FunctionDef | ast.ClassDef))
    return Found("missing", where=module, names=names)


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yields a module's statements, those inside `if`, `try` and the like included."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        item = waiting.pop(0)
        if isinstance(item, ast.stmt):
            yield item
        if not isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            waiting += ast.iter_child_nodes(item)


def _binding(tree: ast.Module, name: str) -> ast.AST | None:
    """Returns what the module binds a name to last; the tree itself where the source can't tell."""
    found: ast.AST | None = None
    for item in tree.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and item.name == name:
            found = item
        elif isinstance(item, ast.Assign | ast.AnnAssign):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                found = item.value
            elif any(isinstance(each, ast.Tuple | ast.List) and name in _names(each) for each in targets):
                found = tree
        elif isinstance(item, ast.Import | ast.ImportFrom):
            if any((alias.asname or alias.name) == name for alias in item.names):
                found = item
        elif isinstance(item, ast.If | ast.Try | ast.With | ast.For | ast.While | ast.Match):
            found = tree if name in _names(item) else found
    return found


def _names(node: ast.AST) -> set[str]:
    """Returns every name that code inside a node may bind, and `name` for `import ... as name`."""
    found = set()
    for item in ast.walk(node):
        if isinstance(item, ast.Name):
            found.add(item.id)
        elif isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(item.name)
        elif isinstance(item, ast.alias):
            found.add((item.asname or item.name).partition(".")[0])
    return found


def _follow(bound: ast.AST, module: str, name: str, known: _Known) -> Found:
    if isinstance(bound, ast.FunctionDef | ast.ClassDef) and bound.decorator_list:
        return Found("unknown")  # a decorator may change the parameters
    if isinstance(bound, ast.FunctionDef | ast.Lambda):
        return Found("function", bound.args, module)
    if isinstance(bound, ast.ClassDef):
        return _constructor(bound, module, known)
    if isinstance(bound, ast.Module):
        ways = [way for item in _statements(bound) if (way := _binding(ast.Module([item], []), name)) is not None]
        plain = [_follow(way, module, name, known) for way in ways if not isinstance(way, ast.Module)]
        return plain[0] if plain and all(one.kind == "value" for one in plain) else Found("unknown")
    if isinstance(bound, ast.Import):
        return Found("value" if _is_there(bound, name) else "unknown", where=module)
    if isinstance(bound, ast.Constant | ast.Dict | ast.List | ast.Tuple | ast.Set | ast.JoinedStr):
        return Found("value", where=module)
    if isinstance(bound, ast.ImportFrom):
        return _find_import(bound, module, name, known)
    if isinstance(bound, ast.Name) and bound.id != name:
        return _find(module, bound.id, known)
    return Found("unknown")


def _is_there(item: ast.Import, name: str) -> bool:
    """Returns whether the module is there that is imported under a name."""
    return any((alias.asname or alias.name) == name and _spec(alias.name) is not None for alias in item.names)


def _constructor(bound: ast.ClassDef, module: str, known: _Known) -> Found:
    """Finds the parameters of a class: those of its `__init__`, or of its first base's."""
    methods = {item.name: item for item in bound.body if isinstance(item, ast.FunctionDef)}
    if bound.keywords or "__new__" in methods:  # a metaclass may take other ones
        return Found("unknown")
    if (init := methods.get("__init__")) is not None:
        return Found("unknown") if init.decorator_list else Found("function", _without_first(init.args), module)
    if not bound.bases:
        return Found("function", ast.arguments([], [], None, [], [], None, []), module)
    base = bound.bases[0]
    if len(bound.bases) > 1 or not isinstance(base, ast.Name) or base.id == bound.name:
        return Found("unknown")
    found = _find(module, base.id, known)
    return found if found.kind == "function" else Found("unknown")


def _without_first(arguments: ast.arguments) -> ast.arguments:
    left = copy.copy(arguments)
    left.posonlyargs = arguments.posonlyargs[1:]
    left.args = arguments.args if arguments.posonlyargs else arguments.args[1:]
    return left


def _imported(item: ast.ImportFrom, module: str) -> str:
    """Returns the full name of the module that `from` means in another module."""
    if not item.level:
        return item.module or ""
    spec = _spec(module)
    is_package = spec is not None and spec.submodule_search_locations is not None
    parts = module.split(".")
    parts = parts[: len(parts) - item.level + is_package]
    return ".".join([*parts, *([item.module] if item.module else [])])


def _find_import(item: ast.ImportFrom, module: str, name: str, known: _Known) -> Found:
    """Follows `from ... import name`, or `*`."""
    alias = next((one for one in item.names if (one.asname or one.name) == name), None)
    wanted = alias.name if alias is not None else name
    target = _imported(item, module)
    if not target or _spec(target) is None:
        return Found("unknown")
    found = _find(target, wanted, known)
    if found.kind == "missing" and _spec(f"{target}.{wanted}") is not None:
        return Found("value", where=target)  # a module
    return found
