"""Out-of-memory errors of libraries are recognized, and a run's last lines have the table and a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from runner.config.schema import ClusterConfig
from runner.engine import devices
from runner.errors import EngineError, OutOfMemoryError
from runner.notebook.composing import compose
from runner.plan import exhausted, host_memory
from runner.plan.base import Total
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


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a config's devices be there, as they are in a run."""
    monkeypatch.setattr(devices, "resolve_mesh", lambda config: config.mesh)


def attempt(*overrides: str, axes: Mapping[str, int] | None = None, **totals: Total) -> exhausted.Attempt:
    """Returns a run of engine=keras_dtensor on GPUs, which has no plan by arithmetic."""
    config = compose("dataset=digits", "dataset.batch_size=64", "mesh=batch8", *overrides)
    config = replace(config, mesh=replace(config.mesh, device="gpu", axes=dict(axes or {"batch": 8})))
    data = DataSpec({}, None)  # type: ignore[arg-type] # the engine of this run is not built
    plan = cases.plan(totals=totals) if totals else None
    return exhausted.Attempt(config, data, overrides, plan)


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
        "out of memory (OOM) on a GPU device of the mesh: could not allocate 1.5GiB; see docs/memory.md"
    )
    assert raised.value.details == ()


def test_other_errors_pass() -> None:
    with pytest.raises(ValueError, match="other"), exhausted.explained(attempt()):
        raise ValueError("other")


GIB = 1 << 30
ALL_STATE = {"slots": Total(8 * GIB, 8 * GIB, "counted")}
ALL_ACTIVATIONS = {"activations": Total(64 * GIB, 8 * GIB, "estimated")}


def change(run: exhausted.Attempt, room: int) -> str:
    found = exhausted._estimated_change(run, room)
    return "" if found is None else found.override


def test_no_change_is_suggested_where_none_is_enough() -> None:
    assert change(attempt(parameters=Total(8, 8, "counted")), room=0) == ""


def test_a_layout_that_the_run_has_is_not_suggested() -> None:
    assert change(attempt(**ALL_STATE), room=2 * GIB) == "layout=fsdp"
    assert change(attempt("layout=fsdp", **ALL_STATE), room=2 * GIB) == ""
    # FSDP shards over the batch axis only, which has one device here.
    assert change(attempt(axes={"batch": 1, "model": 8}, **ALL_STATE), room=2 * GIB) == ""


def test_what_the_batch_axis_does_not_divide_is_not_suggested() -> None:
    run = attempt("dataset.batch_size=32", **ALL_ACTIVATIONS)
    assert change(run, room=2 * GIB) == "trainer.accumulate_steps=4"
    # Eight microbatches would have half of an example per device.
    assert change(run, room=GIB) == ""
    assert change(attempt("dataset.batch_size=8", **ALL_ACTIVATIONS), room=4 * GIB) == ""


def test_accumulation_is_not_suggested_for_custom_steps() -> None:
    overrides = ["engine=jax", "task=step", "task._target_=tests.task.own_steps.Line", "dataset.batch_size=64"]
    assert change(attempt(*overrides, **ALL_ACTIVATIONS), room=4 * GIB) == "dataset.batch_size=32"


@pytest.mark.parametrize(("cluster", "machines"), [(ClusterConfig("local", 2), 1), (ClusterConfig("auto", 2), 2)])
def test_virtual_devices_share_the_memory_of_their_machine(cluster: ClusterConfig, machines: int) -> None:
    config = attempt().config
    config = replace(config, mesh=replace(config.mesh, device="cpu"), cluster=cluster)
    assert exhausted.capacity(config) == host_memory.total() * machines // 8
