"""Comparison of a run on the mesh with one on a single device. docs/how_verify_works.md has the formulas.

A mesh adds the same terms in another order. Training passes the difference on: slightly in most entries, wildly in a
few, so no fixed tolerance is right. The single device is run again, several times, with the noise of
`meshproof.rounding`. To shuffle the examples of each batch instead would show too little: the many nearly equal
terms of a convolution round alike in any order on one device, and differently in a mesh's partial sums. A small
convnet with batch normalization on four devices was 100 times as far off as one device with shuffled examples.

Entries are compared by rank, because a wrong engine moves most entries, and the few wild ones of a perturbed run don't
hide that. At the points, the size of a whole gradient, and of a step's changes, is compared too, in its own direction:
the noise of many entries cancels there, so a factor of 0.99 shows where each entry alone would hide it.

Of a training from the start, entries in which one device differs from itself by half of the largest are not compared:
what three runs differ by says nothing there about a fourth. Nor is an array that differs by half of itself at each
rank, such as Adam's slots of a bias before a batch normalization, whose gradient is a remainder. In a deep network of
kinks and batch statistics the noise grows until the perturbed runs are not a measure, while the mesh agrees with one
device to the fourth digit.
`Check.apart` measures how close such arrays are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from .rounding import Array, Rounding, inner, largest

# Seeds of the perturbed runs. Each takes as long as the single device's own run. Three, with the factor below, make a
# false mismatch of a sound mesh rare.
SEEDS = range(1, 4)
# Of those where nothing but the training from the start fails. A weight may start at a kink that three runs do not
# cross, and the mesh does.
MORE_SEEDS = range(4, 16)
# At equal normal noise, the largest of three draws is below a quarter of another draw in 1.1% of the cases for one
# number, and in fewer for an array. The perturbed runs' noise is the larger one, so false alarms are far rarer.
FACTOR = 4.0
# A value is stored with half an ulp, and a step's few operations on one entry add about as much each.
ULPS = 4.0
# Share of its length by which a gradient moves if it is drawn again, at least. Two draws of many entries are the root
# of 2 apart, of a few entries that keep some of their rounding less. Noise moves any other gradient by about itself.
_REDRAWN = 0.5
# Kinds that a training from the start leads to, and how far one device may differ from itself there, as a share of
# the largest new entry. Beyond half of it the training is chaotic, and nothing is compared.
_TRAINED = ("parameter", "statistic", "slot", "average")
_CHAOS = 0.5
# Kinds whose size is compared too.
_SIZED = ("point", "update")
# Kinds of checks of the training from the start, see `Check.kind`.
FROM_THE_START = {"loss", "gradient", "stepped", *_TRAINED}
# Quantiles of the entries' differences that are compared, by the name that the table shows. A wrong engine moves most
# entries, which `half` and `90%` show. The few entries that rounding throws far off count in `99%` and `all` alone.
RANKS: Mapping[str, float] = {"half": 0.5, "90%": 0.9, "99%": 0.99, "all": 1.0}
# Takes the place of a rank: the size of the whole array.
SIZE = "size"
Trajectory = Mapping[str, Array]


@dataclass(frozen=True)
class Entry:
    """What one array of a run is.

    Attributes:
      kind: see `Check`; `tiny`: gradients that may be no more than what rounding leaves of terms that cancel.
      variable: path of the variable that it belongs to; empty: none.
      step: place in the order of computation.
      before: key of the value before the training or step, from which its movement is measured; empty: there is none.
      is_stored: whether it is of weights or slots, stored in the dtype of the state.
      is_sum: whether it is a sum over the batch that no gradient changes, such as a moving statistic.
      one_sided: whether one side alone makes it, so that it has no counterpart on the other.
      exact: key of the array that it must be bit for bit; empty: it is compared within a tolerance.
      tiny: key of the spread that shows whether a gradient is a remainder; empty: it can't be.
    """

    kind: str
    variable: str
    step: float
    before: str = ""
    is_stored: bool = False
    is_sum: bool = False
    one_sided: bool = False
    exact: str = ""
    tiny: str = ""

    @property
    def is_loss(self) -> bool:
        """Whether it has losses or metrics, one number per step."""
        return self.kind in ("loss", "evaluation") or (self.kind == "point" and not self.variable)


Describe = Callable[[str], Entry]


@dataclass(frozen=True)
class Check:
    """Comparison of one array of the mesh's run with the single device's.

    Attributes:
      kind: `initial`, `loss`, `gradient`, `parameter`, `average`, `statistic` or `slot` of a training from the start;
        `stepped`, what the first step changes, of a custom step in place of `gradient`;
        `point`, a gradient at randomly perturbed weights; `evaluation`, the loss or a metric of an evaluation there;
        `update`, the state after one step from there; `padding`, the same with other padding in the batch.
      name: such as `gradient/d1/kernel`, `optimizer/m/d1/kernel`, `d1/kernel`, `loss`, `point0/gradient/d1/kernel`.
      variable: canonical path; of the loss, empty.
      step: place in the order of computation: the step after which the two differ first, or are compared; 0: before
        any. The points count as between the first two steps.
      scale: largest entry of what is compared; of a parameter or statistic, of its movement since the start.
      rank: the rank with the largest ratio; `size`: the size of the whole array.
      difference: at that rank.
      tolerance: at that rank.
      ratio: difference over tolerance; above 1 the check fails.
      spread: difference of one device from itself at that rank, under noise.
      resolution: smallest relative error of the whole array (of a parameter or statistic: of its movement) that the
        check detects; infinite where it detects none.
      zero: whether a gradient at a point is zero up to rounding: what remains of terms that cancel.
      apart: length of the difference over that of the array's movement, which bounds the error of its size and
        direction; infinite where nothing moved.
    """

    kind: str
    name: str
    variable: str
    step: float
    scale: float
    rank: str
    difference: float
    tolerance: float
    ratio: float
    spread: float
    resolution: float
    zero: bool = False
    apart: float = math.inf

    @property
    def passed(self) -> bool:
        """Whether the difference is within its tolerance; a NaN never is."""
        return self.ratio <= 1.0

    @property
    def relative(self) -> float:
        """The difference over the scale."""
        return _over(self.difference, self.scale)


def spread(
    single: Trajectory, runs: Iterable[Trajectory], describe: Describe, earlier: Trajectory | None = None
) -> dict[str, Array]:
    """Returns the largest differences of perturbed runs, used one at a time, from the single device's run, by key.

    Of losses that is the difference of each step (steps,); of any other array the difference at each rank and the
    relative change of its size (5,). `earlier` is the spread of other runs, which count too.
    """
    widest = dict(earlier or {})
    for run in runs:
        for key, value in run.items():
            entry = describe(key)
            # A metric that is NaN or Inf on the single device is missing there, and is not compared. Nor is what one
            # side alone makes, such as the points.
            if key not in single or entry.exact or (entry.one_sided and entry.kind != "tiny"):
                continue
            differences = _differences(single, key, value, entry)
            if key in widest:
                differences = np.maximum(widest[key], differences)
            widest[key] = differences
    return widest


def _differences(single: Trajectory, key: str, value: Array, entry: Entry) -> Array:
    expected = single[key]
    if entry.is_loss:
        return np.asarray(np.abs(value.astype(np.float64) - expected))
    difference = less(value, expected)
    growth = 0.0
    if entry.kind in _SIZED:
        growth = relative_growth(difference, _movement(single, key, entry))
    if entry.kind == "tiny":
        # It may have no direction in which another one could be longer.
        growth = _over(_length(difference), _length(expected))
    return np.append(at_ranks(difference), abs(growth))


def _movement(run: Trajectory, key: str, entry: Entry) -> Array:
    """Returns an array less its value before the training or step; of a gradient or slot of a training, all of it."""
    if entry.before:
        return less(run[key], run[entry.before])
    return run[key]


def less(values: Array, others: Array) -> Array:
    """Subtracts: numbers that are near in float32 without an error, and any others with half an ulp of the result."""
    return np.asarray(np.subtract(values, others, dtype=np.result_type(values, others, np.float32)))


def at_ranks(values: Array) -> Array:
    """Returns the largest magnitude of the smallest half, 90%, 99% and all of the entries; NaN counts as infinite."""
    # NumPy sorts faster than it selects where many entries are equal, as zeros behind a ReLU. NaN is last.
    ordered = np.abs(values.astype(np.result_type(values, np.float32), copy=False)).ravel()
    if not ordered.size:
        return np.zeros(len(RANKS))
    ordered.sort()
    places = [math.ceil(share * ordered.size) - 1 for share in RANKS.values()]
    found: Array = ordered[places].astype(np.float64)
    found[np.isnan(found)] = math.inf
    return found


def relative_growth(difference: Array, along: Array) -> float:
    """Returns by what share of `along` a difference makes it longer, in its direction; 0 where it is zero.

    The noise of single entries mostly cancels in this projection, so it shows a gradient that is off by 1%.
    """
    return _over(inner(difference, along), inner(along, along))


def compare(
    reference: Trajectory, spread: Trajectory, mesh: Trajectory, rounding: Rounding, describe: Describe
) -> list[Check]:
    """Compares every array of a run.

    Args:
      reference: arrays of a run on one device by key.
      spread: by key, differences of perturbed runs from that, see `spread`.
      mesh: the same arrays of the run on the mesh.
      rounding: of the perturbed runs.
      describe: returns what the array of a key is.

    Returns:
      One check per array, in the order of `reference`.

    Raises:
      ValueError: the runs don't have the same arrays of the same shapes.
    """
    different = sorted(key for key in set(reference) ^ set(mesh) if not describe(key).one_sided)
    if different:
        raise ValueError(f"one device and the mesh do not have the same arrays: {', '.join(different[:5])}")
    checks = []
    for key, expected in reference.items():
        entry = describe(key)
        if entry.one_sided:
            continue
        shapes = list(expected.shape), list(mesh[key].shape)
        if shapes[0] != shapes[1]:
            raise ValueError(f"{key} has shape {shapes[0]} on one device and {shapes[1]} on the mesh")
        if entry.exact:
            checks.append(identical(entry.kind, key, entry.variable, entry.step, expected, mesh[key]))
        elif entry.is_loss:
            checks.append(_compared_losses(key, entry, expected, mesh[key], spread[key]))
        else:
            checks.append(_compared(key, entry, reference, spread, mesh[key], rounding))
    for key, value in mesh.items():
        entry = describe(key)
        if entry.one_sided and entry.exact:
            checks.append(identical(entry.kind, key, entry.variable, entry.step, mesh[entry.exact], value))
    return checks


def identical(kind: str, name: str, variable: str, step: float, expected: Array, actual: Array) -> Check:
    """Returns the check of an array that must be bitwise identical."""
    worst = largest(less(actual, expected))
    return Check(
        kind=kind,
        name=name,
        variable=variable,
        step=step,
        scale=largest(expected),
        rank="all",
        difference=worst,
        tolerance=0.0,
        ratio=0.0 if worst == 0 else math.inf,
        spread=0.0,
        resolution=0.0,
    )


def _compared_losses(key: str, entry: Entry, expected: Array, actual: Array, spread: Array) -> Check:
    """Compares losses or values of a metric, one number per step.

    One number has no ranks, so the tolerance of a step is the perturbed runs' largest difference of all steps so far.
    """
    difference = np.abs(actual.astype(np.float64) - expected)
    spread = np.maximum.accumulate(spread)
    # A loss near 0 is a mean of examples' losses that need not be near 0, so it errs by ulps of 1 at least.
    floor = ULPS * float(np.finfo(np.float32).eps) * np.maximum(np.abs(expected), 1.0)
    tolerance = FACTOR * spread + floor
    ratios = _ratios(difference, tolerance)
    worst = int(np.argmax(ratios))
    step = entry.step
    rank = "all"
    if entry.kind == "loss":
        failed = np.flatnonzero(~(ratios <= 1.0))
        step = float(failed[0] if len(failed) else worst) + 1
        rank = f"step {worst + 1}"
    return Check(
        kind=entry.kind,
        name=key,
        variable=entry.variable,
        step=step,
        scale=largest(expected),
        rank=rank,
        difference=float(difference[worst]),
        tolerance=float(tolerance[worst]),
        ratio=float(ratios[worst]),
        spread=float(spread[worst]),
        resolution=_over(float(tolerance[0]), abs(float(expected[0]))),
    )


def _compared(
    key: str, entry: Entry, reference: Trajectory, spread: Trajectory, actual: Array, rounding: Rounding
) -> Check:
    """Compares an array by rank and, at a point, by the size of the whole array.

    The tolerance at a rank is four times the spread there, a few ulps of the largest entry, and what follows.
    """
    is_zero = _is_remainder(entry.tiny, spread)
    sums = 0.0
    # Relative noise that all entries may have in common.
    size_noise = rounding.of_gradient(entry.variable)
    # Relative difference of each entry because both sides round what they store. Ranked, such differences are at most
    # the ranked entries times that. In the size of the whole array they add up at random.
    storage = 0.0
    if entry.is_sum:
        sums = size_noise = rounding.noise
    elif entry.is_stored:
        storage = rounding.storage

    expected = reference[key]
    # Both sides began with the reference's values: movements are measured from them.
    moved = _movement(reference, key, entry)
    off = less(actual, expected)
    *spread_at_ranks, spread_of_size = spread[key]
    # What a relative error of the whole array would change at each rank.
    moves = at_ranks(moved)
    largest_move = float(moves[-1])
    largest_entry = largest(expected)
    scale = largest_move or largest_entry
    length = _length(moved)
    epsilon = _epsilon(expected)
    ulps = ULPS * epsilon * largest_entry

    difference = at_ranks(off)
    spreads = np.asarray(spread_at_ranks)
    tolerance = FACTOR * spreads + ulps + sums * largest_move
    if storage:
        tolerance = tolerance + storage * at_ranks(expected)

    # What rounding leaves of terms that cancel has no direction in which another remainder could be longer: the share
    # of one in the other is a quotient of two draws, of which three runs show little. Its entries count. An array that
    # has not moved, such as a frozen weight, has no size.
    if entry.kind in _SIZED and not is_zero and largest_move:
        size_tolerance = size_noise + _over(ulps, length) + ULPS * epsilon
        if storage:
            size_tolerance += storage * _over(_length(expected * (moved / length)), length)
        # The size is relative: in units of the scale it is printed and compared like an entry's difference.
        difference = np.append(difference, abs(relative_growth(off, moved)) * scale)
        spreads = np.append(spreads, spread_of_size * scale)
        tolerance = np.append(tolerance, (FACTOR * spread_of_size + size_tolerance + sums) * scale)
        moves = np.append(moves, scale)

    ratios = _ratios(difference, tolerance)
    is_finite = np.isfinite(difference + spreads)
    if entry.kind in _TRAINED and largest_move:
        ratios[is_finite & (spreads >= _CHAOS * largest_move)] = 0.0
    if entry.kind in (*_TRAINED, "stepped") and largest_move and np.all(spreads >= _CHAOS * moves):
        # The noise draws all of it again. The square of such a remainder, as a slot has it, is several times as large
        # in another draw.
        ratios[is_finite] = 0.0
    worst = int(np.argmax(ratios))
    apart = math.inf
    if length:
        apart = _length(off) / length
    return Check(
        kind=entry.kind,
        name=key.removeprefix("final/"),
        variable=entry.variable,
        step=entry.step,
        scale=scale,
        rank=[*RANKS, SIZE][worst],
        difference=float(difference[worst]),
        tolerance=float(tolerance[worst]),
        ratio=float(ratios[worst]),
        spread=float(spreads[worst]),
        resolution=_resolution(moves, tolerance + spreads),
        zero=is_zero and bool(ratios[worst] <= 1.0),
        apart=apart,
    )


def _is_remainder(tiny: str, spread: Trajectory) -> bool:
    """Returns whether a gradient at a point is no more than what rounding leaves of terms that cancel.

    Noise as small as rounding draws such a remainder again, and hardly moves any other gradient. A gradient of exactly
    0 does not count: none arrives then, and whether one would be right is not shown.
    """
    if tiny not in spread:
        return False
    *_, moved = spread[tiny]
    return bool(moved > _REDRAWN)


def _resolution(sizes: Array, hidden: Array) -> float:
    """Returns the smallest relative error that some rank detects: what may hide there over the size of what is
    compared.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        detected = np.where(sizes > 0, hidden / sizes, math.inf)
    return float(np.min(np.where(np.isfinite(detected), detected, math.inf), initial=math.inf))


def _length(values: Array) -> float:
    return math.sqrt(inner(values, values))


def _epsilon(array: Array) -> float:
    """Returns the distance of 1 to the next number; 0 of integers, which are exact."""
    return float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0


def _ratios(difference: Array, tolerance: Array) -> Array:
    """Divides; 0 over 0 is 0, and anything with NaN or Inf on either side is infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(difference == 0, 0.0, difference / tolerance)
    return np.where(np.isfinite(difference) & np.isfinite(tolerance), ratios, math.inf)


def _over(value: float, scale: float) -> float:
    if scale:
        return value / scale
    return 0.0 if value == 0 else math.inf
