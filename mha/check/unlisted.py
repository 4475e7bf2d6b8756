"""What is said of an answer that no mistake of the catalogue, and no two of them, explain on every input.

A mistake may explain part of it: one of two results, some of the inputs, most of them. Else how the results
stand to the right ones is told, where their numbers come from, or what an error means; and at last just where
it first goes wrong, with what was given and what is wanted there.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mha.check import evidence
from mha.check.catalogue import Mistake, behaviour
from mha.check.errors import cause
from mha.check.leaks import hidden_keys, leak
from mha.check.mistakes.behaviour import NOTHING_GIVEN
from mha.check.origin import origin
from mha.check.outcome import Outcome, same
from mha.check.relations import relation
from mha.check.result import Result, named

if TYPE_CHECKING:
    from mha.check.diagnose import Comparison

MANY = 4  # what as many mistakes explain and more says nothing
ELSEWHERE = behaviour(
    "result-from-elsewhere",
    "result",
    "Numbers are taken from another place than they should be",
    "Each of them is right somewhere, but not here.",
    "compare, name by name and row by row, where each tensor comes from with where it should.",
)
_RIGHT: tuple[Mistake, ...] = ()


class Unlisted:
    """An answer that is wrong in a way of its own, held against right results and those of mistakes."""

    def __init__(self, comparison: "Comparison") -> None:
        self.of, self.exercise, self.probes = comparison, comparison.exercise, comparison.probes
        self.given, self.wanted, self.wrong = comparison.given, comparison.wanted, comparison.wrong
        self.first = self.wrong[0]
        self.right = [i for i in range(len(self.probes)) if i not in self.wrong]

    def verdict(self) -> Result:
        """Return what can be said."""
        looks = (
            self._in_a_branch,
            self._part_by_part,
            self._nearly,
            self._leaking,
            self._related,
            self._from_elsewhere,
            self._mostly,
            self._caused,
            self._gives_nothing,
        )
        return next(filter(None, map(_if_it_can, looks)), None) or self._failed(self._show())

    # ---------------------------------------------------------------- what a mistake explains in part

    def _in_a_branch(self) -> Result | None:
        """Return the verdict if one mistake explains all wrong results, but would also spoil right ones."""
        # One input, or errors only, would fit too many.
        if not self.right or sum(self.given[i].error is None for i in self.wrong) < 2:
            return None
        entries = self._explaining(self.wrong, self.of.agrees)
        result = self.of.named_as([(entry,) for entry in entries]) if 0 < len(entries) <= MANY else None
        if result is None:
            return None
        title, *rest = result.message.split("\n")
        where = ", ".join(self.probes[i].shows for i in self.wrong[:MANY])
        more = f" and {len(self.wrong) - MANY} more" if len(self.wrong) > MANY else ""
        says = f"So it does on {where}{more}, and not on {len(self.right)} others, which come out right."
        return replace(result, message="\n".join([f"{title}, on some inputs only", *rest, f"  {says}"]))

    def _part_by_part(self) -> Result | None:
        """Return the verdict if output and weights, each by itself, are right or explained by a mistake."""
        everywhere = range(len(self.probes))
        if not all(map(self._gives_two, everywhere)):
            return None
        parts = [self._explaining_part(part) for part in (0, 1)]
        if not all(0 < len(part) <= MANY for part in parts):
            return None
        said = [
            f"{name} {verb} {'right' if entries == [_RIGHT] else f'wrong: {_titles(entries)}'}"
            for name, verb, entries in zip(("the output", "the weights"), ("is", "are"), parts, strict=True)
        ]
        lines = [
            f"{self.exercise.name}: {'; '.join(reversed(said))}",
            "  The output is not made with the weights that come back: each is worked out by itself.",
            f"  On {self.probes[self.first].shows}: {self.of.difference(self.first)}.",
        ]
        return self._failed(
            "\n".join(lines), *(entry for part in parts for reading in part for entry in reading)
        )

    def _gives_two(self, i: int) -> bool:
        """Whether an output and weights come back on probe i, as is wanted."""

        def two(value: Any) -> bool:
            return isinstance(value, tuple) and len(value) == 2 and all(isinstance(x, Tensor) for x in value)

        return two(self.given[i].value) and two(self.wanted[i].value)

    def _explaining_part(self, part: int) -> list[tuple[Mistake, ...]]:
        """Return () if this part of every result is right, else the mistakes that come to the same."""

        def agrees(i: int, other: Outcome) -> bool:
            value = other.value
            return (
                isinstance(value, tuple) and len(value) == 2 and same(self.given[i].value[part], value[part])
            )

        everywhere = range(len(self.probes))
        if all(agrees(i, self.wanted[i]) for i in everywhere):
            return [_RIGHT]
        return [(entry,) for entry in self._explaining([*self.wrong, *self.right], agrees)]

    def _leaking(self) -> Result | None:
        """Return the verdict if hidden keys get weight, and all else is right or one mistake explains it."""
        ignored = next((entry for entry in self.exercise.mistakes if entry.id == "mask-ignored"), None)
        probes = list(filter(self._gives_two, range(len(self.probes))))
        if ignored is None or not probes or self.given[self.first].error is not None:
            return None
        exact = [i for i in probes if self.given[i].value[1].element_size() > 2]
        hiding = [i for i in exact if i in self.wrong and bool(hidden_keys(self.wanted[i].value[1]).any())]
        others = [i for i in probes if not bool((self.wanted[i].value[1] == 0).any())]
        for made in self._explaining_all(others):
            clash = any(ignored.clashes_with(entry) for entry in made)
            found = None if clash else leak(self._beside_unmasked(hiding, (*made, ignored)))
            if found is not None:
                return self._leaks(made, *found)
        return None

    def _explaining_all(self, probes: list[int]) -> list[tuple[Mistake, ...]]:
        """Return () if all is right on these probes, else the mistakes which explain them, if few do."""
        if not set(probes) & set(self.wrong):
            return [()]
        entries = self._explaining(probes, self.of.agrees)
        return [(entry,) for entry in entries] if len(entries) <= MANY else []

    def _beside_unmasked(
        self, probes: list[int], mistakes: tuple[Mistake, ...]
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return weights as they are given, as they are right, and as they are under these mistakes."""
        unmasked = [self.of.with_mistakes(i, mistakes).value for i in probes]
        if not all(isinstance(value, tuple) for value in unmasked):
            return []
        return [
            (self.given[i].value[1], self.wanted[i].value[1], value[1])
            for i, value in zip(probes, unmasked, strict=True)
        ]

    def _leaks(self, made: tuple[Mistake, ...], entry: Mistake, said: str) -> Result:
        found, first = (*made, entry), self.first
        raising = next((i for i in self.wrong if self.given[i].error is not None), None)
        lines = [
            f"{self.exercise.name}: {'; and: '.join(one.title for one in found)}",
            *(f"  {one.effect}" for one in found),
            *([f"  {said}"] if said else []),
            f"  On {self.probes[first].shows}: {self.of.difference(first)}.",
        ]
        if raising is not None:
            lines.append(f"  On {self.probes[raising].shows} it raises {self.of.raised(raising)}")
        return self._failed("\n".join(lines), *found)

    def _explaining(self, probes: Iterable[int], agrees: Callable[[int, Outcome], bool]) -> list[Mistake]:
        """Return the mistakes which alone come to the same on these probes."""
        order, found = list(probes), []
        for entry in self.exercise.mistakes:
            if all(agrees(i, self.of.with_mistakes(i, (entry,))) for i in order):
                found.append(entry)
        return found

    def _nearly(self) -> Result | None:
        """Return the verdict if one mistake explains nearly all of the wrong results."""
        return self._explained_but_for(len(self.wrong) // 5)

    def _mostly(self) -> Result | None:
        """Return the verdict if one mistake explains most of the wrong results."""
        return self._explained_but_for(len(self.wrong) // 2)

    def _explained_but_for(self, few: int) -> Result | None:
        """Return the verdict if one mistake explains all wrong results but for so few, and the first one."""
        enough = len(self.wrong) - few
        shown = [i for i in self.wrong if self.given[i].error is None]
        found: dict[Mistake, list[int]] = {}
        for entry in self.exercise.mistakes:
            explained = [i for i in self.wrong if self.of.agrees(i, self.of.with_mistakes(i, (entry,)))]
            # An error that comes first may be one more thing: then all that it gives has to be explained.
            begins = self.first in explained or set(shown) <= set(explained)
            values = any(i in shown for i in explained)
            if begins and values and len(explained) >= enough and self._leaves_right(entry):
                found[entry] = explained
        most = max(map(len, found.values()), default=0)
        readings = [(entry,) for entry, explained in found.items() if len(explained) == most]
        if not 0 < len(readings) <= MANY:
            return None
        result = self.of.named_as(readings)
        left = next((i for i in self.wrong if i not in found[readings[0][0]]), None)
        if result is None or left is None:  # but for the text of an error it is that mistake
            return result
        where = f"So it does on {most} of {len(self.wrong)} inputs on which it is wrong, but not on "
        return replace(
            result, message=f"{result.message}\n  {where}{self.probes[left].shows}: {self._told(left)}"
        )

    def _leaves_right(self, entry: Mistake) -> bool:
        return all(self.of.harmless(i, entry) for i in self.right)

    # ---------------------------------------------------------------- what results, and what errors say

    def _related(self) -> Result | None:
        """Return the verdict if all wrong results stand to the right ones in a relation that is known."""
        pairs = [
            (self.given[i].value, self.of.as_given(self.wanted[i].value))
            for i in self.wrong
            if self.given[i].error is None and self.wanted[i].error is None
        ]
        if not pairs or self.given[self.first].error is not None:
            return None
        found = relation(pairs)
        if found is None:
            return None
        entry, said = found
        told = named(self.exercise.name, entry, f"On {self.probes[self.first].shows}: {said}")
        return self._failed(told.message, entry)

    def _from_elsewhere(self) -> Result | None:
        """Return the verdict if the numbers of all wrong tensors stand elsewhere in what was given."""
        places = [self._place(i) for i in self.wrong]
        if not all(places):
            return None
        evidence_line = f"On {self.probes[self.first].shows}: {places[0]}."
        return self._failed(named(self.exercise.name, ELSEWHERE, evidence_line).message, ELSEWHERE)

    def _place(self, i: int) -> str | None:
        """Say of the wrong tensors of dicts where their numbers come from, if it is known of all."""
        given, wanted = (_by_name(outcomes[i].value) for outcomes in (self.given, self.wanted))
        if not given or given.keys() != wanted.keys():
            return None
        wrong = [name for name in wanted if not same(given[name], wanted[name])]
        if not all(isinstance(given[name], Tensor) for name in wrong):
            return None
        sources = self.exercise.sources(self.probes[i].arguments)
        places = {name: (origin(given[name], sources), origin(wanted[name], sources)) for name in wrong}
        if any(None in place for place in places.values()):
            return None
        told = [f"{name} is {found}, wanted {right}" for name, (found, right) in places.items()]
        return "; ".join(told[:MANY] + [f"and {len(told) - MANY} more"] * (len(told) > MANY))

    def _caused(self) -> Result | None:
        """Return the verdict if the answer raises first of all, and what it raises has a known cause."""
        error = self.given[self.first].error
        found = None if error is None else cause(error)
        if found is None:
            return None
        entry, said = found
        lines = [
            f"{self.exercise.name}: {entry.title}",
            f"  {entry.effect}",
            f"  On {self._input()}",
            f"  it raises {self.of.raised(self.first)}",
            *([f"  {said}"] if said else []),
        ]
        return self._failed("\n".join(lines), entry)

    def _gives_nothing(self) -> Result | None:
        given, wanted = self.given[self.first], self.wanted[self.first]
        if given.error is not None or given.value is not None or wanted.value is None:
            return None
        message = (
            f"{self.exercise.name}: nothing comes back: is the return missing?\n  {NOTHING_GIVEN.effect}"
        )
        return self._failed(f"{message}\n  It shows on {self._input()}.", NOTHING_GIVEN)

    # ---------------------------------------------------------------- in words

    def _failed(self, message: str, *mistakes: Mistake) -> Result:
        return self.of.failed(message, self.probes[self.first].stage, mistakes)

    def _told(self, i: int) -> str:
        """Say in a line what goes wrong on a probe."""
        raised = self.of.raised(i)
        if raised:
            return f"it raises {raised}"
        return self.of.difference(i) or evidence.describe(self.given[i].value)

    def _input(self) -> str:
        """Return what the first wrong probe is, in words and sizes."""
        probe = self.probes[self.first]
        # The label of some inputs is all that there is to say of them: "Lq=2, Lk=5".
        told = "=" in probe.shows or any(character.isdigit() for character in probe.shows)
        return probe.shows if told else f"{probe.shows}: {evidence.describe_input(probe.arguments)}"

    def _show(self) -> str:
        raised, on = self.of.raised(self.first), self._input()
        if raised is not None:
            return f"{self.exercise.name}: it raises on {on}\n  {raised}"
        later = " or after it" if len(self.exercise.stages) > 1 else ""
        stage = self.probes[self.first].stage
        given, wanted = self.given[self.first].value, self.of.as_given(self.wanted[self.first].value)
        parts = self.of.difference(self.first) or evidence.other_shape(given, wanted)
        return "\n".join(
            [
                f"{self.exercise.name}: it first goes wrong at the stage '{stage}'{later}, on {on}",
                f"  given:  {evidence.describe(given)}",
                f"  wanted: {evidence.describe(wanted)}",
                *([f"  {parts}"] if parts is not None else []),
                "  No mistake that is known, and no two of them, come to this.",
            ]
        )


def _if_it_can(look: Callable[[], Result | None]) -> Result | None:
    """Take a look at results of whatever kind; where they are too odd to be looked at so, it says nothing."""
    try:
        return look()
    except Exception:
        return None


def _titles(readings: list[tuple[Mistake, ...]]) -> str:
    """Return the titles of single mistakes that come to the same."""
    return ", or: ".join(entry.title for reading in readings for entry in reading)


def _by_name(value: Any) -> dict[str, Any]:
    """Return what is in a dict, or in a list of dicts, by its name; nothing of what is neither."""
    if isinstance(value, dict):
        return {str(name): x for name, x in value.items()}
    if isinstance(value, list | tuple) and all(isinstance(part, dict) for part in value):
        return {f"[{n}] {name}": x for n, part in enumerate(value) for name, x in _by_name(part).items()}
    return {}
