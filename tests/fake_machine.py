"""A machine with accelerators, as `runner.cluster.accelerators` reads it, in a folder."""

from pathlib import Path

H100 = "NVIDIA H100 80GB HBM3"


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def gpus(root: Path, *models: str, minors: tuple[int, ...] | None = None) -> None:
    """Puts GPUs of these models into a machine.

    Args:
      root: its root folder.
      models: of all, in the order of their numbers.
      minors: numbers of those whose device files are there, as in a container; null: all.
    """
    for number, model in enumerate(models):
        folder = root / f"proc/driver/nvidia/gpus/0000:{number:02x}:00.0"
        write(folder / "information", f"Model: \t\t {model}\nIRQ:   \t\t 1\nDevice Minor: \t {number}\n")
        card(root, f"0000:{number:02x}:00.0")
        if minors is None or number in minors:
            write(root / f"dev/nvidia{number}")
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        write(root / "dev" / name)


def card(root: Path, address: str, vendor: str = "0x10de", device: str = "0x2330", kind: str = "0x030200") -> None:
    """Puts something on a machine's PCI bus; by default an NVIDIA GPU."""
    for name, text in (("vendor", vendor), ("device", device), ("class", kind)):
        write(root / "sys/bus/pci/devices" / address / name, f"{text}\n")


def tpus(root: Path, count: int, device: str, node: str = "accel") -> None:
    """Puts TPU chips into a machine, and its network card, which is Google's too."""
    card(root, "0000:00:01.0", "0x1ae0", "0x0042", "0x020000")
    for number in range(count):
        card(root, f"0000:01:{number:02x}.0", "0x1ae0", device, "0x120000")
        write(root / "dev" / f"{node}{number}")
