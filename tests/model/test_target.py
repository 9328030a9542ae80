from __future__ import annotations

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
        f"class build:\n    def __init__(self, {GIVEN}, more=3, width=2): ...",
        "class build(Somewhere): ...",
        "class build(metaclass=Odd):\n    def __init__(self): ...",
        "class build:\n    def __new__(cls, **given): ...",
        "@dataclass\nclass build: ...",
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
        "if True:\n    build = None\nelse:\n    from fast import build",
        "build = None\ntry:\n    from fast import build\nexcept ImportError:\n    pass",
        "@gives_keras_and_shapes\ndef build(num_classes): ...",
    ],
)
def test_a_possible_builder_passes_without_being_imported(source: str, write: Write) -> None:
    write(f"import no_such_package_at_all\n{source}\n")
    check(**({"width": 4} if "width" in source else {}))
    assert MODULE not in sys.modules


@pytest.mark.parametrize(
    "parameters",
    [
        "keras, inputs, outputs",
        "keras, input_shape, outputs",
        "outputs, inputs, keras",
        "keras, inputs, num_classes=3",
        "input_shape, num_classes",
        "outputs, inputs, width=3",
        "**told",
        "",
        "keras",
        "width=3",
        "keras, num_classes",
    ],
)
def test_a_builder_may_take_any_of_the_data_arguments(parameters: str, write: Write) -> None:
    write(f"def build({parameters}): ...")
    target.check(ModelConfig(f"{MODULE}.build"))


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("", ("has no 'build'", "no function")),
        (f"def biuld({GIVEN}): ...", ("has no 'build'", "it defines biuld", "did you mean biuld?")),
        ("build = 3", ("build in target_of_a_user is not callable",)),
        ("build: int = 3", ("not callable",)),
        ("build = [1, 2]", ("not callable",)),
        ("build = {}", ("not callable",)),
        ("def build(keras, shape, classes): ...", ("this one takes keras, shape, classes", "def build(keras, input")),
        ("from os import abort as build", ("this one takes nothing",)),
        ("class build:\n    def __init__(self, width): ...", ("this one takes width",)),
        ("class Base:\n    def __init__(self, width): ...\nclass build(Base): ...", ("this one takes width",)),
        ("build = lambda x: x", ("this one takes x",)),
        ("def make(width): ...\nbuild = make", ("this one takes width",)),
        ("import json as build", ("is not callable",)),
        ("from json import decoder as build", ("is not callable",)),
        ("from os import system as build", ("this one takes command",)),
        ("def build(keras, /, input_shape, num_classes): ...", ("parameter keras is positional-only",)),
        (f"def build(x, /, {GIVEN}): ...", ("parameter x is positional-only",)),
        ("def build(:\n", ("target_of_a_user.py must parse", "line 1")),
        (f"build = 3\ndef build({GIVEN}): ...\nbuild = 'no'", ("not callable",)),
    ],
)
def test_an_object_that_is_no_builder_is_rejected(source: str, parts: tuple[str, ...], write: Write) -> None:
    write(source)
    message = refused()
    assert message.startswith(f"model._target_={MODULE}.build: ")
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
        ("no_such_package_at_all.inner.build", "there is no module no_such_package_at_all;"),
        ("json.decoder.no_such.build", "there is no module json.decoder.no_such;"),
    ],
)
def test_a_path_to_nothing_is_rejected(path: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        target.check(ModelConfig(path))
    assert str(caught.value).startswith("model._target_=")
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("os.system", "this one takes command"),
        ("posix.system", "this one takes command"),
        ("builtins.exec", "this one takes"),
        ("builtins.print", "this one takes"),
        ("builtins.eval", "this one takes"),
        ("builtins.dict", "no Python source that tells what dict takes"),
        ("itertools.chain", "no Python source that tells what chain takes"),
        ("os.path.join", "this one takes a"),
        ("os.nosuch", "has no 'nosuch'"),
        ("os.path", "path in os is not callable"),
        ("shutil.rmtree", "this one takes path"),
        ("subprocess.Popen", "this one takes args"),
        ("json.JSONDecoder", "a builder takes keras, inputs"),
        ("os.abort", "this one takes nothing"),
        ("json.scanner", "scanner"),
        ("_ctypes_test.func", "no Python source"),
    ],
)
def test_a_library_function_that_builds_no_model_is_rejected_unimported(path: str, part: str) -> None:
    loaded = set(sys.modules)
    with pytest.raises(ConfigError) as caught:
        target.check(ModelConfig(path))
    assert str(caught.value).startswith(f"model._target_={path}: ")
    assert part in str(caught.value)
    assert set(sys.modules) == loaded


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in a package; importing either fails."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for folder in ("outer", "outer/inner"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "space" / "within").mkdir(parents=True)
    importlib.invalidate_caches()
    return tmp_path


