"""Write environment.yml, the conda route, from the dependencies in pyproject.toml: `make environment`."""

import re

from project import ROOT, requirements, settings

# conda-forge's names where they differ from PyPI's. The -base packages leave out Qt and statistics.
CONDA_NAMES = {
    "torch": "pytorch",
    "matplotlib": "matplotlib-base",
    "seaborn": "seaborn-base",
    "huggingface-hub": "huggingface_hub",
}

# pip finds all that the package needs already there, so the last line adds the package itself and no more.
TEMPLATE = """\
# Written by `make environment` from pyproject.toml. Use it with: conda env create --file environment.yml
name: {name}
channels:
  - conda-forge
  - nodefaults
dependencies:
{dependencies}
  - pip
  - pip:
      - --editable .
"""


def to_conda(requirement: str) -> str:
    """Return a requirement such as `torch>=2.10` under the name that conda-forge has for it."""
    name, specifier = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
    return CONDA_NAMES.get(name, name) + specifier


def environment(project: dict) -> str:
    """Return the text of environment.yml for `project`, the table [project] of pyproject.toml."""
    wanted = ["python" + project["requires-python"], *map(to_conda, requirements(project))]
    return TEMPLATE.format(name=project["name"], dependencies="\n".join(f"  - {each}" for each in wanted))


def main() -> None:
    (ROOT / "environment.yml").write_text(environment(settings()), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
