import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import layout
from runner.config import values
from runner.config.schema import LayoutConfig, RuleConfig
from runner.errors import ConfigError

AXES = {"batch": 2, "model": 4}
INPUTS: dict[str, list[str | None]] = {"image": ["batch", None, None, None], "label": ["batch"]}
VARIABLES = {"d1/kernel": (784, 128), "d1/bias": (128,), "d10/kernel": (128, 12)}


def make(*rules: tuple[str, list[str | None]]) -> LayoutConfig:
    return LayoutConfig(rules=[RuleConfig(match, spec) for match, spec in rules], inputs=dict(INPUTS))


def test_a_pattern_must_match_the_whole_path_and_not_its_beginning() -> None:
    placed = layout.resolve(make(("d1/kernel", [None, "model"])), {"d1/kernel": (4, 8), "d1/kernel_2": (4, 8)}, AXES)
    assert placed["d1/kernel"].spec == (None, "model")
    assert placed["d1/kernel_2"].spec == (None, None)
    with pytest.raises(ConfigError, match="matches no variable"):
        layout.resolve(make(("d1", [None, "model"])), VARIABLES, AXES)


@pytest.mark.parametrize(
    ("rules", "parts"),
    [
        (
            [("d1/bias", [None, "model"])],
            ("rules[0].spec=[null,model]", "2 entries do not fit rank 1 of d1/bias, shape [128]", "per dim, 1"),
        ),
        (
            [("d10/kernel", [None, None]), ("d1/kernel", ["model"])],
            ("rules[1].spec=[model]", "1 entry does not fit rank 2"),
        ),
        ([("none/.*", [None])], ("rules[0].match=none/.*", "matches no variable", "d1/kernel, d1/bias")),
        ([(".*", []), ("d1/kernel", [])], ("rules[0].spec=[]", "0 entries do not fit rank 2", "(and 3 more)")),
        (
            [(".*/kernel", [None, "model"]), ("d1/kernel", ["model", None])],
            ("rules[1].match=d1/kernel", "earlier rules match all"),
        ),
    ],
)
def test_rules_that_do_not_fit_the_variables_are_rejected(
    rules: list[tuple[str, list[str | None]]], parts: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        layout.resolve(make(*rules), VARIABLES, AXES)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "fixes"),
    [
        ((8, 10), ("put null at dim 1, or model at dim 0 (8)", "divides 10")),
        ((7, 11), ("put null at dim 1, or give model a size that divides 11",)),
        ((8, 1), ("put null at dim 1, or model at dim 0 (8)",)),
    ],
)
def test_a_dim_that_the_axis_does_not_divide_is_rejected_with_the_sizes_and_a_fix(
    shape: tuple[int, int], fixes: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        layout.resolve(make((".*", [None, "model"])), {"d2/kernel": shape}, AXES)
    said = f"axis 'model' of size 4 does not divide dim 1 ({shape[1]}) of d2/kernel, shape {list(shape)}; "
    assert str(caught.value).startswith(f"layout.rules[0].spec=[null,model]: {said}")
    for fix in fixes:
        assert fix in str(caught.value)
    assert "\n" not in str(caught.value)


def check(config: LayoutConfig) -> None:
    values.check(config, "layout")
    layout.check(config, AXES)


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (make(("", [None])), ("layout.rules[0].match=''", "d1/kernel")),
        (LayoutConfig(inputs={"image": []}), ("layout.inputs.image=[]", "one entry per dim", "=[batch]")),
        (LayoutConfig(inputs=INPUTS | {"label": ["rows"]}), ("layout.inputs.label=[rows]", "no axis 'rows'")),
        (LayoutConfig(inputs=INPUTS | {"mask": [None]}), ("layout.inputs.mask=[null]", "that of image, batch")),
        (LayoutConfig(inputs={"a b": ["batch"]}), ("layout.inputs.a b=[batch]", "letters, digits and _")),
        (LayoutConfig(inputs={"x": ["batch", "batch"]}), ("layout.inputs.x=[batch,batch]", "one dim only")),
    ],
)
def test_a_layout_that_does_not_fit_the_mesh_is_rejected(config: LayoutConfig, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        check(config)
    for part in parts:
        assert part in str(caught.value)


def test_a_layout_that_fits_the_mesh_passes() -> None:
    layout.check(make(("d1/kernel", ["batch", "model"])), AXES)
    layout.check(LayoutConfig(inputs={"image": [None] * 4, "label": [None]}), AXES)
    layout.check(LayoutConfig(), AXES)
    layout.check(LayoutConfig(), {"device": 1})


def test_a_mesh_without_a_batch_axis_is_rejected_unless_an_input_names_one() -> None:
    with pytest.raises(ConfigError, match=r"^mesh.axes=\{m:4\}: has no axis 'batch', so every") as caught:
        layout.check(LayoutConfig(), {"m": 4})
    # An axis of one device is no fix, and the presets are listed up to ten.
    assert "=1" not in str(caught.value)
    assert str(caught.value).count("mesh=") == 10
    with pytest.raises(ConfigError, match=r"^layout.inputs.table=\[\]: needs .*; set layout.inputs.table=\[m\]$"):
        layout.check(LayoutConfig(inputs={"table": []}), {"m": 4})
    layout.check(LayoutConfig(inputs={"table": ["m", None]}), {"m": 4})


entries = st.sampled_from([None, "batch", "model"])


shapes = st.lists(st.integers(1, 16), max_size=3).map(tuple)
matches = st.sampled_from([".*/.*", "d1/.*", ".*/kernel", "d[0-2]/bias", "d2/kernel", "d1/kernel|d2/bias", "kernel"])
some_rules = st.builds(
    RuleConfig, match=matches, spec=st.lists(entries, max_size=3), optional=st.booleans()
) | st.builds(
    RuleConfig,
    match=matches,
    shard=st.sampled_from(["batch", "model"]),
    min_elements=st.sampled_from([0, 8, 64]),
    optional=st.booleans(),
)


def fits(rule: RuleConfig, shape: tuple[int, ...], axes: dict[str, int]) -> bool:
    if rule.spec is None:
        return True
    even = all(axis is None or dim % axes[axis] == 0 for dim, axis in zip(shape, rule.spec, strict=False))
    return len(rule.spec) == len(shape) and even


@given(
    variables=st.dictionaries(st.from_regex(r"d[0-3]/(kernel|bias)", fullmatch=True), shapes, max_size=5),
    rules=st.lists(some_rules, max_size=5),
    axes=st.fixed_dictionaries({"batch": st.integers(1, 4), "model": st.integers(1, 5)}),
)
def test_the_first_rule_that_matches_the_whole_path_and_fits_or_is_not_optional_decides(
    variables: dict[str, tuple[int, ...]], rules: list[RuleConfig], axes: dict[str, int]
) -> None:
    config = LayoutConfig(rules=rules, inputs=dict(INPUTS))
    try:
        layout.check(config, axes)
    except ConfigError:
        return
    decides = {}
    for path, shape in variables.items():
        matching = [index for index, rule in enumerate(rules) if re.fullmatch(rule.match, path)]
        decides[path] = next(
            (index for index in matching if fits(rules[index], shape, axes) or not rules[index].optional), None
        )
    misfit = any(
        index is not None and not fits(rules[index], variables[path], axes) for path, index in decides.items()
    )
    idle = any(not rule.optional and index not in decides.values() for index, rule in enumerate(rules))
    if misfit or idle:
        with pytest.raises(ConfigError, match=r"^layout\.rules\[\d\]\.(spec|match)=.*: .+; .+$"):
            layout.resolve(config, variables, axes)
        return
    placed = layout.resolve(config, variables, axes)
    assert {path: placement.rule for path, placement in placed.items()} == decides
    for path, placement in placed.items():
        used = [axis for axis in placement.spec if axis is not None]
        shards = math.prod(axes[axis] for axis in used)
        assert len(used) == len(set(used))
        assert math.prod(placement.shard_shape(axes)) * shards == math.prod(placement.shape)
        before = [i for i in range(len(rules)) if re.fullmatch(rules[i].match, path)]
        before = before if placement.rule is None else before[: before.index(placement.rule)]
        assert [int(note[len("layout.rules[") : note.index("]")]) for note in placement.passed] == before
        if placement.rule is not None and (axis := rules[placement.rule].shard) is not None:
            assert_splits_the_largest(placement, axis, axes[axis], rules[placement.rule].min_elements)


def assert_splits_the_largest(placement: layout.Placement, axis: str, size: int, min_elements: int) -> None:
    even = [dim for dim in placement.shape if dim % size == 0]
    if not even or math.prod(placement.shape) < min_elements:
        assert not any(placement.spec)
        return
    split = placement.spec.index(axis)
    assert placement.shape[split] == max(even)
    assert max(even) not in placement.shape[split + 1 :]
    assert placement.spec.count(axis) == 1
