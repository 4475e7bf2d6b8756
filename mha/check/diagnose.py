"""From an answer to what is wrong with it.

The answer runs on every probe. Where it does not come to the right result, the pipeline runs with each
mistake of the catalogue put in, then with each two of them, and the ones that come to the same as the answer
on *every* probe are named. Where none does, the first probe on which it goes wrong is shown.
"""

import dis
import inspect
import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mha.check import evidence
from mha.check.catalogue import Mistake, pairs_of
from mha.check.errors import cause, kind_of
from mha.check.exercise import Exercise, Probe
from mha.check.mistakes import behaviour
from mha.check.outcome import Outcome, alike, attempt, run, same
from mha.check.relations import relation
from mha.check.result import Result, named

MANY = 4  # as many readings as a verdict lists that come to the same
PATIENCE = 2000  # as many pairs of mistakes are tried though each alone does not bear them out
# Rows of one length meet columns of another: as torch says it of @, of einsum, and as the package says it.
_NO_PRODUCT = re.compile(
    r"Expected size for first two dimensions of batch2|einsum\(\): subscript \w has size"
    r"|K has length \d+ and V has length|Q has d_k=\d+ and K has d_k"
)


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
    result = Comparison(exercise, probes, given).verdict()
    if not result.passed:
        return result
    remark = exercise.remark(answer)
    if remark is not None:
        result = replace(result, message=f"{result.message} ({remark})")
    return _gradients(exercise, call, probes) or result


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
        self.wrong = [i for i, wanted in enumerate(self.wanted) if not self._alike(i, wanted)]

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
        return self._named([(entry,) for entry in self.exercise.mistakes if self._reproduces(entry)])

    def two_mistakes(self) -> Result | None:
        """Return the verdict if two mistakes together explain every probe."""
        surprises = self._surprises()
        result = self._named([pair for pair, n in surprises.items() if n == 0 and self._reproduces(*pair)])
        if result is not None or not self._has_a_known_form():
            return result
        # One mistake can bring another to light that alone would not show.
        rest = sorted((pair for pair, n in surprises.items() if n), key=surprises.__getitem__)
        return self._named([pair for pair in rest[:PATIENCE] if self._reproduces(*pair)])

    def _surprises(self) -> dict[tuple[Mistake, Mistake], int]:
        """Count for each two mistakes the probes on which one would have to alter what the other does.

        Where neither does, it is no surprise that both do harm; that one does, and comes to the answer's
        result alone; or that neither does, and the answer is right.
        """
        pairs = pairs_of(self.exercise.mistakes)
        number = {entry: i for i, entry in enumerate(dict.fromkeys(itertools.chain(*pairs)))}
        count = torch.zeros(len(number), len(number), dtype=torch.int)
        richest, left = len(self.probes) - 1, []
        given, wanted = _weights_of(self.given[richest]), _weights_of(self.wanted[richest])
        # What does not touch the weights is to blame for nothing in them.
        if given is not None and wanted is not None:
            weights = [_weights_of(self._with_mistakes(richest, (entry,))) for entry in number]
            count += _surprising([same(x, wanted) for x in weights], [same(x, given) for x in weights])
        for i in dict.fromkeys([richest, self.wrong[0], *reversed(range(richest))]):
            tried = [self._with_mistakes(i, (entry,)) for entry in number]
            count += _surprising(
                [alike(x, self.wanted[i]) for x in tried], [self._alike(i, x) for x in tried]
            )
            left.append(int((count == 0).sum()))
            # Few are left (each pair counts twice), or the inputs tell them apart no further: try them.
            if left[-1] <= 2 * len(number) or (left[-1] < 2 * PATIENCE and left[-1:] * 3 == left[-3:]):
                break
        return {(one, other): int(count[number[one], number[other]]) for one, other in pairs}

    def _harmless(self, i: int, entry: Mistake) -> bool:
        return alike(self._with_mistakes(i, (entry,)), self.wanted[i])

    def _has_a_known_form(self) -> bool:
        """Whether what first goes wrong has the right kind, shape and dtype, or wrong ones that are known."""
        first = self.wrong[0]
        known = [self.wanted[first], *(self._with_mistakes(first, (e,)) for e in self.exercise.mistakes)]
        return _form(self.given[first]) in map(_form, known)

    def unknown(self) -> Result:
        """Return the verdict on what nothing in the catalogue explains on every probe.

        What is said, if anything can be, is how all wrong results stand to the right ones, which mistake
        explains most of them, or what the error means that comes first; else where it first goes wrong.
        """
        first = self.wrong[0]
        stage = self.probes[first].stage
        found = self._related()
        if found is not None:
            entry, said = found
            told = named(self.exercise.name, entry, f"On {self.probes[first].shows}: {said}")
            return self._failed(told.message, stage, (entry,))
        return (
            self._mostly()
            or self._caused(first)
            or self._gives_nothing(first)
            or self._failed(self._show(first), stage)
        )

    def _related(self) -> tuple[Mistake, str] | None:
        pairs = [
            (self.given[i].value, self._as_given(self.wanted[i].value))
            for i in self.wrong
            if self.given[i].error is None and self.wanted[i].error is None
        ]
        return relation(pairs) if pairs and self.given[self.wrong[0]].error is None else None

    def _mostly(self) -> Result | None:
        """Return the verdict if one mistake explains the first wrong result and most of the others."""
        first, enough = self.wrong[0], (len(self.wrong) + 1) // 2
        found: dict[Mistake, list[int]] = {}
        for entry in self.exercise.mistakes:
            if not self._alike(first, self._with_mistakes(first, (entry,))):
                continue
            explained = [i for i in self.wrong if self._is_of_kind(i, self._with_mistakes(i, (entry,)))]
            values = any(self.given[i].error is None for i in explained)
            right = set(range(len(self.probes))) - set(self.wrong)
            if len(explained) >= enough and values and all(self._harmless(i, entry) for i in right):
                found[entry] = explained
        most = max(map(len, found.values()), default=0)
        readings = [(entry,) for entry, explained in found.items() if len(explained) == most]
        if not 0 < len(readings) <= MANY:  # what fits many says nothing
            return None
        result = self._named(readings)
        left = next((i for i in self.wrong if i not in found[readings[0][0]]), None)
        if result is None or left is None:  # but for the text of an error it is that mistake
            return result
        where = f"So it does on {most} of {len(self.wrong)} inputs on which it is wrong, but not on "
        return replace(
            result, message=f"{result.message}\n  {where}{self.probes[left].shows}: {self._told(left)}"
        )

    def _is_of_kind(self, i: int, other: Outcome) -> bool:
        """Whether another outcome is that of the answer, or an error of the same kind."""
        one = self.given[i].error
        if one is not None and other.error is not None:
            return kind_of(one) == kind_of(other.error)
        return self._alike(i, other)

    def _told(self, i: int) -> str:
        """Say in a line what goes wrong on a probe."""
        raised = self._raised(i)
        return (
            f"it raises {raised}" if raised else self._difference(i) or evidence.describe(self.given[i].value)
        )

    def _caused(self, i: int) -> Result | None:
        """Return the verdict if the answer raises on probe i, and what it raises has a known cause."""
        error = self.given[i].error
        found = None if error is None else cause(error)
        if found is None:
            return None
        entry, said = found
        lines = [
            f"{self.exercise.name}: {entry.title}",
            f"  {entry.effect}",
            f"  On {self._input(i)}",
            f"  it raises {self._raised(i)}",
            *([f"  {said}"] if said else []),
        ]
        return self._failed("\n".join(lines), self.probes[i].stage, (entry,))

    def _gives_nothing(self, i: int) -> Result | None:
        given, wanted = self.given[i], self.wanted[i]
        if given.error is not None or given.value is not None or wanted.value is None:
            return None
        entry = behaviour.NOTHING_GIVEN
        message = f"{self.exercise.name}: nothing comes back: is the return missing?\n  {entry.effect}"
        return self._failed(f"{message}\n  It shows on {self._input(i)}.", self.probes[i].stage, (entry,))

    def _named(self, readings: list[tuple[Mistake, ...]]) -> Result | None:
        if not readings:
            return None
        certain = [entry for entry in readings[0] if all(entry in reading for reading in readings)]
        every = (entry for reading in readings for entry in reading)
        found = tuple(dict.fromkeys([*certain, *every]))
        return self._failed(self._name(readings), found[0].stage, found)

    def _failed(self, message: str, stage: str, mistakes: tuple[Mistake, ...] = ()) -> Result:
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
        # From the richest probe to the poorest: most mistakes are told apart by the first.
        richest_first = reversed(range(len(self.probes)))
        return all(self._alike(i, self._with_mistakes(i, mistakes)) for i in richest_first)

    def _with_mistakes(self, i: int, mistakes: tuple[Mistake, ...]) -> Outcome:
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

    def _alike(self, i: int, other: Outcome) -> bool:
        given = self.given[i]
        if given.error is not None or other.error is not None:
            return _said(given.error) == _said(other.error)
        return same(given.value, self._as_given(other.value))

    def _as_given(self, value: Any) -> Any:
        """Return a result without its weights, if the answer gives none."""
        return value[0] if self.output_only and isinstance(value, tuple) else value

    def _name(self, readings: list[tuple[Mistake, ...]]) -> str:
        lines = [f"{self.exercise.name}: {_titles(readings[0])}"]
        lines += [f"  or, which comes to the same: {_titles(reading)}" for reading in readings[1:MANY]]
        if len(readings) > MANY:
            lines.append(f"  or {len(readings) - MANY} more, which come to the same")
        lines += [f"  {entry.effect}" for entry in readings[0]]
        first = self.wrong[0]
        given, wanted = self.given[first].value, self._as_given(self.wanted[first].value)
        parts, raised = self._difference(first) or evidence.other_shape(given, wanted), self._raised(first)
        if raised is not None:
            lines.append(f"  On {self.probes[first].shows} it raises {raised}")
        elif parts is not None:
            lines.append(f"  On {self.probes[first].shows}: {parts}.")
        return "\n".join(lines)

    def _raised(self, i: int) -> str | None:
        error, line = self.given[i].error, self.given[i].line
        if error is None:
            return None
        said = f"{type(error).__name__}{f': {evidence.cut(str(error))}' if str(error) else ''}"
        return f"{said}, {line}" if line else said

    def _difference(self, i: int) -> str | None:
        return evidence.difference(self.given[i].value, self._as_given(self.wanted[i].value))

    def _input(self, i: int) -> str:
        """Return what probe i is, in words and sizes."""
        probe = self.probes[i]
        # The label of some inputs is all that there is to say of them: "Lq=2, Lk=5".
        told = "=" in probe.shows or any(character.isdigit() for character in probe.shows)
        return probe.shows if told else f"{probe.shows}: {evidence.describe_input(probe.arguments)}"

    def _show(self, i: int) -> str:
        probe, given, on = self.probes[i], self.given[i], self._input(i)
        raised = self._raised(i)
        if raised is not None:
            return f"{self.exercise.name}: it raises on {on}\n  {raised}"
        parts = self._difference(i)
        later = " or after it" if len(self.exercise.stages) > 1 else ""
        return "\n".join(
            [
                f"{self.exercise.name}: it first goes wrong at the stage '{probe.stage}'{later}, on {on}",
                f"  given:  {evidence.describe(given.value)}",
                f"  wanted: {evidence.describe(self.wanted[i].value)}",
                *([f"  {parts}"] if parts is not None else []),
                "  No mistake that is known, and no two of them, come to this.",
            ]
        )


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


def _weights_of(outcome: Outcome) -> Tensor | None:
    """Return the weights of an output and weights."""
    value = outcome.value
    weights = value[1] if isinstance(value, tuple) and len(value) == 2 else None
    return weights if isinstance(weights, Tensor) else None


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool


def _is_of_0_and_1(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.dtype == torch.bool or value.is_complex():
        return False
    return bool(((value == 0) | (value == 1)).all())


def _titles(reading: tuple[Mistake, ...]) -> str:
    return "; and: ".join(entry.title for entry in reading)


def _said(error: BaseException | None) -> tuple[str, str] | None:
    if error is None:
        return None
    if _NO_PRODUCT.search(str(error)):
        return RuntimeError.__name__, "no product"
    # Sizes differ from probe to probe and between ways to write the same.
    return type(error).__name__, re.sub(r"[\d\s,]+", "", str(error))


def _form(outcome: Outcome) -> object:
    def form(value: Any) -> object:
        if isinstance(value, Tensor):
            return value.shape, value.dtype
        if isinstance(value, tuple | list):
            return type(value).__name__, tuple(map(form, value))
        if isinstance(value, dict):
            return {name: form(item) for name, item in value.items()}
        return type(value).__name__

    return _said(outcome.error) or form(outcome.value)


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
