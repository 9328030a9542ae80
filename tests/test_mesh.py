import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.config import values
from runner.config.schema import MeshConfig
from runner.errors import ConfigError
from runner.layout import mesh


def test_given_sizes_stay_as_they_are_and_in_order() -> None:
    resolved = mesh.resolve_axes(MeshConfig(axes={"model": 2, "batch": 4}), 8)
    assert list(resolved.items()) == [("model", 2), ("batch", 4)]


@pytest.mark.parametrize(
    ("axes", "devices", "resolved"),
    [
        ({"batch": -1}, 8, {"batch": 8}),
        ({"batch": -1, "model": 4}, 8, {"batch": 2, "model": 4}),
        ({"batch": 8, "model": -1}, 8, {"batch": 8, "model": 1}),
        ({"batch": -1}, 1, {"batch": 1}),
    ],
)
def test_minus_one_takes_the_rest_of_the_devices(axes: dict[str, int], devices: int, resolved: dict[str, int]) -> None:
    assert mesh.resolve_axes(MeshConfig(axes=axes), devices) == resolved


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (MeshConfig(), ("mesh.axes={}", "at least one axis", "mesh=single")),
        (MeshConfig(axes={"a": -1, "b": -1}), ("mesh.axes.b=-1", "only one axis may be -1, but a is too")),
        (MeshConfig(axes={"a": -1, "b": 3}), ("mesh.axes.a=-1", "(3) must divide the 8", "mesh.axes.a=2")),
        (
            MeshConfig(axes={"a": 4, "b": 4}),
            ("{a:4,b:4}", "16 devices", "only 8 CPU devices are available", "mesh.cpu_devices=16"),
        ),
        (MeshConfig(axes={"a": -1, "b": 9}), ("{a:-1,b:9}", "9 devices", "mesh.cpu_devices=9")),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(config: MeshConfig, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        mesh.resolve_axes(config, 8)
    for part in parts:
        assert part in str(caught.value)


def test_accelerators_are_as_many_as_are_told() -> None:
    assert mesh.resolve_axes(MeshConfig(axes={"batch": -1}, device="gpu"), 2) == {"batch": 2}
    with pytest.raises(
        ConfigError, match=r"needs 3 devices, but only 2 GPU devices .* smaller mesh, or set mesh\.device=c"
    ):
        mesh.resolve_axes(MeshConfig(axes={"batch": 3}, device="gpu"), 2)


@given(
    axes=st.dictionaries(
        st.sampled_from(["batch", "model", "expert"]), st.one_of(st.just(-1), st.integers(-2, 12)), max_size=3
    ),
    devices=st.integers(1, 64),
)
def test_resolved_axes_fit_the_devices_and_keep_the_given_sizes(axes: dict[str, int], devices: int) -> None:
    config = MeshConfig(axes=axes, cpu_devices=devices)
    try:
        values.check(config, "mesh")
        resolved = mesh.resolve_axes(config, devices)
    except ConfigError:
        return
    assert list(resolved) == list(axes)
    assert all(size >= 1 for size in resolved.values())
    assert all(resolved[name] == size for name, size in axes.items() if size != -1)
    assert math.prod(resolved.values()) <= devices
    if -1 in axes.values():
        assert math.prod(resolved.values()) == devices


def test_size_is_the_product_and_describe_names_the_axes_in_order() -> None:
    assert mesh.size({"batch": 4, "model": 2}) == 8
    assert mesh.describe({"batch": 4, "model": 2}) == "batch=4 model=2"
    assert mesh.describe({"model": 2, "batch": 4}) == "model=2 batch=4"


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_an_axis_crosses_where_a_group_along_it_lies_in_several_processes(
    sizes: list[int], data: st.DataObject
) -> None:
    axes = {f"axis{number}": count for number, count in enumerate(sizes)}
    devices = mesh.size(axes)
    processes = data.draw(st.sampled_from([each for each in range(1, devices + 1) if devices % each == 0]))
    places = np.arange(devices).reshape(sizes)
    home = places // (devices // processes)
    expected = [name for number, name in enumerate(axes) if np.any(home.min(axis=number) != home.max(axis=number))]
    assert mesh.crossing(axes, processes) == expected
