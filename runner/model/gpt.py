"""A decoder-only transformer: Radford et al., Language Models are Unsupervised Multitask Learners (2019).

With `positions=rotary norm=rms activation=swiglu bias=false` it is Llama (arXiv:2302.13971), and with fewer
`key_value_heads` its later ones (arXiv:2305.13245).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner.data.base import ArraySpec
from runner.model import inputs as model_inputs
from runner.model import ops
from runner.model.gpt_options import check_options, default_feedforward, scans
from runner.model.inputs import Inputs
from runner.model.portable import bind
from runner.model.remat import Remat
from runner.model.scanned import Blocks
from runner.model.transformer import Block, Head, PositionEmbedding, Sizes, TokenEmbedding, make_norm

if TYPE_CHECKING:
    from runner.task.base import OutputSpec

SEGMENTS = "segments"
POSITIONS = "positions"


def build(
    keras: Any,
    inputs: Inputs,
    outputs: OutputSpec,
    dim: int = 128,
    depth: int = 4,
    heads: int = 4,
    key_value_heads: int | None = None,
    head_dim: int | None = None,
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
    saved: Sequence[str] = (),
    offloaded: Sequence[str] = (),
    scan: bool | None = None,
    fused_head: bool | None = None,
    window: int | None = None,
    global_every: int | None = None,
    local_wavelength: float | None = None,
    attention_cap: float | None = None,
    logits_cap: float | None = None,
    post_norm: bool = False,
    query_key_norm: bool = False,
    scaled_embeddings: bool = False,
) -> Any:
    """Builds a pre-norm transformer over rows of tokens.

    Args:
      keras: the `tf_keras` or `keras` module.
      inputs: token ids (T,), integers; optionally `segments` (T,), the document of each token within its row. A token
        attends to the earlier ones of its own document. With segments optionally `positions` (T,), the position of
        each token within its document, for learned positions. Rotary ones do not need it: scores of attention depend
        on the differences of positions only.
      outputs: the outputs of a task whose units are the vocabulary.
      dim: model width.
      depth: number of blocks.
      heads: attention heads; must divide `dim`, unless `head_dim` is set.
      key_value_heads: key/value heads, fewer for grouped-query attention; null: as `heads`.
      head_dim: width of a head; null: dim / heads.
      feedforward: hidden units of a block; null: 4 * dim, and with swiglu and geglu 8/3 * dim, up to a multiple of 64.
      positions: `learned` position embeddings, or `rotary` (RoPE).
      max_length: number of learned positions; null: the tokens of a row.
      wavelength: RoPE base (theta).
      norm: `layer` or `rms`.
      epsilon: the epsilon of the norms.
      activation: `gelu`, or with a gate `swiglu` or `geglu`.
      bias: projections have a bias; the head never has one.
      tied: tied embeddings: the head's kernel is the embedding table.
      dropout: dropout rate of the embedded tokens and of each block's two branches.
      remat: activation checkpointing, with Keras on JAX: `none`, `full` (each block), `names` (each block, except for
        the activations that `saved` and `offloaded` name) or a policy of `jax.checkpoint_policies`, such as
        `dots_saveable`.
      saved: with `remat=names`: activations of each block that are kept in device memory; see
        `gpt_options.ACTIVATIONS`.
      offloaded: with `remat=names`: activations of each block that are kept in host memory (GPUs and TPUs).
      scan: stacks the blocks' variables, (depth, ...), and computes the blocks with a scan, with Keras on JAX; null:
        from 32 blocks on.
      fused_head: returns the factors of the logits, for a loss that computes them in chunks; null: with Keras on JAX.
      window: tokens that a token of a local block attends to, itself included; null: no block is local.
      global_every: every so many blocks, the last attends to all earlier tokens; null: all blocks are local.
      local_wavelength: RoPE base of local blocks; null: `wavelength`.
      attention_cap: soft cap of the scores of attention, cap * tanh(score / cap); null: none.
      logits_cap: soft cap of the logits; null: none.
      post_norm: the output of each branch is normalized too, as in Gemma 2.
      query_key_norm: each head's queries and keys are normalized, as in Gemma 3.
      scaled_embeddings: embedded tokens are multiplied by the root of `dim`, as in Gemma.

    Returns:
      A model: int32 (batch, T) -> float32 logits (batch, T, vocabulary), or
      {"hidden": (batch, T, dim), "head": (dim, vocabulary)} and with a cap of the logits {"head_cap": ()}.

    Raises:
      ValueError: sizes that do not divide each other, other inputs, or an unknown choice.
    """
    # The arguments by name, read before there are other local variables.
    arguments = dict(locals())
    tokens_name, length = _token_input(inputs)
    on_jax = ops.is_on_jax(keras)
    check_options(arguments, on_jax=on_jax)
    if outputs.units is None:
        raise ValueError("it needs the size of the vocabulary, which the task leaves open; set task.vocabulary")
    if max_length is not None and max_length < length:
        raise ValueError(f"model.max_length={max_length} must be at least the row's {length} tokens")
    learned_positions = None
    rotary_base = None
    if positions == "rotary":
        rotary_base = wavelength
    else:
        learned_positions = max_length or length
    if fused_head is None:
        fused_head = on_jax
    sizes = Sizes(
        dim=dim,
        heads=heads,
        key_value_heads=key_value_heads or heads,
        feedforward=feedforward or default_feedforward(dim, activation),
        depth=depth,
        rotary=rotary_base,
        norm=norm,
        activation=activation,
        bias=bias,
        dropout=dropout,
        epsilon=epsilon,
        remat=Remat(remat, tuple(saved), tuple(offloaded)),
        head_dim=head_dim,
        window=window,
        global_every=global_every,
        local_rotary=local_wavelength,
        attention_cap=attention_cap,
        post_norm=post_norm,
        query_key_norm=query_key_norm,
    )
    return _assembled(
        keras,
        inputs,
        tokens_name,
        sizes,
        vocabulary=outputs.units,
        learned_positions=learned_positions,
        is_scanned=scans(scan, depth, on_jax=on_jax),
        is_tied=tied,
        is_fused=fused_head,
        logits_cap=logits_cap,
        scales_embeddings=scaled_embeddings,
    )


def _assembled(
    keras: Any,
    inputs: Inputs,
    tokens_name: str,
    sizes: Sizes,
    *,
    vocabulary: int,
    learned_positions: int | None,
    is_scanned: bool,
    is_tied: bool,
    is_fused: bool,
    logits_cap: float | None,
    scales_embeddings: bool,
) -> Any:
    """Returns the model of valid options.

    Args:
      keras: the `tf_keras` or `keras` module.
      inputs: as those of `build`.
      tokens_name: name of the token ids.
      sizes: the sizes of the blocks.
      vocabulary: number of tokens.
      learned_positions: number of position embeddings; None: there are none.
      is_scanned: the blocks are computed by a scan.
      is_tied: the head's kernel is the embedding table.
      is_fused: the head returns the factors of the logits.
      logits_cap: soft cap of the logits.
      scales_embeddings: embedded tokens are multiplied by the root of their width.
    """
    taken = model_inputs.make(keras, inputs)
    tokens = taken
    segments = {}
    positions = {}
    # The only input is a tensor, several are a dict: see `runner.model.inputs.make`.
    if isinstance(taken, dict):
        tokens = taken[tokens_name]
        segments[SEGMENTS] = taken[SEGMENTS]
        if POSITIONS in taken:
            positions[POSITIONS] = taken[POSITIONS]

    embedding = bind(TokenEmbedding, keras)(
        vocabulary, sizes.dim, gives_table=is_tied, scaled=scales_embeddings, name="token_embedding"
    )
    embedded = embedding(tokens)
    x = embedded
    # The table is an argument of a tied head, so that its gradient flows through both uses.
    head_arguments = []
    if is_tied:
        x, table = embedded
        head_arguments.append(table)
    if learned_positions is not None:
        x = bind(PositionEmbedding, keras)(learned_positions, name="position_embedding")(x, **positions)
    x = keras.layers.Dropout(sizes.dropout, name="embedding_dropout")(x)

    if is_scanned:
        x = bind(Blocks, keras)(sizes, name="blocks")(x, **segments)
    else:
        for index in range(sizes.depth):
            block = bind(Block, keras)(sizes, is_local=sizes.is_local(index), name=f"block_{index}")
            x = block(x, **segments)

    x = make_norm(keras, sizes, "norm")(x)
    head = bind(Head, keras)(vocabulary, tied=is_tied, fused=is_fused, cap=logits_cap, name="head")
    return keras.Model(taken, head(x, *head_arguments), name="gpt")


def _token_input(inputs: Inputs) -> tuple[str, int]:
    """Returns the name of the token ids and the number of tokens in a row.

    Raises:
      ValueError: there are other inputs.
    """
    by_name: dict[str, ArraySpec] = model_inputs.specs(inputs)
    # Positions within documents mean nothing without the documents.
    added = (SEGMENTS, POSITIONS) if SEGMENTS in by_name else ()
    names = [name for name in by_name if name not in added]
    are_integer_rows = all(len(spec.shape) == 1 and "int" in spec.dtype for spec in by_name.values())
    if len(names) != 1 or not are_integer_rows:
        descriptions = []
        for name, spec in by_name.items():
            descriptions.append(f"{name} {list(spec.shape)} {spec.dtype}")
        raise ValueError(
            f"it needs token ids (T,), integers, and optionally {SEGMENTS} and {POSITIONS} (T,), but the task has "
            f"{', '.join(descriptions)}"
        )
    name = names[0]
    return name, by_name[name].shape[0]
