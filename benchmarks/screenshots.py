"""Takes the screenshots of MLflow for the pages: `python -m benchmarks.screenshots [--out docs/images]`.

`--sweep latest` takes the list and the comparison of a sweep's runs (`python -m runner experiment=sweep_batch_size`).
`--run latest` takes the charts of a run. docs/mlflow.md names the command of the run that its picture shows.
Needs playwright and a Chromium of the system.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from runner.cli.runs import records
from runner.cluster.launch import free_port
from runner.config.schema import TrackingConfig
from runner.host.paths import project_root
from runner.tracking.location import default_uri
from runner.tracking.store import Store, find_sweep, open_tracking

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
_COLOURS = 64  # of a saved picture; an interface has few
_CLOSE = (1244, 36)  # the cross of the panel, which has no name
_PATIENCE_MS = 90_000
# Without it, MLflow opens its view for GenAI.
_VIEW = "workflowType=machine_learning"


@contextmanager
def served(uri: str, folder: Path) -> Iterator[str]:
    """Runs `mlflow ui` on a store; yields its address."""
    port = free_port()
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, "--port", str(port), "--workers", "1"]
    with (folder / "ui.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=os.environ | settings)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 180
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=2).close()
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.3)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


@contextmanager
def browser_page(width: int, height: int) -> Iterator[Any]:
    """Yields a page of a headless Chromium."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is None:
        raise SystemExit("no Chromium on this machine; install the system's package")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=_FLAGS)
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(_PATIENCE_MS)
        yield page
        browser.close()


def close_assistant(page: Any) -> None:
    """Closes the panel that MLflow opens on the right, where it is open."""
    page.wait_for_timeout(4000)  # it comes late
    if page.get_by_text("MLflow Assistant").count():
        page.mouse.click(*_CLOSE)
        page.wait_for_timeout(1000)


def choose_metric(page: Any, name: str) -> None:
    """Puts a metric in the place of the one that the comparison shows first, and leaves the command out."""
    for word in ("run.command", "plan/bytes_per_device"):
        chip = page.get_by_text(word, exact=True)
        if chip.count():
            edge = chip.first.bounding_box()
            page.mouse.click(edge["x"] + edge["width"] + 13, edge["y"] + edge["height"] / 2)  # its cross
            page.wait_for_timeout(300)
    box = page.get_by_role("combobox").nth(1)
    box.click()
    box.type(name)
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")


def save(page: Any, path: Path) -> None:
    """Writes what the page shows as a small PNG."""
    page.wait_for_timeout(1500)  # charts fade in
    close_assistant(page)
    page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(_COLOURS).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


def take_sweep(page: Any, store: Store, reference: str, address: str, out: Path) -> None:
    """Takes the table of a sweep's runs, and the comparison of their accuracy.

    Args:
      page: of the browser.
      store: the tracking store, which `address` serves.
      reference: a sweep's run ID or `latest`.
      address: of the MLflow UI.
      out: folder of the pictures.
    """
    parent = find_sweep(store, reference)
    experiment = parent.info.experiment_id
    wanted = f"tags.mlflow.parentRunId = '{parent.info.run_id}'"
    children = store.client.search_runs([experiment], wanted, order_by=["attributes.start_time ASC"])
    page.goto(f"{address}/#/experiments/{experiment}/runs?{_VIEW}")
    page.get_by_text(parent.info.run_name, exact=True).first.wait_for()
    expander = page.locator("[role=row]", has_text=parent.info.run_name).locator("button[aria-label*=xpand], button")
    expander.first.click()
    page.get_by_text(children[0].info.run_name, exact=True).first.wait_for()
    save(page, out / "runs.png")
    ids = ",".join(f'"{run.info.run_id}"' for run in children)
    page.goto(f'{address}/#/compare-runs?runs=[{ids}]&experiments=["{experiment}"]&{_VIEW}')
    page.locator(".js-plotly-plot").first.wait_for()
    close_assistant(page)
    choose_metric(page, "eval/accuracy")
    save(page, out / "compare.png")


def take_charts(page: Any, store: Store, reference: str, address: str, out: Path) -> None:
    """Takes the charts of a run's metrics.

    Args:
      page: of the browser.
      store: the tracking store, which `address` serves.
      reference: a run's ID, its beginning, its name or `latest`.
      address: of the MLflow UI.
      out: folder of the picture.
    """
    run_id = records.pick(reference, records.tracked(store)).run_id
    page.goto(f"{address}/#/experiments/{store.experiment_id}/runs/{run_id}/model-metrics?{_VIEW}")
    page.locator(".js-plotly-plot .scatterlayer .trace").first.wait_for()
    close_assistant(page)
    save(page, out / "charts.png")


def main() -> None:
    """Takes the pictures of a sweep, of a run, or of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", help="run ID of a sweep, or latest")
    parser.add_argument("--run", help="ID or name of a run, or latest")
    parser.add_argument("--out", type=Path, default=project_root() / "docs" / "images")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    store = open_tracking(TrackingConfig())
    with served(default_uri(project_root()), options.out) as address, browser_page(1280, 720) as page:
        if options.sweep:
            take_sweep(page, store, options.sweep, address, options.out)
        if options.run:
            take_charts(page, store, options.run, address, options.out)
    (options.out / "ui.log").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
