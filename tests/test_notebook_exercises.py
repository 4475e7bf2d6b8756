"""The exercise cells of the notebooks: as handed out, solved, and with each of their mistakes put in."""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from torch import Tensor, nn
from traitlets.config import Config

from mha import MultiHeadAttention, check
from mha.check import EXERCISES
from project import notebooks
from test_check import WITHOUT_A_CELL


class Cell(NamedTuple):
    """A code cell that hands out something to write."""

    notebook: str
    name: str  # of the exercise
    source: str


def handed_out() -> list[Cell]:
    found = []
    for path in notebooks():
        for cell in nbformat.read(path, as_version=4).cells:
            names = re.findall(r"^result = check\.(\w+)\(", cell.source, re.M)
            found += [Cell(path.stem, name, cell.source) for name in names if cell.cell_type == "code"]
    return found


CELLS = handed_out()
FUNCTIONS = [cell for cell in CELLS if cell.name in EXERCISES]


def label(value: object) -> str | None:
    return f"{value.notebook}-{value.name}" if isinstance(value, Cell) else None


def passed_on(arguments: list) -> list:
    """Return the arguments as they were passed: what was left at its default, at the end, is not."""
    while arguments and (arguments[-1] is None or arguments[-1] is False):
        arguments = arguments[:-1]
    return arguments


def filled_in(source: str) -> str:
    """Return an exercise's cell with `answer` in the place of what is to be written."""
    handed_out = next(
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    )
    if isinstance(handed_out, ast.ClassDef):
        return source.replace("result = ", f"{handed_out.name} = answer\nresult = ", 1)
    names = [argument.arg for argument in handed_out.args.args]
    return source.replace("    ...", f"    return answer(*passed_on([{', '.join(names)}]))", 1)


def run_cell(cell: Cell, answer: Callable | None, capsys: pytest.CaptureFixture) -> str:
    """Run an exercise's cell, its `...` replaced by a call of `answer`, and return what it shows."""
    source = cell.source if answer is None else filled_in(cell.source)
    known = {"answer": answer, "check": check, "nn": nn, "passed_on": passed_on}
    exec(compile(source, f"<{label(cell)}>", "exec"), known)
    return capsys.readouterr().out


class NoValues(MultiHeadAttention):
    """A layer that never looks at V."""

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return super().forward(Q, K, K, mask)


def wrong_and_right(name: str) -> list[tuple[Callable, str]]:
    """Return answers to an exercise, a wrong one first, and what the verdict on each has to say."""
    if name not in EXERCISES:
        return [(NoValues, "The values are made from K"), (MultiHeadAttention, f"{name}: passed.")]
    exercise = EXERCISES[name]
    entry = exercise.mistakes[-1]
    return [
        (exercise.with_mistakes(entry), entry.title),
        (exercise.reference, f"{name}: passed."),
    ]


def run_whole(path: Path) -> list[tuple[str, str]]:
    """Run a notebook's cells in order; each exercise is first done wrong, then right.

    Returns:
        What each verdict should say, and what the cell showed.
    """
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
    shell.display_formatter.active_types = ["text/plain"]  # no picture is drawn that nobody sees
    shell.user_ns["passed_on"] = passed_on
    shown = []
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code":
            continue
        asked = re.search(r"^result = check\.(\w+)\(", cell.source, re.M)
        source = filled_in(cell.source) if asked else cell.source
        for answer, verdict in wrong_and_right(asked[1]) if asked else [(None, "")]:
            shell.user_ns["answer"] = answer
            with capture_output() as captured:
                shell.run_cell(source).raise_error()
            shown += [(verdict, captured.stdout)] if asked else []
    return shown


def test_every_notebook_hands_out_its_exercises():
    expected = {
        "01_inputs": {"shapes"},
        "02_projections": {"linear_projection"},
        "03_split_heads": {"split_heads"},
        "04_attention": {"scaled_dot_product_attention"},
        "05_concat_heads": {"merge_heads"},
        "06_output_projection": {"output_projection"},
        "07_the_module": {"multi_head_attention", "from_torch_mha"},
        "08_masks": {"causal_mask", "padding_mask", "call_torch_mha", "call_torch_sdpa"},
        "09_cross_attention": {"cross_attention"},
        "10_learning_heads": {"specialisation"},
        "11_pruning_heads": {"prune_heads"},
        "12_positions": {"apply_rope", "alibi_slopes"},
        "13_pretrained_heads": {"load_bert_layer"},
    }
    for notebook, names in expected.items():
        assert {cell.name for cell in CELLS if cell.notebook == notebook} == names
    assert len([cell for cell in CELLS if cell.notebook == "18_whiteboard"]) == 8


@pytest.mark.parametrize("cell", CELLS, ids=label)
def test_as_handed_out_it_is_not_attempted_yet(cell, capsys):
    assert run_cell(cell, None, capsys) == f"{cell.name}: not attempted yet\n"


@pytest.mark.no_cover
@pytest.mark.parametrize("notebook", sorted({cell.notebook for cell in CELLS}))
def test_a_whole_notebook_runs_with_its_exercises_done_wrong_and_then_right(notebook):
    path = next(path for path in notebooks() if path.stem == notebook)
    shown = run_whole(path)
    assert len(shown) == 2 * len([cell for cell in CELLS if cell.notebook == notebook])
    for verdict, text in shown:
        assert verdict in text


@pytest.mark.no_cover
@pytest.mark.parametrize("cell", [cell for cell in FUNCTIONS if cell.notebook != "18_whiteboard"], ids=label)
def test_each_mistake_put_into_the_cell_is_named(cell, capsys):
    exercise = EXERCISES[cell.name]
    assert exercise.mistakes
    for entry in exercise.mistakes[::5]:  # test_check.py names every one of them
        said = run_cell(cell, exercise.with_mistakes(entry), capsys)
        assert entry.title in said or "more, which come to the same" in said, entry.id


def test_no_exercise_is_left_out():
    assert {cell.name for cell in FUNCTIONS} | set(WITHOUT_A_CELL) == set(EXERCISES)
