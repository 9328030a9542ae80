"""Custom schedules, as a user writes them."""

from __future__ import annotations


def halving(step: int, every: int) -> float:
    """Returns a factor that halves every so many steps."""
    return 0.5 ** (step // every)


def falling(step: int, total_steps: int, learning_rate: float) -> float:
    """Returns a rate, not a factor, that falls to a half at the end of the run."""
    return learning_rate * (1 - 0.5 * step / total_steps)


def negative(step: int) -> float:
    """Returns a negative factor from step 3 on."""
    return 1.0 if step < 3 else -1.0


def broken(step: int) -> float:
    """Raises in step 2."""
    return 1 / (step - 2) ** 2


def positional(count: int) -> float:
    """Has no parameter `step`."""
    return float(count)
