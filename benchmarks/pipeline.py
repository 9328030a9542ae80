"""How fast JPEG files become batches: this pipeline beside tf.data, the same steps on the same files, interleaved.

    python -m benchmarks.pipeline                 images a second, both
    python -m benchmarks.pipeline --train         what share of its time training waits for its input

The files are made, from a seed, in a temporary folder: 2,000 of 224 x 224, photo-like (smooth shapes and some noise).
The steps are a random resized crop to 224 x 224, bilinear, and a flip by chance; images come out as uint8 in batches.
tf.data gets its best: `decode_and_crop_jpeg`, which decodes the window alone, and the faster of two parallel calls and
AUTOTUNE. It resizes without antialiasing, which is its default and less work, and with it (our filter). Beside each
rate stand the cores that it kept busy: where others use the machine, images a core's second tell more than the clock.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg
from PIL import Image

from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.data import workers
from runner.data.loading import load
from runner.data.sampler import train_plan

if TYPE_CHECKING:
    import tensorflow as tf

FILES = 2_000
SIDE = 224
CLASSES = 10
SEED = 1
OUT = 224


def make_photos(folder: Path, count: int = FILES, side: int = SIDE) -> None:
    """Writes JPEG files (quality 90, chroma halved as cameras do) into a folder a class."""
    rng = np.random.default_rng(SEED)
    for number in range(count):
        label = number % CLASSES
        coarse = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)).astype(np.float32)
        smooth[label * side // CLASSES :][: side // CLASSES] += 80  # what tells the class
        noisy = np.clip(smooth + rng.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)
        place = folder / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        data = simplejpeg.encode_jpeg(noisy, quality=90, colorsubsampling="420")
        (place / f"{number:05d}.jpg").write_bytes(data)


def ours(folder: Path, batch_size: int, count: int) -> Iterator[Callable[[int], float]]:
    """Yields what reads one epoch and returns images a second."""
    config = DatasetConfig(
        name="image_folder",
        path=str(folder),
        test="train[:10%]",
        workers=count,
        augment=[
            AugmentConfig("random_resized_crop", options={"size": [OUT, OUT]}),
            AugmentConfig("flip"),
        ],
    )
    data = load(config, SEED)
    with workers.Workers(config) as open_workers:
        reader = open_workers.reader(data.train)

        def epoch(number: int) -> float:
            plan = train_plan(data.train.size, batch_size=batch_size, seed=SEED, epoch=number)
            began = time.perf_counter()
            images = 0
            ahead = reader.begin(number, plan.indices[0])
            for step in range(plan.steps):
                now = ahead
                if step + 1 < plan.steps:
                    ahead = reader.begin(number, plan.indices[step + 1])
                images += len(now.result()["image"])
            return images / (time.perf_counter() - began)

        yield epoch


def tf_data(folder: Path, batch_size: int, parallel: int | None, *, antialias: bool) -> Callable[[int], float]:
    """Returns what reads one epoch and returns images a second.

    Args:
      folder: of the files.
      batch_size: images a batch.
      parallel: calls at a time; null: AUTOTUNE.
      antialias: whether the resizing filters.
    """
    import tensorflow as tf

    files = sorted(str(file) for file in folder.rglob("*.jpg"))
    labels = [int(Path(file).parent.name.removeprefix("class")) for file in files]

    def window(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.zeros([1, 0, 4]),
            seed,
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        return tf.stack([begin[0], begin[1], size[0], size[1]])

    def example(file: tf.Tensor, label: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        data = tf.io.read_file(file)
        seeds = tf.stack([seed, seed + 1])
        cut = window(tf.io.extract_jpeg_shape(data), seeds)
        image = tf.image.decode_and_crop_jpeg(data, cut, channels=3, dct_method="INTEGER_ACCURATE")
        image = tf.image.resize(image, (OUT, OUT), antialias=antialias)
        image = tf.image.stateless_random_flip_left_right(image, seeds)
        return tf.cast(tf.round(image), tf.uint8), label

    calls = tf.data.AUTOTUNE if parallel is None else parallel
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2 if parallel else 0

    def epoch(number: int) -> float:
        data = tf.data.Dataset.from_tensor_slices(
            (files, labels, np.arange(len(files), dtype=np.int32) + number * FILES)
        )
        data = data.shuffle(len(files), seed=number).map(example, num_parallel_calls=calls)
        data = data.batch(batch_size, drop_remainder=True).prefetch(2).with_options(options)
        began = time.perf_counter()
        images = 0
        for batch, _ in data:
            images += int(batch.shape[0])
        return images / (time.perf_counter() - began)

    return epoch


def compare(folder: Path, batch_size: int, count: int, rounds: int) -> None:
    """Prints images a second of each, round by round, and the medians."""
    contenders: dict[str, Callable[[int], float]] = {}
    for antialias in (False, True):
        for parallel in (count, None):
            name = (
                f"tf.data {'AUTOTUNE' if parallel is None else f'{parallel} calls'}{' antialias' if antialias else ''}"
            )
            contenders[name] = tf_data(folder, batch_size, parallel, antialias=antialias)
    for epoch in ours(folder, batch_size, count):
        contenders = {f"runner {count} threads": epoch, **contenders}
        seen: dict[str, list[float]] = {name: [] for name in contenders}
        cost: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(rounds + 1):
            for name, run in contenders.items():
                busy = time.process_time()
                began = time.perf_counter()
                rate = run(number)
                cores = (time.process_time() - busy) / (time.perf_counter() - began)
                if number:  # the first round warms up
                    seen[name].append(rate)
                    cost[name].append(rate / cores)
                    print(f"round {number}: {name:28} {rate:8,.0f} images/s, {cores:.2f} cores", flush=True)
    clock, core = ({name: statistics.median(rates) for name, rates in part.items()} for part in (seen, cost))
    for name, rates in seen.items():
        low = min(rates)
        high = max(rates)
        print(f"median  {name:28} {clock[name]:8,.0f}   {low:,.0f} to {high:,.0f}; a core's second {core[name]:,.0f}")
    for unit, medians in (("by the clock", clock), ("a core's second", core)):
        first, *others = medians.values()
        print(f"runner is {first / max(others):.2f} times tf.data's best {unit}")


def train(folder: Path, batch_size: int, count: int, engine: str) -> None:
    """Trains the convnet on the files; prints the share of the time that it waited for its input."""
    work = Path(tempfile.mkdtemp(prefix="runner-pipeline-"))
    try:
        command = [
            sys.executable,
            "-m",
            "runner",
            f"engine={engine}",
            "mesh=single",
            "model=convnet",
            "dataset=image_folder",
            f"dataset.path={folder}",
            f"dataset.augment=[{{name: random_resized_crop, size: [{OUT},{OUT}]}}, {{name: flip}}]",
            f"dataset.batch_size={batch_size}",
            f"dataset.workers={count}",
            "trainer.epochs=2",
            "tracking=none",
            f"hydra.run.dir={work / 'run'}",
        ]
        subprocess.run(command, check=True)
        waited = json.loads((work / "run" / "summary.json").read_text())["input_wait"]
        print(f"training waited for its input for {waited:.3%} of its time")
    finally:
        shutil.rmtree(work)


def main() -> None:
    """Makes the files and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--engine", default="jax")
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="runner-photos-") as folder:
        make_photos(Path(folder), given.files)
        if given.train:
            train(Path(folder), given.batch_size, given.workers, given.engine)
        else:
            compare(Path(folder), given.batch_size, given.workers, given.rounds)


if __name__ == "__main__":
    main()
