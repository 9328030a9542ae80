"""The rule by which a mesh is reduced to the devices that are left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.config.schema import ClusterConfig, DatasetConfig, LayoutConfig, MeshConfig, RuleConfig, RunConfig
from runner.engine import elastic
from runner.errors import ConfigError, PassingError


def config(
    axes: dict[str, int], devices: int, folder: Path, batch_size: int = 48, processes: int | None = None
) -> RunConfig:
    file = folder / "devices.txt"
    file.write_text(f"{devices}\n")
    name = "single" if processes is None else "local"
    cluster = ClusterConfig(name=name, processes=processes, elastic=True, devices_file=str(file))
    dataset = DatasetConfig(batch_size=batch_size, eval_batch_size=None)
    return RunConfig(mesh=MeshConfig(axes=axes, device="cpu"), cluster=cluster, dataset=dataset)


@pytest.mark.parametrize(
    ("axes", "devices", "batch_size", "expected"),
    [
        ({"batch": 8}, 8, 48, {"batch": 8}),
        ({"batch": 8}, 6, 48, {"batch": 6}),
        # 64 examples can't be divided by 6 or 5 devices.
        ({"batch": 8}, 6, 64, {"batch": 4}),
        ({"batch": 8}, 7, 49, {"batch": 7}),
        # More devices than before are used up to the configured number.
        ({"batch": 4}, 8, 48, {"batch": 4}),
        ({"batch": -1}, 6, 48, {"batch": 6}),
        ({"batch": 4, "model": 2}, 7, 48, {"batch": 3, "model": 2}),
        ({"batch": 4, "model": 2}, 2, 48, {"batch": 1, "model": 2}),
    ],
)
def test_the_batch_axis_gets_the_largest_size_that_divides_the_batch(
    tmp_path: Path, axes: dict[str, int], devices: int, batch_size: int, expected: dict[str, int]
) -> None:
    assert elastic.fitted(config(axes, devices, tmp_path, batch_size)).mesh.axes == expected


def test_a_layout_that_shards_variables_over_the_batch_axis_keeps_their_dims_divisible(tmp_path: Path) -> None:
    whole = config({"batch": 8}, 6, tmp_path)
    sharded = replace(whole, layout=LayoutConfig(rules=[RuleConfig(match=".*", shard="batch")]))
    assert elastic.fitted(whole).mesh.axes == {"batch": 6}
    assert elastic.fitted(sharded).mesh.axes == {"batch": 4}


@pytest.mark.parametrize(
    ("processes", "devices", "expected"),
    [(4, 8, 4), (4, 6, 3), (4, 4, 2), (2, 6, 2), (8, 3, 3), (4, 1, 1)],
)
def test_processes_keep_their_number_of_devices_if_that_fits(
    tmp_path: Path, processes: int, devices: int, expected: int
) -> None:
    assert elastic.fitted(config({"batch": 8}, devices, tmp_path, processes=processes)).cluster.processes == expected


def test_the_launcher_decides_for_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = elastic.fitted(config({"batch": 8}, 6, tmp_path, processes=4))
    monkeypatch.setenv(elastic.VARIABLE, elastic.environment(fitted)[elastic.VARIABLE])
    assert elastic.fitted(config({"batch": 8}, 8, tmp_path, processes=4)).mesh.axes == {"batch": 6}


def test_too_few_devices_may_pass_and_a_mesh_without_a_batch_axis_may_not(tmp_path: Path) -> None:
    with pytest.raises(PassingError, match="1 devices are left, and the axes beside 'batch' need 2"):
        elastic.fitted(config({"batch": 4, "model": 2}, 1, tmp_path))
    with pytest.raises(ConfigError, match="no axis that shards the batch"):
        elastic.fitted(config({"model": 4}, 2, tmp_path))
    broken = config({"batch": 4}, 2, tmp_path)
    (tmp_path / "devices.txt").write_text("many")
    with pytest.raises(PassingError, match="must contain a number, and contains 'many'"):
        elastic.fitted(broken)


def test_a_run_that_is_not_elastic_is_unchanged(tmp_path: Path) -> None:
    whole = config({"batch": 8}, 2, tmp_path)
    fixed = replace(whole, cluster=replace(whole.cluster, elastic=False))
    assert elastic.fitted(fixed) is fixed
