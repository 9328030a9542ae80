"""Which devices a mesh is made of: by name or by `auto`, on machines that are folders."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from runner.cluster import accelerators, place
from runner.cluster.place import Place
from runner.config.schema import ClusterConfig, EngineConfig, MeshConfig, RunConfig
from runner.engine import devices
from runner.engine.devices import Lack
from runner.errors import ConfigError
from runner.layout import mesh
from runner.plan.checks.run import check, convert
from tests.config.test_config import composed
from tests.configs import with_keys
from tests.fake_machine import H100, gpus, tpus

CUDA = Lack("the installed JAX has no CUDA", "pip install -e '.[cuda]'")
NOTHING = Lack("nothing works", "fix it")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(accelerators, "ROOT", tmp_path)
    for name in ("CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS"):
        monkeypatch.delenv(name, raising=False)
    able(monkeypatch)
    return tmp_path


def able(monkeypatch: pytest.MonkeyPatch, **lacking: Lack) -> None:
    """Sets what engines lack: as they are installed with all that they can have, but for those named."""

    def lack(engine: str, _: str) -> Lack | None:
        return NOTHING if engine != "jax" else lacking.get(engine)

    monkeypatch.setattr(devices, "lack", lack)


def config(device: str = "auto", engine: str = "jax", **axes: int) -> RunConfig:
    return RunConfig(
        engine=EngineConfig(name=engine), mesh=MeshConfig(axes=axes or {"batch": 8}, device=device, cpu_devices=16)
    )


def settle(made: RunConfig) -> tuple[str, str]:
    """Returns the kind that is settled, and the line."""
    composed = OmegaConf.create({"mesh": {"device": made.mesh.device}})
    choice = devices.choose(made.mesh, made.engine.name, made.cluster, made.hardware)
    made = with_keys(made, {"mesh.device": choice.kind})
    made = with_keys(made, {"mesh.axes": mesh.resolve_axes(made.mesh, choice.count)})
    return choice.kind, "".join(devices.device_lines(made, composed))


@pytest.mark.parametrize("engine", ["jax", "keras_dtensor"])
def test_a_machine_with_nothing_computes_on_its_cpu(engine: str) -> None:
    assert settle(config(engine=engine)) == ("cpu", "mesh batch=8 on 8 virtual CPU devices")
    assert settle(config(engine=engine, batch=1)) == ("cpu", "mesh batch=1 on 1 virtual CPU device")


def test_gpus_that_the_mesh_fits_are_taken_as_many_as_it_needs(root: Path) -> None:
    gpus(root, *[H100] * 8)
    assert settle(config()) == ("gpu", f"mesh batch=8 on 8 GPUs ({H100})")
    assert settle(config(batch=2, model=2)) == ("gpu", f"mesh batch=2 model=2 on 4 GPUs ({H100})")
    assert settle(config(batch=-1, model=2)) == ("gpu", f"mesh batch=4 model=2 on 8 GPUs ({H100})")


def test_a_mesh_that_gpus_do_not_fit_is_the_cpus_and_says_which_would_fit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(root, *[H100] * 4)
    why = f"the mesh does not fit the 4 GPUs ({H100}) here; mesh=data uses all of them"
    words = f"mesh batch=8 on 8 virtual CPU devices: {why}"
    assert settle(config()) == ("cpu", words)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert settle(config())[1].endswith(f"the mesh does not fit the 1 GPU ({H100}) here; mesh=single uses it")


def test_hidden_gpus_are_not_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(root, *[H100] * 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert settle(config()) == ("cpu", "mesh batch=8 on 8 virtual CPU devices")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert settle(config(batch=-1)) == ("gpu", f"mesh batch=2 on 2 GPUs ({H100})")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(ConfigError, match=r"^mesh\.device=gpu: CUDA_VISIBLE_DEVICES=-1 hides this machine's"):
        settle(config("gpu"))


def test_gpus_that_the_libraries_can_not_use_are_left_and_the_install_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(root, *[H100] * 8)
    able(monkeypatch, jax=CUDA)
    words = f"the installed JAX has no CUDA for the 8 GPUs ({H100}) here; pip install -e '.[cuda]'"
    assert settle(config()) == ("cpu", f"mesh batch=8 on 8 virtual CPU devices: {words}")
    assert "does not fit the 8 GPUs" in settle(config(batch=16))[1], "an install would not help"
    with pytest.raises(ConfigError) as caught:
        settle(config("gpu"))
    assert str(caught.value) == f"mesh.device=gpu: {words}, or set mesh.device=cpu"


def test_tpus_are_jaxs_and_come_first(root: Path) -> None:
    tpus(root, 4, "0x005e")
    assert settle(config(batch=4)) == ("tpu", "mesh batch=4 on 4 TPUs (TPU v4)")
    kind, line = settle(config(engine="keras_dtensor", batch=4))
    assert kind == "cpu"
    assert line.endswith("4 virtual CPU devices: nothing works for the 4 TPUs (TPU v4) here; fix it")
    gpus(root, H100, H100)
    assert settle(config(batch=2))[0] == "tpu"
    assert settle(config(engine="keras_dtensor", batch=2))[0] == "cpu"


def test_a_kind_that_is_named_is_taken_or_refused(root: Path) -> None:
    gpus(root, *[H100] * 4)
    assert settle(config("cpu", batch=4)) == ("cpu", "mesh batch=4 on 4 virtual CPU devices")
    assert settle(config("gpu", batch=4)) == ("gpu", f"mesh batch=4 on 4 GPUs ({H100})")
    with pytest.raises(ConfigError) as few:
        settle(config("gpu"))
    assert str(few.value) == (
        "mesh.axes={batch:8}: needs 8 devices, but only 4 GPU devices are available; choose a smaller mesh, or "
        "set mesh.device=cpu"
    )
    with pytest.raises(
        ConfigError,
        match=r"^mesh\.device=tpu: no TPU is here; .* plan the run with .* runner\.plan, which needs no TPU",
    ):
        settle(config("tpu"))


def test_processes_of_this_machine_share_its_gpus_out_and_the_others_are_told_so(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(root, *[H100] * 4)
    local = ClusterConfig(name="local", processes=2)
    launcher = with_keys(config(batch=4), {"cluster": local})
    assert settle(launcher) == ("gpu", f"mesh batch=4 on 4 GPUs ({H100}) in 2 processes")
    too_large = with_keys(config(), {"cluster": local})
    assert settle(too_large)[0] == "cpu"
    # A process that it has started sees its share.
    for device, visible, axes in (("gpu", "2,3", {"batch": 4}), ("cpu", "0,1,2,3", {"batch": 8})):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setattr(place, "_launched", [Place(1, 2, "127.0.0.1", 1, "", "local", device)])
        child = with_keys(config(**axes), {"cluster": local})
        assert settle(child)[0] == device


@pytest.fixture
def planning(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SimpleNamespace(name="runner.plan.__main__")
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))


@pytest.mark.usefixtures("planning")
def test_a_plan_needs_no_gpu_and_says_that_none_is_here(root: Path) -> None:
    words = "mesh batch=8 on 8 GPUs, planned on virtual CPU devices, as no GPU is here"
    assert settle(config("gpu")) == ("gpu", words)
    assert settle(config())[1] == "mesh batch=8 on 8 virtual CPU devices", "auto is what is here"
    with pytest.raises(ConfigError, match=r"^mesh\.axes\.batch=-1: there is no GPU here to count; set mesh.axes.b"):
        settle(config("gpu", batch=-1))
    gpus(root, *[H100] * 4)
    assert settle(config("gpu"))[1].endswith(f"planned on virtual CPU devices, as 4 GPUs ({H100}) are here")
    assert settle(config("gpu", batch=4))[1] == f"mesh batch=4 on 4 GPUs ({H100}), planned on virtual CPU devices"
    assert settle(config(batch=4))[0] == "gpu"


def test_auto_is_the_default_and_the_record_has_what_it_became(root: Path) -> None:
    assert convert(composed("mesh=batch8", "engine=jax")).mesh.device == "cpu"
    gpus(root, *[H100] * 8)
    assert convert(composed("mesh=batch8", "engine=jax")).mesh.device == "gpu"
    assert convert(composed("mesh=batch8", "engine=jax", "mesh.device=cpu")).mesh.device == "cpu"


def test_what_is_settled_stays_so(root: Path) -> None:
    made = convert(composed("mesh=batch8"))
    gpus(root, *[H100] * 8)
    check(made)
    assert made.mesh.device == "cpu"
