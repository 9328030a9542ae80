"""What all tests share."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests import forks, hydra_reads

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # what a run says and records is the same on a machine with GPUs
os.environ.setdefault("RUNNER_CLUSTER_SECRET", "what the processes of the tests share")  # not a file in the home
# Compiled programs and copies of a session are its own; pytest's workers inherit the folder.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="runner-tests-cache-")
os.environ["XLA_FLAGS"] = forks.SLOW_CODE  # `tests.engine.jax_runs.FAST_CODE` is an environment without
forks.start_environment.update(os.environ)
for number in (signal.SIGHUP, signal.SIGINT):  # as what starts with nohup, or in the background, inherits them ignored
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL if number is signal.SIGHUP else signal.default_int_handler)

# Machines that run tests are shared and noisy: how long an example took says nothing about it.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")

hydra_reads.remember()
gc.disable()  # as tests are collected, nothing of what is made is garbage

SPOILED = pytest.StashKey[bool]()

# In minutes of work each; see `pytest_collection_modifyitems`.
LONGEST = [
    "tests/docs/test_pages.py",
    "tests/parity/test_parity.py",
    "tests/config/test_refusals.py",
    "tests/config/test_config.py",
    "tests/campaign/test_mutations.py",
    "tests/run/test_presets.py",
    "tests/sweep/test_sweep.py",
    "tests/verify/test_verify.py",
    "tests/run/test_runs.py",
    "tests/export/test_commands.py",
]


def pytest_unconfigure() -> None:
    """Closes the session's connections and removes its caches."""
    for server in forks.servers.values():
        server.connection.close()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)


def pytest_collection_finish() -> None:
    """Stops a session in which a test file imports TensorFlow or JAX into pytest's own process.

    They change the environment, so that no program could be forked (see `tests.forks`), and all tests after it would
    take three times as long and start what they test in another way.
    """
    gc.freeze()  # a collection in a test need not look at all tests
    gc.enable()
    reason = forks.why_all_starts_are_real()
    if reason is not None:
        raise pytest.UsageError(f"as tests are collected: {reason}; import it in a program that the test starts")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fails the test after which no program can be forked any more, for the same reason."""
    result = yield
    reason = forks.why_all_starts_are_real()
    if reason is not None and not item.session.stash.get(SPOILED, False):
        item.session.stash[SPOILED] = True
        pytest.fail(f"left in pytest's own process: {reason}; import it in a program that the test starts")
    return result


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the longest files first where workers share them, then those of slow tests: no worker is left waiting."""
    if not hasattr(config, "workerinput"):
        return
    files = [item.nodeid.partition("::")[0] for item in items]
    slow = {file for file, item in zip(files, items, strict=True) if item.get_closest_marker("slow")}
    rank = {file: LONGEST.index(file) if file in LONGEST else len(LONGEST) + (file not in slow) for file in files}
    items.sort(key=lambda item: rank[item.nodeid.partition("::")[0]])
