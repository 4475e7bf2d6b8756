"""Which head does which job: the stages of measuring it, and the weights on which it is tried."""

from collections.abc import Iterable, Mapping
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from mha import toy_task
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe, driven

Heads = tuple[int, ...]


def mass_weights(weights: Tensor) -> Tensor:
    """As they are given, (B, h, Lq, Lk)."""
    return weights


def mass_keys(right_keys: Tensor, Lk: int) -> Tensor:
    """As they are given, (jobs, Lq)."""
    return right_keys


def mass_pick(weights: Tensor, right_keys: Tensor) -> Tensor:
    """(B, h, Lq, Lk), (jobs, Lq) → (B, h, jobs, Lq): each query's weight on each job's right key."""
    return weights[:, :, torch.arange(right_keys.size(1)), right_keys]


def mass_examples(picked: Tensor) -> Tensor:
    """(B, h, jobs, Lq) → (h, jobs, Lq)."""
    return picked.mean(dim=0)


def mass_queries(picked: Tensor) -> Tensor:
    """(h, jobs, Lq) → (h, jobs)."""
    return picked.mean(dim=-1)


def assign(mass: Tensor) -> Heads:
    """(jobs, h) → the head of each job, each head once, their mass the most that it can be."""
    return best(mass, permutations(range(mass.size(1)), len(mass)))


def best(mass: Tensor, assignments: Iterable[Heads]) -> Heads:
    """Return the assignment of the largest mass."""
    rows = mass.tolist()  # numbers are quicker to add up than tensors
    return max(assignments, key=lambda heads: sum(row[head] for row, head in zip(rows, heads, strict=True)))


def total(mass: Tensor, heads: Heads) -> float:
    """Add up the mass of each job's head."""
    return sum(mass[job, head].item() for job, head in enumerate(heads))


def assign_score(mass: Tensor, heads: Heads) -> float:
    """The mean over the jobs."""
    return total(mass, heads) / len(mass)


def assign_give(score: float, heads: Heads) -> Any:
    """The score first, then the heads."""
    return score, heads


SPECIALISATION_STAGES: dict[str, Stage] = {
    "mass_weights": mass_weights,
    "mass_keys": mass_keys,
    "mass_pick": mass_pick,
    "mass_examples": mass_examples,
    "mass_queries": mass_queries,
    "assign": assign,
    "assign_score": assign_score,
    "assign_give": assign_give,
}


def measure(s: Mapping[str, Stage], weights: Tensor, right_keys: Tensor) -> Any:
    """Run the stages of the measure."""
    keys = s["mass_keys"](right_keys, weights.size(-1))
    picked = s["mass_pick"](s["mass_weights"](weights), keys)
    mass = s["mass_queries"](s["mass_examples"](picked)).mT  # (jobs, h)
    heads = s["assign"](mass)
    return _plain(s["assign_give"](s["assign_score"](mass, heads), heads))


def _plain(value: Any) -> Any:
    """Bring a score and heads to one form, whether they are numbers, lists or tensors."""
    items = tuple(value) if isinstance(value, tuple | list) else (value,)
    return tuple(map(_plain_item, items))


def _plain_item(item: Any) -> Any:
    if hasattr(item, "tolist"):  # a tensor or an array
        item = item.tolist()
    if isinstance(item, int | float):
        return torch.tensor(float(item))
    return tuple(item) if isinstance(item, list) else item


def _giving_plain_numbers(answer: Any) -> Any:
    return (
        driven(answer, lambda answer, *arguments: _plain(answer(*arguments))) if callable(answer) else answer
    )


def _weights(mass: list[list[float]], right_keys: Tensor, B: int, Lk: int) -> Tensor:
    """Draw weights (B, h, Lq, Lk) of heads that give about this `mass` (jobs, h) to the right keys."""
    generator = torch.Generator().manual_seed(B)
    jobs, Lq = right_keys.shape
    shape = B, len(mass[0]), Lq
    on_jobs, others = torch.zeros(*shape, Lk), torch.rand(*shape, Lk, generator=generator)
    for job in range(jobs):
        about_1 = 0.8 + 0.4 * torch.rand(shape, generator=generator)
        on_jobs[:, :, torch.arange(Lq), right_keys[job]] = torch.tensor(mass[job])[:, None] * about_1
        others[:, :, torch.arange(Lq), right_keys[job]] = 0
    left = 1 - on_jobs.sum(dim=-1, keepdim=True)
    return on_jobs + left * others / others.sum(dim=-1, keepdim=True)


def _probes() -> list[Probe]:
    small = toy_task.right_keys(4)
    sure = torch.eye(4)[small][None]  # (1, 2, 4, 4): head 0 looks back, head 1 ahead
    # Some keys are right for two queries and others for none: which ones they are shows in every mean.
    uneven = torch.tensor([[4, 0, 1, 1, 3], [1, 2, 3, 0, 0]])
    keys = torch.tensor([[0, 3, 2, 0], [3, 1, 0, 2], [1, 2, 3, 1]])
    three_jobs = [
        [0.46, 0.38, 0.10, 0.20, 0.05],
        [0.34, 0.10, 0.20, 0.10, 0.10],
        [0.0, 0.15, 0.30, 0.40, 0.60],
    ]
    rich = _weights(three_jobs, keys, B=3, Lk=6)
    two_jobs = [row[1:] for row in three_jobs[1:]]
    # What the first head does in one example, the second does in the two others, but less of it.
    apart = [[[0.6, 0.1], [0.2, 0.35]], [[0.2, 0.4], [0.35, 0.2]], [[0.25, 0.3], [0.3, 0.25]]]
    unlike = torch.cat([_weights(mass, uneven, 1, 5) for mass in apart])
    rows = [
        ("two heads, a job for each", "assign_give", sure, small),
        ("the same two heads, the other way round", "assign", sure.flip(1), small),
        (
            "two heads that look elsewhere too",
            "mass_pick",
            _weights([[0.2, 0.5], [0.4, 0.3]], uneven, 1, 5),
            uneven,
        ),
        ("two heads for one job", "assign", _weights([[0.1, 0.2], [0.6, 0.5]], uneven, 1, 5), uneven),
        ("several examples", "mass_examples", _weights([[0.2, 0.5], [0.4, 0.3]], uneven, 3, 5), uneven),
        (
            "a head that is the best at both jobs",
            "assign",
            _weights([[0.4, 0.3], [0.45, 0.2]], uneven, 2, 5),
            uneven,
        ),
        (
            "a head that the first job needs more than the last",
            "assign",
            _weights([[0.45, 0.2], [0.4, 0.3]], uneven, 2, 5),
            uneven,
        ),
        ("examples in which other heads do the jobs", "mass_examples", unlike, uneven),
        ("the same examples in reverse order", "mass_examples", unlike.flip(0), uneven),
        ("more heads than jobs", "assign", _weights(two_jobs, keys[1:], 2, 6), keys[1:]),
        ("one job", "assign", rich, keys[2:]),
        ("three jobs, five heads", "assign", rich, keys),
        ("weights that do not lie in memory in order", "mass_pick", rich.mT.contiguous().mT, keys),
    ]
    return [
        Probe(shows, stage, {"weights": weights, "right_keys": right_keys})
        for shows, stage, weights, right_keys in rows
    ]


SPECIALISATION = Exercise(
    "specialisation",
    "(weights, right_keys)",
    toy_task.specialisation,
    SPECIALISATION_STAGES,
    measure,
    _probes,
    _giving_plain_numbers,
)
