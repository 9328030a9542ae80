"""Errors of Hydra, OmegaConf and PyYAML as one line; what it is about is read from their attributes.

Written for Hydra 1.3 and OmegaConf 2.3: a test here that fails after an upgrade names what they have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError  # type: ignore[import-untyped]

from runner.cli.messages import _ALIASES, key_paths, one_line
from runner.cli.resolvers import register_resolvers
from runner.config.compose import compose
from runner.config.search_path import options


@pytest.fixture(autouse=True)
def _resolvers() -> None:
    register_resolvers()


def raised(call: Callable[[], object]) -> Exception:
    with pytest.raises((HydraException, OmegaConfBaseException, MarkedYAMLError, ValueError)) as found:
        call()
    return found.value


def test_invalid_yaml_has_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("a: {b: 1\n")
    error = raised(lambda: OmegaConf.load(tmp_path / "bad.yaml"))
    assert isinstance(error, MarkedYAMLError)
    line = one_line(error, [])
    assert line.startswith(f"{tmp_path}/bad.yaml, line 2: invalid YAML (")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("trainer.epoch=1", "trainer.epoch=1: unknown key (keys of trainer: "),
        ("trainer.epoch=1", "did you mean trainer.epochs?"),
        ("mesh=batch8 nosuch=1", "nosuch=1: unknown key (groups: advise, branch,"),
        ("optimizer=adam optimizer.momentum=1", "optimizer.momentum=1: unknown key (keys of optimizer: "),
        ("optimizer.momentum=1", "set optimizer=rmsprop or sgd, which have it"),
        ("trainer.batch_size=1", "did you mean dataset.batch_size?"),
        ("optimizer.lr=1", "did you mean optimizer.learning_rate?"),
        ("layout=ddp", "did you mean layout=replicated?"),
        ("layout=fsdpp", "did you mean layout=fsdp?"),
        ("mesh=batch16", "any size works: mesh.axes.batch=16, on a CPU with mesh.cpu_devices=16"),
        ("layout.rules.0.match=x", "layout.rules is a list; set all of it: layout.rules=[...]"),
        ("hydra.job.chdir=maybe", "hydra.job.chdir=maybe: Value 'maybe' is not a valid bool"),
    ],
)
def test_a_wrong_key_or_option_is_told_with_the_nearest(line: str, said: str) -> None:
    message = one_line(raised(lambda: compose(line.split())), line.split())
    assert said in message
    assert "\n" not in message


def test_every_alias_exists() -> None:
    config = compose(["optimizer=adamw", "dataset=digits", "mesh=batch8"])
    for ours in _ALIASES.values():
        group, is_option, option = ours.partition("=")
        assert option in options(group) if is_option else ours in key_paths(config), ours
