"""Definitions behind import paths, found by reading source code: nothing is imported, so no code runs."""

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
    """The definition of a name.

    Attributes:
      kind: `function` (with its parameters), `compiled` (has no source to read), `value` (not callable), `missing`,
        `no module`, or `unknown` if only the import can tell.
      arguments: the arguments of a function, a lambda or a class's `__init__` without `self`.
      where: the module that defines it, or that does not exist.
      names: functions and classes of that module, if the name is missing.
    """

    kind: Literal["function", "compiled", "value", "missing", "no module", "unknown"]
    arguments: ast.arguments | None = None
    where: str = ""
    names: tuple[str, ...] = ()


# Definitions that have been looked up, by module and name.
_Known = dict[tuple[str, str], Found]


class UnreadableError(ValueError):
    """A module whose source does not parse."""

    def __init__(self, source: Path, error: SyntaxError) -> None:
        super().__init__(f"{source.name} must parse ({error.msg}, line {error.lineno})")


def find(path: str) -> Found:
    """Follows an import path to a definition, through imports and aliases.

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
    """Returns a module's source file; None if there is no such module, or it has no source."""
    spec = _spec(module)
    path = Path(spec.origin) if spec is not None and spec.origin else Path()
    return path if path.suffix == ".py" and path.is_file() else None


def _spec(module: str) -> ModuleSpec | None:
    """Returns the spec of a module without importing anything.

    `importlib.util.find_spec` would import the packages that contain the module.
    """
    spec = None
    search_path = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = _spec_in(".".join(parts[:count]), search_path)
        search_path = None if spec is None else _search_path(spec)
        if spec is None or (search_path is None and count < len(parts)):
            # A module that no finder knows may be loaded all the same, such as `os.path`.
            loaded = getattr(sys.modules.get(module), "__spec__", None)
            return loaded and _unfrozen(loaded, None)
    return spec


def _spec_in(name: str, search_path: list[str] | None) -> ModuleSpec | None:
    """Returns the spec of a module, from the folders of the package that contains it."""
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, search_path)
        except (ImportError, AttributeError, ValueError):
            continue
        except KeyError:
            # A folder without __init__.py inside another one: Python looks for its parent in `sys.modules`.
            return _namespace(name, search_path or [])
        if spec is not None:
            return _unfrozen(spec, search_path)
    return None


def _namespace(name: str, search_path: list[str]) -> ModuleSpec:
    """Returns the spec of a package without __init__.py."""
    spec = ModuleSpec(name, None, is_package=True)
    folders = [Path(parent) / name.rpartition(".")[2] for parent in search_path]
    spec.submodule_search_locations = [str(folder) for folder in folders if folder.is_dir()]
    return spec


def _unfrozen(spec: ModuleSpec, search_path: list[str] | None) -> ModuleSpec:
    """Returns the spec of the source file of a module that the interpreter contains in frozen form."""
    is_frozen = isinstance(spec.loader, type) and issubclass(spec.loader, FrozenImporter)
    if not is_frozen:
        return spec
    return PathFinder.find_spec(spec.name, search_path) or spec


def _search_path(spec: ModuleSpec) -> list[str] | None:
    """Returns the folders of a package's modules; None if the module is not a package."""
    folders = spec.submodule_search_locations
    try:
        return None if folders is None else list(folders)
    except KeyError:
        # A namespace package in another one looks for its parent in `sys.modules`, which does not have it.
        return list(getattr(folders, "_path", []))


def _first_missing(module: str) -> str:
    """Returns the outermost package of a module that does not exist, or the module."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        if _spec(name) is None:
            return name
    return module


def _find(module: str, name: str, known: _Known) -> Found:
    """Returns the definition of a name in a module."""
    if (module, name) not in known:
        # The answer if imports lead back here in a circle.
        known[module, name] = Found("unknown")
        source = source_of(module)
        if source is None:
            known[module, name] = _compiled(module, name)
        else:
            known[module, name] = _in_module(_parsed(source), module, name, known)
    return known[module, name]


def _parsed(source: Path) -> ast.Module:
    try:
        return ast.parse(source.read_bytes(), filename=str(source))
    except SyntaxError as error:
        raise UnreadableError(source, error) from error


def _compiled(module: str, name: str) -> Found:
    """Returns the definition of a name in a module without source: if it is loaded, such as `posix`, from there."""
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
    """Returns the definition of a name in a module's source."""
    binding = _binding(tree, name)
    if binding is not None:
        return _follow(binding, module, name, known)
    candidates = []
    for item in _statements(tree):
        if not isinstance(item, ast.ImportFrom) or item.names[0].name != "*":
            continue
        # Inside `try` or `if`, an import of a module that does not exist need not be executed.
        if item in tree.body or _spec(_imported(item, module)) is not None:
            candidates.append(_find_import(item, module, name, known))
    for candidate in candidates:
        if candidate.kind not in ("missing", "unknown"):
            return candidate
    if any(candidate.kind == "unknown" for candidate in candidates):
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
    """Returns the node that the module binds a name to last; the tree itself if the source can't tell."""
    binding: ast.AST | None = None
    for item in tree.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and item.name == name:
            binding = item
        elif isinstance(item, ast.Assign | ast.AnnAssign):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                binding = item.value
            elif any(isinstance(target, ast.Tuple | ast.List) and name in _names(target) for target in targets):
                binding = tree
        elif isinstance(item, ast.Import | ast.ImportFrom):
            if any((alias.asname or alias.name) == name for alias in item.names):
                binding = item
        elif isinstance(item, ast.If | ast.Try | ast.With | ast.For | ast.While | ast.Match) and name in _names(item):
            # Only the import can tell which way a condition goes.
            binding = tree
    return binding


