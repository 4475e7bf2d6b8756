"""Marks what you wrote by hand, and names the mistake.

>>> from mha import check
>>> result = check.split_heads(split_heads)  # shows the verdict and returns it
"""

from collections.abc import Callable
from typing import Any

from mha.check import mistakes as _entries  # noqa: F401  (fills the catalogue)
from mha.check.catalogue import CATALOGUE, Mistake
from mha.check.diagnose import NotPassedError, Result, mark
from mha.check.exercises import EXERCISES, Exercise

__all__ = ["CATALOGUE", "EXERCISES", "Exercise", "Mistake", "NotPassedError", "Result", "mark", *EXERCISES]


def _checker(exercise: Exercise) -> Callable[[Callable[..., Any]], Result]:
    def check(answer: Callable[..., Any]) -> Result:
        result = mark(exercise, answer)
        print(result.message)
        return result

    check.__name__ = check.__qualname__ = exercise.name
    check.__doc__ = f"Mark your `{exercise.name}{exercise.signature}`: show the verdict and return it."
    return check


globals().update({name: _checker(exercise) for name, exercise in EXERCISES.items()})
