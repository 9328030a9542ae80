"""DTensor's compile errors as one line: the operation, the reason, and what works instead."""

from __future__ import annotations

import re

from runner.errors import ConfigError

# Ways in which DTensor's errors name the operation, the most exact first.
_OPERATION_PATTERNS = (r"current operation: .*?\"tf\.(\w+)\"", r"'tf\.(\w+)' op", r"\btf\.(\w+)")
_COMPILER_MARKS = ("dtensor/mlir", "layout propagation", "SPMD", "DTensor", "dtensor/cc")
_LONGEST_REASON = 200


def compile_error(text: str) -> ConfigError:
    """Returns the error for a step that DTensor could not compile."""
    found = (re.search(pattern, text) for pattern in _OPERATION_PATTERNS)
    operation = next((match.group(1) for match in found if match), "(unnamed)")
    return ConfigError(
        f"layout and model don't fit: DTensor can't compile operation {operation} as it is sharded ({_reason(text)}); "
        "use layout=replicated or mesh=single, or set engine=jax"
    )


def is_compile_error(text: str) -> bool:
    """Returns whether an error is of DTensor's compiler, and not of a running step."""
    return any(mark in text for mark in _COMPILER_MARKS)


def _reason(text: str) -> str:
    match = re.search(r"error: (.*)", text)
    line = match.group(1) if match else text.strip().splitlines()[0]
    return " ".join(line.split())[:_LONGEST_REASON].rstrip(". ")
