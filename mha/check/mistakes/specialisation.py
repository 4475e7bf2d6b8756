"""What goes wrong when heads are held against the jobs that they are to do."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations, permutations
from typing import Any

import torch
from torch import Tensor

from mha import toy_task
from mha.check.catalogue import Stage, mistake
from mha.check.exercises.specialisation import (
    Heads,
    assign,
    assign_score,
    best,
    mass_pick,
    mass_queries,
    total,
)

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
    "specialisation-own-token",
    "It is the weight on the token itself that is taken: right_keys is not used",
    "A head that looks back or ahead scores next to nothing.",
    "the key of query i for job j is right_keys[j, i].",
    stage="mass_keys",
)
def _(right_keys: Tensor, Lk: int) -> Tensor:
    return torch.arange(right_keys.size(1)).expand_as(right_keys)


@mistake(
    "specialisation-job-number-as-key",
    "The number of the job is taken for the key",
    "It measures who looks at the first positions, wherever the query stands.",
    "the key of query i for job j is right_keys[j, i].",
    stage="mass_keys",
)
def _(right_keys: Tensor, Lk: int) -> Tensor:
    return torch.arange(len(right_keys))[:, None].expand_as(right_keys)


@mistake(
    "specialisation-jobs-forgotten",
    "Every job is held against the keys of job 0",
    "A head that does job 0 counts for all of them.",
    "row j of right_keys belongs to job j.",
    stage="mass_keys",
)
def _(right_keys: Tensor, Lk: int) -> Tensor:
    return right_keys[:1].expand_as(right_keys)


@mistake(
    "specialisation-two-jobs-only",
    "Only the first two jobs are looked at",
    "Right for two jobs; with more, some get no head.",
    "right_keys is (jobs, Lq): go through all its rows.",
    stage="mass_keys",
)
def _(right_keys: Tensor, Lk: int) -> Tensor:
    return right_keys[:2]


@mistake(
    "specialisation-previous-and-next",
    "The keys are the token before and the token behind, whatever right_keys says",
    "Right for the toy task only.",
    "the key of query i for job j is right_keys[j, i].",
    stage="mass_keys",
)
def _(right_keys: Tensor, Lk: int) -> Tensor:
    return toy_task.right_keys(right_keys.size(1))


def _without_some(id: str, title: str, effect: str, pick: Stage) -> None:
    """Enter a `pick` that gives NaN where a query is left out of the mean."""
    hint = "every query counts: weights[:, :, torch.arange(Lq), right_keys[j]].mean()."
    mistake(id, title, effect, hint, stage="mass_pick", also={"mass_queries": lambda x: x.nanmean(dim=-1)})(
        pick
    )


def _diagonals(weights: Tensor, right_keys: Tensor) -> Tensor:
    """Pick the weights on the token before and on that behind, where there is one."""
    Lq, Lk = weights.shape[2:]
    queries = torch.arange(Lq)
    keys = torch.stack([queries - 1, queries + 1])
    there = (keys >= 0) & (keys < Lk)
    return mass_pick(weights, keys.clamp(0, Lk - 1)).masked_fill(~there, torch.nan)


_without_some(
    "specialisation-own-keys-left-out",
    "Queries whose right key is the token itself are left out of the mean",
    "A head is not asked about the ends of the text.",
    lambda weights, right_keys: mass_pick(weights, right_keys).masked_fill(
        right_keys == torch.arange(right_keys.size(1)), torch.nan
    ),
)
_without_some(
    "specialisation-diagonals",
    "The diagonals beside the main one are taken, the token before and that behind: right_keys is not used",
    "Right for the toy task at most, but for the ends of the text.",
    _diagonals,
)

# ---------------------------------------------------------------- how much of the attention


@mistake(
    "specialisation-columns-for-every-query",
    "weights[…, right_keys[j]] takes the right keys of all queries for each query",
    "The mean over these columns is about 1 / Lk for every head, whatever it looks at.",
    "pair each query with its own key: weights[:, :, torch.arange(Lq), right_keys[j]].",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return weights[..., right_keys].mean(dim=-1).transpose(2, 3)


@mistake(
    "specialisation-rows-of-right-keys",
    "weights[:, :, right_keys[j]] takes whole rows: right_keys stands where the query does",
    "The mean over a row is 1 / Lk for every head, whatever it looks at.",
    "pair each query with its own key: weights[:, :, torch.arange(Lq), right_keys[j]].",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return weights[:, :, right_keys].mean(dim=-1)


@mistake(
    "specialisation-gather-without-axes",
    "gather gets right_keys, or a row of it, without axes for examples and heads",
    "gather wants an index with as many axes as weights has: an error.",
    "right_keys[j].view(1, 1, Lq, 1).expand(B, h, Lq, 1), or weights[:, :, torch.arange(Lq), right_keys[j]].",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return weights.gather(-1, right_keys)


@mistake(
    "specialisation-gather-along-queries",
    "gather goes along dim 2, the queries",
    "It takes the first column of the weights, at the rows that the right keys name.",
    "keys are the last axis: weights.gather(-1, …).",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return weights[:, :, right_keys, 0]


@mistake(
    "specialisation-as-many-queries-as-keys",
    "The queries are counted to Lk, not to Lq",
    "Right where there are as many keys as queries; else an error.",
    "right_keys is (jobs, Lq): torch.arange(right_keys.size(1)).",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return weights[:, :, torch.arange(weights.size(-1)), right_keys]


@mistake(
    "specialisation-mean-over-keys",
    "The mean is taken over the keys as well, over zeros for all but the right one",
    "Even a perfect head scores 1 / Lk.",
    "multiplied by a one-hot mask, the weights are added up over the keys: .sum(dim=-1).",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return mass_pick(weights, right_keys) / weights.size(-1)


@mistake(
    "specialisation-divided-by-lk",
    "The sum over the queries is divided by Lk, not by Lq",
    "Right where there are as many keys as queries.",
    "there is one right key for each query: take the mean over the Lq queries.",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return mass_pick(weights, right_keys) * (right_keys.size(1) / weights.size(-1))


@mistake(
    "specialisation-chance-subtracted",
    "What chance would give, 1 / Lk, is subtracted",
    "A perfect head scores 1 - 1 / Lk.",
    "the score is the weight on the right key itself.",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return mass_pick(weights, right_keys) - 1 / weights.size(-1)


@mistake(
    "specialisation-chance-divided-by",
    "It is divided by what chance would give: multiplied by Lk",
    "A perfect head scores Lk.",
    "the score is the weight on the right key itself, from 0 to 1.",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return mass_pick(weights, right_keys) * weights.size(-1)


@mistake(
    "specialisation-share-of-largest",
    "The weight is divided by the largest of its row",
    "A head that gives the right key 0.3 and all others less scores 1.",
    "take the weight itself; it is a share of all keys already.",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return mass_pick(weights, right_keys) / weights.amax(dim=-1)[:, :, None]


@mistake(
    "specialisation-share-for-each-query",
    "For each query, the mass is divided by what all heads together give to the right key",
    "Heads that hardly look at the right key share out 1 among them.",
    "divide by nothing: how the heads compare with one another is another question.",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    picked = mass_pick(weights, right_keys)
    return picked / picked.sum(dim=1, keepdim=True)


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
    "specialisation-argmax-of-mean",
    "It counts how often the right key gets the most on average over the examples",
    "A head that gives the right key 0.3 and all others less scores as high as one that gives it 1.",
    "take the weight on the right key itself; an argmax is blind to its size.",
    stage="mass_pick",
)
def _(weights: Tensor, right_keys: Tensor) -> Tensor:
    return (weights.mean(dim=0, keepdim=True).argmax(dim=-1)[:, :, None] == right_keys).float()


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


def _compared(id: str, title: str, effect: str, compare: Stage) -> None:
    """Enter a mass that is compared, a function of (h, jobs)."""
    hint = "divide by nothing: the mass of a head is the weight on the right key, a share from 0 to 1."
    mistake(id, title, effect, hint, stage="mass_queries")(lambda picked: compare(mass_queries(picked)))


_compared(
    "specialisation-share-among-heads",
    "Each job's mass is divided by its sum over the heads",
    "It tells how the heads compare with one another: heads that hardly look at the key share out 1.",
    lambda mass: mass / mass.sum(dim=0),
)
_compared(
    "specialisation-share-among-jobs",
    "Each head's mass is divided by its sum over the jobs",
    "What a head wastes on other keys is forgotten: one that hardly looks at any right key scores high.",
    lambda mass: mass / mass.sum(dim=1, keepdim=True),
)
_compared(
    "specialisation-share-of-best-head",
    "Each job's mass is divided by that of its best head",
    "The best head scores 1, however little it looks at the key.",
    lambda mass: mass / mass.amax(dim=0),
)
_compared(
    "specialisation-softmax-over-heads",
    "A softmax over the heads is applied to each job's mass",
    "All heads move towards 1 / h, and none can reach 1.",
    lambda mass: mass.softmax(dim=0),
)
_compared(
    "specialisation-softmax-over-jobs",
    "A softmax over the jobs is applied to each head's mass",
    "All jobs move towards 1 / jobs, and none can reach 1.",
    lambda mass: mass.softmax(dim=1),
)


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
for _which, _reduce in (("largest", torch.amax), ("smallest", torch.amin)):
    mistake(
        f"specialisation-{_which}-of-the-examples",
        f"Of the examples' own masses, the {_which} is taken, not the mean",
        "The score hangs on one sequence.",
        "take the mean over the examples.",
        stage="mass_queries",
        also={"mass_examples": lambda picked: picked},
    )(lambda picked, _reduce=_reduce: _reduce(picked.mean(dim=-1), dim=0))
_over(
    "specialisation-worst-example", "mass_examples", "examples", "The smallest",
    "One unlucky {one} is enough for a low score.", lambda picked: picked.amin(dim=0),
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


def _left_out(id: str, which: str, slice_: slice) -> None:
    mistake(
        id,
        f"The {which} query does not count",
        "What heads do there can be right or wrong at no cost.",
        "take the mean over all Lq queries.",
        stage="mass_queries",
    )(lambda picked: picked[..., slice_].mean(dim=-1))


_left_out("specialisation-first-query-left-out", "first", slice(1, None))
_left_out("specialisation-last-query-left-out", "last", slice(None, -1))


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
    return _greedy(mass)


def _greedy(mass: Tensor) -> Heads:
    """Give each row, in turn, its largest column that is left."""
    left, columns = mass.clone(), []
    for row in left:
        columns.append(int(row.argmax()))
        left[:, columns[-1]] = -torch.inf
    return tuple(columns)


@mistake(
    "specialisation-greedy-from-the-last-job",
    "One job after the other, from the last on, takes the best head that is left",
    "A late job may take the head that an earlier one needs more.",
    "compare whole assignments by their sum: itertools.permutations(range(h), jobs).",
    stage="assign",
)
def _(mass: Tensor) -> Heads:
    return _greedy(mass.flip(0))[::-1]


@mistake(
    "specialisation-greedy-by-head",
    "One head after the other takes the best job that is left",
    "With more heads than jobs, the last ones are never looked at.",
    "compare whole assignments by their sum: itertools.permutations(range(h), jobs).",
    stage="assign",
)
def _(mass: Tensor) -> Heads:
    jobs_of_heads = _greedy(mass.T[: len(mass)])
    return tuple(jobs_of_heads.index(job) for job in range(len(mass)))


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
    return best(mass, combinations(range(mass.size(1)), len(mass)))


@mistake(
    "specialisation-permutations-of-jobs",
    "The permutations are of the jobs, h at a time, not of the heads",
    "With more heads than jobs there are none: an error.",
    "itertools.permutations(range(h), jobs): a head for each job.",
    stage="assign",
)
def _(mass: Tensor) -> Heads:
    jobs, h = mass.shape
    order = best(mass.T, permutations(range(jobs), h))  # the job of each head
    return tuple(order.index(job) for job in range(jobs))


@mistake(
    "specialisation-last-assignment",
    "The last assignment that is tried is returned, not the best",
    "There is no comparison, or it compares with what never changes.",
    "keep the best so far: if score > best_score.",
    stage="assign",
)
def _(mass: Tensor) -> Heads:
    return _last(mass)


def _best_score(mass: Tensor, heads: Heads) -> float:
    return assign_score(mass, assign(mass))


def _last(mass: Tensor) -> Heads:
    return list(permutations(range(mass.size(1)), len(mass)))[-1]


@mistake(
    "specialisation-last-heads-tried",
    "The score is the best, the heads are those of the last assignment that was tried",
    "The variable of the loop is returned in place of the best so far.",
    "return best_score, best_heads.",
    stage="assign",
    also={"assign_score": _best_score},
)
def _(mass: Tensor) -> Heads:
    return _last(mass)


@mistake(
    "specialisation-favourites-told",
    "The score is that of the best assignment, the heads are each job's favourite",
    "One head can be named for two jobs, and the score is that of others.",
    "return the heads that make the score.",
    stage="assign",
    also={"assign_score": _best_score},
)
def _(mass: Tensor) -> Heads:
    return tuple(mass.argmax(dim=1).tolist())


@mistake(
    "specialisation-idle-heads-too",
    "All heads are returned, those without a job as well",
    "There are more heads in the result than jobs.",
    "only the first `jobs` of a permutation: itertools.permutations(range(h), jobs).",
    stage="assign",
    also={"assign_score": lambda mass, heads: assign_score(mass, heads[: len(mass)])},
)
def _(mass: Tensor) -> Heads:
    heads = assign(mass)
    return heads + tuple(head for head in range(mass.size(1)) if head not in heads)


@mistake(
    "specialisation-heads-in-reverse",
    "The heads of the best assignment are handed to the jobs in reverse order",
    "The wrong job is said of each head, and the score is that of another assignment.",
    "entry j of a permutation is the head of job j.",
    stage="assign",
)
def _(mass: Tensor) -> Heads:
    return assign(mass)[::-1]


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
    return best(-mass, permutations(range(mass.size(1)), len(mass)))


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


@mistake(
    "specialisation-two-heads-only",
    "Only heads 0 and 1 are looked at, in their two orders",
    "Right for two jobs and two heads.",
    "itertools.permutations(range(h), jobs) goes through all assignments.",
    stage="assign",
)
def _(mass: Tensor) -> Heads:
    straight, crossed = mass[0, 0] + mass[1, 1], mass[0, 1] + mass[1, 0]
    return (0, 1) if straight >= crossed else (1, 0)


@mistake(
    "specialisation-favourite-jobs-told",
    "Each head gets its favourite job, in place of a head for each job: the largest of the wrong axis",
    "There are as many numbers as heads, and a job may be left to nobody.",
    "ask for each *job* which head does it, and use each head once.",
    stage="assign",
    also={"assign_score": lambda mass, heads: mass.amax(dim=0).mean().item()},
)
def _(mass: Tensor) -> Heads:
    return tuple(mass.argmax(dim=0).tolist())


@mistake(
    "specialisation-heads-averaged-not-examples",
    "The mean is taken over the heads, and the examples are handed to the jobs",
    "An error where there are fewer examples than jobs, else an assignment of examples.",
    "weights are (B, h, Lq, Lk): the mean over the examples is .mean(dim=0).",
    stage="mass_examples",
)
def _(picked: Tensor) -> Tensor:
    return picked.mean(dim=1)


@mistake(
    "specialisation-for-each-query",
    "Each query gets an assignment of its own; the scores are averaged, "
    "the heads are those that come up most often",
    "Heads that change their jobs from token to token look as if they were specialised.",
    "take the mean over the queries first, then look for one assignment that holds for all of them.",
    stage="assign",
    also={
        "mass_queries": lambda picked: picked.transpose(1, 2),  # (h, Lq, jobs), which comes as (h, jobs, Lq)
        "assign_score": lambda mass, heads: _own_best(mass.permute(2, 1, 0), heads),
    },
)
def _(mass: Tensor) -> Heads:
    return Counter(assign(one) for one in mass.permute(2, 1, 0)).most_common(1)[0][0]


def _own_best(mass: Tensor, heads: Heads) -> float:
    """(B, jobs, h) → the mean of each example's own best score."""
    return sum(_best_score(one, heads) for one in mass) / len(mass)


