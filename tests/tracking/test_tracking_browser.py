import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tracking.server import environment, kill, wait_until_up

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
_FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
_PATIENCE_MS = 60_000


def _curves(path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.add_subplot()
    axes.plot([1, 2, 3], [0.5, 0.2, 0.1])
    axes.set_title("loss")
    figure.savefig(path)


@pytest.fixture
def described(opener, uri, tmp_path):
    """A finished run, as the lines that `describe` prints of it."""
    (tmp_path / "config.yaml").write_text("dataset:\n  batch_size: 128\n")
    _curves(tmp_path / "curves.png")
    tracker = opener(uri, params={"dataset.batch_size": 128, "mesh.axes": {"batch": 8}})
    tracker.page.command, tracker.page.facts["mesh"] = (
        "python -m runner mesh=batch8",
        "batch=8 on 8 virtual CPU devices",
    )
    tracker.show_page()
    for step in range(0, 300, 10):
        tracker.log_metrics(step, {"train/loss": 2 / (step + 1), "eval/accuracy": 1 - 1 / (step + 2)})
    tracker.log_dataset("mnist train", "abc", "tfds:mnist", "training")
    tracker.log_artifact(tmp_path / "config.yaml")
    tracker.log_artifact(tmp_path / "curves.png")
    tracker.finish("FINISHED")
    return tracker.describe()


@pytest.fixture
def ui(described, tmp_path):
    """The addresses that `describe` prints, with the command that it prints running."""
    command = described[0].removeprefix("view with: ")
    address = re.search(r"http://[\d.:]+", described[1]).group()
    with (tmp_path / "ui.log").open("wb") as log:
        process = subprocess.Popen(
            command, shell=True, stdout=log, stderr=log, start_new_session=True, env=environment(), cwd=tmp_path
        )
    try:
        wait_until_up(address, process)
        yield [line.split(": ", 1)[1] for line in described[1:]]
    finally:
        kill(process)


@pytest.fixture
def page():
    playwright = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=_FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(_PATIENCE_MS)
        yield page
        browser.close()


def _shot(page, name: str) -> None:
    if folder := os.environ.get("RUNNER_SHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def test_a_person_sees_the_run_its_params_its_curves_and_its_artifacts(ui, page):
    run_page, all_runs = ui
    page.goto(run_page)
    page.get_by_role("heading", name="a run").wait_for()
    page.get_by_text("dataset.batch_size", exact=True).first.wait_for()
    page.get_by_text("128", exact=True).first.wait_for()
    page.get_by_text("mnist train").first.wait_for()
    _is_training_view(page)
    page.get_by_text("mesh: batch=8 on 8 virtual CPU devices").wait_for()
    page.get_by_role("button", name="Show more").or_(page.get_by_text("Show more")).first.click()
    page.get_by_text("python -m runner mesh=batch8").wait_for()
    _shot(page, "overview")

    page.get_by_role("tab", name="Model metrics").click()
    page.locator(".js-plotly-plot .scatterlayer .trace").first.wait_for()
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .scatterlayer .trace').length >= 2")
    _shot(page, "metrics")

    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_text("config.yaml").first.wait_for()
    page.get_by_text("curves.png").first.click()
    page.wait_for_function("[...document.images].some(i => i.naturalWidth === 600 && i.naturalHeight === 400)")
    _shot(page, "artifacts")

    page.goto("about:blank")  # else only the address's part after # changes
    page.goto(all_runs)
    _lists_the_run(page)
    _shot(page, "experiment")


def _lists_the_run(page) -> None:
    page.get_by_text("a run", exact=True).first.wait_for()
    page.get_by_role("columnheader", name="Run Name").first.wait_for()
    _is_training_view(page)


def _is_training_view(page) -> None:
    page.get_by_text("Model registry").first.wait_for()  # the GenAI view has none
    assert page.get_by_text("Evaluation runs").count() == 0
