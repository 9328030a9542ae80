"""Step times of plans: what activation checkpointing repeats, ranges of links, and networks that are not known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import published
from runner.config.schema import PlanConfig
from runner.plan import forecast
from runner.plan.base import MemoryPart, Traffic
from runner.plan.rates import unpriced_network
from tests.configs import with_keys
from tests.plan import cases
from tests.plan.test_hardware import hardware

# The gpt of 1 billion parameters of `benchmarks.gpu`.
ONE_BILLION = (
    *("engine=jax", "engine.precision=bfloat16", "model=gpt", "model.dim=2048", "model.depth=16", "model.heads=16"),
    *("task=language_model", "task.vocabulary=50304", "dataset=synthetic", "dataset.length=2048"),
    *("dataset.batch_size=8", "mesh=single", "hardware=h200", "plan.compiler=arithmetic"),
)


def step_seconds(folder: Path, *words: str) -> float:
    return float(cases.planned(folder, *ONE_BILLION, *words)["forecast"]["step_seconds"][0])


@pytest.mark.nightly
def test_activation_checkpointing_repeats_neither_the_last_product_nor_the_head(tmp_path: Path) -> None:
    once = step_seconds(tmp_path / "none", "model.remat=none")
    repeated = step_seconds(tmp_path / "full", "model.remat=full")
    # Measured on one H200: 215 ms of 179 ms. A whole forward pass more would be 1.33.
    assert repeated / once == pytest.approx(1.20, abs=0.03)


def test_a_step_that_links_bound_has_a_range() -> None:
    config = with_keys(cases.config("mlp", "batch8", "fsdp"), {"hardware": hardware("h100")})
    parts = (MemoryPart("weights", 0, "counted"), MemoryPart("optimizer state", 0, "counted"))
    parts = (*parts, MemoryPart("activations", 0, "estimated"))
    traffic = (Traffic("all_reduce", "batch", "backward", 1, 1, 9.0),)
    fastest, slowest = cases.judged(config, parts, traffic, forecast.Work(1.0)).step_seconds
    assert fastest == pytest.approx(9.0 / 0.9)
    assert slowest == pytest.approx(9.0 / 0.5)


@pytest.mark.parametrize(
    ("card", "devices", "line"),
    [
        ("v5e", 1024, "1,024 devices of hardware=v5e are 4 slices of 256, and links between slices"),
        ("v5e", 256, None),
        ("v5p", 1024, None),
        ("h100", 64, None),
    ],
)
def test_links_between_slices_are_not_priced_silently(card: str, devices: int, line: str | None) -> None:
    warnings = unpriced_network(PlanConfig(), hardware(card), {"batch": devices})
    assert bool(warnings) == (line is not None)
    assert line is None or line in warnings[0]


def test_a_null_network_is_a_warning() -> None:
    nodes = replace(hardware("h100"), network_gb_s=None)
    (warning,) = unpriced_network(PlanConfig(), nodes, {"batch": 8, "model": 8})
    assert warning.startswith("hardware.network_gb_s=null: 64 devices of hardware=h100 are 8 nodes of 8")
    assert unpriced_network(PlanConfig(network_gb_s=10.0), nodes, {"batch": 64}) == []


def row(**cells: Any) -> dict[str, str]:
    sizes = {"layers": 32, "dim": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256, "seq": 8192}
    filled = dict.fromkeys(published.COLUMNS, "") | sizes
    filled |= {"source": "MaxText tables", "model": "llama3-8b", "params": 8030261248, "dtype": "bf16"}
    filled |= {"remat": "full", "hardware": "H100 80GB", "devices": 64, "per_device_batch": 1, "global_batch": 64}
    return {name: str(value) for name, value in (filled | cells).items()}


@pytest.mark.parametrize(
    ("cells", "overrides"),
    [
        ({"mesh_parallelism": "HYBRID_SHARD 8"}, ("mesh.axes={replica:8,batch:8}", "dataset.batch_size=64")),
        ({"mesh_parallelism": "DP_REPLICATE 4 x DP_SHARD 16"}, ("mesh.axes={replica:4,batch:16}",)),
        ({"mesh_parallelism": "FSDP transpose 16 x FSDP 4"}, ("mesh.axes={batch:64}",)),
        ({"mesh_parallelism": "FSDP 64", "optimizer": "adamw, bf16 moments"}, ("engine.state=bfloat16",)),
        (
            {"mesh_parallelism": "FSDP 64", "remat": "qkv_proj_offloaded"},
            ("model.remat=names", "model.offloaded=[query,key,value]"),
        ),
    ],
)
def test_a_published_run_is_the_config_that_its_words_say(cells: dict[str, str], overrides: tuple[str, ...]) -> None:
    assert set(overrides) <= set(published.mapped(row(**cells)).overrides)


def test_a_published_rate_above_the_peak_is_that_of_a_node() -> None:
    rate = {"mesh_parallelism": "FSDP 64", "tokens_per_s_per_device": 40_000}
    run = published.mapped(row(**rate))
    # 8,192 tokens, of 6 x 8e9 FLOPs each, in 0.2 s are twice the peak of an H100.
    assert run.step_seconds(6 * 8e9 * 8192, 989e12) == pytest.approx(8 * 8192 / 40_000)
    assert run.step_seconds(1e12, 989e12) == pytest.approx(8192 / 40_000)


def test_zero_1_shards_the_optimizer_state_over_the_replicas() -> None:
    run = published.mapped(row(mesh_parallelism="DP 64, distributed optimizer"))
    assert run.optimizer_shards == 64
    assert published.mapped(row(mesh_parallelism="DP 64")).optimizer_shards == 1
