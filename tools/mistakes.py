"""Show what the catalogue covers: `make mistakes`.

For each exercise: how many mistakes are known, how many are caught and how many are named when an answer
makes them, and how long the slowest verdict took on one core.
"""

import time

import torch

from mha.check import EXERCISES
from mha.check.diagnose import judge


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'exercise':<30} mistakes  caught  named  slowest")
    for name, exercise in EXERCISES.items():
        caught = named = 0
        slowest = 0.0
        for entry in exercise.mistakes:
            start = time.perf_counter()
            result = judge(exercise, entry)
            slowest = max(slowest, time.perf_counter() - start)
            caught += not result.passed
            named += entry in result.mistakes
        print(f"{name:<30} {len(exercise.mistakes):8} {caught:7} {named:6} {slowest:6.2f} s")


if __name__ == "__main__":
    main()
