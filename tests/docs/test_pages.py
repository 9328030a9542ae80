"""README and the pages: each command line is composed and checked."""

import importlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml

from runner.cli.runs import request
from runner.cluster import restarts
from tests.docs import composing, examples, pages, site
from tests.docs.pages import ROOT, Command
from tests.nightly import nightly_except
from tests.refusals import refuse_all

# Option -> the extra that it needs, see pyproject.toml.
EXTRA_OF = {
    "engine=jax": "jax",
    **{
        f"experiment={path.stem}": "jax"
        for path in (ROOT / "conf" / "experiment").glob("*.yaml")
        if "/engine: jax" in path.read_text()
    },
    "model=keras_hub": "hub",
    "dataset.tokenizer=tokenizer.json": "text",
    "optimizer=optax": "optax",
}


def extras_of(command: Command) -> set[str]:
    """Returns the extras that a command's options need, including those of a sweep."""
    assigned = [word.partition("=") for word in command.words if "=" in word]
    options = [f"{key}={value}" for key, _, values in assigned for value in values.split(",")]
    return {EXTRA_OF[option] for option in options if option in EXTRA_OF}


SETUP = re.compile(r"python3 -m venv \.venv && \.venv/bin/pip install -q -c constraints.txt -e \.\[(test|jax)\] && ")
OTHERS = (
    *("uv", "pip", "eval", "runner", "srun", "mpirun", "torchrun", "mlflow", "sudo", "export"),
    *("tensorboard", "wandb", ".venv/bin/mlflow"),
    *("python3", "cd", "source", "docker", "kubectl", "curl", "if", "exit", "code=$?"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns an empty working directory for the commands of a page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


_SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NODELIST": "a,b",
    restarts.FOLDER_VARIABLE: os.devnull,
}


def check(command: Command, page: str) -> None:
    """Checks one command line against the config, or against the module, file or program that it names."""
    program, module = command.words[0], command.module
    if (started := command.launched or command.supervised) is not None:
        # As Slurm and a supervisor start it, on a machine that has the devices.
        elsewhere = patch("runner.engine.devices.command_module", lambda: "runner.plan")
        with patch.dict(os.environ, _SLURM), elsewhere:
            check(started, page)
    if module == "runner.init":
        assert importlib.import_module("runner.cli.init").main(command.arguments) == 0
    elif module == "runner.supervise":
        importlib.import_module("runner.cli.supervise").check(command.arguments[1:])
    elif module == "runner.runs":
        request.read(command.arguments)
    elif module.split(".")[0] == "runner":
        if not {"--help", "--version", "-h"} & set(command.words):
            own = {"command_module": lambda: module}
            with patch.multiple("runner.cluster.checks", **own), patch.multiple("runner.cli.command_line", **own):
                composing.composed(command.arguments)
    elif module:
        assert find_spec(module) is not None
    elif program == "python":
        file = command.words[1]
        assert file in pages.files(page) or (ROOT / file).is_file(), f"{file} is not a file of the page"
    else:
        assert command.needs, 'the fence of such a command must say what it needs: ```sh title="Needs: ..."'
        assert program in OTHERS
    assert find_spec(module) is not None if module else True


# The others run at night.
ALWAYS = ["README", "CONTRIBUTING", "quickstart", "first_run", "checkpoints"]


@pytest.mark.parametrize("page", nightly_except(ALWAYS, pages.names()))
def test_every_command_line_of_a_page_is_valid(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    composing.give_data(folder)
    composing.give_exports(folder)
    pages.write_files(page, folder)
    for command in dict.fromkeys(pages.commands(page)):
        if command.words[0] == "cd":
            monkeypatch.chdir(folder / command.words[1])
            monkeypatch.syspath_prepend(str(folder / command.words[1]))
            continue
        if command.words[0] == "python3":
            assert SETUP.match(" ".join(command.words)) or command.needs or page == pages.README
            continue
        try:
            check(command, page)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{page}: {command}\n{error}") from error


@pytest.mark.usefixtures("folder")
def test_the_manifest_for_kubernetes_keeps_to_the_schemas_and_starts_a_valid_command() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="the extra test has kubernetes-validate")
    documents = list(yaml.safe_load_all(pages.files("kubernetes")["train.yaml"]))
    for version, document in itertools.product(("1.31.0", "1.37.0"), documents):
        validator.validate(document, version, strict=True)
    _, service, _, job = documents
    pod = job["spec"]["template"]["spec"]
    # The names of the pods, by which they find the first one, are those of the Job in the Service.
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    words = [*pod["containers"][0]["command"], *pod["containers"][0]["args"]]
    assert f"cluster.processes={job['spec']['completions']}" in words
    check(Command(tuple(words), "a cluster"), "kubernetes")


@pytest.mark.nightly
def test_pages_show_the_current_error_messages(folder: Path) -> None:
    composing.give_data(folder)
    shown = {arguments: line for page in pages.names() for arguments, line in pages.shown_errors(page)}
    assert len(shown) > 15
    results = refuse_all([shlex.split(arguments) for arguments in shown], folder)
    for (arguments, line), result in zip(shown.items(), results, strict=True):
        assert pages.matches(result["err"], line), f"{arguments}\n{result['err']}"
        assert result["code"] == 2


@pytest.mark.parametrize("name", examples.FOLDERS)
def test_a_folder_of_examples_has_the_files_and_commands_of_its_page(name: str) -> None:
    assert examples.written(examples.FOLDER / name) == examples.contents(name), (
        "write them again: python -m tests.docs.examples"
    )


NOTEBOOKS = sorted(path.name for path in examples.FOLDER.glob("*.ipynb"))


def cells_of(name: str) -> list[str]:
    """Returns the code of a notebook's cells, in order."""
    notebook = json.loads((examples.FOLDER / name).read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells), f"{name}: clear its outputs before you commit it"
    return ["".join(cell["source"]) for cell in cells]


@pytest.mark.nightly
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_from_its_first_cell_to_its_last(name: str, tmp_path: Path) -> None:
    install, *cells = cells_of(name)
    assert "pip" in install, "in Colab, nothing is here"
    (tmp_path / "notebook.py").write_text("\n\n".join([install, *cells]))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    # A process of its own, as a kernel is: the notebook starts runs of its own.
    done = subprocess.run(
        [sys.executable, "notebook.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


def test_an_invalid_command_line_fails_the_check(folder: Path) -> None:
    del folder
    for line in (
        "python -m runner mesh=batch9",
        "python -m runner -m mesh=single,batch9",
        "python -m runner trainer.epoch=3",
        "python -m runner resume=latest dataset.batch_sise=3",
        "python -m runner hydra/launcher=nope",
        "python -m runner mesh=batch8 dataset.batch_size=100",
        "python -m runner.nope",
        "python -m runner.runs --nope",
        "python missing.py",
        "KERAS_BACKEND=jax python missing.py",
        "srun -n 2 python -m runner",
    ):
        with pytest.raises((Exception, SystemExit, AssertionError)):
            check(pages.command_of(shlex.split(line)), "index")


def test_what_launchers_and_the_supervisor_start_is_checked(folder: Path) -> None:
    del folder
    for launcher in ("srun python -m", "mpirun -n 2 python -m", "torchrun --nproc-per-node 2 -m"):
        for start in (launcher, f"python -m runner.supervise -- {launcher}"):
            line = f"{start} runner mesh=batch8 engine=jax cluster=auto resume=auto name=exp1"
            check(pages.command_of(shlex.split(line), needs="a scheduler"), "index")
            for wrong in (f"{line} trainer.epoch=3", line.replace("mesh=batch8", "mesh=batch9")):
                with pytest.raises((Exception, SystemExit)):
                    check(pages.command_of(shlex.split(wrong), needs="a scheduler"), "index")


def test_links_have_a_target() -> None:
    for page in pages.names():
        here = pages.path_of(page)
        for link in pages.links(page):
            if link.startswith(("http://", "https://")):
                continue
            target, _, anchor = link.partition("#")
            file = (here.parent / target).resolve() if target else here
            assert file.exists(), f"{page}: {link}"
            assert not anchor or anchor in pages.anchors(file), f"{page}: {link}"


def test_each_page_that_a_message_names_has_that_title() -> None:
    titles = [path.read_text().partition("\n")[0] for path in (ROOT / "docs").glob("*.md")]
    named = set()
    for path in (ROOT / "runner").rglob("*.py"):
        named |= set(re.findall(r'"([^"\n]+)" in the docs', path.read_text()))
    assert "Out of memory" in named
    assert {name for name in named if not any(title.startswith(f"# {name}") for title in titles)} == set()


def test_readme_and_the_index_link_every_section() -> None:
    sections = {f"{section}.md" for section in site.SECTIONS}
    assert sections <= set(pages.links("index"))
    assert {f"docs/{section}" for section in sections} <= set(pages.links(pages.README))


def test_readme_is_short_and_has_the_commands_of_ci() -> None:
    text = pages.path_of(pages.README).read_text()
    assert len(text.splitlines()) <= 120
    venv = "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e"
    assert f"\n{venv} '.[jax]' && .venv/bin/python -m runner mesh=batch8 model=mlp\n" in text
    # The same expression as in .ci/run.
    test_commands = re.findall(r"^(python3 -m venv .*pytest)$", text, flags=re.M)
    assert test_commands == [f"{venv} '.[test]' && .venv/bin/python -m pytest"]


def test_readmes_commands_need_no_extra_that_it_does_not_install() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRA_OF.values()) <= set(project["optional-dependencies"])
    (first, *others) = pages.commands(pages.README)
    setup = SETUP.match(" ".join(first.words))
    assert setup
    assert setup[1] == "jax"  # both engines; the commands of the tour run after it
    commands = [first, *(command for command in others if not command.needs)]
    assert [str(command) for command in commands if not extras_of(command) <= {"jax"}] == []
    assert composing.composed([])[0].engine.name != "jax"
    assert extras_of(pages.command_of(["python", "-m", "runner", "engine=keras_dtensor,jax"])) == {"jax"}
    assert extras_of(pages.command_of(["python", "-m", "runner", "experiment=jax_guide"])) == {"jax"}
