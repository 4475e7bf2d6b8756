"""What stands in two places agrees, and the tools do what their names say."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import nbformat.v4 as nb
import pytest
import yaml
from nbclient.exceptions import CellExecutionError
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import check_python
import constraints
import environment
import links
import portable
import project
import refresh
from project import ROOT

SETTINGS = project.settings()


def read(name: str) -> str:
    """Return the text of a file of the project."""
    return (ROOT / name).read_text(encoding="utf-8")


# constraints.txt


def pinned() -> dict[str, str]:
    """Return the versions of constraints.txt by name."""
    lines = (line for line in read("constraints.txt").splitlines() if not line.startswith("#"))
    return dict(line.split("==") for line in lines)


def test_every_dependency_is_pinned_to_a_version_in_its_range() -> None:
    versions = pinned()
    for requirement in map(Requirement, project.requirements(SETTINGS)):
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


def test_the_pins_name_versions_that_any_build_of_torch_has() -> None:
    assert [f"{name}=={version}" for name, version in pinned().items() if "+" in version] == []
    assert not [name for name in pinned() if name.startswith(("nvidia", "triton"))]


@pytest.mark.parametrize(
    ("marker", "counts"),
    [
        (None, True),
        ("python_version >= '3'", True),
        ("platform_system == 'Linux' and sys_platform == 'linux'", False),
        ("sys_platform != 'win32'", sys.platform != "win32"),
        ("extra == 'torch'", True),
        ("extra == 'docs'", False),
    ],
)
def test_what_only_linux_needs_is_not_pinned(marker: str | None, counts: bool) -> None:
    assert constraints.needed(marker and Marker(marker), "torch") is counts


# environment.yml

MATCH_SPEC = re.compile(r"[a-z0-9_][a-z0-9_.-]*((>=|<=|==|!=|>|<)\d+(\.\d+)*(,(?!$)|$))*")


def conda_dependencies() -> list:
    """Return the list of dependencies in environment.yml."""
    return yaml.safe_load(read("environment.yml"))["dependencies"]


def test_environment_yml_is_what_pyproject_toml_makes_it() -> None:
    assert read("environment.yml") == environment.environment(SETTINGS), "run make environment"


def test_every_entry_of_environment_yml_is_one_that_conda_understands() -> None:
    *packages, by_pip = conda_dependencies()
    assert [entry for entry in packages if not MATCH_SPEC.fullmatch(entry)] == []
    assert by_pip == {"pip": ["--editable ."]}


@pytest.mark.parametrize("entry", ["torch~=2.10", "huggingface-hub[cli]>=1", "numpy >=2; python_version>'3'"])
def test_an_entry_that_only_pip_understands_is_recognised(entry: str) -> None:
    assert not MATCH_SPEC.fullmatch(entry)


def test_environment_yml_covers_every_dependency_under_the_name_conda_has_for_it() -> None:
    entries = conda_dependencies()
    assert f"python{SETTINGS['requires-python']}" in entries
    for requirement in map(Requirement, project.requirements(SETTINGS)):
        conda_name = environment.CONDA_NAMES.get(requirement.name, requirement.name)
        assert f"{conda_name}{requirement.specifier}" in entries


# the workflow, and the command that it shares with .ci/run and the README


def test_the_workflow_runs_the_oldest_python_and_torch_that_are_supported() -> None:
    matrix = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]["test"]["strategy"]["matrix"]
    assert f">={matrix['python'][0]}" == SETTINGS["requires-python"]
    assert matrix["torch"][0].replace("==", ">=").removesuffix(".*") in SETTINGS["dependencies"]


def test_the_readme_the_workflow_and_ci_run_name_one_test_command() -> None:
    steps = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["make test"]
    assert read(".ci/run").splitlines()[-1] == "make test"
    for readme in ("README.md", "README.zh.md"):
        assert "\nmake test\n" in read(readme)


# links


@pytest.fixture
def copied(tmp_path: Path) -> links.Project:
    """Return a copy of all that holds a link."""
    for path in [ROOT / "pyproject.toml", *links.Project().files()]:
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return links.Project(tmp_path)


def rewrite(path: Path, old: str, new: str) -> None:
    """Replace `old`, which has to be there, in the file at `path`."""
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new).encode())


def test_all_links_to_the_project_agree() -> None:
    stale = links.Project().stale()
    assert [path.relative_to(ROOT).as_posix() for path in stale] == [], "run make links"


def test_every_badge_opens_the_notebook_that_it_stands_in() -> None:
    for path in project.notebooks():
        where = path.relative_to(ROOT).as_posix()
        address = SETTINGS["urls"]["Repository"].replace("github.com", "colab.research.google.com/github")
        assert f"({address}/blob/v{SETTINGS['version']}/{where})" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["README.md", "README.zh.md", "notebooks/01_inputs.ipynb"])
def test_a_link_that_was_altered_is_found_and_put_right(copied: links.Project, name: str) -> None:
    path = copied.root / name
    before = path.read_bytes()
    rewrite(path, f"github.com/{copied.owner}/", "github.com/SOMEONE/")
    stale = copied.stale()
    assert list(stale) == [path]
    assert stale[path].encode() == before


def test_a_link_to_a_file_of_another_version_is_put_right_and_one_to_a_branch_stays(
    copied: links.Project,
) -> None:
    path = copied.root / "README.md"
    path.write_text(f"{copied.address}/blob/v0.0.9/x {copied.address}/tree/main/x", encoding="utf-8")
    assert copied.stale()[path] == f"{copied.address}/blob/{copied.tag}/x {copied.address}/tree/main/x"


def test_a_new_address_and_version_reach_every_file_and_change_nothing_else(copied: links.Project) -> None:
    old = {path: path.read_bytes().decode() for path in copied.files()}
    rewrite(copied.root / "pyproject.toml", copied.address, "https://github.com/ada/mha-by-hand")
    rewrite(copied.root / "pyproject.toml", f'version = "{copied.tag[1:]}"', 'version = "12.3.4"')
    stamped = links.Project(copied.root).stale()
    assert set(stamped) >= {path for path in old if path.suffix == ".ipynb" or path.name.startswith("README")}
    for path, text in stamped.items():
        assert copied.owner not in text
        back = text.replace("v12.3.4", copied.tag).replace("/ada/", f"/{copied.owner}/")
        assert back == old[path]


def test_an_address_by_which_no_link_could_be_recognised_is_refused(copied: links.Project) -> None:
    rewrite(copied.root / "pyproject.toml", copied.address, "https://example.org/mha-by-hand")
    with pytest.raises(links.LinkError, match=re.escape("has to be https://github.com/OWNER/mha-by-hand")):
        links.Project(copied.root)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [('"badge"\n', '"bagde"\n', "one cell tagged 'badge', not 0"), ("\n ", "\n  ", "run that first")],
)
def test_a_notebook_that_cannot_be_stamped_is_named(
    copied: links.Project, old: str, new: str, message: str
) -> None:
    rewrite(copied.root / "notebooks" / "01_inputs.ipynb", old, new)
    with pytest.raises(links.LinkError, match=f"notebooks/01_inputs.ipynb .*{message}"):
        copied.stale()


# refresh


def store(path: Path, *sources: str) -> None:
    """Store a notebook with these code cells, never executed, at `path`."""
    cells = [nb.new_code_cell(source, id=f"cell-{i}") for i, source in enumerate(sources)]
    cells[0].metadata = {"tags": ["no-output"], "collapsed": True}
    metadata = {"kernelspec": {"name": "my-own", "display_name": "My own", "language": "python"}}
    nbformat.write(nb.new_notebook(cells=cells, metadata=metadata), path)


def test_a_second_refresh_changes_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "01_sum.ipynb"
    picture = "from matplotlib import pyplot\n\nimage = pyplot.imshow([[0, x]])"
    store(path, "x = 1 / 8", "print(x, flush=True)\nprint(x + 1)", "x + 2", picture)
    changes = "\n".join(refresh.refresh(path))
    assert "cell 2 (id cell-2): x + 2\n    +2.125" in changes
    first = path.read_bytes()
    assert list(refresh.refresh(path)) == ["  unchanged"]
    assert path.read_bytes() == first
    stored = json.loads(first)
    assert stored["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert [cell["metadata"] for cell in stored["cells"]] == [{"tags": ["no-output"]}, {}, {}, {}]
    assert [cell["id"] for cell in stored["cells"]] == ["cell-0", "cell-1", "cell-2", "cell-3"]
    assert [cell["execution_count"] for cell in stored["cells"]] == [1, 2, 3, 4]
    assert stored["cells"][1]["outputs"][0]["text"] == ["0.125\n", "1.125\n"]
    assert stored["cells"][3]["outputs"][0]["data"]["image/png"].startswith("iVBOR")


def test_an_error_in_a_cell_is_shown_and_the_notebook_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "01_sum.ipynb"
    store(path, "x = 1 / 8", "x / 0")
    before = path.read_bytes()
    with pytest.raises(CellExecutionError, match=r"x / 0(.|\n)*ZeroDivisionError"):
        list(refresh.refresh(path))
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


# portable

PROBE = """
import torch
from numpy._core import _multiarray_umath as numpy_core

