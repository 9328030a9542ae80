"""What a search may choose from."""

from __future__ import annotations

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep, Transformer
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from runner.errors import ConfigError


def distribution(override: Override) -> BaseDistribution:
    """Returns what a sweep override stands for: values, a range or an interval; `tag(log, ...)` for log-uniform.

    Args:
      override: as `dataset.batch_size=64,128` or `optimizer.learning_rate=tag(log,interval(1e-4,1e-1))`.

    Raises:
      ConfigError: a range that can't be searched.
    """
    value = override.value()
    try:
        if isinstance(value, IntervalSweep):
            log = "log" in value.tags
            low = value.start
            high = value.end
            assert low is not None
            assert high is not None
            if isinstance(low, int) and isinstance(high, int):
                return IntDistribution(low, high, log=log)
            return FloatDistribution(float(low), float(high), log=log)
        if isinstance(value, RangeSweep):
            numbers = list(override.sweep_iterator())
            if len(numbers) > 1 and all(isinstance(one, int) for one in numbers):
                low, high = sorted((int(str(numbers[0])), int(str(numbers[-1]))))
                return IntDistribution(low, high, step=abs(int(str(numbers[1])) - int(str(numbers[0]))))
        choices = [str(one) for one in override.sweep_iterator(transformer=Transformer.encode)]
        return CategoricalDistribution(choices)
    except (ValueError, AssertionError) as error:
        fix = "write the lower end first, and above 0 for log"
        raise ConfigError(f"{override.input_line}: {error}; {fix}") from error
