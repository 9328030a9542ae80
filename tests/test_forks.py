"""A forked program is what a real start would have made of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

from tests import conftest, forks

OFF = sys.platform != "linux" or os.environ.get(forks.REAL[0]) == forks.REAL[1]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(OFF, reason="every program is started for real")]

SEEN = """
import json, os, random, signal, sys, threading
import numpy as np
given = sys.stdin.read()
print(json.dumps({
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "arguments": sys.argv,
    "path": [path for path in sys.path if path],
    "main": [__name__, sys.modules["__main__"].__dict__ is globals()],
    "signals": {number: str(signal.getsignal(number)) for number in (1, 2, 13, 15, 17)},
    "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "threads": threading.active_count(),
    "streams": [[s.fileno(), s.encoding, s.errors, s.line_buffering] for s in (sys.stdin, sys.stdout, sys.stderr)],
    "session": os.getsid(0) == os.getpid(),
    "group": os.getpgid(0) == os.getpgid(os.getppid()),
    "parent": os.getppid(),
    "given": given,
}))
print("told", file=sys.stderr)
sys.exit(7)
"""
DRAWS = "import random, uuid, numpy as np; print(random.random(), np.random.random(), uuid.uuid4())"
LOADED = "import sys; print(sorted({'tensorflow', 'tf_keras', 'jax', 'keras'} & set(sys.modules)))"


@pytest.mark.parametrize(("library", "start"), [(forks.TENSORFLOW, "-m"), (forks.JAX, "-c")])
def test_it_sees_what_a_real_start_gives(tmp_path: Path, library: str, start: str) -> None:
    (tmp_path / "seen_module.py").write_text(SEEN)
    command = [sys.executable, start, SEEN if start == "-c" else "seen_module", "one", "two words"]
    environment = os.environ | {"PYTHONPATH": str(forks.ROOT), "XLA_FLAGS": "", "OWN": "1"}
    real = subprocess.run(
        command, cwd=tmp_path, env=environment, input="text", capture_output=True, text=True, check=False
    )
    forked = forks.run(command, library=library, cwd=tmp_path, env=environment, given="text")
    assert (forked.returncode, forked.stderr) == (real.returncode, real.stderr) == (7, "told\n")
    assert json.loads(forked.stdout) == json.loads(real.stdout)


def test_it_has_the_one_library_and_draws_of_its_own(tmp_path: Path) -> None:
    expected = {forks.TENSORFLOW: ["tensorflow", "tf_keras"], forks.JAX: ["jax", "keras"]}
    for library, names in expected.items():
        done = forks.run([sys.executable, "-c", LOADED], library=library, cwd=tmp_path)
        assert done.stdout.strip() == str(names)
    drawn = [forks.run([sys.executable, "-c", DRAWS], library=forks.JAX).stdout.split() for _ in range(2)]
    assert not set(drawn[0]) & set(drawn[1])


@pytest.mark.parametrize("changed", [{"TF_CPP_MIN_LOG_LEVEL": "0"}, {"PYTHONHASHSEED": "1"}])
def test_what_libraries_read_as_they_are_imported_needs_a_real_start(changed: dict[str, str]) -> None:
    done = forks.run([sys.executable, "-c", LOADED], library=forks.TENSORFLOW, env=os.environ | changed)
    assert done.stdout.strip() == "[]"


def test_a_session_does_not_go_on_where_nothing_can_be_forked_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    conftest.pytest_collection_finish()
    with monkeypatch.context() as changed:
        changed.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
        assert forks.why_all_starts_are_real() == "TF_CPP_MIN_LOG_LEVEL changed in the environment"
    monkeypatch.setitem(sys.modules, "keras", ModuleType("keras"))
    with pytest.raises(pytest.UsageError, match="as tests are collected: keras imported; import it in a program"):
        conftest.pytest_collection_finish()

    teardown = conftest.pytest_runtest_teardown(mock.Mock(session=mock.Mock(stash=pytest.Stash())))
    next(teardown)
    with pytest.raises(pytest.fail.Exception, match="left in pytest's own process: keras imported"):
        next(teardown)
