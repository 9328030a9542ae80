"""Out-of-memory errors of libraries are recognized, and a run's last lines have the table and a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from runner.cli.notebook import compose
from runner.config.schema import ClusterConfig
from runner.engine import devices
from runner.errors import EngineError, OutOfMemoryError
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


def test_the_last_lines_are_the_plans_memory() -> None:
    gib = 1 << 30
    run = attempt(parameters=Total(gib, gib, "counted"), activations=Total(64 * gib, 8 * gib, "estimated"))
    with pytest.raises(OutOfMemoryError) as raised, exhausted.explained(run):
        raise ResourceExhaustedError("OOM when allocating tensor with shape[8,8]")
    assert str(raised.value) == "out of memory (OOM) on a GPU device of the mesh; see docs/memory.md"
    assert raised.value.details == (
        "memory of one device at the peak of a step:",
        "  weights           1.00 GiB  counted",
        "  activations       8.00 GiB  estimated",
        "  peak by the plan  9.00 GiB",
        "no single change is known to fit; see docs/memory.md",
    )


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


@pytest.mark.parametrize(("cluster", "machines"), [(ClusterConfig("local", 2), 1), (ClusterConfig("auto", 2), 2)])
def test_virtual_devices_share_the_memory_of_their_machine(cluster: ClusterConfig, machines: int) -> None:
    config = attempt().config
    config = replace(config, mesh=replace(config.mesh, device="cpu"), cluster=cluster)
    assert exhausted.capacity(config.mesh, config.cluster) == host_memory.total() * machines // 8
