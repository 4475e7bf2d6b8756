"""Marks what you wrote by hand, and names the mistake.

>>> from mha import check
>>> result = check.split_heads(split_heads)  # shows the verdict and returns it
>>> check.hint("split_heads")  # where, then what, then how
"""

import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from mha.check import mistakes as _entries  # noqa: F401  (fills the catalogue)
from mha.check.catalogue import CATALOGUE, Mistake
from mha.check.diagnose import mark
from mha.check.exercise import Exercise
from mha.check.exercises import EXERCISES
from mha.check.layers import Call, mark_layer
from mha.check.record import RECORD, hint, progress, solution, start_clock
from mha.check.result import NotPassedError, Result

__all__ = [
    "CATALOGUE",
    "EXERCISES",
    "Exercise",
    "Mistake",
    "NotPassedError",
    "Result",
    "hint",
    "mark",
    "mark_layer",
    "multi_head_attention",
    "progress",
    "solution",
    "start_clock",
    *EXERCISES,
]


def _shown(result: Result) -> Result:
    print(result.message)
    if _in_a_notebook():
        figure = result.picture()
        if figure is not None:
            from IPython.display import display

            display(figure)
    RECORD.keep(result)
    return result


def _in_a_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


def multi_head_attention(
    answer: type[nn.Module] | nn.Module, *, call: Call | None = None, num_heads: int | None = None
) -> Result:
    """Mark a layer, with its own weights: show the verdict and return it.

    Args:
        answer: your class, called as answer(d_model, num_heads), or a layer that is built already.
        call: how to call the layer where that is not layer(Q, K, V, mask), for instance
            `lambda layer, Q, K, V, mask: layer(Q, K, V, attn_mask=mask)`.
        num_heads: of a built layer that has no attribute to tell.
    """
    return _shown(mark_layer(answer, call, num_heads))


def _checker(exercise: Exercise) -> Callable[[Callable[..., Any]], Result]:
    def check(answer: Callable[..., Any]) -> Result:
        return _shown(mark(exercise, answer))

    check.__name__ = check.__qualname__ = exercise.name
    check.__doc__ = f"Mark your `{exercise.name}{exercise.signature}`: show the verdict and return it."
    return check


globals().update({name: _checker(exercise) for name, exercise in EXERCISES.items()})
