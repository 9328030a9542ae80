"""A password of a tracking URI reaches the store, and nothing that is printed or written."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import assume, given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.cli.resolvers import register_resolvers
from runner.config import masking
from runner.config.convert import as_typed, resolved
from runner.errors import ConfigError
from runner.host import secrets
from runner.host.outputs import MaskedFormatter
from runner.host.paths import conf_dir
from runner.host.secrets import TRACKING, hide, reveal, scrub, shown
from runner.plan.checks.run import convert
from runner.tracking.location import fingerprint, tracking_uri
from runner.tracking.mlflow_setup import reason
from runner.tracking.run_file import RunFile
from tests.tracking.server import Server

ROOT = Path(__file__).parents[2]
SECRET = "s3cr@W0rd"
URI = f"postgresql://ann:{SECRET}@host/db"
MASKED = "postgresql://ann:***@host/db"

passwords = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=3)


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (secrets._VARIABLE, "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")


@pytest.mark.parametrize(
    ("uri", "masked"),
    [
        ("http://u:p@ss@host:5000/x", "http://u:***@host:5000/x"),
        ("http://u:p%40ss@host", "http://u:***@host"),
        ("postgresql://u:p/w?x#y@host/db", "postgresql://u:***@host/db"),
        ("postgresql:///db?user=u&password=p@h;x&a=b", "postgresql:///db?user=u&password=***&a=b"),
        ("mysql://u@h/db?ssl_ca=/x&sslPassWord=p", "mysql://u@h/db?ssl_ca=/x&sslPassWord=***"),
        ("http://h/?pass%77ord=p", "http://h/?pass%77ord=***"),
        ("mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3Ds", "mssql+pyodbc:///?odbc_connect=***"),
        ("https://token@host/x", "https://***@host/x"),
        ("https://token:x-oauth-basic@host", "https://***@host"),
        ("https://:pw@host", "https://:***@host"),
        ("u:pw@host/db", "u:***@host/db"),
        ("postgresql:/u:pw@host/db", "postgresql:***@host/db"),
        ("https://h/?access_key=a&X-Amz-Signature=b&sig=c", "https://h/?access_key=***&X-Amz-Signature=***&sig=***"),
    ],
)
def test_a_secret_of_any_form_is_masked(uri: str, masked: str) -> None:
    assert shown(uri) == masked
    assert shown(masked) == masked


@pytest.mark.parametrize(
    "uri",
    [
        "http://host:5000/a/b",
        "sqlite:////home/a:b@c/runs.db?timeout=9",
        "postgresql://ann@host:5432/db?application_name=x",
        "databricks://profile",
        "./mlruns@home",
        "",
    ],
)
def test_a_uri_without_a_secret_stays_as_it_is(uri: str) -> None:
    assert shown(uri) == uri


@given(passwords, st.sampled_from(["http", "https", "postgresql", "mysql+pymysql", "ftp"]), st.booleans())
def test_no_password_before_the_host_is_ever_shown(password: str, scheme: str, encoded: bool) -> None:
    typed = quote(password, safe="") if encoded else password
    assume(password not in f"{scheme}://ann:***@host:5000/db?a=b")
    assert password not in shown(f"{scheme}://ann:{typed}@host:5000/db?a=b")
    assert typed not in shown(f"{scheme}://ann:{typed}@host:5000/db?a=b")


@pytest.mark.parametrize(
    "argument",
    [f"tracking.uri={URI}", f"tracking.uri='{URI}'", f'+tracking.uri="{URI}"', f"hydra.sweeper.storage={URI}"],
)
def test_a_command_line_is_masked_and_the_whole_uri_is_there_for_what_opens_it(argument: str) -> None:
    (masked,) = masking.hide_arguments([argument])
    assert SECRET not in masked
    assert masked == f"{argument.partition('=')[0]}='{MASKED}'"
    assert reveal(TRACKING, MASKED) == URI


@pytest.mark.parametrize(
    "argument", ["tracking.uri=http://u:${oc.env:PW}@h", "tracking.uri=sqlite:///x.db", "mesh=batch8", "--cfg", "job"]
)
def test_a_command_line_without_a_secret_stays_as_it_is(argument: str) -> None:
    assert masking.hide_arguments([argument]) == [argument]


def test_a_masked_uri_of_an_earlier_run_is_refused_until_its_password_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"tracking.uri=postgresql://ann:\*\*\*@host/db: .* type") as error:
        tracking_uri(MASKED, tmp_path)
    assert "or set MLFLOW_TRACKING_URI" in str(error.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://ann:x@elsewhere/db")
    with pytest.raises(ConfigError):
        tracking_uri(MASKED, tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)
    assert tracking_uri(MASKED, tmp_path) == URI


def test_a_server_takes_its_password_from_mlflows_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"):
        reveal(TRACKING, "http://ann:***@host:5000")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", SECRET)
    assert reveal(TRACKING, "http://ann:***@host:5000") == "http://host:5000"


def test_a_librarys_error_is_told_without_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:p%40ssw0rd@host")
    text = reason(RuntimeError("request to http://ann:p%40ssw0rd@host/api failed: p@ssw0rd; see ftp://x:yy@z"))
    assert text == "request to http://ann:***@host/api failed: ***; see ftp://x:***@z"
    assert scrub("runs of ann: http://host/#/experiments") == "runs of ann: http://host/#/experiments"


def test_a_traceback_in_the_log_file_holds_no_secret() -> None:
    hide(URI)
    try:
        raise RuntimeError(f"could not parse {URI!r}")
    except RuntimeError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", None, sys.exc_info())
    text = MaskedFormatter("%(message)s").format(record)
    assert "RuntimeError" in text
    assert SECRET not in text


def test_the_file_of_a_run_can_not_be_used_to_guess_a_password(tmp_path: Path) -> None:
    file = RunFile(tmp_path, "r", URI)
    file.append([])
    assert SECRET not in file.path.read_text()
    assert fingerprint(URI) == fingerprint(URI.replace(SECRET, "another"))


def hydras(overrides: list[str]) -> DictConfig:
    """Returns the config that Hydra composes, with its own part."""
    register_resolvers()
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return compose("config", overrides=overrides, return_hydra_config=True)


@pytest.mark.parametrize(
    "overrides",
    [
        [f"tracking.uri='{URI}'"],
        [f"++tracking={{writers: [mlflow], uri: '{URI}', experiment: x}}"],
        [f"tracking.uri='{URI}'", "hydra/sweeper=optuna", f"hydra.sweeper.storage='{URI}'"],
    ],
)
def test_what_hydra_writes_of_a_config_is_masked(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["runner", *overrides])
    config = hydras(overrides)
    assert SECRET in OmegaConf.to_yaml(config)
    masking.hide_config(config)
    assert SECRET not in OmegaConf.to_yaml(config) + str(sys.argv)
    assert config.tracking.uri == MASKED
    assert reveal(TRACKING, config.tracking.uri) == URI


def test_a_password_that_an_interpolation_gives_is_in_no_typed_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", URI)
    monkeypatch.setattr(sys, "argv", ["runner"])
    override = "tracking.uri=${oc.env:WHERE}"
    composed = hydras([override])
    masking.hide_config(composed)
    assert as_typed(composed.hydra.overrides.task) == [override]
    assert SECRET not in OmegaConf.to_yaml(composed)
    with open_dict(composed):
        del composed["hydra"]
    config = convert(composed)
    assert config.tracking.uri == MASKED
    assert SECRET not in str(resolved(composed, config.mesh, config.tracking.uri))
    assert reveal(TRACKING, MASKED) == URI


def test_a_typed_password_beside_an_interpolation_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "db")
    override = f"tracking.uri='http://ann:{SECRET}@${{oc.env:WHERE}}'"
    monkeypatch.setattr(sys, "argv", ["runner", override])
    composed = hydras([override])
    masking.hide_config(composed)
    assert SECRET not in OmegaConf.to_yaml(composed) + str(sys.argv)
    assert reveal(TRACKING, composed.tracking.uri) == f"http://ann:{SECRET}@db"


RUN = ["dataset=digits", "engine=jax", "mesh=single", "trainer.epochs=1"]
PRESET = "writers: [mlflow]\nuri: {uri}\nexperiment: runner\nrun_name: null\ntags: {{}}\n"


def _holders(folder: Path) -> list[str]:
    return [
        str(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(word.encode() in path.read_bytes() for word in (SECRET, quote(SECRET)))
    ]


@pytest.mark.nightly
@pytest.mark.slow
def test_no_byte_of_what_a_run_prints_or_stores_holds_the_password(uri: str, tmp_path: Path) -> None:
    server, work = Server(uri, tmp_path), tmp_path / "work"
    work.mkdir()
    server.start()
    try:
        address = server.uri.replace("http://", f"http://ann:{quote(SECRET)}@")
        (tmp_path / "conf" / "tracking").mkdir(parents=True)
        (tmp_path / "conf" / "tracking" / "mine.yaml").write_text(PRESET.format(uri=address))
        ways: dict[str, tuple[list[str], dict[str, str]]] = {
            "environment": ([], {"MLFLOW_TRACKING_URI": address}),
            "interpolated": (["tracking.uri=${oc.env:WHERE}"], {"WHERE": address}),
            "file": (["--config-dir", str(tmp_path / "conf"), "tracking=mine"], {}),
            "typed": ([f"tracking.uri='{address}'"], {}),
        }
        environment = {key: value for key, value in os.environ.items() if key != secrets._VARIABLE}
        for name, (typed, given) in ways.items():
            done = subprocess.run(
                [sys.executable, "-m", "runner", *RUN, *typed, f"hydra.run.dir={work / name}"],
                cwd=work,
                env=environment | {"PYTHONPATH": str(ROOT)} | given,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert SECRET not in done.stdout + done.stderr
            assert quote(SECRET) not in done.stdout + done.stderr
            assert (work / name / ".hydra" / "config.yaml").exists()
    finally:
        server.kill()
    shutil.rmtree(tmp_path / "conf")
    assert _holders(tmp_path) == []
