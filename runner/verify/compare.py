"""Compares a run on the mesh with one on a single device. Plain NumPy.

Where the tolerances come from. A mesh adds the same terms in another order, so its float32 sums differ in their last
bits, and training passes that on: slightly in most entries, wildly in a few (Adam moves an entry whose gradient is
nothing but rounding by the whole learning rate, in either direction; at a ReLU's kink the last bit decides whether an
example counts). No fixed number is right for both. So the single device is run again, several times: these *perturbed
runs* take each step's gradients where everything is a little off, by random relative noise:

- every weight, which is what another order of a layer's sums amounts to: the product that is computed is the exact one
  of slightly other factors;
- every example's share of the loss, and every gradient: what another order of the sums over a batch does where
  their terms differ in sign, and where they don't;
- a gradient that is smaller than the noise beside the others of its layer is drawn again: its terms cancel and leave
  their last bits.

The noise is what rounding can do to the longest sum, see `noise`. That is mostly ten times what it does and more, so
what rounding does rarely on the mesh, the perturbed runs do often. To shuffle the examples of each batch instead would
say too little: the many nearly equal terms of a convolution round alike in any order on one device, and otherwise in a
mesh's partial sums (a small convnet with batch normalization on four devices: 100 times as far off as on one,
shuffled).

A weight or slot that is kept in bfloat16 is rounded on either side, by half an ulp of itself: by as much its entries
may differ besides.

An entry of the mesh's run may then differ by a small multiple of what the perturbed runs differ by; of a batch
statistic, which is itself a sum over the batch, by the noise besides. Entries are compared by rank: half of a
variable's entries, 90%, 99% and all of them must lie as close as that share of them does in the perturbed runs. A
wrong engine moves most entries, and the few wild ones of a perturbed run don't hide that.

At the generic points of `runner.verify.points` the size of a whole gradient, and of what a step moves, is compared
besides: by how much the array is longer or shorter in its own direction. The noise of many entries cancels there, so a
factor of 0.99 shows where each entry alone would hide it. Each check says what it proves, see `Check.resolution`.

Of a training from the start, entries in which one device differs from itself by half of the largest are not compared:
what three runs differ by says nothing there of what a fourth does. The points are compared one step at a time.

In a deep network of kinks and batch statistics the noise grows until the perturbed runs are no measure: one device may
differ from itself by half of a gradient under a noise that is far above its rounding, while the mesh gives it to the
fourth place. What such an array proves is told by itself, see `Check.apart`.

Two engines on one mesh are held against each other by the same tolerances: each adds the terms in an order of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from runner.data.base import Array
from runner.optim.paths import is_ema, is_slot, owner_of
from runner.verify import points
from runner.verify.rounding import cancelling, noise_of
from runner.verify.spread import RANKS, Trajectory, at_ranks, is_loss, longer, movement

PERTURBED_RUNS = 3
MORE_RUNS = 12  # where what steps from the start lead to fails alone: a kink that lies there may not show in three
FROM_THE_START = {"loss", "gradient", "parameter", "statistic", "slot", "average"}  # kinds of checks
# The largest of three draws of a size is below a quarter of another draw in about one of a thousand cases at equal
# noise; and the perturbed runs' noise is the larger one.
FACTOR = 4.0
# A value is stored with half an ulp, and a step's few operations on one entry add about as much each.
ULPS = 4.0
# Float64 errs by 2e-9 times what float32 does; what it leaves of terms that cancel is smaller than this share of what
# float32 may leave, and no gradient that is not zero is, at two points chosen at random.
_EXACTLY = 1e-6
# What a training from the start leads to, and how far one device may differ from itself there, as a share of the
# largest new entry: beyond it nothing is compared.
_TRAINED = ("parameter", "statistic", "slot", "average")
_CHAOS = 0.5
SIZE = "size"  # in place of a rank: the size of the whole array


@dataclass(frozen=True)
class Check:
    """One array of the mesh's run beside the single device's.

    Attributes:
      kind: `initial`, `loss`, `gradient`, `parameter`, `average`, `statistic` or `slot` of a training from the start;
        `point`, a gradient at a generic point; `evaluation`, the loss or a metric of an evaluation there; `update`,
        what one step from there makes of the state; `padding`, the same with other padding in the batch.
      name: as `gradient/d1/kernel`, `optimizer/m/d1/kernel`, `d1/kernel`, `loss`, `point0/gradient/d1/kernel`.
      variable: canonical path; of the loss, empty.
      step: the step after which the two differ first, or are compared; 0 before any.
      absolute: largest difference of an entry.
      relative: the same over `scale`.
      scale: largest entry of what is compared: of a parameter or statistic its movement since the start.
      rank: the rank that comes nearest to its tolerance, or exceeds it most; `size`: the size of the whole array.
      difference: there.
      tolerance: there.
      ratio: difference over tolerance; above 1 the check fails.
      spread: what one device differs by from itself there, under that noise.
      resolution: smallest relative error of the whole array (of a parameter or statistic: of its movement) that would
        have been seen; infinite where none would.
      zero: of a gradient at a point: nothing but what rounding leaves of terms that cancel, as float64 shows.
      apart: length of the difference over that of what is new of the array, which bounds the error of its size and
        direction; infinite where nothing is new.
    """

    kind: str
    name: str
    variable: str
    step: float
    absolute: float
    relative: float
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


@dataclass(frozen=True)
class _Arrays:
    """One array of each run.

    Attributes:
      spread: what one device differs by from itself, see `runner.verify.spread.spread`.
      found: what is judged.
      expected: what that is held against.
      moved: what of it is new: of a parameter its movement.
    """

    spread: Array
    found: Array
    expected: Array
    moved: Array


def compare(
    reference: Trajectory,
    spread: Trajectory,
    mesh: Trajectory,
    noise: float,
    expected: Trajectory | None = None,
    sides: tuple[str, str] = ("one device", "the mesh"),
    sums: float = 0.0,
    stored: float = 0.0,
) -> list[Check]:
    """Compares every array of a run.

    Args:
      reference: `initial/<path>`, `loss` (steps,), `gradient/<path>` of the first step, `final/<path>`, and
        `optimizer/<slot>/<path>` and `ema/<path>` of a run on one device; of each generic point what
        `runner.verify.points` lists.
      spread: by key, what runs with noise differ by from that, see `runner.verify.spread.spread`.
      mesh: the same of the run on the mesh.
      noise: relative, of the perturbed runs.
      expected: the same of another engine's run on the mesh, to compare with in place of the reference. The
        tolerances are the same; the initial weights, which each engine draws in its own way, are not compared.
      sides: what `mesh` is compared with and `mesh`, in words.
      sums: noise of gradients that no matrix product adds up, where that is larger.
      stored: of trained weights and slots, see `runner.verify.rounding.stored`.

    Returns:
      A check an array, in the order of `reference`.

    Raises:
      ValueError: the runs don't hold the same arrays of the same shapes.
    """
    held = expected or reference
    for run in (mesh, reference):
        different = sorted(key for key in set(held) ^ set(run) if not points.is_given(key))
        if different:
            raise ValueError(f"{' and '.join(sides)} do not hold the same arrays: {', '.join(different[:5])}")
    keys = [key for key in reference if not points.is_given(key)]
    for key in keys:
        if held[key].shape != mesh[key].shape:
            shapes = list(held[key].shape), list(mesh[key].shape)
            raise ValueError(f"{key} has shape {shapes[0]} on {sides[0]} and {shapes[1]} there")
    left: dict[str, float] = {}
    for point in points.numbers(reference):
        sizes = cancelling(points.part(reference, point, points.GRADIENT), noise, sums)
        left |= {points.prefix(point, points.GRADIENT) + path: size for path, size in sizes.items()}
    noises = _Noises(noise, sums, stored, left)
    initial = [  # drawn whole from the seed, so they are equal to the last bit
        equal("initial", key, key.removeprefix("initial/"), 0, held[key], mesh[key])
        for key in keys
        if key.startswith("initial/") and not expected
    ]
    starts = {key: value for key, value in reference.items() if key.startswith("initial/") or points.is_given(key)}
    held = {**held, **starts}
    return initial + [
        _check(key, _Arrays(spread[key], mesh[key], held[key], movement(held, key)), reference, noises)
        for key in keys
        if not key.startswith("initial/")
    ]


@dataclass(frozen=True)
class _Noises:
    """What rounding does.

    Attributes:
      products: relative, of gradients that a matrix product adds up, and of all else.
      sums: relative, of other gradients, where that is larger.
      stored: relative, of trained weights and slots.
      cancelling: key of a gradient at a point -> size that it may have where its terms cancel.
    """

    products: float
    sums: float
    stored: float
    cancelling: Mapping[str, float]


def _check(key: str, arrays: _Arrays, reference: Trajectory, noises: _Noises) -> Check:
    last = len(reference["loss"]) + 0.5
    group, _, path = key.partition("/")
    if key == "loss":
        return _loss(arrays)
    if group == "gradient":
        return _ranked("gradient", key, path, 1.5, arrays)
    if points.is_of_point(key):
        return _at_point(key, arrays, reference, noises)
    if is_slot(key):
        return _ranked("slot", key, owner_of(key), last, arrays, stored=noises.stored)
    if is_ema(key):
        return _ranked("average", key, path, last, arrays)
    if f"gradient/{path}" in reference:
        return _ranked("parameter", path, path, last, arrays, stored=noises.stored)
    return _ranked("statistic", path, path, last, arrays, noises.products)


def _at_point(key: str, arrays: _Arrays, reference: Trajectory, noises: _Noises) -> Check:
    """Compares what a generic point gave: its loss, a gradient, or what one step from there made of the state."""
    point, part, path = points.parsed(key)
    if part == points.EVALUATED:
        return replace(_loss(arrays), kind="evaluation", name=key, rank="all", step=1.65)
    if is_loss(key):
        return replace(_loss(arrays), kind="point", name=key, rank="all", step=1.55)
    owner = owner_of(path)
    own = noise_of(owner, noises.products, noises.sums)
    if part == points.GRADIENT:
        found = _ranked("point", key, owner, 1.6, arrays, size_noise=own)
        exact = reference.get(points.prefix(point, points.EXACT) + path)
        left = noises.cancelling[key]
        # Not 0 itself: no gradient arrives then, and whether one would be right is not shown.
        cancels = exact is not None and 0 < _largest(exact) < _EXACTLY * left
        return replace(found, zero=found.passed and cancels and 0 < _largest(arrays.expected) < left)
    if points.prefix(point, points.GRADIENT) + owner in reference:
        kept = 0.0 if is_ema(path) else noises.stored
        return _ranked("update", key, owner, 1.7, arrays, size_noise=own, stored=kept)
    return _ranked("update", key, owner, 1.7, arrays, noises.products, size_noise=noises.products)


def equal(kind: str, name: str, variable: str, step: float, expected: Array, found: Array) -> Check:
    """Returns the check of an array that must be equal to the last bit."""
    worst = _largest(found.astype(np.float64) - expected.astype(np.float64))
    scale = _largest(expected)
    ratio = 0.0 if worst == 0 else math.inf
    return Check(kind, name, variable, step, worst, _over(worst, scale), scale, "all", worst, 0.0, ratio, 0.0, 0.0)


def _loss(arrays: _Arrays) -> Check:
    """A step's loss is one number, so its tolerance is the perturbed runs' largest difference of all steps so far."""
    expected = arrays.expected
    difference = np.abs(arrays.found.astype(np.float64) - expected)
    spread = np.maximum.accumulate(arrays.spread)
    floor = ULPS * float(np.finfo(np.float32).eps) * np.maximum(np.abs(expected), 1.0)
    tolerance = FACTOR * spread + floor
    ratios = _ratios(difference, tolerance)
    worst = int(np.argmax(ratios))
    failed = np.flatnonzero(~(ratios <= 1.0))
    step = int(failed[0] if len(failed) else worst) + 1
    scale = _largest(expected)
    absolute = _largest(difference)
    return Check(
        "loss",
        "loss",
        "",
        step,
        absolute,
        _over(absolute, scale),
        scale,
        f"step {worst + 1}",
        float(difference[worst]),
        float(tolerance[worst]),
        float(ratios[worst]),
        float(spread[worst]),
        _over(float(tolerance[0]), abs(float(expected[0]))),
    )


def _ranked(
    kind: str,
    name: str,
    variable: str,
    step: float,
    arrays: _Arrays,
    sums: float = 0.0,
    size_noise: float | None = None,
    stored: float = 0.0,
) -> Check:
    """Compares by rank and, with `size_noise`, by the size of the whole.

    Args:
      kind: of the check.
      name: of the array.
      variable: that it belongs to.
      step: after which it is compared.
      arrays: of each run.
      sums: relative noise of an array that is itself a sum over the batch.
      size_noise: relative, that the whole may have in common; None: its size is not compared. What has not moved, as a
        frozen weight, has no size.
      stored: relative difference of each entry by how both sides round what they keep. Ranked, such differences are
        at most the ranked entries times that; in the size of the whole they add up at random.
    """
    expected, moved, (*ranked, wild) = arrays.expected, arrays.moved, arrays.spread
    new = _largest(moved)
    scale = new or _largest(expected)
    difference = at_ranks(arrays.found, expected)
    spread = np.asarray(ranked)
    ulps = ULPS * _epsilon(expected) * _largest(expected)
    tolerance = FACTOR * spread + ulps + sums * new + stored * at_ranks(expected, np.zeros_like(expected))
    size = at_ranks(moved, np.zeros_like(moved))
    length = _length(moved)
    if size_noise is not None and new:
        own = size_noise + _over(ulps, length) + ULPS * _epsilon(expected)
        own += stored * _over(_length(expected * (moved / length)), length)
        difference = np.append(difference, abs(longer(arrays.found, expected, moved)) * scale)
        spread = np.append(spread, wild * scale)
        tolerance = np.append(tolerance, (FACTOR * wild + own + sums) * scale)
        size = np.append(size, scale)
    ratios = _ratios(difference, tolerance)
    if kind in _TRAINED and new:
        ratios[np.isfinite(difference + spread) & (spread >= _CHAOS * new)] = 0.0
    worst = int(np.argmax(ratios))
    return Check(
        kind,
        name,
        variable,
        step,
        float(difference[len(RANKS) - 1]),
        _over(float(difference[len(RANKS) - 1]), scale),
        scale,
        [*RANKS, SIZE][worst],
        float(difference[worst]),
        float(tolerance[worst]),
        float(ratios[worst]),
        float(spread[worst]),
        _resolution(size, tolerance + spread),
        apart=_length(arrays.found.astype(np.float64) - expected) / length if length else math.inf,
    )


def _resolution(size: Array, hidden: Array) -> float:
    """Returns the smallest factor by which what is compared, of these sizes, exceeds what may hide it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(size > 0, hidden / size, math.inf)
    return float(np.min(np.where(np.isfinite(found), found, math.inf), initial=math.inf))


def _length(values: Array) -> float:
    return math.sqrt(float(np.sum(np.square(values.astype(np.float64)))))


def _epsilon(array: Array) -> float:
    """Returns the distance of 1 to the next number; 0 of whole numbers, which are exact."""
    return float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0


def _ratios(difference: Array, tolerance: Array) -> Array:
    """Divides; 0 over 0 is 0, and what is not finite is infinite, on whichever side."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(difference == 0, 0.0, difference / tolerance)
    return np.where(np.isfinite(difference) & np.isfinite(tolerance), ratios, math.inf)


def _largest(values: Array) -> float:
    return float(np.max(np.abs(values.astype(np.float64)))) if values.size else 0.0


def _over(value: float, scale: float) -> float:
    return value / scale if scale else (0.0 if value == 0 else math.inf)
