"""Out-of-memory errors of libraries are recognized, and a run's last lines have the table and a change."""

from __future__ import annotations

import pytest

from runner.config.schema import DatasetConfig, MeshConfig, RunConfig
from runner.errors import EngineError, OutOfMemoryError
from runner.plan import exhausted, memory
from runner.plan.base import MemoryPart, Total
from runner.task.base import DataSpec
from tests.plan import cases


class ResourceExhaustedError(Exception):
    """As TensorFlow's type is named."""


def wrapped(error: Exception) -> EngineError:
    outer = EngineError("a call failed")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 96 bytes."), True),
        (ResourceExhaustedError("{{function_node}} OOM when allocating tensor with shape[8,8]"), True),
        (ResourceExhaustedError(), True),
        (wrapped(MemoryError()), True),
        (EngineError("the loss is nan"), False),
        (ValueError("out of range"), False),
    ],
)
def test_the_errors_of_both_libraries_are_recognized(error: Exception, is_memory: bool) -> None:
    assert exhausted.is_out_of_memory(error) is is_memory


def attempt(**totals: Total) -> exhausted.Attempt:
    """Returns a run of engine=keras_dtensor, which has no plan by arithmetic."""
    config = RunConfig(mesh=MeshConfig(axes={"batch": 8}, device="gpu"), dataset=DatasetConfig(batch_size=64))
    data = DataSpec({}, None)  # type: ignore[arg-type] # the engine of this run is not built
    plan = cases.plan(totals=totals) if totals else None
    return exhausted.Attempt(config, data, [], plan)


def test_the_last_lines_are_the_plans_memory_and_the_smallest_change_that_fits() -> None:
    gib = 1 << 30
    run = attempt(parameters=Total(gib, gib, "counted"), activations=Total(64 * gib, 8 * gib, "estimated"))
    with pytest.raises(OutOfMemoryError) as raised, exhausted.explained(run):
        raise ResourceExhaustedError("OOM when allocating tensor with shape[8,8]")
    assert str(raised.value) == "out of memory (OOM) on a GPU device of the mesh; try trainer.accumulate_steps=2"
    assert raised.value.details == (
        "memory of one device at the peak of a step:",
        "  weights           1.00 GiB  counted",
        "  activations       8.00 GiB  estimated",
        "  peak by the plan  9.00 GiB",
        "to fit: trainer.accumulate_steps=2, 5.00 GiB per device (arithmetic)",
    )


def test_a_state_that_is_the_largest_part_is_to_be_sharded() -> None:
    gib = 1 << 30
    run = attempt(slots=Total(8 * gib, 8 * gib, "counted"), activations=Total(gib, gib, "estimated"))
    with pytest.raises(OutOfMemoryError, match="try layout=fsdp"), exhausted.explained(run):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.5GiB")


def test_the_amount_is_in_the_first_line_and_a_run_without_a_plan_names_the_page() -> None:
    with pytest.raises(OutOfMemoryError) as raised, exhausted.explained(attempt()):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.5GiB.")
    assert str(raised.value) == (
        "out of memory (OOM) on a GPU device of the mesh: could not allocate 1.5GiB; see docs/fit_in_memory.md"
    )
    assert raised.value.details == ()


def test_other_errors_pass() -> None:
    with pytest.raises(ValueError, match="other"), exhausted.explained(attempt()):
        raise ValueError("other")


def test_no_change_is_suggested_where_none_is_enough() -> None:
    run = attempt(parameters=Total(8, 8, "counted"))
    parts = (MemoryPart(memory.WEIGHTS, 8, "counted"),)
    assert exhausted._estimated_change(run.config, parts, room=0) is None
