"""The task of language models: what counts, what is refused, what is written."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from runner import arrays
from runner.config.schema_task import LanguageModelOptions, TaskConfig
from runner.data.base import WEIGHT, Array, ArraySource, ArraySpec, DataSource
from runner.data.vocabulary import Vocabulary
from runner.errors import ConfigError
from runner.task import generation
from runner.task.base import Task
from runner.task.registry import make_task

B, T, V = 4, 6, 257
OPS = arrays.of(np)
ROW = ArraySpec((T,), "int32", ("sequence",))
SPECS = {"tokens": ROW, "label": ROW, "label_weight": ArraySpec((T,), "float32", ("sequence",))}


def config(example_weight: str | None = None, inputs: list[str] | None = None, **options: Any) -> TaskConfig:
    made = asdict(LanguageModelOptions(**options))
    return TaskConfig("language_model", [], inputs, example_weight, made)


def task(specs: dict[str, ArraySpec] | None = None, end: str | None = "<end>", **options: Any) -> Task:
    return make_task(config(**options), specs or SPECS, vocabulary=Vocabulary(end))


def drawn() -> tuple[dict[str, Array], Array]:
    """Returns a batch whose last example is padding, and logits, NaN in it."""
    rng = np.random.default_rng(3)
    batch = {
        "tokens": rng.integers(0, V, (B, T)).astype(np.int32),
        "label": rng.integers(0, V, (B, T)).astype(np.int32),
        "label_weight": np.array([[1] * T, [1] * 3 + [0] * 3, [0] * T, [1] * T], np.float32),
        WEIGHT: np.array([1, 1, 1, 0], np.float32),
    }
    batch["label"][0, 0] = 256
    logits = rng.normal(scale=3, size=(B, T, V))
    logits[0, 1, batch["label"][0, 1]] = 50
    logits[-1] = np.nan
    return batch, logits


def test_tokens_of_a_users_own_arrays_can_be_split_as_those_of_text() -> None:
    specs = {"tokens": ArraySpec((T,), "int32"), "label": ArraySpec((T,), "int32"), "mask": ArraySpec((T, T), "int32")}
    found = make_task(config(inputs=["tokens", "mask"], vocabulary=V), specs).arrays
    assert {name: spec.dims for name, spec in found.items()} == {
        "tokens": ("sequence",),
        "label": ("sequence",),
        "mask": ("sequence", ""),
    }


def test_means_are_over_counted_tokens() -> None:
    made, (batch, logits) = task(), drawn()
    np.testing.assert_array_equal(made.weights(batch), [6, 3, 0, 0])
    shifted = logits - logits.max(-1, keepdims=True)
    nats = np.log(np.exp(shifted).sum(-1)) - np.take_along_axis(shifted, batch["label"][..., None], -1)[..., 0]
    counts = batch["label_weight"] * batch[WEIGHT][:, None]
    whole = np.where(counts > 0, nats, 0).sum()
    np.testing.assert_allclose(made.loss(OPS, logits, batch).sum(), whole)
    totals = {name: np.asarray(value) for name, value in made.totals(OPS, logits, batch).items()}
    summary = made.summary(made.addends(totals))
    assert list(summary) == ["perplexity", "bits_per_byte", "accuracy"] == list(made.directions)[1:]
    assert summary["perplexity"] == pytest.approx(math.exp(whole / 9))
    assert summary["bits_per_byte"] == pytest.approx(whole / math.log(2) / 8), "the end of a document is no byte"
    assert summary["accuracy"] == pytest.approx(((logits.argmax(-1) == batch["label"]) * counts).sum() / 9)


def test_a_model_may_leave_the_logits_to_the_loss() -> None:
    made, (batch, _) = task(), drawn()
    rng = np.random.default_rng(0)
    hidden, head = rng.normal(size=(B, T, 5)), rng.normal(size=(5, V))
    parts = {"hidden": hidden, "head": head}
    np.testing.assert_allclose(made.loss(OPS, parts, batch), made.loss(OPS, hidden @ head, batch))
    made.check({"hidden": (None, T, 5), "head": (5, V)})
    with pytest.raises(ConfigError, match=r"are hidden \[None, 6, 5\], head \[5, 9\], but the task needs logits"):
        made.check({"hidden": (None, T, 5), "head": (5, 9)})


def test_weights_of_examples_weigh_the_loss_and_not_the_perplexity() -> None:
    specs = {**SPECS, "own": ArraySpec((), "float32")}
    made, plain, (batch, logits) = task(specs, example_weight="own"), task(), drawn()
    batch["own"] = np.array([2.0, 0.5, 1.0, 1.0], np.float32)
    np.testing.assert_allclose(made.loss(OPS, logits, batch), plain.loss(OPS, logits, batch) * batch["own"])
    np.testing.assert_allclose(made.totals(OPS, logits, batch)["entropy"], plain.loss(OPS, logits, batch))


@pytest.mark.parametrize(
    ("given", "specs", "line"),
    [
        (config(), SPECS, "task.vocabulary=null: needs the vocabulary size"),
        (config(), {"tokens": ROW, "label": ArraySpec((), "int32")}, "task.target=label: must have the number"),
        (config(label_weight="x"), SPECS, "task.label_weight=x:"),
        (
            config(vocabulary=V),
            {**SPECS, "label_weight": ArraySpec((T, 3), "float32")},
            "task.label_weight=label_weight: must have one number per label, shape [6]",
        ),
        (TaskConfig(), {"tokens": ROW, "label": ROW}, "set task=language_model"),
    ],
)
def test_what_can_not_work_is_refused(given: TaskConfig, specs: dict[str, ArraySpec], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_task(given, specs)
    assert line in str(caught.value).replace("None", "null")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sample", "line"),
    [
        ({"prompt": "a" * T}, "must have fewer tokens than a row, 6, but has 6"),
        ({"prompt": "abc", "tokens": 4}, "task.sample.tokens=4: must be at most 3"),
    ],
)
def test_a_sample_longer_than_a_row_is_refused(sample: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        task(sample=sample)
    assert line in str(caught.value)


def test_a_prompt_that_the_tokenizer_has_no_tokens_for_is_refused() -> None:
    words = Vocabulary(None, Tokenizer(models.WordLevel({"a": 0})).to_str())
    make_task(config(sample={"prompt": "a"}), SPECS, vocabulary=words)
    make_task(config(), SPECS, vocabulary=words)
    with pytest.raises(ConfigError, match=r"task.sample.prompt=b: has no tokens in the vocabulary"):
        make_task(config(sample={"prompt": "b"}), SPECS, vocabulary=words)


@pytest.mark.parametrize(
    ("token", "label", "said"),
    [
        (7, 9, "task.target=label: labels must be from 0 to 8, but the train split has 9"),
        (9, 7, "task.inputs=tokens: tokens must be from 0 to 8, but the train split has 9; set task.vocabulary=10"),
        (-1, 7, "task.inputs=tokens: tokens must be from 0 to 8, but the train split has -1; store token numbers"),
    ],
)
def test_tokens_beyond_the_vocabulary_are_refused(token: int, label: int, said: str) -> None:
    arrays = {"tokens": np.full((2, T), token, np.int32), "label": np.full((2, T), label, np.int32)}
    specs = {"tokens": ROW, "label": ROW}
    with pytest.raises(ConfigError, match=said):
        make_task(config(vocabulary=9), specs, ArraySource(arrays, specs))


@pytest.mark.parametrize("weight", [-0.5, np.nan, np.inf])
def test_weights_that_no_mean_is_taken_by_are_refused(weight: float) -> None:
    arrays = drawn()[0]
    arrays["label_weight"][1, 2] = weight
    with pytest.raises(ConfigError, match=r"task.label_weight=label_weight: must have finite numbers of at least 0"):
        make_task(config(vocabulary=V), SPECS, ArraySource(arrays, SPECS))


def test_a_split_in_which_no_label_counts_is_refused_and_not_perfect() -> None:
    arrays = drawn()[0]
    arrays["label_weight"][:] = 0
    held = ArraySource(arrays, SPECS)
    with pytest.raises(ConfigError, match=r"task.label_weight=label_weight: .*train split has none; fix"):
        make_task(config(vocabulary=V), SPECS, held)


def test_a_sample_is_the_prompt_and_what_the_model_writes() -> None:
    made, seen = task(sample={"prompt": "ab", "tokens": 3, "temperature": 0.5}), list[Array]()

    def ask(batch: dict[str, Array]) -> Array:
        seen.append(batch["label"])
        marked = (batch["tokens"] * batch["label"]).sum(-1)
        return np.eye(V)[marked + 1].astype(np.float32) * 1e3

    text = made.sample(ask, 12, 5, multiple=4)
    assert text == "step 12, seed 5\n--- greedy\nabcde\n--- temperature 0.5\nabcde\n"
    assert [array.shape for array in seen] == [(4, T)] * 3, "the batch axis divides the rows"
    assert [array.argmax(-1).tolist() for array in seen] == [[place] * 4 for place in (1, 2, 3)]


@pytest.mark.parametrize("kept_apart", [True, False])
def test_a_sample_begins_with_an_end_only_where_what_follows_it_is_learnt(kept_apart: bool) -> None:
    made = task({name: spec for name, spec in SPECS.items() if kept_apart or name != "label_weight"})
    first: list[int] = []

    def ask(batch: dict[str, Array]) -> Array:
        first.append(int(batch["tokens"][0, 0]))
        return np.zeros((len(batch["tokens"]), V), np.float32)

    made.sample(ask, 1, 0)
    assert set(first) == {ord("\n") if kept_apart else 256}


def test_draws_have_the_distribution_of_the_logits_and_depend_on_seed_and_step_alone() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.2]] * 2))

    def write(seed: int, step: int, temperature: float = 1.0) -> Array:
        prompt = np.zeros(1, np.int32)
        samplings = [temperature, 0.0]
        rows = generation.sample_tokens(lambda *_: logits, [prompt] * 2, [2000] * 2, 2001, samplings, seed, step)
        return np.stack(rows)

    first = write(1, 2)
    np.testing.assert_array_equal(first, write(1, 2))
    assert (first[0] != write(1, 3)[0]).any()
    assert (first[0] != write(2, 2)[0]).any()
    shares = np.bincount(first[0, 1:], minlength=3) / 2000
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.2], atol=0.04)  # four deviations of 2,000 draws
    sharp = np.bincount(write(1, 2, 0.5)[0, 1:], minlength=3) / 2000
    np.testing.assert_allclose(sharp, np.array([0.25, 0.09, 0.04]) / 0.38, atol=0.04)
    assert (first[1, 1:] == 0).all(), "temperature 0 takes the likeliest"


def next_letter(batch: dict[str, Array]) -> Array:
    """Returns logits of the letter behind each row's marked one, and of the one after that, which is as probable."""
    marked = (batch["tokens"] * batch["label"]).sum(-1)
    return ((np.eye(V)[marked + 1] + np.eye(V)[marked + 2]) * 1e3).astype(np.float32)


