from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runner.config.schema import DatasetConfig
from runner.data.loading import load
from runner.errors import ConfigError, DataError

pytestmark = pytest.mark.slow


def own(root: Path, *, builder: str = "tiny_data.Tiny", **keys: object) -> DatasetConfig:
    return DatasetConfig(name="", builder=builder, data_dir=str(root), **keys)  # type: ignore[arg-type]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a builder's module, from which it is imported."""
    shutil.copy(Path(__file__).with_name("tiny_data.py"), tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nightly
def test_ones_own_builder_is_prepared_once_and_again_when_its_source_changes(tiny: Path) -> None:
    keys = {"features": ["about/size", "about/kind", "vector", "label"]}
    data = load(own(tiny / "data", **keys))
    assert (data.name, data.version) == ("tiny_data.Tiny", "1.0.0")
    assert {name: (spec.shape, spec.dtype) for name, spec in data.specs.items()} == {
        "about_size": ((), "int32"),
        "about_kind": ((), "int32"),
        "vector": ((2,), "float32"),
        "label": ((), "int32"),
    }
    assert (data.specs["about_kind"].names, data.specs["label"].names) == (("large", "small"), ("cat", "dog"))
    arrays = data.train.arrays
    assert sorted(arrays["about_size"]) == list(range(40))
    assert arrays["about_kind"].tolist() == [int(size < 20) for size in arrays["about_size"]]
    assert arrays["vector"][:, 0].tolist() == arrays["about_size"].tolist()
    # What is prepared needs neither a child nor a download; without features, the supervised ones are read.
    images = load(own(tiny / "data", image_size=[6, 5], download=False))
    assert images.specs["image"].shape == (6, 5, 3)
    values = images.train.arrays["image"][:, 0, 0, 0]
    assert images.train.arrays["label"].tolist() == [value % 2 for value in values.tolist()]
    words = load(own(tiny / "data", features=["file"], tokenizer="bytes", sequence_length=8))
    assert words.texts["train"].documents == 40
    module = tiny / "tiny_data.py"
    module.write_text(module.read_text().replace("range(40)", "range(30)"))
    assert load(own(tiny / "data", **keys)).train.size == 30


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"name": "namespace:thing"}, "dataset.name=namespace:thing: must be a builder that TFDS ships"),
        ({"name": "../elsewhere"}, "dataset.name=../elsewhere: must be a builder that TFDS ships"),
        ({"name": "fashion_mnits"}, "did you mean fashion_mnist"),
        ({"name": "emnist/leters"}, "did you mean emnist/letters"),
        ({"name": "cifar10", "download": False}, "dataset.download=false forbids the download"),
    ],
)
def test_what_can_not_be_prepared_is_one_line(keys: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        load(DatasetConfig(data_dir=str(tmp_path), **keys))  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