def _for_each_example(id: str, told: str, heads_of: Callable[[list[Heads]], Any], once: bool = False) -> None:
    """Enter that each example gets an assignment of its own, and what is then said of the heads.

    Args:
        once: the score is that of the heads which are told, not the mean of each example's best.
    """

    def per_example(mass: Tensor) -> list[Heads]:
        return [assign(one) for one in mass]  # (B, jobs, h)

    def score(mass: Tensor, heads: Any) -> float:
        return assign_score(mass.mean(dim=0), heads) if once else _own_best(mass, heads)

    mistake(
        id,
        f"Each example gets an assignment of its own; {told}",
        "Heads that change their jobs from text to text look as if they were specialised.",
        "take the mean over the examples first, then look for one assignment that holds for all of them.",
        stage="assign",
        also={"mass_examples": lambda picked: picked, "assign_score": score},
    )(lambda mass: heads_of(per_example(mass)))


_for_each_example(
    "specialisation-for-each-example",
    "the scores are averaged, the heads are those that come up most often",
    lambda found: Counter(found).most_common(1)[0][0],
)
_for_each_example(
    "specialisation-for-each-example-heads-of-last",
    "the scores are averaged, the heads are those of the last",
    lambda found: found[-1],
)
_for_each_example(
    "specialisation-for-each-example-heads-of-first",
    "the scores are averaged, the heads are those of the first",
    lambda found: found[0],
)
_for_each_example(
    "specialisation-for-each-example-all-told",
    "the scores are averaged, and the heads of each are told",
    lambda found: found,
)
_for_each_example(
    "specialisation-majority-of-examples",
    "the one that comes up most often is taken for all",
    lambda found: Counter(found).most_common(1)[0][0],
    once=True,
)


