"""Rules with shard, rules that pass on, what is refused before and after the variables are known, and warnings."""

import pytest

from runner import layout
from runner.config import values
from runner.config.schema import LayoutConfig, RuleConfig
from runner.data.base import WEIGHT, ArraySpec
from runner.errors import ConfigError
from runner.layout.axes import Shape
from runner.layout.inputs import input_specs

AXES = {"batch": 2, "model": 4}
INPUTS: dict[str, list[str | None]] = {"image": ["batch", None, None, None], "label": ["batch"]}


def images(height: int, width: int) -> dict[str, ArraySpec]:
    image = ArraySpec((height, width, 1), "uint8", ("height", "width", "channel"))
    return {"image": image, "label": ArraySpec((), "int32")}


def make(*rules: RuleConfig, image: list[str | None] | None = None) -> LayoutConfig:
    image = image or INPUTS["image"]
    return LayoutConfig(rules=list(rules), inputs={"image": image, "label": image[:1]})


def lint(config: LayoutConfig, variables: dict[str, Shape], axes: dict[str, int]) -> list[str]:
    return layout.lint(config, layout.resolve(config, variables, axes), axes)


def refused(config: LayoutConfig, variables: dict[str, tuple[int, ...]] | None = None) -> str:
    def check_and_resolve() -> None:
        values.check(config, "layout")
        layout.check(config, AXES)
        layout.resolve(config, variables or {}, AXES)

    with pytest.raises(ConfigError) as caught:
        check_and_resolve()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_optional_rule_skips_a_variable_that_it_does_not_fit_with_a_reason() -> None:
    config = make(
        RuleConfig("none", ["model"], optional=True),
        RuleConfig(".*/kernel", ["model"], optional=True),
        RuleConfig(".*/kernel", [None, "model"], optional=True),
        RuleConfig(".*/kernel", ["model", None]),
    )
    layout.check(config, AXES)
    placed = layout.resolve(config, {"a/kernel": (8, 10), "b/kernel": (8, 8), "b/bias": (8,)}, AXES)
    assert (placed["a/kernel"].spec, placed["a/kernel"].rule) == (("model", None), 3)
    assert placed["a/kernel"].passed == (
        "layout.rules[1] skipped: its 1 entry does not fit rank 2",
        "layout.rules[2] skipped: axis 'model' of size 4 does not divide dim 1 (10)",
    )
    assert placed["b/kernel"].rule == 2
    assert placed["b/bias"] == layout.Placement("b/bias", (8,), (None,), None)


@pytest.mark.parametrize("optional", [False, True])
def test_an_unknown_axis_is_rejected_even_in_an_optional_rule(optional: bool) -> None:
    for rule in (RuleConfig("w", ["tensor"], optional=optional), RuleConfig("w", shard="tensor", optional=optional)):
        assert "the mesh has no axis 'tensor' (its axes: batch, model); set mesh.axes.tensor=2" in refused(make(rule))


def test_the_fix_of_an_unknown_axis_is_a_mesh_that_has_it_or_the_nearest_name() -> None:
    said = refused(make(image=["batch", "height", None, None]))
    assert (
        "choose a mesh that has it, such as mesh=batch2_height2, mesh=batch2_height2_width2, mesh=batch4_height2"
        in said
    )
    assert "did you mean model?" in refused(make(RuleConfig("w", ["modle"])))


def test_a_shadowed_rule_is_rejected_with_the_indexes_of_the_earlier_ones() -> None:
    config = make(RuleConfig("a.*", ["model"]), RuleConfig("b.*", ["model"]), RuleConfig("[ab]1", [None]))
    said = refused(config, {"a1": (4,), "a2": (4,), "b1": (4,)})
    assert said.startswith("layout.rules[2].match=[ab]1: earlier rules match all of its variables (")
    assert "layout.rules[0], layout.rules[1]" in said


def test_an_optional_rule_may_be_shadowed_or_match_nothing() -> None:
    config = make(RuleConfig("a.*", ["model"]), RuleConfig("a1", [None], optional=True))
    assert layout.resolve(config, {"a1": (4,)}, AXES)["a1"].rule == 0


WARNED = {"d1/kernel": (784, 128), "d1/bias": (128,), "d2/kernel": (128, 10), "d2/bias": (10,), "d3/kernel": (8, 8)}


def test_a_large_replicated_variable_gets_a_warning_if_an_axis_could_shard_it() -> None:
    (warning, second) = lint(make(), WARNED, AXES)
    assert warning == (
        "d1/kernel, shape [784, 128], is replicated over axis 'model' of size 4; "
        "model divides dim 0 (784), dim 1 (128)"
    )
    assert second.startswith("d2/kernel")  # the largest quarter of five, rounded up, is two


@pytest.mark.parametrize(
    ("config", "axes"),
    [
        (make(), {"batch": 8}),
        (make(), {"batch": 8, "model": 1}),
        (make(image=["batch", "model", None, None]), AXES),
        (make(RuleConfig("d1/kernel", ["batch", None]), RuleConfig("d2/kernel", ["model", None])), AXES),
    ],
)
def test_no_warning_if_no_axis_is_free_or_the_variable_is_sharded(config: LayoutConfig, axes: dict[str, int]) -> None:
    assert lint(config, WARNED, axes) == []


