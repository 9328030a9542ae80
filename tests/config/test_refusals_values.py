"""Values that would be computed with, or left out, without a word are refused in one line that names the key."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nightly import nightly_except
from tests.refusals import Refusal, assert_refused, chosen_cases, name, refusal, refuse_all

_PIECES = "optimizer.schedule.name=piecewise optimizer.schedule.boundaries=[10] optimizer.schedule.factors="

REFUSALS = [
    # Numbers that float32 makes 0, 1 or infinite of, and whole numbers past int32.
    refusal("optimizer.learning_rate=1e39", "optimizer.learning_rate=1e+39", "float32 rounds this value to inf"),
    refusal("optimizer.learning_rate=1e-50", "optimizer.learning_rate=1e-50", "float32 rounds this value to 0"),
    refusal("optimizer.beta_1=0.99999999999", "optimizer.beta_1=0.99999999999", "float32 rounds this value to 1"),
    refusal("optimizer.ema.decay=0.99999999999", "optimizer.ema.decay=0.99999999999", "below 1"),
    refusal("optimizer.epsilon=1e-45", "optimizer.epsilon=1e-45", "above 0"),
    refusal("optimizer.schedule.final_factor=1e-50", "optimizer.schedule.final_factor=1e-50", "0 or of a magnitude"),
    refusal("optimizer.clip.norm=1e39", "optimizer.clip.norm=1e+39", "float32 rounds this value to inf"),
    refusal("optimizer=adamw optimizer.weight_decay=inf", "optimizer.weight_decay=inf", "at least 0"),
    refusal("optimizer=adamw optimizer.weight_decay=2000", "optimizer.weight_decay=2000", "below 1000"),
    refusal("optimizer=sgd optimizer.momentum=nan", "optimizer.momentum=nan", "at least 0 and below 1"),
    refusal("trainer.early_stopping.min_delta=nan", "trainer.early_stopping.min_delta=nan", "at least 0"),
    refusal("trainer.checkpoint.every_minutes=inf", "trainer.checkpoint.every_minutes=inf", "above 0"),
    refusal("plan.gflops=1e39", "plan.gflops=1e+39", "above 0"),
    refusal("advise.devices=0", "advise.devices=0", "from 1 to 65,536", "set advise.devices=64"),
    refusal("model=convnet model.dropout=nan", "model.dropout=nan", "a finite number"),
    refusal("+model.nested={a:[1,inf]}", "model.nested", "write 0.0 or another number there"),
    refusal("++nosuch.canary={a:???}", "nosuch={canary:{a:???}}", "unknown group"),
    refusal("export.folder=s3://x/y", "export.folder=s3://x/y", "must be a local path"),
    refusal("trainer.checkpoint.folder=memory://x/y", "trainer.checkpoint.folder=memory://x/y", "the memory of one"),
    refusal("trainer.steps=3000000000", "trainer.steps=3000000000", "at most 2,147,483,647 (int32)"),
    refusal("trainer.steps=0", "trainer.steps=0", "at least 1", "set trainer.steps=1000"),
    refusal("trainer.evaluate_every_steps=0", "trainer.evaluate_every_steps=0", "at least 1"),
    refusal(
        "trainer.tokens=1e9", "trainer.tokens=1000000000.0", "must be an integer", "set trainer.tokens=1000000000"
    ),
    refusal(f"trainer.tokens={2**63}", f"trainer.tokens={2**63}", "from 1 to 9,223,372,036,854,775,807"),
    refusal("trainer.epochs=3000000000", "trainer.epochs=3000000000", "at most 2,147,483,647 (int32)"),
    refusal(
        "layout.rules=[{match:a,shard:batch,min_elements:9999999999}]",
        "layout.rules[0].min_elements=9999999999",
        "write min_elements: 0",
    ),
    refusal("engine.intra_op_threads=99999", "engine.intra_op_threads=99999", "from 1 to 1,024"),
    # Rates.
    refusal(f"{_PIECES}[1,-2]", "optimizer.schedule.factors[1]=-2.0", "at least 0"),
    refusal(f"{_PIECES}[0,0]", "optimizer.schedule.factors=[0.0,0.0]", "must have an entry above 0"),
    refusal(f"{_PIECES}[1,nan]", "optimizer.schedule.factors[1]=nan", "at least 0"),
    refusal(f"{_PIECES}[1,1e39]", "optimizer.schedule.factors", "at least 0"),
    refusal("trainer.on_nan=restore trainer.nan_restores=1000", "trainer.nan_restores=1000", "at most 119"),
    # Keys that another schedule or engine would use.
    refusal("optimizer.schedule.decay_steps=10", "optimizer.schedule.decay_steps=10", "constant", "name=cosine"),
    refusal("optimizer.schedule.staircase=true", "optimizer.schedule.staircase=true", "name=exponential"),
    refusal("optimizer.schedule.factors=[1]", "optimizer.schedule.factors=[1.0]", "name=piecewise"),
    refusal(
        "optimizer.schedule.name=cosine optimizer.schedule.decay_rate=0.5",
        "optimizer.schedule.decay_rate=0.5",
        "name=cosine has no such key (its keys: warmup_steps, initial_factor, decay_steps, final_factor)",
        "remove optimizer.schedule.decay_rate",
    ),
    refusal("+engine.loop=host", "engine.loop=host", "keras_dtensor has no such key", "set engine=jax"),
    refusal("engine=jax +engine.canary=false", "engine.canary=false", "jax has no such key"),
    # A builder of Keras models for the engine that trains none.
    refusal("engine=core_dtensor", "engine=core_dtensor", "model._target_=runner.model.mlp", "set model=mlp_core"),
    # A list of options, and names that no file can have.
    refusal("model=[mlp_core]", "model=[mlp_core]", "the name of one option", "write model=<name>"),
    refusal(f"run={'long' * 100}", "run=longlong", "no run left a"),
    refusal("trainer.checkpoint.folder=/", "trainer.checkpoint.folder=/", "must not be the root of the file system"),
    refusal("export.folder=/tmp/..", "export.folder=/tmp/..", "must not be the root of the file system"),
    refusal("trainer.checkpoint.folder='~no_one/a'", "there is no user 'no_one'; use an absolute path, or ./~no_one"),
    refusal(f"trainer.checkpoint.folder=a/{'long' * 100}", "trainer.checkpoint.folder=a/longlong", "255 bytes"),
    refusal(f"dataset.data_dir={'long' * 100}", "dataset.data_dir=longlong", "255 bytes"),
    # Metrics that no run logs, and the wrong way to look for the best.
    refusal("sweep.metric=nope", "sweep.metric=nope", "one of eval/loss, eval/accuracy, train/loss"),
    refusal("sweep.metric=eval/los", "did you mean eval/loss?"),
    refusal(
        "sweep.metric=eval/loss sweep.direction=maximize",
        "sweep.direction=maximize",
        "sweep.metric=eval/loss",
        "direction=minimize",
    ),
    refusal("trainer.checkpoint.folder=http://host/a", "trainer.checkpoint.folder=http://host/a", "s3://"),
    refusal("trainer.checkpoint.folder=s3://", "trainer.checkpoint.folder=s3:", "must name a bucket"),
    refusal("trainer.checkpoint.folder=s3://me:pass@b/a", "trainer.checkpoint.folder=s3://me:***@b/a", "credentials"),
    refusal("trainer.checkpoint.folder='s3://b/a?sig=x'", "sig=***", "must not be a signed URL"),
    refusal("dataset=arrays dataset.path=http://b/a.npz", "dataset.path=http://b/a.npz", "must be a local path"),
    refusal("trainer.checkpoint.best=train/loss", "trainer.checkpoint.best=train/loss", "eval/loss, eval/accuracy"),
    # Values that are still missing.
    refusal("optimizer.learning_rate=???", "optimizer.learning_rate is required"),
    refusal("trainer.epochs=???", "trainer.epochs is required", "set trainer.epochs=..."),
    refusal("trainer.checkpoint.every_minutes=???", "trainer.checkpoint.every_minutes is required"),
    refusal("optimizer.schedule=???", "optimizer.schedule is required"),
    refusal("layout.inputs.label=[???]", "layout.inputs.label[0] is required"),
    refusal("layout.rules=[{match:a,spec:[???]}]", "layout.rules[0].spec[0] is required"),
    refusal("trainer.epochs=${trainer.seed} trainer.seed=???", "trainer.seed is required"),
    refusal("model.hidden=[???]", "model.hidden[0] is required"),
    refusal("+tracking.tags.a=???", "tracking.tags.a is required"),
]

# What looks alike and is meant: another schedule's keys at their defaults, as they stand in every option's file.
ALLOWED = [
    refusal("optimizer.schedule.name=cosine optimizer.schedule.decay_rate=0.96 optimizer.schedule.boundaries=[]"),
    refusal("optimizer.schedule.warmup_steps=0 optimizer.schedule.decay_steps=null"),
    refusal(f"{_PIECES}[1,0]"),
    refusal("sweep.metric=eval/loss sweep.direction=minimize"),
    refusal("sweep.metric=learning_rate"),
    refusal("sweep.metric=eval/loss"),
    refusal("optimizer.clip.value=1e30 optimizer.beta_1=0"),
    refusal("sweep.metric=throughput/step_ms sweep.direction=minimize"),
]


@pytest.fixture(scope="module")
def answers(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[tuple[str, ...], dict[str, Any]]:
    return refuse_all(chosen_cases(request), tmp_path_factory.mktemp("values"))


@pytest.mark.parametrize("case", nightly_except(REFUSALS[::3], REFUSALS), ids=name)
def test_what_would_pass_in_silence_is_refused_by_name(
    case: Refusal, answers: dict[tuple[str, ...], dict[str, Any]]
) -> None:
    answer = answers[case.args]
    assert not answer["reached"], "the command ran"
    assert answer["code"] == 2
    assert_refused(case, answer["out"], answer["err"])


@pytest.mark.parametrize("case", nightly_except(ALLOWED[::3], ALLOWED), ids=name)
def test_what_only_looks_alike_passes(case: Refusal, answers: dict[tuple[str, ...], dict[str, Any]]) -> None:
    answer = answers[case.args]
    assert (answer["code"], answer["err"]) == (0, "")
