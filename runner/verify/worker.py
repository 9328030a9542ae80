"""The process of a verification: `python -m runner.verify.worker FOLDER` computes both sides and compares them.

The process that asks for it may train afterwards, and must begin with nothing that a verification leaves behind: other
devices, states of random generators, memory.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner.cluster import lifecycle as processes
from runner.cluster.place import Place, from_launcher
from runner.cluster.team import current
from runner.config.build import build
from runner.config.import_path import raised
from runner.config.schema import MeshConfig, RunConfig
from runner.data import loading
from runner.data.base import Array
from runner.engine import registry
from runner.engine.lengths import run_length, without_padding
from runner.engine.optim import transformation
from runner.errors import ConfigError, EngineError
from runner.host.late import late
from runner.layout import mesh
from runner.layout.mesh import device_kind
from runner.task.base import DataSpec
from runner.task.registry import make_task
from runner.verify.meshproof.differences import FROM_THE_START, MORE_SEEDS, SEEDS
from runner.verify.on_mesh import train
from runner.verify.points import compare, spread
from runner.verify.reference import Reference
from runner.verify.report import Verification
from runner.verify.request import Request, first_batches, in_float32, read_arrays, write_arrays

if TYPE_CHECKING:
    from runner.verify import jax_reference, keras_reference, own_step_reference
else:
    # Each imports its engine's library, and the environment must be set before.
    jax_reference = late("runner.verify.jax_reference")
    own_step_reference = late("runner.verify.own_step_reference")
    keras_reference = late("runner.verify.keras_reference")

# Products of float32 in float32. GPUs and TPUs round their operands to 10 or 7 bits by default, which the tolerance
# does not include: on one H200, two programs of the same gpt differed by 1.2 times the tolerance. With this setting
# its loss after 20 steps was that of the CPU to seven digits.
_EXACT_PRODUCTS = ("JAX_DEFAULT_MATMUL_PRECISION", "highest")
_ARRAYS = "one_device.npz"
# The checked config, as JSON.
REQUEST = "request.json"


def result_file(folder: Path, place: Place | None) -> Path:
    """Returns the file with a process's result; each of several processes has its own."""
    return folder / f"result-{0 if place is None else place.index}.json"


def main() -> None:
    """Verifies the config in a folder, and writes the verification or the error into it."""
    folder = Path(sys.argv[1])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    result: dict[str, object]
    try:
        with processes.explained():
            verification = verified(folder)
            result = {"verification": None if verification is None else asdict(verification)}
    except ConfigError as error:
        result = {"invalid": str(error)}
    except EngineError as error:
        result = {"failed": str(error)}
    except Exception as error:
        # Whatever a library raises ends as one line, as in a run; the log has the traceback.
        traceback.print_exc()
        result = {"failed": raised(error)}
    result_file(folder, from_launcher()).write_text(json.dumps(result))
    result.pop("verification", None)
    for text in map(str, result.values()):
        current().failed(text, own=True)
    current().leave(len(result))


def _end_with_parent() -> None:
    """Ends this process when its stdin closes, so that it does not outlive the process that waits for it."""
    sys.stdin.read()
    os._exit(1)


def verified(folder: Path) -> Verification | None:
    """Trains the first steps of a folder's config on one device and on its mesh, and compares; None: not of process 0.

    Raises:
      ConfigError: the config is invalid for the model, the layout or the dataset.
      DataError: the data can't be read.
      EngineError: the loss on one device is NaN or Inf, or the two sides don't have the same variables.
    """
    request = prepared(folder)
    team = current()
    one_device = computed(request) if team.is_first else None
    if one_device is not None and team.count > 1:
        write_arrays(folder / _ARRAYS, one_device.arrays)
    # One device of process 0 computes; the others wait for it here, and read its arrays.
    team.all_gather("one device is done", True)
    if one_device is None:
        train(request, read_arrays(folder / _ARRAYS))
        return None
    warnings: list[str] = []
    verification = one_device.compared_with(train(request, one_device.arrays, warnings.append))
    return replace(verification, warnings=tuple(dict.fromkeys(warnings)))  # one for all points


