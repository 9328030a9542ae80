"""A training step with Lion, Adafactor and Muon: the runner beside Keras's `fit`, in one interleaved run.

    python -m benchmarks.optimizers                            # Adam too, twelve rounds, eight virtual CPU devices
    python -m benchmarks.optimizers --only Lion --rounds 2

Both train the same network (784-256-256-10, tanh, batch 128) with the same class of Keras's optimizers on the same
examples, data parallel over eight devices: the training command, and `fit` with `DataParallel`. Both processes of an
optimizer live at once, and one waits while the other trains an epoch. A round is an epoch of each, in turns first, so
other programs on the machine slow both alike. Prints medians of the rounds: milliseconds per step, wall and CPU of all
threads, and the quotients within a round, above 1 where the runner is faster. CPU time is the better measure on a busy
machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS, ROOT, child_env

OPTIMIZERS = ("Adam", "Lion", "Adafactor", "Muon")
# Contender -> whose environment it has in the benchmark of throughput.
SIDES = {"ours": "ours_jax_batch8", "fit": "jax_fit_dp"}
DEVICES = 8
BATCH = 128
HIDDEN = (256, 256)
RATE = 0.001
STEPS_PER_EPOCH = 50
# Epochs before the first round. They compile, and the runner finds its number of steps per call.
_WARM_UP_EPOCHS = 3
# A child that answers later than this has failed. The first epoch compiles; on a busy machine that takes a minute.
_LONGEST_EPOCH_S = 300.0
# Starts the lines of a child that are for its parent.
_MARK = "MEASURED "

# Milliseconds per step: wall, CPU.
Cost = tuple[float, float]


def write_examples(path: Path) -> None:
    """Writes scikit-learn's digits, enlarged to 28 x 28 and repeated with noise, as the arrays `image` and `label`.

    The noise, and tanh in place of ReLU, leave no pixel and no unit without a gradient: Keras's Adafactor divides 0 by
    0 where both the input and the output of a weight have none (docs/bugs.md).
    """
    # The children import other libraries before these.
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(digits.images), STEPS_PER_EPOCH * BATCH)
    enlarged = np.pad(np.kron(digits.images[rows], np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2)))
    noise = rng.integers(0, 32, enlarged.shape)
    images = np.minimum(enlarged * (255 / 16) + noise, 255).astype(np.uint8)[..., None]
    np.savez(path, image=images, label=digits.target[rows].astype(np.int32))


class Turns:
    """A child's side of the turns: it trains an epoch whenever its parent writes a line."""

    def __init__(self) -> None:
        """Starts without an epoch."""
        self._begun = 0.0
        self._cpu = time.process_time()

    def begin(self) -> None:
        """Waits for the turn; ends the process when the parent has no further one."""
        if not sys.stdin.readline():
            sys.exit(0)
        self._begun = time.perf_counter()

    def end(self) -> None:
        """Tells the parent what a step of the epoch has cost."""
        cpu = time.process_time()
        # From the last turn's end on: what a thread prepares for an epoch while it waits for it is part of its cost.
        cost = [time.perf_counter() - self._begun, cpu - self._cpu]
        self._cpu = cpu
        per_step = [1000 * seconds / STEPS_PER_EPOCH for seconds in cost]
        print(_MARK + json.dumps(per_step), flush=True)


def train_ours(optimizer: str, examples: Path, folder: Path) -> None:
    """Trains by the training command in this process, whose display takes the turns."""
    from runner.cli import entry
    from runner.train.display import Display

    turns = Turns()

    def start_period(*_: Any) -> None:
        turns.begin()

    def end_period(*_: Any) -> None:
        turns.end()

    # A period between evaluations is an epoch here.
    Display.start_period = start_period  # type: ignore[method-assign, assignment]
    Display.end_period = end_period  # type: ignore[method-assign, assignment]
    sys.argv = [
        "runner",
        "engine=jax",
        "mesh=batch8",
        "layout=replicated",
        "model=mlp",
        f"model.hidden=[{','.join(map(str, HIDDEN))}]",
        "model.activation=tanh",
        "dataset=arrays",
        f"dataset.path={json.dumps(str(examples))}",
        "dataset.train='train'",
        "dataset.test='train[:128]'",
        f"dataset.batch_size={BATCH}",
        "optimizer=keras",
        f"optimizer.class_name={optimizer}",
        f"optimizer.learning_rate={RATE}",
        "trainer.epochs=100000",
        # `fit` evaluates and saves nothing either.
        "trainer.evaluate_every=100000",
        "trainer.checkpoint.enabled=false",
        "trainer.progress=none",
        "tracking=none",
        f"hydra.run.dir={json.dumps(str(folder))}",
    ]
    entry.main("runner.cli.train")


