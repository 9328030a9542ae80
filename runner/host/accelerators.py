"""The accelerators of this machine, read from what the system shows of them: no library is loaded.

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

ROOT = Path("/")  # a test's own
GPU = "gpu"
TPU = "tpu"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_VISIBLE_TPUS = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
_NVIDIA = "0x10de"
_GOOGLE = "0x1ae0"
_DISPLAYS = ("0x0300", "0x0302")  # PCI classes of GPUs; a card has sound and USB parts besides
# PCI device -> generation and how many of JAX's devices a chip is.
_TPUS = {
    "0x0027": ("TPU v3", 2),
    "0x005e": ("TPU v4", 1),
    "0x0062": ("TPU v5p", 1),
    "0x0063": ("TPU v5e", 1),
    "0x006f": ("TPU v6e", 1),
    "0x0076": ("TPU7x", 2),
}
_ASK_S = 5.0


@dataclass(frozen=True)
class Accelerators:
    """Those of one kind that this process may use.

    Attributes:
      kind: `gpu` or `tpu`.
      count: as devices of a mesh.
      model: of all of them; empty where it is not known, or not one.
    """

    kind: str
    count: int
    model: str = ""

    def words(self) -> str:
        """Returns them as `8 GPUs (NVIDIA H100 80GB HBM3)`."""
        return counted(self.count, self.kind, self.model)


def counted(count: int, kind: str, model: str = "") -> str:
    """Returns a number of devices as `1 GPU`, `8 virtual CPU devices`, `4 TPUs (TPU v5e)`."""
    unit = kind.upper() if kind in (GPU, TPU) else "virtual CPU device"
    return f"{count or 'no'} {unit}{'' if count in (0, 1) else 's'}{f' ({model})' if model else ''}"


def find(kind: str) -> Accelerators:
    """Returns the accelerators of a kind, `gpu` or `tpu`, that are there and not hidden from this process."""
    return _gpus() if kind == GPU else _tpus()


def _gpus() -> Accelerators:
    nodes = _nodes("nvidia")  # a container shows those that it has, and in /proc all of its host's
    if nodes:
        count = len(nodes)
        models = _models(nodes)
    else:
        models = _listed() if (ROOT / "dev/dxg").exists() else ()  # Windows' Linux has no nodes
        count = len(models)
    visible = os.environ.get(VISIBLE_GPUS)
    count = count if visible is None else min(count, _visible(visible, count))
    return Accelerators(GPU, count, models[0] if count and len(set(models)) == 1 else "")


def _nodes(prefix: str, folder: str = "dev") -> list[int]:
    """Returns the numbers of the device files that this process may open."""
    found = [(re.fullmatch(rf"{prefix}(\d+)", one.name), one) for one in (ROOT / folder).glob(f"{prefix}[0-9]*")]
    return sorted(int(match[1]) for match, one in found if match and os.access(one, os.R_OK | os.W_OK))


def _models(nodes: list[int]) -> tuple[str, ...]:
    """Returns what the driver calls the GPUs of some device files."""
    found = []
    for path in sorted((ROOT / "proc/driver/nvidia/gpus").glob("*/information")):
        pairs = (line.partition(":") for line in _text(path).splitlines())
        told = {key.strip(): value.strip() for key, _, value in pairs}
        if told.get("Device Minor", "") in {str(node) for node in nodes} and told.get("Model"):
            found.append(told["Model"])
    return tuple(found)


@cache
def _listed() -> tuple[str, ...]:
    """Returns the models that `nvidia-smi -L` lists; none where it is not there."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_ASK_S, check=True)
        return tuple(re.findall(r"(?m)^GPU \d+: (.*?) \(UUID", done.stdout))
    return ()


def _visible(text: str, count: int) -> int:
    """Returns how many GPUs a list of CUDA's leaves: it ends at the first entry that names none."""
    found = 0
    for entry in (part.strip() for part in text.split(",")):
        if not (entry.startswith(("GPU-", "MIG-")) or (entry.isdigit() and int(entry) < count)):
            break
        found += 1
    return found


def _tpus() -> Accelerators:
    chips = [_TPUS[device] for vendor, device, _ in _pci() if vendor == _GOOGLE and device in _TPUS]
    count = min(len(chips), len(_nodes("accel")) or len(_nodes("", "dev/vfio")))
    for visible in (os.environ[key] for key in _VISIBLE_TPUS if key in os.environ):
        count = min(count, len([part for part in visible.split(",") if part.strip().isdigit()]))
    model, devices = chips[0] if count else ("", 1)
    return Accelerators(TPU, count * devices, model)


def _pci() -> list[tuple[str, str, str]]:
    """Returns vendor, device and class of what is on the PCI bus."""
    folders = sorted((ROOT / "sys/bus/pci/devices").glob("*"))
    return [(_text(one / "vendor"), _text(one / "device"), _text(one / "class")) for one in folders]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def absence(kind: str) -> str:
    """Says why no accelerator of a kind is there, with what fixes it where something does."""
    name = kind.upper()
    hidden = os.environ.get(VISIBLE_GPUS)
    if kind == GPU and hidden is not None and _nodes("nvidia"):
        return f"{VISIBLE_GPUS}={hidden} hides this machine's GPUs"
    cards = [one for one in _pci() if one[0] == _NVIDIA and one[2].startswith(_DISPLAYS)]
    if kind == GPU and cards and not _nodes("nvidia"):
        return "this machine has an NVIDIA GPU and no driver that this process may use; install NVIDIA's driver"
    return f"no {name} is here"


def keep_to(count: int) -> None:
    """Hides all but the first GPUs from this process: a library takes the memory of all that it sees.

    Args:
      count: how many it computes with.
    """
    os.environ[VISIBLE_GPUS] = ",".join(take(count)) or "-1"


def take(count: int) -> list[str]:
    """Returns the first of this process's GPUs, as an entry of CUDA_VISIBLE_DEVICES each.

    Args:
      count: how many, no more than there are.
    """
    visible = os.environ.get(VISIBLE_GPUS)
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]