def prepared(folder: Path) -> Request:
    """Prepares the process for the checked config in a folder; returns the batches that training begins with."""
    config = build(RunConfig, json.loads((folder / REQUEST).read_text()), "config")
    if from_launcher() is not None:
        processes.join(config.cluster, {})
    compute_exactly(config.mesh)
    registry.prepare(config)
    data = loading.load(config.dataset, config.trainer.seed, task=config.task)
    task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
    batches = first_batches(config.dataset, config.trainer, config.verify.steps, data.train, task)
    length = run_length(config, data.train.size, task.tokens)
    dataset = without_padding(config.dataset, config.trainer, data.train.size)
    registry.load(config.engine.name)
    # Before one device computes: a library makes its devices once.
    registry.ENGINES[config.engine.name].module("devices").prepare_devices(config.mesh)
    spec = DataSpec(task.arrays, task)
    optimizer = registry.optimizer_of(config.engine.name, config.model, config.optimizer, config.trainer.seed, spec)
    config = replace(config, dataset=dataset, optimizer=transformation.with_epoch(optimizer, length.epoch))
    return Request(config, spec, length.total, batches)


def compute_exactly(config: MeshConfig) -> None:
    """Makes JAX compute float32 products in float32 on GPUs and TPUs, unless the environment says otherwise.

    Must run before JAX's first import. On CPUs they are computed so anyway.
    """
    if device_kind(config) != "cpu":
        os.environ.setdefault(*_EXACT_PRODUCTS)


def make_reference(request: Request) -> Reference:
    """Returns the single device that the config's engine is compared with; its library must be loaded.

    Raises:
      ConfigError: the builder fails, or made a model that no mesh can train.
    """
    if request.data.task.own_step:
        return own_step_reference.OwnStepReference(request)
    if registry.ENGINES[request.config.engine.name].full:
        return jax_reference.JaxReference(request)
    return keras_reference.KerasReference(request)


@dataclass(frozen=True)
class OneDevice:
    """What one device computes, and how far it differs from itself.

    Attributes:
      arrays: those of `runner.verify.points.compare`, with the points.
      spread: by key, differences of the perturbed runs so far.
    """

    request: Request
    reference: Reference
    arrays: dict[str, Array]
    spread: dict[str, Array]

    def compared_with(self, arrays: Mapping[str, Array]) -> Verification:
        """Returns how the mesh's arrays compare.

        If nothing but the training from the start differs, whose weights may be at a kink, the device runs several
        times as many perturbed runs before the difference is reported.
        """
        verification = self.verification(arrays)
        failed_kinds = {check.kind for check in verification.failed}
        if not failed_kinds or not failed_kinds <= FROM_THE_START:
            return verification
        self.spread.update(spread(self.arrays, map(self.reference.train, MORE_SEEDS), self.spread))
        return self.verification(arrays)

    def verification(self, arrays: Mapping[str, Array]) -> Verification:
        """Returns how the mesh's arrays compare with the perturbed runs so far."""
        rounding = self.reference.rounding
        try:
            checks = compare(self.arrays, self.spread, in_float32(arrays), rounding)
        except ValueError as error:
            raise EngineError(f"verify failed: {error}") from error
        axes = self.request.config.mesh.axes
        steps = self.request.batches.steps
        terms = self.reference.longest_sum
        return Verification(tuple(checks), steps, mesh.describe(axes), terms, rounding, mesh.size(axes))


def computed(request: Request) -> OneDevice:
    """Trains on one device, as often as its perturbed runs need."""
    reference = make_reference(request)
    trained = reference.train()
    losses = trained["loss"]
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        raise EngineError(
            f"verify failed: the loss on one device is {losses[bad[0]]} at step {bad[0] + 1}, so later "
            "steps can't be compared; lower optimizer.learning_rate or verify.steps"
        )
    states = reference.points(trained)
    arrays = in_float32({**trained, **states, **reference.at_points(states)})
    # One run at a time: the arrays of several runs of a large model may not fit in memory.
    runs = ({**reference.train(seed), **reference.at_points(states, seed)} for seed in SEEDS)
    return OneDevice(request, reference, arrays, spread(arrays, runs))


if __name__ == "__main__":
    main()
