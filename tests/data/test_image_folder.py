"""Folders of photographs: every kind of file to the same pixels as its own library's, splits, sizes, broken files."""

import io

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.data import images
from runner.data.base import Encoding
from runner.data.loading import load
from runner.data.sources import image_folder
from runner.errors import ConfigError, DataError
from tests import forks
from tests.data.pictures import encoded, folder, picture

pytestmark = pytest.mark.usefixtures("inside")


def config(path, **keys: object) -> DatasetConfig:
    return DatasetConfig(**{"name": "image_folder", "path": str(path), "test": None} | keys)


def whole(path, **keys: object):
    return image_folder.load(config(path, **keys))


_DECODE = """
import sys
import numpy as np
import tensorflow as tf

for path, channels in zip(sys.argv[1::2], sys.argv[2::2]):
    data = tf.io.decode_jpeg(tf.io.read_file(path), channels=int(channels), dct_method="INTEGER_ACCURATE")
    np.save(path + ".npy", data.numpy())
"""


def test_jpeg_files_give_tensorflows_accurate_pixels_bit_for_bit(tmp_path):
    files = {}
    for number, (subsampling, channels) in enumerate(((0, 3), (1, 3), (2, 3), (2, 1))):
        files[tmp_path / f"{number}.jpg"] = channels
        (tmp_path / f"{number}.jpg").write_bytes(encoded(picture(37, 53, 3), subsampling=subsampling, quality=88))
    given = [str(part) for pair in files.items() for part in pair]
    forks.python("-c", _DECODE, *given, library=forks.TENSORFLOW)
    for file, channels in files.items():
        theirs = np.load(f"{file}.npy")
        assert theirs.shape == (37, 53, channels)
        np.testing.assert_array_equal(images.decode(file.read_bytes(), channels), theirs)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_exif_says(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(20, 30, 1), exif=exif, quality=95)
    turned = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    np.testing.assert_array_equal(images.decode(data, 3), turned)
    header = images.read_header(data)
    assert (header.height, header.width) == turned.shape[:2]


def test_every_mode_of_image_becomes_the_channels_asked_for():
    pixels = picture(12, 14, 2)
    shown = Image.fromarray(pixels)
    kinds = {
        "gray": (shown.convert("L"), "PNG"),
        "alpha": (shown.convert("RGBA"), "PNG"),
        "palette": (shown.convert("P"), "PNG"),
        "bits": (shown.convert("1"), "PNG"),
        "cmyk": (shown.convert("CMYK"), "JPEG"),
        "gray jpeg": (shown.convert("L"), "JPEG"),
        "bmp": (shown, "BMP"),
        "gif": (shown.convert("P"), "GIF"),
        "webp": (shown, "WEBP"),
        "tiff": (shown, "TIFF"),
    }
    for name, (image, kind) in kinds.items():
        held = io.BytesIO()
        image.save(held, kind)
        for channels, mode in ((1, "L"), (3, "RGB"), (4, "RGBA")):
            got = images.decode(held.getvalue(), channels)
            want = np.asarray(Image.open(io.BytesIO(held.getvalue())).convert(mode)).reshape(12, 14, channels)
            assert got.dtype == np.uint8
            tolerance = 1 if "jpeg" in name and channels == 1 else 0
            assert np.abs(got.astype(int) - want).max() <= tolerance, name


DEEP = np.arange(64).reshape(8, 8)
UNUSABLE = {
    "floats": encoded((DEEP / 64).astype(np.float32), "TIFF"),
    "32 bits": encoded((DEEP * 60_000).astype(np.int32), "TIFF"),
    "16 bits": encoded((DEEP * 1024).astype(np.uint16), "PNG"),
    "16 bits of TIFF": encoded((DEEP * 1024).astype(np.uint16), "TIFF"),
    "colors of 16 bits": cv2.imencode(".png", np.full((8, 8, 3), 4095, np.uint16))[1].tobytes(),
    "colors of 16 bits of TIFF": cv2.imencode(".tif", np.full((8, 8, 4), 4095, np.uint16))[1].tobytes(),
    "postscript": encoded(picture(8, 8), "EPS"),
}


@pytest.mark.parametrize("kind", list(UNUSABLE))
def test_a_file_of_more_than_8_bits_or_of_another_format_is_rejected_by_name(tmp_path, kind):
    photos = folder(tmp_path / "photos", size=(8, 8))
    (photos / "class1" / "new.png").write_bytes(UNUSABLE[kind])
    reason = "unknown image format" if kind == "postscript" else "more than 8 bits"
    split = whole(photos).splits["train"]
    with pytest.raises(DataError, match=rf"class1/new.png can't be decoded \(.*({reason}).*; fix or remove it$"):
        split.read(np.arange(split.size))


def test_resizing_is_antialiased_and_the_same_for_a_window_as_for_its_copy():
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    inner = images.resize(stripes, (8, 8))[1:-1, 1:-1]  # at the border a stripe is cut off
    assert np.abs(inner.astype(int) - 127).max() <= 1  # without a filter: 0 or 255
    image = picture(40, 30, 1)
    window = images.resize(image[6:31, 4:25], (16, 16))
    np.testing.assert_array_equal(window, images.resize(np.ascontiguousarray(image[6:31, 4:25]), (16, 16)))


def test_a_folder_a_class_is_one_split_in_an_order_of_its_names_alone(tmp_path):
    photos = whole(folder(tmp_path / "photos"), image_size=[16, 16])
    again = whole(folder(tmp_path / "elsewhere"), image_size=[16, 16])
    (name, split), (_, other) = *photos.splits.items(), *again.splits.items()
    assert name == "train"
    assert split.size == 24
    assert split.files == other.files != sorted(split.files)
    assert photos.digest == again.digest
    assert split.specs["label"].names == ("class0", "class1", "class2")
    arrays = split.read(np.arange(24))
    assert arrays["image"].shape == (24, 16, 16, 3)
    for row, file in enumerate(split.files):
        assert arrays["label"][row] == int(file[len("class")])
        pixels = images.decode((tmp_path / "photos" / file).read_bytes(), 3)
        np.testing.assert_array_equal(arrays["image"][row], images.resize(pixels, (16, 16)))


