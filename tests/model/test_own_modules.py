"""Random states of a user's modules."""

import importlib
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.config import import_path
from runner.errors import ConfigError
from runner.model import own_modules
from tests import forks


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Writes two modules of a user's, one of which imports the other, and an installed library that draws."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "own_library.py").write_text("import random, numpy\nrandom.random()\nnumpy.random.random()\n")
    draws = "import random\nimport numpy as np\n{}DRAWN = random.random(), np.random.random()\n"
    (tmp_path / "own_first.py").write_text(draws.format("import own_library\n"))
    (tmp_path / "own_second.py").write_text(draws.format("random.random()\nimport own_first\n"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    forget()
    yield
    forget()


def forget() -> None:
    for name in ("own_first", "own_second", "own_library", "keras"):
        sys.modules.pop(name, None)


def drawn(name: str, seed: int = 1) -> Any:
    own_modules.watch(seed)
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
    with own_modules.seeded(3):
        random.random()
        np.random.random()
    assert (random.random(), np.random.random()) == expected


def test_a_module_is_as_any_other_afterwards() -> None:
    drawn("own_first")
    module = sys.modules["own_first"]
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__


def test_a_module_that_trains_at_its_import_is_stopped_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "keras.py").write_text("class Model:\n    def fit(self):\n        return 3\n")
    (tmp_path / "own_first.py").write_text("import keras\nnet = keras.Model()\n\ndef build(): return net\nnet.fit()\n")
    own_modules.watch(1)
    with pytest.raises(
        ConfigError, match=r"trains a model when it is imported \(.*own_first.py:5: net.fit\(\)\); move"
    ):
        import_path.load("own_first.build", "model._target_")
    # Only there: what the module leads to may train, as every other code.
    assert sys.modules["keras"].Model().fit() == 3


def test_a_users_module_is_the_first_to_need_numpys_generator(tmp_path: Path) -> None:
    code = "from runner.model import own_modules; own_modules.watch(1); import own_first; print(own_first.DRAWN)"
    path = os.pathsep.join([str(forks.ROOT), str(tmp_path), str(tmp_path / "site-packages")])
    done = forks.python("-c", code, folder=tmp_path, PYTHONPATH=path)
    assert done.stdout.strip() == str(drawn("own_first"))
