"""The calls: `compare`, `assert_same` and `matrix`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from . import trees
from .differences import FROM_THE_START, Check, Entry
from .differences import compare as compare_arrays
from .report import StepReport
from .step import OF_BATCH, Function, Reference, Setup, Side, Step, check_training, outputs_of
from .trees import Arrays, Place, Select, Tree

# Steps of training where there are fewer batches.
_STEPS = 5
# A function for both sides, or that of the step and that of the reference.
Both = Function | tuple[Function, Function] | None


def compare(
    step: Step,
    reference: Step,
    state: Tree,
    batches: Iterable[Tree],
    *,
    place: Place | None = None,
    place_batch: Place | None = None,
    parameters: Select | None = None,
    gradients: Both = None,
    intermediates: Both = None,
    steps: int | None = None,
    seed: int = 0,
) -> StepReport:
    """Trains with a step and with its reference on one device, and compares all that they return.

    Args:
      step: takes `(state, batch)`, pytrees of arrays, and returns `(new_state, outputs)`; jitted or not, sharded or
        not.
      reference: the same function for one device, or another implementation of it.
      state: initial. Random keys, integers and leaves that are no arrays are taken as JAX has them.
      batches: used in turn; they may have different shapes.
      place: puts a state of NumPy arrays on the mesh; None: arrays go where those of `state` are.
      place_batch: the same of a batch.
      parameters: the leaves that are weights, by names, by what they are below of, or by a function of the name; None:
        all float leaves that move.
      gradients: returns the gradients at `(state, batch)`, a pytree with the names of the weights; a pair if step and
        reference need functions of their own. Each weight's gradient is then compared as well.
      intermediates: returns values inside the step at `(state, batch)`, in the order of computation; a pair as above.
        On a mismatch the report names the first that differs.
      steps: of training; None: one per batch, at least 5. 0: the step is an evaluation, which leaves the state alone.
      seed: of the points and of the noise.

    Raises:
      ValueError: the step or the reference fails, is not deterministic or returns something else than a state like
        the given one; their outputs have other names, shapes or dtypes; the reference has a NaN or does not move the
        state.
    """
    comparison = _Comparison(reference, state, batches, parameters, gradients, steps, seed)
    return comparison.with_step(step, place, place_batch, intermediates)


def assert_same(step: Step, reference: Step, state: Tree, batches: Iterable[Tree], **options: Any) -> None:
    """Raises AssertionError with the table unless `compare` says `verified`; the options are its."""
    report = compare(step, reference, state, batches, **options)
    if report.verdict != "verified":
        raise AssertionError(f"{report.verdict}\n{report}")


@dataclass(frozen=True)
class Matrix:
    """Reports of several steps on one reference; printed, a table of names and verdicts."""

    reports: Mapping[str, StepReport]

    def __str__(self) -> str:
        width = max(map(len, self.reports), default=0)
        return "\n".join(f"{name:{width}}  {report.line()}" for name, report in self.reports.items())


def matrix(
    steps: Mapping[str, Step | tuple[Step, Place | None, Place | None]],
    reference: Step,
    state: Tree,
    batches: Iterable[Tree],
    *,
    parameters: Select | None = None,
    gradients: Function | None = None,
    training_steps: int | None = None,
    seed: int = 0,
) -> Matrix:
    """Compares many steps with one reference, whose runs are made once; see `compare`.

    A step may come with its own `place` and `place_batch`, as `(step, place, place_batch)`.

    Raises:
      ValueError: as `compare`.
    """
    comparison = _Comparison(reference, state, batches, parameters, gradients, training_steps, seed)
    reports = {}
    for name, given in steps.items():
        step, place, place_batch = given if isinstance(given, tuple) else (given, None, None)
        reports[name] = comparison.with_step(step, place, place_batch, None)
    return Matrix(reports)


class _Comparison:
    """A reference, and what it has computed for the steps that are compared with it."""

    def __init__(
        self,
        reference: Step,
        state: Tree,
        batches: Iterable[Tree],
        parameters: Select | None,
        gradients: Both,
        steps: int | None,
        seed: int,
    ) -> None:
        if isinstance(batches, Mapping):
            raise ValueError("batches is one batch; give a list of batches")
        given = list(batches)
        if not given:
            raise ValueError("batches is empty; give at least one batch")
        if steps is None:
            steps = max(len(given), _STEPS)
        self._setup = Setup(state, given, steps, seed)
        self._parameters = parameters
        self._gradients_of_step, of_reference = _pair(gradients)
        device = jax.local_devices()[0]
        self._reference = Reference(self._setup, "reference", reference, gradients=of_reference, device=device)
        self._expected: Arrays | None = None  # outputs of the reference's first step, once it is prepared

    def with_step(self, step: Step, place: Place | None, place_batch: Place | None, intermediates: Both) -> StepReport:
        """Returns how a step compares; arguments and errors as for `compare`."""
        side = Side(self._setup, "step", step, self._gradients_of_step, place, place_batch)
        reference = self._reference
        outputs = outputs_of(side)
        if self._expected is None:
            self._expected = outputs_of(reference)
            reference.prepare(self._parameters)
        problem = trees.difference_of(self._expected, outputs, "output")
        if problem:
            raise ValueError(f"the step's outputs are not those of the reference: one {problem}")
        reference.perturb_for(side)
        report = self._judged(side)
        if side.unequal and report.first is None:
            # The smaller of unequal copies were compared. Compare the larger too, so that no wrong one is left out.
            side.merge = np.maximum
            report = self._judged(side)
        if report.first is None or intermediates is None:
            return report
        return replace(report, inside=self._first_inside(side, report.first, intermediates))

    def _judged(self, side: Side) -> StepReport:
        reference = self._reference
        arrays = side.run()
        check_training(side, arrays)
        arrays = reference.compared(arrays | side.at_points(reference.starts))
        report = self._report(side, arrays, reference.spread)
        if report.failed and all(check.kind in FROM_THE_START for check in report.failed):
            # A weight may start at a kink that three runs do not cross, and the mesh does.
            report = self._report(side, arrays, reference.wider_spread())
        return report

    def _report(self, side: Side, arrays: Arrays, spread: Arrays) -> StepReport:
        reference = self._reference
        checks = compare_arrays(reference.arrays, spread, arrays, reference.rounding, reference.describe)
        mesh = f"{len(side.devices)} devices"
        if len(side.devices) < 2:
            mesh = "one device (are place and place_batch missing?)"
        elif not side.is_sharded:
            mesh += ", each with the whole state and batch (is place_batch missing?),"
        return StepReport(
            tuple(checks), self._setup.steps, mesh, reference.terms, reference.rounding, unequal=tuple(side.unequal)
        )

    def _first_inside(self, side: Side, first: Check, intermediates: Both) -> str:
        """Returns the first value inside the step that differs, where a check failed first; empty if none does."""
        reference = self._reference
        of_step, of_reference = _pair(intermediates)
        assert of_step is not None
        assert of_reference is not None
        point = None
        for number, candidate in reference.starts.items():
            if first.name.startswith(f"point{number}/"):
                point = candidate
        if point is None:
            # What differs at the training's end alone is looked for in its last step.
            step = max(min(int(first.step), self._setup.steps) - 1, 0)
            point = step, reference.state_after(step)
        step, start = point
        batch = self._setup.batch_of(step)
        _, separator, of_batch = first.name.rpartition(OF_BATCH)
        if separator and not self._setup.steps:
            batch = int(of_batch)
        actual = side.inside(of_step, start, batch)
        expected, spread = reference.inside_with_spread(of_reference, start, batch)
        checks = compare_arrays(expected, spread, actual, reference.rounding, lambda path: Entry("output", path, 0.0))
        return next((check.name for check in checks if not check.passed), "")


def _pair(both: Both) -> tuple[Function | None, Function | None]:
    return both if isinstance(both, tuple) else (both, both)
