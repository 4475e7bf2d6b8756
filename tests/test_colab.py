"""On Colab a notebook comes alone: its first cell has to fetch the package, and the rest has to run on it."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import nbformat
import nbformat.v4 as nb
import pytest
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

import links
import refresh
from project import ROOT

PROJECT = links.Project()
ALONE = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
GIT = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]


class Elsewhere(refresh.ThisPython):
    """Start a kernel that finds all that is installed here but for this project."""

    @property
    def kernel_spec(self) -> KernelSpec:
        spec = super().kernel_spec
        spec.argv.insert(1, "-S")  # leaves out the .pth files, by which an editable installation is found
        packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        spec.env = {"PYTHONPATH": os.pathsep.join(packages)}
        return spec


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bare repository of the files of this project, tagged as its version."""
    if not (ROOT / ".git").exists():
        pytest.skip("only a git checkout can tell which files would be published")
    work = tmp_path_factory.mktemp("work")
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for file in filter(None, files.split("\0")):
        if (ROOT / file).is_file():
            (work / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, work / file)
    bare = tmp_path_factory.mktemp("published") / "project.git"
    for command in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["commit", "--quiet", "--no-gpg-sign", "--message", "Publish"],
        ["tag", PROJECT.tag],
        ["clone", "--quiet", "--bare", ".", str(bare)],
    ):
        subprocess.run([*GIT, *command], cwd=work, env=ALONE, check=True)
    return bare


def redirected(repository: str) -> dict[str, str]:
    """Return an environment in which git takes `repository` for the project's public address."""
    return ALONE | {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{repository}.insteadOf",
        "GIT_CONFIG_VALUE_0": PROJECT.address,
    }


def run(notebook: NotebookNode, folder: Path, environment: dict[str, str]) -> NotebookNode:
    """Execute `notebook` in `folder`, where nothing of this project is."""
    client = NotebookClient(
        notebook,
        kernel_manager_class=Elsewhere,
        resources={"metadata": {"path": str(folder)}},
        timeout=120,
    )
    return client.execute(env=environment)


def printed(cell: NotebookNode) -> str:
    """Return what `cell` wrote."""
    return "".join(output.get("text", "") for output in cell.outputs)


# One is enough, for nbval runs them all and their first cells are the same: the one that needs the most.
def test_a_notebook_alone_runs_to_the_end_on_the_package_it_fetched(published: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "notebooks" / "13_pretrained_heads.ipynb", as_version=4)
    setup = next(cell for cell in notebook.cells if "setup" in cell.metadata.get("tags", ()))
    again = nb.new_code_cell(setup.source)
    where = nb.new_code_cell("import mha\n\nprint(mha.__file__)")
    notebook.cells += [again, where]
    run(notebook, tmp_path, redirected(published.as_uri()))
    assert setup.outputs == again.outputs == []
    clone = tmp_path / f"{PROJECT.name}-{PROJECT.tag}"
    assert Path(printed(where).strip()) == (clone / "mha" / "__init__.py").resolve()


def test_the_set_up_cell_runs_again_after_a_restart(published: Path, tmp_path: Path) -> None:
    for _ in range(2):
        setup = nb.new_code_cell(PROJECT.setup())
        found = nb.new_code_cell("importlib.util.find_spec('mha').origin")
        run(nb.new_notebook(cells=[setup, found]), tmp_path, redirected(published.as_uri()))
        assert setup.outputs == []
        assert PROJECT.tag in found.outputs[0].data["text/plain"]
    assert [path.name for path in tmp_path.iterdir()] == [f"{PROJECT.name}-{PROJECT.tag}"]


def test_a_clone_that_fails_says_what_to_do_and_leaves_nothing(tmp_path: Path) -> None:
    notebook = nb.new_notebook(cells=[nb.new_code_cell(PROJECT.setup())])
    missing = (tmp_path / "missing").as_uri()
    with pytest.raises(CellExecutionError, match=f"{PROJECT.address}: check the network, then run this cell"):
        run(notebook, tmp_path, redirected(missing))
    assert list(tmp_path.iterdir()) == []
