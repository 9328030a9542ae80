"""Follows a page as its reader does: which of its commands a test runs, with what shortened, and what they print."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from tests import forks
from tests.docs import composing, pages, site
from tests.docs.pages import ROOT, Command

# Complete examples: the plot that the run of the page must write, and the engine and mesh that it is run on.
EXAMPLES = {
    "regression": ("predicted.png", "keras_dtensor", "batch8"),
    "multilabel": ("labels.png", "jax", "batch4_model2"),
    "photographs": ("confusion.png", "jax", "batch8"),
    "several_outputs": ("level_predicted.png", "jax", "batch4_model2"),
    "own_dataset": ("confusion.png", "keras_dtensor", "batch4_model2"),
    "own_loss": ("curves.png", "jax", "batch4_model2"),
}


def is_absent(needs: str) -> bool:
    """Returns whether what a command needs is not here, so that no test can run it."""
    module = pages.EXTRAS.get(needs)
    return bool(needs) and (module is None or find_spec(module) is None)


def lacks(command: Command) -> bool:
    """Returns whether a command needs something that is not here."""
    return is_absent(command.needs)


def shown_plans(page: str) -> list[tuple[Command, list[str]]]:
    """Returns (command, lines of its output) of the plans whose output a page shows."""
    outputs = [text.splitlines() for kind, text in pages.blocks(page) if not kind]
    commands = [command for command in pages.commands(page) if "hardware=h100" in command.words]
    fitting = [lines for lines in outputs if lines[0].startswith("fits: ")]
    assert len(commands) == len(fitting), f"{page}: {len(fitting)} outputs of {len(commands)} plans"
    found = list(zip(commands, fitting, strict=True))
    # "With `layout=replicated` the same command prints:"
    replicated = tuple("layout=replicated" if word == "layout=fsdp" else word for word in commands[-1].words)
    too_large = [lines for lines in outputs if lines[0].startswith("does not fit: ")]
    return found + [(replace(commands[-1], words=replicated), lines) for lines in too_large]


# Page -> number of plans whose output it shows; a test of their own runs them.
PLANS = {"choose_layout": 4, "fine_tune": 1, "gpus": 1}
NUMBERED_PLANS = [(page, number) for page, count in PLANS.items() for number in range(count)]


def followed(page: str) -> list[Command]:
    """Returns the commands of a page that its test runs, with those that its outputs begin with."""
    elsewhere = [command.words for command, _ in shown_plans(page)] if page in PLANS else []
    # The errors of these are compared without a process of their own.
    elsewhere += [("python", "-m", "runner", *shlex.split(arguments)) for arguments, _ in pages.shown_errors(page)]
    shown = pages.commands(page, with_shown=True)
    return [command for command in shown if not lacks(command) and command.words not in elsewhere]


# Pages whose output is compared with what their commands print.
QUESTIONS = site.entries("questions")
# Pages that name steps that a shortened run does not reach.
WHOLE = ("checkpoints", "replay", *QUESTIONS)
# The programs of docs/bugs have their own test.
RUN = [page for page in pages.names() if page not in {*EXAMPLES, *QUESTIONS, "bugs"} and followed(page)]


def is_shown(page: str, command: Command, line: str = "") -> bool:
    """Returns whether an output of a page begins with a command, and has a line that begins so."""
    outputs = [text for kind, text in pages.blocks(page) if not kind and f"\n{line}" in text]
    return any(command.words == one.words for text in outputs for one in pages.shown_commands(text))


def shortened(page: str, command: Command) -> list[str]:
    """Returns a command's arguments, with few batches and a short sample.

    A complete example keeps its arguments, and so does a command that an output begins with.
    """
    given = command.arguments
    is_whole = page in WHOLE or page in EXAMPLES or is_shown(page, command)
    if command.module not in ("runner", "runner.verify") or is_whole:
        return given
    keys = {word.lstrip("+~").partition("=")[0] for word in given}
    more = ["trainer.limit_train_batches=2", "trainer.limit_eval_batches=1"]
    if command.module == "runner.verify":
        more += ["verify.steps=2", "verify.allow_inconclusive=true"]
    elif keys & {"trainer.overfit_batches", "trainer.steps_per_epoch", "experiment", *composing._RECORDED}:
        more = []
    elif "trainer.profile.start" in keys:
        more = more[1:]
    if "experiment=keras_tutorial" in given or "experiment=jax_guide" in given:
        more = ["trainer.limit_train_batches=2", "trainer.limit_eval_batches=1"]
    if "task=language_model" in given and not any(key.startswith("task.sample") for key in keys):
        more.append("task.sample.tokens=8")
    given = [re.sub(r"(n_trials)=\d+", r"\1=2", word) for word in given]
    given = _with_few_steps(given)
    return given + [one for one in more if one.partition("=")[0] not in keys]


def _with_few_steps(arguments: list[str]) -> list[str]:
    """Returns arguments with a hundredth of `trainer.steps`; a later command that goes further still does."""
    few = []
    for word in arguments:
        key, _, value = word.partition("=")
        if key == "trainer.steps":
            word = f"{key}={max(int(value) // 100, 1)}"
        elif key == "trainer.evaluate_every_steps" and any(one.startswith("trainer.steps=") for one in arguments):
            word = f"{key}=1"
        few.append(word)
    return few


def _on_jax(arguments: list[str], folder: Path, trained: bool) -> bool:
    """Returns whether a command computes with JAX.

    Args:
      arguments: of the command.
      folder: in which it runs, with the page's own experiments in `conf/experiment`.
      trained: the answer for a command that only opens a recorded run.
    """
    if "engine=jax" in arguments:
        return True
    for word in arguments:
        key, _, name = word.partition("=")
        if key == "experiment" and _chooses_jax(name, folder):
            return True
    return trained and any(word.partition("=")[0] in composing._RECORDED for word in arguments)


def _chooses_jax(experiment: str, folder: Path) -> bool:
    """Returns whether an experiment, of a page or of the package, selects the engine `jax`."""
    for conf in (folder / "conf", ROOT / "conf"):
        path = conf / "experiment" / f"{experiment}.yaml"
        if path.is_file():
            return "override /engine: jax\n" in path.read_text()
    return False


def follow(page: str, folder: Path, engine: str = "", mesh: str = "") -> str:
    """Runs the commands of a page in a folder; an example with an engine, and with a mesh in place of batch8.

    Returns:
      What the commands printed.

    Raises:
      AssertionError: a command exited with another code; the message has its output.
    """
    pages.write_files(page, folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    environment["COLUMNS"] = "220"  # the lines of pages are not wrapped
    here, on_jax, printed = folder, False, ""
    for count, command in enumerate(followed(page)):
        if command.words[0] == "cd":
            here = folder / command.words[1]
        if command.words[0] != "python":
            continue  # README's two commands, which install the package
        given = list(command.words[1:])
        if command.module:
            given = ["-m", command.module, *shortened(page, command)]
        if mesh:
            given = [word.replace("mesh=batch8", f"mesh={mesh}") for word in given]
        composes = command.module in (
            "runner",
            "runner.verify",
            "runner.plan",
            "runner.evaluate",
            "runner.generate",
            "runner.export",
        )
        if engine and command.module in ("runner", "runner.verify") and not any("resume=" in one for one in given):
            given.append(f"engine={engine}")
        if composes and "--help" not in given:
            out = f"{folder}/out-{count}-{command.module.rpartition('.')[2]}"
            given += [
                f"trainer.checkpoint.folder={folder}/checkpoints",
                f"hydra.run.dir={out}",
                f"hydra.sweep.dir={out}",
            ]
        if command.module == "runner.runs":
            given.append(f"folder={folder}/checkpoints")
        on_jax = _on_jax(given, here, on_jax)
        # A fork runs a module; a program of the page starts for real.
        library = forks.JAX if on_jax and command.module else None
        own = environment | dict(command.variables)
        # A project is made where the page begins.
        where = folder if command.module == "runner.init" else here
        # A fork has loaded its framework already, and prints no line of it.
        is_real = is_shown(page, command, "loading ")
        done = _run([sys.executable, *given], library, where, own, is_real)
        said = f"{shlex.join(given)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        added = [word for word in given if word not in command.words]
        # Shortened runs may not match the filters of a page, and listing them then ends with 1.
        lists = command.module == "runner.runs" and page not in (*WHOLE, *EXAMPLES)
        is_empty = lists and done.returncode == 1 and done.stderr.startswith("no runs match")
        assert done.returncode == command.code or is_empty, said
        printed += without(done.stdout + done.stderr, added)
    return printed


def _run(
    words: list[str], library: str | None, folder: Path, environment: dict[str, str], is_real: bool
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a fork, or as a process that starts for real."""
    if is_real:
        return subprocess.run(
            words, cwd=folder, env=environment, timeout=1800, capture_output=True, text=True, check=False
        )
    return forks.run(words, library=library, cwd=folder, env=environment, timeout=1800)


def without(printed: str, added: list[str]) -> str:
    """Returns an output without overrides that the test has added, where it repeats the command line or the config."""
    for word in added:
        either = f"{re.escape(word)}|{re.escape(shlex.quote(word))}"
        printed = re.sub(rf",? (?:{either})(?![\w.])", "", printed)
    return printed
