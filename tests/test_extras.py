"""The extras that refusals name: they are there, ask for what they must, and the constraints hold their versions."""

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest

from runner.engine.devices import INSTALLS
from runner.engine.registry import ENGINES

ROOT = Path(__file__).parents[1]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PINNED = {
    re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower()
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if "==" in line
}


def test_every_install_that_a_refusal_names_is_an_extra() -> None:
    named = {*INSTALLS.values(), *(entry.install for entry in ENGINES.values())}
    extras = {found[1] for command in named if (found := re.fullmatch(r"pip install -e '\.\[([a-z-]+)\]'", command))}
    assert named == {"pip install -e .", *(f"pip install -e '.[{extra}]'" for extra in extras)}
    assert extras == {"jax", "cuda", "tpu"}
    assert extras <= set(EXTRAS)


def test_the_extras_bring_what_the_engines_are_asked_for() -> None:
    assert any(one.startswith("jax[cuda12]") for one in EXTRAS["cuda"])
    assert any(one.startswith("jax[tpu]") for one in EXTRAS["tpu"])
    for extra in ("cuda", "tpu"):
        assert "mesh-runner[jax]" in EXTRAS[extra], "Keras 3 comes with it"


@pytest.mark.parametrize(("library", "extra"), [("jax", "cuda12"), ("jax", "tpu")])
def test_the_constraints_hold_the_versions_of_what_the_libraries_extras_ask_for(library: str, extra: str) -> None:
    asked = [one for one in requires(library) or [] if f'extra == "{extra}"' in one]
    names = {found[0].lower() for one in asked if (found := re.match(r"[\w.-]+", one))} - {"jaxlib"}
    assert names, f"{library}[{extra}] is no extra any more"
    assert names <= PINNED
