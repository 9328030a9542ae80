"""Comparison of a run on the mesh with one on a single device. Plain NumPy. docs/how_verify_works.md has the formulas.

A mesh adds the same terms in another order. Training passes the difference on: slightly in most entries, wildly in a
few, so no fixed tolerance is right. The single device is run again, several times, with the noise of
`runner.verify.rounding`. To shuffle the examples of each batch instead would show too little: the many nearly equal
terms of a convolution round alike in any order on one device, and differently in a mesh's partial sums. A small
convnet with batch normalization on four devices was 100 times as far off as one device with shuffled examples.

Entries are compared by rank, because a wrong engine moves most entries, and the few wild ones of a perturbed run don't
hide that. At the points, the size of a whole gradient, and of a step's changes, is compared too, in its own direction:
the noise of many entries cancels there, so a factor of 0.99 shows where each entry alone would hide it.

Of a training from the start, entries in which one device differs from itself by half of the largest are not compared:
what three runs differ by says nothing there about a fourth. In a deep network of kinks and batch statistics the noise
grows until the perturbed runs are not a measure, while the mesh agrees with one device to the fourth digit.
`Check.apart` measures how close such arrays are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from runner.data.base import Array
from runner.layout.paths import is_ema, is_slot, owner_of
from runner.verify import points
from runner.verify.rounding import largest, noise_of

# Each perturbed run takes as long as the single device's own run. Three, with the factor below, make a false mismatch
# of a sound mesh rare.
PERTURBED_RUNS = 3
# Run where nothing but the training from the start fails. A weight may start at a kink that three runs do not cross,
# and the mesh does.
MORE_RUNS = 12
# Kinds of checks of the training from the start, see `Check.kind`.
FROM_THE_START = {"loss", "gradient", points.STEPPED, "parameter", "statistic", "slot", "average"}
# At equal normal noise, the largest of three draws is below a quarter of another draw in 1.1% of the cases for one
# number, and in fewer for an array. The perturbed runs' noise is the larger one, so false alarms are far rarer.
FACTOR = 4.0
# A value is stored with half an ulp, and a step's few operations on one entry add about as much each.
ULPS = 4.0
# Share of its length by which a gradient changes in its own direction if it is drawn again, at least: two draws of n
# entries have little in common, about the root of n in n. The noise changes any other gradient by about itself.
_REDRAWN = 0.5
# Kinds that a training from the start leads to, and how far one device may differ from itself there, as a share of
# the largest new entry. Beyond half of it the training is chaotic, and nothing is compared.
_TRAINED = ("parameter", "statistic", "slot", "average")
_CHAOS = 0.5
# Quantiles of the entries' differences that are compared, by the name that the table shows. A wrong engine moves most
# entries, which `half` and `90%` show. The few entries that rounding throws far off count in `99%` and `all` alone.
RANKS: Mapping[str, float] = {"half": 0.5, "90%": 0.9, "99%": 0.99, "all": 1.0}
# Takes the place of a rank: the size of the whole array.
SIZE = "size"
# Places of the checks in the order of computation, see `Check.step`. A loss of the training has the number of its
# step; the arrays at its end come half a step after the last one.
_BEFORE = 0.0
_FIRST_GRADIENT = 1.5
_POINT_LOSS = 1.55
_POINT_GRADIENT = 1.6
_POINT_EVALUATION = 1.65
_POINT_UPDATE = 1.7
_PADDING = 1.8

Trajectory = Mapping[str, Array]


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


def spread(single: Trajectory, runs: Iterable[Trajectory]) -> dict[str, Array]:
    """Returns the largest differences of perturbed runs, used one at a time, from the single device's run, by key.

    Of losses that is the difference of each step (steps,); of any other array the difference at each rank and the
    relative change of its size (5,).
    """
    widest: dict[str, Array] = {}
    for run in runs:
        for key, value in run.items():
            # A metric that is NaN or Inf on the single device is missing there, and is not compared.
            if key.startswith("initial/") or key not in single:
                continue
            differences = _differences(single, key, value)
            if key in widest:
                differences = np.maximum(widest[key], differences)
            widest[key] = differences
    return widest


def is_loss(key: str) -> bool:
    """Returns whether a key is of losses, one per step, or of an evaluation's loss or metric."""
    if points.is_of_point(key):
        return points.parsed(key)[1] in (points.LOSS, points.EVALUATED)
    return key == "loss" or key.startswith(f"{points.METRIC}/")


