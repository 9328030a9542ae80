from pathlib import Path

import pytest

from runner.config.schema import DatasetConfig
from runner.data.loading import load
from runner.errors import ConfigError, DownloadError
from tests import forks

pytestmark = pytest.mark.slow


def own(root: Path, **keys: object) -> DatasetConfig:
    return DatasetConfig(name="tiny", data_dir=str(root), download=False, **keys)  # type: ignore[arg-type]


@pytest.mark.nightly
def test_a_dataset_that_tfds_has_prepared_is_read_without_its_code(tmp_path: Path) -> None:
    write = f"import tiny_data; tiny_data.Tiny(data_dir={str(tmp_path)!r}, file_format='array_record')"
    forks.python("-c", f"{write}.download_and_prepare()", folder=Path(__file__).parent)
    data = load(own(tmp_path, features=["about/size", "about/kind", "vector", "label"]))
    assert (data.name, data.version) == ("tiny", "1.0.0")
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
    # Without features, the supervised ones are read.
    images = load(own(tmp_path, image_size=[6, 5]))
    assert images.specs["image"].shape == (6, 5, 3)
    values = images.train.arrays["image"][:, 0, 0, 0]
    assert images.train.arrays["label"].tolist() == [value % 2 for value in values.tolist()]


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
    with pytest.raises((ConfigError, DownloadError)) as caught:
        load(DatasetConfig(data_dir=str(tmp_path), **keys))  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_supervised_features_that_are_nested_in_part_lose_no_target() -> None:
    from runner.data.sources.tfds_prepare import supervised

    found = [supervised(keys) for keys in (None, ("image", "label"), ("image", ("a", "b")), ({"x": "image"}, "label"))]
    assert found == [[], ["image", "label"], [], []]
