"""The rule language of layouts: rules -> one exact spec per variable. Pure Python, the same for every engine."""

from runner.layout.axes import Spec
from runner.layout.resolver import lint, resolve
from runner.layout.rules import Placement
from runner.layout.validation import check, check_inputs

__all__ = ["Placement", "Spec", "check", "check_inputs", "lint", "resolve"]
