"""Writes presets with KerasHub, and holds what a run of one left against it: `python -m tests.run.preset_worker ...`.

`make FOLDER` writes the preset `gpt2`, `make_with_tokenizer FOLDER` the preset `my_preset`, which has a tokenizer.
`check RANK FOLDER` prints what differs between the preset FOLDER/gpt2 and the run's last checkpoint, and between what
the exported file answers and what KerasHub's own model does with the checkpoint's adapters, as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

from runner.checkpoint.reading import Checkpoint
from runner.checkpoint.storage import steps
from runner.layout.paths import is_variable
from runner.model import keras_hub as hub

T, V = 16, 256
SIZES = {"vocabulary_size": V, "num_layers": 2, "num_heads": 4, "hidden_dim": 64, "intermediate_dim": 128}


def make(folder: Path, name: str = "gpt2", **sizes: int) -> None:
    """Writes the preset."""
    models: Any = hub.keras_hub.models
    keras.utils.set_random_seed(3)
    body = models.GPT2Backbone(**(SIZES | sizes), max_sequence_length=2 * T)
    models.GPT2CausalLM(backbone=body, preprocessor=None).save_to_preset(str(folder / name))


def make_with_tokenizer(folder: Path) -> None:
    """Writes the preset `my_preset` of 300 tokens, with a tokenizer as KerasHub writes GPT-2's."""
    from tokenizers import ByteLevelBPETokenizer

    make(folder, "my_preset", vocabulary_size=300)
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator([Path(__file__).read_text() * 20], vocab_size=300, show_progress=False)
    assets = folder / "my_preset" / "assets" / "tokenizer"
    assets.mkdir(parents=True)
    learned.save_model(str(assets))
    (assets / "vocab.json").rename(assets / "vocabulary.json")
    kind = {"module": "keras_hub.src.models.gpt2.gpt2_tokenizer", "class_name": "GPT2Tokenizer", "config": {}}
    (folder / "my_preset" / "tokenizer.json").write_text(json.dumps(kind))


def check(rank: int, folder: Path) -> dict[str, Any]:
    """Returns the paths that moved, and the largest difference of what is answered."""
    models: Any = hub.keras_hub.models
    # Dropout, which KerasHub's presets keep, is off in all that is compared.
    whole = models.CausalLM.from_preset(str(folder / "gpt2"), preprocessor=None)
    if rank:
        whole.backbone.enable_lora(rank)
    own = {variable.path: variable for variable in whole.weights}  # no states of random generators
    (run,) = [path for path in (folder / "checkpoints").iterdir() if path.is_dir()]
    saved = Checkpoint(run / f"step-{steps(run)[-1]:09d}")
    held = {path: saved[path] for path in saved if is_variable(path)}
    paths = {path: next((mine for mine in own if mine == path or mine.endswith(f"/{path}")), None) for path in held}
    moved = [
        path
        for path, mine in paths.items()
        if mine is not None and not np.array_equal(np.asarray(own[mine].value), held[path])
    ]
    for path, mine in paths.items():
        if mine is not None:
            own[mine].assign(held[path])
    rng = np.random.default_rng(1)
    tokens, mask = rng.integers(0, V, (4, T)).astype(np.int32), np.ones((4, T), np.int32)
    mask[:, -3:] = 0
    given = {"token_ids": tokens, "padding_mask": mask}
    expected = np.asarray(whole(given, training=False))
    found = np.asarray(
        keras.models.load_model(folder / "exported" / "model.keras")(
            {"tokens": tokens, "segments": mask}, training=False
        )
    )
    return {
        "moved": sorted(moved),
        "unknown": sorted(path for path, mine in paths.items() if mine is None),
        "missing": sorted(set(own) - set(paths.values())),
        "difference": float(np.abs(found - expected).max()),
        "scale": float(np.abs(expected).max()),
    }


if __name__ == "__main__":
    sys.modules["tensorflow"] = None  # type: ignore[assignment] # Keras's saving asks for it: ten seconds
    hub.load()
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    elif sys.argv[1] == "make_with_tokenizer":
        make_with_tokenizer(Path(sys.argv[2]))
    else:
        print(json.dumps(check(int(sys.argv[2]), Path(sys.argv[3]))))
