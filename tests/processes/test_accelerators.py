"""Which accelerators a machine shows, on machines that are folders."""

import os
from pathlib import Path

import pytest

from runner.cluster import accelerators
from runner.cluster.accelerators import Accelerators, find
from tests.fake_machine import H100, card, gpus, tpus, write

NONE = [Accelerators("gpu", 0), Accelerators("tpu", 0)]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(accelerators, "ROOT", tmp_path)
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
    return tmp_path


def test_a_machine_without_any_has_none(root: Path) -> None:
    assert [find("gpu"), find("tpu")] == NONE
    write(root / "dev/nvidiactl")  # a driver without a GPU
    write(root / "dev/vfio/7")  # handed on to a virtual machine, whatever it is
    card(root, "0000:00:01.0", "0x1ae0", "0x0042", "0x020000")  # Google's network card
    assert [find("gpu"), find("tpu")] == NONE
    assert accelerators.absence("gpu") == "no GPU is here"


def test_gpus_are_counted_and_named(root: Path) -> None:
    gpus(root, *[H100] * 8)
    assert find("gpu") == Accelerators("gpu", 8, H100)
    assert find("gpu").words() == "8 GPUs (NVIDIA H100 80GB HBM3)"


def test_a_container_has_the_gpus_of_its_device_files_and_not_all_of_its_host(root: Path) -> None:
    gpus(root, H100, H100, "NVIDIA A100", H100, minors=(2,))
    assert find("gpu") == Accelerators("gpu", 1, "NVIDIA A100")


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        ("0,3", 2),
        ("0, 3", 2),
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("1,-1,2", 1),  # CUDA's list ends there
        ("0,8", 1),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 1),
    ],
)
def test_hidden_gpus_do_not_count(root: Path, visible: str, count: int) -> None:
    gpus(root, *[H100] * 8)
    os.environ["CUDA_VISIBLE_DEVICES"] = visible
    assert find("gpu") == Accelerators("gpu", count, H100 if count else "")
    assert accelerators.absence("gpu") == f"CUDA_VISIBLE_DEVICES={visible} hides this machine's GPUs"


@pytest.mark.parametrize(
    ("device", "node", "expected"),
    [
        ("0x005e", "accel", Accelerators("tpu", 4, "TPU v4")),
        ("0x0063", "vfio/", Accelerators("tpu", 4, "TPU v5e")),
        ("0x0027", "accel", Accelerators("tpu", 8, "TPU v3")),  # two cores a chip
    ],
)
def test_tpus_are_counted_as_jax_does(root: Path, device: str, node: str, expected: Accelerators) -> None:
    tpus(root, 4, device, node)
    assert find("tpu") == expected
    assert find("gpu").count == 0
    os.environ["TPU_VISIBLE_CHIPS"] = "0,1"
    assert find("tpu").count == expected.count // 2


def test_a_process_keeps_to_as_many_gpus_as_it_computes_with() -> None:
    accelerators.keep_to(2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    os.environ["CUDA_VISIBLE_DEVICES"] = "4,5,6"
    accelerators.keep_to(2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5"
    accelerators.keep_to(0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"
