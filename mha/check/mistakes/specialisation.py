"""What goes wrong when heads are held against the jobs that they are to do."""

from itertools import combinations, permutations
from typing import Any

import torch
from torch import Tensor

from mha.check.catalogue import Stage, mistake
from mha.check.exercises.specialisation import Heads, assign, assign_score, mass_pick, total

# ---------------------------------------------------------------- which weights, which keys


@mistake(
    "specialisation-heads-averaged",
    "The heads are averaged before they are told apart",
    "Two heads that share out the work look like two that both do half of everything.",
    "keep the axis h until each job has found its head.",
    stage="mass_weights",
)
def _(weights: Tensor) -> Tensor:
    return weights.mean(dim=1, keepdim=True).expand_as(weights)


@mistake(
    "specialisation-first-example-only",
    "Only the first example is looked at",
    "The score hangs on the accidents of one sequence.",
    "average over all B examples.",
    stage="mass_weights",
)
def _(weights: Tensor) -> Tensor:
    return weights[:1]


@mistake(
    "specialisation-last-example-only",
    "Only the last example is looked at",
    "The score hangs on the accidents of one sequence; in a loop, each turn overwrites the one before.",
    "average over all B examples.",
    stage="mass_weights",
)
def _(weights: Tensor) -> Tensor:
    return weights[-1:]