def train_fit(optimizer: str, examples: Path) -> None:
    """Trains by `fit` in this process, an epoch at a time."""
    import jax
    import keras
    import numpy as np

    jax.config.update("jax_num_cpu_devices", DEVICES)
    with np.load(examples) as arrays:
        images = arrays["image"].astype(np.float32) / 255
        labels = arrays["label"]
    keras.utils.set_random_seed(0)
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    layers = [keras.Input((28, 28, 1)), keras.layers.Flatten()]
    layers += [keras.layers.Dense(units, activation="tanh") for units in HIDDEN]
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    model.compile(
        optimizer=getattr(keras.optimizers, optimizer)(learning_rate=RATE),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    turns = Turns()
    while True:
        turns.begin()
        model.fit(images, labels, batch_size=BATCH, epochs=1, verbose=0)
        turns.end()


class Child:
    """A process that trains an epoch when it is told to."""

    def __init__(self, side: str, optimizer: str, examples: Path) -> None:
        """Starts it."""
        command = [sys.executable, "-m", "benchmarks.optimizers", "--child", side, "--only", optimizer]
        command += ["--examples", str(examples)]
        self._errors = examples.with_name(f"{side}-{optimizer}.log").open("w+")
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=child_env(CONTENDERS[SIDES[side]]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def epoch(self) -> Cost:
        """Trains an epoch and returns what a step has cost."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        watch = threading.Timer(_LONGEST_EPOCH_S, self._process.kill)
        watch.start()
        try:
            for line in self._process.stdout:
                if line.startswith(_MARK):
                    wall, cpu = json.loads(line.removeprefix(_MARK))
                    return wall, cpu
        finally:
            watch.cancel()
        self._errors.seek(0)
        raise RuntimeError(f"a process ended, or took too long: {self._errors.read()[-1000:]}")

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        self._errors.close()


def rounds_of(optimizer: str, count: int, examples: Path) -> dict[str, list[Cost]]:
    """Returns what a step costs on each side, in each round."""
    children = {side: Child(side, optimizer, examples) for side in SIDES}
    costs: dict[str, list[Cost]] = {side: [] for side in SIDES}
    try:
        for side, child in children.items():
            warm_up = [child.epoch() for _ in range(_WARM_UP_EPOCHS)]
            assert len(warm_up) == _WARM_UP_EPOCHS, side
        for number in range(count):
            order = list(children) if number % 2 else list(reversed(children))
            for side in order:
                costs[side].append(children[side].epoch())
    finally:
        for child in children.values():
            child.close()
    return costs


def line_of(optimizer: str, costs: dict[str, list[Cost]]) -> str:
    """Returns a line of the table."""
    cells = []
    for index in range(2):
        medians = [statistics.median(cost[index] for cost in costs[side]) for side in SIDES]
        quotients = [fit[index] / ours[index] for ours, fit in zip(costs["ours"], costs["fit"], strict=True)]
        low, middle, high = statistics.quantiles(quotients, n=4) if len(quotients) > 1 else 3 * quotients
        cells.append(f"{medians[0]:9.2f} {medians[1]:9.2f} {middle:8.2f} ({low:.2f} to {high:.2f})")
    return f"{optimizer:11}" + "  ".join(cells)


def main() -> None:
    """Measures each optimizer and prints its line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(OPTIMIZERS), help="classes, separated by commas")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--child", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--examples", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child == "fit":
        train_fit(options.only, options.examples)
        return
    if options.child == "ours":
        # The parent kills this process, which therefore removes nothing: the folder goes with the parent's.
        train_ours(options.only, options.examples, Path(tempfile.mkdtemp(dir=options.examples.parent)))
        return
    with tempfile.TemporaryDirectory() as folder:
        examples = Path(folder) / "examples.npz"
        write_examples(examples)
        print("milliseconds per step, and fit / ours: median (quartiles) of the rounds")
        columns = f"{'ours':>9} {'fit':>9} {'fit / ours':>26}"
        print(f"{'':11}{'wall':>9}{'':38}{'CPU':>9}\n{'optimizer':11}{columns}  {columns}")
        for optimizer in options.only.split(","):
            print(line_of(optimizer, rounds_of(optimizer, options.rounds, examples)), flush=True)


if __name__ == "__main__":
    main()
