"""Augmentation: a function of (seed, epoch, row) alone, of known specs, and its plain counterpart in evaluations."""

import numpy as np
import pytest

from runner.config.schema_data import AugmentConfig, DatasetConfig
from runner.config.schema_task import TaskConfig
from runner.data import checks, images, loading
from runner.data.augment import augmented, example_rng
from runner.data.base import ArraySource, ArraySpec, DataSource
from runner.errors import ConfigError, DataError
from tests.data.pictures import picture

NAMES = ("ant", "bee", "cat")


def source(size: int = 12, side: int = 16, channels: int = 3, dtype: str = "uint8") -> ArraySource:
    pixels = np.stack([picture(side, side, seed, channels) for seed in range(size)]).astype(dtype)
    specs = {
        "image": ArraySpec(pixels.shape[1:], dtype, ("height", "width", "channel")),
        "label": ArraySpec((), "int32", names=NAMES),
    }
    return ArraySource({"image": pixels, "label": np.arange(size, dtype=np.int32) % 3}, specs)


def step(name: str, **options: object) -> AugmentConfig:
    return AugmentConfig(name=name, options=dict(options))


def own(name: str, **options: object) -> AugmentConfig:
    return AugmentConfig(target=f"{__name__}.{name}", options=dict(options))


def made(*steps: AugmentConfig, seed: int = 3, train: bool = True, data: DataSource | None = None) -> DataSource:
    config = DatasetConfig(augment=list(steps))
    checks.check_augment(config)
    return augmented(source() if data is None else data, config, seed, train=train)


ALL = (
    step("random_crop", padding=2),
    step("flip", direction="both"),
    step("random_resized_crop", size=[12, 10]),
    step("color", brightness=0.3, contrast=0.3, saturation=0.3, hue=0.1),
)


def test_same_seed_epoch_and_row_give_the_same_bits_in_any_order_and_company():
    data = made(*ALL)
    whole = data.read(np.arange(12), epoch=4)
    for rows in (np.array([7, 2, 7]), np.arange(12)[::-1]):
        again = made(*ALL).read(rows, epoch=4)
        for name, array in again.items():
            np.testing.assert_array_equal(array, whole[name][rows])


@pytest.mark.parametrize("kind", [one.name for one in ALL])
def test_every_step_draws_by_epoch_seed_and_row(kind):
    chosen = next(one for one in ALL if one.name == kind)
    rows = np.zeros(40, np.int64)
    same = made(chosen).read(rows)["image"]
    assert (same == same[:1]).all()
    epochs = np.stack([made(chosen).read(np.array([1]), epoch=epoch)["image"][0] for epoch in range(12)])
    seeds = np.stack([made(chosen, seed=seed).read(np.array([1]))["image"][0] for seed in range(12)])
    assert len(np.unique(epochs.reshape(12, -1), axis=0)) > 1
    assert len(np.unique(seeds.reshape(12, -1), axis=0)) > 1


def test_random_numbers_are_philox_of_seed_epoch_and_row():
    mine = np.random.Generator(np.random.Philox(key=np.array([9, (5 << 32) | 17], np.uint64)))
    np.testing.assert_array_equal(example_rng(9, 5, 17).random(8), mine.random(8))
    assert example_rng(9, 5, 18).random() != example_rng(9, 6, 17).random()


def test_evaluations_draw_nothing_and_take_the_middle():
    data = source()
    image = data.arrays["image"][0]
    crop = made(step("random_crop", size=[10, 8], padding=3), train=False).read(np.array([0]))["image"][0]
    np.testing.assert_array_equal(crop, image[3:13, 4:12])
    plain = made(step("flip", probability=1.0), step("color", brightness=0.5), train=False).read(np.array([0]))[
        "image"
    ][0]
    np.testing.assert_array_equal(plain, image)
    middle = made(step("random_resized_crop", size=[8, 8], center=0.5), train=False).read(np.array([0]))["image"][0]
    np.testing.assert_array_equal(middle, images.resize(np.ascontiguousarray(image[4:12, 4:12]), (8, 8)))


