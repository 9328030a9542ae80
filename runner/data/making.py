"""Makes a few examples, in whichever thread or process this runs."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.errors import ConfigError, DataError
from runner.data.augment import Augmented, name_of
from runner.data.base import Array, Rows


def make(source: Augmented, epoch: int, rows: Rows, made: Mapping[str, Array]) -> None:
    """Writes examples into arrays (len(rows), *shape) by name.

    Raises:
      DataError: one can't be made; names it.
    """
    for place, row in enumerate(rows):
        try:
            arrays = source.example(int(row), epoch)
        except (ConfigError, DataError):
            raise
        except Exception as error:  # whatever a user's code raises
            why = " ".join(f"{type(error).__name__}: {error}".split())
            raise DataError(f"{name_of(source, int(row))} can't be made ({why})") from error
        for name, array in arrays.items():
            made[name][place] = array
