from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.host import imports

NAMES = ("own_first", "own_second", "own_library", "own_library.inner")


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Writes two modules of a user's, and an installed library that moves the streams as it is imported."""
    installed = tmp_path / "site-packages"
    (installed / "own_library").mkdir(parents=True)
    moves = "import random, numpy\nrandom.random()\nnumpy.random.random()\n"
    (installed / "own_library" / "__init__.py").write_text(moves + "from . import inner\n")
    (installed / "own_library" / "inner.py").write_text(moves + "DRAWN = random.random()\n")
    draws = "import random\nimport numpy as np\n{}DRAWN = random.random(), np.random.random()\n"
    (tmp_path / "own_first.py").write_text(draws.format("import own_library\n"))
    (tmp_path / "own_second.py").write_text(draws.format("random.random()\nimport own_first\n"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    imports._installed.cache_clear()
    forget()
    yield
    forget()
    imports._installed.cache_clear()


def forget() -> None:
    for name in NAMES:
        sys.modules.pop(name, None)


def drawn(name: str, seed: int = 1) -> Any:
    imports.watch(seed)
    return importlib.import_module(name).DRAWN


def test_what_a_users_module_draws_depends_on_the_seed_and_its_name_alone() -> None:
    first = drawn("own_first")
    forget()
    random.random()
    # The module is imported by another one, which has drawn, and the library is imported for the first time again.
    second = drawn("own_second")
    assert first == importlib.import_module("own_first").DRAWN
    assert second != first
    sys.modules.pop("own_first")
    # Now the library is there already.
    assert drawn("own_first") == first
    forget()
    assert drawn("own_first", seed=2) != first


def test_the_callers_streams_go_on_as_if_nothing_had_been_imported() -> None:
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    drawn("own_second")
    with imports.seeded(3):
        random.random()
        np.random.random()
    assert (random.random(), np.random.random()) == expected


def test_a_function_is_called_once_when_a_library_is_executed_and_the_module_is_as_any_other() -> None:
    imports.watch(1)
    called: list[bool] = []
    imports.call_after_import("own_library", lambda: called.append(hasattr(sys.modules["own_library"], "inner")))
    assert importlib.util.find_spec("own_library") is not None
    assert called == []
    library = importlib.import_module("own_first").own_library
    importlib.reload(library)
    assert called == [True]
    assert type(library.__loader__).__name__ == "SourceFileLoader"
    assert library.__spec__.loader is library.__loader__
    imports.call_after_import("own_library", lambda: called.append(False))
    assert called == [True, False], "it is imported already"
