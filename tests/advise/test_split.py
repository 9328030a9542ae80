"""Meshes share a trace only if the arrays that their forward passes keep are the same."""

from typing import Any

import pytest

from runner.engine.base import LossShapes, LossSplit
from runner.plan.advise import split
from tests.engine.jax_runs import answers

# Chunks of 16 KiB of logits, so that the numbers of chunks differ between meshes. A GPU's attention in bfloat16 is
# fused if the axis `model` divides the 2 heads and no axis splits tokens.
PROGRAM = """
import json, sys
from runner.cli.notebook import compose
from runner.plan.advise import arithmetic
from runner.data import loading
from runner.engine import make_engine, registry
from runner.task.base import DataSpec
from runner.task.registry import make_task

config = compose(
    "engine=jax", "engine.precision=bfloat16", "hardware=h100", "plan.compiler=arithmetic", "model=gpt",
    "model.dim=32", "model.depth=2", "model.heads=2", "model.dropout=0.1", "task=language_model",
    "task.vocabulary=512", "task.sample.prompt=null", "dataset=synthetic", "dataset.length=32",
    "dataset.batch_size=32",
)
registry.prepare(config)
data = loading.load(config.dataset, config.trainer.seed, task=config.task)
task = make_task(config.task, data.specs, data.train, vocabulary=data.vocabulary)
spec = DataSpec(task.arrays, task)

from runner.engine.jax import engine as jax_engine, planned
from runner.engine.jax.layers import chunked_loss
chunked_loss._MOST_BYTES = 1 << 14
built = arithmetic._built

def parts(batch, sequence=1, model=1):
    others = {"sequence": sequence, "model": model}
    axes = (("batch", batch), *((name, size) for name, size in others.items() if size > 1))
    return axes, model > 1, sequence > 1

MESHES = [parts(*sizes) for sizes in json.loads(sys.argv[1])]
truth = {}
for microbatches in (1, 2, 8):
    for mesh in MESHES:
        if 32 // microbatches % dict(mesh[0])["batch"]:
            continue
        case = ("none", microbatches, "float32", mesh)
        own = arithmetic.Arithmetic(config, spec, {})._engine_config(*case)
        truth[case] = built(make_engine(own, spec, 1, planning=True), own.mesh.axes, {}, ("none", microbatches))

outputs = []
layer_outputs = planned.PlannedEngine.layer_outputs
def counted_outputs(engine):
    outputs.append(1)
    return layer_outputs(engine)
planned.PlannedEngine.layer_outputs = counted_outputs

checks = []
check_model = jax_engine.check_model
def counted_checks(*arguments, **options):
    checks.append(1)
    check_model(*arguments, **options)
jax_engine.check_model = counted_checks

def compared(cases=tuple(truth)):
    search, builds, wrong = arithmetic.Arithmetic(config, spec, {}), [], []
    outputs.clear()
    checks.clear()
    def counted(*arguments):
        builds.append(1)
        return built(*arguments)
    arithmetic._built = counted
    for case in cases:
        traced, expected = search._trace(*case), truth[case]
        if traced.saved != expected.saved or traced.outputs != expected.outputs:
            wrong.append(case)
    return {"builds": len(builds), "outputs": len(outputs), "checks": len(checks), "wrong": wrong}

found = {"cases": len(truth), "keyed": compared()}
print(json.dumps(found))
"""
# Of batch, sequence and model. On 8 devices the losses have 16 chunks; on 16, 8; on 128, one.
SIZES = [[8, 1, 1], [16, 1, 1], [4, 1, 2], [2, 1, 4], [4, 2, 1], [2, 2, 2], [1, 2, 4], [32, 4, 1]]
found = answers(PROGRAM, SIZES)


@pytest.mark.nightly
def test_a_shared_trace_is_that_of_the_meshs_own_engine(found: Any) -> None:
    assert found["keyed"]["wrong"] == []


@pytest.mark.nightly
def test_meshes_share_traces(found: Any) -> None:
    # One device; with one microbatch: fused attention, plain attention, and split tokens with the loss in chunks and
    # whole; with two and with eight: the first three. The numbers of chunks and of parts start no trace.
    counts = {"builds": 11, "outputs": 3, "checks": 1}
    assert found["cases"] == 20
    assert {name: found["keyed"][name] for name in counts} == counts


def kept(loss: LossShapes, at: LossSplit, chunks: int, tokens: int) -> list[split.Array]:
    p, s = at.examples, at.sequence
    return [
        ((chunks, p, s, tokens, loss.features), "bfloat16"),
        ((p, s, loss.features, loss.vocabulary), "bfloat16"),
        ((chunks, p, s, tokens), "float32"),
    ]


LOSS = LossShapes(tokens=64, features=6, vocabulary=100)
OLD = LossSplit((4,), examples=8, sequence=1)
NEW = LossSplit((4,), examples=2, sequence=2)
BLOCK: list[split.Array] = [((16, 64, 6), "bfloat16")]


def test_the_arrays_of_a_loss_take_the_parts_of_the_new_mesh() -> None:
    saved = [*BLOCK, *kept(LOSS, OLD, 4, 2 * 16)]
    assert split.moved(saved, [LOSS], 16, OLD, NEW) == [*BLOCK, *kept(LOSS, NEW, 4, 8 * 8)]


def test_the_arrays_of_a_loss_take_another_number_of_chunks() -> None:
    coarse = LossSplit((2,), examples=2, sequence=2)
    saved = [*BLOCK, *kept(LOSS, OLD, 4, 2 * 16)]
    assert split.moved(saved, [LOSS], 16, OLD, coarse) == [*BLOCK, *kept(LOSS, coarse, 2, 8 * 16)]


def test_a_model_without_such_a_loss_has_the_same_arrays_everywhere() -> None:
    assert split.moved(BLOCK, [], 16, LossSplit((), 8, 1), LossSplit((), 2, 2)) == BLOCK


def test_a_loss_that_is_computed_whole_has_the_same_arrays_everywhere() -> None:
    logits: list[split.Array] = [((16, 64, 100), "float32")]
    assert split.moved(logits, [LOSS], 16, LossSplit((0,), 8, 1), LossSplit((0,), 2, 2)) == logits


def test_an_array_of_the_same_shape_as_one_of_the_loss_prevents_sharing() -> None:
    arrays = kept(LOSS, OLD, 4, 2 * 16)
    assert split.moved([*arrays, arrays[2]], [LOSS], 16, OLD, NEW) is None
