"""A training step with Lion, Adafactor and Muon: the runner beside Keras's `fit`, in one interleaved run.

    python -m benchmarks.optimizers                            # Adam too, five repeats, eight virtual CPU devices
    python -m benchmarks.optimizers --only Lion --repeats 1 --seconds 2

Both train the same network (784-512-512-10, ReLU, batch 128) with the same class of Keras's optimizers on the same
examples (scikit-learn's digits, enlarged to 28 x 28), data parallel over eight devices. Each measurement is a process
of its own. A repeat runs all of them once, in an order drawn again, so that a busy spell of the machine does not hit
one contender alone. Prints the median of the repeats in steps per second, and the quotient.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPTIMIZERS = ("Adam", "Lion", "Adafactor", "Muon")
CONTENDERS = ("ours", "fit")
DEVICES = 8
BATCH = 128
HIDDEN = (512, 512)
RATE = 0.001
# Steps per epoch of both: the runner keeps 360 of the 1,797 digits for the test split.
_STEPS_PER_EPOCH = 11
# Epochs that only compile and warm up.
_WARM_UP_EPOCHS = 3
_TIMEOUT_S = 600.0


def ours(optimizer: str, seconds: float) -> float:
    """Trains by the runner's command and returns the steps per second that its summary has."""
    epochs = max(10, int(seconds * 100 / _STEPS_PER_EPOCH))
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            "engine=jax",
            "mesh=batch8",
            "layout=replicated",
            "model=mlp",
            f"model.hidden=[{','.join(map(str, HIDDEN))}]",
            "dataset=digits",
            "dataset.image_size=[28,28]",
            f"dataset.batch_size={BATCH}",
            "dataset.train='train[:1408]'",
            "optimizer=keras",
            f"optimizer.class_name={optimizer}",
            f"optimizer.learning_rate={RATE}",
            f"trainer.epochs={epochs}",
            "trainer.progress=none",
            "trainer.limit_eval_batches=1",
            "tracking=none",
            f"hydra.run.dir={json.dumps(folder)}",
        ]
        subprocess.run(
            [sys.executable, "-m", "runner", *arguments],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
        )
        summary = json.loads((Path(folder) / "summary.json").read_text())
    return float(summary["steps_per_second"])


def fit(optimizer: str, seconds: float) -> float:
    """Trains by `fit` in a process of its own and returns the steps per second."""
    environment = os.environ | {
        "KERAS_BACKEND": "jax",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", "benchmarks.optimizers", "--child", optimizer, "--seconds", str(seconds)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    return float(done.stdout.splitlines()[-1])


def fit_here(optimizer: str, seconds: float) -> float:
    """Trains by `fit` in this process, whose environment is set, and returns the steps per second."""
    # Only this child may import the libraries.
    import keras
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    enlarged = np.pad(np.kron(digits.images, np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2)))
    count = _STEPS_PER_EPOCH * BATCH
    images = (enlarged[:count, ..., None] / 16).astype(np.float32)
    labels = digits.target[:count].astype(np.int32)
    keras.utils.set_random_seed(0)
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    layers = [keras.Input((28, 28, 1)), keras.layers.Flatten()]
    layers += [keras.layers.Dense(units, activation="relu") for units in HIDDEN]
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    model.compile(
        optimizer=getattr(keras.optimizers, optimizer)(learning_rate=RATE),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(images, labels, batch_size=BATCH, epochs=_WARM_UP_EPOCHS, verbose=0)
    steps = 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        model.fit(images, labels, batch_size=BATCH, epochs=_WARM_UP_EPOCHS, verbose=0)
        steps += _WARM_UP_EPOCHS * _STEPS_PER_EPOCH
    return steps / (time.perf_counter() - begun)


def main() -> None:
    """Measures every optimizer with every contender, in a new order per repeat, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(OPTIMIZERS), help="classes, separated by commas")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(fit_here(options.child, options.seconds))
        return
    classes = options.only.split(",")
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    cases = [(optimizer, contender) for optimizer in classes for contender in CONTENDERS]
    for repeat in range(options.repeats):
        random.Random(repeat).shuffle(cases)
        for optimizer, contender in cases:
            measure = ours if contender == "ours" else fit
            rates[optimizer, contender].append(measure(optimizer, options.seconds))
    print(f"{'optimizer':12} {'ours':>10} {'fit':>10} {'quotient':>10}   steps per second")
    for optimizer in classes:
        own, other = (statistics.median(rates[optimizer, contender]) for contender in CONTENDERS)
        print(f"{optimizer:12} {own:10.1f} {other:10.1f} {own / other:10.2f}")


if __name__ == "__main__":
    main()
