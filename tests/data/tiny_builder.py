"""Run by a test in a process of its own: prepares a builder of images that differ in size, decodes it, reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from runner.data import cache, decode
from runner.data.builders import supervised_pair


class Tiny(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    pkg_dir_path = Path(sys.argv[1])

    def _info(self) -> Any:
        features = {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=["cat", "dog"]),
            "file": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=("image", "label")
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:  # noqa: ARG002
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for row in range(40):
            image = np.full((3 + row % 7, 4 + row % 5, 3), row, np.uint8)
            yield row, {"image": image, "label": row % 2, "file": str(row)}


root = Path(sys.argv[1])
builder = Tiny(data_dir=str(root))
wanted = cache.Request("tiny", None, None, (6, 5))
builder.download_and_prepare()
cache.decoded_dir(root).mkdir()
decode._write(builder, supervised_pair(builder, wanted), root, wanted, "a test", lambda _: None)
found = cache.find(root, wanted)
assert found is not None
folder, meta = found
images, labels = cache.arrays(folder, "train")
report = {
    "shape": list(images.shape),
    "names": meta.class_names,
    "values": images[:, 0, 0, 0].tolist(),
    "expected": [int(image[0, 0, 0]) for image, _ in tfds.as_numpy(builder.as_dataset("train", as_supervised=True))],
    "labels": labels.tolist(),
    "folder": folder.name,
}
print(json.dumps(report))
