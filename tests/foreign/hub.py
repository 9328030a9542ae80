"""KerasHub's own layout maps under stock Keras, by `runner.verify script=`: `python -m tests.foreign.hub [names]`."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Of class, and LoRA's rank or 0.
CASES = [(name, rank) for name in ("Gemma", "Llama", "Llama3", "Qwen", "QwenMoe", "Qwen3Moe") for rank in (0, 4)]
SCRIPT = """
import os
os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import inspect
import keras, keras_hub
import numpy as np

sizes = dict(vocabulary_size=64, num_layers=2, num_query_heads=4, num_key_value_heads=2, hidden_dim=32, head_dim=8)
sizes |= dict(intermediate_dim=64, moe_intermediate_dim=32, shared_expert_intermediate_dim=32, num_experts=4, top_k=2)
kind = keras_hub.models.{name}Backbone
mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"), keras.distribution.list_devices("cpu"))
layout_map = kind.get_layout_map(mesh)
keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="batch"))
keras.utils.set_random_seed(0)
backbone = kind(**{{key: value for key, value in sizes.items() if key in inspect.signature(kind).parameters}})
if {rank}:
    backbone.enable_lora({rank})
model = keras_hub.models.{name}CausalLM(backbone, preprocessor=None)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-3), loss, weighted_metrics=["accuracy"])
tokens = np.random.default_rng(0).integers(0, 64, (24, 17))
x = {{"token_ids": tokens[:, :-1], "padding_mask": np.ones((24, 16), "int32")}}
model.fit(x, tokens[:, 1:], batch_size=8, verbose=0)
"""


def verdict(name: str, rank: int) -> tuple[str, str]:
    """Returns the verdict of a backbone's own map, and what the proof detects or the error of the command."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(SCRIPT.format(name=name, rank=rank))
        command = [sys.executable, "-m", "runner.verify", "script=train.py", "verify.steps=3", "hydra.run.dir=run"]
        place = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "XLA_FLAGS": "", "COLUMNS": "200"}
        done = subprocess.run(command, cwd=folder, env=place, capture_output=True, text=True)
        report = Path(folder, "run/verify.json")
        said = (done.stdout + done.stderr).strip().splitlines()[-1]
        if not report.is_file():
            return "not taken", said
        return json.loads(report.read_text())["verdict"], said


if __name__ == "__main__":
    for name, rank in CASES:
        if not sys.argv[1:] or name in sys.argv:
            found, said = verdict(name, rank)
            print(f"| {name}Backbone{' with LoRA' if rank else ''} | {found} | {said} |", flush=True)
