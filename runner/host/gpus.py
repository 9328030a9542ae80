"""Utilization and memory of this process's NVIDIA GPUs, if the package nvidia-ml-py is installed."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any


class Gpus:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves to this process, in its order; none if they can't be measured."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            self._nvml = import_module("pynvml")
            self._nvml.nvmlInit()
            self._handles = [self._handle(name) for name in self._visible()]
        except Exception:
            # No package, no driver, or a GPU that is a slice of one (MIG): there is nothing to measure.
            self._handles = []

    def measure(self) -> dict[str, float]:
        """Returns `gpu-<i>_percent`, the share of time with a kernel running, and `gpu-<i>_memory_mb` of all users."""
        figures: dict[str, float] = {}
        try:
            for index, handle in enumerate(self._handles):
                figures[f"gpu-{index}_percent"] = float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
                figures[f"gpu-{index}_memory_mb"] = self._nvml.nvmlDeviceGetMemoryInfo(handle).used / 1e6
        except Exception:
            # A GPU was lost, or does not report what others do: a run needs no such figures.
            self._handles = []
        return figures

    def _visible(self) -> list[str]:
        """Returns the visible GPUs as CUDA names them: by index or by UUID."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return [str(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        names = [name.strip() for name in visible.split(",")]
        return [name for name in names if name not in ("", "-1")]

    def _handle(self, name: str) -> Any:
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)
