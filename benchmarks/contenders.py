"""Who is measured, and in what environment. Imports neither TensorFlow nor JAX."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.data import TASKS, Task, mlp_loss, read
from benchmarks.meter import Budget

ROOT = Path(__file__).resolve().parents[1]
CROSS_DEVICE_OPS = ("default", "one_device", "hierarchical")

# Settings of the caller's shell that would change what a contender runs.
_SCRUBBED = ("DTENSOR_", "JAX_", "KERAS_", "NPROC", "OMP_NUM_THREADS", "PJRT_", "TF_", "XLA_")
_KERAS_2 = {"TF_USE_LEGACY_KERAS": "1"}
_KERAS_3 = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
# Without twice as many threads as virtual devices, two runs that overlap starve each other's all-reduce and XLA
# aborts the process; the time-outs bound how long a deadlock takes to show.
_EIGHT_JAX_DEVICES = {
    "PJRT_NPROC": str(max(os.cpu_count() or 1, 16)),
    "XLA_FLAGS": "--xla_cpu_collective_call_warn_stuck_timeout_seconds=10"
    " --xla_cpu_collective_call_terminate_timeout_seconds=60",
}


@dataclass(frozen=True)
class Contender:
    """One way to train a model of the benchmark.

    Attributes:
      name: as in `--only` and in the JSON file.
      label: as in the table.
      mesh: `batch8` or `single`.
      env: environment variables of its process.
      default: measured unless `--only` or `--all` says otherwise.
      model: key of `TASKS`.
      rival: contender of the runner that its figures are compared with; its own name: it is the runner.
    """

    name: str
    label: str
    mesh: str
    env: Mapping[str, str] = field(default_factory=dict)
    default: bool = True
    model: str = "mlp"
    rival: str = ""

    @property
    def ours(self) -> bool:
        """Whether the runner itself is measured."""
        return self.name == self.rival

    @property
    def engine(self) -> str:
        """The runner's engine that is measured or compared with."""
        return "jax" if "_jax_" in self.rival else "keras_dtensor"

    @property
    def task(self) -> Task:
        """What it trains."""
        return TASKS[self.model]


def _jax(model: str, mesh: str) -> list[Contender]:
    """The runner on JAX, the guide's own loop and Keras 3's `fit`, for one model and mesh."""
    end = "" if model == "mlp" else f"_{model}"
    env = {**_KERAS_3, **_EIGHT_JAX_DEVICES} if mesh == "batch8" else _KERAS_3
    rival = f"ours_jax{end}_{mesh}"
    fit = f"jax_fit{'_dp' if mesh == 'batch8' else ''}{end}"
    fit_label = f"Keras 3 JAX fit{', DataParallel' if mesh == 'batch8' else ''}"
    return [
        Contender(rival, "ours, engine=jax", mesh, model=model, rival=rival),
        Contender(f"guide{end}_{mesh}", "the guide's loop", mesh, env, model=model, rival=rival),
        Contender(fit, fit_label, mesh, env, model=model, rival=rival),
    ]


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("ours_batch8", "ours", "batch8", rival="ours_batch8"),
        Contender("tutorial", "the tutorial's loop", "batch8", _KERAS_2, rival="ours_batch8"),
        Contender("mirrored_fit", "tf_keras fit, MirroredStrategy", "batch8", _KERAS_2, rival="ours_batch8"),
        *_jax("mlp", "batch8"),
        Contender("ours_single", "ours", "single", rival="ours_single"),
        Contender("tf_keras_fit", "tf_keras fit", "single", _KERAS_2, rival="ours_single"),
        Contender(
            "tf_keras_fit_many", "tf_keras fit, steps_per_execution", "single", _KERAS_2, False, rival="ours_single"
        ),
        *_jax("mlp", "single"),
        *_jax("convnet", "batch8"),
        *_jax("convnet", "single"),
    )
}


class ContenderError(RuntimeError):
    """A contender that did not finish, or whose result can't be read."""


def child_env(contender: Contender) -> dict[str, str]:
    """Makes a contender's environment: the caller's, less what would steer a library, plus its own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_SCRUBBED)}
    if "TFDS_DATA_DIR" in os.environ:
        kept["TFDS_DATA_DIR"] = os.environ["TFDS_DATA_DIR"]
    # Virtual CPU devices are the subject, so an accelerator on the machine must not run one side of the table.
    return {**kept, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2", **contender.env}


def run_process(command: list[str], env: Mapping[str, str], timeout: float) -> str:
    """Runs a command in the repository's root.

    Returns:
      What it wrote on stdout.

    Raises:
      ContenderError: it failed or took longer than `timeout` seconds; the message ends with its last lines.
    """
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=dict(env), capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise ContenderError(f"no result after {timeout:.0f} s") from None
    if done.returncode:
        written = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        lines = [line for line in written if line.strip(" ^~")][-8:]
        raise ContenderError(f"exit code {done.returncode}: " + "\n".join(lines).replace(f"{ROOT}/", ""))
    return done.stdout


def last_json_line(text: str) -> dict[str, Any]:
    """Finds the result among whatever else a child printed.

    Raises:
      ContenderError: no line is a JSON object.
    """
    for line in reversed(text.splitlines()):
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(line)
            if isinstance(value, dict):
                return value
    raise ContenderError("the child printed no JSON line")


def run_peer(name: str, data: Path, budget: Budget, cross_device_ops: str) -> dict[str, Any]:
    """Trains a peer in this process; only a child calls this.

    Args:
      name: the contender.
      data: file of training examples.
      budget: how long to measure.
      cross_device_ops: for `mirrored_fit`: `default`, `one_device` or `hierarchical`.

    Returns:
      The figures, to be printed as one JSON line.
    """
    contender = CONTENDERS[name]
    examples = read(data, contender.task.batch_size)
    if contender.env.get("KERAS_BACKEND") == "jax":
        from benchmarks import peers_jax

        versions = peers_jax.versions()
        meter, loss = peers_jax.train(contender, examples, budget)
    else:
        from benchmarks import peers_tf

        versions = peers_tf.versions()
        if name == "mirrored_fit":
            meter, weights = peers_tf.mirrored(examples, budget, cross_device_ops)
        else:
            train = {
                "tutorial": peers_tf.tutorial,
                "tf_keras_fit": peers_tf.fit,
                "tf_keras_fit_many": peers_tf.fit_many,
            }[name]
            meter, weights = train(examples, budget)
        loss = mlp_loss(weights, examples)
    result: dict[str, Any] = dict(meter.result(examples.steps_per_epoch))
    if name == "mirrored_fit":
        result["cross_device_ops"] = cross_device_ops
    return {
        "contender": name,
        **result,
        "steps_per_mark": meter.steps_per_mark,
        "final_loss": loss,
        "versions": {"python": platform.python_version(), **versions},
    }


def run_child(arguments: list[str], contender: Contender, timeout: float) -> dict[str, Any]:
    """Starts this benchmark as a child process and reads its result."""
    command = [sys.executable, "-m", "benchmarks.throughput", *arguments]
    return last_json_line(run_process(command, child_env(contender), timeout))
