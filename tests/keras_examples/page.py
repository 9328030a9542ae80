"""The page docs/keras_examples.md, written from the examples and the record of what they ended with."""

from collections.abc import Sequence
from typing import Any

from runner.task.losses import OF_EVERY_ENGINE
from tests.keras_examples.spec import Example

STEPS = ["plan", "verify on batch8", "verify on batch4_model2", "train", "evaluate", "export"]
OUTCOMES = ["every step, nothing lost", "every step, something lost", "does not work", "not run"]
# Overrides that need engine=jax; the checks say so too.
ONLY_JAX = ("task=step", "optimizer=keras", "optimizer=optax")

_HEAD = """\
# Keras's published examples

This page shows which of the examples on [keras.io](https://keras.io/examples/) this project trains, and what that
takes. Each is written new at a tiny size, with made data: `tests/keras_examples` has their code. An example counts
only if every step passed: it was planned, verified for four steps on `mesh=batch8` and on `mesh=batch4_model2` with
`layout=auto`, trained for two epochs, evaluated and exported. Models have fewer layers, blocks and units. `SPEC` of
each file lists what else is simpler than in the example.

- **as is**: the model, the data and config keys are all that it takes. Optimizer, schedule, loss, metrics and
  callbacks are those of the example.
- **N lines**: a user also writes a loss, metrics or a [step](custom_steps.md) of that length. In Keras, most of these
  examples have a `train_step` of their own for it.
- **without X**: X of the example's training is lost.
- **no: X**: it does not work, because of X.
- **not run**: there is no result yet.

`python -m tests.keras_examples vision/mnist_convnet --engine jax` runs one example. `--write` writes this page from
`tests/keras_examples/results.json`, which also names the commit of each result. CI checks that the results are those
of the present examples.

"""


def engines_of(example: Example) -> list[str]:
    """The engines that have what the example asks for."""
    if why_not_dtensor(example):
        return ["jax"]
    return ["jax", "keras_dtensor"]


def why_not_dtensor(example: Example) -> str:
    """What the example uses that `engine=keras_dtensor` does not have; empty: nothing that shows in its files."""
    for override in example.spec.overrides:
        key, _, value = override.partition("=")
        if key == "task.metrics" or (key == "task.loss" and value not in OF_EVERY_ENGINE):
            return f"`{override}` needs `engine=jax`"
    for override in ONLY_JAX:
        if override in example.spec.overrides:
            return f"`{override}` needs `engine=jax`"
    if example.uses_keras_ops():
        return "it uses `keras.ops`, which tf_keras does not have"
    return ""


def verdict(example: Example, engine: str, ended: dict[str, str]) -> str:
    """What it takes, or why it does not work."""
    if example.spec.needs:
        return f"not yet: needs {example.spec.needs}"
    if engine not in engines_of(example):
        return f"no: {why_not_dtensor(example)}"
    for step in STEPS:
        if ended.get(step) != "ok":
            return f"no: {step}: {ended[step]}" if step in ended else "not run"
    words = []
    lines = example.lines()
    if lines:
        words.append(f"{lines} lines")
    if example.spec.lost:
        words.append("without " + "; ".join(example.spec.lost))
    return ", ".join(words) or "as is"


def passes(example: Example, engine: str, ended: dict[str, str]) -> bool:
    """Whether every step passed and nothing is lost."""
    is_run = all(ended.get(step) == "ok" for step in STEPS) and engine in engines_of(example)
    return is_run and not example.spec.needs and not example.spec.lost


def outcome(example: Example, engine: str, ended: dict[str, str]) -> str:
    """One of `OUTCOMES`."""
    if passes(example, engine, ended):
        return OUTCOMES[0]
    word = verdict(example, engine, ended)
    if word == "not run":
        return OUTCOMES[3]
    return OUTCOMES[2] if word.startswith(("no: ", "not yet: ")) else OUTCOMES[1]


def text(known: Sequence[Example], results: dict[str, Any]) -> str:
    """The whole page."""
    engines = ["jax", "keras_dtensor"]
    counts = {engine: dict.fromkeys(OUTCOMES, 0) for engine in engines}
    rows = ["| example | trained in Keras with | `engine=jax` | `engine=keras_dtensor` |", "|---|---|---|---|"]
    category = ""
    for example in known:
        if example.category != category:
            category = example.category
            rows.append(f"| **{category}** | | | |")
        verdicts = []
        for engine in engines:
            ended = results.get(example.path, {}).get("engines", {}).get(engine, {})
            counts[engine][outcome(example, engine, ended)] += 1
            verdicts.append(verdict(example, engine, ended).replace("|", "\\|"))
        rows.append(f"| {example.spec.title} | {example.spec.trains} | {' | '.join(verdicts)} |")
    complete, *others = OUTCOMES
    summary = (
        f"Of {len(known)} examples, {counts['jax'][complete]} pass every step with nothing lost on `engine=jax`, and "
        f"{counts['keras_dtensor'][complete]} on `engine=keras_dtensor`.\n\n"
        "| the other examples | `engine=jax` | `engine=keras_dtensor` |\n|---|---|---|\n"
    )
    for name in others:
        summary += f"| {name} | {' | '.join(str(counts[engine][name]) for engine in engines)} |\n"
    summary += "\n"
    return _HEAD + summary + "\n".join(rows) + "\n"
