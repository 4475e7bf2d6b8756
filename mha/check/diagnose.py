"""From an answer to what is wrong with it.

The answer runs on every probe. Where it does not come to the right result, the pipeline runs with each
mistake of the catalogue put in, then with each two of them, and the ones that come to the same as the answer
on *every* probe are named. Where none does, the first probe on which it goes wrong is shown.
"""

import dis
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mha.check import evidence
from mha.check.catalogue import Mistake, pairs_of
from mha.check.errors import alike_in_kind, kind_of, text_of, what_it_says
from mha.check.exercise import Exercise, Probe
from mha.check.mistakes import behaviour
from mha.check.outcome import Outcome, alike, attempt, computes_in_float32, dtypes_of, run, same
from mha.check.result import Result, named
from mha.check.unlisted import MANY, Unlisted

CANCEL = 1_000  # as many surprises it is that two mistakes cancel out where an answer is right
PATIENCE = 5_000  # as many pairs of mistakes are tried though each alone does not bear them out


def mark(exercise: Exercise, answer: Callable[..., Any]) -> Result:
    """Mark `answer`, a function with the exercise's signature."""
    probes = exercise.probes()
    refusal = _cannot_be_called(exercise, answer, probes)
    if refusal is not None:
        return refusal
    if is_blank(answer):
        return Result(exercise.name, False, f"{exercise.name}: not attempted yet", attempted=False)
    call = exercise.drive(answer)
    given = [run(call, probe.arguments) for probe in probes]
    behaves = _unsteady(exercise, call, probes[-1], given[-1])
    if behaves is not None:
        return behaves
    comparison, remarks = Comparison(exercise, probes, given), []
    narrow = _in_float32(comparison, call)
    if narrow is not None:
        exercise, probes = narrow, narrow.probes()
        comparison = Comparison(exercise, probes, [run(call, probe.arguments) for probe in probes])
        remarks.append("It computes in float32 inside, so that is where it was compared.")
    result = comparison.verdict()
    if not result.passed:
        return result
    remarks += filter(None, [exercise.remark(answer)])
    result = replace(result, message=" ".join([result.message, *(f"({remark})" for remark in remarks)]))
    return _gradients(exercise, call, probes) or result


def _in_float32(comparison: "Comparison", call: Callable[..., Any]) -> Exercise | None:
    """Return the exercise in float32, if a wrong answer rounds to it inside and gives back what came."""
    outcomes = list(zip(comparison.given, comparison.wanted, strict=True))
    values = [(given.value, wanted.value) for given, wanted in outcomes if given.error is None]
    kept = all(dtypes_of(given) == dtypes_of(wanted) for given, wanted in values)
    if not comparison.wrong or not values or not kept:
        return None
    arguments = comparison.probes[comparison.wrong[0]].arguments
    return comparison.exercise.in_float32() if computes_in_float32(call, arguments) else None


def judge(exercise: Exercise, *mistakes: Mistake) -> Result:
    """Return the verdict on an answer that makes just these mistakes of the catalogue."""
    wrong, probes = exercise.with_mistakes(*mistakes), exercise.probes()
    return Comparison(exercise, probes, [run(wrong, probe.arguments) for probe in probes]).verdict()


def explained(readings: list["Comparison"]) -> tuple["Comparison", Result]:
    """Return which of several readings of an answer explains it best, and the verdict under it.

    The first reading in which it is right counts; else the first in which one mistake explains it, else two.
    """
    for look in (Comparison.passed, Comparison.one_mistake, Comparison.two_mistakes):
        for reading in readings:
            result = look(reading)
            if result is not None:
                return reading, result
    return readings[0], readings[0].unknown()