def test_random_crop_is_a_window_of_the_padded_image():
    image = source().arrays["image"][0]
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    windows = {padded[top : top + 16, left : left + 16].tobytes() for top in range(5) for left in range(5)}
    data = made(step("random_crop", padding=2))
    seen = {data.read(np.array([0]), epoch=epoch)["image"][0].tobytes() for epoch in range(60)}
    assert seen <= windows
    assert len(seen) > 15


def darker(arrays, rng, by: int = 2):
    return arrays | {"image": (arrays["image"] // by) + np.uint8(rng.integers(2))}


def uneven(arrays, rng):  # noqa: ARG001
    return arrays | {"image": arrays["image"][: 16 - int(arrays["label"])]}


def broken(arrays, rng):  # noqa: ARG001
    raise ValueError(f"not {int(arrays['label'])}")


def keyless(arrays):
    return arrays


def test_own_steps_are_called_with_arrays_and_rng_and_their_options():
    plain, rows = source().arrays["image"], np.arange(3)
    got = made(own("darker", by=4)).read(rows)["image"]
    drawn = [example_rng(3, 0, int(row)).integers(2) for row in rows]
    np.testing.assert_array_equal(got, plain[:3] // 4 + np.array(drawn, np.uint8)[:, None, None, None])
    np.testing.assert_array_equal(made(own("darker"), train=False).read(rows)["image"], plain[:3])


def test_labels_are_had_whole_where_no_step_changes_them():
    whole = made(step("flip"), step("color", hue=0.1)).column("label")
    assert whole is not None
    assert whole.tolist() == (np.arange(12) % 3).tolist()
    assert made(own("darker")).column("label") is None
    assert made(step("flip")).column("image") is None


def test_own_steps_that_fail_or_give_other_shapes_name_the_example():
    with pytest.raises(
        DataError, match=r"^example 0: dataset.augment\[0\] raised ValueError: not 0 \(.*py:\d+ in broken: raise V"
    ):
        made(own("broken")).read(np.array([0]))
    data = made(own("uneven"))
    with pytest.raises(DataError, match=r"^example 2, .*array image is uint8 \[14, 16, 3\], but uint8 \[16, 16, 3\]"):
        data.read(np.array([0, 2]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (step("flop"), r"augment\[0\].name=flop: must be one of .*did you mean flip"),
        (step("flip", chance=1), r"augment\[0\].chance: unknown key .* has direction, probability"),
        (step("random_resized_crop"), r"augment\[0\].size is required"),
        (AugmentConfig(), r"augment\[0\]={}: must have either a name"),
        (AugmentConfig(target="nowhere.at_all"), "there is no module nowhere"),
    ],
)
def test_steps_that_cannot_work_are_rejected_in_one_line(given, message):
    with pytest.raises(ConfigError, match=message) as caught:
        checks.check_augment(DatasetConfig(augment=[given]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (own("darken"), "has no 'darken'; did you mean darker"),
        (own("NAMES"), "NAMES is not callable"),
        (own("darker", times=2), r"augment\[0\].times: .*darker takes by"),
        (own("keyless"), r"must be a function that takes arrays, rng; this one takes arrays"),
    ],
)
def test_a_custom_step_that_cannot_be_called_is_rejected_once_it_is_imported(given, message):
    with pytest.raises(ConfigError, match=message) as caught:
        made(given)
    assert "\n" not in str(caught.value)


def test_steps_are_rejected_for_arrays_that_they_do_not_take():
    table = ArraySource({"x": np.ones((4, 3), np.float32)}, {"x": ArraySpec((3,), "float32")})
    with pytest.raises(ConfigError, match=r"flip: needs arrays with the dims height and width"):
        made(step("flip"), data=table)
    with pytest.raises(ConfigError, match=r"images of uint8 with one or three channels"):
        made(step("color", hue=0.1), data=source(dtype="float32"))
    with pytest.raises(ConfigError, match=r"size=\[30,30\]: must be at most \[20, 20\]"):
        made(step("random_crop", size=[30, 30], padding=2))


SIDE = 24


def masked(shape: tuple[int, ...], dtype: str) -> ArraySource:
    """Returns images of four quarters, each of one value, and masks of these quarters' classes."""
    rng = np.random.default_rng(0)
    classes = rng.permuted(np.tile(np.arange(4), (6, 1)), axis=1).reshape(6, 2, 2)
    quarters = classes.repeat(SIDE // 2, axis=1).repeat(SIDE // 2, axis=2)
    pixels = (40 + 60 * quarters[..., None]).repeat(3, axis=-1).astype(np.uint8)
    dims = ("height", "width", "channel")
    specs = {
        "image": ArraySpec((SIDE, SIDE, 3), "uint8", dims),
        "mask": ArraySpec(shape, dtype, dims if dtype == "uint8" else ()),
    }
    return ArraySource({"image": pixels, "mask": quarters.reshape(6, *shape).astype(dtype)}, specs)


MASKS = [((SIDE, SIDE), "int32"), ((SIDE, SIDE, 1), "int32"), ((SIDE, SIDE, 1), "uint8"), ((SIDE, SIDE), "float32")]
MOVES = [
    step("flip", direction="both"),
    step("random_crop", padding=6),
    step("center_crop", size=[14, 10]),
    step("resize", size=[36, 20]),
    step("random_resized_crop", size=[20, 30], scale=[0.3, 1.0]),
]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.name)
@pytest.mark.parametrize(("shape", "dtype"), MASKS)
def test_a_mask_is_moved_as_its_image_is(shape, dtype, move, training):
    config = DatasetConfig(augment=[move])
    data = augmented(masked(shape, dtype), config, 3, train=training, masks={"mask": 9})
    found = data.read(np.arange(6), epoch=2)
    assert {name: array.shape[1:] for name, array in found.items()} == {n: s.shape for n, s in data.specs.items()}
    height, width = found["image"].shape[1:3]
    mask = found["mask"].reshape(6, height, width)
    assert mask.dtype == dtype
    assert set(np.unique(mask)) <= {0, 1, 2, 3, 9}
    image = found["image"][..., 0].astype(int)
    # Pixels that no interpolation has blended; black is outside of the image.
    known = (image == 0) | ((image - 40) % 60 == 0)
    assert known.mean() > 0.75
    expected = np.where(image == 0, 9, (image - 40) // 60)
    # A pixel at the edge of two quarters, half of one, may be nearer to the other one.
    is_exact = move.name in ("flip", "random_crop", "center_crop")
    assert (mask == expected)[known].mean() > (0.9999 if is_exact else 0.98)


def test_colors_leave_masks_as_they_are():
    data = masked((SIDE, SIDE, 1), "uint8")
    config = DatasetConfig(augment=[step("color", brightness=0.5)])
    found = augmented(data, config, 3, train=True, masks={"mask": 0}).read(np.arange(6))
    np.testing.assert_array_equal(found["mask"], data.arrays["mask"])
    assert (found["image"] != data.arrays["image"]).any()


def test_a_run_of_classes_per_position_names_its_masks(tmp_path):
    data = masked((SIDE, SIDE), "int32")
    np.savez(tmp_path / "data.npz", image=data.arrays["image"], mask=data.arrays["mask"], other=data.arrays["mask"])
    dataset = DatasetConfig(
        name="arrays", path=str(tmp_path / "data.npz"), augment=[step("random_crop", padding=20)], test="train[:2]"
    )
    task = TaskConfig("positions", ["mask"], ["image"], options={"ignore_index": 7, "label_weight": "other"})
    train = loading.load(dataset, task=task).train.read(np.arange(6))
    is_outside = train["image"][..., 0] == 0
    assert is_outside.any()
    assert (train["mask"][is_outside] == 7).all()
    assert (train["other"][is_outside] == 0).all()
    assert (train["mask"][~is_outside] == (train["image"][~is_outside][..., 0] - 40) // 60).all()
