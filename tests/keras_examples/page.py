"""The page docs/keras_examples.md: `python -m tests.keras_examples.page` writes it from the examples."""

from collections.abc import Sequence
from pathlib import Path

from tests.keras_examples.spec import Example, examples

PAGE = Path(__file__).resolve().parents[2] / "docs" / "keras_examples.md"

AS_IS = "as is"
_HEAD = """\
# Keras's published examples

This page shows which of the examples on [keras.io](https://keras.io/examples/) this project trains with `engine=jax`,
and what that takes. Each is written new at a tiny size, with made data: `tests/keras_examples` has their code. Each
night, all are verified for four steps on `mesh=batch8` and `mesh=batch4_model2` with `layout=auto`. Every tenth is
also planned, trained for two epochs, evaluated and exported.

- **as is**: the model, the data and config keys are all that it takes. Optimizer, schedule, loss, metrics and
  callbacks are those of the example.
- **N lines**: a user also writes a loss, metrics or a [step](custom_steps.md) of that length. In Keras, most of these
  examples have a `train_step` of their own for it.
- **without X**: X of the example is lost. Six more that would lose a callback or a metric are left out, as they are
  otherwise like others here: CTC speech recognition, DCGAN, text by characters, addition, BERT and super-resolution.

```sh title="Needs: a checkout with the extra test"
python -m pytest -m nightly tests/keras_examples -k mnist_convnet
```

"""


def verdict(example: Example) -> str:
    """What it takes, or why it does not work."""
    if example.needs:
        return f"not yet: needs {example.needs}"
    words = []
    lines = example.lines()
    if lines:
        words.append(f"{lines} lines")
    if example.lost:
        words.append("without " + "; ".join(example.lost))
    return ", ".join(words) or AS_IS


def text(known: Sequence[Example]) -> str:
    """The whole page."""
    rows = ["| example | trained in Keras with | `engine=jax` |", "|---|---|---|"]
    plain: dict[str, list[str]] = {}
    for example in known:
        if verdict(example) == AS_IS:
            plain.setdefault(example.path.partition("/")[0], []).append(example.title)
        else:
            rows.append(f"| {example.title} | {example.trains} | {verdict(example)} |")
    rows += ["", "As is:", "", *(f"- **{category}**: {'; '.join(titles)}." for category, titles in plain.items())]
    whole = sum(not (example.needs or example.lost) for example in known)
    summary = f"Of {len(known)} examples, {whole} pass with nothing lost.\n\n"
    notes = (
        "\nAll data is made, and all models are small: they have fewer layers, blocks and units. A last softmax or "
        "sigmoid is left out if the task's loss takes logits, and one-hot labels are class indices. What an example "
        "simplifies beyond that is listed as `simplified` in its file.\n"
    )
    return _HEAD + summary + "\n".join(rows) + "\n" + notes


if __name__ == "__main__":
    PAGE.write_text(text(examples()))
