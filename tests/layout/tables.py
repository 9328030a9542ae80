"""Canonical paths and shapes of the models that the presets serve."""

import itertools

from runner.layout.axes import Shape

Table = dict[str, Shape]


def mlp(*widths: int) -> Table:
    table: Table = {}
    for index, (rows, columns) in enumerate(itertools.pairwise(widths), start=1):
        table |= {f"d{index}/kernel": (rows, columns), f"d{index}/bias": (columns,)}
    return table


def norm(layer: str, width: int, *names: str) -> Table:
    return {f"{layer}/{name}": (width,) for name in names}


def convnet() -> Table:
    moving = ("beta", "moving_mean", "moving_variance")
    return {
        "conv1/kernel": (3, 3, 1, 12),
        **norm("conv1_norm", 12, *moving),
        "conv2/kernel": (6, 6, 12, 24),
        **norm("conv2_norm", 24, *moving),
        "conv3/kernel": (6, 6, 24, 32),
        "conv3/bias": (32,),
        "dense1/kernel": (32, 256),
        "dense1/bias": (256,),
        "dense2/kernel": (256, 10),
        "dense2/bias": (10,),
    }


def resnet() -> Table:
    table: Table = {"stem/kernel": (3, 3, 3, 16)}
    for stage, (before, width) in enumerate(((16, 16), (16, 32))):
        block = f"stage_{stage}/block_0"
        table |= {f"{block}/conv1/kernel": (3, 3, before, width), **norm(f"{block}/norm1", width, "gamma", "beta")}
        table |= {f"{block}/conv2/kernel": (3, 3, width, width), **norm(f"{block}/norm2", width, "gamma", "beta")}
    return table | {"head/kernel": (32, 10), "head/bias": (10,)}


def vit(dim: int = 64, heads: int = 4, depth: int = 2, classes: int = 10) -> Table:
    each = dim // heads
    table: Table = {"patches/kernel": (16, dim), "patches/bias": (dim,), "position/embedding": (49, dim)}
    for index in range(depth):
        block = f"block_{index}"
        table |= norm(f"{block}/norm1", dim, "gamma", "beta")
        for name in ("query", "key", "value"):
            table[f"{block}/attention/{name}/kernel"] = (dim, heads, each)
            table[f"{block}/attention/{name}/bias"] = (heads, each)
        table |= {f"{block}/attention/output/kernel": (heads, each, dim), f"{block}/attention/output/bias": (dim,)}
        table |= norm(f"{block}/norm2", dim, "gamma", "beta")
        table |= {f"{block}/mlp/up/kernel": (dim, 4 * dim), f"{block}/mlp/up/bias": (4 * dim,)}
        table |= {f"{block}/mlp/down/kernel": (4 * dim, dim), f"{block}/mlp/down/bias": (dim,)}
    return table | norm("norm", dim, "gamma", "beta") | {"head/kernel": (dim, classes), "head/bias": (classes,)}


MODELS = {
    "mlp": mlp(784, 128, 10),
    "mlp_deep": mlp(784, 256, 128, 64, 10),
    "convnet": convnet(),
    "resnet": resnet(),
    "vit": vit(),
    "vit_3_heads": vit(dim=48, heads=3),
}
