"""A decoder-only transformer: Radford et al., Language Models are Unsupervised Multitask Learners (2019).

With `positions=rotary norm=rms activation=swiglu bias=false` it is Llama (arXiv:2302.13971), and with fewer
`key_value_heads` its later ones (arXiv:2305.13245). With `experts` too it is Mixtral (arXiv:2401.04088).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from runner.data.base import ArraySpec
from runner.model import inputs as model_inputs
from runner.model.gpt_options import check_options, default_feedforward, scans
from runner.model.inputs import Inputs
from runner.model.portable import bind, is_on_jax
from runner.model.scanned import Blocks
from runner.model.sizes import Remat, Sizes
from runner.model.transformer import Block, Head, PositionEmbedding, TokenEmbedding, make_norm
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
    experts: int | None = None,
    experts_per_token: int = 2,
    router_loss: float | None = None,
    vocabulary_size: int | None = None,
) -> Any:
    """Builds a pre-norm transformer over rows of tokens.

    `conf/model/gpt.yaml` has every option with its meaning, and `Sizes` has those of the blocks. With null,
    `key_value_heads` is `heads`, `head_dim` is dim / heads, `feedforward` is 4 * dim or with a gate 8/3 * dim rounded
    up to a multiple of 64, `max_length` is the row's tokens, `scan` is true from 32 blocks on and `fused_head` is
    true, both with Keras on JAX only.

    The inputs are token ids (T,), integers, and optionally `segments` (T,), the document of each token within its row.
    A token attends to the earlier ones of its own document. With segments there may be `positions` (T,), the position
    of each token within its document, for learned positions. Rotary ones do not need it: scores of attention depend on
    the differences of positions only. The outputs are those of a task whose units are the vocabulary.

    Returns:
      A model: int32 (batch, T) -> float32 logits (batch, T, vocabulary), or
      {"hidden": (batch, T, dim), "head": (dim, vocabulary)}.

    Raises:
      ValueError: sizes that do not divide each other, other inputs, or an unknown choice.
    """
    # The arguments by name, read before there are other local variables.
    options = dict(locals())
    tokens_name, length = _token_input(inputs)
    on_jax = is_on_jax(keras)
    check_options(options, on_jax=on_jax)
    if outputs.units is None:
        raise ValueError("it needs the size of the vocabulary, which the task leaves open; set task.vocabulary")
    if max_length is not None and max_length < length:
        raise ValueError(f"model.max_length={max_length} must be at least the row's {length} tokens")
    sizes = _sizes(options)
    taken = model_inputs.make(keras, inputs)
    tokens, segments, token_positions = _tensors(taken, tokens_name)
    embedding = bind(TokenEmbedding, keras)(outputs.units, dim, gives_table=tied, name="token_embedding")
    embedded = embedding(tokens)
    x = embedded
    # The table is an argument of a tied head, so that its gradient flows through both uses.
    head_arguments = []
    if tied:
        x, table = embedded
        head_arguments.append(table)
    if positions == "learned":
        x = bind(PositionEmbedding, keras)(max_length or length, name="position_embedding")(x, **token_positions)
    x = keras.layers.Dropout(dropout, name="embedding_dropout")(x)
    if scans(scan, depth, on_jax=on_jax):
        x = bind(Blocks, keras)(sizes, name="blocks")(x, **segments)
    else:
        for index in range(depth):
            x = bind(Block, keras)(sizes, name=f"block_{index}")(x, **segments)
    x = make_norm(keras, sizes, "norm")(x)
    if fused_head is None:
        fused_head = on_jax
    head = bind(Head, keras)(outputs.units, tied=tied, fused=fused_head, name="head")
    return keras.Model(taken, head(x, *head_arguments), name="gpt")


def _sizes(options: Mapping[str, Any]) -> Sizes:
    own = {field.name: options[field.name] for field in fields(Sizes) if field.name in options}
    own["key_value_heads"] = options["key_value_heads"] or options["heads"]
    own["feedforward"] = options["feedforward"] or default_feedforward(options["dim"], options["activation"])
    own["remat"] = Remat(options["remat"], tuple(options["saved"]), tuple(options["offloaded"]))
    own["rotary"] = options["wavelength"] if options["positions"] == "rotary" else None
    return Sizes(**own)


def _tensors(taken: Any, tokens_name: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Returns the token ids, and the segments and the positions by name, each empty if there are none."""
    if not isinstance(taken, dict):
        return taken, {}, {}
    positions = {}
    if POSITIONS in taken:
        positions[POSITIONS] = taken[POSITIONS]
    return taken[tokens_name], {SEGMENTS: taken[SEGMENTS]}, positions


def _token_input(inputs: Inputs) -> tuple[str, int]:
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
