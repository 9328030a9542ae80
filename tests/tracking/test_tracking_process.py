import os
import platform
import subprocess
import sys

import pytest

from runner.tracking import process
from runner.tracking.process import BOOT, HOST, PID, identity, is_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are told apart by /proc")


def _tags_of(child):
    start = process._started(child.pid)
    boot, namespace, _ = identity()[BOOT].split("/")
    return {HOST: platform.node(), PID: str(child.pid), BOOT: f"{boot}/{namespace}/{start}"}


@pytest.fixture
def child():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.wait()


def test_this_process_is_there():
    assert not is_gone(identity())


def test_another_live_process_is_there(child):
    assert not is_gone(_tags_of(child))


def test_an_ended_process_is_gone(child):
    tags = _tags_of(child)
    child.kill()
    child.wait()
    assert is_gone(tags)


def test_an_ended_process_that_nobody_reaped_is_gone(child):
    tags = _tags_of(child)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(tags)


def test_a_process_that_took_over_the_number_is_not_the_runs(child):
    tags = _tags_of(child)
    tags[BOOT] = tags[BOOT].rpartition("/")[0] + "/1"
    assert is_gone(tags)


@pytest.mark.parametrize(
    "change",
    [
        {HOST: "another-host"},
        {PID: "no number"},
        {PID: ""},
        {BOOT: ""},
        {BOOT: "//"},
        {BOOT: "another-boot/pid:[1]/5"},  # a container of that name, elsewhere
    ],
)
def test_what_cannot_be_seen_counts_as_there(child, change):
    tags = _tags_of(child)
    child.kill()
    child.wait()
    assert not is_gone({**tags, **change})


def test_a_process_of_another_container_counts_as_there(child):
    tags = _tags_of(child)
    child.kill()
    child.wait()
    boot, _, start = tags[BOOT].split("/")
    assert not is_gone({**tags, BOOT: f"{boot}/pid:[77]/{start}"})


def test_a_process_from_before_the_machines_last_start_is_gone(monkeypatch):
    monkeypatch.setattr(process, "_namespace", lambda: process._FIRST_NAMESPACE)
    assert is_gone({**identity(), BOOT: f"earlier/{process._FIRST_NAMESPACE}/5"})


def test_without_tags_nothing_is_known():
    assert not is_gone({})
