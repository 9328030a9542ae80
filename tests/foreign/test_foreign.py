"""Every sound step is verified, every mutant a mismatch: `python -m tests.foreign` prints the tables of the page."""

import os
from pathlib import Path

import pytest

from tests.foreign.judges import COMPILED, rows

PYTHON = Path(__file__).parents[2] / ".venv" / "foreign" / "bin" / "python"
NAMES = (
    *("linen: mlp", "linen: dropout", "linen: batch norm", "nnx: mlp", "nnx: attention", "equinox: mlp"),
    *("equinox: conv", "equinox: gru", "haiku: mlp", "haiku: lstm", "haiku: group norm", "optax: lion", "optax: lamb"),
    *("optax: adafactor", "optax: nadam average", "optax: microbatches", "optax: clipped", "jax: md forces"),
    *("brax: policy", "keras: stateless"),
    *("jax: megatron", "jax: embedding", "jax: experts", "jax: sequence", "jax: gathered"),
    *(COMPILED + name for name in ("linen: batch norm", "nnx: attention", "equinox: conv", "keras: stateless")),
)


@pytest.mark.nightly
@pytest.mark.skipif(not PYTHON.exists(), reason="needs .venv/foreign, which .ci/nightly makes")
@pytest.mark.parametrize("name", NAMES)
def test_meshproof_misses_no_bug_of_a_foreign_step_and_raises_no_false_alarm(name: str) -> None:
    found = {(each.devices, each.bug): each.verdict for each in rows([name], os.fspath(PYTHON))}
    assert found == {key: "mismatch" if key[1] else "verified" for key in found}
