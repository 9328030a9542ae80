"""DTensor's compile errors as one line: the layer, the operation, and what works instead."""

from __future__ import annotations

import re
from collections.abc import Iterable

from runner.errors import ConfigError

# Ways in which DTensor's errors name the operation, the most exact first.
_OPERATION_PATTERNS = (r"current operation: .*?\"tf\.(\w+)\"", r"'tf\.(\w+)' op", r"\btf\.(\w+)")
_COMPILER_MARKS = ("dtensor/mlir", "layout propagation", "SPMD", "DTensor", "dtensor/cc")
# A user's exception may print a whole tensor; an error stays a few lines of a terminal.
_LONGEST_EXCEPTION = 400
_LONGEST_REASON = 200


def compile_error(text: str, operations: Iterable[tuple[str, str]], layers: Iterable[str]) -> ConfigError:
    """Returns the error for a step that DTensor could not compile, of operations (type, name)."""
    kind = _operation(text)
    layer = _layer(kind, operations, layers)
    where = ""
    if layer:
        where = f" in layer {layer}"
    return ConfigError(
        f"layout and model don't fit: DTensor can't compile operation {kind or '(unnamed)'}{where} as it is sharded "
        f"({_reason(text)}); use layout=replicated or mesh=single, or set engine=jax"
    )


def trace_error(error: Exception, target: str) -> ConfigError:
    """Returns the error for a step whose trace raised in the user's own code."""
    message = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST_EXCEPTION]}"
    fix = ""
    if "symbolic `tf.Tensor`" in str(error):
        fix = "; write `if` and `while` over tensors with tf.cond and tf.while_loop, or set engine=jax"
    return ConfigError(f"model._target_={target}: a training step of the model raised {message}{fix}")


def is_compile_error(text: str) -> bool:
    """Returns whether an error is of DTensor's compiler, and not of a running step."""
    return any(mark in text for mark in _COMPILER_MARKS)


def _operation(text: str) -> str:
    for pattern in _OPERATION_PATTERNS:
        match = re.search(pattern, text)
        if match is not None:
            return match.group(1)
    return ""


def _layer(kind: str, operations: Iterable[tuple[str, str]], layers: Iterable[str]) -> str:
    """Returns the longest layer name among the scopes of operations of the failed one's type."""
    scopes: set[str] = set()
    for operation_kind, name in operations:
        if operation_kind == kind:
            scopes.update(name.split("/"))
    return max((layer for layer in layers if layer in scopes), key=len, default="")


def _reason(text: str) -> str:
    match = re.search(r"error: (.*)", text)
    line = match.group(1) if match else text.strip().splitlines()[0]
    if "does not implement layout propagation" in line:
        return "it has no rule for layouts"
    line = re.sub(r"^'tf\.\w+' op ", "", line.strip())
    return " ".join(line.split())[:_LONGEST_REASON].rstrip(". ")
