"""What every notebook of the course has to be: a function for each rule, which yields what breaks it."""

import copy
import itertools
import platform
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

import refresh

TAGS = {"badge", "setup", "exercise", "no-output"}


def read(path: Path) -> NotebookNode:
    """Return the notebook at `path` as it is stored: nothing repaired, upgraded or completed."""
    return nbformat.v4.reads(path.read_text(encoding="utf-8"))


def is_valid(notebook: NotebookNode) -> Iterator[str]:
    """The notebook is valid nbformat 4.5 and stored as `make refresh` stores it."""
    try:
        nbformat.validate(copy.deepcopy(notebook))
    except nbformat.ValidationError as error:
        yield f"not valid: {str(error).splitlines()[0]}"
        return
    normal = copy.deepcopy(notebook)
    refresh.normalise(normal)
    if normal != notebook:
        yield "holds metadata of one run or one machine: run make refresh"


def has_ids(notebook: NotebookNode) -> Iterator[str]:
    """Every cell has an id of its own."""
    ids = [cell.get("id") for cell in notebook.cells]
    for number, cell_id in enumerate(ids):
        if not cell_id or cell_id in ids[:number]:
            yield f"cell {number} has no id of its own: {cell_id!r}"


def is_executed_in_order(notebook: NotebookNode) -> Iterator[str]:
    """The code cells were executed from top to bottom in one go."""
    for expected, (number, cell) in enumerate(_code(notebook), start=1):
        if cell.execution_count != expected:
            yield f"cell {number} was executed as [{cell.execution_count}], not [{expected}]"


def stores_outputs(notebook: NotebookNode) -> Iterator[str]:
    """A code cell has an output if and only if no tag says otherwise; nbval passes one without, unchecked."""
    for number, cell in _code(notebook):
        silent = _tags(cell) & {"setup", "no-output"}
        if bool(silent) == bool(cell.outputs):
            yield f"cell {number} has {len(cell.outputs)} outputs and the tags {sorted(_tags(cell))}"


def has_no_errors(notebook: NotebookNode) -> Iterator[str]:
    """No cell stores an error or a warning."""
    for number, cell in _code(notebook):
        for output in cell.outputs:
            if output.output_type == "error" or output.get("name") == "stderr":
                yield f"cell {number} stores {output.get('ename', 'stderr')}"


# What differs from one run or one machine to the next.
PRIVATE = {
    "an address": r"\b0x[0-9a-fA-F]{6,}",
    "a path": r"(?<![\w.:/<&])(?:/[\w.+-]+){2,}|\b[A-Za-z]:\\\w|~/\w|\bsite-packages\b",
    "a place in a file": r"\.py:\d+|\bFile \"",
    "a clock time": r"\b\d{1,2}:\d{2}:\d{2}\b|\b20\d\d-\d\d-\d\d\b|\b(?:CPU times|Wall time)\b",
    "a duration": r"\b\d+(?:\.\d+)? ?(?:ns|µs|μs|us|ms|s|sec|secs|seconds|min|it/s)\b",
}


def is_impersonal(notebook: NotebookNode) -> Iterator[str]:
    """No output holds a path, clock time, memory address or the machine's name."""
    host = platform.node()
    patterns = PRIVATE | ({"this machine's name": rf"\b{re.escape(host)}\b"} if len(host) > 3 else {})
    for number, cell in _code(notebook):
        for text, (what, pattern) in itertools.product(_texts(cell), patterns.items()):
            if found := re.search(pattern, text):
                yield f"cell {number} shows {what}: {found[0]!r}"


def opens_as_agreed(notebook: NotebookNode) -> Iterator[str]:
    """The notebook starts with the badge, the title and the set-up, and holds no tag that nobody knows."""
    start = [(cell.cell_type, _tags(cell)) for cell in notebook.cells[:3]]
    if start != [("markdown", {"badge"}), ("markdown", set()), ("code", {"setup"})]:
        yield f"starts with {start}, not with badge, title and set-up"
    elif not notebook.cells[1].source.startswith("# "):
        yield "cell 1 is no title"
    for number, cell in enumerate(notebook.cells):
        known = TAGS if number < 3 else TAGS - {"badge", "setup"}
        if unknown := _tags(cell) - known:
            yield f"cell {number} has the tags {sorted(unknown)}"


