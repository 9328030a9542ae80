"""What this process's NVIDIA GPUs do, where the package nvidia-ml-py is installed; nothing elsewhere."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any


class Gpus:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves to this process, numbered as it numbers them."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            self._nvml = import_module("pynvml")
            self._nvml.nvmlInit()
            self._handles = [self._handle(word) for word in self._visible()]
        except Exception:  # no package, no driver, a GPU that is a slice of one: there is nothing to measure
            self._handles = []

    def measure(self) -> dict[str, float]:
        """Returns `gpu-<i>_percent`, the share of time in which it computed, and `gpu-<i>_memory_mb`, taken by all."""
        found: dict[str, float] = {}
        try:
            for index, handle in enumerate(self._handles):
                found[f"gpu-{index}_percent"] = float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
                found[f"gpu-{index}_memory_mb"] = self._nvml.nvmlDeviceGetMemoryInfo(handle).used / 1e6
        except Exception:  # it fell off the bus, or tells less than others
            self._handles = []
        return found

    def _visible(self) -> list[str]:
        words = os.environ.get("CUDA_VISIBLE_DEVICES")
        if words is None:
            return [str(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        return [word.strip() for word in words.split(",") if word.strip() not in ("", "-1")]

    def _handle(self, word: str) -> Any:
        if word.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(word))
        return self._nvml.nvmlDeviceGetHandleByUUID(word)
