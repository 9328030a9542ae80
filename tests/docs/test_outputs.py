"""Every output block of a page is compared with what is printed, and a wrong line in one is found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from runner.config import search_path
from runner.engine import devices
from runner.errors import OutOfMemoryError
from runner.plan import exhausted
from runner.plan.base import Total
from runner.training import goodput
from tests import forks
from tests.docs import following, outputs, pages
from tests.docs.outputs import Output
from tests.docs.pages import ROOT
from tests.plan import test_exhausted
from tests.training import test_goodput

# Output that no test can print -> what it needs. A new one must be listed here.
NEEDS = {"h200": ["a GPU"]}
# Page -> number of blocks that are lists, formulas, or parts of a command line.
LISTINGS = {"architecture": 1, "how_verify_works": 3, "keras_hub": 1, "several_processes": 1}


def all_outputs() -> list[Output]:
    return [output for page in pages.names() for output in outputs.of(page)]


def test_every_output_of_a_page_is_compared_with_what_is_printed() -> None:
    assert [f"{one.page}: {one.lines[0]}" for one in all_outputs() if not outputs.comparison(one)] == []
    assert outputs.unrun() == NEEDS
    assert outputs.listings() == LISTINGS


def test_no_list_is_an_output() -> None:
    texts = [text for page in pages.names() for kind, text in pages.blocks(page) if kind == "text"]
    begins = ("$ ", "error: ", "warning: ", "note: ", *outputs.VERDICTS_OF_PLANS)
    assert [text for text in texts if any(line.startswith(begins) for line in text.splitlines())] == []


def test_fences_have_no_other_kinds() -> None:
    kinds = {kind.split(" ")[0] for page in pages.names() for kind, _ in pages.blocks(page)}
    assert kinds == {"", "sh", "python", "yaml", "text"}


def test_every_table_of_the_comparison_names_blocks_that_pages_show() -> None:
    for table in (outputs.NUMBERS, outputs.ELSEWHERE):
        for page, begins in table.items():
            firsts = [output.first for output in outputs.of(page)]
            for begin in begins:
                assert [first for first in firsts if first.startswith(begin)], f"{page}: {begin}"
    shown = Counter(output.page for output in all_outputs() if outputs.comparison(output) == "plan")
    assert shown == following.PLANS


# The comparison itself.


def missing(shown: str, printed: str, page: str = "runs") -> list[str]:
    return outputs.missing_in(Output(page, shown), printed)


def test_a_line_that_no_command_printed_is_found() -> None:
    printed = "Resuming run 3f2a at step 33\n22 steps\n"
    assert missing("Resuming run ... at step 33\n...\n22 steps\n", printed) == []
    assert missing("Resuming run ... at step 34\n22 steps\n", printed) == ["Resuming run ... at step 34"]
    assert missing("Resuming run 3f2a\n", printed) == ["Resuming run 3f2a"]
    assert missing("$ python -m runner \\\n  resume=latest\n22 steps\n", printed) == []


def test_ids_times_paths_and_widths_of_tables_may_differ() -> None:
    folder = "outputs/runs/2026-11-26_05-20-23-39545b0f"
    printed = (
        "preparing mnist ... 12.5 s\n"
        f"run {'1' * 32} in out-3-runner/config.yaml, /tmp/x/out-3-runner\n"
        "kernel differs by 2.79e-09 (2.3e-07 of it)\n"
        "─────────\na    b\n"
    )
    shown = (
        "preparing mnist ... 0.4 s\n"
        f"run {'2' * 32} in {folder}/config.yaml, {folder}\n"
        "kernel differs by 2.1e-10 (2e-07 of it)\n"
        "───\na b\n"
    )
    assert missing(shown, printed) == []
    for wrong in ("preparing digits ... 0.4 s", "preparing mnist ... 0.4 ms", "bias differs by 2.1e-10 (2e-07 of it)"):
        assert missing(wrong, printed) == [wrong]


def test_numbers_are_compared_except_in_blocks_that_the_table_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "train 71 148,144 2.89\nd1/kernel -3 0.5% 2x\n"
    printed = "train 18 57,754 1\nd1/kernel 4 12% 2x\n"
    assert missing(shown, printed) == shown.splitlines()
    monkeypatch.setitem(outputs.NUMBERS, "runs", ("train",))
    assert missing(shown, printed) == []
    assert missing(shown.replace("train 71", "train all"), printed) != []
    assert missing(shown.replace("d1/", "d2/"), printed) == ["d2/kernel -3 0.5% 2x"]
    assert missing(shown.replace("2x", "3x"), printed) == ["d1/kernel -3 0.5% 3x"]


def test_an_output_that_no_page_may_have_has_no_comparison() -> None:
    assert outputs.comparison(Output("install", "Collecting keras\n")) == ""
    assert outputs.comparison(Output("index", "verified: all\n")) == ""
    assert outputs.comparison(Output("faq", "error: x=1: unknown key\n")) == ""


@pytest.mark.parametrize("page", ["layouts", "sweeps", "data"])
def test_a_wrong_line_of_a_page_is_missing(page: str) -> None:
    compared = [output for output in outputs.of(page) if outputs.comparison(output) == "commands"]
    printed = "\n".join(output.text.replace("...", "any text") for output in compared)
    assert outputs.missing_lines(page, printed) == []
    last = compared[-1].lines[-1]
    wrong = printed.replace(last.replace("...", "any text"), "another line")
    assert outputs.missing_lines(page, wrong) == [last]


def test_the_commands_of_an_output_are_read_with_their_exit_codes() -> None:
    shown = (
        "$ python -m runner --version | cat\nrunner 1\n$ python -m runner a=b\nerror: a=b: no\n"
        "$ python -m runner -m a=1,2\njob 1, a=2: failed after 2 s\n"
    )
    commands = pages.shown_commands(shown)
    assert [(command.arguments, command.code) for command in commands] == [
        (["--version"], 0),
        (["a=b"], 2),
        (["-m", "a=1,2"], 1),
    ]


# Outputs of situations that no command of a page makes.


def shown(page: str, begin: str) -> str:
    """Returns the output of a page that begins so."""
    (output,) = [output for output in outputs.of(page) if output.text.startswith(begin)]
    return output.text.rstrip("\n")


def _goodput(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    del tmp_path, monkeypatch
    return str(goodput.line(goodput.of(test_goodput.ATTEMPTS), 10.0, save_seconds=1.0))


def _out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    del tmp_path
    monkeypatch.setattr(devices, "resolve_mesh", lambda config: config.mesh)
    gib = 1 << 30
    run = test_exhausted.attempt(
        parameters=Total(gib, gib, "counted"), activations=Total(64 * gib, 8 * gib, "estimated")
    )
    with pytest.raises(OutOfMemoryError) as raised, exhausted.explained(run):
        raise test_exhausted.ResourceExhaustedError("OOM when allocating tensor with shape[8,8]")
    return "\n".join([f"error: {raised.value}", *raised.value.details])


def _own_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    option = tmp_path / "conf" / "optimizer" / "adam.yaml"
    option.parent.mkdir(parents=True)
    option.write_text("name: adam\n")
    composed = DictConfig({"hydra": {"runtime": {"choices": {"optimizer": "adam"}}}})
    return "\n".join(f"note: {note}" for note in search_path.replaced(composed))


MADE: dict[tuple[str, str], Callable[[Path, pytest.MonkeyPatch], str]] = {
    ("checkpoints", "goodput: "): _goodput,
    ("fit_in_memory", "error: out of memory"): _out_of_memory,
    ("project", "note: "): _own_option,
}
# Those of a run that is interrupted and resumed.
INTERRUPTED = [("checkpoints", "interrupted: "), ("checkpoints", "Resuming run ")]


def test_every_other_output_is_made() -> None:
    named = [(page, begin) for page, begins in outputs.ELSEWHERE.items() for begin in begins]
    assert Counter(named) == Counter([*MADE, *INTERRUPTED])


@pytest.mark.parametrize(("page", "begin"), MADE)
def test_an_output_of_a_situation_is_what_the_runner_prints(
    page: str, begin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = MADE[page, begin](tmp_path, monkeypatch)
    lines, on_page = printed.splitlines(), shown(page, begin).splitlines()
    assert len(lines) == len(on_page), printed
    assert [line for line, one in zip(lines, on_page, strict=True) if not pages.matches(line, one.strip())] == []


@pytest.mark.nightly
def test_an_interrupted_and_a_resumed_run_print_what_the_page_shows(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    digits = [sys.executable, "-m", "runner", "engine=jax", "dataset=digits", "mesh=batch8"]
    # A real start, for the signal.
    interrupted = subprocess.Popen(
        [*digits, "trainer.epochs=100000", "trainer.progress=lines"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert interrupted.stdout is not None
    for line in interrupted.stdout:
        if line.startswith("epoch 2/"):
            break
    interrupted.send_signal(signal.SIGINT)
    printed = interrupted.stdout.read()
    assert interrupted.wait(60) == 128 + signal.SIGINT
    resume = [sys.executable, "-m", "runner", "resume=latest", "trainer.steps=null", "trainer.epochs=8"]
    for words in ([*digits, "trainer.steps=55"], resume):
        done = forks.run(words, library=forks.JAX, cwd=tmp_path, env=environment, timeout=600)
        assert done.returncode == 0, done.stderr
        printed += done.stdout
    for page, begin in INTERRUPTED:
        assert missing(shown(page, begin), printed) == []