def test_a_module_in_a_package_is_found_without_importing_the_package(package: Path) -> None:
    (package / "outer" / "inner" / "models.py").write_text(f"def build({GIVEN}, width): ...")
    (package / "space" / "within" / "models.py").write_text(f"def build({GIVEN}, width): ...")
    for path in ("outer.inner.models.build", "space.within.models.build"):
        target.check(ModelConfig(path, {"width": 3}))
        with pytest.raises(ConfigError, match=r"\+model.width="):
            target.check(ModelConfig(path))
    for path, missing in [("outer.nope.build", "outer.nope"), ("outer.nope.more.build", "outer.nope")]:
        with pytest.raises(ConfigError, match=rf"there is no module {missing};"):
            target.check(ModelConfig(path))


@pytest.mark.parametrize(
    "line",
    [
        "from .inner.models import build",
        "from outer.inner.models import build",
        "from .inner.models import *",
        "from .inner.models import make as build",
        "from .inner import build",
        "from .inner.models import make\nbuild = make",
        "try:\n    from .inner.models import *\nfinally:\n    pass",
    ],
)
def test_a_name_is_followed_to_its_definition(package: Path, line: str) -> None:
    (package / "outer" / "__init__.py").write_text(f"{line}\nraise SystemExit('imported')")
    (package / "outer" / "inner" / "__init__.py").write_text("from .models import *\nraise SystemExit('imported')")
    (package / "outer" / "inner" / "models.py").write_text(f"def build({GIVEN}, width): ...\nmake = build\n")
    target.check(ModelConfig("outer.build", {"width": 3}))
    with pytest.raises(ConfigError, match=r"outer\.build takes width"):
        target.check(ModelConfig("outer.build", {"widht": 3}))


def test_a_cycle_of_imports_ends(package: Path) -> None:
    (package / "outer" / "__init__.py").write_text("from .inner import build\n")
    (package / "outer" / "inner" / "__init__.py").write_text("from outer import build\n")
    target.check(ModelConfig("outer.build"))
    (package / "outer" / "inner" / "__init__.py").write_text("from outer import *\nfrom . import *\n")
    (package / "outer" / "__init__.py").write_text("a = b\nb = a\nfrom .inner import *\nfrom . import *\n")
    for name in ("a", "nosuch"):
        target.check(ModelConfig(f"outer.{name}"))


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


def test_a_builder_with_keyword_options_accepts_any_option(write: Write) -> None:
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
        ("int | list[str]", ["relu"]),
        ("int | list[float]", [0.5]),
        ("list[int] | list[float]", [0.5]),
        ("list[int] | Whatever", ["text"]),
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
def test_a_value_of_another_type_is_rejected_with_the_annotation(annotation: str, value: Any, write: Write) -> None:
    write(f"def build({GIVEN}, option: {annotation} = None): ...")
    message = refused(option=value)
    assert message.startswith("model.option=")
    assert f"must be of type {annotation}" in message


@pytest.mark.parametrize("value", [[0], [8, -1]])
def test_a_list_of_sizes_below_1_is_rejected(value: list[int], write: Write) -> None:
    write(f"def build({GIVEN}, option: list[int] = None): ...")
    assert "at least 1" in refused(option=value)


def test_a_single_integer_may_be_0(write: Write) -> None:
    write(f"def build({GIVEN}, option: int = 5): ...")
    target.check(ModelConfig(f"{MODULE}.build", {"option": 0}))


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
        f"class Model:\n    def make(self, {GIVEN}): return num_classes\nbuild = Model().make",
        "from dataclasses import dataclass\n@dataclass\nclass Model:\n    keras: str\n    input_shape: tuple\n"
        "    num_classes: int\ndef __getattr__(name): return lambda **given: Model(**given).num_classes",
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
        (
            "def other(f): return f\n@other\ndef build(keras): open('ran', 'w')",
            "it takes keras, but a builder is",
        ),
        ("import os\ndef __getattr__(name): return os.system", "it takes command"),
        ("build = [dict][0]", "its signature can't be read"),
        ("class Odd:\n    def __call__(self): open('ran', 'w')\nbuild = Odd()", "it takes nothing"),
    ],
)
def test_a_callable_with_other_parameters_is_rejected_and_not_called(
    source: str, part: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"model\._target_={MODULE}\.build: .*({part})"):
        _is_called(source, write)
    assert not (tmp_path / "ran").exists()


def test_load_imports_the_builder(write: Write) -> None:
    write(f"def build({GIVEN}):\n    return num_classes\n")
    assert target.load(f"{MODULE}.build")(None, (1, 1, 1), 7) == 7


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("raise OSError('two\\nlines')", ("its module can't be imported (OSError: two lines)", "fix that module")),
        ("import no_such_package_at_all", ("ModuleNotFoundError", "no_such_package_at_all")),
        ("", ("AttributeError", "build")),
        ("build = 3", ("build is not callable",)),
    ],
)
def test_load_rejects_what_only_the_import_shows(source: str, parts: tuple[str, ...], write: Write) -> None:
    write(source)
    with pytest.raises(ConfigError) as caught:
        target.load(f"{MODULE}.build")
    for part in parts:
        assert part in str(caught.value)
