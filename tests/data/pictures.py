"""Image files for tests, from a seed."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def picture(height: int, width: int, seed: int = 0, channels: int = 3) -> np.ndarray:
    """Returns smooth uint8 (height, width, channels)."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(smooth if channels == 3 else smooth.convert("L")).reshape(height, width, channels)


def encoded(pixels: np.ndarray, kind: str = "JPEG", **options: object) -> bytes:
    """Returns the bytes of an image file."""
    held = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(held, kind, **options)
    return held.getvalue()


def folder(root: Path, count: int = 24, classes: int = 3, size: tuple[int, int] | None = None) -> Path:
    """Writes `<root>/class<n>/<number>.jpg`, of many sizes unless one is given."""
    rng = np.random.default_rng(5)
    for number in range(count):
        height, width = size or (int(rng.integers(20, 40)), int(rng.integers(20, 40)))
        place = root / f"class{number % classes}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:03d}.jpg").write_bytes(encoded(picture(height, width, number), quality=92))
    return root