def _differences(single: Trajectory, key: str, value: Array) -> Array:
    if is_loss(key):
        return np.asarray(np.abs(value.astype(np.float64) - single[key]))
    growth = relative_growth(value, single[key], movement(single, key))
    return np.append(at_ranks(value, single[key]), abs(growth))


def movement(run: Trajectory, key: str) -> Array:
    """Returns an array less its value before the training or step; of a gradient or slot of a training, all of it."""
    value = run[key].astype(np.float64)
    before: Array | float = 0.0
    if key.startswith("final/"):
        before = run[f"initial/{key.removeprefix('final/')}"].astype(np.float64)
    elif is_ema(key):
        before = run[f"initial/{key.partition('/')[2]}"].astype(np.float64)
    elif points.is_of_point(key):
        number, part, path = points.parsed(key)
        if part == points.END:
            before = run[points.prefix(number, points.START) + path].astype(np.float64)
    return np.asarray(value - before)


def at_ranks(values: Array, reference: Array) -> Array:
    """Returns the largest difference of the closest half, 90%, 99% and all of the entries; NaN counts as infinite."""
    difference = np.abs(values.astype(np.float64) - reference.astype(np.float64)).ravel()
    if not difference.size:
        return np.zeros(len(RANKS))
    difference[np.isnan(difference)] = math.inf
    places = [math.ceil(share * difference.size) - 1 for share in RANKS.values()]
    return np.asarray(np.partition(difference, places)[places])


def relative_growth(values: Array, reference: Array, along: Array) -> float:
    """Returns by what share of `along` values are longer than the reference, in its direction; 0 where it is zero.

    The noise of single entries mostly cancels in this projection, so it shows a gradient that is off by 1%.
    """
    square = float(np.sum(np.square(along)))
    if not square:
        return 0.0
    difference = values.astype(np.float64) - reference.astype(np.float64)
    return float(np.sum(difference * along)) / square


def compare(
    reference: Trajectory, spread: Trajectory, mesh: Trajectory, noise: float, sums: float = 0.0, storage: float = 0.0
) -> list[Check]:
    """Compares every array of a run.

    Args:
      reference: `initial/<path>`, `loss` (steps,), `gradient/<path>` of the first step, `final/<path>`, and
        `optimizer/<slot>/<path>` and `ema/<path>` of a run on one device; of each point what `runner.verify.points`
        lists.
      spread: by key, differences of perturbed runs from that, see `spread`.
      mesh: the same arrays of the run on the mesh.
      noise: relative, of the perturbed runs.
      sums: noise of gradients that no matrix product adds up, where that is larger.
      storage: of trained weights and slots, see `runner.verify.rounding.storage_rounding`.

    Returns:
      One check per array, in the order of `reference`.

    Raises:
      ValueError: the runs don't have the same arrays of the same shapes.
    """
    different = sorted(key for key in set(reference) ^ set(mesh) if not points.is_of_one_side(key))
    if different:
        raise ValueError(f"one device and the mesh do not have the same arrays: {', '.join(different[:5])}")
    keys = [key for key in reference if not points.is_of_one_side(key)]
    for key in keys:
        shapes = list(reference[key].shape), list(mesh[key].shape)
        if shapes[0] != shapes[1]:
            raise ValueError(f"{key} has shape {shapes[0]} on one device and {shapes[1]} on the mesh")
    checks = []
    # The initial weights are drawn from the seed, each as one full array: they are bitwise identical.
    for key in keys:
        if key.startswith("initial/"):
            variable = key.removeprefix("initial/")
            checks.append(identical("initial", key, variable, _BEFORE, reference[key], mesh[key]))
    comparison = _Comparison(reference, spread, mesh, noise, sums, storage)
    checks += [comparison.check(key) for key in keys if not key.startswith("initial/")]
    for key, value in mesh.items():
        if key.startswith(points.PADDING):
            path = key.removeprefix(points.PADDING)
            first_end = points.prefix(min(points.numbers(mesh)), points.END)
            checks.append(identical("padding", key, owner_of(path), _PADDING, mesh[first_end + path], value))
    return checks


