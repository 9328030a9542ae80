"""Which checkpoints of a run belong to one history, where the run was resumed from before its end.

`resume=<run>@100` of a run with checkpoints of steps 100, 200 and 300 begins another history after step 100. Those of
200 and 300 stay until it has come as far, so for a time both lie in one folder. Each checkpoint tells its own history:
where its run went back to, as pairs of a number that grows with each return, and the step. The newest history, by that
number, is the one that goes on, and what is before its returns is part of it. No other file needs to know, so a
process may die at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping

Lineage = tuple[tuple[int, int], ...]


def live(found: Mapping[int, Lineage]) -> list[int]:
    """Returns the steps of the newest history's checkpoints, in order.

    Args:
      found: a run's checkpoints by step.

    >>> live({100: (), 200: (), 300: (), 120: ((1, 100),)})
    [100, 120]
    """
    newest = max(found.values(), key=lambda one: one[-1][0] if one else 0, default=())
    return [step for step in sorted(found) if is_part(step, found[step], newest)]


def is_part(step: int, own: Lineage, history: Lineage) -> bool:
    """Returns whether a checkpoint belongs to a history: it is of it, or lies before where it went back to.

    Args:
      step: of the checkpoint.
      own: the checkpoint's own history.
      history: that it may be part of.
    """
    if history[: len(own)] != own:
        return False
    return len(own) == len(history) or step <= history[len(own)][1]


def goes_on(found: Mapping[int, Lineage], start: int) -> Lineage:
    """Returns the history of a run that goes on from one of its checkpoints: a new one, unless that is the last.

    Args:
      found: the run's checkpoints by step.
      start: step that the run goes on from.

    >>> goes_on({100: (), 200: ()}, 200), goes_on({100: (), 200: ()}, 100)
    ((), ((1, 100),))
    """
    there = live(found)
    own = found.get(start, ())
    if not there or there[-1] == start:
        return own
    return (*own, (1 + max((one[-1][0] for one in found.values() if one), default=0), start))