print("torch", torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
print("numpy", any(numpy_core.__cpu_features__[name] for name in numpy_core.__cpu_dispatch__))
torch.nn.functional.gelu(torch.ones(8, 64, 64))
if torch.backends.mkl.is_available():
    with torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_ON):
        torch.ones(64, 64) @ torch.ones(64, 64)
"""
CAPPED = {
    "one thread, no AVX": [
        "torch DEFAULT 1",
        "isa:Intel SSE4.1\n",
        "CNR:COMPATIBLE",
        "NThr:1",
        "Core: Nehalem",
        "numpy False",
    ],
}


@pytest.mark.skipif(
    platform.system() != "Linux", reason="elsewhere torch comes without some of the libraries"
)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the caps are those of x86")
@pytest.mark.parametrize("name", CAPPED)
def test_every_library_heeds_its_cap(name: str) -> None:
    loud = {"ONEDNN_VERBOSE": "1", "OPENBLAS_VERBOSE": "2"}
    run = subprocess.run(
        [sys.executable, "-c", PROBE],
        env=os.environ | loud | portable.PROCESSORS[name],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [sign for sign in CAPPED[name] if sign not in run.stdout + run.stderr] == []


# the Python that .venv is made with


def test_an_old_python_is_told_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_python.problem() is None
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    assert "This is Python 3.10.13" in check_python.problem()
    assert f"needs {SETTINGS['requires-python'].removeprefix('>=')} or newer" in check_python.problem()


def test_a_python_without_venv_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    assert "apt install python3-venv" in check_python.problem()
