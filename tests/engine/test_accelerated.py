"""What the installed libraries lack for accelerators, told without importing them."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from runner.engine import accelerated
from runner.engine.accelerated import Lack, lack
from runner.engine.registry import ENGINES

REQUIRES = [
    "numpy>=1.26",
    'nvidia-cudnn-cu12<10.0,>=9.3.0.75; extra == "and-cuda"',
    'nvidia-nccl-cu12; extra == "and-cuda"',
]
BUILD = """import collections
build_info = collections.OrderedDict([('cuda_version', '12.5.1'), ('cudnn_version', '9'), ('is_cuda_build', {cuda})])
"""


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what is installed: modules, distributions, libraries of the system, and how TensorFlow is built."""

    def install(*modules: str, wheels: Sequence[str] = (), system: Sequence[str] = (), cuda: bool = True) -> None:
        folder = tmp_path / "tensorflow"
        (folder / "python/platform").mkdir(parents=True, exist_ok=True)
        (folder / "python/platform/build_info.py").write_text(BUILD.format(cuda=cuda))
        made = {"tensorflow": ModuleSpec("tensorflow", None, origin=str(folder / "__init__.py"))}
        made |= {module: ModuleSpec(module, None) for module in modules}

        def load(name: str) -> None:
            if name not in system:
                raise OSError(name)

        def installed(names: Iterable[str]) -> dict[str, str]:
            return {name: "1" for name in names if name in wheels}

        monkeypatch.setattr(importlib.util, "find_spec", made.get)
        monkeypatch.setattr(importlib.metadata, "requires", lambda _: REQUIRES)
        monkeypatch.setattr(accelerated, "installed", installed)
        monkeypatch.setattr(ctypes, "CDLL", load)

    return install


def test_jax_needs_a_plugin(libraries: Callable[..., None]) -> None:
    libraries()
    assert lack("jax", "gpu") == Lack("the installed JAX has no CUDA", "pip install -e '.[cuda]'")
    assert lack("jax", "tpu") == Lack("the installed JAX has no libtpu", "pip install -e '.[tpu]'")
    for plugin in ("jax_cuda12_plugin", "jax_cuda13_plugin"):
        libraries(plugin)
        assert lack("jax", "gpu") is None
    libraries("libtpu")
    assert lack("jax", "tpu") is None
    assert lack("jax", "gpu") is not None


@pytest.mark.parametrize("engine", ["keras_dtensor", "core_dtensor"])
def test_tensorflow_needs_cudas_wheels_or_the_systems_libraries(libraries: Callable[..., None], engine: str) -> None:
    missing = Lack("TensorFlow finds no CUDA libraries", "pip install -e '.[tf-cuda]'")
    libraries()
    assert lack(engine, "gpu") == missing
    libraries(wheels=["nvidia-cudnn-cu12"])
    assert lack(engine, "gpu") == missing, "not all of them"
    libraries(wheels=["nvidia-cudnn-cu12", "nvidia-nccl-cu12"])
    assert lack(engine, "gpu") is None
    libraries(system=["libcudart.so.12", "libcublas.so.12", "libcudnn.so.9"])
    assert lack(engine, "gpu") is None
    libraries(system=["libcudart.so.11", "libcublas.so.11", "libcudnn.so.8"])
    assert lack(engine, "gpu") == missing, "of another version"
    libraries(wheels=["nvidia-cudnn-cu12", "nvidia-nccl-cu12"], cuda=False)
    found = lack(engine, "gpu")
    assert found is not None
    assert found.what == "the installed TensorFlow is built without CUDA"


def test_tpus_are_for_jax_alone(libraries: Callable[..., None]) -> None:
    libraries("libtpu")
    assert lack("keras_dtensor", "tpu") == Lack("engine=keras_dtensor does not compute on TPUs", "set engine=jax")


def test_the_real_libraries_are_asked_in_no_time_and_not_imported() -> None:
    code = (
        "import sys, time; from runner.engine.accelerated import lack, _tensorflow_build; begun = time.perf_counter();"
        f"[lack(name, kind) for name in {sorted(ENGINES)} for kind in ('gpu', 'tpu')];"
        "seconds = time.perf_counter() - begun;"
        "print(sorted({'tensorflow', 'jax', 'keras', 'numpy'} & set(sys.modules)), seconds, len(_tensorflow_build()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported, seconds, known = done.stdout.rsplit(maxsplit=2)
    assert imported == "[]"
    assert float(seconds) < 1.0  # 0.1 s on a machine that has nothing else to do
    assert int(known) > 2, "TensorFlow's build_info.py is read as it is written today"
