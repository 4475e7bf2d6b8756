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
from mha.check.layers.calls import Call
from mha.check.layers.inputs import Weights
from mha.check.layers.marking import mark_layer
from mha.check.layers.own_input import Inputs
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
    answer: type[nn.Module] | nn.Module | Callable[..., Any],
    *,
    num_heads: int | None = None,
    weights: Weights | None = None,
    inputs: Inputs | None = None,
    call: Call | None = None,
) -> Result:
    """Mark an attention of your own, with its own weights: show the verdict and return it.

    >>> check.multi_head_attention(MyAttention)  # made as MyAttention(d_model, num_heads), or with a config
    >>> check.multi_head_attention(layer, inputs=(Q, K, V, mask))  # built, and where it seems to go wrong
    >>> check.multi_head_attention(attend, weights=(W_q, W_k, W_v, W_o), num_heads=8)  # any function

    A layer that takes one input, forward(x) or forward(x, mask), is compared as self-attention. If it takes
    no mask and is causal by itself, it is compared under a causal mask, and the verdict says so; one that is
    causal although it takes a mask makes a mistake, `layer-always-causal`. Three projections in one, such as
    `c_attn`, may be cut in any order, also head by head, unless their name tells an order: `qkv`, `in_proj`.

    Args:
        answer: a class; a layer that is built, which is left as it was; or a function (Q, K, V, mask=None).
            Q is (B, Lq, d_model), K and V are (B, Lk, d_model), a mask is (B, 1, Lq, Lk), True where a query
            may attend. The output, or output and weights (B, h, Lq, Lk), come back.
        num_heads: of a function, or of a layer that has no attribute to tell; how many to make a class with.
        weights: (W_q, W_k, W_v, W_o) of a function, or of a layer in which they are not found: each a tensor
            (out, in), as nn.Linear stores it, or an nn.Linear. Without W_o, the heads joined are the output.
        inputs: an input of your own, on which it is tried as well: X, (Q, K, V) or (Q, K, V, mask). The
            verdict says whether it goes wrong there, or only there.
        call: how to call the answer where that is not answer(Q, K, V, mask), for instance
            `lambda layer, Q, K, V, mask: layer(Q, K, V, attn_mask=mask)`; one that takes its weights too:
            `lambda attend, Q, K, V, mask: attend(Q, K, V, W_q, W_k, W_v, W_o, 8, mask)`.

    Raises:
        ValueError: if `num_heads`, `weights`, `inputs` or `call` cannot be used; it says what was wanted.
    """
    return _shown(mark_layer(answer, call, num_heads, weights, inputs))


def _checker(exercise: Exercise) -> Callable[[Callable[..., Any]], Result]:
    def check(answer: Callable[..., Any]) -> Result:
        return _shown(mark(exercise, answer))

    check.__name__ = check.__qualname__ = exercise.name
    check.__doc__ = f"Mark your `{exercise.name}{exercise.signature}`: show the verdict and return it."
    return check


globals().update({name: _checker(exercise) for name, exercise in EXERCISES.items()})