@mistake(
    "specialisation-for-each-example-heads-of-mean",
    "The heads are those of all examples together, the score is the mean of each example's own best",
    "The score is that of other heads than those which are told, and too high.",
    "add up the mass of the heads that are told.",
    stage="assign",
    also={"mass_examples": lambda picked: picked, "assign_score": _own_best},
)
def _(mass: Tensor) -> Heads:
    return assign(mass.mean(dim=0))


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
    "specialisation-what-is-missed",
    "The score is 1 minus what it should be: what the heads give to other keys",
    "Perfect heads score 0.",
    "return the mean mass itself; a solver that wants costs gets 1 - mass, and its heads are scored by mass.",
    lambda masses: 1 - masses.mean().item(),
)
_score(
    "specialisation-rounded",
    "The score is rounded",
    "0.949 and 0.95 are told apart no more, or passed off as each other.",
    "return it as it is; round where it is shown.",
    lambda masses: round(masses.mean().item(), 2),
)


@mistake(
    "specialisation-last-score-tried",
    "The heads are the best, the score is that of the last assignment that was tried",
    "The variable of the loop is returned in place of the best so far.",
    "return best_score, best_heads.",
    stage="assign_score",
)
def _(mass: Tensor, heads: Heads) -> float:
    return assign_score(mass, _last(mass))


@mistake(
    "specialisation-mass-of-each-job",
    "The mass of each job comes back, not their mean",
    "The score is one number.",
    "take the mean over the jobs.",
    stage="assign_score",
)
def _(mass: Tensor, heads: Heads) -> Any:
    return tuple(mass[job, head].item() for job, head in enumerate(heads))


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


@mistake(
    "specialisation-pairs",
    "Pairs of job and head are returned, not the heads",
    "Entry j should be a number: the head that does job j.",
    "return the heads alone, in the order of the jobs.",
    stage="assign_give",
)
def _(score: float, heads: Heads) -> Any:
    return score, tuple(enumerate(heads))


@mistake(
    "specialisation-dict",
    "The heads are returned in a dict by job",
    "Whoever goes through it gets the jobs, not the heads.",
    "return the heads in a tuple: entry j is the head that does job j.",
    stage="assign_give",
)
def _(score: float, heads: Heads) -> Any:
    return score, dict(enumerate(heads))