class Comparison:
    """An answer's outcomes held against those of the right pipeline and of wrong ones."""

    def __init__(self, exercise: Exercise, probes: list[Probe], given: list[Outcome]) -> None:
        self.exercise, self.probes = exercise, probes
        self.wanted = [self._right(i) for i in range(len(probes))]
        self.given = [self._read(i, outcome) for i, outcome in enumerate(given)]
        values = [outcome.value for outcome in self.given if outcome.error is None]
        # An answer may leave the weights away, if it does so every time.
        self.output_only = bool(values) and all(isinstance(value, Tensor) for value in values)
        self.of_numbers = any(one.value is not other.value for one, other in zip(self.given, given))
        self.wrong = [i for i, wanted in enumerate(self.wanted) if not self.agrees(i, wanted)]

    def verdict(self) -> Result:
        """Return the verdict on an answer that can be read in this way only."""
        return explained([self])[1]

    def passed(self) -> Result | None:
        """Return the verdict if the answer is right on every probe."""
        if self.wrong:
            return None
        changed = sorted({thing for outcome in self.given for thing in outcome.changed})
        if changed:
            inputs = [thing for thing in changed if thing.startswith("its input")]
            entry = behaviour.INPUT_CHANGED if inputs else behaviour.SETTING_CHANGED
            return named(self.exercise.name, entry, f"It changes {', '.join(changed)}.")
        remarks = "".join(f" ({remark})" for remark in self._remarks())
        return Result(self.exercise.name, True, f"{self.exercise.name}: passed.{remarks}")

    def _remarks(self) -> Iterable[str]:
        wanted = self.wanted[0].value
        if self.output_only and isinstance(wanted, tuple):
            yield "It returns the output only; the package returns the weights as well."
        if self.of_numbers and isinstance(wanted, Tensor):
            yield "Its mask is of numbers 0 and 1; the package's is bool, which torch's own functions want."
        if any(outcome.printed for outcome in self.given):
            yield "It prints while it runs."

    def one_mistake(self) -> Result | None:
        """Return the verdict if one mistake of the catalogue explains every probe."""
        return self.named_as([(entry,) for entry in self.exercise.mistakes if self._reproduces(entry)])

    def two_mistakes(self) -> Result | None:
        """Return the verdict if two mistakes together explain every probe."""
        if self._is_foreign():
            return None
        pairs = pairs_of(self.exercise.mistakes)
        surprises = self._surprises(pairs)
        likely = [pair for pair, n in zip(pairs, surprises, strict=True) if n == 0]
        result = self.named_as([pair for pair in likely if self._reproduces(*pair)])
        if result is not None:
            return result
        # One mistake can bring another to light that alone would not show.
        others = [
            (one.alone or other.alone, n, (one, other)) for (one, other), n in zip(pairs, surprises) if n
        ]
        others.sort(key=lambda row: row[:2])  # those with a rare one last, and those with many surprises
        return self.named_as([pair for _, _, pair in others[:PATIENCE] if self._reproduces(*pair)])

    def _surprises(self, pairs: list[tuple[Mistake, Mistake]]) -> list[int]:
        """Count for each two mistakes the probes on which one would have to alter what the other does.

        Where neither does, it is no surprise that both do harm; or that one does, and comes to the answer's
        result alone. That both do harm where the answer is right counts as many.
        """
        number = {entry: i for i, entry in enumerate(dict.fromkeys(itertools.chain(*pairs)))}
        count = torch.zeros(len(number), len(number), dtype=torch.int)
        telling = self._most_telling_first[0]
        given, wanted = _weights_of(self.given[telling]), _weights_of(self.wanted[telling])
        # What does not touch the weights is to blame for nothing in them.
        if given is not None and wanted is not None:
            weights = [_weights_of(self.with_mistakes(telling, (entry,))) for entry in number]
            count += _surprising([same(x, wanted) for x in weights], [same(x, given) for x in weights])
        left = [count.numel()]  # of which each pair counts twice
        # The richest, the first that goes wrong and the poorest tell the most.
        for i in dict.fromkeys(
            [telling, self.wrong[0], self._most_telling_first[-1], *self._most_telling_first]
        ):
            tried = [self.with_mistakes(i, (entry,)) for entry in number]
            harmless = [alike(x, self.wanted[i]) for x in tried]
            if i in self.wrong:
                count += _surprising(harmless, [self.agrees(i, x) for x in tried])
            else:
                count += _cancelling(harmless) * CANCEL
            left.append(int((count == 0).sum()))
            # Few are left, or hardly fewer than before: try them.
            if left[-1] <= 2 * len(number) or (len(left) > 4 and left[-1] > 0.9 * left[-2]):
                break
        counted = count.tolist()
        return [counted[number[one]][number[other]] for one, other in pairs]

    def harmless(self, i: int, entry: Mistake) -> bool:
        """Whether a mistake does not show on probe i."""
        return alike(self.with_mistakes(i, (entry,)), self.wanted[i])

    def _is_foreign(self) -> bool:
        """Whether an error or a kind of result comes that no mistake makes: then no two need be tried."""
        telling = self._most_telling_first[0]
        known = (self.with_mistakes(telling, (entry,)) for entry in self.exercise.mistakes)
        return not _kinds(self.given[telling]) <= set().union(*map(_kinds, known))

    def unknown(self) -> Result:
        """Return the verdict on what nothing in the catalogue explains on every probe."""
        return Unlisted(self).verdict()

    def named_as(self, readings: list[tuple[Mistake, ...]]) -> Result | None:
        """Return the verdict that names what an answer can be read as; None if that is nothing."""
        if not readings:
            return None
        readings = list(filter(self._raise_the_same, readings)) or readings
        certain = [entry for entry in readings[0] if all(entry in reading for reading in readings)]
        every = (entry for reading in readings for entry in reading)
        found = tuple(dict.fromkeys([*certain, *every]))
        return self.failed(self._name(readings), found[0].stage, found)

    def failed(self, message: str, stage: str, mistakes: tuple[Mistake, ...] = ()) -> Result:
        """Return a verdict with the results of a probe to look at."""
        shown = self._most_telling()
        given, wanted = self.given[shown].value, self.wanted[shown].value
        return Result(self.exercise.name, False, message, stage, mistakes, given=given, wanted=wanted)

    def _most_telling(self) -> int:
        """Return the first probe whose weights are wrong in more than one head, else the first wrong one."""

        def several_heads(i: int) -> bool:
            given, wanted = self.given[i].value, self.wanted[i].value
            if not (isinstance(given, tuple) and isinstance(wanted, tuple) and len(given) == 2):
                return False
            weights = wanted[1]
            return (
                isinstance(weights, Tensor)
                and weights.ndim == 4
                and weights.size(1) > 1
                and not same(given[1], weights)
            )

        return next(filter(several_heads, self.wrong), self.wrong[0])

    def _reproduces(self, *mistakes: Mistake) -> bool:
        return all(self.agrees(i, self.with_mistakes(i, mistakes)) for i in self._most_telling_first)

    @functools.cached_property
    def _most_telling_first(self) -> list[int]:
        """The probes; those first on which few mistakes come to the same, as wrong and exact numbers do."""

        def says_little(i: int) -> bool:
            return i not in self.wrong or self.given[i].error is not None or _is_vague(self.given[i].value)

        return sorted(range(len(self.probes)), key=lambda i: (says_little(i), -i))

    def with_mistakes(self, i: int, mistakes: tuple[Mistake, ...]) -> Outcome:
        """Return what the pipeline with these mistakes comes to on probe i; it is worked out once."""
        known = self.exercise.outcomes
        if (i, mistakes) not in known:
            outcome = attempt(self.exercise.with_mistakes(*mistakes), self.probes[i].arguments)
            known[i, mistakes] = self._read(i, outcome)
        return known[i, mistakes]

    def _right(self, i: int) -> Outcome:
        """Return what the package's own code comes to on probe i; it is worked out once."""
        known = self.exercise.outcomes
        if (i, ()) not in known:
            known[i, ()] = run(self.exercise.drive(self.exercise.reference), self.probes[i].arguments)
        return known[i, ()]

    def _read(self, i: int, outcome: Outcome) -> Outcome:
        """Return the outcome of probe i as answers are compared: a mask of 0 and 1 as bool."""
        if _is_mask(self.wanted[i].value) and _is_of_0_and_1(outcome.value):
            return replace(outcome, value=outcome.value.bool())
        return outcome

    def agrees(self, i: int, other: Outcome) -> bool:
        """Whether the answer comes to the same as another outcome of probe i."""
        given = self.given[i]
        if given.error is None and other.error is None:
            return same(given.value, self.as_given(other.value))
        if given.error is None or other.error is None:
            return False
        # Where wrong numbers tell a mistake, what it raises elsewhere may be told in other words.
        told = what_it_says(given.error) == what_it_says(other.error)
        return told or (self._has_wrong_values and alike_in_kind(given.error, other.error))

    @functools.cached_property
    def _has_wrong_values(self) -> bool:
        outcomes = zip(self.given, self.wanted, strict=True)
        return any(
            given.error is None and not same(given.value, self.as_given(wanted.value))
            for given, wanted in outcomes
        )

    def _raise_the_same(self, mistakes: tuple[Mistake, ...]) -> bool:
        """Whether mistakes raise what the answer raises, word by word."""
        raised = [i for i, outcome in enumerate(self.given) if outcome.error is not None]
        return all(
            what_it_says(self.with_mistakes(i, mistakes).error) == what_it_says(self.given[i].error)
            for i in raised
        )

    def as_given(self, value: Any) -> Any:
        """Return a result without its weights, if the answer gives none."""
        return value[0] if self.output_only and isinstance(value, tuple) else value

    def _name(self, readings: list[tuple[Mistake, ...]]) -> str:
        lines = [f"{self.exercise.name}: {_titles(readings[0])}"]
        lines += [f"  or, which comes to the same: {_titles(reading)}" for reading in readings[1:MANY]]
        if len(readings) > MANY:
            lines.append(f"  or {len(readings) - MANY} more, which come to the same")
        lines += [f"  {entry.effect}" for entry in readings[0]]
        first = self.wrong[0]
        given, wanted = self.given[first].value, self.as_given(self.wanted[first].value)
        parts, raised = self.difference(first) or evidence.other_shape(given, wanted), self.raised(first)
        if raised is not None:
            lines.append(f"  On {self.probes[first].shows} it raises {raised}")
        elif parts is not None:
            lines.append(f"  On {self.probes[first].shows}: {parts}.")
        if all(outcome.error is not None for outcome in self.given):
            lines.append("  It raises on every input: whether more is wrong shows once this is mended.")
        return "\n".join(lines)

    def raised(self, i: int) -> str | None:
        """Say what the answer raises on probe i, and in which line; None if it does not."""
        error, line = self.given[i].error, self.given[i].line
        if error is None:
            return None
        text = text_of(error)
        said = f"{type(error).__name__}{f': {evidence.cut(text)}' if text else ''}"
        return f"{said}, {line}" if line else said

    def difference(self, i: int) -> str | None:
        """Say where on probe i the answer differs from what is right."""
        return evidence.difference(self.given[i].value, self.as_given(self.wanted[i].value))


