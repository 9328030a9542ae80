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
- a gradient that is smaller than the noise beside the others of its layer is drawn anew: its terms cancel and leave
  their last bits.

The noise is what rounding can do to the longest sum, see `noise`. That is mostly ten times what it does and more, so
what rounding does rarely on the mesh, the perturbed runs do often. To shuffle the examples of each batch instead would
say too little: the many nearly equal terms of a convolution round alike in any order on one device, and otherwise in a
mesh's partial sums (a small convnet with batch normalization on four devices: 100 times as far off as on one,
shuffled).

An entry of the mesh's run may then differ by a small multiple of what the perturbed runs differ by; of a batch
statistic, which is itself a sum over the batch, by the noise besides. Entries are compared by rank: half of a
variable's entries, 90%, 99% and all of them must lie as close as that share of them does in the perturbed runs. A
wrong engine moves most entries, and the few wild ones of a perturbed run don't hide that.

At the generic points of `runner.verify.points` the size of a whole gradient, and of what a step moves, is compared
besides: by how much the array is longer or shorter in its own direction. The noise of many entries cancels there, so a
factor of 0.99 shows where each entry alone would hide it. Each check says what it proves, see `Check.resolution`.

Two engines on one mesh are held against each other by the same tolerances: each adds the terms in an order of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from runner.data.base import Array
from runner.optim.paths import is_ema, is_slot, owner_of
from runner.verify import points
from runner.verify.rounding import cancelling

RANKS: Mapping[str, float] = {"half": 0.5, "90%": 0.9, "99%": 0.99, "all": 1.0}
PERTURBED_RUNS = 3
# The largest of three draws of a size is below a quarter of another draw in about one of a thousand cases at equal
# noise; and the perturbed runs' noise is the larger one.
FACTOR = 4.0
# A value is stored with half an ulp, and a step's few operations on one entry add about as much each.
ULPS = 4.0
# Adding n terms one by one errs by up to n/2 ulps, and by about sqrt(n) where the errors' signs are random; four times
# that is more than any mesh was seen to do.
_NOISE_FACTOR = 4.0
# Half an ulp of a precision below float32: what each rounding errs by at most. Matrix products and convolutions add up
# in float32 and round once; the gradients of all else (biases, embeddings) are added up in bfloat16 term by term, and
# their errors grow with the root of the terms, up to all of what they are.
HALF_ULPS: Mapping[str, float] = {"float32": 0.0, "bfloat16": 2.0**-8}
# Float64 errs by 2e-9 times what float32 does; what it leaves of terms that cancel is smaller than this share of what
# float32 may leave, and no gradient that is not zero is, at two points chosen at random.
_EXACTLY = 1e-6
SIZE = "size"  # in place of a rank: the size of the whole array

Trajectory = Mapping[str, Array]


def noise(terms: int, precision: str = "float32", epsilon: float = float(np.finfo(np.float32).eps)) -> float:
    """Returns the noise of perturbed runs: what a float32 sum's order can do, times four, and a lower precision.

    Args:
      terms: length of the longest sum.
      precision: `engine.precision`.
      epsilon: distance of 1 to the next number of the dtype.
    """
    return _NOISE_FACTOR * epsilon * math.sqrt(max(terms, 1)) + HALF_ULPS[precision]


def noise_of_sums(terms: int, precision: str) -> float:
    """Returns the relative noise of gradients that no matrix product adds up, see `noise`; at most 1."""
    return min(1.0, noise(terms, precision) + HALF_ULPS[precision] * math.sqrt(max(terms, 1)))


