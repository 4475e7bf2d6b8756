"""From an answer to what is wrong with it.

The answer runs on every probe. Where it does not come to the right result, the pipeline runs with each
mistake of the catalogue put in, then with each two of them, and the ones that come to the same as the answer
on *every* probe are named. Where none does, the first probe on which it goes wrong is shown.
"""

import base64
import dis
import html
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mha.check.catalogue import Mistake
from mha.check.exercise import Exercise, Probe
from mha.check.outcome import Outcome, run, same

if TYPE_CHECKING:
    from mha.plot import NotebookFigure  # drawing is loaded when first asked for


class NotPassedError(Exception):
    """An answer that is not right; the message is the verdict."""


@dataclass(frozen=True)
class Result:
    """The verdict on one answer."""

    exercise: str
    passed: bool
    message: str
    stage: str | None = None
    mistakes: tuple[Mistake, ...] = ()
    attempted: bool = True
    given: Any = field(default=None, compare=False)  # on the first probe on which it is wrong
    wanted: Any = field(default=None, compare=False)

    def raise_if_failed(self) -> None:
        """Raise `NotPassedError` with the verdict unless the answer is right."""
        if not self.passed:
            raise NotPassedError(self.message)

    def picture(self) -> "NotebookFigure | None":
        """Draw the answer's weights beside the right ones; None where there are no weights of one shape."""
        wrong, right = (_weights_in(value) for value in (self.given, self.wanted))
        if wrong is None or right is None or wrong.shape != right.shape:
            return None
        from mha import plot

        return plot.compare(wrong[0], right[0], sides=("yours", "right"))

    def _repr_html_(self) -> str:
        verdict = f"<pre>{html.escape(self.message)}</pre>"
        figure = self.picture()
        if figure is None:
            return verdict
        png = base64.b64encode(figure._repr_png_()).decode()
        alt = "attention weights per head, the answer's beside the right ones"
        return f'{verdict}<img alt="{alt}" src="data:image/png;base64,{png}">'

    def __repr__(self) -> str:
        named = ", ".join(entry.id for entry in self.mistakes)
        return f"<{self.exercise}: {'passed' if self.passed else named or self.stage or 'not attempted'}>"


def mark(exercise: Exercise, answer: Callable[..., Any]) -> Result:
    """Mark `answer`, a function with the exercise's signature."""
    refusal = _cannot_be_called(exercise, answer)
    if refusal is not None:
        return refusal
    if is_blank(answer):
        return Result(exercise.name, False, f"{exercise.name}: not attempted yet", attempted=False)
    probes = exercise.probes()
    given = [run(exercise.drive(answer), probe.arguments) for probe in probes]
    return verdict([Comparison(exercise, probes, given)])


def judge(exercise: Exercise, *mistakes: Mistake) -> Result:
    """Return the verdict on an answer that makes just these mistakes of the catalogue."""
    wrong, probes = exercise.with_mistakes(*mistakes), exercise.probes()
    return verdict([Comparison(exercise, probes, [run(wrong, probe.arguments) for probe in probes])])


def verdict(readings: list["Comparison"]) -> Result:
    """Return the verdict on an answer that can be read in one way or in several.

    The first reading in which it is right counts; else the first in which one mistake explains it, else two.
    """
    for look in (Comparison.passed, Comparison.one_mistake, Comparison.two_mistakes):
        for reading in readings:
            result = look(reading)
            if result is not None:
                return result
    return readings[0].unknown()