def test_folders_named_train_validation_and_test_are_splits(tmp_path):
    for name, count in (("train", 12), ("validation", 6), ("test", 3)):
        folder(tmp_path / name, count)
    data = load(config(tmp_path, image_size=[8, 8]))
    assert [data.train.size, data.selecting.size, data.test.size] == [12, 6, 3]
    assert data.selecting_name == "validation"


def test_the_digest_changes_with_a_size_and_with_a_name(tmp_path):
    photos = folder(tmp_path / "photos", size=(20, 20))
    first = whole(photos).digest
    file = photos / "class0" / "000.jpg"
    data = file.read_bytes()
    file.write_bytes(encoded(picture(20, 20, 99), quality=92))
    second = whole(photos).digest
    file.write_bytes(data)
    assert whole(photos).digest == first != second
    file.rename(photos / "class0" / "other.jpg")
    assert whole(photos).digest not in (first, second)


def test_images_of_several_sizes_need_a_size_or_a_step_that_gives_one(tmp_path):
    photos = folder(tmp_path / "photos")
    split = whole(photos).splits["train"]
    with pytest.raises(DataError, match=r"its size is \d+x\d+, but \d+x\d+ in the first image; set dataset.image"):
        split.read(np.arange(split.size))
    crop = AugmentConfig("random_resized_crop", options={"size": [10, 12]})
    assert whole(photos, augment=[crop]).splits["train"].specs["image"].shape == (10, 12, 3)
    assert whole(folder(tmp_path / "equal", size=(20, 30))).splits["train"].specs["image"].shape == (20, 30, 3)


def test_a_sizing_step_cuts_from_the_file_unless_a_size_is_set(tmp_path):
    photos = folder(tmp_path / "photos")
    step = AugmentConfig("random_resized_crop", options={"size": [10, 10], "center": 1.0})
    data = load(config(photos, augment=[step]))
    file = data.test.example_name(0)
    pixels = images.decode(open(file, "rb").read(), 3)  # noqa: PTH123, SIM115
    left, top, right, bottom = images.center_box(*pixels.shape[:2], (10, 10), 1.0)
    np.testing.assert_array_equal(
        data.test.read(np.array([0]))["image"][0], images.resize(pixels[top:bottom, left:right], (10, 10))
    )


def test_grey_folders_have_one_channel_and_channels_says_otherwise(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(encoded(picture(8, 8, 1, channels=1), "PNG"))
    assert whole(tmp_path).splits["train"].specs["image"].shape == (8, 8, 1)
    (tmp_path / "b" / "y.png").write_bytes(encoded(picture(8, 8, 1), "PNG"))
    split = whole(tmp_path).splits["train"]
    with pytest.raises(DataError, match=r"b/y.png can't be decoded \(it has colors, but the first image is gray; set"):
        split.read(np.arange(3))
    assert whole(tmp_path, channels=3).splits["train"].specs["image"].shape == (8, 8, 3)


def test_the_classes_of_the_run_count_and_not_those_of_another_folder(tmp_path):
    part = tmp_path / "part"
    folder(part, 4, classes=2)
    encoding = Encoding(categories={"label": ("class1", "class0", "none")})
    split = image_folder.load(config(part, image_size=[8, 8]), encoding).splits["train"]
    assert split.specs["label"].names == ("class1", "class0", "none")
    assert {file[:6]: int(label) for file, label in zip(split.files, split.labels, strict=True)} == {
        "class0": 1,
        "class1": 0,
    }
    folder(tmp_path / "more", 8, classes=4)
    with pytest.raises(
        ConfigError, match=r"has a folder class2, which is not a class of the run .its classes: class1, class0, none"
    ):
        image_folder.load(config(tmp_path / "more", image_size=[8, 8]), encoding)


def test_folders_without_classes_are_rejected(tmp_path):
    with pytest.raises(ConfigError, match="must have one folder per class"):
        whole(tmp_path)
    folder(tmp_path / "one", 3, classes=1)
    with pytest.raises(ConfigError, match="needs at least 2 classes, but only the folder class0 has images"):
        whole(tmp_path / "one", image_size=[8, 8])


def test_files_are_listed_in_order_with_links_to_files_and_without_what_is_hidden(tmp_path):
    root, outside = tmp_path / "photos", tmp_path / "outside"
    for name in ("a/b.jpg", "a/b/c.JPG", "a/b.b/d.png", "a/.hidden/e.png", "a/.f.png", "b/g.txt", "b/.jpg", "b/h.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    for name in ("folder.png/i.png", "folder/j.png"):
        (root / "b" / name).parent.mkdir()
        (root / "b" / name).touch()
    outside.mkdir()
    (outside / "k.png").touch()
    (root / "b" / "linked.png").symlink_to(outside / "k.png")
    (root / "b" / "broken.png").symlink_to(outside / "gone.png")
    (root / "b" / "loop.png").symlink_to("loop.png")
    (root / "b" / "linked").symlink_to(outside)
    (root / "c").symlink_to(outside)
    listed = image_folder._list_images(root, root)
    assert [file for file, _ in listed] == [
        *("a/b/c.JPG", "a/b.b/d.png", "a/b.jpg"),
        *("b/folder/j.png", "b/folder.png/i.png", "b/h.png", "b/linked.png", "c/k.png"),
    ]
