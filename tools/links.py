"""Write the project's public address and version wherever they have to stand: `make links`.

The address is `[project.urls] Repository` in pyproject.toml. It goes into the Colab badge and set-up cell of
every notebook, and into every link to the project in the documents. All else stays as it is, byte for byte.
"""

import json
import re
import sys
from pathlib import Path

from project import ROOT, notebooks, settings

# The picture is our own: Colab's would be fetched from there whenever somebody opens a notebook.
BADGE = "[![Open in Colab]({up}images/open-in-colab.svg)](https://{colab}/{owner}/{name}/blob/{tag}/{path})"
COLAB = "colab.research.google.com/github"

SETUP = """\
import importlib.util
import subprocess
import sys
from pathlib import Path

if importlib.util.find_spec("mha") is None:  # on Colab: fetch the course; elsewhere this does nothing
    address, tag = "{address}", "{tag}"
    folder = Path(f"{name}-{{tag}}").resolve()
    clone = ["git", "-c", "advice.detachedHead=false", "clone", "--quiet", "--depth=1", "--branch", tag]
    if not folder.exists() and subprocess.call([*clone, address, str(folder)]) != 0:
        raise RuntimeError(f"Could not fetch {{address}}: check the network, then run this cell again")
    sys.path.insert(0, str(folder))"""


class LinkError(Exception):
    """Something that has to be put right by hand before the links can be written."""


class Project:
    """The project at `root`, with the address and version that its pyproject.toml gives."""

    def __init__(self, root: Path = ROOT) -> None:
        project = settings(root)
        self.root = root
        self.name: str = project["name"]
        self.tag = f"v{project['version']}"
        self.address: str = project["urls"]["Repository"]
        # Colab opens notebooks from GitHub only; the name is what a link in a document is known by.
        match = re.fullmatch(rf"https://github\.com/([\w.-]+)/{re.escape(self.name)}", self.address)
        if match is None:
            raise LinkError(f"Repository = {self.address!r} has to be https://github.com/OWNER/{self.name}")
        self.owner = match[1]

    def files(self) -> list[Path]:
        """Return every file that holds the address: the documents and the notebooks."""
        return sorted(self.root.glob("*.md")) + notebooks(self.root)

    def stamp(self, path: Path) -> str:
        """Return the text of the file at `path` with its links as they should be."""
        text = path.read_bytes().decode("utf-8")
        return self._stamp_notebook(path, text) if path.suffix == ".ipynb" else self._stamp_document(text)

    def badge(self, where: Path) -> str:
        """Return the source of the badge cell of the notebook at `where`, a path from the root."""
        up = "../" * (len(where.parts) - 2)
        names = {"owner": self.owner, "name": self.name, "tag": self.tag}
        return BADGE.format(up=up, colab=COLAB, path=where.as_posix(), **names)

    def setup(self) -> str:
        """Return the source of the set-up cell, the same in every notebook."""
        return SETUP.format(address=self.address, name=self.name, tag=self.tag)

    def stale(self) -> dict[Path, str]:
        """Return the files whose links are not as they should be, each with the text it should have."""
        stamped = {path: self.stamp(path) for path in self.files()}
        return {path: text for path, text in stamped.items() if text.encode("utf-8") != path.read_bytes()}

    def _stamp_document(self, text: str) -> str:
        link = rf"(\bgithub\.com|{re.escape(COLAB)})/[\w.-]+/{re.escape(self.name)}\b"
        text = re.sub(link, rf"\1/{self.owner}/{self.name}", text)
        version = rf"(/{re.escape(self.name)}/(?:blob|tree)/)v\d+(?:\.\d+)*"
        return re.sub(version, rf"\1{self.tag}", text)

    def _stamp_notebook(self, path: Path, text: str) -> str:
        where = path.relative_to(self.root)
        notebook = json.loads(text)
        if _dumps(notebook) != text:
            raise LinkError(f"{where.as_posix()} is not stored as `make refresh` stores it; run that first")
        for tag, source in {"badge": self.badge(where), "setup": self.setup()}.items():
            cells = [cell for cell in notebook["cells"] if tag in cell["metadata"].get("tags", [])]
            if len(cells) != 1:
                raise LinkError(f"{where.as_posix()} has to have one cell tagged {tag!r}, not {len(cells)}")
            cells[0]["source"] = source.splitlines(keepends=True)
        return _dumps(notebook)


def _dumps(notebook: dict) -> str:
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"


def main() -> int:
    try:
        project = Project()
        stale = project.stale()
    except LinkError as error:
        print(error, file=sys.stderr)
        return 1
    for path, text in stale.items():
        path.write_bytes(text.encode("utf-8"))
        print(f"stamped {path.relative_to(project.root).as_posix()}")
    print(f"{len(project.files())} files link to {project.address} at {project.tag}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
