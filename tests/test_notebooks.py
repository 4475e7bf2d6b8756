"""Every notebook keeps the rules of the course, each rule bites, and so does nbval."""

import copy
import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import nbformat.v4 as nb
import pytest
from nbformat import NotebookNode

import notebook_form as form
from project import ROOT, notebooks

NOTEBOOKS = notebooks()


def name(value: Path | Callable) -> str:
    """Return what stands for `value` in a test's name."""
    return value.relative_to(ROOT).as_posix() if isinstance(value, Path) else value.__name__


def test_the_course_begins_with_the_inputs() -> None:
    assert [path.name for path in NOTEBOOKS if path.parent.name == "notebooks"][0] == "01_inputs.ipynb"


@pytest.mark.parametrize("rule", form.RULES, ids=name)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_every_notebook_keeps_every_rule(path: Path, rule: Callable) -> None:
    assert list(rule(form.read(path))) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_the_links_in_every_notebook_hold(path: Path) -> None:
    later = [other for other in NOTEBOOKS if other.parent == path.parent and other.name > path.name]
    assert list(form.links_hold(form.read(path), path, min(later, default=None))) == []


def test_a_good_notebook_keeps_every_rule(notebook: NotebookNode, tmp_path: Path) -> None:
    for file in ("01_sum.ipynb", "02_product.ipynb"):
        nbformat.write(notebook, tmp_path / file)
    stored = form.read(tmp_path / "01_sum.ipynb")
    problems = [rule(stored) for rule in form.RULES]
    problems.append(form.links_hold(stored, tmp_path / "01_sum.ipynb", tmp_path / "02_product.ipynb"))
    assert list(itertools.chain(*problems)) == []


def edit(cell_id: str, **changes: object) -> Callable[[NotebookNode], None]:
    """Return a change of one cell of a notebook."""

    def apply(notebook: NotebookNode) -> None:
        (cell,) = (cell for cell in notebook.cells if cell.id == cell_id)
        cell.update(copy.deepcopy(changes))

    return apply


def swap_two_cells(notebook: NotebookNode) -> None:
    notebook.cells[4], notebook.cells[6] = notebook.cells[6], notebook.cells[4]


def drop_an_id(notebook: NotebookNode) -> None:
    del notebook.cells[4]["id"]


def add_timings(notebook: NotebookNode) -> None:
    notebook.cells[4].metadata["execution"] = {"iopub.execute_input": "2026-11-29T12:00:00Z"}


def name_a_kernel(notebook: NotebookNode) -> None:
    notebook.metadata.kernelspec.name = "my-kernel"


def move_the_exercise_up(notebook: NotebookNode) -> None:
    notebook.cells.insert(3, notebook.cells.pop(-2))


def stay_silent(notebook: NotebookNode) -> None:
    for cell in notebook.cells[4:9:2]:
        cell.outputs, cell.metadata = [], {"tags": ["no-output"]}


def forget_the_badge(notebook: NotebookNode) -> None:
    del notebook.cells[0]


def text(value: str) -> list[NotebookNode]:
    """Return the outputs of a cell that shows `value`."""
    return [nb.new_output("stream", text=value)]


WARNING = [nb.new_output("stream", name="stderr", text="UserWarning")]
TABLE = [nb.new_output("display_data", {"text/html": "<td>3 s</td>"})]
NO_OUTPUT = {"tags": ["no-output"]}
LONG = "\n".join(f"x{i} = {i}" for i in range(26))

