"""Where the configs lie and where runs write."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def conf_dir() -> Path:
    """Returns the config folder: inside the package (a wheel), else beside it (a checkout).

    Raises:
      RuntimeError: neither is there.
    """
    for candidate in (_PACKAGE / "conf", _PACKAGE.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise RuntimeError(f"no conf/config.yaml in {_PACKAGE} or beside it; install the package again")


def project_root() -> Path:
    """Returns the checkout that holds the package, else the current directory."""
    checkout = _PACKAGE.parent
    return checkout if (checkout / "pyproject.toml").is_file() and (checkout / "conf").is_dir() else Path.cwd()


def outputs_dir() -> Path:
    """Returns the folder that runs write into, absolute."""
    return project_root() / "outputs"


def shown(path: Path) -> str:
    """Returns a path as a person is shown it: from the current directory, where it lies in that."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
