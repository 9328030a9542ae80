"""Counts the multiplications of a step in the program that DTensor made of it, by the shapes that one device has."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

Shape = tuple[int, ...]


def operations(function: str, seen: set[str] | None = None) -> int:
    """Returns the operations, two a multiplication, of the products in a function and in those that it calls."""
    from tensorflow.python.eager import context

    seen = set() if seen is None else seen
    seen.add(function)
    nodes = {node.name: node for node in context.context().get_function_def(function).node_def}
    total = 2 * sum(_multiplications(nodes, node) for node in nodes.values())
    for name in (name for node in nodes.values() for name in _called(node)):
        total += operations(name, seen) if name not in seen else 0
    return total


def _called(node: Any) -> Iterator[str]:
    return (value.func.name for value in node.attr.values() if value.HasField("func"))


def _shape(nodes: Mapping[str, Any], tensor: str) -> Shape | None:
    """Returns a tensor's shape; None for an input of the function."""
    name, _, output = tensor.partition(":")
    if name not in nodes:
        return None
    shapes = nodes[name].attr["_output_shapes"].list.shape
    return tuple(int(dim.size) for dim in shapes[int(output.rpartition(":")[2] or 0)].dim)


def _multiplications(nodes: Mapping[str, Any], node: Any) -> int:
    if node.op not in ("MatMul", "Einsum", "Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput"):
        return 0
    out = _shape(nodes, node.name)
    shapes = [_shape(nodes, tensor) for tensor in node.input]
    assert out is not None
    if node.op == "MatMul":
        left, right = ("nm" if node.attr["transpose_a"].b else "mn"), ("kn" if node.attr["transpose_b"].b else "nk")
        return _of_letters([left, right, "mk"], [*shapes, out])
    if node.op == "Einsum":
        inputs, _, output = node.attr["equation"].s.decode().partition("->")
        return _of_letters([*inputs.split(","), output], [*shapes, out])
    given = {"Conv2D": out, "Conv2DBackpropFilter": shapes[-1], "Conv2DBackpropInput": shapes[-1]}[node.op]
    kernel = out if node.op == "Conv2DBackpropFilter" else shapes[1]
    assert given is not None
    assert kernel is not None
    return math.prod(given) * math.prod(kernel[:3])


def _of_letters(terms: list[str], shapes: list[Shape | None]) -> int:
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        sizes |= dict(zip(term, shape, strict=True)) if shape is not None else {}
    return math.prod(sizes[letter] for letter in set("".join(terms)))
