"""A forked program is what a real start would have made of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest

from runner.tracking import mlflow_import
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
# A fork server with nothing imported, so that a test of the processes alone costs little.
BARE = """
import os, signal, socket, subprocess, sys
from tests import forks

ours, its = socket.socketpair()
text = "from tests import fork_server; fork_server.preload = lambda library: None; fork_server.main()"
server = subprocess.Popen([sys.executable, "-c", text, forks.JAX, str(its.fileno())], pass_fds=[its.fileno()])
its.close()
forks._servers[forks.JAX] = forks.Server(forks.JAX, ours, os.environ)


def output(program, **options):
    return forks.run([sys.executable, "-c", program], library=forks.JAX, check=True, **options).stdout
"""
# Leads a session, so nothing above it is in another group of that session: its process group is orphaned. A member of
# the group is stopped while a program with a group of its own starts another one, and ends.
STOPPED_IN_AN_ORPHANED_GROUP = """
stopped = subprocess.Popen([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"])
os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
starts_another = '''
import sys
from tests import forks
print(forks.run([sys.executable, "-c", "print(1)"], library=forks.JAX).stdout)
'''
try:
    printed = output(starts_another, process_group=0)
    is_stopped = os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
finally:
    stopped.kill()
    stopped.wait()
print(printed.split(), is_stopped)
"""
SIGNALED_AS_A_GROUP = """
program = '''
import os, signal, sys
from tests import forks

numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
came = []
for number in numbers:
    signal.signal(number, lambda number, frame: came.append(number))
for number in numbers:
    os.killpg(0, number)
another = (
    "import os, signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), os.getpgid(0) == os.getpgid(os.getppid()))"
)
print(sorted(came), forks.run([sys.executable, "-c", another], library=forks.JAX).stdout)
'''
print(output(program, SETTING))
"""
LOADED = "import sys; print(sorted({'tensorflow', 'tf_keras', 'jax', 'keras'} & set(sys.modules)))"


@pytest.mark.parametrize("start", ["-c", "-m"])
@pytest.mark.parametrize("library", [forks.TENSORFLOW, forks.JAX])
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


def test_what_imports_the_other_library_ends_with_an_error() -> None:
    text = "from runner.host.libraries import load; load(['jax', 'keras'], without=())"
    done = forks.run([sys.executable, "-c", text], library=forks.TENSORFLOW)
    assert done.returncode == 1
    assert "name the library that it imports" in done.stderr


@pytest.mark.parametrize("changed", [{"TF_CPP_MIN_LOG_LEVEL": "0"}, {"PYTHONHASHSEED": "1"}, {"HOME": "/nowhere"}])
def test_what_libraries_read_as_they_are_imported_needs_a_real_start(changed: dict[str, str]) -> None:
    done = forks.run([sys.executable, "-c", LOADED], library=forks.TENSORFLOW, env=os.environ | changed)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("library", [forks.TENSORFLOW, forks.JAX])
def test_what_the_product_itself_sets_needs_no_real_start(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in [key for key in os.environ if key.startswith(("MLFLOW_", "TF_"))]:
        monkeypatch.delenv(key)
    ours, _ = socket.socketpair()
    server = forks.Server(library, ours, os.environ)
    with mock.patch.dict(os.environ):
        mlflow_import.set_environment()
        assert server.accepts(os.environ)


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


def test_its_own_children_are_forked_too() -> None:
    text = "import subprocess, sys; from tests import forks; "
    text += f"print(forks.run([sys.executable, '-c', {LOADED!r}], library='tensorflow').stdout, subprocess.Popen)"
    done = forks.run([sys.executable, "-c", text], library=forks.TENSORFLOW, cwd=forks.ROOT)
    assert "['tensorflow', 'tf_keras']" in done.stdout
    assert "tests.forks.Popen" in done.stdout, "in place of subprocess's, for the product"


def _in_a_session_of_its_own(text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BARE + text]
    return subprocess.run(
        command, cwd=forks.ROOT, start_new_session=True, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_end_of_a_program_with_its_own_group_sends_no_hangup_to_an_orphaned_group() -> None:
    done = _in_a_session_of_its_own(STOPPED_IN_AN_ORPHANED_GROUP)
    assert (done.returncode, done.stdout, done.stderr) == (0, "['1'] True\n", "")


@pytest.mark.parametrize("setting", ["process_group=0", "start_new_session=True"])
def test_a_signal_to_a_programs_group_leaves_its_fork_server_alive(setting: str) -> None:
    done = _in_a_session_of_its_own(SIGNALED_AS_A_GROUP.replace("SETTING", setting))
    numbers = sorted(int(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == f"{numbers} set() True"


def test_it_can_be_killed() -> None:
    process = forks.Popen([sys.executable, "-c", "import time; time.sleep(60)"], library=forks.TENSORFLOW)
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.kill()
    assert process.wait(10) == -9
    assert time.monotonic() - began < 10
