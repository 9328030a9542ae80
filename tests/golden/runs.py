"""The configs of the golden records, and what a run of each computes.

A record is `<name>.json` beside this file: the training loss of each of 20 steps, the last metrics of the run and the
verdict of `runner.verify`. Each config runs by the command line, as a user would run it.
"""

import json
import math
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
STEPS = [
    "trainer.epochs=null",
    "trainer.steps=20",
    "trainer.log_every_steps=1",
    "trainer.log_model=false",
    "trainer.progress=lines",
]
GPT = ["model=gpt", "model.dim=32", "model.depth=2", "model.heads=4", "task=language_model", "dataset=synthetic"]
TOKENS = [
    "dataset.length=32",
    "dataset.vocabulary=64",
    "dataset.size=1024",
    "dataset.batch_size=16",
    "task.vocabulary=64",
]
GATED = ["model.activation=swiglu", "model.bias=false"]  # as a mixture of experts needs them
BACKBONE = ["engine=jax", "model=keras_hub", "task=language_model", "dataset=synthetic", *TOKENS]
CORE = ["dataset=digits", "dataset.train=train", "dataset.test=test"]  # fewer examples than the 5,000 of the tutorial
# Rounding differs between processors and between versions of XLA, and training amplifies it, most of all through batch
# normalization. A change of what a step computes is larger than this by orders of magnitude.
TOLERANCE = 2e-3
# An accuracy counts examples. Where two logits are equal up to rounding, another processor counts one more of 360.
ONE_EXAMPLE = 1 / 359


@dataclass(frozen=True)
class Golden:
    """A config that has a record.

    Attributes:
      name: of the record.
      overrides: the command line without the length of the run.
      then: overrides of a second command, which continues the run for 10 more steps; none: one command.
      is_verified: whether the record has the verdict of `runner.verify`.
      files: texts of files in the folder in which the commands run, by name.
    """

    name: str
    overrides: tuple[str, ...]
    then: tuple[str, ...] = ()
    is_verified: bool = True
    files: tuple[tuple[str, str], ...] = ()


STEP = """\
import jax
from keras import ops


class Classifier:
    def build(self, keras):
        self.model = keras.Sequential(
            [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
        )
        self.adam = keras.optimizers.Adam(1e-3)
        self.adam.build(self.model.trainable_variables)

    def loss(self, variables, others, batch):
        logits, others = self.model.stateless_call(variables, others, batch["image"], training=True)
        chosen = ops.sum(ops.one_hot(batch["label"], 10) * jax.nn.log_softmax(logits), axis=1)
        return -ops.sum(chosen * batch["weight"]) / ops.sum(batch["weight"]), others

    def train_step(self, state, batch, rng):
        model = state["model"]
        (loss, others), gradients = jax.value_and_grad(self.loss, has_aux=True)(*model, batch)
        trainable, moments = self.adam.stateless_apply(state["adam"], gradients, model.trainable)
        model = model._replace(trainable=trainable, non_trainable=others)
        return {**state, "model": model, "adam": moments}, {"loss": loss}

    def evaluate(self, state, batch, rng):
        loss, _ = self.loss(*state["model"], batch)
        return {"loss": loss}
"""

LARGE_DIGITS = """\
import numpy as np
from sklearn.datasets import load_digits


def load():
    digits = load_digits()
    images = np.kron(digits.images, np.ones((1, 4, 4)))[..., None] / 16
    arrays = {"image": images.astype("float32"), "label": digits.target.astype("int32")}
    return {
        "train": {name: array[:1024] for name, array in arrays.items()},
        "test": {name: array[1024:1536] for name, array in arrays.items()},
    }
"""
LARGE = ["dataset=custom", "dataset.holdout=0", "dataset._target_=large_digits.load", "task.classes=10"]

