"""Right answers to the exercise `specialisation` pass in whatever style; wrong ones are told apart."""

from itertools import permutations

import pytest
import torch

from mha.check import EXERCISES
from mha.check.diagnose import mark

EXERCISE = EXERCISES["specialisation"]


def with_gather(weights, right_keys):
    B, h, Lq, _ = weights.shape
    index = right_keys.T.expand(B, h, Lq, len(right_keys))
    mass = weights.gather(-1, index).mean(dim=(0, 2)).numpy()  # (h, jobs)
    jobs = range(mass.shape[1])
    heads = max(permutations(range(h), len(jobs)), key=lambda heads: sum(mass[heads, jobs]))
    return mass[heads, jobs].mean(), list(heads)


def with_one_hot(weights, right_keys):
    wanted = torch.nn.functional.one_hot(right_keys, weights.size(-1)).to(weights)
    mass = torch.einsum("bhqk,jqk->jh", weights, wanted) / (weights.size(0) * weights.size(2))
    tried = torch.tensor(list(permutations(range(mass.size(1)), len(mass))))
    scores = mass[torch.arange(len(mass)), tried].mean(dim=1)
    return scores.max(), tried[scores.argmax()]


def with_loops(weights, right_keys):
    B, h, Lq, _ = weights.shape
    jobs = len(right_keys)

    def search(job, free):
        if job == jobs:
            return 0.0, ()
        found = []
        for head in free:
            on_key = [weights[b, head, q, right_keys[job, q]].item() for b in range(B) for q in range(Lq)]
            rest, heads = search(job + 1, free - {head})
            found.append((sum(on_key) / len(on_key) + rest, (head, *heads)))
        return max(found)

    total, heads = search(0, frozenset(range(h)))
    return [total / jobs, heads]


@pytest.mark.parametrize("answer", [with_gather, with_one_hot, with_loops])
def test_a_right_answer_passes_in_any_style(answer):
    result = mark(EXERCISE, lambda weights, right_keys: answer(weights, right_keys))
    assert result.passed, result.message


@pytest.mark.parametrize(
    ("answer", "id"),
    [
        (lambda w, k: with_loops(w.mT[:, :, : k.size(1)], k), "specialisation-rows-and-columns"),
        (lambda w, k: (with_loops(w, k)[0] * len(k), with_loops(w, k)[1]), "specialisation-sum-over-jobs"),
        (lambda w, k: with_loops(w, k)[0], "specialisation-score-alone"),
        (lambda w, k: with_loops(w[:1], k), "specialisation-first-example-only"),
    ],
)
def test_a_mistake_written_in_another_style_is_named(answer, id):
    result = mark(EXERCISE, lambda weights, right_keys: answer(weights, right_keys))
    assert [entry.id for entry in result.mistakes] == [id], result.message


def test_what_nothing_explains_is_shown_on_an_input_that_can_be_read():
    result = mark(EXERCISE, lambda weights, right_keys: (0.123, tuple(range(len(right_keys)))))
    assert not result.passed and result.mistakes == ()
    assert "on two heads, a job for each" in result.message
