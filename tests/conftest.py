"""What several test files need."""

import nbformat.v4 as nb
import pytest
import torch
from nbformat import NotebookNode

import refresh

# Two workers share two cores: threads that wait for one another would make small tensors ten times slower.
# The notebooks run in kernels of their own and keep their threads.
torch.set_num_threads(1)

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="


@pytest.fixture
def notebook() -> NotebookNode:
    """Return a small notebook that keeps every rule of the course."""
    prose = "The two numbers are added, and their sum is what the line below the cell shows. " * 3
    outputs = {
        "x = 0.25\nx + 0.5": nb.new_output("execute_result", {"text/plain": "0.75"}, execution_count=2),
        "draw(x)": nb.new_output("display_data", {"image/png": PIXEL, "text/plain": "<Figure>"}),
        "print(x)": nb.new_output("stream", text="0.25\n"),
    }
    cells = [
        nb.new_markdown_cell("[Colab](https://example.org)", id="badge", metadata={"tags": ["badge"]}),
        nb.new_markdown_cell("# What is the sum?", id="title"),
        nb.new_code_cell("import sys", id="setup", metadata={"tags": ["setup"]}, execution_count=1),
    ]
    for count, (source, output) in enumerate(outputs.items(), start=2):
        cells.append(nb.new_markdown_cell(prose, id=f"prose-{count}"))
        cells.append(nb.new_code_cell(source, id=f"code-{count}", execution_count=count, outputs=[output]))
    cells += [
        nb.new_markdown_cell("## Your turn", id="turn", metadata={"tags": ["exercise"]}),
        nb.new_markdown_cell("Next: [the product](02_product.ipynb)", id="next"),
    ]
    made = nb.new_notebook(cells=cells)
    refresh.normalise(made)
    return made
