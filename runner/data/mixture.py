"""A split whose examples are those of several datasets, in given proportions.

Which part and which example a position of an epoch takes is a function of the seed and of the position alone. So a
resumed run, another mesh and another number of processes see the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runner.data.base import Rows
from runner.data.sampler import Draw, order_of
from runner.data.selection import Selection
from runner.errors import invalid

# In the third place of the entropy of a part's order. The orders of whole splits have none there, and the draws of
# held-out examples have 1 and 2; see `runner.data.selection`.
_PART_STREAM = 3
# With fewer examples per epoch, rounding could leave an epoch without any, or with a negative number.
_FEWEST = 2


@dataclass(frozen=True, eq=False)
class Mixture(Selection):
    """The train split of a mixture.

    An epoch has as many examples as all parts together. A part with the share w of the weights has w of them. They are
    rounded so that the errors do not add up over epochs. The parts are spread evenly: the first m positions of an
    epoch have m * w examples of a part, with an error of at most 2 + w times the number of parts.

    Each part goes through its examples in an order of its own, which continues from one epoch to the next. An example
    is repeated only after all others of its part were seen.

    Attributes:
      weights: of the pieces, each of which is one part.
    """

    weights: Sequence[float] = ()

    def epoch_order(self, draw: Draw) -> Rows:
        """Returns int64 (size,), the row of each position."""
        rng = draw.generator()
        rows = []
        places = []
        start = 0
        for part, (source, source_rows) in enumerate(self.pieces):
            first, stop = (self._examples_before(part, draw.epoch + later) for later in (0, 1))
            rows.append(start + self._rows_of_part(part, draw, first, stop))
            offset = rng.random() if draw.shuffle else 0.5
            # Evenly spaced over the epoch, from a random start.
            places.append((np.arange(stop - first) + offset) / (stop - first))
            assert source.size == len(source_rows), "a part is a whole source"
            start += source.size
        # Stable, so that equal places have one order on every machine.
        return np.concatenate(rows)[np.argsort(np.concatenate(places), kind="stable")]

    def _examples_before(self, part: int, epoch: int) -> int:
        """Returns how many examples of a part all epochs before one have.

        It is the difference of two rounded numbers, one for the parts up to this one and one for those before, so that
        the parts add up exactly to the positions.
        """
        positions = epoch * self.size
        total = math.fsum(self.weights)

        def rounded(parts: int) -> int:
            if parts == len(self.weights):
                return positions
            return math.floor(math.fsum(self.weights[:parts]) / total * positions + 0.5)

        return rounded(part + 1) - rounded(part)

    def _rows_of_part(self, part: int, draw: Draw, first: int, stop: int) -> Rows:
        """Returns the rows of a part's examples `first` to `stop`, counted over all epochs."""
        source, _ = self.pieces[part]
        rows = []
        while first < stop:
            # A pass sees every example of the part once.
            number, done = divmod(first, source.size)
            order = order_of(source, Draw(draw.seed, number, draw.shuffle, (_PART_STREAM, part)))
            taken = order[done : done + stop - first]
            rows.append(taken)
            first += len(taken)
        return np.concatenate(rows)

    def check(self, keys: Sequence[str]) -> None:
        """Checks that every part has examples in every epoch.

        Args:
          keys: of the parts.

        Raises:
          ConfigError: a weight is too small.
        """
        total = math.fsum(self.weights)
        for key, weight in zip(keys, self.weights, strict=True):
            if weight / total * self.size < _FEWEST:
                least = _FEWEST / self.size * total
                raise invalid(
                    f"{key}.weight",
                    weight,
                    problem=f"gives the part fewer than {_FEWEST} of the {self.size:,} examples of an epoch",
                    fix=f"set weight: {least:.2g} or more, or remove the part",
                )
