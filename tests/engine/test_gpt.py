"""The transformer on meshes of both engines computes what a plain implementation in JAX alone does."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forks
from tests.engine.gpt_cases import OPTIONS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
Arrays = dict[str, np.ndarray]
# Float32 sums of the same terms in another order, through two blocks and four steps of an Adam whose epsilon of 1e-3
# makes nothing of rounding: measured up to 4e-6 of an array's largest entry.
RELATIVE = 2e-5
# A softmax does not change when all of its scores do: the gradient of this bias is rounding and nothing else.
ROUNDING = "attention/key/bias"
# Beside the options of `gpt_cases`, on engine jax alone.
ON_JAX: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"scan": True, "remat": "full"}),
    ("segments", {"scan": True}),
    ("tied", {"remat": "dots_saveable"}),
    ("gpt2", {"fused_head": True}),
    ("tied", {"fused_head": True, "scan": True}),
    ("dropout", {"scan": True, "remat": "dots_saveable"}),
    ("dropout", {"remat": "full"}),
    ("mistral", {"scan": True, "remat": "full"}),
    ("capped", {"fused_head": True, "scan": True}),
    ("gemma2", {"fused_head": True}),
    ("gemma3", {"scan": True, "remat": "full"}),
    ("local_and_global", {"scan": True}),
    ("local_and_global", {"scan": True, "remat": "names", "saved": ["attended"], "fused_head": True}),
    ("llama", {"remat": "names", "saved": ["query", "attended", "gate", "up"]}),
    ("tied", {"scan": True, "remat": "names", "saved": ["attended"], "offloaded": ["input", "key", "value"]}),
]
# What each splits that no other does: weights in store; tokens, heads and examples; heads over the axis of the tokens;
# heads over two axes; on jax also heads by four, a weight twice, tokens and store.
SPLITS = ("batch8_fsdp", "batch2_sequence2_model2", "sequence4_of_heads", "model4_small2")
ON_MESHES = {
    "jax": (*SPLITS, "batch2_model4", "batch4_model2_both", "batch2_sequence4_fsdp"),
    "keras_dtensor": SPLITS,
}


# It has a mesh of its own: with the others it would make every mesh take longer.
MIXTURE = "mixtral"


def key_of(name: str, more: dict[str, Any]) -> str:
    """Returns what the worker calls a run."""
    return ",".join([name, *(f"{option}={value}" for option, value in more.items())])


def work(
    folder: Path, engine: str, mesh: str, runs: list[tuple[str, dict[str, Any]]], *, brief: bool = False
) -> Arrays:
    """Runs the worker and returns its arrays."""
    out = folder / f"{engine}_{mesh}.npz"
    request = json.dumps({"engine": engine, "mesh": mesh, "runs": runs, "brief": brief})
    command = [sys.executable, "-m", "tests.engine.gpt_worker", str(out), request]
    library = "tensorflow" if engine == "keras_dtensor" else "jax"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forks.run(command, library=library, cwd=ROOT, env=environment, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(np.load(out))


def differences(expected: Arrays, got: Arrays, name: str, key: str, *, brief: bool = False) -> list[str]:
    """Returns what of a run differs from the case's expectation by more than rounding."""
    assert f"{key}:error" not in got, got[f"{key}:error"]
    found = []
    wanted = {each.partition(":")[2]: value for each, value in expected.items() if each.startswith(f"{name}:")}
    assert "loss" in wanted
    for path, value in wanted.items():
        if ROUNDING in path or path == "eval" or (brief and path.startswith("gradient/")):
            continue
        apart = np.abs(got[f"{key}:{path}"] - value).max() / max(np.abs(value).max(), 1e-9)
        if not apart <= RELATIVE:
            found.append(f"{key}:{path} is off by {apart:.1e}")
    return found


@pytest.mark.nightly
def test_a_scanned_block_that_computes_again_equals_the_plain_one_with_tokens_and_heads_split(tmp_path: Path) -> None:
    run = ("llama", {"scan": True, "remat": "full"})
    expected = work(tmp_path, "plain", "single", [("llama", {})])
    got = work(tmp_path, "jax", "sequence2_model2", [run], brief=True)
    assert differences(expected, got, "llama", key_of(*run), brief=True) == []


@pytest.mark.nightly
def test_dtensor_takes_queries_over_one_axis_and_their_keys_over_another(tmp_path: Path) -> None:
    expected = work(tmp_path, "plain", "single", [("llama", {})])
    got = work(tmp_path, "keras_dtensor", "model4_small2", [("llama", {})])
    assert differences(expected, got, "llama", "llama") == []


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["jax", "keras_dtensor"])
def test_experts_split_over_three_axes_equal_the_plain_ones(tmp_path: Path, engine: str) -> None:
    runs: list[tuple[str, dict[str, Any]]] = [(MIXTURE, {})]
    if engine == "jax":
        runs.append((MIXTURE, {"scan": True, "remat": "full"}))
    expected = work(tmp_path, "plain", "single", [(MIXTURE, {})])
    got = work(tmp_path, engine, "batch2_model2_experts2", runs)
    for name, more in runs:
        assert differences(expected, got, name, key_of(name, more)) == []


class Plain:
    """Cases in JAX alone, computed when they are first asked for.

    With dropout, whose masks are the runner's own, a case is computed by its engine on one device.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._arrays: Arrays = {}
        self._names: set[str] = set()

    def of(self, names: set[str]) -> Arrays:
        """Returns the arrays of cases, among others."""
        missing = sorted(names - self._names)
        by_engine = {
            "plain": [name for name in missing if name != "dropout"],
            "jax": [name for name in missing if name == "dropout"],
        }
        for engine, new in by_engine.items():
            if new:
                self._arrays |= work(self._folder, engine, "single", [(name, {}) for name in new])
        self._names |= names
        return self._arrays


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    return Plain(tmp_path_factory.mktemp("plain"))


@pytest.mark.nightly
@pytest.mark.parametrize(("engine", "mesh"), [(engine, mesh) for engine in ON_MESHES for mesh in ON_MESHES[engine]])
def test_every_option_on_a_mesh_of_each_engine_equals_the_plain_implementation(
    plain: Plain, tmp_path: Path, engine: str, mesh: str
) -> None:
    runs = [(name, dict[str, Any]()) for name in OPTIONS if name != MIXTURE] + (ON_JAX if engine == "jax" else [])
    runs = runs[ON_MESHES[engine].index(mesh) :: len(ON_MESHES[engine])]
    expected = plain.of({name for name, _ in runs})
    got = work(tmp_path, engine, mesh, runs)
    assert [each for name, more in runs for each in differences(expected, got, name, key_of(name, more))] == []
