"""The exercise cells of the notebooks: as handed out, solved, and with each of their mistakes put in."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from mha.check import EXERCISES
from mha.check.exercises import Exercise
from project import notebooks


def exercise_cells(path: Path) -> list[str]:
    """Return the sources of the code cells that hand out a function to write."""
    cells = nbformat.read(path, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "code" and "check." in cell.source]


def handed_out() -> dict[str, str]:
    found = {}
    for path in notebooks():
        for source in exercise_cells(path):
            for name in re.findall(r"= check\.(\w+)\(\1\)", source):
                found[name] = source
    return found


CELLS = handed_out()
FUNCTIONS = [name for name in CELLS if name in EXERCISES]


def run_cell(name: str, answer: Callable | None, capsys: pytest.CaptureFixture) -> str:
    """Run the cell of an exercise, its `...` replaced by a call of `answer`, and return what it shows."""
    source = CELLS[name]
    if answer is not None:
        function = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
        arguments = ", ".join(argument.arg for argument in function.args.args)
        source = source.replace("    ...", f"    return answer({arguments})", 1)
    exec(compile(source, f"<{name}>", "exec"), {"answer": answer})
    return capsys.readouterr().out


def without_none(exercise: Exercise, function: Callable) -> Callable:
    # A cell passes every argument on, the ones left at None too.
    return lambda *arguments: function(*[x for x in arguments if x is not None])


def test_the_notebooks_hand_out_their_exercises():
    assert {
        "linear_projection",
        "split_heads",
        "scaled_dot_product_attention",
        "merge_heads",
        "output_projection",
    } <= set(CELLS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_handed_out_it_is_not_attempted_yet(name, capsys):
    assert run_cell(name, None, capsys) == f"{name}: not attempted yet\n"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_solved_it_passes(name, capsys):
    answer = without_none(EXERCISES[name], EXERCISES[name].reference)
    assert run_cell(name, answer, capsys).startswith(f"{name}: passed.")


@pytest.mark.parametrize(
    "name, id", [(name, entry.id) for name in FUNCTIONS for entry in EXERCISES[name].mistakes]
)
def test_each_mistake_put_into_the_cell_is_named(name, id, capsys):
    exercise = EXERCISES[name]
    (entry,) = (entry for entry in exercise.mistakes if entry.id == id)
    said = run_cell(name, without_none(exercise, exercise.with_mistakes(entry)), capsys)
    assert entry.title in said
