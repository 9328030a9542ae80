from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.errors import ConfigError
from runner.model import target
from runner.schema import ModelConfig

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
    target.check(ModelConfig(f"{MODULE}.{name}", options))


def refused(name: str = "build", **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check(name, **options)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize(
    "source",
    [
        f"def build({GIVEN}): ...",
        f"def build({GIVEN}, width=8): ...",
        f"def build({GIVEN}, *, width): ...",
        f"def build({GIVEN}, layouts, width): ...",
        "def build(**options): ...",
        "def build(keras, **options): ...",
        f"class build:\n    def __init__(self, {GIVEN}, width): ...",
        "from somewhere import build",
        "from somewhere import other as build",
        "from somewhere import *",
        "import somewhere as build",
        f"try:\n    from fast import build\nexcept ImportError:\n    def build({GIVEN}): ...",
        f"if True:\n    def build({GIVEN}): ...",
        "import functools\nbuild = functools.partial(print)",
        f"build = lambda {GIVEN}, width: None",
        "def __getattr__(name): ...",
        f"VALUE = 1\ndef build({GIVEN}, width=8): ...\n",
        "build, other = make_two()",
        "build = None\ntry:\n    from fast import build\nexcept ImportError:\n    pass",
        "@gives_keras_and_shapes\ndef build(num_classes): ...",
    ],
)
def test_what_may_be_a_builder_passes_without_being_imported(source: str, write: Write) -> None:
    write(f"import no_such_package_at_all\n{source}\n")
    check(**({"width": 4} if "width" in source else {}))
    assert MODULE not in sys.modules


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("", ("has no 'build'", "no function")),
        (f"def biuld({GIVEN}): ...", ("has no 'build'", "it defines biuld", "did you mean biuld?")),
        ("build = 3", ("build in target_of_a_user.py is not callable",)),
        ("build: int = 3", ("not callable",)),
        ("build = [1, 2]", ("not callable",)),
        ("build = {}", ("not callable",)),
        ("def build(): ...", ("a builder takes keras, input_shape, num_classes", "this one takes nothing")),
        ("def build(keras, shape, classes): ...", ("this one takes keras, shape, classes", "def build(keras, input")),
        ("def build(:\n", ("target_of_a_user.py must parse", "line 1")),
        (f"build = 3\ndef build({GIVEN}): ...\nbuild = 'no'", ("not callable",)),
    ],
)
def test_what_is_no_builder_is_refused_by_its_path(source: str, parts: tuple[str, ...], write: Write) -> None:
    write(source)
    message = refused()
    assert message.startswith(f"model._target_={MODULE}.build is refused: ")
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("", "an import path with a dot"),
        ("build", "an import path with a dot"),
        ("a..build", "an import path with a dot"),
        (".build", "an import path with a dot"),
        ("my-module.build", "an import path with a dot"),
        ("no_such_module_at_all.build", "there is no module no_such_module_at_all"),
        ("no_such_package_at_all.inner.build", "module no_such_package_at_all.inner does not import"),
        ("json.decoder.no_such.build", "module json.decoder.no_such does not import"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(path: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        target.check(ModelConfig(path))
    assert str(caught.value).startswith("model._target_=")
    assert part in str(caught.value)


def test_a_module_without_python_source_is_left_to_the_import() -> None:
    target.check(ModelConfig("itertools.chain"))


def test_an_option_that_the_builder_lacks_is_refused_with_the_nearest(write: Write) -> None:
    write(f"def build({GIVEN}, width=8, depth=2): ...")
    message = refused(widht=3)
    assert "model.widht" in message
    assert "takes width, depth" in message
    assert "did you mean width?" in message


def test_what_the_runner_gives_itself_is_no_option(write: Write) -> None:
    write(f"def build({GIVEN}, layouts=None): ...")
    assert "takes no options" in refused(num_classes=3)
    assert "takes no options" in refused(layouts=3)


@pytest.mark.parametrize("signature", [f"{GIVEN}, width", f"{GIVEN}, *, width", f"width, {GIVEN}, **more"])
def test_an_option_without_a_default_must_be_given(signature: str, write: Write) -> None:
    write(f"def build({signature}): ...")
    assert "add +model.width=" in refused()
    check(width=3)


def test_a_builder_with_keyword_options_takes_any(write: Write) -> None:
    write(f"def build({GIVEN}, **options): ...")
    check(width=3, anything="else")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("int", 3),
        ("float", 3),
        ("float", 0.5),
        ("str", "relu"),
        ("bool", False),
        ("bool | int", False),
        ("int | None", None),
        ("int | None", 3),
        ("list[int]", [1, 2]),
        ("tuple[int, ...]", [1]),
        ("Sequence[float]", [0.5, 1]),
        ("list[str]", []),
        ("Whatever", object()),
        ("int | Whatever", "text"),
    ],
)
def test_a_value_of_the_annotated_type_passes(annotation: str, value: Any, write: Write) -> None:
    write(f"def build({GIVEN}, option: {annotation} = None): ...")
    check(option=value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("int", "wide"),
        ("int", 1.5),
        ("int", True),
        ("int", None),
        ("float", "fast"),
        ("float", True),
        ("str", 3),
        ("bool", 1),
        ("int | None", "x"),
        ("list[int]", 3),
        ("list[int]", ["a"]),
        ("tuple[int, ...]", [1, None]),
        ("Sequence[str]", "relu"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_annotation(annotation: str, value: Any, write: Write) -> None:
    write(f"def build({GIVEN}, option: {annotation} = None): ...")
    message = refused(option=value)
    assert message.startswith("model.option=")
    assert f"a value of type {annotation}" in message


@pytest.mark.parametrize("value", [[0], [8, -1]])
def test_a_list_of_sizes_below_1_is_refused(value: list[int], write: Write) -> None:
    write(f"def build({GIVEN}, option: list[int] = None): ...")
    assert "at least 1" in refused(option=value)


def test_a_single_whole_number_may_be_0_as_a_seed_may(write: Write) -> None:
    write(f"def build({GIVEN}, option: int = 5): ...")
    target.check(ModelConfig(f"{MODULE}.build", {"option": 0}))


def test_load_imports_the_builder(write: Write) -> None:
    write(f"def build({GIVEN}):\n    return num_classes\n")
    assert target.load(f"{MODULE}.build")(None, (1, 1, 1), 7) == 7


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("raise OSError('two\\nlines')", ("it does not import (OSError: two lines)", "mend that module")),
        ("import no_such_package_at_all", ("ModuleNotFoundError", "no_such_package_at_all")),
        ("", ("AttributeError", "build")),
        ("build = 3", ("build is not callable",)),
    ],
)
def test_load_refuses_what_the_import_shows(source: str, parts: tuple[str, ...], write: Write) -> None:
    write(source)
    with pytest.raises(ConfigError) as caught:
        target.load(f"{MODULE}.build")
    for part in parts:
        assert part in str(caught.value)
