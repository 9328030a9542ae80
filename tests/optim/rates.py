"""Custom schedules, as a user writes them."""

from __future__ import annotations


def halving(step: int, every: int) -> float:
    """Returns a factor that halves every so many steps."""
    return 0.5 ** (step // every)


def falling(step: int, total_steps: int, learning_rate: float) -> float:
    """Returns a rate, not a factor, that falls to a half at the end of the run."""
    return learning_rate * (1 - 0.5 * step / total_steps)


def falling_by_keys(
    step: int, decay_steps: float, power: float, warmup_steps: int = 2, final_factor: float = 0.5
) -> float:
    """Has parameters with names of the runner's own keys, two without a default."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = min((step - warmup_steps) / decay_steps, 1.0)
    return final_factor + (1 - final_factor) * (1 - progress) ** power


def negative(step: int) -> float:
    """Returns a negative factor from step 3 on."""
    return 1.0 if step < 3 else -1.0


def broken(step: int) -> float:
    """Raises in step 2."""
    return 1 / (step - 2) ** 2


def positional(count: int) -> float:
    """Has no parameter `step`."""
    return float(count)
