"""No part outside of the engines compares the name of one: a new engine is a package, an entry and a YAML file."""

import ast
from collections.abc import Iterator
from pathlib import Path

from runner.engine.registry import ENGINES

ROOT = Path(__file__).parents[2]


def compared_names(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yields the names of engines that a module compares with something."""
    names = {*ENGINES}
    for node in ast.walk(tree):
        compared: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            for operand in (node.left, *node.comparators):
                compared += operand.elts if isinstance(operand, ast.Tuple | ast.List | ast.Set) else [operand]
        elif isinstance(node, ast.MatchValue):
            compared = [node.value]
        for value in compared:
            if isinstance(value, ast.Constant) and value.value in names:
                yield value


def test_no_module_outside_the_engines_compares_the_name_of_one() -> None:
    package = ROOT / "runner"
    lines = [
        f"{path.relative_to(ROOT)}:{constant.lineno}"
        for path in sorted(package.rglob("*.py"))
        if path.relative_to(package).parts[0] != "engine"
        for constant in compared_names(ast.parse(path.read_text()))
    ]
    assert lines == []
    examples = ("name == 'jax'", "name in ('core_dtensor', other)", "'jax' not in names")
    assert all(list(compared_names(ast.parse(example))) for example in examples)
