"""`model=gpt` on meshes computes what it does on one device, by verify; `test_gpt_hub.py` compares with KerasHub."""

from pathlib import Path

import pytest

from tests import forks
from tests.golden.runs import GPT, TOKENS

LLAMA = ("model.positions=rotary", "model.norm=rms", "model.activation=swiglu", "model.bias=false")
GROUPED = (*LLAMA, "model.key_value_heads=2")
MIXTURE = (*LLAMA, "model.experts=4", "model.router_loss=0.5")
NAMES = ("model.remat=names", "model.saved=[query,attended,up]", "model.dropout=0.1")
TIED = ("model.tied=true", "model.remat=dots_saveable", "model.scan=true")
# Queries over one axis, keys and values over another, as layout=auto proposes where the first can't split both.
TWO_AXES = ("mesh.axes={batch:1,model:4,small:2}", "layout=auto", *GROUPED)
TOKENS_AND_HEADS = ("mesh.axes={batch:2,model:2,sequence:2}", "layout=megatron", "layout.sequence=sequence")
CASES = {
    "names": ("engine=jax", "mesh=batch2_model4", "layout=fsdp_megatron", *GROUPED, *NAMES),
    "scan": ("engine=jax", *TOKENS_AND_HEADS, *GROUPED, "model.scan=true", "model.remat=full"),
    "tied": ("engine=jax", "mesh=batch4_sequence2", "layout=fsdp", "layout.sequence=sequence", *TIED),
    "mixture": ("engine=jax", "mesh.axes={batch:2,model:2,experts:2}", "layout=megatron", *MIXTURE, "model.scan=true"),
    "two axes": ("engine=jax", *TWO_AXES),
    "two axes on DTensor": TWO_AXES,
    "tied on DTensor": ("mesh=batch4_model2", "layout=megatron", "model.tied=true"),
    "mixture on DTensor": ("mesh=batch8", "layout=fsdp", *MIXTURE),
}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_a_mesh_computes_what_one_device_does(case: str, tmp_path: Path) -> None:
    words = [*GPT, *TOKENS, *CASES[case], "verify.steps=3", "tracking=none", "optimizer.learning_rate=0.001"]
    forks.python("-m", "runner.verify", *words, f"hydra.run.dir={tmp_path / 'run'}", folder=tmp_path, timeout=900)
