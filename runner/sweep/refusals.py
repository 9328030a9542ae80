"""The words of refusals that a grid and a search share."""

from __future__ import annotations

from hydra.core.override_parser.types import Override

from runner.config.errors import ConfigError


def interval_refused(one: Override) -> ConfigError:
    """Words an interval where values are wanted."""
    mend = "choose hydra/sweeper=optuna, or name the values"
    return ConfigError(f"{one.input_line} is refused: a grid needs values, not an interval; {mend}")


def nothing_to_search() -> ConfigError:
    """Words a search without a space."""
    return ConfigError(
        "hydra/sweeper=optuna is refused: nothing to search over; "
        "write 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))' or dataset.batch_size=64,128"
    )