# ---------------------------------------------------------------- what no comparison of results shows


def _unsteady(exercise: Exercise, call: Callable[..., Any], probe: Probe, before: Outcome) -> Result | None:
    """See whether the answer depends on chance, or on the calls before."""

    def reseeded(*arguments: Any) -> Any:
        torch.manual_seed(12345)
        return call(*arguments)

    if before.error is None and not same(before.value, before.value):
        return None  # no kind of value that can be compared
    if not alike(run(call, probe.arguments), before):
        return named(exercise.name, behaviour.STATE_KEPT)
    if "the random state" in before.changed and not alike(run(reseeded, probe.arguments), before):
        return named(exercise.name, behaviour.BY_CHANCE)
    return None


def _gradients(exercise: Exercise, call: Callable[..., Any], probes: list[Probe]) -> Result | None:
    """See whether what training needs arrives at the inputs."""
    for probe in reversed(probes):
        if not _is_differentiable(probe):
            continue
        wanted = _gradient(exercise.drive(exercise.reference), probe)
        if wanted.error is not None:
            continue
        given = _gradient(call, probe)
        if given.error is not None:
            said = f"its backward pass raises {type(given.error).__name__}: {given.error}".splitlines()[0]
            in_place = "inplace operation" in said
            return named(
                exercise.name, behaviour.GRADIENT_IN_PLACE if in_place else behaviour.GRADIENT_CUT, said
            )
        wrong = [name for name, x in wanted.value.items() if not _same_gradient(given.value[name], x)]
        if wrong:
            none = [name for name in wrong if given.value[name] is None]
            nan = any(x is not None and x.isnan().any() for x in given.value.values())
            where = (
                f"No gradient at all arrives at {' and '.join(none)}."
                if none
                else f"That of {wrong[0]} is wrong."
            )
            entry = behaviour.GRADIENT_NAN if nan else behaviour.GRADIENT_CUT
            return named(exercise.name, entry, f"It shows on {probe.shows}. {where}")
    return None


