"""Tokens per second of generation with and without a key/value cache, beside KerasHub's `generate`, interleaved.

    python -m benchmarks.generation                        # five repeats; one device, and eight virtual CPU devices
    python -m benchmarks.generation --repeats 1 --tokens 32

All write greedily after the same eight prompts of 16 tokens with a GPT-2 of the same sizes (width 128, 4 blocks, 4
heads, 512 hidden units, 257 tokens of vocabulary, rows of 256 tokens) and random weights. Each measurement is a
process of its own, which writes once to compile, and once more with a clock. A repeat runs all contenders once, in an
order drawn again, so that a busy spell of the machine does not hit one contender alone. Prints the medians of them.
KerasHub's model has one device, as its `generate` on JAX splits nothing by itself.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
WIDTH, BLOCKS, HEADS, HIDDEN, UNITS = 128, 4, 4, 512, 257
LENGTH, ROWS, PROMPT = 256, 8, 16
# Contender -> mesh's axes.
CONTENDERS = {
    "cached": {"batch": 1},
    "recomputed": {"batch": 1},
    "keras_hub": {"batch": 1},
    "cached batch4_model2": {"batch": 4, "model": 2},
    "recomputed batch4_model2": {"batch": 4, "model": 2},
}
_TIMEOUT_S = 1800.0


def prompts() -> np.ndarray:
    """Returns the prompts, int32 (ROWS, PROMPT)."""
    return np.random.default_rng(0).integers(1, 256, (ROWS, PROMPT)).astype(np.int32)


def timed(write: Callable[[], object]) -> float:
    """Returns the seconds of a second call."""
    write()
    begin = time.perf_counter()
    write()
    return time.perf_counter() - begin


def ours(contender: str, tokens: int) -> float:
    """Returns the tokens per second of an engine, with a cache or without."""
    from runner.config.schema import LayoutConfig, MeshConfig, ModelConfig, RuleConfig, RunConfig
    from runner.config.schema_task import LanguageModelOptions, TaskConfig
    from runner.data.base import ArraySpec
    from runner.data.vocabulary import Vocabulary
    from runner.engine import make_engine, registry
    from runner.task import generation
    from runner.task.base import DataSpec
    from runner.task.generation import Sampling
    from runner.task.language_model import LanguageModel
    from runner.task.registry import make_task
    from runner.training import samples

    rules = []
    if "model" in CONTENDERS[contender]:
        rules = [
            RuleConfig(".*attention/(query|key|value)/(kernel)", [None, "model", None]),
            RuleConfig(".*attention/(query|key|value)/(bias)", ["model", None]),
            RuleConfig(".*attention/output/kernel", ["model", None, None]),
            RuleConfig(".*feedforward/up/kernel", [None, "model"]),
            RuleConfig(".*feedforward/up/bias", ["model"]),
            RuleConfig(".*feedforward/down/kernel", ["model", None]),
        ]
    task_config = TaskConfig("language_model", options=asdict(LanguageModelOptions(vocabulary=UNITS)))
    sizes = {"dim": WIDTH, "depth": BLOCKS, "heads": HEADS, "feedforward": HIDDEN}
    config = RunConfig(
        mesh=MeshConfig(axes=dict(CONTENDERS[contender])),
        layout=LayoutConfig(rules=rules),
        model=ModelConfig("runner.model.gpt.build", sizes),
        task=task_config,
    )
    config = replace(config, engine=replace(config.engine, name="jax"))
    config = replace(config, dataset=replace(config.dataset, batch_size=ROWS))
    arrays = {name: ArraySpec((LENGTH,), "int32", ("sequence",)) for name in ("tokens", "label")}
    task = make_task(task_config, arrays, vocabulary=Vocabulary("bytes", "<end>"))
    assert isinstance(task, LanguageModel)
    registry.load(config)
    engine = make_engine(config, DataSpec(task.arrays, task), 1)
    engine.build()
    ask, multiple = samples.asking(config, engine)
    write = samples.writing(engine)
    assert write is not None
    rows = list(prompts())
    counts = [tokens] * ROWS
    greedy = Sampling(0.0)
    if contender.startswith("cached"):
        seconds = timed(lambda: generation.written_tokens(write, rows, counts, LENGTH, greedy, 0, UNITS, multiple))
    else:
        next_logits = task._next_logits_of_rows(ask, multiple)
        seconds = timed(lambda: generation.sample_tokens(next_logits, rows, counts, LENGTH, [greedy] * ROWS, 0, 0))
    return ROWS * tokens / seconds


def keras_hub(tokens: int) -> float:
    """Returns the tokens per second of KerasHub's own `generate`."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=UNITS,
        num_layers=BLOCKS,
        num_heads=HEADS,
        hidden_dim=WIDTH,
        intermediate_dim=HIDDEN,
        max_sequence_length=LENGTH,
    )
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    model.compile(sampler="greedy")
    # Its cache has as many places as its input, so the input has the prompt and room for the new tokens.
    ids = np.zeros((ROWS, PROMPT + tokens), np.int32)
    ids[:, :PROMPT] = prompts()
    mask = np.zeros(ids.shape, bool)
    mask[:, :PROMPT] = True
    inputs = {"token_ids": ids, "padding_mask": mask}
    return ROWS * tokens / timed(lambda: model.generate(dict(inputs), stop_token_ids=None))


def measure(contender: str, tokens: int) -> float:
    """Returns a contender's tokens per second, measured in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "benchmarks.generation", "--one", contender, "--tokens", str(tokens)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return float(done.stdout.split()[-1])


def main() -> None:
    """Runs the contenders and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128, help="new tokens per prompt")
    parser.add_argument("--one", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one == "keras_hub":
        print(keras_hub(options.tokens))
        return
    if options.one:
        print(ours(options.one, options.tokens))
        return
    rates: dict[str, list[float]] = defaultdict(list)
    draw = random.Random(0)
    for _ in range(options.repeats):
        order = list(CONTENDERS)
        draw.shuffle(order)
        for contender in order:
            rates[contender].append(measure(contender, options.tokens))
    print(f"{'contender':<28}{'tokens/s':>10}{'lowest':>10}{'highest':>10}")
    for contender in CONTENDERS:
        values = rates[contender]
        print(f"{contender:<28}{statistics.median(values):>10.0f}{min(values):>10.0f}{max(values):>10.0f}")


if __name__ == "__main__":
    main()
