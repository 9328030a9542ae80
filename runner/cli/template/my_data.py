"""The dataset: points on spirals, drawn from a seed. Put your own here; see conf/dataset/mine.yaml."""

from __future__ import annotations

import numpy as np

Arrays = dict[str, np.ndarray]


def load(size: int, arms: int, noise: float, seed: int) -> dict[str, Arrays]:
    """Returns the splits, each as arrays by name with an entry an example.

    Args:
      size: examples, of which a fifth are for the test.
      arms: spirals, which are the classes.
      noise: standard deviation of what is added to each coordinate.
      seed: of what is drawn.

    Returns:
      `point`, float32 (size, 2), and `label`, int32 (size,), of each split.
    """
    draw = np.random.default_rng(seed)
    label = draw.integers(0, arms, size)
    radius = np.sqrt(draw.uniform(0.02, 1.0, size))
    angle = 4.0 * radius + 2.0 * np.pi * label / arms
    point = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    point += draw.normal(0.0, noise, point.shape)
    point = point.astype(np.float32)
    label = label.astype(np.int32)
    test = size // 5
    return {
        "train": {"point": point[test:], "label": label[test:]},
        "test": {"point": point[:test], "label": label[:test]},
    }
