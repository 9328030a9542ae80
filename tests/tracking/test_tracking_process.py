import os
import platform
import subprocess
import sys

import pytest

from runner.tracking import process
from runner.tracking.process import BOOT, HOST, MACHINE, PID, Boot, identity, is_gone
from tests.proc import needs_own_proc

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are told apart by /proc")


def _tags_of(child):
    start = process._start_time(child.pid)
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


def test_an_ended_process_is_gone(child):
    tags = _tags_of(child)
    child.kill()
    child.wait()
    assert is_gone(tags)


@needs_own_proc
def test_an_ended_process_that_nobody_reaped_is_gone(child):
    tags = _tags_of(child)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
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


@pytest.fixture
def machine(monkeypatch):
    """Lets this machine have an id, and this process be outside of containers."""

    def describe(text):
        monkeypatch.setattr(process, "_namespace", lambda: process._INITIAL_PID_NAMESPACE)
        monkeypatch.setattr(process, "_machine_id", lambda: text)

    return describe


def _of_another_boot(**more):
    """Tags of a process of a machine of this name, in another boot."""
    return {HOST: platform.node(), PID: "5", BOOT: f"another/{process._INITIAL_PID_NAMESPACE}/5", **more}


def test_a_process_from_before_the_machines_last_start_is_gone(machine):
    machine("id")
    assert is_gone(_of_another_boot(**{MACHINE: "id"}))


@pytest.mark.parametrize(("recorded", "here"), [(None, "id"), ("", "id"), ("other", "id"), ("", "")])
def test_a_process_of_another_boot_counts_as_there_without_proof_that_the_machine_is_this_one(machine, recorded, here):
    machine(here)
    assert not is_gone(_of_another_boot(**({} if recorded is None else {MACHINE: recorded})))


@pytest.mark.parametrize("text", [None, "", "uninitialized\n"])
def test_a_machine_without_an_id_has_none(monkeypatch, tmp_path, text):
    path = tmp_path / "machine-id"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(process, "_MACHINE_ID", path)
    assert process._machine_id.__wrapped__() == ""


def test_the_machines_id_is_stored_as_a_digest_only(monkeypatch, tmp_path):
    (tmp_path / "machine-id").write_text("0123456789abcdef\n")
    monkeypatch.setattr(process, "_MACHINE_ID", tmp_path / "machine-id")
    digest = process._machine_id.__wrapped__()
    assert len(digest) == 16
    assert digest != "0123456789abcdef"


@pytest.mark.parametrize("tag", ["id/pid:[1]/5", "//", "id//5"])
def test_a_boots_tag_is_read_as_it_was_made(tag):
    assert Boot.from_tag(tag).tag == tag


def test_without_tags_nothing_is_known():
    assert not is_gone({})
