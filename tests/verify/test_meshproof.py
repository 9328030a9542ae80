"""The proof of anybody's step: verdicts of right and wrong ones, one sentence for what can't be compared."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.errors import in_one_line
from runner.verify import meshproof
from tests.engine.jax_runs import answer

WEIGHTS = [f"weights/{layer}/{name}" for layer in ("first", "last") for name in ("bias", "kernel")]
SLOTS = [name.replace("weights", "velocity") for name in WEIGHTS]
VERIFIED = [
    *("mesh: ", "jitted, sharded as it is", "gradients", "bfloat16 state", "bfloat16 products", "evaluation"),
    *("one weight", "float64 of NumPy", "a factor of 0", "complex weights"),
]
# Case -> the variable that differs first; a loss belongs to none.
MISMATCH = {
    "mesh: no sum over the devices": [*WEIGHTS, *SLOTS],
    "mesh: one leaf is not summed": ["weights/last/bias", "velocity/last/bias"],
    "mesh: one leaf is 1% too large": ["weights/first/bias", "velocity/first/bias"],
    "mesh: padding counts": [""],
    "mesh: another key on each device": [""],
    "mesh: a stale slot": SLOTS,
    "mesh: the same key again": ["key"],
    "mesh: one device is not updated": SLOTS,
    "gradients, wrong": WEIGHTS,
    "bfloat16 products, wrong": [*SLOTS, ""],
    "evaluation, partial batch wrong": ["outputs/loss of batch 2", "outputs/loss of batch 3"],
    "evaluation, a scale of ones reversed": ["outputs/scaled of batch 0", "outputs/scaled of batch 1"],
    "inside": [""],
    "inside a later batch": [""],
    "inside an evaluation": ["outputs/loss of batch 3", "outputs/each of batch 3"],
    "complex weights, not conjugated": [""],
}
# Case -> parts of its sentence.
REFUSED = {
    "another structure": "the step's new state has weights/bias, and no weights/",
    "another shape": "the step's new state has velocity/first/bias as float32[1], not float32[8]",
    "another dtype": "as bfloat16[8], not float32[8]",
    "no pair": "the step returns State, not a pair (new_state, outputs)",
    "other outputs": "the step's outputs are not those of the reference: one has accuracy, and no loss",
    "random": "the step is not deterministic: two calls with the same state and batch differ in loss",
    "NaN": "is NaN or Inf after step 1",
    "no movement": "no float leaf of the state moves in 5 steps of the step",
    "no fit": "the reference fails on the given state and batch: TypeError: dot_general",
    "no batches": "batches is empty",
    "one batch": "batches is one batch; give a list of batches",
    "15 rows": "place_batch fails: IndivisibleError: ",
    "no parameters": "parameters selects none of the state's float leaves, such as weights/",
}


@pytest.fixture(scope="module")
def proofs() -> Mapping[str, Any]:
    found: Mapping[str, Any] = answer("from tests.verify.proofs import *\nimport json\n" + MAIN)
    return found


MAIN = "print(json.dumps({name: found(make) for name, make in cases()} | {'surroundings': surroundings()}))\n"


@pytest.mark.parametrize("case", VERIFIED)
def test_a_right_step_is_verified(proofs: Mapping[str, Any], case: str) -> None:
    assert proofs[case]["verdict"] == "verified"
    assert proofs[case]["detects"] < 0.1


@pytest.mark.parametrize("case", MISMATCH)
def test_a_wrong_step_is_a_mismatch_that_names_where(proofs: Mapping[str, Any], case: str) -> None:
    assert proofs[case]["verdict"] == "mismatch"
    assert proofs[case]["first"] in MISMATCH[case]


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_one_sentence(proofs: Mapping[str, Any], case: str) -> None:
    error = proofs[case]["error"]
    assert REFUSED[case] in error
    assert in_one_line(error) == error


def test_every_case_is_judged(proofs: Mapping[str, Any]) -> None:
    assert {*proofs} == {*VERIFIED, *MISMATCH, *REFUSED, "surroundings"}


def test_the_first_value_inside_a_step_that_differs_is_named(proofs: Mapping[str, Any]) -> None:
    for case in ("inside", "inside a later batch", "inside an evaluation"):
        assert proofs[case]["inside"] == "hidden"


def test_the_larger_of_unequal_copies_are_compared_too(proofs: Mapping[str, Any]) -> None:
    assert proofs["surroundings"]["of unequal copies"] == "mismatch"


def test_a_report_is_a_table_a_page_and_plain_values(proofs: Mapping[str, Any]) -> None:
    around = proofs["surroundings"]
    lines = around["text"].splitlines()
    assert lines[0].split() == ["variable", "worst", "in", "entries", "differ", "by", "allowed", "ratio", "detects"]
    assert any(line.startswith("mismatch: the step differs from one device, first in ") for line in lines)
    assert "<script" not in around["page"]
    assert '<tr class="failed"><td>weights/last/bias</td>' in around["page"]
    assert around["dict"]["verdict"] == "mismatch"
    assert {check["variable"] for check in around["dict"]["checks"] if not check["passed"]} >= {"weights/last/bias"}
    assert around["raised"].startswith("mismatch\nvariable")


def test_a_matrix_judges_each_step_by_its_own_rounding(proofs: Mapping[str, Any]) -> None:
    around = proofs["surroundings"]
    assert around["matrix"] == {"right": "verified", "wrong": "mismatch", "lower": "verified"}
    assert [line.split()[0] for line in around["matrix text"].splitlines()] == [*around["matrix"]]


def test_the_package_imports_nothing_of_ours_and_neither_framework_until_a_call() -> None:
    program = (
        "import sys\nimport runner.verify.meshproof.differences, runner.verify.meshproof.report\n"
        "print([name for name in ('jax', 'tensorflow', 'hydra', 'mlflow', 'rich') if name in sys.modules])\n"
        "import runner.verify.meshproof.call\n"
        "print([name for name in sys.modules if name.startswith('runner.') and 'verify' not in name])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]


@pytest.mark.nightly
def test_the_wheel_has_every_module_and_its_readme_runs_with_jax_alone(tmp_path: Path) -> None:
    source = shutil.copytree(Path(meshproof.__file__).parent, tmp_path / "source")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    modules = {path.name for path in (tmp_path / "installed/meshproof").iterdir()}
    assert modules == {path.name for path in source.glob("*.py")}
    example = (source / "README.md").read_text().split("```python\n")[1].split("```")[0]
    others = ("runner", "tensorflow", "hydra", "mlflow")
    example += f"\nimport sys\nprint([name for name in {others} if name in sys.modules])\n"
    place = {"PYTHONPATH": str(tmp_path / "installed"), "JAX_PLATFORMS": "cpu"}
    program = [sys.executable, "-P", "-c", example]
    done = subprocess.run(program, env=os.environ | place, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "\nverified: 5 steps on 4 devices match one device; 2 of 2 variables are sensitive" in done.stdout
    assert done.stdout.endswith("[]\n")
