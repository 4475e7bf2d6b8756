"""Show what the catalogue covers: `make mistakes`.

For each exercise: how many mistakes are known, how many of them are caught and named when an answer makes
them; the same for two mistakes at once, on up to 100 pairs drawn at random; how long the slowest verdict took
on one core; and how many of all pairs undo each other, so that there is nothing to catch. Last, the wrong
answers of `tests/answers`, written without the catalogue at hand: how many are caught, and named as what
they are.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from answers import answers
from mha import MultiHeadAttention
from mha.check import EXERCISES, Exercise, Mistake
from mha.check.catalogue import pairs_of
from mha.check.diagnose import judge
from mha.check.layers.inputs import layer_probes
from mha.check.layers.reading import NAME, Reading
from mha.check.outcome import alike, attempt
from mha.check.weights import find_projections

PAIRS = 100
D_MODEL, NUM_HEADS = 20, 4


@dataclass
class Count:
    """What became of the mistakes that were put in."""

    tried: int = 0
    caught: int = 0
    named: int = 0
    slowest: float = 0.0

    def add(self, exercise: Exercise, *made: Mistake) -> None:
        """Put mistakes in, and see whether they are caught and named."""
        exercise.outcomes.clear()  # as for somebody who asks for the first time
        start = time.perf_counter()
        result = judge(exercise, *made)
        self.slowest = max(self.slowest, time.perf_counter() - start)
        named = set(result.mistakes) & set(made)
        self.tried += 1
        self.caught += not result.passed
        # Others that come to the same numbers are as good a name.
        self.named += not result.passed and bool(result.mistakes) and (len(named) in (0, len(made)))

    def __str__(self) -> str:
        return f"{self.tried:6} {self.caught:7} {self.named:6} {self.slowest:7.2f} s"


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
    print(f"{'exercise':<30}{'one':>6}  caught  named  slowest{'two':>7}  caught  named  slowest  undone")
    every = Count(), Count()
    for name, exercise in exercises():
        pairs = pairs_of(exercise.mistakes)
        one, two = Count(), Count()
        for entry in exercise.mistakes:
            one.add(exercise, entry)
        for pair in random.Random(name).sample(pairs, min(PAIRS, len(pairs))):
            two.add(exercise, *pair)
        print(f"{name:<30}{one} {two}  {undone(exercise)} of {len(pairs)}", flush=True)
        for total, part in zip(every, (one, two), strict=True):
            total.tried += part.tried
            total.caught += part.caught
            total.named += part.named
            total.slowest = max(total.slowest, part.slowest)
    print(f"{'all':<30}{every[0]} {every[1]}")
    print(f"\n{'in other words':<30}{'':6}  caught  named")
    words = Count()
    for name in (*EXERCISES, NAME):
        for answer in answers(name):
            result = answer.mark()
            words.tried += 1
            words.caught += not result.passed
            words.named += bool(answer.named & {entry.id for entry in result.mistakes})
    print(f"{'all':<30}{words.tried:6} {words.caught:7} {words.named:6}")


if __name__ == "__main__":
    main()
