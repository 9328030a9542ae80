import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.config.schema import ModelConfig
from runner.errors import ConfigError
from runner.model import builder, target

MODULE = "target_of_a_user"
GIVEN = "keras, input_shape, num_classes"

Write = Callable[[str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the user's module; an import of it is taken back afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def to(source: str) -> None:
        (tmp_path / f"{MODULE}.py").write_text(source)
        importlib.invalidate_caches()

    return to


def check(name: str = "build", **options: Any) -> None:
    target.check_options(ModelConfig(f"{MODULE}.{name}", options))


def refused(name: str = "build", **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check(name, **options)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("", "an import path with a dot"),
        ("my-module.build", "an import path with a dot"),
        ("no_such_module_at_all.build", "there is no module no_such_module_at_all"),
        ("os.system", "is a function of Python's own"),
    ],
)
def test_a_path_to_no_builder_is_rejected_without_an_import(path: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        target.check(ModelConfig(path))
    assert str(caught.value).startswith("model._target_=")
    assert part in str(caught.value)


def test_an_unknown_option_is_rejected_with_the_nearest_one(write: Write) -> None:
    write(f"def build({GIVEN}, width=8, depth=2): ...")
    message = refused(widht=3)
    assert "model.widht" in message
    assert "takes width, depth" in message
    assert "did you mean width?" in message


def test_the_arguments_of_the_runner_are_no_options(write: Write) -> None:
    write(f"def build({GIVEN}, layouts=None): ...")
    assert "takes no options" in refused(num_classes=3)
    assert "takes no options" in refused(layouts=3)


@pytest.mark.parametrize("signature", [f"{GIVEN}, width", f"{GIVEN}, *, width", f"width, {GIVEN}, **more"])
def test_an_option_without_a_default_is_required(signature: str, write: Write) -> None:
    write(f"def build({signature}): ...")
    assert "add +model.width=" in refused()
    check(width=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": ["a"]}, "model.hidden[0]=a: must be an integer; write 1 there"),
        ({"hidden": [True]}, "model.hidden[0]=true: must be an integer"),
        ({"hidden": 8}, "model.hidden=8: must be a list of integers; set model.hidden=[1]"),
        ({"hidden": [8, -1]}, "model.hidden=[8,-1]: sizes must be at least 1"),
        ({"activation": None}, "model.activation=null: must be a string"),
        (
            {"activation": "Relu"},
            "model.activation=Relu: must be one of elu, exponential, gelu, hard_sigmoid, leaky_relu",
        ),
        ({"activation": "celu"}, "model.activation=celu: is of Keras 3 alone; set engine=jax"),
    ],
)
def test_a_value_of_another_type_is_rejected(options: dict[str, Any], message: str) -> None:
    target.check(ModelConfig("runner.model.mlp.sequential", {"hidden": [8], "activation": "relu"}))
    with pytest.raises(ConfigError) as caught:
        target.check(ModelConfig("runner.model.mlp.sequential", options), on_jax=False)
    assert str(caught.value).startswith(message)


def _is_called(source: str, write: Write, **options: Any) -> Any:
    write(source)
    made = target.load(f"{MODULE}.build")
    return builder.call(made, ModelConfig(f"{MODULE}.build", options), keras="k", input_shape=(1,), num_classes=7)


@pytest.mark.parametrize(
    "source",
    [
        f"import functools\ndef make({GIVEN}, width): return num_classes\nbuild = functools.partial(make, width=3)",
        "import functools\ndef given(f):\n    @functools.wraps(f)\n    def inner(keras, input_shape, **more):\n"
        "        return f(**more)\n    return inner\n@given\ndef build(num_classes): return num_classes",
        f"class Model:\n    def __call__(self, {GIVEN}): return num_classes\nbuild = Model()",
    ],
)
def test_an_imported_builder_is_called_if_its_signature_accepts_the_arguments(source: str, write: Write) -> None:
    assert _is_called(source, write) == 7


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (
            "import functools, os\nbuild = functools.partial(os.system, 'touch ran')",
            "it takes nothing|it takes command",
        ),
        ("def other(f): return f\n@other\ndef build(keras): open('ran', 'w')", "it takes keras, but a builder is"),
        ("build = [dict][0]", "its signature can't be read"),
    ],
)
def test_a_callable_with_other_parameters_is_rejected_and_not_called(
    source: str, part: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"model\._target_={MODULE}\.build: .*({part})"):
        _is_called(source, write)
    assert not (tmp_path / "ran").exists()


def test_a_model_in_place_of_a_builder_is_rejected(write: Write) -> None:
    write("Model = type('Model', (), {'__module__': 'keras.src', '__call__': print})\nnet = Model()")
    assert f"net is a model that is built already, but a run builds its own; write def build() in {MODULE}" in refused(
        "net"
    )


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        (
            "raise OSError('two\\nlines')",
            ("OSError: two lines (", f"{MODULE}.py:1: raise OSError('two\\nlines')); correct that line"),
        ),
        ("raise SystemExit(3)", ("SystemExit: 3 (", f"{MODULE}.py:1: raise")),
        ("import no_such_package_at_all", ("ModuleNotFoundError", f"{MODULE}.py:1: import no_such_package_at_all)")),
        ("\ndef build(:\n", (f"{MODULE}.py:2: SyntaxError: invalid syntax",)),
        ("def biuld(): ...", (f"module {MODULE} has no 'build'; did you mean biuld?",)),
        ("build = 3", ("build is not callable",)),
    ],
)
def test_load_rejects_what_only_the_import_shows(source: str, parts: tuple[str, ...], write: Write) -> None:
    write(source)
    with pytest.raises(ConfigError) as caught:
        target.load(f"{MODULE}.build")
    assert len(str(caught.value).splitlines()) == 1
    for part in parts:
        assert part in str(caught.value)