@dataclass(frozen=True)
class Check:
    """One array of the mesh's run beside the single device's.

    Attributes:
      kind: `initial`, `loss`, `gradient`, `parameter`, `average`, `statistic` or `slot` of a training from the start;
        `point`, a gradient at a generic point; `update`, what one step from there makes of the state; `padding`, the
        same with other padding in the batch.
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

    @property
    def passed(self) -> bool:
        """Whether the difference is within its tolerance; a NaN never is."""
        return self.ratio <= 1.0


@dataclass(frozen=True)
class _Arrays:
    """One array of each run: on one device, there perturbed, what is judged, and what that is held against."""

    single: Array
    perturbed: Sequence[Array]
    found: Array
    expected: Array


def compare(
    reference: Trajectory,
    perturbed_runs: Sequence[Trajectory],
    mesh: Trajectory,
    noise: float,
    expected: Trajectory | None = None,
    sides: tuple[str, str] = ("one device", "the mesh"),
    sums: float = 0.0,
) -> list[Check]:
    """Compares every array of a run.

    Args:
      reference: `initial/<path>`, `loss` (steps,), `gradient/<path>` of the first step, `final/<path>`, and
        `optimizer/<slot>/<path>` and `ema/<path>` of a run on one device; of each generic point what
        `runner.verify.points` lists.
      perturbed_runs: the same of runs with noise.
      mesh: the same of the run on the mesh.
      noise: relative, of the perturbed runs.
      expected: the same of another engine's run on the mesh, to compare with in place of the reference. The
        tolerances are the same; the initial weights, which each engine draws in its own way, are not compared.
      sides: what `mesh` is compared with and `mesh`, in words.
      sums: noise of gradients that no matrix product adds up, where that is larger.

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
    noises = _Noises(noise, max(noise, sums), _cancelling(reference, noise, sums))
    return [
        _check(
            key,
            _Arrays(reference[key], [run[key] for run in perturbed_runs], mesh[key], held[key]),
            reference,
            noises,
        )
        for key in keys
        if expected is None or not key.startswith("initial/")
    ]


@dataclass(frozen=True)
class _Noises:
    """What rounding does.

    Attributes:
      products: relative, of gradients that a matrix product adds up, and of all else.
      sums: relative, of other gradients.
      cancelling: key of a gradient at a point -> size that it may have where its terms cancel.
    """

    products: float
    sums: float
    cancelling: Mapping[str, float]

    def of(self, path: str) -> float:
        """Returns the relative noise of a variable's gradient."""
        return self.products if path.endswith("kernel") else self.sums


