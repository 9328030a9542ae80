"""What an engine's installed libraries lack to compute on accelerators. Imports none of them."""

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

_CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
INSTALLS = {
    ("jax", "gpu"): "pip install -e '.[cuda]'",
    ("jax", "tpu"): "pip install -e '.[tpu]'",
    ("tensorflow", "gpu"): "pip install -e '.[tf-cuda]'",
}


@dataclass(frozen=True)
class Lack:
    """What is missing.

    Attributes:
      what: in words.
      fix: the command that installs it, or another setting.
    """

    what: str
    fix: str


def lack(engine: str, kind: str) -> Lack | None:
    """Returns what an engine lacks for accelerators that are there; None: nothing that can be seen from here.

    Args:
      engine: one of `ENGINES`.
      kind: `gpu` or `tpu`.
    """
    library = ENGINES[engine].libraries[0]
    if library == "jax":
        modules, called = (_CUDA_PLUGINS, "CUDA") if kind == GPU else (("libtpu",), "libtpu")
        if any(importlib.util.find_spec(module) is not None for module in modules):
            return None
        return Lack(f"the installed JAX has no {called}", INSTALLS["jax", kind])
    if kind != GPU:
        return Lack(f"engine={engine} does not compute on TPUs", "set engine=jax")
    build = _tensorflow_build()
    if build and not build.get("is_cuda_build"):
        return Lack("the installed TensorFlow is built without CUDA", "use PyPI's for Linux on x86-64, or engine=jax")
    if _has_wheels() or _loads(build):
        return None
    return Lack("TensorFlow finds no CUDA libraries", INSTALLS["tensorflow", kind])


def _tensorflow_build() -> Mapping[str, object]:
    """Returns what TensorFlow's own file says of its build; empty where it can't be read."""
    found = importlib.util.find_spec("tensorflow")
    if found is not None and found.origin:
        with suppress(OSError, ValueError, SyntaxError):
            text = (Path(found.origin).parent / "python/platform/build_info.py").read_text()
            pairs = re.search(r"build_info = collections\.OrderedDict\((\[.*\])\)", text)
            return dict(ast.literal_eval(pairs[1])) if pairs else {}
    return {}


def _has_wheels() -> bool:
    """Tells whether all is installed that `tensorflow[and-cuda]` asks for."""
    try:
        asked = importlib.metadata.requires("tensorflow") or []
    except importlib.metadata.PackageNotFoundError:
        return False
    names = [one[0] for line in asked if "and-cuda" in line and (one := re.match(r"[\w.-]+", line))]
    return bool(names) and len(installed(names)) == len(names)


def _loads(build: Mapping[str, object]) -> bool:
    """Tells whether the system's loader finds CUDA and cuDNN, as TensorFlow will ask it to."""
    cuda, cudnn = (str(build.get(key, "")).partition(".")[0] for key in ("cuda_version", "cudnn_version"))
    try:
        for name in (f"libcudart.so.{cuda}", f"libcublas.so.{cuda}", f"libcudnn.so.{cudnn}"):
            ctypes.CDLL(name)
    except OSError:
        return False
    return True