def has_an_exercise(notebook: NotebookNode) -> Iterator[str]:
    """The marked place for the exercise lies in the last quarter."""
    places = [number for number, cell in enumerate(notebook.cells) if "exercise" in _tags(cell)]
    if not places or min(places) < 0.75 * len(notebook.cells):
        yield f"has its exercise in cells {places} of {len(notebook.cells)}"


def links_hold(notebook: NotebookNode, path: Path, following: Path | None) -> Iterator[str]:
    """Links to files find them, pictures are local, and the last cell links to the notebook that follows."""
    for number, cell in _markdown(notebook):
        prose = _without_code(cell.source)
        pictures = re.findall(r"!\[[^\]]*\]\(([^)\s]+)|<img[^>]*?\bsrc=[\"']([^\"']+)", prose)
        for picture in map("".join, pictures):
            if re.match(r"\w+:|//", picture):
                yield f"cell {number} shows a picture from elsewhere: {picture}"
        for target in [*re.findall(r"\]\(([^)\s]+)", prose), *map("".join, pictures)]:
            if not re.match(r"\w+:|//|#", target) and not (path.parent / target.partition("#")[0]).exists():
                yield f"cell {number} links to {target}, which is not there"
    if following is not None and f"]({following.name})" not in notebook.cells[-1].source:
        yield f"the last cell has no link to {following.name}"


def is_in_small_steps(notebook: NotebookNode) -> Iterator[str]:
    """Half of the code cells have at most 5 lines, and none over 25 but a class on show."""
    lengths = {number: len(cell.source.splitlines()) for number, cell in _own_code(notebook)}
    if statistics.median(lengths.values()) > 5:
        yield f"the median code cell has {statistics.median(lengths.values())} lines"
    for number, length in lengths.items():
        if length > 25 and not notebook.cells[number].source.startswith("class "):
            yield f"cell {number} has {length} lines"


def explains(notebook: NotebookNode) -> Iterator[str]:
    """There are 40 to 120 words of prose to a code cell on average."""
    words = sum(_words(cell.source) for _, cell in _markdown(notebook) if "badge" not in _tags(cell))
    average = words / len(_own_code(notebook))
    if not 40 <= average <= 120:
        yield f"has {average:.0f} words of prose to a code cell"


def shows(notebook: NotebookNode) -> Iterator[str]:
    """At least 85 % of the code cells have an output, and one of the outputs is a picture."""
    own = _own_code(notebook)
    share = sum(bool(cell.outputs) for _, cell in own) / len(own)
    if share < 0.85:
        yield f"only {share:.0%} of the code cells have an output"
    if not any("image/png" in output.get("data", {}) for _, cell in own for output in cell.outputs):
        yield "shows no picture"


RULES = (
    is_valid,
    has_ids,
    is_executed_in_order,
    stores_outputs,
    has_no_errors,
    is_impersonal,
    opens_as_agreed,
    has_an_exercise,
    is_in_small_steps,
    explains,
    shows,
)


def _tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def _code(notebook: NotebookNode) -> list[tuple[int, NotebookNode]]:
    return [(number, cell) for number, cell in enumerate(notebook.cells) if cell.cell_type == "code"]


def _own_code(notebook: NotebookNode) -> list[tuple[int, NotebookNode]]:
    # The set-up cell is the same in all of them and says nothing of this one.
    return [(number, cell) for number, cell in _code(notebook) if "setup" not in _tags(cell)]


def _markdown(notebook: NotebookNode) -> list[tuple[int, NotebookNode]]:
    return [(number, cell) for number, cell in enumerate(notebook.cells) if cell.cell_type == "markdown"]


def _texts(cell: NotebookNode) -> Iterator[str]:
    for output in cell.outputs:
        yield output.get("text", "")
        for kind, data in output.get("data", {}).items():
            if kind not in ("image/png", "image/jpeg"):
                yield str(data)


def _without_code(markdown: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", " ", markdown, flags=re.DOTALL)


def _words(markdown: str) -> float:
    blocks_removed = re.sub(r"```.*?```", " ", markdown, flags=re.DOTALL)
    prose = re.sub(r"\]\([^)]*\)", "] ", blocks_removed)
    chinese = len(re.findall(r"[\u4e00-\u9fff]", prose))
    others = len(re.findall(r"[^\W\d_]+", re.sub(r"[\u4e00-\u9fff]", " ", prose)))
    return others + chinese / 1.6  # about as many Chinese characters stand for one English word