def _cancelling(reference: Trajectory, noise: float, sums: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for point in points.numbers(reference):
        prefix = points.prefix(point, points.GRADIENT)
        gradients = {key.removeprefix(prefix): value for key, value in reference.items() if key.startswith(prefix)}
        found |= {f"{prefix}{path}": size for path, size in cancelling(gradients, noise, sums).items()}
    return found


def _check(key: str, arrays: _Arrays, reference: Trajectory, noises: _Noises) -> Check:
    last = len(reference["loss"]) + 0.5
    group, _, path = key.partition("/")
    if key == "loss":
        return _loss(arrays)
    if group == "initial":
        return _initial(path, arrays.expected, arrays.found)
    if group == "gradient":
        return _ranked("gradient", key, path, 1.5, arrays)
    if points.is_of_point(key):
        return _at_point(key, arrays, reference, noises)
    if is_slot(key):
        return _ranked("slot", key, owner_of(key), last, arrays)
    if is_ema(key):
        return _ranked("average", key, path, last, arrays, reference[f"initial/{path}"])
    kind, sums = ("parameter", 0.0) if f"gradient/{path}" in reference else ("statistic", noises.products)
    return _ranked(kind, path, path, last, arrays, reference[f"initial/{path}"], sums)


def _at_point(key: str, arrays: _Arrays, reference: Trajectory, noises: _Noises) -> Check:
    """Compares what a generic point gave: its loss, a gradient, or what one step from there made of the state."""
    point, part, path = points.parsed(key)
    if part == points.LOSS:
        return replace(_loss(arrays), kind="point", name=key, rank="all", step=1.55)
    owner = owner_of(path)
    if part == points.GRADIENT:
        found = _ranked("point", key, owner, 1.6, arrays, size_noise=noises.of(owner))
        exact, left = reference.get(points.prefix(point, points.EXACT) + path), noises.cancelling[key]
        zero = exact is not None and _largest(exact) < _EXACTLY * left and _largest(arrays.expected) < left
        return replace(found, zero=found.passed and zero)
    trained = points.prefix(point, points.GRADIENT) + owner in reference
    start = reference[points.prefix(point, points.START) + path]
    own = noises.of(owner) if trained else noises.products
    sums = 0.0 if trained else noises.products
    return _ranked("update", key, owner, 1.7, arrays, start, sums, size_noise=own)


def _initial(path: str, reference: Array, mesh: Array) -> Check:
    """Initial weights are drawn whole from the seed, so they are equal to the last bit."""
    return equal("initial", f"initial/{path}", path, 0, reference, mesh)


def equal(kind: str, name: str, variable: str, step: float, expected: Array, found: Array) -> Check:
    """Returns the check of an array that must be equal to the last bit."""
    worst = _largest(found.astype(np.float64) - expected.astype(np.float64))
    scale = _largest(expected)
    ratio = 0.0 if worst == 0 else math.inf
    return Check(kind, name, variable, step, worst, _over(worst, scale), scale, "all", worst, 0.0, ratio, 0.0, 0.0)


def _loss(arrays: _Arrays) -> Check:
    """A step's loss is one number, so its tolerance is the perturbed runs' largest difference of all steps so far."""
    single, expected = arrays.single, arrays.expected
    difference = np.abs(arrays.found.astype(np.float64) - expected)
    spread = np.max([np.abs(run.astype(np.float64) - single) for run in arrays.perturbed], axis=0)
    spread = np.maximum.accumulate(spread)
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
    start: Array | None = None,
    sums: float = 0.0,
    size_noise: float | None = None,
) -> Check:
    """Compares by rank and, with `size_noise`, by the size of the whole.

    Args:
      kind: of the check.
      name: of the array.
      variable: that it belongs to.
      step: after which it is compared.
      arrays: of each run.
      start: what the array was before; None: it was nothing.
      sums: relative noise of an array that is itself a sum over the batch.
      size_noise: relative, that the whole may have in common; None: its size is not compared.
    """
    expected = arrays.expected
    moved = expected.astype(np.float64) - (0.0 if start is None else start.astype(np.float64))
    scale = _largest(moved) or _largest(expected)
    difference = at_ranks(arrays.found, expected)
    spread = np.max([at_ranks(run, arrays.single) for run in arrays.perturbed], axis=0)
    ulps = ULPS * _epsilon(expected) * _largest(expected)
    tolerance = FACTOR * spread + ulps + sums * scale
    size = at_ranks(moved, np.zeros_like(moved))
    if size_noise is not None:
        wild = max((abs(_longer(run, arrays.single, moved)) for run in arrays.perturbed), default=0.0)
        length = math.sqrt(float(np.sum(np.square(moved))))
        own = size_noise + _over(ulps, length) + ULPS * _epsilon(expected)
        difference = np.append(difference, abs(_longer(arrays.found, expected, moved)) * scale)
        spread = np.append(spread, wild * scale)
        tolerance = np.append(tolerance, (FACTOR * wild + own + sums) * scale)
        size = np.append(size, scale)
    ratios = _ratios(difference, tolerance)
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
    )


def _resolution(size: Array, hidden: Array) -> float:
    """Returns the smallest factor by which what is compared, of these sizes, exceeds what may hide it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(size > 0, hidden / size, math.inf)
    return float(np.min(np.where(np.isfinite(found), found, math.inf), initial=math.inf))


def _longer(values: Array, reference: Array, along: Array) -> float:
    """Returns by what share of `along` values are longer than the reference, in its direction; 0 where it is zero."""
    square = float(np.sum(np.square(along)))
    difference = values.astype(np.float64) - reference.astype(np.float64)
    return float(np.sum(difference * along)) / square if square else 0.0


def at_ranks(values: Array, reference: Array) -> Array:
    """Returns the largest difference of the closest half, 90%, 99% and all of the entries; NaN counts as infinite."""
    difference = np.abs(values.astype(np.float64) - reference.astype(np.float64)).ravel()
    if not difference.size:
        return np.zeros(len(RANKS))
    difference[np.isnan(difference)] = math.inf
    places = [math.ceil(share * difference.size) - 1 for share in RANKS.values()]
    return np.asarray(np.partition(difference, places)[places])


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
