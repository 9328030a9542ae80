"""`/proc` may list processes by the numbers of an outer namespace; nothing of another process is taken for ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.host import proc
from tests.proc import needs_own_proc

ROOT = Path(__file__).parents[2]
INSIDE = """
import os, subprocess, sys
from runner.host import proc
from runner.tracking import process
import psutil
from tests.proc import children_of, is_there
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(proc.is_of_own_namespace(), proc.own_pid() != os.getpid(), process._start_time(os.getpid()) == "")
print(is_there(child.pid), children_of(os.getpid()) == [child.pid])
child.communicate(b"\\n")
print(is_there(child.pid), psutil.Process(proc.own_pid()).memory_info().rss > 0)
"""


@needs_own_proc
def test_a_process_of_the_outermost_namespace_has_its_own_number() -> None:
    assert (proc.own_pid(), proc.is_of_own_namespace()) == (os.getpid(), True)


def test_numbers_of_an_outer_namespace_are_told_from_ours() -> None:
    unshare = shutil.which("unshare")
    inside = [str(unshare), "--pid", "--fork"]
    if unshare is None or subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no process namespace can be made here")
    done = subprocess.run(
        [*inside, sys.executable, "-c", INSIDE], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.splitlines() == ["False True True", "True True", "False True"], done.stderr[-2000:]