BREAKS = [
    (form.is_valid, edit("code-2", outputs=[{"output_type": "nonsense"}]), "not valid"),
    (form.is_valid, edit("code-2", metadata={"collapsed": True}), "metadata"),
    (form.is_valid, add_timings, "metadata"),
    (form.is_valid, name_a_kernel, "metadata"),
    (form.has_ids, edit("code-2", id="code-3"), "cell 6 has no id of its own: 'code-3'"),
    (form.has_ids, drop_an_id, "cell 4 has no id"),
    (form.is_executed_in_order, swap_two_cells, "cell 4 was executed as [3], not [2]"),
    (form.is_executed_in_order, edit("code-3", execution_count=None), "cell 6 was executed as [None]"),
    (form.stores_outputs, edit("code-2", outputs=[]), "cell 4 has 0 outputs"),
    (form.stores_outputs, edit("code-2", metadata=NO_OUTPUT), "cell 4 has 1 outputs"),
    (form.stores_outputs, edit("setup", outputs=text("cloned")), "cell 2 has 1 outputs"),
    (form.has_no_errors, edit("code-2", outputs=[nb.new_output("error", ename="ValueError")]), "ValueError"),
    (
        form.has_no_errors,
        edit("code-2", outputs=[nb.new_output("stream", name="stderr", text="x")]),
        "stderr",
    ),
    (form.is_impersonal, edit("code-2", outputs=text("<object at 0x7f3a9c0d1e50>")), "an address"),
    (form.is_impersonal, edit("code-2", outputs=text("saved to /home/ada/map.png")), "a path"),
    (form.is_impersonal, edit("code-2", outputs=text(r"saved to C:\Users\ada")), "a path"),
    (form.is_impersonal, edit("code-2", outputs=text("~/.cache/x")), "a path"),
    (form.is_impersonal, edit("code-2", outputs=text("cell.py:3: UserWarning")), "a place in a file"),
    (form.is_impersonal, edit("code-2", outputs=text("at 12:30:59")), "a clock time"),
    (form.is_impersonal, edit("code-2", outputs=text("on 2026-11-29")), "a clock time"),
    (form.is_impersonal, edit("code-2", outputs=text("took 3.2 ms")), "a duration"),
    (
        form.is_impersonal,
        edit("code-2", outputs=[nb.new_output("display_data", {"text/html": "3 s"})]),
        "3 s",
    ),
    (form.opens_as_agreed, forget_the_badge, "starts with"),
    (form.opens_as_agreed, edit("title", source="What is the sum?"), "no title"),
    (form.opens_as_agreed, edit("code-2", metadata={"tags": ["no-ouptut"]}), "no-ouptut"),
    (form.opens_as_agreed, edit("next", metadata={"tags": ["badge"]}), "badge"),
    (form.has_an_exercise, edit("turn", metadata={}), "exercise in cells []"),
    (form.has_an_exercise, move_the_exercise_up, "exercise in cells [3] of 11"),
    (form.is_in_small_steps, edit("code-2", source=LONG), "cell 4 has 26 lines"),
    (form.explains, edit("prose-2", source=""), "has 35 words of prose to a code cell"),
    (form.explains, edit("prose-2", source="```\n" + "word " * 90 + "\n```"), "has 35 words"),
    (form.explains, edit("prose-2", source="word " * 300), "has 135 words"),
    (form.explains, edit("prose-2", source="\u8bcd" * 480), "has 135 words"),
    (form.shows, stay_silent, "only 0% of the code cells"),
    (form.shows, edit("code-3", outputs=text("a picture")), "no picture"),
]


@pytest.mark.parametrize(("rule", "harm", "expected"), BREAKS)
def test_every_rule_bites(
    notebook: NotebookNode, rule: Callable, harm: Callable[[NotebookNode], None], expected: str
) -> None:
    harm(notebook)
    problems = list(rule(notebook))
    assert any(expected in problem for problem in problems), problems


def test_every_rule_is_shown_to_bite() -> None:
    assert {rule for rule, _, _ in BREAKS} == set(form.RULES)


def test_three_long_cells_of_four_are_too_many(notebook: NotebookNode) -> None:
    for cell in notebook.cells[4:9:2]:
        cell.source = "\n".join("abcdef")
    assert list(form.is_in_small_steps(notebook)) == ["the median code cell has 6 lines"]


def test_a_class_on_show_may_be_long(notebook: NotebookNode) -> None:
    edit("code-2", source="class Long:\n" + LONG)(notebook)
    assert list(form.is_in_small_steps(notebook)) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("[more](03_nothing.ipynb)", "links to 03_nothing.ipynb"),
        ("![map](images/nothing.svg)", "links to images/nothing.svg"),
        ("![map](https://example.org/map.png)", "picture from elsewhere"),
        ("[![map](https://example.org/map.png)](https://example.org)", "picture from elsewhere"),
        ("<img src='https://example.org/map.png'>", "picture from elsewhere"),
        ("That is all.", "no link to 02_product.ipynb"),
    ],
)
def test_a_broken_link_is_found(notebook: NotebookNode, tmp_path: Path, source: str, expected: str) -> None:
    (tmp_path / "02_product.ipynb").touch()
    edit("next", source=source)(notebook)
    problems = form.links_hold(notebook, tmp_path / "01_sum.ipynb", tmp_path / "02_product.ipynb")
    assert any(expected in problem for problem in problems)


def test_nbval_fails_the_cell_whose_stored_number_changed_and_no_other(tmp_path: Path) -> None:
    for file, shown in {"right.ipynb": "1.125\n", "wrong.ipynb": "1.126\n"}.items():
        outputs = (
            nb.new_output("execute_result", {"text/plain": "0.125"}, execution_count=1),
            nb.new_output("stream", text=shown),
        )
        cells = [
            nb.new_code_cell("x = 1 / 8\nx", execution_count=1, outputs=[outputs[0]]),
            nb.new_code_cell("print(x + 1)", execution_count=2, outputs=[outputs[1]]),
        ]
        nbformat.write(nb.new_notebook(cells=cells), tmp_path / file)
    settings = ["-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "no:cacheprovider", "-rA"]
    command = [sys.executable, "-m", "pytest", *settings, tmp_path]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    outcomes = re.findall(r"^(PASSED|FAILED) (\w+\.ipynb::Cell \d)", run.stdout, flags=re.MULTILINE)
    assert sorted(outcomes) == [
        ("FAILED", "wrong.ipynb::Cell 1"),
        ("PASSED", "right.ipynb::Cell 0"),
        ("PASSED", "right.ipynb::Cell 1"),
        ("PASSED", "wrong.ipynb::Cell 0"),
    ], run.stdout + run.stderr