GOLDEN = [
    Golden("keras_tutorial", ("experiment=keras_tutorial", "dataset=digits")),
    Golden("core_tutorial", ("experiment=core_tutorial", *CORE)),
    Golden("core_corrected", ("experiment=core_corrected", *CORE)),
    Golden("jax_guide", ("experiment=jax_guide", "dataset=digits")),
    Golden("mlp_megatron", ("dataset=digits", "mesh=batch4_model2", "layout=megatron")),
    Golden("mlp_fsdp_jax", ("engine=jax", "dataset=digits", "mesh=batch8", "layout=fsdp", "model=mlp_functional")),
    Golden("mlp_subclassed", ("dataset=digits", "mesh=batch4_model2", "layout=fsdp_megatron", "model=mlp_subclassed")),
    Golden(
        "convnet_spatial",
        ("engine=jax", *LARGE, "mesh=batch2_height2", "layout=spatial", "model=convnet"),
        files=(("large_digits.py", LARGE_DIGITS),),
    ),
    Golden("resnet", ("engine=jax", "dataset=digits", "mesh=batch2", "model=resnet", "optimizer=sgd")),
    Golden("vit", ("dataset=digits", "mesh=batch2", "model=vit", "model.patch=4", "optimizer=adamw")),
    Golden("gpt_sequence", ("engine=jax", *GPT, *TOKENS, "mesh=batch2_sequence4", "layout=sequence")),
    Golden(
        "gpt_experts",
        ("engine=jax", *GPT, *TOKENS, "model.experts=4", *GATED, "mesh=batch2_experts4", "layout=experts"),
    ),
    Golden("gpt_dtensor", (*GPT, *TOKENS, "mesh=batch4_model2", "layout=megatron", "optimizer=rmsprop")),
    Golden(
        "hub_gpt2",
        (
            *BACKBONE,
            *("model.backbone=GPT2Backbone", "+model.num_layers=1", "+model.num_heads=4", "+model.hidden_dim=32"),
            *("+model.intermediate_dim=64", "mesh=batch4_model2", "layout=auto"),
        ),
    ),
    Golden(
        "hub_llama",
        (
            *BACKBONE,
            *("model.backbone=LlamaBackbone", "+model.num_layers=1", "+model.num_query_heads=4"),
            *("+model.num_key_value_heads=4", "+model.hidden_dim=32", "+model.intermediate_dim=64"),
            *("mesh=batch4_model2", "layout=keras_hub"),
        ),
    ),
    Golden(
        "custom_step",
        ("engine=jax", "task=step", "task._target_=my_step.Classifier", "dataset=digits", "mesh=batch2"),
        files=(("my_step.py", STEP),),
    ),
    Golden("resumed", ("dataset=digits", "mesh=batch2"), then=("resume=latest",), is_verified=False),
    Golden(
        "resumed_elsewhere",
        ("engine=jax", "dataset=digits", "mesh=batch8"),
        then=("resume=latest", "mesh=batch4_model2", "layout=megatron"),
        is_verified=False,
    ),
    Golden("sweep", ("-m", "dataset=digits", "dataset.batch_size=32,64", "mesh=single,batch2"), is_verified=False),
]


def command(folder: Path, module: str, *overrides: str) -> str:
    """Runs a command of the runner in a folder.

    Returns:
      What it printed.

    Raises:
      RuntimeError: it could not run; a mismatch of `runner.verify` is an answer.
    """
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    # The tests' own flags compile other code, whose rounding can turn an example of an accuracy.
    environment.pop("XLA_FLAGS", None)
    line = [sys.executable, "-m", module, *overrides]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode > (module == "runner.verify"):
        raise RuntimeError(f"{' '.join(line)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def measure(golden: Golden) -> dict[str, object]:
    """Runs a config and returns its record."""
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        folder = Path(name)
        for file, text in golden.files:
            (folder / file).write_text(text)
        command(folder, "runner", *golden.overrides, *STEPS)
        if golden.then:
            command(folder, "runner", *golden.then, "trainer.steps=30")
        record: dict[str, object] = {"command": " ".join(golden.overrides), "runs": _runs(folder)}
        if golden.is_verified:
            printed = command(folder, "runner.verify", *golden.overrides)
            verdict = re.findall(r"^(?:error: )?(verified|inconclusive|mismatch)\b", printed, re.MULTILINE)
            record["verdict"] = verdict[-1]
        return record


def _runs(folder: Path) -> list[dict[str, object]]:
    """Returns the losses and the last metrics of each run in a folder's database that trained, in order of starts."""
    with sqlite3.connect(folder / "outputs" / "mlflow.db") as database:
        runs = database.execute("select run_uuid from runs order by start_time").fetchall()
        points = {
            run: database.execute(
                "select key, step, value from metrics where run_uuid = ? order by step, timestamp", (run,)
            ).fetchall()
            for (run,) in runs
        }
    found = []
    for rows in points.values():
        losses = {step: value for key, step, value in rows if key == "train/loss"}
        last = {key: value for key, _, value in rows if key.startswith(("eval/", "train/"))}
        if losses:
            found.append({"losses": [losses[step] for step in sorted(losses)], "last": last})
    return found


def differences(expected: object, actual: object, at: str = "") -> list[str]:
    """Returns what differs between two records, one line each; numbers are compared within `TOLERANCE`."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        keys = {**expected, **actual}
        return [
            line
            for key in keys
            for line in differences(expected.get(key), actual.get(key), f"{at}/{key}" if at else str(key))
        ]
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True), start=1)
        return [line for place, (one, other) in pairs for line in differences(one, other, f"{at}[{place}]")]
    if isinstance(expected, float) and isinstance(actual, float):
        most = ONE_EXAMPLE if at.endswith("accuracy") else TOLERANCE
        is_close = math.isclose(expected, actual, rel_tol=TOLERANCE, abs_tol=most)
        return [] if is_close else [f"{at}: {expected} was recorded, {actual} now"]
    return [] if expected == actual else [f"{at}: {expected!r} was recorded, {actual!r} now"]


def recorded(golden: Golden) -> object:
    """Returns the record of a config, as it was written."""
    return json.loads((HERE / f"{golden.name}.json").read_text())