def test_replicated_variables_of_equal_blocks_share_one_warning() -> None:
    table: dict[str, Shape] = {"embedding/embeddings": (96, 64), "head/kernel": (64, 96)}
    for block in range(9):
        table |= {f"block_{block}/mixer/in_proj/kernel": (64, 64), f"block_{block}/mixer/table": (64, 63)}
    warnings = lint(make(), table, AXES)
    assert [line.partition(",")[0] for line in warnings] == [
        "embedding/embeddings",
        "head/kernel",
        "block_0/mixer/in_proj/kernel",
    ]
    assert warnings[2].endswith("model divides dim 0 (64), dim 1 (64) (and 2 like it)")


def test_small_variables_get_no_warning() -> None:
    assert lint(make(), {"a": (32, 31), "b": (4,)}, AXES) == []
    assert len(lint(make(), {"a": (32, 32), "b": (4,)}, AXES)) == 1


def test_a_warning_says_why_a_large_variable_is_replicated() -> None:
    passing = make(RuleConfig("w", ["model", None], optional=True))
    assert lint(passing, {"w": (1023, 11)}, AXES)[0].endswith(
        "layout.rules[0] skipped: axis 'model' of size 4 does not divide dim 0 (1023)"
    )
    assert lint(make(), {"w": (1023, 11)}, AXES)[0].endswith("it divides no dim")
    proposing = LayoutConfig(auto=True, inputs=INPUTS)
    assert (
        "layout=auto left it: alone, and no axis (model of size 4)"
        in lint(proposing, {"w/kernel": (1023, 11)}, AXES)[0]
    )


def test_images_that_the_axes_do_not_divide_are_rejected_with_a_fix() -> None:
    axes = {"batch": 2, "height": 3}
    config = make(image=["batch", "height", None, None])
    layout.check_inputs(config, images(27, 28), 8, axes)
    with pytest.raises(ConfigError) as caught:
        layout.check_inputs(config, images(28, 30), 8, axes)
    assert str(caught.value) == (
        "layout.inputs.image=[batch,height,null,null]: axis 'height' of size 3 does not divide dim 1, the "
        "height (28), of [8, 28, 30, 1]; put null at dim 1, or height at dim 2 (30), or give height a size "
        "that divides 28, or set dataset.image_size"
    )
    with pytest.raises(
        ConfigError, match=r"dim 3, the channel \(1\).*; put null at dim 3, or height at dim 1 \(27\), or give"
    ):
        layout.check_inputs(make(image=["batch", None, None, "height"]), images(27, 28), 8, axes)


ARRAYS = {
    "photo": ArraySpec((8, 6, 3), "uint8", ("height", "width", "channel")),
    "tokens": ArraySpec((12,), "int32", ("sequence",)),
    "age": ArraySpec((), "float32"),
}


def checked(**inputs: list[str | None]) -> None:
    config = LayoutConfig(inputs=dict(inputs))
    layout.check(config, {"batch": 2, "split": 4})
    layout.check_inputs(config, ARRAYS, 8, {"batch": 2, "split": 4})


def test_any_array_of_a_dataset_may_be_sharded() -> None:
    checked(tokens=["batch", "split"], photo=["batch", "split", None, None])
    checked(age=["split"])
    checked()


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (
            {"foto": ["batch", None, None, None]},
            "layout.inputs.foto=[batch,null,null,null]: the dataset has no array 'foto' (its arrays: photo, "
            "tokens, age); did you mean photo?",
        ),
        (
            {"label": ["batch", None]},
            "layout.inputs.label=[batch,null]: the dataset has no array 'label' (its arrays: photo, tokens, age); "
            "remove layout.inputs.label",
        ),
        (
            {"tokens": ["batch"]},
            "layout.inputs.tokens=[batch]: must have 2 entries, one per dim of [batch, sequence]; set "
            "layout.inputs.tokens=[batch,null]",
        ),
        (
            {"photo": ["batch", None, "split", None]},
            "layout.inputs.photo=[batch,null,split,null]: axis 'split' of size 4 does not divide dim 2, "
            "the width (6), of [8, 8, 6, 3]; put null at dim 2, or split at dim 1 (8), or give split a size that "
            "divides 6, or set dataset.image_size",
        ),
    ],
)
def test_inputs_that_do_not_fit_the_arrays_are_rejected(inputs: dict[str, list[str | None]], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked(**inputs)
    assert str(caught.value) == said


def test_an_array_that_no_layout_names_is_sharded_over_its_examples() -> None:
    axes = {"batch": 2, "split": 4}
    assert input_specs(LayoutConfig(), ARRAYS, axes) == {
        "photo": ("batch", None, None, None),
        "tokens": ("batch", None),
        "age": ("batch",),
        WEIGHT: ("batch",),
    }
    named = input_specs(LayoutConfig(inputs={"tokens": ["split", "batch"]}), ARRAYS, axes)
    assert named == {
        "photo": ("split", None, None, None),
        "tokens": ("split", "batch"),
        "age": ("split",),
        WEIGHT: ("split",),
    }
