"""Show what the catalogue covers: `make mistakes`.

For each exercise: how many mistakes are known, how many of them are caught and named when an answer makes
them; the same for two mistakes at once, on up to 100 pairs drawn at random; how long the slowest verdict took
on one core; and how many of all pairs undo each other, so that there is nothing to catch. Of two mistakes,
"hides" counts those of which one alone comes to the same on every input: it raises, or hands back nothing,
and no marker could tell the other; the one is named. Last, the wrong answers of `tests/answers`, written
without the catalogue at hand: how many are caught, and named as what they are.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import torch

from answers import answers
from mha import MultiHeadAttention
from mha.check import EXERCISES, Exercise, Mistake, Result
from mha.check.catalogue import pairs_of
from mha.check.diagnose import judge
from mha.check.layers.inputs import layer_probes
from mha.check.layers.reading import NAME, Reading
from mha.check.outcome import Outcome, alike, attempt
from mha.check.weights import find_projections

PAIRS = 100
D_MODEL, NUM_HEADS = 20, 4


@dataclass
class Count:
    """What became of the mistakes that were put in."""

    tried: int = 0
    caught: int = 0
    named: int = 0  # as what they are, or as others that come to the same on every input
    hides: int = 0  # of two, one that alone comes to the same as both
    slowest: float = 0.0

    def add(self, exercise: Exercise, *made: Mistake) -> None:
        """Put mistakes in, and see whether they are caught and named."""
        exercise.outcomes.clear()  # as for somebody who asks for the first time
        start = time.perf_counter()
        result = judge(exercise, *made)
        self.slowest = max(self.slowest, time.perf_counter() - start)
        told = told_as(exercise, made, result)
        self.tried += 1
        self.caught += not result.passed
        self.named += told == len(made)
        self.hides += 0 < told < len(made)

    def __iadd__(self, other: "Count") -> "Count":
        self.tried, self.caught = self.tried + other.tried, self.caught + other.caught
        self.named, self.hides = self.named + other.named, self.hides + other.hides
        self.slowest = max(self.slowest, other.slowest)
        return self


def told_as(exercise: Exercise, made: tuple[Mistake, ...], result: Result) -> int:
    """Return as how many mistakes a verdict explains those that were made; 0 if it does not explain them.

    What is named has to be what was made, or come to the same on every input.
    """
    if set(made) <= set(result.mistakes):
        return len(made)
    probes = exercise.probes()

    def outcomes(mistakes: tuple[Mistake, ...]) -> list[Outcome]:
        wrong = exercise.with_mistakes(*mistakes)
        return [attempt(wrong, probe.arguments) for probe in probes]

    wanted = outcomes(made)
    for n in range(len(made), 0, -1):
        for reading in combinations(result.mistakes, n):
            if all(map(alike, outcomes(reading), wanted)):
                return n
    return 0


def exercises() -> Iterator[tuple[str, Exercise]]:
    """Yield every exercise, and that of the whole layer, on the package's own."""
    yield from EXERCISES.items()
    layer = MultiHeadAttention(D_MODEL, NUM_HEADS).double()
    (w,) = find_projections(layer, D_MODEL, NUM_HEADS)
    yield NAME, Reading(w).exercise(layer_probes(D_MODEL))


def undone(exercise: Exercise) -> int:
    """Count the pairs of mistakes that undo each other."""
    probes = list(reversed(exercise.probes()))
    right = [attempt(exercise.with_mistakes(), probe.arguments) for probe in probes]

    def is_right(pair: tuple[Mistake, Mistake]) -> bool:
        wrong = exercise.with_mistakes(*pair)
        return all(
            alike(attempt(wrong, probe.arguments), one) for probe, one in zip(probes, right, strict=True)
        )

    return sum(map(is_right, pairs_of(exercise.mistakes)))


def main() -> None:
    torch.set_num_threads(1)
    two_more = f"{'two':>7}  caught  named  hides  slowest  undone"
    print(f"{'exercise':<30}{'one':>6}  caught  named  slowest{two_more}")
    every = Count(), Count()
    for name, exercise in exercises():
        pairs = pairs_of(exercise.mistakes)
        one, two = Count(), Count()
        for entry in exercise.mistakes:
            one.add(exercise, entry)
        for pair in random.Random(name).sample(pairs, min(PAIRS, len(pairs))):
            two.add(exercise, *pair)
        print(f"{name:<30}{_row(one, two)}  {undone(exercise)} of {len(pairs)}", flush=True)
        for total, part in zip(every, (one, two), strict=True):
            total += part
    print(f"{'all':<30}{_row(*every)}")
    print(f"\n{'in other words':<30}{'':6}  caught  named")
    words = Count()
    for name in (*EXERCISES, NAME):
        for answer in answers(name):
            result = answer.mark()
            words.tried += 1
            words.caught += not result.passed
            words.named += bool(answer.named & {entry.id for entry in result.mistakes})
    print(f"{'all':<30}{words.tried:6} {words.caught:7} {words.named:6}")


def _row(one: Count, two: Count) -> str:
    return (
        f"{one.tried:6} {one.caught:7} {one.named:6} {one.slowest:7.2f} s"
        f"{two.tried:7} {two.caught:7} {two.named:6} {two.hides:6} {two.slowest:7.2f} s"
    )


if __name__ == "__main__":
    main()
