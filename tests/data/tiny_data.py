"""A builder as a user writes one: its images differ in size, and it has features of many kinds."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds


class Tiny(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> Any:
        features = {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "depth": tfds.features.Image(shape=(3, 4, 1), dtype=np.uint16, encoding_format="png"),
            "label": tfds.features.ClassLabel(names=["cat", "dog"]),
            "file": tfds.features.Text(),
            "about": {"size": np.int64, "kind": tfds.features.Text()},
            "vector": tfds.features.Tensor(shape=(2,), dtype=np.float64),
            "far": tfds.features.Scalar(dtype=np.bool_),
            "large": tfds.features.Scalar(dtype=np.int64),
            "boxes": tfds.features.Sequence(tfds.features.BBoxFeature()),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=("image", "label")
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:  # noqa: ARG002
        return {"train": self._generate_examples(range(40)), "test": self._generate_examples(range(8))}

    def _generate_examples(self, rows: range) -> Iterator[tuple[int, dict[str, Any]]]:
        for row in rows:
            yield (
                row,
                {
                    "image": np.full((3 + row % 7, 4 + row % 5, 3), row, np.uint8),
                    "depth": np.full((3, 4, 1), row, np.uint16),
                    "label": row % 2,
                    "file": f"{row}.png",
                    "about": {"size": row, "kind": "small" if row < 20 else "large"},
                    "vector": [row, -row],
                    "far": row > 30,
                    "large": 2**40,
                    "boxes": [tfds.features.BBox(0.0, 0.0, 1.0, 1.0)],
                },
            )