def test_prompts_of_different_lengths_are_continued_together_as_alone() -> None:
    made = task()
    greedy = [0.0] * 3
    prompts = made.encode_prompts(["ab", "x", "mnop"], "generate.prompt", None)
    assert made.generate(next_letter, prompts, None, greedy, 0) == ["abcdef", "xyz{|}", "mnopqr"]
    assert made.generate(next_letter, prompts, 2, greedy, 0, multiple=4) == ["abcd", "xyz", "mnopqr"]
    alone = [made.generate(next_letter, [prompt], 2, [0.0], 0)[0] for prompt in prompts]
    assert alone == ["abcd", "xyz", "mnopqr"]


def test_texts_of_one_seed_are_equal_for_every_batch_axis_and_differ_by_prompt_and_seed() -> None:
    made = task()
    prompts = made.encode_prompts(["a"] * 40, "generate.prompt", None)
    random = [1.0] * 40
    texts = made.generate(next_letter, prompts, 5, random, 3)
    assert made.generate(next_letter, prompts, 5, random, 3, multiple=8) == texts
    assert made.generate(next_letter, prompts, 5, random, 4) != texts
    # 40 draws of 32 equally probable texts.
    assert len(set(texts)) > 15


@pytest.mark.parametrize(
    ("prompts", "tokens", "message"),
    [
        (["a", ""], None, r"generate.prompt=.*: has no tokens in the vocabulary"),
        (["abcdef"], None, r"generate.prompt=abcdef: must have fewer tokens than a row, 6, but has 6; .*shorten"),
        (["a", "abc"], 4, r"generate.tokens=4: must be at most 3: .* the prompt needs 3; set generate.tokens=3"),
    ],
)
def test_prompts_without_room_or_tokens_are_invalid(prompts: list[str], tokens: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task().encode_prompts(prompts, "generate.prompt", tokens)


def test_prompts_need_a_vocabulary() -> None:
    made = make_task(config(vocabulary=V, sample=None), SPECS)
    with pytest.raises(ConfigError, match=r"generate.prompt=a: needs a dataset with a vocabulary"):
        made.encode_prompts(["a"], "generate.prompt", None)


class Lazy(DataSource):
    """A source that makes each example as it is read, so it has no whole columns."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._source = ArraySource(arrays, dict.fromkeys(arrays, ROW))
        self.specs = self._source.specs
        self.size = self._source.size
        self.read = self._source.read


def test_the_first_examples_of_a_source_without_whole_columns_are_checked() -> None:
    tokens = np.full((20, T), 2, np.int32)
    tokens[3, 1] = 143
    source = Lazy({"tokens": tokens, "label": tokens})
    problem = "must be from 0 to 63, but the train split has 143; set task.vocabulary=144 or more"
    with pytest.raises(ConfigError, match=problem):
        make_task(config(vocabulary=64), dict(source.specs), source)
    make_task(config(vocabulary=144), dict(source.specs), source)
