import numpy as np
from pathlib import Path
from PIL import Image, ImageDraw

rng = np.random.default_rng(1)
for kind in ("round", "square"):
    folder = Path("photos") / kind
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(200):
        width, height = rng.integers(80, 160, 2)
        image = Image.new("RGB", (int(width), int(height)), tuple(int(v) for v in rng.integers(0, 120, 3)))
        x, y, size = rng.integers(10, 40), rng.integers(10, 40), rng.integers(25, 40)
        draw = ImageDraw.Draw(image)
        shape = draw.ellipse if kind == "round" else draw.rectangle
        shape([int(x), int(y), int(x + size), int(y + size)], fill=tuple(int(v) for v in rng.integers(150, 255, 3)))
        image.save(folder / f"{number}.jpg", quality=90)
