"""The catalogue of mistakes: each is one stage of the pipeline, or a few, replaced by wrong code.

To add a mistake, write one function under `@mistake(...)` in the file of its stage. Marking, naming and the
tests take it from there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

Stage = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Mistake:
    """One thing that people get wrong."""

    id: str
    stage: str  # the stage that it is about
    title: str  # what was done, in a few words
    effect: str  # what comes of it, and how to recognise it
    hint: str  # how to put it right
    replaces: Mapping[str, Stage]  # the wrong code, by stage
    alone: bool = False  # rare enough not to be looked for together with another that is as rare

    def clashes_with(self, other: "Mistake") -> bool:
        """Whether they are not looked for at once, as both replace one stage or both are rare."""
        return (self.alone and other.alone) or not self.replaces.keys().isdisjoint(other.replaces)


CATALOGUE: dict[str, Mistake] = {}


def mistake(
    id: str,
    title: str,
    effect: str,
    hint: str,
    *,
    stage: str,
    also: Mapping[str, Stage] | None = None,
    alone: bool = False,
) -> Callable[[Stage], Stage]:
    """Enter the decorated function into the catalogue as what stands wrongly in the place of `stage`.

    Args:
        also: other stages that the same mistake replaces, for instance the one that would have hidden it.
        alone: that it is rare; two that are so are not looked for together.

    Raises:
        ValueError: if the id is taken.
    """

    def enter(function: Stage) -> Stage:
        _entered(Mistake(id, stage, title, effect, hint, {stage: function, **(also or {})}, alone))
        return function

    return enter


def behaviour(id: str, stage: str, title: str, effect: str, hint: str) -> Mistake:
    """Enter a mistake that is no wrong stage but a way to behave, such as another result at each call."""
    return _entered(Mistake(id, stage, title, effect, hint, {}))


def _entered(entry: Mistake) -> Mistake:
    if entry.id in CATALOGUE:
        raise ValueError(f"id={entry.id!r} is in the catalogue already: {CATALOGUE[entry.id].title}")
    CATALOGUE[entry.id] = entry
    return entry


def pairs_of(mistakes: Iterable[Mistake]) -> list[tuple[Mistake, Mistake]]:
    """Return each two of the mistakes that can be made at once, as `clashes_with` has it."""
    mistakes = list(mistakes)
    # There are tens of thousands: stages are held against one another as bits of a number.
    bits = {
        stage: 1 << n for n, stage in enumerate({stage for entry in mistakes for stage in entry.replaces})
    }
    rare = 1 << len(bits)
    held = [
        (entry, sum(bits[stage] for stage in entry.replaces) | (rare if entry.alone else 0))
        for entry in mistakes
    ]
    return [(one, other) for (one, a), (other, b) in combinations(held, 2) if not a & b]


def mistakes_of(stages: Mapping[str, Stage]) -> list[Mistake]:
    """Return the mistakes that can be made in a pipeline of these stages, in the order of the catalogue."""
    known = [entry for entry in CATALOGUE.values() if entry.replaces]
    return [entry for entry in known if entry.replaces.keys() <= stages.keys()]
