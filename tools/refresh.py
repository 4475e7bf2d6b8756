"""Re-execute the notebooks and store their outputs: `make refresh`, or `make refresh NOTEBOOK=03`.

Each notebook runs from top to bottom in a fresh kernel, in its own folder. What is stored is free of all
that differs from one run or one machine to the next, so a second refresh changes no byte.
"""

import argparse
import difflib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from project import ROOT, notebooks

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE_INFO = {"name": "python"}
CELL_TIMEOUT = 120  # seconds


class ThisPython(AsyncKernelManager):
    """Start the kernel with the Python that runs this file, whatever the machine calls "python3"."""

    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]
        return KernelSpec(argv=argv, **{key: KERNELSPEC[key] for key in ("display_name", "language")})


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Run every cell of `notebook` in a fresh kernel that works in `folder`; an error in a cell is raised."""
    for cell in _code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        kernel_manager_class=ThisPython,
        resources={"metadata": {"path": str(folder)}},
        timeout=CELL_TIMEOUT,
        shutdown_kernel="immediate",  # it has nothing to save, and being asked kindly costs a second
        record_timing=False,
        coalesce_streams=True,
    )
    client.execute()


def normalise(notebook: NotebookNode) -> None:
    """Leave in `notebook` only what is the same after every run: sources, ids, tags and outputs."""
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = {"kernelspec": dict(KERNELSPEC), "language_info": dict(LANGUAGE_INFO)}
    for cell in notebook.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = {"tags": tags} if tags else {}
    for cell in _code_cells(notebook):
        for output in cell.outputs:
            if "metadata" in output:
                output.metadata = {}
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = output.data["image/png"].strip()


def write(notebook: NotebookNode, path: Path) -> None:
    """Store `notebook` at `path` whole or not at all."""
    nbformat.validate(notebook)
    text = nbformat.writes(notebook).rstrip("\n") + "\n"
    temporary = path.with_suffix(".ipynb.new")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def changes(before: NotebookNode, after: NotebookNode) -> Iterator[str]:
    """Yield, for every cell whose stored outputs changed, which cell it is and a diff of its text."""
    for number, (old, new) in enumerate(zip(before.cells, after.cells, strict=True)):
        if old.get("outputs") == new.get("outputs"):
            continue
        yield f"  cell {number} (id {new.id}): {new.source.strip().splitlines()[0]}"
        lines = difflib.unified_diff(_text(old), _text(new), lineterm="", n=0)
        text = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
        yield from (f"    {line}" for line in text or ["(no text: a picture, or a number of execution)"])


def refresh(path: Path) -> Iterator[str]:
    """Re-execute the notebook at `path` and store it if anything changed; yield what changed."""
    before = nbformat.read(path, as_version=4)
    after = nbformat.read(path, as_version=4)
    execute(after, path.parent)
    normalise(after)
    old_text = path.read_text(encoding="utf-8")
    write(after, path)
    if path.read_text(encoding="utf-8") == old_text:
        yield "  unchanged"
    else:
        yield from changes(before, after)


def _code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _text(cell: NotebookNode) -> list[str]:
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join(texts).splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="", help="only notebooks whose name starts so, e.g. 03")
    name = parser.parse_args().name
    chosen = [path for path in notebooks() if path.name.startswith(name)]
    if not chosen:
        parser.error(f"no notebook has a name that starts with {name!r}")
    with tempfile.TemporaryDirectory() as profile:
        os.environ["IPYTHONDIR"] = profile  # no start-up files or settings of the person who runs this
        for path in chosen:
            print(path.relative_to(ROOT).as_posix(), flush=True)
            try:
                for line in refresh(path):
                    print(line)
            except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                print(f"{error}\n{path.name} is left as it was.", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
