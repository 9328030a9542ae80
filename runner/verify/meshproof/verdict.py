"""Verdicts: the smallest error that the checks of each variable detect, and the overall outcome.

A wrong engine scales a gradient, flips its sign, leaves it out, or loses a part of it. The checks are *sensitive* to a
variable if both hold: its gradient at randomly perturbed weights would have failed its check with a size off by a
tenth, and with it any wrong sign; and so would what a step changes the variable by. Where the tolerance is wider, the
two sides may still be *near*: as vectors within a twentieth of each other, which an engine that is off by a tenth does
not reach. A gradient whose terms cancel has no size of its own: it is compared with the size of the terms, and is then
*zero* on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .differences import Check

Verdict = Literal["verified", "inconclusive", "mismatch"]
# Relative error of the size that must be detected. A smaller limit would leave more variables of deep networks
# inconclusive. With a larger one, an engine that scales a gradient by 0.9 or 1.1 could be called verified.
SENSITIVITY = 0.1
# Length of the difference of two vectors that are near: with as much noise again, an error of `SENSITIVITY` is not as
# near.
NEAR = SENSITIVITY / 2
# Share of the variables that must be sensitive or zero. Deep networks have a few whose gradients rounding hides.
REQUIRED_SHARE = 0.99
# Kinds of checks of what a step returns beside its state.
_OUTPUTS = ("evaluation", "output")


@dataclass(frozen=True)
class Sensitivity:
    """What the checks detect of errors of one trained variable.

    Attributes:
      variable: canonical path.
      resolution: smallest relative error of its gradient's size that is detected; infinite where none is.
      zero: whether its gradient is zero up to rounding, on both sides.
      why: the reason that the checks are not sensitive to it; empty where they are, or where it is zero.
    """

    variable: str
    resolution: float
    zero: bool
    why: str

    @property
    def is_sensitive(self) -> bool:
        """Whether a wrong sign, or a size off by a tenth, is detected."""
        return not self.zero and not self.why

    @property
    def is_verified(self) -> bool:
        """Whether the checks are sensitive to it, or it is zero."""
        return not self.why


def sensitivities(checks: Iterable[Check]) -> list[Sensitivity]:
    """Returns what is detected of each trained variable, in the order of the checks."""
    by_variable: dict[str, list[Check]] = {}
    for check in checks:
        if check.variable:
            by_variable.setdefault(check.variable, []).append(check)
    found = []
    for path, own_checks in by_variable.items():
        if any(check.kind in ("gradient", "stepped") for check in own_checks):
            found.append(_sensitivity(path, own_checks))
    if not found:
        # An evaluation trains nothing: its outputs are what it is for.
        found = [_of_output(path, checks) for path, checks in by_variable.items() if checks[0].kind in _OUTPUTS]
    return found


def _of_output(path: str, checks: Sequence[Check]) -> Sensitivity:
    detected = min(check.resolution for check in checks)
    why = ""
    if detected > SENSITIVITY:
        why = f"rounding hides errors of it up to {percent(detected)}"
    return Sensitivity(path, detected, False, why)


def _sensitivity(path: str, checks: Sequence[Check]) -> Sensitivity:
    gradients = []
    updates = []
    is_stepped = False
    for check in checks:
        if check.kind == "stepped":
            is_stepped = True
        elif check.kind == "point":
            gradients.append(check)
        elif check.kind == "update" and check.name.endswith(f"/end/{path}"):
            # Not those of its slots or averages.
            updates.append(check)
    if is_stepped:
        # A custom step has no gradient of its own: what it changes is all that there is to compare.
        gradients = updates
    of_gradient = _smallest_detected(gradients)
    of_update = _smallest_detected(updates)
    is_zero = bool(gradients) and all(check.zero for check in gradients)
    why = ""
    if is_stepped and of_update == math.inf:
        why = "no step from randomly perturbed weights changes it"
    elif not gradients:
        why = "the loss is NaN or Inf at all randomly perturbed weights"
    elif is_zero:
        pass
    elif not any(check.scale for check in gradients):
        why = "its gradient is 0 at all randomly perturbed weights"
    elif of_gradient > SENSITIVITY:
        why = f"rounding hides errors of its gradient up to {percent(of_gradient)}"
    elif of_update == math.inf:
        why = "no step from randomly perturbed weights changes it"
    elif of_update > SENSITIVITY:
        why = f"rounding hides errors of its update up to {percent(of_update)}"
    return Sensitivity(path, of_gradient, is_zero, why)


def _smallest_detected(checks: Sequence[Check]) -> float:
    """Returns the smallest relative error that would fail a check, or take the sides apart that are near."""
    nearest = min((check.apart for check in checks), default=math.inf)
    detected = min((check.resolution for check in checks), default=math.inf)
    if nearest <= NEAR:
        return min(detected, NEAR + nearest)
    return detected


def verdict_of(checks: Sequence[Check]) -> Verdict:
    """Returns the verdict on all checks of a comparison."""
    if not all(check.passed for check in checks):
        return "mismatch"
    variables = sensitivities(checks)
    verified = sum(variable.is_verified for variable in variables)
    if variables and verified >= REQUIRED_SHARE * len(variables):
        return "verified"
    return "inconclusive"


def percent(share: float) -> str:
    """Returns a share in words: `0.02%`, `100% or more`."""
    return f"{100 * share:.2g}%" if share < 1 else "100% or more"
