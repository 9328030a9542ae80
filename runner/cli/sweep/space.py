"""The search space: what a sweep override means to Optuna."""

from __future__ import annotations

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep, Transformer
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from runner.errors import ConfigError


def distribution(override: Override) -> BaseDistribution:
    """Returns the distribution of a sweep override: values, a range or an interval; `tag(log, ...)` for log-uniform.

    Args:
      override: as `dataset.batch_size=64,128` or `optimizer.learning_rate=tag(log,interval(1e-4,1e-1))`.

    Raises:
      ConfigError: Optuna can't search the range.
    """
    value = override.value()
    try:
        if isinstance(value, IntervalSweep):
            return _of_interval(value)
        if isinstance(value, RangeSweep):
            # A range of integers is searched as one. A range of fractions is a choice among its values, as they are
            # typed.
            numbers: list[int] = []
            is_of_integers = True
            for number in override.sweep_iterator():
                if isinstance(number, int):
                    numbers.append(number)
                else:
                    is_of_integers = False
            if len(numbers) > 1 and is_of_integers:
                return _of_integers(numbers)
        return CategoricalDistribution(list(map(str, override.sweep_iterator(transformer=Transformer.encode))))
    except (ValueError, AssertionError) as error:
        problem = f"can't be searched ({str(error).rstrip('.')})"
        fix = "write the lower end first, and above 0 for log"
        raise ConfigError(f"{override.input_line}: {problem}; {fix}") from error


def _of_interval(interval: IntervalSweep) -> BaseDistribution:
    log = "log" in interval.tags
    low = interval.start
    high = interval.end
    assert low is not None
    assert high is not None
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)


def _of_integers(numbers: list[int]) -> IntDistribution:
    """Returns the distribution of a range of integers, which may count down."""
    low, high = sorted((numbers[0], numbers[-1]))
    return IntDistribution(low, high, step=abs(numbers[1] - numbers[0]))
