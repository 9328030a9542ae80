"""Writes tokens with and without a key/value cache on one mesh, in a process of its own, and writes what it found.

Usage: python -m tests.engine.decoding_worker OUT.npz JSON, with JSON {"mesh": ..., "runs": [[name of
`gpt_cases.OPTIONS`, options of the model beside], ...], "precision": ...}.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import numpy as np

from runner.config.schema import ModelConfig
from runner.config.schema_task import LanguageModelOptions, TaskConfig
from runner.data.base import Array, ArraySpec
from runner.data.vocabulary import Vocabulary
from runner.engine import make_engine, registry
from runner.task import generation
from runner.task.base import DataSpec
from runner.task.generation import Sampling
from runner.task.language_model import LanguageModel
from runner.task.registry import make_task
from runner.training import samples
from tests.configs import with_keys
from tests.engine import gpt_cases
from tests.engine.gpt_worker import as_stored, unstacked

VOCABULARY = Vocabulary("bytes", "<end>")
UNITS = 264  # more than the vocabulary has, so that some logits are of no token
# Of one row each, of very different lengths; together no multiple of the mesh's axis.
PROMPTS = [[5], [101, 7, 9], list(range(40, 58)), [3, 3, 3, 3, 3], [250, 2]]
COUNTS = [9, 12, 6, 12, 12]
LENGTH = 24
SAMPLINGS = {
    "greedy": Sampling(0.0),
    "drawn": Sampling(0.7),
    "limited": Sampling(1.3, top_k=9, top_p=0.8),
}


_SIZES = {"num_layers": 2, "intermediate_dim": 64}
_GROUPED = {**_SIZES, "num_query_heads": 4, "num_key_value_heads": 2, "hidden_dim": 32}
# Backbones of KerasHub: learned positions, rotary ones with grouped heads, and heads of a width of their own.
HUB: dict[str, dict[str, Any]] = {
    "hub_gpt2": {
        "backbone": "GPT2Backbone",
        **_SIZES,
        "num_heads": 4,
        "hidden_dim": 32,
        "max_sequence_length": LENGTH,
    },
    "hub_llama": {"backbone": "LlamaBackbone", **_GROUPED},
    "hub_gemma": {"backbone": "GemmaBackbone", **_GROUPED, "head_dim": 16},
    "hub_mistral": {"backbone": "MistralBackbone", **_GROUPED, "sliding_window": 8},
}


def run(name: str, mesh: str, precision: str, more: dict[str, Any]) -> dict[str, Array]:
    """Returns tokens with and without a cache by sampling, and both logits after the greedy tokens."""
    config = gpt_cases.config("jax", "gpt2" if name in HUB else name, mesh, **more)
    if name in HUB:
        config = with_keys(config, {"model": ModelConfig("runner.model.keras_hub.build", HUB[name])})
    task_config = TaskConfig("language_model", [], None, None, asdict(LanguageModelOptions(vocabulary=UNITS)))
    config = with_keys(config, {"task": task_config, "engine.precision": precision})
    names = ["tokens", "label"]
    if gpt_cases.OPTIONS.get(name, {}).get("segments"):
        names.append("segments")
    arrays = {key: ArraySpec((LENGTH,), "int32", ("sequence",)) for key in names}
    task = make_task(task_config, arrays, vocabulary=VOCABULARY)
    assert isinstance(task, LanguageModel)
    registry.load(config)
    engine = make_engine(config, DataSpec(task.arrays, task), 1)
    engine.build()
    shapes = {path: info.shape for path, info in engine.variables().items() if "optimizer/" not in path}
    engine.load_state(engine.state() | as_stored(gpt_cases.start(unstacked(shapes)), shapes))

    ask, multiple = samples.asking(config, engine)
    write = samples.writing(engine)
    assert write is not None
    prompts = [np.array(prompt, np.int32) for prompt in PROMPTS]
    next_logits = task._next_logits_of_rows(ask, multiple)
    found = {}
    for kind, sampling in SAMPLINGS.items():
        rows = [sampling] * len(prompts)
        slow = generation.sample_tokens(next_logits, prompts, COUNTS, LENGTH, rows, 3, 0, 40)
        fast = generation.written_tokens(
            write, prompts, COUNTS, LENGTH, sampling, 3, VOCABULARY.size, multiple, first_row=40
        )
        for row, (expected, tokens) in enumerate(zip(slow, fast, strict=True)):
            found[f"{kind}/{row}/computed"] = expected
            found[f"{kind}/{row}/cached"] = tokens
    if name in HUB:
        return found
    return found | logits(engine, next_logits, multiple)


def logits(engine: Any, next_logits: generation.Ask, multiple: int) -> dict[str, Array]:
    """Returns logits after greedy tokens with the cache, those computed for the same rows, and a shard's shape."""
    indices = np.arange(-(-len(PROMPTS) // multiple) * multiple) % len(PROMPTS)
    prompts = np.zeros((len(PROMPTS), 18), np.int32)
    lengths = np.array([len(prompt) for prompt in PROMPTS], np.int32)
    for row, prompt in zip(prompts, PROMPTS, strict=True):
        row[: len(prompt)] = prompt
    programs = engine._decoding
    written = engine._run(
        lambda *given: programs._prompted(*given, slots=24), engine._weights, prompts[indices], lengths[indices]
    )
    keys = written.caches[0]
    shard = np.array(keys.sharding.shard_shape(keys.shape))
    continued = engine._run(
        lambda *given: programs._looped(
            *given, None, count=6, sampling=Sampling(0.0), vocabulary=VOCABULARY.size, written=written
        ),
        engine._weights,
        lengths[indices],
        np.int32(18),
        np.int32(0),
    )
    tokens = np.asarray(continued[0])
    rows = np.zeros((len(PROMPTS), LENGTH), np.int32)
    for row, prompt, new in zip(rows, PROMPTS, tokens, strict=False):
        row[: len(prompt) + 6] = [*prompt, *new]
    return {
        "logits cached": engine._to_host(continued[1].logits)[: len(PROMPTS), : VOCABULARY.size],
        "logits computed": next_logits(rows, lengths + 5),
        "shape": np.array(keys.shape),
        "shard": shard,
    }


def main(out: str, request: str) -> None:
    """Writes what was found."""
    given = json.loads(request)
    found = {}
    for name, more in given["runs"]:
        key = ",".join([name, *(f"{option}={value}" for option, value in more.items())])
        for part, value in run(name, given["mesh"], given.get("precision", "float32"), more).items():
            found[f"{key}:{part}"] = value
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
