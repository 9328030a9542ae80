"""Goodput: the share of a run's wall time that went into training steps which the run kept.

The wall time of a run is that from the start of its first attempt's process to the end of the last attempt's,
including the time in between, in which nothing ran. Steps that an attempt had done after the checkpoint from which the
next attempt began are lost: they are trained again, and their time counts as lost and not as training.

The advice on the interval of saves is Young's: an interval of sqrt(2 c m) loses the least time, with c the seconds
that a save takes and m the mean seconds between losses (Young 1974, "A first order approximation to the optimum
checkpoint interval").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.checkpoint.attempts import (
    FINISHED,
    Attempt,
)
from runner.host import work

LOST = "lost steps"
RESTART = "restart"
METRIC = "goodput/"

# A tag of a run that was restarted: its attempts, and why each ended.
TAG = "runner.attempts"

# The kinds of a run's wall time, those of `work.KINDS` with the ones that only several attempts have.
KINDS = (work.TRAINING, LOST, RESTART, *work.KINDS[1:])

# Below this share of lost time, another interval of saves would change next to nothing.
_WORTH_ADVICE = 0.05

# A save every few seconds would hardly be what anyone wants, whatever the formula says.
_SHORTEST_MINUTES = 1.0


@dataclass(frozen=True)
class Share:
    """One attempt, or a whole run, by kinds of wall time.

    Attributes:
      seconds: seconds by kind; the kinds of `KINDS`, without those that took no time.
      lost_steps: steps that were trained again later.
    """

    seconds: Mapping[str, float]
    lost_steps: int = 0

    @property
    def wall(self) -> float:
        """Wall time in seconds."""
        return sum(self.seconds.values())

    def share(self, kind: str) -> float:
        """Returns the share of a kind of the wall time, from 0 to 1."""
        if not self.wall:
            return 0.0
        return self.seconds.get(kind, 0.0) / self.wall


@dataclass(frozen=True)
class Goodput:
    """The goodput of a run.

    Attributes:
      attempts: the run's attempts.
      shares: one per attempt; the time before an attempt, in which nothing ran, is that attempt's `restart`.
      whole: the sum of all.
    """

    attempts: Sequence[Attempt]
    shares: Sequence[Share]
    whole: Share

    @property
    def losses(self) -> int:
        """Number of attempts before the last that did not come to the end of the run."""
        return sum(attempt.ended != FINISHED for attempt in self.attempts[:-1])

    def metrics(self) -> dict[str, float]:
        """Returns the shares of the whole run by the names that they are logged under, from 0 to 1."""
        values = {f"{METRIC}{name_of(kind)}": self.whole.share(kind) for kind in KINDS}
        values[f"{METRIC}attempts"] = float(len(self.attempts))
        values[f"{METRIC}repeated_steps"] = float(self.whole.lost_steps)
        return values

    def content(self) -> list[dict[str, object]]:
        """Returns one entry per attempt, as plain values for a file."""
        entries: list[dict[str, object]] = []
        for attempt, share in zip(self.attempts, self.shares, strict=True):
            seconds = {name_of(kind): round(value, 3) for kind, value in share.seconds.items()}
            entries.append(
                {
                    "attempt": attempt.number,
                    "host": attempt.host,
                    "pid": attempt.pid,
                    "first_step": attempt.first,
                    "last_step": attempt.step,
                    "mesh": attempt.mesh,
                    "ended": _ended(self, attempt),
                    "lost_steps": share.lost_steps,
                    "seconds": seconds,
                }
            )
        return entries


# Why an attempt ended that left no reason.
_KILLED = "killed, or lost with its machine"


def _ended(goodput: Goodput, attempt: Attempt) -> str:
    """Returns why an attempt ended; the last one is the one that asks, at the end of its training."""
    if attempt.ended:
        return attempt.ended
    return FINISHED if attempt is goodput.attempts[-1] else _KILLED


def name_of(kind: str) -> str:
    """Returns the name of a kind in metrics and files, such as `input_wait`."""
    return kind.replace(" ", "_")


def of(attempts: Sequence[Attempt]) -> Goodput:
    """Returns the goodput of a run from its attempts, in their order."""
    shares: list[Share] = []
    for position, attempt in enumerate(attempts):
        seconds = dict(attempt.seconds)
        lost_steps = 0
        if position + 1 < len(attempts):
            lost_steps = max(0, attempt.step - attempts[position + 1].first)
        done = attempt.step - attempt.first
        if lost_steps and done > 0:
            # Steps take the same time, so the lost ones took their share of the time of all.
            lost = seconds.get(work.TRAINING, 0.0) * min(1.0, lost_steps / done)
            seconds[work.TRAINING] = seconds.get(work.TRAINING, 0.0) - lost
            seconds[LOST] = lost
        # A run that is trained longer after its end was not interrupted in between.
        if position and attempts[position - 1].ended != FINISHED:
            # Clocks of two machines may differ by more than the time in between.
            seconds[RESTART] = max(0.0, attempt.began - attempts[position - 1].seen)
        shares.append(Share({kind: seconds[kind] for kind in KINDS if seconds.get(kind)}, lost_steps))
    whole: dict[str, float] = {}
    for share in shares:
        for kind, value in share.seconds.items():
            whole[kind] = whole.get(kind, 0.0) + value
    return Goodput(attempts, shares, Share(whole, sum(share.lost_steps for share in shares)))


def line(goodput: Goodput, every_minutes: float | None, save_seconds: float) -> str | None:
    """Returns the line at the end of a run that was restarted; None for a run of one attempt.

    Args:
      goodput: of the run.
      every_minutes: `trainer.checkpoint.every_minutes`.
      save_seconds: mean seconds for which a save keeps training waiting.
    """
    losses = goodput.losses
    if losses < 1:
        return None
    whole = goodput.whole
    lost = whole.share(LOST)
    starts = whole.share(RESTART) + whole.share(work.START) + whole.share(work.COMPILE)
    restarts = "1 restart" if losses == 1 else f"{losses} restarts"
    text = (
        f"goodput: {whole.share(work.TRAINING):.0%} of {whole.wall:,.0f} s went into training steps; {lost:.0%} into "
        f"{whole.lost_steps:,} steps that were lost and trained again, {starts:.0%} into starts, in {restarts}"
    )
    advice = _advised_minutes(goodput, save_seconds)
    if every_minutes is not None and lost > _WORTH_ADVICE and advice < every_minutes:
        text += f"; set trainer.checkpoint.every_minutes={advice:.0f} instead of {every_minutes:g} to lose less"
    return text


def _advised_minutes(goodput: Goodput, save_seconds: float) -> float:
    between_losses = goodput.whole.wall / max(1, goodput.losses)
    seconds = math.sqrt(2.0 * max(save_seconds, 0.0) * between_losses)
    return max(_SHORTEST_MINUTES, math.ceil(seconds / 60.0))


def causes(goodput: Goodput) -> str:
    """Returns the attempts in one text, for a tag of the run."""
    parts: list[str] = []
    has_several_meshes = len({attempt.mesh for attempt in goodput.attempts}) > 1
    for attempt, share in zip(goodput.attempts, goodput.shares, strict=True):
        text = f"{attempt.number}: steps {attempt.first:,} to {attempt.step:,}, {_ended(goodput, attempt)}"
        if has_several_meshes and attempt.mesh:
            text += f", on {attempt.mesh}"
        if share.lost_steps:
            text += f", {share.lost_steps:,} steps lost"
        parts.append(text)
    return "; ".join(parts)
