"""GPUs and TPUs of this machine, read from files of the system: no library is loaded.

Sources: NVIDIA driver README, "The /proc file system"; CUDA C++ Programming Guide, "CUDA Environment Variables"; JAX's
`jax._src.hardware_utils` for the PCI numbers of TPUs.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from runner.cluster.process import file_text

# Tests replace it by a folder with the files of another machine.
ROOT = Path("/")
GPU = "gpu"
TPU = "tpu"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_VISIBLE_TPUS = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
_GOOGLE = "0x1ae0"
# PCI device to generation, and how many of JAX's devices a chip is.
_TPUS = {
    "0x0027": ("TPU v3", 2),
    "0x005e": ("TPU v4", 1),
    "0x0062": ("TPU v5p", 1),
    "0x0063": ("TPU v5e", 1),
    "0x006f": ("TPU v6e", 1),
    "0x0076": ("TPU7x", 2),
}


@dataclass(frozen=True)
class Accelerators:
    """Accelerators of one kind that this process may use, as devices of a mesh; no `model`: unknown, or several."""

    kind: str
    count: int
    model: str = ""

    def words(self) -> str:
        """Returns them as `8 GPUs (NVIDIA H100 80GB HBM3)`."""
        return counted(self.count, self.kind, self.model)


def counted(count: int, kind: str, model: str = "") -> str:
    """Returns a number of devices as `1 GPU`, `8 virtual CPU devices`, `4 TPUs (TPU v5e)`."""
    unit = kind.upper() if kind in (GPU, TPU) else "virtual CPU device"
    text = f"{count or 'no'} {unit}"
    if count > 1:
        text += "s"
    if model:
        text += f" ({model})"
    return text


def find(kind: str) -> Accelerators:
    """Returns the accelerators of a kind, `gpu` or `tpu`, that exist and are not hidden from this process."""
    return _gpus() if kind == GPU else _tpus()


def _gpus() -> Accelerators:
    # In a container, the device files are those of its own GPUs; /proc lists all GPUs of the host.
    nodes = _nodes("nvidia")
    models = set()
    for path in (ROOT / "proc/driver/nvidia/gpus").glob("*/information"):
        fields = dict(re.findall(r"(?m)^(.*?):\s*(.*?)\s*$", file_text(path)))
        if fields.get("Device Minor", "") in map(str, nodes):
            models.add(fields.get("Model", ""))
    count = len(nodes)
    visible = os.environ.get(VISIBLE_GPUS)
    if visible is not None:
        count = min(count, _visible_count(visible, count))
    model = ""
    if count and len(models) == 1:
        model = models.pop()
    return Accelerators(GPU, count, model)


def _nodes(prefix: str, folder: str = "dev") -> list[int]:
    """Returns the numbers of the device files that this process may open."""
    numbers = []
    for path in (ROOT / folder).glob(f"{prefix}[0-9]*"):
        match = re.fullmatch(rf"{prefix}(\d+)", path.name)
        if match and os.access(path, os.R_OK | os.W_OK):
            numbers.append(int(match[1]))
    return sorted(numbers)


def _visible_count(visible: str, count: int) -> int:
    """Returns how many GPUs CUDA_VISIBLE_DEVICES leaves: CUDA's list ends at the first entry that names none."""
    names = 0
    for entry in visible.split(","):
        name = entry.strip()
        is_index = name.isdigit() and int(name) < count
        if not is_index and not name.startswith(("GPU-", "MIG-")):
            break
        names += 1
    return names


def _tpus() -> Accelerators:
    chips = []
    for folder in sorted((ROOT / "sys/bus/pci/devices").glob("*")):
        device = file_text(folder / "device")
        if file_text(folder / "vendor") == _GOOGLE and device in _TPUS:
            chips.append(_TPUS[device])
    # Older drivers have `accel` device files, newer ones `vfio`. A container has those of its own chips only.
    nodes = _nodes("accel") or _nodes("", "dev/vfio")
    count = min(len(chips), len(nodes))
    for variable in _VISIBLE_TPUS:
        if variable in os.environ:
            count = min(count, len(re.findall(r"\d+", os.environ[variable])))
    if not count:
        return Accelerators(TPU, 0)
    model, devices_per_chip = chips[0]
    return Accelerators(TPU, count * devices_per_chip, model)


def absence(kind: str) -> str:
    """Returns the reason that this process has no accelerator of a kind, and the fix if there is one."""
    hidden = os.environ.get(VISIBLE_GPUS)
    if kind == GPU and hidden is not None and _nodes("nvidia"):
        return f"{VISIBLE_GPUS}={hidden} hides this machine's GPUs"
    return f"no {kind.upper()} is here"


def keep_to(count: int) -> None:
    """Hides all but the first `count` GPUs from this process: a library takes the memory of all that it sees."""
    os.environ[VISIBLE_GPUS] = ",".join(take(count)) or "-1"


def take(count: int) -> list[str]:
    """Returns the first of this process's GPUs, each as an entry of CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get(VISIBLE_GPUS)
    if visible:
        return visible.split(",")[:count]
    return list(map(str, range(count)))
