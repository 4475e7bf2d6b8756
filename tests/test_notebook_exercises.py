"""The exercise cells of the notebooks: as handed out, solved, and with each of their mistakes put in."""

import ast
import re
from collections.abc import Callable
from typing import NamedTuple

import nbformat
import pytest
from torch import nn

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
LAYERS = [cell for cell in CELLS if cell.name == "multi_head_attention"]


def label(value: object) -> str | None:
    return f"{value.notebook}-{value.name}" if isinstance(value, Cell) else None


def passed_on(arguments: list) -> list:
    """Return the arguments as they were passed: what was left at its default, at the end, is not."""
    while arguments and (arguments[-1] is None or arguments[-1] is False):
        arguments = arguments[:-1]
    return arguments


def run_cell(cell: Cell, answer: Callable | None, capsys: pytest.CaptureFixture) -> str:
    """Run an exercise's cell, its `...` replaced by a call of `answer`, and return what it shows."""
    source = cell.source
    if answer is not None:
        function = next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
        names = [argument.arg for argument in function.args.args]
        source = source.replace("    ...", f"    return answer(*passed_on([{', '.join(names)}]))", 1)
    known = {"answer": answer, "check": check, "nn": nn, "passed_on": passed_on}
    exec(compile(source, f"<{label(cell)}>", "exec"), known)
    return capsys.readouterr().out


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


@pytest.mark.parametrize("cell", FUNCTIONS, ids=label)
def test_solved_it_passes(cell, capsys):
    assert run_cell(cell, EXERCISES[cell.name].reference, capsys).startswith(f"{cell.name}: passed.")


@pytest.mark.parametrize("cell", LAYERS, ids=label)
def test_a_solved_layer_passes_and_a_wrong_one_is_named(cell, capsys):
    class Wrong(MultiHeadAttention):
        def forward(self, Q, K, V, mask=None):
            return super().forward(Q, K, K, mask)

    for layer, verdict in [(MultiHeadAttention, "passed"), (Wrong, "The values are made from K")]:
        asked = re.search(r"^result = .*", cell.source, re.M)[0]
        exec(asked, {"check": check, "MultiHeadAttention": layer})
        assert capsys.readouterr().out.startswith(f"multi_head_attention: {verdict}")


@pytest.mark.parametrize("cell", [cell for cell in FUNCTIONS if cell.notebook != "18_whiteboard"], ids=label)
def test_each_mistake_put_into_the_cell_is_named(cell, capsys):
    exercise = EXERCISES[cell.name]
    assert exercise.mistakes
    for entry in exercise.mistakes:
        assert entry.title in run_cell(cell, exercise.with_mistakes(entry), capsys), entry.id


def test_no_exercise_is_left_out():
    assert {cell.name for cell in FUNCTIONS} | set(WITHOUT_A_CELL) == set(EXERCISES)
