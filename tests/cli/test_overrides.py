"""The first invalid override of a command line is found without reading a library's wording."""

from __future__ import annotations

import pytest
from hydra.core.global_hydra import GlobalHydra

from runner.cli.overrides import first_fault, key_paths, unknown_option
from runner.cli.resolvers import register_resolvers
from runner.config.compose import compose


@pytest.fixture(autouse=True)
def _resolvers() -> None:
    register_resolvers()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "mesh=batch8 trainer.epochs=2",
        "+model.width=8 model.width=9",
        "~optimizer.clip ++trainer.nosuch=1",
        "-m trainer.seed=1,2 mesh=single,batch8",
        "hydra.mode=MULTIRUN trainer.seed=1,2",
        "experiment=search_optimizer",
        "optimizer.learning_rate=${trainer.seed} dataset.data_dir=null",
        "--cfg job trainer.epochs=1",
        "+engine=keras_dtensor",
        "optimizer.schedule={name:cosine,warmup_steps:2}",
        "++optimizer.schedule={nosuch:1} tracking.tags={}",
    ],
)
def test_a_valid_command_line_has_no_fault(line: str) -> None:
    assert first_fault(line.split()) is None


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("trainer.seed=1,2", "trainer.seed=1,2: has several values, and one run takes one; add -m to run each, or "),
        ("mesh=single,batch8", "mesh=single,batch8: has several values, and one run takes one; add -m to run each"),
        ("optimizer.momentum=1", "optimizer.momentum=1: unknown key (keys of optimizer: "),
        ("trainer.epoch=1", "trainer.epoch=1: unknown key (keys of trainer: epochs and "),
        ("trainer.epoch=1 nosuch=1", "trainer.epoch=1: unknown key"),
        ("mesh=batch8 nosuch=1", "nosuch=1: unknown key (groups: advise, branch,"),
        ("mesh@other=batch8", "mesh@other=batch8: mesh has no options"),
        ("mesh=3", "mesh=3: must be the name of an option (options of mesh: batch1_model1,"),
        ("mesh=null", "mesh=null: a group needs an option; leave mesh out to get the default"),
        ("mesh=${trainer.epochs}", "mesh=${trainer.epochs}: can't be resolved to an option (options of mesh:"),
        ("+mesh=batch8", "+mesh=batch8: mesh has an option already; write mesh=batch8"),
        ("~mesh=batch8", "~mesh=batch8: mesh is single; write mesh=<option> to change it"),
        ("~nosuch", "~nosuch: unknown key; "),
        ("~dataset.image_size", "~dataset.image_size: dataset.image_size is null, and only a value can be deleted; "),
        ("+experiment=keras_tutorial", "+experiment=keras_tutorial: experiment is in the defaults; write experiment="),
        ("mesh=???", "mesh=???: a group needs an option; leave mesh out to get the default"),
        ("optimizer.schedule={nosuch:1}", "optimizer.schedule={nosuch:1}: unknown key (keys of optimizer.schedule: "),
        ("~trainer.epochs=9", "~trainer.epochs=9: trainer.epochs is 3; write trainer.epochs=<value> to change it"),
        ("+trainer.epochs=9", "+trainer.epochs=9: trainer.epochs exists already; write trainer.epochs=9"),
        (
            "layout.rules.0.match=x",
            "layout.rules.0.match=x: layout.rules is a list; set all of it: ",
        ),
        ("layout.rules.first=x", "layout.rules.first=x: layout.rules is a list; set all of it: "),
        (
            "tracking.tags=[a]",
            "tracking.tags=[a]: tracking.tags holds keys and takes no single value; set",
        ),
        ("hydra.job.chdir=maybe", "hydra.job.chdir=maybe: must be true or false; set hydra.job.chdir=true"),
        ("hydra.mode=FOO", "hydra.mode=FOO: must be one of RUN, MULTIRUN; set hydra.mode=RUN"),
        ("hydra.launcher.nosuch=1", "hydra.launcher.nosuch=1: unknown key (keys of hydra.launcher: "),
    ],
)
def test_the_first_invalid_override_is_named_with_its_fix(line: str, fault: str) -> None:
    found = first_fault(line.split())
    assert found is not None
    assert found.startswith(fault)
    assert "\n" not in found


def test_at_most_ten_names_are_listed() -> None:
    message = unknown_option("mesh/batch9", [], ["mesh=batch9"])
    assert message.startswith("mesh=batch9: unknown option (options of mesh: batch1_model1, ")
    names = message.partition("options of mesh: ")[2].partition(" and ")[0]
    assert len(names.split(", ")) == 10
    assert "more, see --help); any size works: mesh.axes.batch=9" in message


def test_a_check_leaves_the_hydra_of_the_program_around_it() -> None:
    before = GlobalHydra.instance().hydra
    assert first_fault(["trainer.epoch=1"]) is not None
    assert GlobalHydra.instance().hydra is before


def test_every_key_of_a_config_has_a_path() -> None:
    paths = key_paths(compose(["optimizer=sgd"]))
    assert {"optimizer", "optimizer.momentum", "trainer.checkpoint.keep"} <= set(paths)
