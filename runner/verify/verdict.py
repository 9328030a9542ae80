"""What a verification proves: of each trained variable, which error would have been seen; and of the whole, a word.

A wrong engine scales a gradient, turns its sign, leaves it out, or loses a part of it. A variable is *sharp* if its
gradient at a generic point would have failed its check with a size off by a tenth, and with it any wrong sign; and if
what a step makes of it would have, off by as much. Where the tolerance is wider, the two sides may still be *near*:
as vectors within a twentieth of each other, which an engine that is off by a tenth does not reach. A gradient whose
terms cancel has no size of its own: it is held against the size of the terms, and is then *zero* on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from runner.verify.compare import Check
from runner.verify.points import END, parsed

Outcome = Literal["verified", "inconclusive", "mismatch"]
SHARP = 0.1  # relative error of the size
NEAR = SHARP / 2  # length of the difference: with as much noise again, an error of SHARP is not as near
SHARE = 0.99  # of the variables that must be sharp, or zero


@dataclass(frozen=True)
class Sharpness:
    """What the checks prove of one trained variable.

    Attributes:
      variable: canonical path.
      resolution: smallest relative error of its gradient's size that would have been seen; infinite where none would.
      zero: its gradient is nothing but what rounding leaves of terms that cancel, on both sides.
      why: it is not sharp, in words; empty where it is.
    """

    variable: str
    resolution: float
    zero: bool
    why: str

    @property
    def sharp(self) -> bool:
        """Whether a wrong sign, or a size off by a tenth, would have been seen."""
        return not self.zero and not self.why

    @property
    def verified(self) -> bool:
        """Whether it is sharp or zero."""
        return not self.why


def sharpness(checks: Iterable[Check]) -> list[Sharpness]:
    """Returns what is verified of each trained variable, in the order of the checks."""
    groups: dict[str, list[Check]] = {}
    for check in checks:
        if check.variable:
            groups.setdefault(check.variable, []).append(check)
    return [_of(path, found) for path, found in groups.items() if any(each.kind == "gradient" for each in found)]


def _of(path: str, checks: Sequence[Check]) -> Sharpness:
    gradients = [check for check in checks if check.kind == "point"]
    steps = [check for check in checks if check.kind == "update" and _is_own(check)]
    seen = _seen(gradients)
    zero = bool(gradients) and all(check.zero for check in gradients)
    moves = _seen(steps)
    why = ""
    if not gradients:
        why = "no generic point has a finite loss"
    elif zero:
        pass
    elif not any(check.scale for check in gradients):
        why = "its gradient is 0 at every generic point"
    elif seen > SHARP:
        why = f"rounding hides errors of its gradient up to {percent(seen)}"
    elif moves == math.inf:
        why = "no step from a generic point moves it"
    elif moves > SHARP:
        why = f"rounding hides errors of what a step moves it by up to {percent(moves)}"
    return Sharpness(path, seen, zero, why)


def _seen(checks: Sequence[Check]) -> float:
    """Returns the smallest relative error that would have failed a check, or moved the sides apart that are near."""
    nearest = min((check.apart for check in checks), default=math.inf)
    seen = min((check.resolution for check in checks), default=math.inf)
    return min(seen, NEAR + nearest) if nearest <= NEAR else seen


def _is_own(check: Check) -> bool:
    """Tells whether an update is of the variable itself, not of a slot or an average."""
    _, name, path = parsed(check.name)
    return name == END and path == check.variable


def outcome_of(checks: Sequence[Check]) -> Outcome:
    """Returns the verdict's word."""
    if not all(check.passed for check in checks):
        return "mismatch"
    known = sharpness(checks)
    return "verified" if known and sum(each.verified for each in known) >= SHARE * len(known) else "inconclusive"


def percent(share: float) -> str:
    """Returns a share in words: `0.02%`, `more than all of it`."""
    return f"{100 * share:.2g}%" if share < 1 else "more than all of it"
