"""Whether a run's process still runs is said only where it can be seen."""

import os
import platform
import subprocess
import sys

import pytest

from runner.cluster import process
from runner.cluster.process import BOOT, HOST, MACHINE, PID, identity, is_gone
from tests.proc import needs_own_proc


def _tags_of(child):
    boot, namespace, _ = identity()[BOOT].split("/")
    return {HOST: platform.node(), PID: str(child.pid), BOOT: f"{boot}/{namespace}/{process._start_time(child.pid)}"}


@pytest.fixture
def child():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child
    child.kill()
    child.wait()


@needs_own_proc
def test_an_ended_process_is_gone_reaped_or_not(child):
    assert not is_gone(identity())
    assert not is_gone({})
    tags = _tags_of(child)
    assert not is_gone(tags)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(tags)
    child.wait()
    assert is_gone(tags)


@needs_own_proc
def test_a_process_that_took_over_the_number_is_not_the_runs(child):
    tags = _tags_of(child)
    tags[BOOT] = tags[BOOT].rpartition("/")[0] + "/1"
    assert is_gone(tags)


@pytest.mark.parametrize(
    "change",
    [
        {HOST: "another-host"},
        {PID: "no number"},
        {BOOT: ""},
        {BOOT: "//"},
        {BOOT: "another-boot/pid:[1]/5"},  # a container of that name, elsewhere
        {BOOT: identity()[BOOT].partition("/")[0] + "/pid:[77]/5"},  # another container of this machine
    ],
)
def test_what_cannot_be_seen_counts_as_there(child, change):
    tags = _tags_of(child)
    child.kill()
    child.wait()
    assert not is_gone({**tags, **change})


@pytest.mark.parametrize(
    ("recorded", "here", "is_known"),
    [("id", "id", True), (None, "id", False), ("", "", False), ("other", "id", False)],
)
def test_a_process_of_another_boot_is_gone_if_the_machine_is_this_one(monkeypatch, recorded, here, is_known):
    monkeypatch.setattr(process, "_link", lambda _path: process._INITIAL_PID_NAMESPACE)
    monkeypatch.setattr(process, "_machine_id", lambda: here)
    tags = {HOST: platform.node(), PID: "5", BOOT: f"another/{process._INITIAL_PID_NAMESPACE}/5"}
    assert is_gone(tags if recorded is None else {**tags, MACHINE: recorded}) is is_known


@pytest.mark.parametrize("text", [None, "", "uninitialized\n", "0123456789abcdef\n"])
def test_the_machines_id_is_stored_as_a_digest_only(monkeypatch, tmp_path, text):
    path = tmp_path / "machine-id"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(process, "_MACHINE_ID", path)
    has_id = text is not None and text.startswith("0")
    assert len(process._machine_id()) == (16 if has_id else 0)
    assert process._machine_id() != "0123456789abcdef"