def _names(node: ast.AST) -> set[str]:
    """Returns every name that code inside a node may bind, and `name` for `import ... as name`."""
    names = set()
    for item in ast.walk(node):
        if isinstance(item, ast.Name):
            names.add(item.id)
        elif isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(item.name)
        elif isinstance(item, ast.alias):
            names.add((item.asname or item.name).partition(".")[0])
    return names


def _follow(node: ast.AST, module: str, name: str, known: _Known) -> Found:
    """Returns the definition that the node leads to, to which a module binds a name; see `_binding`."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.decorator_list:
        # A decorator may change the parameters.
        return Found("unknown")
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        return Found("function", node.args, module)
    if isinstance(node, ast.ClassDef):
        return _constructor(node, module, known)
    if isinstance(node, ast.Module):
        return _follow_all(node, module, name, known)
    if isinstance(node, ast.Import):
        return Found("value" if _exists(node, name) else "unknown", where=module)
    if isinstance(node, ast.Constant | ast.Dict | ast.List | ast.Tuple | ast.Set | ast.JoinedStr):
        return Found("value", where=module)
    if isinstance(node, ast.ImportFrom):
        return _find_import(node, module, name, known)
    if isinstance(node, ast.Name) and node.id != name:
        return _find(module, node.id, known)
    return Found("unknown")


def _follow_all(tree: ast.Module, module: str, name: str, known: _Known) -> Found:
    """Returns `value` if every plain statement of a module that binds a name binds it to a value, else `unknown`."""
    definitions = []
    for item in _statements(tree):
        binding = _binding(ast.Module([item], []), name)
        if binding is not None and not isinstance(binding, ast.Module):
            definitions.append(_follow(binding, module, name, known))
    if definitions and all(definition.kind == "value" for definition in definitions):
        return definitions[0]
    return Found("unknown")


def _exists(item: ast.Import, name: str) -> bool:
    """Returns whether the module exists that is imported under a name."""
    return any((alias.asname or alias.name) == name and _spec(alias.name) is not None for alias in item.names)


def _constructor(node: ast.ClassDef, module: str, known: _Known) -> Found:
    """Finds the parameters of a class: those of its `__init__`, or of its first base's."""
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    # A metaclass, or `__new__`, may take other parameters.
    if node.keywords or "__new__" in methods:
        return Found("unknown")
    init = methods.get("__init__")
    if init is not None:
        return Found("unknown") if init.decorator_list else Found("function", _without_self(init.args), module)
    if not node.bases:
        return Found("function", ast.arguments([], [], None, [], [], None, []), module)
    base = node.bases[0]
    if len(node.bases) > 1 or not isinstance(base, ast.Name) or base.id == node.name:
        return Found("unknown")
    found = _find(module, base.id, known)
    return found if found.kind == "function" else Found("unknown")


def _without_self(arguments: ast.arguments) -> ast.arguments:
    remaining = copy.copy(arguments)
    remaining.posonlyargs = arguments.posonlyargs[1:]
    remaining.args = arguments.args if arguments.posonlyargs else arguments.args[1:]
    return remaining


def _imported(item: ast.ImportFrom, module: str) -> str:
    """Returns the full name of the module in a `from` statement of another module."""
    if not item.level:
        return item.module or ""
    spec = _spec(module)
    is_package = spec is not None and spec.submodule_search_locations is not None
    parts = module.split(".")
    parts = parts[: len(parts) - item.level + is_package]
    if item.module:
        parts.append(item.module)
    return ".".join(parts)


def _find_import(item: ast.ImportFrom, module: str, name: str, known: _Known) -> Found:
    """Follows `from ... import name`, or `*`."""
    original_name = name
    for alias in item.names:
        if (alias.asname or alias.name) == name:
            original_name = alias.name
            break
    target = _imported(item, module)
    if not target or _spec(target) is None:
        return Found("unknown")
    found = _find(target, original_name, known)
    if found.kind == "missing" and _spec(f"{target}.{original_name}") is not None:
        # The name is a module inside the package.
        return Found("value", where=target)
    return found
