"""What every command says of itself, and that the installed command and the modules are the same."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import runner
from runner.cli import command_line, entry, ui
from runner.cli import help as of_command
from runner.cli.commands import TRAIN, commands, run
from runner.cli.resolvers import register_resolvers
from runner.config.compose import compose

ROOT = Path(__file__).parents[2]
RUNNER = Path(sys.executable).parent / "runner"
WITHOUT_CONFIG = ("runs", "ui", "init", "supervise")


def test_every_command_is_named() -> None:
    files = [path.parent for path in (ROOT / "runner").glob("*/__main__.py")]
    files += [path.with_suffix("") for path in (ROOT / "runner").glob("*.py") if "import entry" in path.read_text()]
    assert {path.name for path in files} == set(commands()) - {TRAIN}


def test_versions_are_printed_at_once() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "runner", "--version"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stdout.startswith("runner")
    assert runner.__version__ in done.stdout.splitlines()[0]
    assert any(line.split()[0] == "mlflow" for line in done.stdout.splitlines())
    for heavy in ("numpy", "hydra", "tensorflow", "mlflow"):
        assert f"| {heavy}\n" not in done.stderr.replace("|   ", "| ")
    assert time.monotonic() - began < 10, "a loaded machine"


@pytest.mark.parametrize("name", commands())
def test_help_fits_a_screen_and_its_examples_are_accepted(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, examples = commands()[name]
    assert len(examples) == 3
    assert of_command.main([name]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 30
    assert all(f"  {example}" in text for example in examples)
    register_resolvers()
    monkeypatch.setattr(command_line, "command_module", lambda: f"runner.{name}".removesuffix(f".{TRAIN}"))
    for example in examples if name not in WITHOUT_CONFIG else ():
        words = shlex.split(example.removeprefix("runner ").removeprefix(f"{name} "))
        flags, overrides = command_line.split(command_line.arranged(words))
        compose([one.partition(",")[0] if flags else one for one in overrides])


def test_help_of_a_group_shows_options_and_commented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert of_command.main(["--help", "optimizer"]) == 0
    text = capsys.readouterr().out
    assert "  sgd      Stochastic gradient descent with momentum.\n" in text
    assert "  optimizer.schedule.name=constant " in text
    assert "  optimizer.beta_1=0.9 " in text
    assert "keys of optimizer=adam;" in text
    assert of_command.main(["--help", "optimizer=sgd"]) == 0
    assert "  optimizer.momentum=" in capsys.readouterr().out
    for word, fix in (("optimizr", "mean optimizer?"), ("pln", "mean plan?"), ("mesh=4", "mesh=batch4?")):
        assert run("runner.cli.help", [word]) == 2
        assert fix in capsys.readouterr().err


@pytest.mark.parametrize(("line", "module"), [("plan a=1", "runner.plan"), ("train a=1", None), ("a=1", None)])
def test_a_command_is_a_word_or_a_module(line: str, module: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr("sys.argv", ["runner", *line.split()])
    monkeypatch.setattr(entry, "main", lambda command: ran.append((command, sys.argv[1:])))
    monkeypatch.setattr("runpy.run_module", lambda name, **_: ran.append((name, sys.argv[1:])))
    entry.main_of_words()
    assert ran[0] == (module or "runner.cli.train", ["a=1"])


def test_the_ui_is_mlflows_own_server_on_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    started: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(ui, "_serve", lambda command, env, *_: started.append((" ".join(command), env)) or 0)
    assert run("runner.cli.ui", []) == 2
    assert "/outputs/mlflow.db: there is no such store; start a run" in capsys.readouterr().err
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "mlflow.db").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        assert run("runner.cli.ui", [f"port={port}"]) == 2
        assert f"port={port}: can't be used (Address already in use); set port={port + 1}" in capsys.readouterr().err
    assert run("runner.cli.ui", [f"port={port}"]) == 0
    ((command, environment),) = started
    assert f" -m mlflow ui --host 127.0.0.1 --port {port} --workers 1" in command
    assert environment["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{tmp_path}/outputs/mlflow.db"
    assert environment["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert run("runner.cli.ui", ["uri=http://ann:pass@host:5000"]) == 0
    assert "http://ann:***@host:5000" in capsys.readouterr().out
    assert len(started) == 1


@pytest.mark.parametrize("code", [0, 3])
def test_the_address_of_the_page_is_printed_when_its_server_answers(
    code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = f"import socket; socket.create_server(('127.0.0.1', {port})).accept(); print('asked', flush=True)"
    if code:
        program = f"raise SystemExit({code})"
    assert ui._serve((sys.executable, "-c", program), os.environ, port, "ready") == code
    assert sorted(capfd.readouterr().out.split()) == ([] if code else ["asked", "ready"])


@pytest.mark.skipif(not (RUNNER.exists() and shutil.which("bash")), reason="needs bash and the installed command")
def test_bash_completes_commands_groups_options_and_keys(tmp_path: Path) -> None:
    script = """
eval "$(runner -sc install=bash)"
complete -p runner
for line in "runner mesh=batch8_" "runner plan trainer.epo" "runner supe" "runner plan mesh=mo" "runner runs comp"; do
  COMP_LINE="$line"; COMP_POINT=${#line}; COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
  hydra_bash_completion; echo "${COMPREPLY[@]}"
done
"""
    path = f"{RUNNER.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    expected = ["mesh=batch8_model1", "trainer.epochs=", "supervise", "mesh=model8", "compare"]
    assert done.stdout.splitlines()[1:] == expected, done.stderr
