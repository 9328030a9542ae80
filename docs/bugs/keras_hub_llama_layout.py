"""KerasHub: Llama's own layout map is written for Gemma's kernels, and shards a hidden dim instead of the heads.

Repository: keras-team/keras-hub, known as issue 2827. Versions: keras-hub 0.32.0, keras 3.15.1; Linux, CPUs.

Expected: `model` shards the heads of the query kernel, (hidden, heads, head), and the reversed embeddings.

Happened: `model` shards the hidden dim, the data axis shards the heads, and the reversed embeddings are replicated.
The results are right, with several times the communication.
"""

import os
import sys

os.environ["KERAS_BACKEND"], os.environ["JAX_PLATFORMS"] = "jax", "cpu"

import jax

jax.config.update("jax_num_cpu_devices", 8)

import keras
import keras_hub

mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"), keras.distribution.list_devices())
maps = keras_hub.models.Llama3Backbone.get_layout_map(mesh)
model = keras_hub.models.Llama3Backbone(
    vocabulary_size=64, num_layers=1, num_query_heads=4, num_key_value_heads=4, hidden_dim=32, intermediate_dim=64
)
missed = []
for variable in model.variables:
    layout = maps[variable.path]
    shown = None if layout is None else layout.axes
    if variable.path.endswith(("query/kernel", "reverse_embeddings")):
        print(f"{variable.path} {tuple(variable.shape)}: {shown}")
    if variable.path.endswith("query/kernel"):  # (hidden, heads, head): Megatron splits the heads over `model`
        missed.append(shown is None or shown[1] != "model")
sys.exit(0 if all(missed) else "gone")
