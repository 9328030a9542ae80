"""GPUs and TPUs of this machine, read from files of the system: no library is loaded.

Sources: NVIDIA driver README, "The /proc file system"; CUDA C++ Programming Guide, "CUDA Environment Variables"; JAX's
`jax._src.hardware_utils` for the PCI numbers of TPUs.
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Tests replace it by a folder with the files of another machine.
ROOT = Path("/")
GPU = "gpu"
TPU = "tpu"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_VISIBLE_TPUS = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
_NVIDIA = "0x10de"
_GOOGLE = "0x1ae0"
# PCI classes of GPUs; a card has sound and USB devices too.
_DISPLAYS = ("0x0300", "0x0302")
# PCI device to generation, and how many of JAX's devices a chip is.
_TPUS = {
    "0x0027": ("TPU v3", 2),
    "0x005e": ("TPU v4", 1),
    "0x0062": ("TPU v5p", 1),
    "0x0063": ("TPU v5e", 1),
    "0x006f": ("TPU v6e", 1),
    "0x0076": ("TPU7x", 2),
}
# `nvidia-smi` may hang with a broken driver, and a command that only lists devices should not.
_NVIDIA_SMI_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Accelerators:
    """The accelerators of one kind that this process may use.

    Attributes:
      kind: `gpu` or `tpu`.
      count: as devices of a mesh.
      model: of all of them; empty if it is not known, or if there are several models.
    """

    kind: str
    count: int
    model: str = ""

    def words(self) -> str:
        """Returns them as `8 GPUs (NVIDIA H100 80GB HBM3)`."""
        return counted(self.count, self.kind, self.model)


@dataclass(frozen=True)
class _PciDevice:
    """A device on the PCI bus: its numbers, as in `/sys/bus/pci/devices`."""

    vendor: str
    device: str
    device_class: str


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
    models: tuple[str, ...] = ()
    if nodes:
        count = len(nodes)
        models = _models(nodes)
    else:
        # Windows' Linux (WSL) has no device files per GPU.
        if (ROOT / "dev/dxg").exists():
            models = _listed_by_nvidia_smi()
        count = len(models)
    visible = os.environ.get(VISIBLE_GPUS)
    if visible is not None:
        count = min(count, _visible_count(visible, count))
    is_one_model = count > 0 and len(set(models)) == 1
    return Accelerators(GPU, count, models[0] if is_one_model else "")


def _nodes(prefix: str, folder: str = "dev") -> list[int]:
    """Returns the numbers of the device files that this process may open."""
    numbers = []
    for path in (ROOT / folder).glob(f"{prefix}[0-9]*"):
        match = re.fullmatch(rf"{prefix}(\d+)", path.name)
        if match and os.access(path, os.R_OK | os.W_OK):
            numbers.append(int(match[1]))
    return sorted(numbers)


def _models(nodes: list[int]) -> tuple[str, ...]:
    """Returns the driver's names of the GPUs with these device files."""
    minors = {str(node) for node in nodes}
    models = []
    for path in sorted((ROOT / "proc/driver/nvidia/gpus").glob("*/information")):
        fields = {}
        for line in _text(path).splitlines():
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
        if fields.get("Device Minor", "") in minors and fields.get("Model"):
            models.append(fields["Model"])
    return tuple(models)


@cache
def _listed_by_nvidia_smi() -> tuple[str, ...]:
    """Returns the models that `nvidia-smi -L` lists; none if there is no such program, or it fails."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=True
        )
        return tuple(re.findall(r"(?m)^GPU \d+: (.*?) \(UUID", done.stdout))
    return ()


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
    chips = [_TPUS[card.device] for card in _pci_devices() if card.vendor == _GOOGLE and card.device in _TPUS]
    # Older drivers have `accel` device files, newer ones `vfio`. A container has those of its own chips only.
    nodes = _nodes("accel") or _nodes("", "dev/vfio")
    count = min(len(chips), len(nodes))
    for variable in _VISIBLE_TPUS:
        if variable in os.environ:
            visible = [entry for entry in os.environ[variable].split(",") if entry.strip().isdigit()]
            count = min(count, len(visible))
    model, devices_per_chip = chips[0] if count else ("", 1)
    return Accelerators(TPU, count * devices_per_chip, model)


def _pci_devices() -> list[_PciDevice]:
    folders = sorted((ROOT / "sys/bus/pci/devices").glob("*"))
    return [
        _PciDevice(_text(folder / "vendor"), _text(folder / "device"), _text(folder / "class")) for folder in folders
    ]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def absence(kind: str) -> str:
    """Returns the reason that this process has no accelerator of a kind, and the fix if there is one."""
    hidden = os.environ.get(VISIBLE_GPUS)
    if kind == GPU and hidden is not None and _nodes("nvidia"):
        return f"{VISIBLE_GPUS}={hidden} hides this machine's GPUs"
    cards = [card for card in _pci_devices() if card.vendor == _NVIDIA and card.device_class.startswith(_DISPLAYS)]
    if kind == GPU and cards and not _nodes("nvidia"):
        return "this machine has an NVIDIA GPU, but no driver that this process can use; install NVIDIA's driver"
    return f"no {kind.upper()} is here"


def keep_to(count: int) -> None:
    """Hides all but the first GPUs from this process, since a library takes the memory of all that it sees.

    Args:
      count: how many it computes with.
    """
    os.environ[VISIBLE_GPUS] = ",".join(take(count)) or "-1"


def take(count: int) -> list[str]:
    """Returns the first of this process's GPUs, each as an entry of CUDA_VISIBLE_DEVICES.

    Args:
      count: how many, no more than there are.
    """
    visible = os.environ.get(VISIBLE_GPUS)
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]
