"""Checks that an engine's installed libraries can compute on accelerators.

Imports none of the libraries.
"""

from __future__ import annotations

import ast
import ctypes
import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.engine.registry import ENGINES
from runner.host.accelerators import GPU
from runner.host.versions import installed

# JAX computes on GPUs if the plugin of one of these CUDA versions is installed.
_CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
_TPU_LIBRARY = "libtpu"
INSTALLS = {
    ("jax", "gpu"): "pip install -e '.[cuda]'",
    ("jax", "tpu"): "pip install -e '.[tpu]'",
    ("tensorflow", "gpu"): "pip install -e '.[tf-cuda]'",
}


@dataclass(frozen=True)
class Lack:
    """A missing part of an installation.

    Attributes:
      what: in words.
      fix: command that installs it, or another setting.
    """

    what: str
    fix: str


def lack(engine: str, kind: str) -> Lack | None:
    """Returns what an engine lacks to use this machine's accelerators.

    Returns None if nothing is known to be missing.

    Args:
      engine: one of `ENGINES`.
      kind: `gpu` or `tpu`.
    """
    library = ENGINES[engine].libraries[0]
    if library == "jax":
        return _jax_lack(kind)
    if library == "tensorflow":
        return _tensorflow_lack(engine, kind)
    return None


def _jax_lack(kind: str) -> Lack | None:
    modules: tuple[str, ...] = (_TPU_LIBRARY,)
    name = _TPU_LIBRARY
    if kind == GPU:
        modules = _CUDA_PLUGINS
        name = "CUDA"
    if any(map(importlib.util.find_spec, modules)):
        return None
    return Lack(f"the installed JAX has no {name}", INSTALLS["jax", kind])


def _tensorflow_lack(engine: str, kind: str) -> Lack | None:
    if kind != GPU:
        return Lack(f"engine={engine} does not compute on TPUs", "set engine=jax")
    build = _tensorflow_build()
    if build and not build.get("is_cuda_build"):
        return Lack("the installed TensorFlow is built without CUDA", "use PyPI's for Linux on x86-64, or engine=jax")
    if _has_cuda_wheels() or _loads_system_cuda(build):
        return None
    return Lack("TensorFlow finds no CUDA libraries", INSTALLS["tensorflow", kind])


def _tensorflow_build() -> Mapping[str, object]:
    """Returns TensorFlow's build settings, read from its `build_info.py`.

    The result is empty if that can't be read.
    """
    # An import of TensorFlow would take seconds, and read the environment before it is set.
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.origin:
        return {}
    with suppress(OSError, ValueError, SyntaxError):
        text = (Path(spec.origin).parent / "python/platform/build_info.py").read_text()
        match = re.search(r"build_info = collections\.OrderedDict\((\[.*\])\)", text)
        if match:
            return dict(ast.literal_eval(match[1]))
    return {}


def _has_cuda_wheels() -> bool:
    """Returns whether all requirements of `tensorflow[and-cuda]` are installed."""
    try:
        requirements = importlib.metadata.requires("tensorflow") or []
    except importlib.metadata.PackageNotFoundError:
        return False
    names = []
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement)
        if "and-cuda" in requirement and name is not None:
            names.append(name[0])
    return bool(names) and len(installed(names)) == len(names)


def _loads_system_cuda(build: Mapping[str, object]) -> bool:
    """Returns whether the system's loader finds the CUDA and cuDNN of TensorFlow."""
    # Libraries are loaded by their major version.
    cuda = str(build.get("cuda_version", "")).partition(".")[0]
    cudnn = str(build.get("cudnn_version", "")).partition(".")[0]
    try:
        for name in (f"libcudart.so.{cuda}", f"libcublas.so.{cuda}", f"libcudnn.so.{cudnn}"):
            ctypes.CDLL(name)
    except OSError:
        return False
    return True
