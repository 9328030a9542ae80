"""Runs and verifies the models: `python -m tests.models_of_keras [--engine jax] [--mesh batch8] [--short] [words]`.

Each is run by `python -m runner` for a few steps and compared with one device by `python -m runner.verify`, as a user
would: in a folder of its own, with the models in a module there. Prints a summary and the verdict's line of each, and
exits with 1 if one is neither verified nor rejected in one line. `--write` writes what was found into docs/models.md,
where the cells of other models stay as they are.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.models_of_keras import page
from tests.models_of_keras.proof import ENGINES, MESHES, MODELS, Proof, prove, write_models


def proofs(chosen: argparse.Namespace) -> Iterator[Proof]:
    """Yields what becomes of each model, engine and mesh that the command line names."""
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        for name, model in MODELS.items():
            if (chosen.short and not model.short) or (chosen.words and name not in chosen.words):
                continue
            for engine in chosen.engine or ENGINES:
                for mesh in chosen.mesh or MESHES:
                    yield prove(name, engine, mesh, Path(folder), train=not chosen.verify_only)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.models_of_keras")
    parser.add_argument("words", nargs="*", metavar="model")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--mesh", choices=MESHES, action="append")
    parser.add_argument("--short", action="store_true", help="only those that tests run")
    parser.add_argument("--verify-only", action="store_true")
    parser.add_argument("--write", action="store_true", help="writes docs/models.md")
    chosen = parser.parse_args()
    failed = 0
    for proof in proofs(chosen):
        failed += not proof.sound
        print(proof.row(), flush=True)
        print(proof.said, flush=True)
        if chosen.write:
            page.PAGE.write_text(page.with_proof(page.PAGE.read_text() if page.PAGE.exists() else "", proof))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