@mistake(
    "specialisation-rows-and-columns",
    "weights is read as (…, key, query)",
    "It measures who is looked at *by* the right key: previous and next change places.",
    "queries are the rows, keys the columns: weights[:, :, query, key].",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return weights[:, :, right_keys, torch.arange(right_keys.size(1))]


@mistake(
    "specialisation-key-too-late",
    "The right keys are one too late",
    "A head that looks at the token itself is taken for one that looks back.",
    "use right_keys as it is: positions are counted from 0.",
    stage="mass_keys",
)
def _(right_keys: Tensor, Lk: int) -> Tensor:
    return (right_keys + 1) % Lk


@mistake(
    "specialisation-key-too-early",
    "The right keys are one too early",
    "A head that looks at the token itself is taken for one that looks ahead.",
    "use right_keys as it is: positions are counted from 0.",
    stage="mass_keys",
)
def _(right_keys: Tensor, Lk: int) -> Tensor:
    return (right_keys - 1) % Lk


@mistake(
    "specialisation-jobs-reversed",
    "The jobs are taken in reverse order",
    "The score is right, and the wrong job is said of each head.",
    "row 0 of right_keys belongs to job 0.",
    stage="mass_keys",
)
def _(right_keys: Tensor, Lk: int) -> Tensor:
    return right_keys.flip(0)


@mistake(
    "specialisation-keys-of-first-query",
    "The right key of the first query is used for all queries",
    "It measures who looks at one position, wherever the query stands.",
    "each query has its own: right_keys is (jobs, Lq).",
    stage="mass_keys",
)
def _(right_keys: Tensor, Lk: int) -> Tensor:
    return right_keys[:, :1].expand_as(right_keys)


@mistake(
    "specialisation-jobs-forgotten",
    "Every job is held against the keys of job 0",
    "A head that does job 0 counts for all of them.",
    "row j of right_keys belongs to job j.",
    stage="mass_keys",
)
def _(right_keys: Tensor, Lk: int) -> Tensor:
    return right_keys[:1].expand_as(right_keys)


# ---------------------------------------------------------------- how much of the attention


@mistake(
    "specialisation-argmax",
    "It counts how often the right key gets the most, in place of how much it gets",
    "A head that gives the right key 0.3 and all others less scores as high as one that gives it 1.",
    "take the weight on the right key itself; an argmax is blind to its size.",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return (weights.argmax(dim=-1)[:, :, None] == right_keys).float()


@mistake(
    "specialisation-over-half",
    "It counts how often the right key gets more than half, in place of how much it gets",
    "0.51 and 1 are the same, and 0.49 is nothing.",
    "take the weight on the right key itself.",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return (mass_pick(weights, right_keys) > 0.5).float()


@mistake(
    "specialisation-largest-weight",
    "The largest weight is taken, on whichever key it lies",
    "A head that is sure of the wrong key scores 1.",
    "pick the weight at right_keys; how sure a head is says nothing about its job.",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return weights.amax(dim=-1)[:, :, None].expand(-1, -1, len(right_keys), -1)


@mistake(
    "specialisation-among-the-jobs",
    "The mass is divided by what the head gives to all jobs together",
    "What a head wastes on other keys is forgotten: one that hardly looks at either key scores high.",
    "the weights of a row sum to 1 already; divide by nothing.",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    picked = mass_pick(weights, right_keys)
    return picked / picked.sum(dim=2, keepdim=True)


@mistake(
    "specialisation-logarithm",
    "The logarithm of the weight is taken",
    "The score is negative, and minus infinity where one query misses its key.",
    "take the weight itself: a share from 0 to 1.",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return mass_pick(weights, right_keys).log()


@mistake(
    "specialisation-squared",
    "The weights are squared",
    "Right at 0 and 1; a head with half its attention on the right key scores a quarter.",
    "take the weight itself.",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return mass_pick(weights, right_keys).square()


@mistake(
    "specialisation-softmax-again",
    "A softmax is applied to weights that are weights already",
    "All of them move towards 1 / Lk, and no head can reach 1.",
    "the layer returns weights, not scores: use them as they are.",
    stage="mass_weights",
)
def _(weights: Tensor) -> Tensor:
    return weights.softmax(dim=-1)


def _over(id: str, stage: str, axis: str, what: str, effect: str, reduce: Stage) -> None:
    one = {"mass_examples": "example", "mass_queries": "query"}[stage]
    hint = f"take the mean over the {axis}."
    mistake(id, f"{what} of the {axis} is taken, not the mean", effect.format(one=one), hint, stage=stage)(
        reduce
    )


_over(
    "specialisation-sum-of-examples", "mass_examples", "examples", "The sum",
    "The score grows with the batch and passes 1.", lambda picked: picked.sum(dim=0),
)  # fmt: skip
_over(
    "specialisation-sum-of-queries", "mass_queries", "queries", "The sum",
    "The score grows with the length and passes 1.", lambda picked: picked.sum(dim=-1),
)  # fmt: skip
_over(
    "specialisation-best-example", "mass_examples", "examples", "The largest",
    "One lucky {one} is enough for a high score.", lambda picked: picked.amax(dim=0),
)  # fmt: skip
_over(
    "specialisation-best-query", "mass_queries", "queries", "The largest",
    "One lucky {one} is enough for a high score.", lambda picked: picked.amax(dim=-1),
)  # fmt: skip
_over(
    "specialisation-worst-query", "mass_queries", "queries", "The smallest",
    "One unlucky {one} is enough for a low score.", lambda picked: picked.amin(dim=-1),
)  # fmt: skip
_over(
    "specialisation-first-query", "mass_queries", "queries", "The first",
    "All other positions are forgotten.", lambda picked: picked[..., 0],
)  # fmt: skip
_over(
    "specialisation-last-query", "mass_queries", "queries", "The last",
    "All other positions are forgotten.", lambda picked: picked[..., -1],
)  # fmt: skip
_over(
    "specialisation-median", "mass_queries", "queries", "The median",
    "A head that fails at a few positions is not noticed.", lambda picked: picked.median(dim=-1).values,
)  # fmt: skip


# ---------------------------------------------------------------- a head for each job


@mistake(
    "specialisation-head-used-twice",
    "Each job takes its best head, even if another job has it already",
    "One head that is the best at everything is counted once for each job.",
    "a head may be given away once: try the permutations of the heads.",
    stage="assign",
)
def _(mass: Tensor) -> Heads:
    return tuple(mass.argmax(dim=1).tolist())


@mistake(
    "specialisation-no-assignment",
    "Job j is held against head j",
    "Which head takes which job is chance: heads that learned them the other way round score 0.",
    "try every assignment and keep the best: itertools.permutations(range(h), jobs).",
    stage="assign",
)
def _(mass: Tensor) -> Heads:
    return tuple(range(len(mass)))


@mistake(
    "specialisation-greedy-by-job",
    "One job after the other takes the best head that is left",
    "An early job may take the head that a later one needs more.",
    "compare whole assignments by their sum: itertools.permutations(range(h), jobs).",
    stage="assign",
)
def _(mass: Tensor) -> Heads:
    left, heads = mass.clone(), []
    for job in range(len(mass)):
        heads.append(int(left[job].argmax()))
        left[:, heads[-1]] = -torch.inf
    return tuple(heads)


@mistake(
    "specialisation-greedy-by-mass",
    "The largest mass in the table is given away first, then the largest that is left",
    "The best pair may cost another job more than it gains.",
    "compare whole assignments by their sum: itertools.permutations(range(h), jobs).",
    stage="assign",
)
def _(mass: Tensor) -> Heads:
    left, heads = mass.clone(), {}
    for _ in range(len(mass)):
        job, head = divmod(int(left.argmax()), left.size(1))
        heads[job] = head
        left[job], left[:, head] = -torch.inf, -torch.inf
    return tuple(heads[job] for job in range(len(mass)))


@mistake(
    "specialisation-combinations",
    "The heads are chosen, but only in ascending order: combinations in place of permutations",
    "A job can only take a later head than the job before it.",
    "itertools.permutations(range(h), jobs): the order matters.",
    stage="assign",
)
def _(mass: Tensor) -> Heads:
    return max(combinations(range(mass.size(1)), len(mass)), key=lambda heads: total(mass, heads))


@mistake(
    "specialisation-first-heads-only",
    "Only as many heads are tried as there are jobs",
    "With more heads than jobs, the last ones are never looked at.",
    "itertools.permutations(range(h), jobs): of all h heads.",
    stage="assign",
)
def _(mass: Tensor) -> Heads:
    return assign(mass[:, : len(mass)])


@mistake(
    "specialisation-worst-assignment",
    "The worst assignment is taken: a minimum in place of the maximum",
    "Heads that share out the jobs perfectly score 0.",
    "take the largest; scipy's linear_sum_assignment needs maximize=True for that.",
    stage="assign",
)
def _(mass: Tensor) -> Heads:
    return min(permutations(range(mass.size(1)), len(mass)), key=lambda heads: total(mass, heads))


@mistake(
    "specialisation-mean-of-assignments",
    "The score is the mean over all jobs and heads, whoever does what",
    "Two perfect heads score 0.5, like two that do both jobs by halves.",
    "look for the best assignment and average over its jobs only.",
    stage="assign_score",
)
def _(mass: Tensor, heads: Heads) -> float:
    return mass.mean().item()


@mistake(
    "specialisation-favourite-job",
    "Each head is scored on the job it likes most, whether or not another head does the same",
    "Two heads with one job between them score 1, and nobody does the other.",
    "ask for each *job* which head does it, and use each head once.",
    stage="assign_score",
)
def _(mass: Tensor, heads: Heads) -> float:
    return mass.amax(dim=0).mean().item()


def _score(id: str, title: str, effect: str, hint: str, score: Stage) -> None:
    mistake(id, title, effect, hint, stage="assign_score")(
        lambda mass, heads: score(torch.tensor([mass[job, head].item() for job, head in enumerate(heads)]))
    )


_score(
    "specialisation-sum-over-jobs",
    "The masses of the jobs are added up, not averaged",
    "The score runs up to the number of jobs.",
    "divide by the number of jobs.",
    lambda masses: masses.sum().item(),
)
_score(
    "specialisation-worst-job",
    "The score is that of the worst job",
    "One neglected job hides how well the others are done.",
    "take the mean over the jobs.",
    lambda masses: masses.min().item(),
)
_score(
    "specialisation-best-job",
    "The score is that of the best job",
    "One good head is enough for 1.",
    "take the mean over the jobs.",
    lambda masses: masses.max().item(),
)
_score(
    "specialisation-product",
    "The masses of the jobs are multiplied",
    "The score sinks with every further job, however well it is done.",
    "take the mean over the jobs.",
    lambda masses: masses.prod().item(),
)
_score(
    "specialisation-geometric-mean",
    "The geometric mean over the jobs is taken",
    "One job that nobody does makes the whole score 0.",
    "take the arithmetic mean over the jobs.",
    lambda masses: masses.prod().item() ** (1 / len(masses)),
)
_score(
    "specialisation-last-job-forgotten",
    "The last job does not count",
    "It can be neglected at no cost.",
    "range(jobs) runs over all of them; take the mean over as many.",
    lambda masses: masses[: max(1, len(masses) - 1)].mean().item(),
)
_score(
    "specialisation-percent",
    "The score is in percent",
    "100 in place of 1.",
    "leave it a share from 0 to 1.",
    lambda masses: 100 * masses.mean().item(),
)
_score(
    "specialisation-rounded",
    "The score is rounded",
    "0.949 and 0.95 are told apart no more, or passed off as each other.",
    "return it as it is; round where it is shown.",
    lambda masses: round(masses.mean().item(), 2),
)


@mistake(
    "specialisation-divided-by-heads",
    "The masses are divided by the number of heads, not of jobs",
    "With more heads than jobs even a perfect score falls short of 1.",
    "take the mean over the jobs; idle heads do not count.",
    stage="assign_score",
)
def _(mass: Tensor, heads: Heads) -> float:
    return total(mass, heads) / mass.size(1)


@mistake(
    "specialisation-minus-the-rest",
    "What the other heads give to the job is subtracted",
    "A second head that does the same job lowers the score, though nothing is done worse.",
    "count the mass of the head that has the job; redundancy is another question.",
    stage="assign_score",
)
def _(mass: Tensor, heads: Heads) -> float:
    others = mass.sum().item() - total(mass, heads)
    return assign_score(mass, heads) - others / (mass.numel() - len(mass) or 1)


# ---------------------------------------------------------------- what is returned


@mistake(
    "specialisation-score-alone",
    "Only the score is returned",
    "It does not say which head does which job.",
    "return the score and the heads.",
    stage="assign_give",
)
def _(score: float, heads: Heads) -> Any:
    return score


@mistake(
    "specialisation-heads-alone",
    "Only the heads are returned",
    "It does not say how well they do their jobs.",
    "return the score and the heads.",
    stage="assign_give",
)
def _(score: float, heads: Heads) -> Any:
    return heads


@mistake(
    "specialisation-given-the-wrong-way-round",
    "The heads are returned first, then the score",
    "Who unpacks the two gets one for the other.",
    "return score, heads.",
    stage="assign_give",
)
def _(score: float, heads: Heads) -> Any:
    return heads, score


@mistake(
    "specialisation-heads-from-1",
    "The heads are counted from 1",
    "Head 0 is called head 1, as nowhere else in the course.",
    "count from 0.",
    stage="assign_give",
)
def _(score: float, heads: Heads) -> Any:
    return score, tuple(head + 1 for head in heads)


@mistake(
    "specialisation-job-of-each-head",
    "The job of each head is returned, not the head of each job",
    "With two of each the two lists look alike; with more they do not.",
    "entry j is the head that does job j.",
    stage="assign_give",
)
def _(score: float, heads: Heads) -> Any:
    return score, tuple(heads.index(head) for head in sorted(heads))


@mistake(
    "specialisation-heads-sorted",
    "The heads are sorted",
    "It says which heads have a job, but not which job.",
    "entry j is the head that does job j: leave them in the order of the jobs.",
    stage="assign_give",
)
def _(score: float, heads: Heads) -> Any:
    return score, tuple(sorted(heads))
