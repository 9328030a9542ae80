"""What the installed libraries lack for accelerators, here or elsewhere, found without importing them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from runner.engine.registry import ENGINES
from runner.host.accelerators import GPU

# JAX computes on GPUs if the plugin of one of these CUDA versions is installed.
_CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
_TPU_LIBRARY = "libtpu"
INSTALLS = {("jax", "gpu"): "pip install -e '.[cuda]'", ("jax", "tpu"): "pip install -e '.[tpu]'"}
# The compilers of accelerators that need not be here: kind -> Python module, and extra that installs it.
COMPILERS = {"gpu": ("jax_plugins.xla_cuda12", "cuda"), "tpu": ("libtpu", "tpu")}


@dataclass(frozen=True)
class Lack:
    """What is missing, in words, and the command that installs it, or another setting."""

    what: str
    fix: str


def lack(engine: str, kind: str) -> Lack | None:
    """Returns what an engine lacks to use accelerators of a kind, `gpu` or `tpu`; None if nothing is known."""
    if not ENGINES[engine].full:
        return Lack(f"engine={engine} has no support", "set engine=jax")
    modules: tuple[str, ...] = (_TPU_LIBRARY,)
    name = _TPU_LIBRARY
    if kind == GPU:
        modules = _CUDA_PLUGINS
        name = "CUDA"
    if any(map(importlib.util.find_spec, modules)):
        return None
    return Lack(f"the installed JAX has no {name}", INSTALLS["jax", kind])


def has_compiler(kind: str) -> bool:
    """Returns whether the compiler of a kind of device is installed."""
    if kind not in COMPILERS:
        return False
    module, _ = COMPILERS[kind]
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
