"""What a builder is told of the data, by the names of its parameters."""

import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

from runner.config.schema import ModelConfig
from runner.config.schema_task import TaskConfig
from runner.data.base import ArraySpec
from runner.errors import ConfigError
from runner.model import builder
from runner.task.base import DataSpec, OutputSpec
from runner.task.registry import make_task
from tests.engine import cases

CONFIG = ModelConfig("models.build", {})
IMAGE = ArraySpec((28, 28, 1), "float32", ("height", "width", "channel"))


def two() -> DataSpec:
    arrays = {
        "age": ArraySpec((2,), "float32"),
        "words": ArraySpec((9,), "int32", ("sequence",)),
        "price": ArraySpec((), "float32"),
    }
    return DataSpec(arrays, make_task(TaskConfig("regression", ["price"]), arrays))


def taking(*names: str) -> Callable[..., None]:
    """Returns a builder with parameters of these names; one that begins with `**` takes any."""

    def built(**told: object) -> None:
        raise AssertionError(f"it was called with {told}")

    kinds = inspect.Parameter
    built.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [kinds(name.lstrip("*"), kinds.VAR_KEYWORD if name[:2] == "**" else kinds.KEYWORD_ONLY) for name in names]
    )
    return built


def given(function: Callable[..., Any], data: DataSpec) -> dict[str, Any]:
    return builder.data_arguments(function, CONFIG, data)


def test_a_builder_of_one_input_is_told_its_shape_and_the_number_of_units() -> None:
    data, told = cases.data(), {"input_shape": (28, 28, 1), "num_classes": 10}
    assert given(taking("keras", "input_shape", "num_classes", "width"), data) == told
    assert given(taking("keras", "**options"), data) == told


def test_a_builder_may_ask_for_the_specs_of_inputs_and_outputs() -> None:
    names = tuple(map(str, range(10)))
    told = {"inputs": {"image": IMAGE}, "outputs": OutputSpec(10, names)}
    assert given(taking("keras", "inputs", "outputs"), cases.data()) == told


def test_a_builder_of_one_shape_rejects_several_inputs() -> None:
    said = (
        r"^model._target_=models.build: it takes `input_shape`, of one input, but the task has age, words; "
        r"write it to take `inputs`, or set task.inputs=\[age\]$"
    )
    with pytest.raises(ConfigError, match=said):
        given(taking("keras", "input_shape", "num_classes"), two())
    assert list(given(taking("keras", "inputs", "outputs"), two())["inputs"]) == ["age", "words"]


def test_keras_is_given_to_a_builder_that_takes_it_and_to_no_other() -> None:
    def without(input_shape: Any, num_classes: Any) -> Any:
        return input_shape, num_classes

    def with_keras(keras: Any, input_shape: Any, num_classes: Any) -> Any:
        return keras, input_shape, num_classes

    @functools.wraps(without)
    def outer(*args: Any, **told: Any) -> Any:
        return without(*args, **told)

    told = {"keras": "K", "input_shape": (3,), "num_classes": 2}
    assert builder.call(without, CONFIG, **told) == ((3,), 2)
    assert builder.call(outer, CONFIG, **told) == ((3,), 2)
    assert builder.call(with_keras, CONFIG, **told) == ("K", (3,), 2)


def test_what_a_builder_raises_is_told_with_the_last_lines_of_the_users_code() -> None:
    def build() -> object:
        return json.loads(hidden)

    hidden = "["
    place = rf"\(tests/.*\.py:{build.__code__.co_firstlineno + 1} in build: return json\.loads\(hidden\)\)$"
    with pytest.raises(ConfigError, match=rf"raised JSONDecodeError: .* {place}"):
        builder.call(build, CONFIG, keras=None)
