"""What the installed libraries lack for accelerators, told without importing them."""

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from runner.engine.devices import Lack, lack
from runner.engine.registry import ENGINES
from tests import forks


def test_jax_needs_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: set[str] = set()
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: ModuleSpec(name, None) if name in installed else None
    )
    assert lack("jax", "gpu") == Lack("the installed JAX has no CUDA", "pip install -e '.[cuda]'")
    assert lack("jax", "tpu") == Lack("the installed JAX has no libtpu", "pip install -e '.[tpu]'")
    for plugin in ("jax_cuda12_plugin", "jax_cuda13_plugin"):
        installed = {plugin}
        assert lack("jax", "gpu") is None
    installed = {"libtpu"}
    assert lack("jax", "tpu") is None
    assert lack("jax", "gpu") is not None


def test_accelerators_are_for_jax_alone() -> None:
    for kind in ("gpu", "tpu"):
        assert lack("keras_dtensor", kind) == Lack("engine=keras_dtensor has no support", "set engine=jax")


def test_the_real_libraries_are_asked_and_not_imported() -> None:
    code = (
        "import sys; from runner.engine.devices import lack;"
        f"[lack(name, kind) for name in {sorted(ENGINES)} for kind in ('gpu', 'tpu')];"
        "print(sorted({'tensorflow', 'jax', 'keras', 'numpy'} & set(sys.modules)))"
    )
    assert forks.python("-c", code).stdout.strip() == "[]"