def identical(kind: str, name: str, variable: str, step: float, expected: Array, actual: Array) -> Check:
    """Returns the check of an array that must be bitwise identical."""
    worst = largest(actual.astype(np.float64) - expected.astype(np.float64))
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


@dataclass(frozen=True)
class _Comparison:
    """The arguments of `compare`, and the check of each array of the training from the start and of the points."""

    reference: Trajectory
    spread: Trajectory
    mesh: Trajectory
    noise: float
    sums: float
    storage: float

    def check(self, key: str) -> Check:
        """Compares one array of the training from the start, or of a point."""
        end = len(self.reference["loss"]) + 0.5
        group, _, path = key.partition("/")
        if key == "loss" or group == points.METRIC:
            return self._loss(key)
        if group in ("gradient", points.STEPPED):
            return self._ranked(key, group, path, _FIRST_GRADIENT)
        if points.is_of_point(key):
            return self._at_point(key)
        if is_slot(key):
            return self._ranked(key, "slot", owner_of(key), end, storage=self.storage)
        if is_ema(key):
            return self._ranked(key, "average", path, end)
        if self._is_trained(path):
            return replace(self._ranked(key, "parameter", path, end, storage=self.storage), name=path)
        return replace(self._ranked(key, "statistic", path, end, self.noise), name=path)

    def _is_trained(self, path: str) -> bool:
        return f"gradient/{path}" in self.reference or f"{points.STEPPED}/{path}" in self.reference

    def _at_point(self, key: str) -> Check:
        """Compares an array of a point: a loss, a metric, a gradient, or the state after one step from there."""
        point, part, path = points.parsed(key)
        if part == points.EVALUATED:
            return replace(self._loss(key), kind="evaluation", rank="all", step=_POINT_EVALUATION)
        if part == points.LOSS:
            return replace(self._loss(key), kind="point", rank="all", step=_POINT_LOSS)
        owner = owner_of(path)
        own_noise = noise_of(owner, self.noise, self.sums)
        if part == points.GRADIENT:
            # Noise as small as rounding draws again what rounding leaves of terms that cancel, and hardly moves any
            # other gradient. A gradient of exactly 0 does not count: none arrives then, and whether one would be right
            # is not shown.
            tiny = points.prefix(point, points.TINY) + path
            is_zero = False
            if tiny in self.spread:
                *_, growth = self.spread[tiny]
                is_zero = bool(growth > _REDRAWN)
            # What rounding leaves of terms that cancel has no direction in which another remainder could be longer:
            # the share of one in the other is a quotient of two draws, of which three runs show little. Its entries
            # count.
            size_noise = None if is_zero else own_noise
            check = self._ranked(key, "point", owner, _POINT_GRADIENT, size_noise=size_noise)
            return replace(check, zero=check.passed and is_zero)
        if self._is_trained(owner):
            # Moving averages of weights are stored in float32 whatever `engine.state` is.
            storage = 0.0 if is_ema(path) else self.storage
            return self._ranked(key, "update", owner, _POINT_UPDATE, size_noise=own_noise, storage=storage)
        return self._ranked(key, "update", owner, _POINT_UPDATE, self.noise, size_noise=self.noise)

    def _loss(self, key: str) -> Check:
        """Compares losses or values of a metric, one number per step.

        One number has no ranks, so the tolerance of a step is the perturbed runs' largest difference of all steps so
        far.
        """
        expected = self.reference[key]
        difference = np.abs(self.mesh[key].astype(np.float64) - expected)
        spread = np.maximum.accumulate(self.spread[key])
        # A loss near 0 is a mean of examples' losses that need not be near 0, so it errs by ulps of 1 at least.
        floor = ULPS * float(np.finfo(np.float32).eps) * np.maximum(np.abs(expected), 1.0)
        tolerance = FACTOR * spread + floor
        ratios = _ratios(difference, tolerance)
        worst = int(np.argmax(ratios))
        failed = np.flatnonzero(~(ratios <= 1.0))
        first = int(failed[0]) if len(failed) else worst
        return Check(
            kind="loss",
            name=key,
            variable="",
            step=first + 1,
            scale=largest(expected),
            rank=f"step {worst + 1}",
            difference=float(difference[worst]),
            tolerance=float(tolerance[worst]),
            ratio=float(ratios[worst]),
            spread=float(spread[worst]),
            resolution=_over(float(tolerance[0]), abs(float(expected[0]))),
        )

    def _ranked(
        self,
        key: str,
        kind: str,
        variable: str,
        step: float,
        sums: float = 0.0,
        size_noise: float | None = None,
        storage: float = 0.0,
    ) -> Check:
        """Compares by rank and, with `size_noise`, by the size of the whole array.

        The tolerance at a rank is four times the spread there, a few ulps of the largest entry, and `sums` and
        `storage`.

        Args:
          key: of the array.
          kind: of the check.
          variable: that the array belongs to.
          step: place in the order of computation.
          sums: relative noise of an array that is itself a sum over the batch.
          size_noise: relative noise that all entries may have in common; None: the size is not compared. An array that
            has not moved, such as a frozen weight, has no size.
          storage: relative difference of each entry because both sides round what they store. Ranked, such differences
            are at most the ranked entries times that. In the size of the whole array they add up at random.
        """
        expected = self.reference[key]
        actual = self.mesh[key]
        # Both sides began with the reference's values: movements are measured from them.
        moved = movement(self.reference, key)
        *spread_at_ranks, spread_of_size = self.spread[key]
        largest_move = largest(moved)
        scale = largest_move or largest(expected)
        length = _length(moved)
        epsilon = _epsilon(expected)
        ulps = ULPS * epsilon * largest(expected)

        spread = np.asarray(spread_at_ranks)
        difference = at_ranks(actual, expected)
        entry_sizes = at_ranks(expected, np.zeros_like(expected))
        tolerance = FACTOR * spread + ulps + sums * largest_move + storage * entry_sizes
        # What a relative error of the whole array would change at each rank.
        moves = at_ranks(moved, np.zeros_like(moved))

        if size_noise is not None and largest_move:
            size_tolerance = size_noise + _over(ulps, length) + ULPS * epsilon
            size_tolerance += storage * _over(_length(expected * (moved / length)), length)
            growth = relative_growth(actual, expected, moved)
            # The size is relative: in units of the scale it is printed and compared like an entry's difference.
            difference = np.append(difference, abs(growth) * scale)
            spread = np.append(spread, spread_of_size * scale)
            tolerance = np.append(tolerance, (FACTOR * spread_of_size + size_tolerance + sums) * scale)
            moves = np.append(moves, scale)

        ratios = _ratios(difference, tolerance)
        if kind in _TRAINED and largest_move:
            is_chaotic = np.isfinite(difference + spread) & (spread >= _CHAOS * largest_move)
            ratios[is_chaotic] = 0.0
        worst = int(np.argmax(ratios))
        apart = math.inf
        if length:
            apart = _length(actual.astype(np.float64) - expected) / length
        return Check(
            kind=kind,
            name=key,
            variable=variable,
            step=step,
            scale=scale,
            rank=[*RANKS, SIZE][worst],
            difference=float(difference[worst]),
            tolerance=float(tolerance[worst]),
            ratio=float(ratios[worst]),
            spread=float(spread[worst]),
            resolution=_resolution(moves, tolerance + spread),
            apart=apart,
        )


def _resolution(sizes: Array, hidden: Array) -> float:
    """Returns the smallest relative error that some rank detects: what may hide there over the size of what is
    compared.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        detected = np.where(sizes > 0, hidden / sizes, math.inf)
    return float(np.min(np.where(np.isfinite(detected), detected, math.inf), initial=math.inf))


def _length(values: Array) -> float:
    return math.sqrt(float(np.sum(np.square(values.astype(np.float64)))))


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
