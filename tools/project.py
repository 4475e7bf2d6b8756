"""Where things are in this project, and what pyproject.toml says of it."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def settings(root: Path = ROOT) -> dict:
    """Return the table [project] of pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(project: dict) -> list[str]:
    """Return all that `project`, as `settings` gives it, depends on, extras included."""
    return sum(project["optional-dependencies"].values(), start=project["dependencies"])


def notebooks(root: Path = ROOT) -> list[Path]:
    """Return the notebooks in the order of the course, each language for itself."""
    found = (root / "notebooks").rglob("*.ipynb")
    return sorted(path for path in found if ".ipynb_checkpoints" not in path.parts)
