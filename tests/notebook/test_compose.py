"""Configs composed from Python: the same checks and lines as on the command line, as often as wanted, anywhere."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.version import VersionBase
from omegaconf import DictConfig

import runner
from runner.cli.notebook import OpenedRun
from runner.plan.result import typed_overrides

ROOT = Path(__file__).parents[2]


def test_overrides_mean_what_they_mean_on_the_command_line() -> None:
    first = runner.compose("mesh=batch8", "dataset=digits", "++trainer.epochs=2", "mesh.axes.model=1")
    assert (first.mesh.axes, first.dataset.name, first.trainer.epochs) == ({"batch": 8, "model": 1}, "digits", 2)
    assert runner.compose().trainer.epochs == 3, "nothing stays of an earlier one"
    keys = {"trainer": {"epochs": 2}, "mesh.axes": {"batch": 8, "model": 1}}
    assert runner.compose(keys, "mesh=batch8", dataset="digits", trainer__log_every_steps=10) == first


def test_a_value_of_python_is_one_of_the_command_line() -> None:
    texts = ["latest", "1.10", "null", "Ann's [run]", Path("data/x.npz")]
    run = OpenedRun("6720ee", "mine", "FINISHED", DictConfig({}), {})
    value = [*texts, None, 1e-5, np.float32(0.5), np.arange(2), {"c": False}, run]
    text = r"[latest,'1.10','null','Ann\'s [run]',data/x.npz,null,1e-05,0.5,[0,1],{c:false},'6720ee']"
    assert typed_overrides([{"a.b": value}], {"a__b": value}) == [f"a.b={text}"] * 2
    assert typed_overrides([], {"a__b": [value, 2]}, sweeps=True) == [f"a.b={text},2"]


@pytest.mark.parametrize(
    ("overrides", "shown"),
    [
        (["mesh=batch7"], "mesh=batch7: unknown option"),
        (["trainer.epochs=1,2"], "trainer.epochs=1,2:"),
        (["-m"], "-m: must be an override of one run, not a flag; write key=value"),
        (["--help"], "--help: must be an override of one run"),
        (["hydra.mode=MULTIRUN"], "hydra.mode=MULTIRUN: is a sweep"),
        (["resume=latest", "trainer.checkpoint.folder=nowhere"], "resume=latest: no run left a checkpoint"),
    ],
)
def test_what_cannot_work_is_the_commands_line(overrides: list[str], shown: str) -> None:
    with pytest.raises(runner.ConfigError) as found:
        runner.compose(*overrides)
    assert str(found.value).startswith(shown)
    assert "\n" not in str(found.value)


def test_a_folder_of_ones_own_options_is_searched(tmp_path: Path) -> None:
    (tmp_path / "mesh").mkdir()
    (tmp_path / "mesh" / "mine.yaml").write_text("axes: {batch: 4}\ndevice: cpu\n")
    found = f"hydra.searchpath=[file://{tmp_path}]"
    assert runner.compose("mesh=mine", found).mesh.axes == {"batch": 4}
    (tmp_path / "mesh" / "mine.yaml").write_text(
        "# @package _global_\nmesh: {axes: {batch: 4}}\nhydra: {mode: MULTIRUN}\n"
    )
    with pytest.raises(runner.ConfigError, match=r"hydra\.mode=MULTIRUN: is a sweep, but this takes one run"):
        runner.plan("mesh=mine", found)
    assert runner.compose("mesh=mine", found, "hydra.mode=RUN").dataset.name == "mnist"


def test_another_hydra_program_finds_its_own_again(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("a: 1\n")
    with initialize_config_dir(version_base="1.2", config_dir=str(tmp_path)):
        own, version = GlobalHydra.instance().hydra, VersionBase.instance().version_base
        assert runner.compose("dataset=digits").dataset.name == "digits"
        with pytest.raises(runner.ConfigError):
            runner.compose("dataset=nope")
        assert GlobalHydra.instance().hydra is own
        assert VersionBase.instance().version_base == version
    GlobalHydra.instance().clear()


def test_the_package_offers_its_functions_and_imports_nothing_heavy() -> None:
    heavy = "{'numpy', 'hydra', 'tensorflow', 'jax', 'mlflow'}"
    code = [
        f"import sys, runner; print(sorted({heavy} & set(sys.modules)))",
        "import runner.plan.base, runner.verify.points as points, runner.evaluate",
        "from runner.plan import memory",
        "from runner import plan, train, verify, ConfigError",
        "print(points.LOSS == 'loss', *map(callable, (plan, train, verify, runner.plan, runner.evaluate)))",
        "try: plan(mesh='nope')\nexcept ConfigError as error: print(str(error)[:9])",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]", " ".join(["True"] * 6), "mesh=nope"], done.stderr[-500:]


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        runner.nope  # type: ignore[attr-defined]  # noqa: B018
    functions = ["advise", "compare", "compose", "evaluate", "export", "fit", "open_run", "plan", "sweep", "train"]
    assert dir(runner) == ["ConfigError", "OpenedRun", *functions, "verify"], "and nothing that it imports"