def _same_gradient(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether gradients agree but for the rounding of a step or two in float32."""
    if one is None or other is None:
        return one is other
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5 * max(1.0, other.abs().max().item()))


def _is_differentiable(probe: Probe) -> bool:
    return any(_is_precise(x) for x in probe.arguments.values())


def _is_precise(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in (torch.float32, torch.float64)


def _gradient(call: Callable[..., Any], probe: Probe) -> Outcome:
    """Return the gradient of the output's sum of squares with respect to each input, by its name."""

    def gradients(*values: Any) -> dict[str, Tensor | None]:
        inputs = {
            name: x.requires_grad_()
            for name, x in zip(probe.arguments, values, strict=True)
            if _is_precise(x)
        }
        with torch.enable_grad():
            value = call(*values)
            output = value[0] if isinstance(value, tuple) else value
            found = torch.autograd.grad((output**2).sum(), [*inputs.values()], allow_unused=True)
        return dict(zip(inputs, found, strict=True))

    return run(gradients, probe.arguments)


# ---------------------------------------------------------------- small questions


def _surprising(harmless: list[bool], explains: list[bool]) -> Tensor:
    """Return for each two mistakes whether they come to a result only if one alters what the other does.

    Args:
        harmless: of each mistake, whether it leaves the right result alone.
        explains: of each mistake, whether it comes to the result.
    """
    h, e = torch.tensor(harmless, dtype=torch.bool), torch.tensor(explains, dtype=torch.bool)
    return ~((~h[:, None] & ~h) | (e[:, None] & h) | (e & h[:, None]))


def _cancelling(harmless: list[bool]) -> Tensor:
    """Return for each two mistakes whether both do harm, of which nothing would be left together."""
    harmful = ~torch.tensor(harmless, dtype=torch.bool)
    return harmful[:, None] & harmful


def _weights_of(outcome: Outcome) -> Tensor | None:
    """Return the weights of an output and weights."""
    value = outcome.value
    weights = value[1] if isinstance(value, tuple) and len(value) == 2 else None
    return weights if isinstance(weights, Tensor) else None


def _is_vague(value: Any) -> bool:
    """Whether a tensor, or the first of several, has NaN in it or is of half precision."""
    first = value[0] if isinstance(value, tuple) and value else value
    return isinstance(first, Tensor) and (first.element_size() == 2 or bool(first.isnan().any()))


def _kinds(outcome: Outcome) -> set[str]:
    """Return the kind of an error, or those of a value and of all that is in it."""

    def kinds(value: Any) -> set[str]:
        inner = (
            value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
        )
        return {type(value).__name__}.union(*map(kinds, inner))

    return kinds(outcome.value) if outcome.error is None else {kind_of(outcome.error)}


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool


def _is_of_0_and_1(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.dtype == torch.bool or value.is_complex():
        return False
    return bool(((value == 0) | (value == 1)).all())


def _titles(reading: tuple[Mistake, ...]) -> str:
    return "; and: ".join(entry.title for entry in reading)


def is_blank(answer: Callable[..., Any]) -> bool:
    """Whether `answer` is still as it was handed out: a docstring and `...`."""
    if inspect.isclass(answer):
        methods = [method for method in vars(answer).values() if inspect.isfunction(method)]
        return bool(methods) and all(map(is_blank, methods))
    code = getattr(answer, "__code__", None)
    if code is None:
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("RESUME", "NOP")]
    names = [step.opname for step in steps]
    return names in (["LOAD_CONST", "RETURN_VALUE"], ["RETURN_CONST"]) and steps[0].argval is None


def _cannot_be_called(exercise: Exercise, answer: object, probes: list[Probe]) -> Result | None:
    wanted = f"it has to be {exercise.wanted}"
    if inspect.isclass(answer) and not inspect.isclass(exercise.reference):
        message = f"{exercise.name}: the answer is a class, {answer.__name__}; {wanted}"
        return Result(exercise.name, False, message, "signature")
    if not callable(answer):
        message = f"{exercise.name}: the answer is a {type(answer).__name__}; {wanted}"
        return Result(exercise.name, False, message, "signature")
    for probe in probes:
        try:
            inspect.signature(exercise.drive(answer)).bind(*probe.arguments.values())
        except TypeError:
            own = f"{getattr(answer, '__name__', 'it')}{inspect.signature(answer)}"
            message = f"{exercise.name}: the answer is {own}; {wanted}"
            return Result(exercise.name, False, message, "signature", (behaviour.OTHER_SIGNATURE,))
        except ValueError:
            return None  # a built-in function that does not tell its signature
    return None
