"""A decoder-only transformer: Radford et al., Language Models are Unsupervised Multitask Learners (2019).

With `positions=rotary norm=rms activation=swiglu bias=false` it is Llama (arXiv:2302.13971), and with fewer
`key_value_heads` its later ones (arXiv:2305.13245).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.data.base import ArraySpec
from runner.model import inputs as model_inputs
from runner.model.gpt_options import check_options, scans
from runner.model.inputs import Inputs
from runner.model.transformer import Sizes, layers

if TYPE_CHECKING:
    from runner.task.base import OutputSpec

SEGMENTS = "segments"


def build(
    keras: Any,
    inputs: Inputs,
    outputs: OutputSpec,
    dim: int = 128,
    depth: int = 4,
    heads: int = 4,
    key_value_heads: int | None = None,
    feedforward: int | None = None,
    positions: str = "learned",
    max_length: int | None = None,
    wavelength: float = 10000.0,
    norm: str = "layer",
    epsilon: float = 1e-5,
    activation: str = "gelu",
    bias: bool = True,
    tied: bool = False,
    dropout: float = 0.0,
    remat: str = "none",
    scan: bool | None = None,
    fused_head: bool | None = None,
) -> Any:
    """Builds a pre-norm transformer over rows of tokens.

    Args:
      keras: the `tf_keras` or `keras` module.
      inputs: whole numbers (T,), the tokens; and perhaps `segments` (T,), the document that each token is of within
        its row. A token sees those before it of its own document.
      outputs: of a task whose units are the vocabulary.
      dim: width of a token.
      depth: blocks.
      heads: attention heads; must divide `dim`.
      key_value_heads: heads of keys and values, each for as many heads of queries; null: as `heads`.
      feedforward: hidden units of a block; null: 4 * dim, and with swiglu 8/3 * dim, up to a multiple of 64.
      positions: `learned`, a vector a place, or `rotary`.
      max_length: places that `learned` has vectors for; null: as many as a row has tokens.
      wavelength: the longest of `rotary`, over two pi.
      norm: `layer` or `rms`.
      epsilon: of the norms.
      activation: `gelu` or `swiglu`.
      bias: whether projections have one; the head has none.
      tied: the head's kernel is the embeddings' table.
      dropout: share set to zero of the embedded tokens and of each block's two outputs, while training.
      remat: what the backward pass computes again to save memory, with Keras on JAX: `none`, `full` (each block) or a
        policy of `jax.checkpoint_policies`, as `dots_saveable`.
      scan: stacks the blocks' variables, (depth, ...), and computes the blocks by a loop, with Keras on JAX; null:
        from 32 blocks on.
      fused_head: gives what logits are made of, for a loss in chunks; null: where Keras runs on JAX.

    Returns:
      A model: int32 (batch, T) -> float32 logits (batch, T, vocabulary), or
      {"hidden": (batch, T, dim), "head": (dim, vocabulary)}.

    Raises:
      ValueError: sizes that do not divide each other, other inputs, or a name that is none of an option's.
    """
    given = dict(locals())  # the options, before there are other names
    tokens_name, length = _tokens(inputs)
    on_jax = hasattr(keras, "ops")
    check_options(given, on_jax=on_jax)
    fused = on_jax if fused_head is None else fused_head
    if outputs.units is None:
        raise ValueError("it needs the size of the vocabulary, which the task leaves open; set task.vocabulary")
    if max_length is not None and max_length < length:
        raise ValueError(f"model.max_length={max_length} must be at least the row's {length} tokens")
    sizes = Sizes(
        dim=dim,
        heads=heads,
        key_value_heads=heads if key_value_heads is None else key_value_heads,
        feedforward=feedforward or (64 * -(-8 * dim // (3 * 64)) if activation == "swiglu" else 4 * dim),
        depth=depth,
        rotary=wavelength if positions == "rotary" else None,
        norm=norm,
        gated=activation == "swiglu",
        bias=bias,
        dropout=dropout,
        epsilon=epsilon,
        remat=remat,
    )
    made = layers(keras)
    taken = model_inputs.make(keras, inputs)
    tokens = taken[tokens_name] if isinstance(taken, dict) else taken
    segments = {SEGMENTS: taken[SEGMENTS]} if isinstance(taken, dict) else {}
    x = made.TokenEmbedding(outputs.units, dim, gives_table=tied, name="token_embedding")(tokens)
    x, *table = x if tied else (x,)
    if positions == "learned":
        x = made.PositionEmbedding(max_length or length, name="position_embedding")(x)
    x = keras.layers.Dropout(dropout, name="embedding_dropout")(x)
    unrolled = (made.Block(sizes, name=f"block_{index}") for index in range(depth))
    scanned = scans(scan, depth, on_jax=on_jax)
    for block in [made.Blocks(sizes, name="blocks")] if scanned else unrolled:
        x = block(x, **segments)
    x = made.norm(sizes, "norm")(x)
    head = made.Head(outputs.units, tied=tied, fused=fused, name="head")
    return keras.Model(taken, head(x, *table), name="gpt")


def _tokens(inputs: Inputs) -> tuple[str, int]:
    """Returns the name of the tokens and how many a row has.

    Raises:
      ValueError: there are other inputs.
    """
    found: dict[str, ArraySpec] = model_inputs.specs(inputs)
    names = [name for name in found if name != SEGMENTS]
    if len(names) != 1 or any(len(spec.shape) != 1 or "int" not in spec.dtype for spec in found.values()):
        told = ", ".join(f"{name} {list(spec.shape)} {spec.dtype}" for name, spec in found.items())
        raise ValueError(f"it takes whole numbers (T,), the tokens, and perhaps {SEGMENTS} (T,), not {told}")
    return names[0], found[names[0]].shape[0]