class Comparison:
    """An answer's outcomes held against those of the right pipeline and of wrong ones."""

    def __init__(self, exercise: Exercise, probes: list[Probe], given: list[Outcome]) -> None:
        self.exercise, self.probes, self.given = exercise, probes, given
        self.wanted = [run(exercise.drive(exercise.reference), probe.arguments) for probe in probes]
        values = [outcome.value for outcome in given if outcome.error is None]
        # An answer may leave the weights away, if it does so every time.
        self.output_only = bool(values) and all(isinstance(value, Tensor) for value in values)

        self.wrong = [i for i, wanted in enumerate(self.wanted) if not self._alike(i, wanted)]

    def passed(self) -> Result | None:
        """Return the verdict if the answer is right on every probe."""
        if self.wrong:
            return None
        changed = sorted({thing for outcome in self.given for thing in outcome.changed})
        if changed:
            message = f"{self.exercise.name}: right result, but it changes {', '.join(changed)}"
            return Result(self.exercise.name, False, message, "side effects")
        remark = ""
        if self.output_only and isinstance(self.wanted[0].value, tuple):
            remark = " (It returns the output only; the package returns the weights as well.)"
        return Result(self.exercise.name, True, f"{self.exercise.name}: passed.{remark}")

    def one_mistake(self) -> Result | None:
        """Return the verdict if one mistake of the catalogue explains every probe."""
        return self._named([(entry,) for entry in self.exercise.mistakes if self._reproduces(entry)])

    def two_mistakes(self) -> Result | None:
        """Return the verdict if two mistakes together explain every probe."""
        pairs = [
            pair for pair in combinations(self.exercise.mistakes, 2) if not pair[0].clashes_with(pair[1])
        ]
        return self._named([pair for pair in pairs if self._reproduces(*pair)])

    def unknown(self) -> Result:
        """Return the verdict on what nothing in the catalogue explains: where it first goes wrong."""
        first = self.wrong[0]
        return self._failed(self._show(first), self.probes[first].stage)

    def _named(self, readings: list[tuple[Mistake, ...]]) -> Result | None:
        if not readings:
            return None
        certain = [entry for entry in readings[0] if all(entry in reading for reading in readings)]
        every = (entry for reading in readings for entry in reading)
        found = tuple(dict.fromkeys([*certain, *every]))
        return self._failed(self._name(readings), found[0].stage, found)

    def _failed(self, message: str, stage: str, mistakes: tuple[Mistake, ...] = ()) -> Result:
        first = self.wrong[0]
        given, wanted = self.given[first].value, self.wanted[first].value
        return Result(self.exercise.name, False, message, stage, mistakes, given=given, wanted=wanted)

    def _reproduces(self, *mistakes: Mistake) -> bool:
        wrong_code = self.exercise.with_mistakes(*mistakes)
        # From the richest probe to the poorest: most mistakes are told apart by the first.
        richest_first = reversed(range(len(self.probes)))
        return all(self._alike(i, run(wrong_code, self.probes[i].arguments)) for i in richest_first)

    def _alike(self, i: int, other: Outcome) -> bool:
        given = self.given[i]
        if given.error is not None or other.error is not None:
            return _said(given.error) == _said(other.error)
        value = other.value
        if self.output_only and isinstance(value, tuple):
            value = value[0]
        return same(given.value, value)

    def _name(self, readings: list[tuple[Mistake, ...]]) -> str:
        lines = [f"{self.exercise.name}: {_titles(readings[0])}"]
        lines += [f"  or, which comes to the same: {_titles(reading)}" for reading in readings[1:]]
        lines += [f"  {entry.effect}" for entry in readings[0]]
        return "\n".join(lines)

    def _show(self, i: int) -> str:
        probe, given = self.probes[i], self.given[i]
        if given.error is not None:
            where = f", {given.line}" if given.line else ""
            what = f"{type(given.error).__name__}: {given.error}{where}"
            return f"{self.exercise.name}: it raises on {probe.shows}\n  {what}"
        return "\n".join(
            [
                f"{self.exercise.name}: it first goes wrong at the stage '{probe.stage}', on {probe.shows}",
                f"  given:  {_describe(given.value)}",
                f"  wanted: {_describe(self.wanted[i].value)}",
            ]
        )


def _weights_in(value: Any) -> Tensor | None:
    """Return the weights (B, h, Lq, Lk) that stand behind an output, if any do."""
    weights = value[1] if isinstance(value, tuple) and len(value) == 2 else None
    return weights if isinstance(weights, Tensor) and weights.ndim == 4 and weights.numel() else None


def _titles(reading: tuple[Mistake, ...]) -> str:
    return "; and: ".join(entry.title for entry in reading)


def _said(error: BaseException | None) -> tuple[str, str] | None:
    # Sizes differ from probe to probe and between ways to write the same.
    return error and (type(error).__name__, re.sub(r"[\d\s,]+", "", str(error)))


def is_blank(answer: Callable[..., Any]) -> bool:
    """Whether `answer` is still as it was handed out: a docstring and `...`."""
    if inspect.isclass(answer):
        return all(is_blank(method) for method in vars(answer).values() if inspect.isfunction(method))
    code = getattr(answer, "__code__", None)
    if code is None:
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("RESUME", "NOP")]
    names = [step.opname for step in steps]
    return names in (["LOAD_CONST", "RETURN_VALUE"], ["RETURN_CONST"]) and steps[0].argval is None


def _cannot_be_called(exercise: Exercise, answer: object) -> Result | None:
    wanted = f"it has to be {exercise.wanted}"
    if not callable(answer):
        message = f"{exercise.name}: the answer is a {type(answer).__name__}; {wanted}"
        return Result(exercise.name, False, message, "signature")
    for probe in exercise.probes():
        try:
            inspect.signature(exercise.drive(answer)).bind(*probe.arguments.values())
        except TypeError:
            own = f"{getattr(answer, '__name__', 'it')}{inspect.signature(answer)}"
            message = f"{exercise.name}: the answer is {own}; {wanted}"
            return Result(exercise.name, False, message, "signature")
        except ValueError:
            return None  # a built-in function that does not tell its signature
    return None


def _describe(value: Any) -> str:
    if isinstance(value, tuple) and any(isinstance(item, Tensor) for item in value):
        return " and ".join(map(_describe, value))
    if isinstance(value, Tensor):
        shape = f"shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
        if value.numel() <= 12:
            shape += f", {_rounded(value)}"
        return shape
    return repr(value)


def _rounded(value: Tensor) -> str:
    return str(
        (value.double() * 1000).round().div(1000).tolist() if value.is_floating_point() else value.tolist()
    )
