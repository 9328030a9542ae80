"""What tools and hosting sites read from the top folder: one version, existing files, and the commands of .ci/run."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest
import yaml

import runner

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = ROOT / ".github" / "workflows"


def test_every_file_has_the_same_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["version"] == runner.__version__ == citation["version"]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the wheel and the source distribution."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("distributions")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", folder]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


@pytest.mark.slow
def test_the_wheel_has_the_package_its_options_and_no_tests(distributions: Path) -> None:
    (wheel,) = distributions.glob("mesh_runner-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata_file,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = message_from_string(archive.read(metadata_file).decode())
    assert {"runner/py.typed", "runner/conf/config.yaml", "hydra_plugins/runner_sweep.py"} <= names
    assert {name.partition("/")[0] for name in names} == {"runner", "hydra_plugins", metadata_file.partition("/")[0]}
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["License-Expression"] == "Apache-2.0"
    described = metadata.get_payload()
    assert isinstance(described, str)
    assert "## Two commands" in described
    # A package index has none of the repository's files, so a relative link is dead there.
    assert re.findall(r"\]\((?!https://)[^)]*\)", described) == []
    assert set(PROJECT["optional-dependencies"]) == set(metadata.get_all("Provides-Extra"))


@pytest.mark.slow
def test_the_source_distribution_has_what_the_wheel_is_built_from(distributions: Path) -> None:
    (source,) = distributions.glob("mesh_runner-*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "hatch_build.py", "LICENSE", "README.md", "conf/config.yaml"} <= names
    # The description sends readers to these pages.
    assert "docs/index.md" in names
    assert {"runner/py.typed", "hydra_plugins/runner_sweep.py"} <= names
    assert not [name for name in names if name.startswith((".venv/", "outputs/runs/"))]


@pytest.mark.slow
def test_twine_accepts_the_wheel_and_the_source_distribution(distributions: Path) -> None:
    pytest.importorskip("twine")
    files = sorted(distributions.glob("mesh_runner-*"))
    assert len(files) == 2
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)


def _steps(workflow: str) -> list[str]:
    jobs = yaml.safe_load((WORKFLOWS / f"{workflow}.yml").read_text())["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_the_workflows_run_the_commands_of_this_repository() -> None:
    assert _steps("ci") == [".ci/run"]
    assert [_steps("nightly"), _steps("newest")] == [[".ci/nightly"], [".ci/newest"]]
    assert _steps("site")[-1] == "python -m tests.docs.site"
    assert _steps("links")[-1] == "python -m tests.docs.site links"
    assert "docs" in PROJECT["optional-dependencies"]


def test_pre_commit_runs_the_linters_of_ci() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    commands = [hook["entry"] for hook in repo["hooks"]]
    assert commands == re.findall(r"^\.venv/bin/(?:ruff|mypy).*$", (ROOT / ".ci/run").read_text(), flags=re.M)


def test_the_image_copies_what_exists_and_installs_extras_that_exist() -> None:
    text = (ROOT / "Dockerfile").read_text()
    sources = {name for line in re.findall(r"^COPY (.*) \S+$", text, flags=re.M) for name in line.split()}
    assert all((ROOT / name).exists() for name in sources)
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == sources
    extras = {extra for found in re.findall(r"EXTRAS=([\w,-]+)", text) for extra in found.split(",")}
    assert {"jax", "cuda"} == extras <= set(PROJECT["optional-dependencies"])
