"""Plans for hardware that is not here: memory, links and the verdict, against hand arithmetic."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.config import search_path
from runner.config.build import build
from runner.config.schema import HardwareConfig, PlanConfig
from runner.engine.base import Collective, LayerInput, LayerOutput, ProgramCost, VariableInfo
from runner.errors import ConfigError
from runner.plan import communication, communication_dtensor, forecast, known_errors, memory, rows
from runner.plan.base import Forecast, MemoryPart, Traffic
from runner.plan.checks import hardware as checks_hardware
from runner.plan.checks.run import convert
from runner.plan.placed_model import PlacedModel
from runner.plan.rates import borrowed, group_gb_s, hardware_rates, node_members, traffic
from tests.config.test_config import composed
from tests.configs import with_keys
from tests.nightly import nightly_except
from tests.plan import cases

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
# Llama 3 8B's sizes, 1/16 as wide and with 4 of 32 layers.
DIM, DEPTH, HEADS, GROUPS, HIDDEN, VOCABULARY, LENGTH = 256, 4, 8, 2, 896, 2048, 128
GPT = (
    *("model=gpt", f"model.dim={DIM}", f"model.depth={DEPTH}", f"model.heads={HEADS}"),
    *(f"model.key_value_heads={GROUPS}", f"model.feedforward={HIDDEN}", "model.positions=rotary", "model.norm=rms"),
    *("model.activation=swiglu", "model.bias=false", "model.scan=true", "model.remat=full"),
    *("task=language_model", f"task.vocabulary={VOCABULARY}", "task.sample.prompt=null"),
    *("dataset=synthetic", f"dataset.length={LENGTH}"),
    *("engine=jax", "engine.precision=bfloat16", "optimizer=adamw"),
)
ABSENT = ("hardware=h100", "plan.compiler=arithmetic", "layout=fsdp_megatron", "dataset.batch_size=64")


def hardware(name: str) -> HardwareConfig:
    config = build(HardwareConfig, search_path.content_of(f"hardware/{name}"), "hardware")
    assert isinstance(config, HardwareConfig)
    return config


def test_state_on_64_devices_that_are_not_here_is_that_of_hand_arithmetic(tmp_path: Path) -> None:
    words = ("mesh.axes={batch:32,model:2}", *ABSENT)
    plan = cases.planned(tmp_path / "run", *GPT, *words)
    assert plan["axes"] == {"batch": 32, "model": 2}
    parts = {part["kind"]: part["bytes"] for part in plan["forecast"]["memory"]}
    # Kernels are sharded over both axes, and norms' scales over `batch` alone.
    head = DIM // HEADS
    attention = 2 * DIM * HEADS * head + 2 * DIM * GROUPS * head
    kernels = DEPTH * (attention + 3 * DIM * HIDDEN) + 2 * VOCABULARY * DIM
    scales = DEPTH * 2 * DIM + DIM
    by_path = {variable["path"]: variable for variable in plan["variables"]}
    # A scale of fewer than 1,024 numbers stays replicated.
    assert by_path["norm/scale"]["spec"] == [None]
    last = by_path["norm/scale"]["bytes_per_device"]
    assert last == 4 * DIM
    assert scales - DIM == 2 * DEPTH * DIM
    expected = 4 * kernels // 64 + 4 * 2 * DEPTH * DIM // 32 + last
    assert parts["weights"] == expected
    assert parts["optimizer state"] == 2 * expected
    # What JAX reserves by default.
    assert plan["forecast"]["capacity_bytes"] == round(0.75 * round(79.1 * GIB))
    assert plan["forecast"]["tokens"] == 64 * LENGTH
    assert {group["axis"] for group in plan["traffic"]} == {"batch", "model"}


@pytest.mark.parametrize(
    ("model", "size", "parameters"),
    nightly_except(
        [("gpt", "llama3_8b", 8_030_261_248)],
        # As KerasHub 0.32 counts its presets; Llama 3.2 1B with tied embeddings, as published.
        [
            (model, *size)
            for model in ("gpt", "keras_hub")
            for size in (
                *(("gpt2", 124_439_808), ("gpt2_xl", 1_557_611_200), ("llama2_7b", 6_738_415_616)),
                *(("llama3_2_1b", 1_235_814_400), ("llama3_8b", 8_030_261_248), ("llama3_70b", 70_553_706_496)),
                *(("mistral_7b", 7_241_732_096), ("mixtral_8x7b", 46_702_792_704)),
                *(("gemma_2b", 2_506_172_416), ("gemma_7b", 8_537_680_896)),
            )
        ],
    ),
)
def test_a_size_has_the_published_number_of_parameters(tmp_path: Path, model: str, size: str, parameters: int) -> None:
    words = (f"model={model}", f"model.size={size}", "engine=jax", "task=language_model", "dataset=synthetic")
    plan = cases.planned(tmp_path / "run", *words, "mesh=batch4_model2", *ABSENT)
    assert plan["totals"]["parameters"]["bytes"] == 4 * parameters


def test_mixtral_8x7b_has_the_state_of_hand_arithmetic(tmp_path: Path) -> None:
    words = ("mesh.axes={batch:16,model:4}", *ABSENT, "model=gpt", "model.size=mixtral_8x7b", "model.remat=full")
    words += ("task=language_model", "dataset=synthetic", f"dataset.length={LENGTH}", "engine=jax")
    plan = cases.planned(tmp_path / "run", *words, "engine.precision=bfloat16", "optimizer=adamw")
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    experts = 3 * 8 * 4096 * 14336
    kernels = 32 * (attention + experts) + 2 * 32000 * 4096
    routers = 32 * 4096 * 8
    norms = 32 * 2 * 4096 + 4096
    # Mixtral 8x7B has 46.7B parameters (arXiv:2401.04088 says 47B).
    assert kernels + routers + norms == 46_702_792_704
    # Kernels over both axes, routers and norms over `batch` alone.
    expected = 4 * kernels // 64 + 4 * (routers + norms) // 16
    parts = {part["kind"]: part["bytes"] for part in plan["forecast"]["memory"]}
    assert parts["weights"] == expected
    assert parts["optimizer state"] == 2 * expected
    specs = {variable["path"]: variable["spec"] for variable in plan["variables"]}
    assert specs["blocks/experts/gate/kernel"] == [None, None, "batch", "model"]
    assert specs["blocks/experts/down/kernel"] == [None, None, "model", "batch"]
    # Six per parameter that multiplies a token, and attention's two products; every expert is computed. All devices of
    # `model` compute the router.
    products = 6 * (kernels - 32000 * 4096) // 64 + 6 * routers // 16
    attended = 12 * LENGTH * 32 * 4096 // 64
    assert plan["flops_per_device"] == (products + attended) * 64 * LENGTH
    text = (tmp_path / "run" / "plan.md").read_text()
    assert "all 8 experts are computed for every token: 3.6 times the FLOPs of the 2 that it uses" in text


@pytest.mark.parametrize("option", sorted(path.stem for path in (ROOT / "conf" / "hardware").glob("[a-z]*.yaml")))
def test_each_figure_of_a_built_in_device_has_its_source(option: str) -> None:
    text = (ROOT / "conf" / "hardware" / f"{option}.yaml").read_text()
    for line in text.splitlines():
        key = line.partition(":")[0]
        if key in yaml.safe_load(text) and key != "defaults":
            assert "#" in line, line
    config = hardware(option)
    assert config.is_here == (option == "here")
    if config.kind == "gpu" and config.target is not None:
        assert (ROOT / "runner" / "engine" / "jax" / "targets" / f"{config.target}.txtpb").is_file()


@pytest.mark.parametrize(
    ("axes", "axis", "members", "gb_s"),
    [
        ({"batch": 8}, "batch", None, 450.0),
        # 64 devices in one ring: all 8 adapters of a node send at once, 400 GB/s.
        ({"batch": 64}, "batch", 8, 400.0),
        # The last axis fills the nodes, the first one has one device in each.
        ({"batch": 8, "model": 8}, "model", None, 450.0),
        ({"batch": 8, "model": 8}, "batch", 1, 50.0),
        ({"batch": 16, "model": 4}, "batch", 2, 100.0),
        ({"batch": 4, "model": 16}, "model", 8, 400.0),
        ({"batch": 4, "model": 16}, "batch+model", 8, 400.0),
    ],
)
def test_a_ring_is_as_fast_as_the_adapters_of_its_devices_in_a_node(
    axes: dict[str, int], axis: str, members: int | None, gb_s: float
) -> None:
    h100 = hardware("h100")
    assert node_members(h100, axes, axis) == members
    rates = hardware_rates(PlanConfig(), h100, "bfloat16")
    assert group_gb_s(rates, members) == gb_s
    (group,) = traffic([Collective("all_reduce", axis, "backward", "x", 1, 10**9)], axes, rates, (), h100)
    devices = 1
    for name in axis.split("+"):
        devices *= axes[name]
    assert group.seconds == pytest.approx(2 * (devices - 1) / devices / gb_s)
    assert group.crosses == (members is not None)


def test_collectives_that_leave_a_node_are_named() -> None:
    l4 = replace(hardware("l4"), node_devices=4)
    rates = hardware_rates(PlanConfig(), l4, "float32")
    collectives = [Collective("all_reduce", "batch", "backward", "x", 1, 10**9)]
    groups = traffic(collectives, {"batch": 4, "model": 2}, rates, (), l4)
    assert rates.note == "hardware=l4, 4 devices per node"
    assert groups[0].crosses
    plan = cases.plan(rates=rates, traffic=groups)
    assert rows.traffic(plan).rows[0][3] == "between nodes"
    assert any("between nodes" in line for line in rows.notes(plan))


def test_all_chips_of_a_slice_have_the_same_links() -> None:
    assert node_members(hardware("v5p"), {"batch": 128, "model": 8}, "batch") is None


def _two_layers(axes: dict[str, int], column: tuple[str | None, ...], row: tuple[str | None, ...]) -> PlacedModel:
    """Returns a dense layer of 8 to 32 numbers and one back to 8, on a batch of 16."""
    outputs = [LayerOutput("up", "Dense", (16, 32), "float32"), LayerOutput("down", "Dense", (16, 8), "float32")]
    variables = {"up/kernel": ((8, 32), column), "down/kernel": ((32, 8), row)}
    return cases.model(variables, outputs, axes, {"x": ("batch", None)})


def test_data_parallelism_sums_gradients_and_fsdp_gathers_and_scatters() -> None:
    plain = _two_layers({"batch": 4}, (None, None), (None, None))
    found = communication.collectives(plain, compute_width=2, recomputes=False)
    assert [(entry.kind, entry.phase, entry.bytes) for entry in found] == [("all_reduce", "backward", 4 * 8 * 32)] * 2
    sharded = _two_layers({"batch": 4}, ("batch", None), ("batch", None))
    found = communication.collectives(sharded, compute_width=2, recomputes=False)
    kinds = {(entry.kind, entry.phase): entry.bytes for entry in found}
    # Gathers are of what layers compute in, sums of the gradients' own dtype.
    assert kinds == {
        ("all_gather", "forward"): 2 * 8 * 32,
        ("all_gather", "backward"): 2 * 8 * 32,
        ("reduce_scatter", "backward"): 4 * 8 * 32,
    }


def test_fsdp_gathers_frozen_variables_too_and_reduces_nothing_for_them() -> None:
    sharded = replace(_two_layers({"batch": 4}, ("batch", None), ("batch", None)), trained={"down/kernel"})
    found = communication.collectives(sharded, compute_width=2, recomputes=False)
    kinds = [(entry.kind, entry.phase) for entry in found if entry.origin == "up/kernel"]
    assert kinds == [("all_gather", "forward"), ("all_gather", "backward")]
    kinds = [(entry.kind, entry.phase) for entry in found if entry.origin == "down/kernel"]
    assert kinds == [("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "backward")]


@pytest.mark.parametrize(("recomputes", "backward"), [(False, 1), (True, 2)])
def test_tensor_parallelism_sums_activations_once_per_pass(*, recomputes: bool, backward: int) -> None:
    model = _two_layers({"batch": 4, "model": 2}, (None, "model"), ("model", None))
    found = communication.collectives(model, compute_width=2, recomputes=recomputes)
    sums = {entry.phase: entry.bytes for entry in found if entry.axis == "model"}
    own_output = 16 // 4 * 8 * 2
    assert sums == {"forward": own_output, "backward": backward * own_output}


def test_an_activation_is_gathered_between_two_kernels_that_are_sharded_by_columns() -> None:
    model = _two_layers({"batch": 4, "model": 2}, (None, "model"), (None, "model"))
    up, down = model.outputs
    model = replace(model, outputs=[up, replace(down, inputs=(LayerInput("up", up.shape),))])
    # What XLA's program has on CPU devices, and DTensor's.
    hidden = 16 // 4 * 32 * 4
    moved = {("all_gather", "forward", "down", hidden), ("all_reduce", "backward", "down", hidden)}
    found = communication.collectives(model, compute_width=4, recomputes=False)
    of_dtensor = communication_dtensor.collectives(model)
    for each in (found, of_dtensor):
        assert {(one.kind, one.phase, one.origin, one.bytes) for one in each if one.axis == "model"} == moved


def test_kept_arrays_are_sharded_as_the_batch_and_as_the_weights_that_make_them() -> None:
    model = _two_layers({"batch": 4, "model": 2}, (None, "model"), ("model", None))
    saved = [((16, 32), "bfloat16"), ((16, 8), "float32"), ((8, 32), "bfloat16")]
    # Hidden units over both axes, outputs over the batch, a weight's copy as the weight.
    counted = sum(memory.array_bytes(model, shape, dtype, 16) for shape, dtype in saved)
    assert counted == 16 * 32 * 2 // 8 + 16 * 8 * 4 // 4 + 8 * 32 * 2 // 2


def test_heads_and_tables_are_no_positions() -> None:
    model = _two_layers({"batch": 4}, (None, None), (None, None))
    tokens = LayerOutput("up", "Dense", (16, 128, 32), "float32")
    heads = LayerOutput("heads", "Reshape", (16, 128, 8, 4), "float32")
    with_heads = replace(model, outputs=[tokens, heads])
    assert memory._positions_per_device(with_heads) == 16 * 128 // 4
    table = LayerOutput("embedding", "TokenEmbedding", (50368, 32), "float32", (LayerInput("", (16, 128)),))
    assert memory._positions_per_device(replace(model, outputs=[table, tokens])) == 16 * 128 // 4
    image = LayerOutput("conv", "Conv2D", (16, 28, 28, 32), "float32")
    assert memory._positions_per_device(replace(model, outputs=[image])) == 16 * 28 * 28 // 4
    assert memory._positions_per_device(model) == 16 // 4


def _placed(shapes: dict[str, tuple[int, ...]]) -> PlacedModel:
    return cases.model({path: (shape, (None,) * len(shape)) for path, shape in shapes.items()}, [], {"batch": 1}, {})


def test_only_a_scanned_stack_counts_as_several_blocks() -> None:
    convolutions = {"conv/kernel": (3, 3, 8, 8), "stage/a/kernel": (3, 3, 8, 8), "stage/b/kernel": (3, 3, 8, 8)}
    assert memory.depths(_placed(convolutions)) == {"conv": 1, "stage": 1}
    stack = {
        "blocks/attention_norm/scale": (6, 16),
        "blocks/attention/query/kernel": (6, 16, 4, 4),
        "blocks/attention/output/kernel": (6, 4, 4, 16),
    }
    assert memory.depths(_placed(stack | convolutions))["blocks"] == 6


def test_memory_by_kind_is_that_of_the_shards() -> None:
    model = _two_layers({"batch": 4, "model": 2}, ("batch", "model"), ("model", "batch"))
    infos = {
        path: VariableInfo(placed.shape, "float32", placed.spec, 128) for path, placed in model.placements.items()
    }
    slots = {f"optimizer/moment/{path}": info for path, info in infos.items()}
    parts = memory.parts(model, infos | slots, [], examples=16, compute_width=2, accumulates=False)
    by_kind = {part.kind: part.bytes for part in parts}
    assert by_kind["weights"] == by_kind["optimizer state"] == 2 * 128
    assert by_kind["gradients"] == 2 * 4 * 8 * 32 // 8


def test_sums_of_gradients_are_float32_state_whatever_width_the_gradients_have() -> None:
    model = replace(
        _two_layers({"batch": 4, "model": 2}, ("batch", "model"), ("model", "batch")),
        trained={"up/kernel"},
        width={"up/kernel": 2, "down/kernel": 2},
    )
    infos = {path: VariableInfo(placed.shape, "float32", placed.spec, 7) for path, placed in model.placements.items()}
    parts = memory.parts(model, infos, [], examples=16, compute_width=2, accumulates=True)
    (sums,) = [part for part in parts if part.kind == "gradient sums"]
    assert sums == MemoryPart("gradient sums", 4 * 8 * 32 // 8, "counted")
    once = memory.parts(model, infos, [], examples=16, compute_width=2, accumulates=False)
    assert "gradient sums" not in {part.kind for part in once}


def a_forecast(**changes: Any) -> Forecast:
    fields: dict[str, Any] = {
        "hardware": "h100",
        "depth": "arithmetic",
        "capacity_bytes": 80 * GIB,
        "memory": (MemoryPart("weights", 30 * GIB, "counted"), MemoryPart("activations", 40 * GIB, "estimated")),
        "compute_seconds": (1.0, 2.0),
        "memory_seconds": 0.1,
        "link_seconds": 0.5,
        "step_seconds": (1.0, 2.5),
        "bound": "compute",
        "tokens": 1000,
    }
    return Forecast(**(fields | changes))


def test_the_verdict_comes_first_and_says_by_how_much_and_the_largest_part() -> None:
    plan = cases.plan(forecast=a_forecast())
    lines = rows.verdict(plan)
    assert lines[0].startswith(
        "fits: 70.0 GiB of 80.0 GiB per device of hardware=h100, 10.0 GiB free, less than the 21% (14.6 GiB) that "
        "this estimate may err by; the largest part is activations, "
    )
    roomy = rows.verdict(cases.plan(forecast=a_forecast(capacity_bytes=85 * GIB)))[0]
    assert ", 15.0 GiB free; the largest part is activations, " in roomy
    compiled = rows.verdict(cases.plan(forecast=a_forecast(depth="target")))[0]
    assert ", 10.0 GiB free; the largest part is activations, " in compiled, "no error of such a plan is known"
    assert lines[-2] == "tokens per second: 400 to 1,000, per device 50 to 125"
    assert lines[-1].startswith("errors of such figures so far (arithmetic): memory: ")
    crowded = cases.plan(forecast=a_forecast(capacity_bytes=64 * GIB))
    lines = rows.verdict(crowded)
    assert lines[0].startswith("may not fit: 70.0 GiB of 64.0 GiB per device of hardware=h100, 6.00 GiB too much;")
    assert "set plan.compiler=target" in lines[1]
    assert lines[2] == '  to fit: see "Out of memory" in the docs, or run python -m runner.advise devices=8'
    assert rows.verdict(cases.plan()) == []


def test_the_compilers_total_replaces_the_estimated_one() -> None:
    kinds = (memory.WEIGHTS, memory.OPTIMIZER, memory.GRADIENTS, memory.ACTIVATIONS, memory.TEMPORARIES)
    parts = [MemoryPart(kind, 10, "estimated") for kind in kinds]
    program = ProgramCost(20, 20, 20, 17, 0.0, 0.0, peak_bytes=37)
    compiled = {part.kind: part.bytes for part in forecast.compiled_parts(parts, program)}
    assert compiled == {"weights": 10, "optimizer state": 10, "activations": 10, "gradients": 7, "temporaries": 0}
    assert sum(compiled.values()) == 37
    # Gradients that are not whole at the peak are named where they are.
    for temporaries, place in ((GIB, "in temporaries"), (0, "in activations")):
        held = {"activations": GIB, "gradients": 0, "temporaries": temporaries}
        found = a_forecast(memory=tuple(MemoryPart(kind, count, "estimated") for kind, count in held.items()))
        assert rows.memory(cases.plan(forecast=found)).rows[1] == ("gradients", "0 B", place)


def test_rates_of_the_config_win_over_the_hardware_s_and_are_named() -> None:
    config = with_keys(cases.config("mlp", "batch8", "fsdp"), {"hardware": hardware("h100")})
    low, high = config.hardware.efficiency
    peak = config.hardware.peak_tflops["float32"] * 1e12
    found = forecast._compute_seconds(config.hardware, config.plan, "float32", 1e15)
    assert found == pytest.approx((1e15 / high / peak, 1e15 / low / peak))
    stated = forecast._compute_seconds(config.hardware, PlanConfig(gflops=2_000.0), "float32", 1e15)
    assert stated == pytest.approx((1e15 / high / 2e12, 1e15 / low / 2e12))
    rates = hardware_rates(PlanConfig(gflops=2_000.0, network_gb_s=9.0), config.hardware, "float32")
    assert rates.note == "plan.gflops and plan.network_gb_s; else hardware=h100, 8 devices per node"


def test_the_program_of_other_hardware_shows_what_its_compiler_counts() -> None:
    program = ProgramCost(40, 20, 20, 17, 0.0, 0.0, peak_bytes=57)
    names = [row[0] for row in rows.program(cases.plan(program=program, forecast=a_forecast(depth="target"))).rows]
    assert names == ["state, cached examples and the batches of a call", "temporaries"]
    assert len(rows.program(cases.plan(program=program)).rows) == 5


def test_the_slowest_link_bounds_a_step_that_only_communicates() -> None:
    group = Traffic("all_reduce", "batch", "backward", 1, 1, 9.0)
    plan = cases.plan(forecast=a_forecast(link_seconds=9.0, bound="links"), traffic=(group,))
    assert "bound by links" in rows.verdict(plan)[1]


INVALID = [
    ("hardware=h100 engine=jax mesh.axes.batch=-1", "mesh.axes.batch=-1", "no GPU here to count"),
    ("hardware=h100 mesh.device=cpu", "mesh.device=cpu", "hardware=h100 is of kind gpu"),
    ("hardware.name=inf", "hardware.name=inf", "must be a string, but YAML reads it as another type"),
    ("hardware.memory_gib=4", "hardware.name=here: is this machine", "set hardware.name=mine"),
    ("hardware=h100 hardware.memory_gib=null", "hardware.memory_gib=null", "hardware=h100 needs it"),
    ("hardware=h100 +hardware.peak_tflops.int8=1", "hardware.peak_tflops", "int8"),
    ("hardware=h100 hardware.efficiency=[0.9,0.1]", "hardware.efficiency", "smaller share first"),
    ("plan.compiler=target engine=jax", "plan.compiler=target", "needs the hardware"),
    ("plan.compiler=arithmetic", "plan.compiler=arithmetic", "needs the hardware"),
    ("hardware=l4 engine=jax plan.compiler=target", "plan.compiler=target", "hardware.target is null"),
    ("hardware=v5p mesh.axes={batch:8}", "hardware=v5p", "engine=keras_dtensor plans for this machine's devices"),
]


@pytest.mark.parametrize(("words", "key", "problem"), INVALID)
def test_invalid_hardware_is_one_line(words: str, key: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        convert(composed(*words.split()))
    line = str(raised.value)
    assert "\n" not in line
    assert key in line
    assert problem in line


ADVICE = [
    ("engine=jax hardware=h100", "devices=null: advice needs the number of devices; add devices=64, or another"),
    ("advise.devices=8 engine=jax", "hardware=here: advice is for accelerators; set hardware=h100"),
    ("advise.devices=8 engine=jax hardware=h100 plan.compiler=target", "plan.compiler=target: advice compares by"),
]


@pytest.mark.parametrize(("words", "line"), ADVICE)
def test_invalid_advice_is_one_line(words: str, line: str) -> None:
    config = convert(composed(*words.split()))
    given = (config.hardware, config.plan.compiler, config.advise.devices)
    checks_hardware.check_command(*given, "runner.plan")
    if not config.hardware.is_here:
        with pytest.raises(ConfigError, match=r"hardware=h100: only python -m runner\.plan plans for other hardware"):
            checks_hardware.check_command(*given, "runner")
    with pytest.raises(ConfigError) as raised:
        checks_hardware.check_command(*given, "runner.advise")
    assert str(raised.value).startswith(line)


def test_a_figure_that_was_compared_with_no_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"memory, target": known_errors.Errors(31, 0.04, 0.09, "published runs", {"h100": 7}, {"gpt": 31})}
    monkeypatch.setattr(known_errors, "_all", lambda: known)
    line = known_errors.line("target", "h100", "gpt")
    assert "memory: median 4%, p90 9% over 31 published runs, 7 on h100, 31 with gpt; step time: not compared" in line
    assert "over 31 published runs, none on b200, 31 with gpt;" in known_errors.line("target", "b200", "gpt")
    assert "memory: not compared with any run" in known_errors.line("arithmetic", "h100", "gpt")


def test_errors_say_of_which_models_they_are() -> None:
    assert "of gpt and vit, 16 on h100, 17 with gpt; step time: " in known_errors.line("arithmetic", "h100", "gpt")
    line = known_errors.line("arithmetic", "h100", "keras_hub")
    assert "of gpt and vit, 16 on h100, none with keras_hub; step time: " in line
    assert line.endswith("other sources, 12 on h100, none with keras_hub")


def test_a_card_of_a_new_name_with_the_figures_of_another_is_warned_of() -> None:
    l4 = hardware("l4")
    assert borrowed(l4, "l4") == []
    faster = replace(l4, name="a10g", memory_gb_s=600.0)
    same = "memory_gib and peak_tflops are those of hardware=l4"
    assert borrowed(faster, "l4") == [f"hardware.name=a10g: {same}; set its own"]
    own = replace(faster, memory_gib=22.3, peak_tflops={"bfloat16": 70.0, "float32": 35.0})
    assert borrowed(own, "l4") == [], "links and nodes may be alike"


def test_the_recorded_errors_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "plan_accuracy.md").read_text()
    for figure, values in json.loads((ROOT / "runner" / "plan" / "known_errors.json").read_text()).items():
        assert f"| {figure} | {known_errors.Errors(**values)} |" in page


def test_element_wise_operations_and_attention_take_their_time_beside_products() -> None:
    config = with_keys(cases.config("mlp", "batch8", "fsdp"), {"hardware": hardware("h100")})
    parts = tuple(MemoryPart(kind, 0, "counted") for kind in ("weights", "optimizer state", "activations"))
    plain = cases.judged(config, parts, (), forecast.Work(1e15))
    attending = cases.judged(config, parts, (), forecast.Work(1e15, attention_flops=5e14))
    moving = cases.judged(config, parts, (), forecast.Work(1e15, product_bytes=3350e9))
    assert attending.step_seconds[0] == pytest.approx(plain.step_seconds[0] * (1 + 0.45 / 2))
    # Three passes move each product's result five times.
    assert moving.step_seconds[1] == pytest.approx(plain.step_seconds[1] + 15.0)


def test_the_peak_is_the_largest_of_three_moments() -> None:
    model = replace(_two_layers({"batch": 4}, (None, None), (None, None)), placements={}, trained=set())
    logits = memory._moments(model, [((16, 8), "float32")], 0, examples=16, compute_width=4)
    # The loss has an array of the examples and its gradient.
    assert sum(part.bytes for part in logits[0]) == 2 * 16 * 8 * 4 // 4
