"""The toy task's right answers, its training, and the measure of who does which job, by hand."""

import pytest
import torch
from torch import Tensor

import mha
from mha import toy_task


def looking_at(*keys: list[int], length: int = 4) -> Tensor:
    """Weights (1, h, Lq, Lk) of heads each of whose queries looks at one key only."""
    return torch.nn.functional.one_hot(torch.tensor([keys]), length).double()


PREVIOUS, NEXT = [3, 0, 1, 2], [1, 2, 3, 0]  # in a ring of four
RING = torch.tensor([PREVIOUS, NEXT])


# ---------------------------------------------------------------- the task


def test_right_keys_of_a_ring_of_four() -> None:
    assert toy_task.right_keys(4).tolist() == [PREVIOUS, NEXT]
    assert toy_task.right_keys().shape == (len(toy_task.JOBS), 8)


def test_answers_are_the_token_before_and_the_token_behind() -> None:
    tokens = torch.tensor([[5, 1, 7, 4], [2, 2, 0, 6]])
    assert toy_task.answers(tokens).tolist() == [
        [[4, 5, 1, 7], [1, 7, 4, 5]],
        [[6, 2, 2, 0], [2, 0, 6, 2]],
    ]


def test_batch_is_drawn_from_its_generator_alone() -> None:
    before = torch.get_rng_state()
    tokens, targets = toy_task.make_batch(500, torch.Generator().manual_seed(3))
    again, _ = toy_task.make_batch(500, torch.Generator().manual_seed(3))
    other, _ = toy_task.make_batch(500, torch.Generator().manual_seed(4))
    assert tokens.shape == (500, 8) and targets.shape == (500, 2, 8)
    assert tokens.unique().tolist() == list(range(8))
    assert tokens.equal(again) and not tokens.equal(other)
    assert targets[0, 0].tolist() == tokens[0].roll(1).tolist()
    assert torch.get_rng_state().equal(before)


def test_accuracy_counts_right_answers() -> None:
    targets = torch.tensor([[[0, 1, 2], [2, 0, 1]]])  # (1, 2, 3)
    said = torch.tensor([[[0, 1, 1], [2, 1, 1]]])  # four of six
    logits = torch.nn.functional.one_hot(said, 3).float()
    assert toy_task.accuracy(logits, targets) == pytest.approx(4 / 6)


# ---------------------------------------------------------------- the model and its training


@pytest.mark.parametrize("num_heads", [1, 2, 4])
def test_model_has_equally_many_parameters_whatever_the_heads(num_heads: int) -> None:
    model = toy_task.NeighbourModel(num_heads)
    logits, weights = model(torch.zeros(3, 8, dtype=torch.long))
    assert logits.shape == (3, 2, 8, 8) and weights.shape == (3, num_heads, 8, 8)
    assert isinstance(model.attention, mha.MultiHeadAttention)
    # Tokens and positions 2·8·32, four projections 4·32², the read-out 32·16 and 16 biases.
    assert sum(p.numel() for p in model.parameters()) == 512 + 4096 + 528


@pytest.fixture(scope="module")
def trained() -> toy_task.NeighbourModel:
    return toy_task.train(num_heads=2, seed=0)


@pytest.fixture(scope="module")
def fresh() -> tuple[Tensor, Tensor]:
    return toy_task.make_batch(256, torch.Generator().manual_seed(1000))


def test_two_heads_learn_both_jobs(trained: toy_task.NeighbourModel, fresh: tuple[Tensor, Tensor]) -> None:
    logits, weights = trained(fresh[0])
    score, heads = toy_task.specialisation(weights, toy_task.right_keys())
    assert toy_task.accuracy(logits, fresh[1]) > 0.99
    assert score >= 0.95
    assert sorted(heads) == [0, 1]


def test_untrained_heads_have_no_job(fresh: tuple[Tensor, Tensor]) -> None:
    weights = []
    toy_task.train(2, seed=0, steps=1, on_step=lambda done, model: weights.append(model(fresh[0])[1]))
    score, _ = toy_task.specialisation(weights[0], toy_task.right_keys())
    assert score == pytest.approx(1 / 8, abs=0.1)


def test_one_head_cannot_do_both_jobs(fresh: tuple[Tensor, Tensor]) -> None:
    logits, _ = toy_task.train(1, seed=0)(fresh[0])
    assert 0.5 < toy_task.accuracy(logits, fresh[1]) < 0.7


def test_training_gives_the_same_model_for_a_seed_and_leaves_the_random_state_alone() -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = toy_task.train(2, seed=5, steps=3).state_dict()
    assert torch.get_rng_state().equal(before)
    torch.manual_seed(12)
    with torch.no_grad():
        again = toy_task.train(2, seed=5, steps=3).state_dict()
    other = toy_task.train(2, seed=6, steps=3).state_dict()
    assert all(x.equal(again[name]) for name, x in first.items())
    assert not any(x.equal(other[name]) for name, x in first.items())


def test_each_step_is_reported_before_and_after() -> None:
    seen = []
    model = toy_task.train(
        2, 0, steps=3, on_step=lambda done, model: seen.append((done, model.read_out.bias.clone()))
    )
    assert [done for done, _ in seen] == [0, 1, 2, 3]
    assert not seen[0][1].equal(seen[1][1])
    assert seen[3][1].equal(model.read_out.bias)
    assert not any(parameter.requires_grad for parameter in model.parameters())


# ---------------------------------------------------------------- who does which job


def test_attention_mass_by_hand() -> None:
    weights = torch.tensor([[[[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]]], [[[0.3, 0.3, 0.4], [0.9, 0.1, 0.0]]]])
    keys = torch.tensor([[2, 0], [1, 2], [0, 0]])  # three jobs, Lq = 2, Lk = 3, one head, two examples
    expected = [(0.7 + 0.5 + 0.4 + 0.9) / 4, (0.2 + 0.2 + 0.3 + 0.0) / 4, (0.1 + 0.5 + 0.3 + 0.9) / 4]
    mass = toy_task.attention_mass(weights, keys)
    assert mass.shape == (3, 1)
    assert mass.flatten().tolist() == pytest.approx(expected)


def test_a_head_for_each_job_scores_one() -> None:
    assert toy_task.specialisation(looking_at(PREVIOUS, NEXT), RING) == (1.0, (0, 1))
    assert toy_task.specialisation(looking_at(NEXT, PREVIOUS), RING) == (1.0, (1, 0))
    itself = [0, 1, 2, 3]
    assert toy_task.specialisation(looking_at(itself, NEXT, itself, PREVIOUS), RING) == (1.0, (3, 1))


def test_two_heads_with_the_same_job_score_half() -> None:
    assert toy_task.specialisation(looking_at(PREVIOUS, PREVIOUS), RING)[0] == 0.5


def test_heads_that_do_both_jobs_by_halves_score_half() -> None:
    both = (looking_at(PREVIOUS) + looking_at(NEXT)) / 2
    assert toy_task.specialisation(both.repeat(1, 2, 1, 1), RING) == (0.5, (0, 1))


def test_heads_that_look_everywhere_score_what_one_key_gets() -> None:
    assert toy_task.specialisation(torch.full((3, 2, 4, 4), 0.25), RING)[0] == 0.25


def test_best_assignment_need_not_give_a_job_its_best_head() -> None:
    # Head 0 is the best at both jobs, with 0.6 and 0.5; head 1 has 0.4 and 0. Giving job 0 its best head
    # leaves 0.6 + 0 for both together; the other way round it is 0.4 + 0.5.
    weights = torch.zeros(1, 2, 1, 4)
    weights[0, 0, 0] = torch.tensor([0.6, 0.5, 0.0, 0.0])
    weights[0, 1, 0] = torch.tensor([0.4, 0.0, 0.0, 0.6])
    score, heads = toy_task.specialisation(weights, torch.tensor([[0], [1]]))
    assert score == pytest.approx(0.45)
    assert heads == (1, 0)


def test_each_of_three_jobs_counts() -> None:
    jobs = torch.tensor([PREVIOUS, NEXT, [0, 1, 2, 3]])
    score, heads = toy_task.specialisation(looking_at(NEXT, [2, 3, 0, 1], PREVIOUS), jobs)
    assert score == pytest.approx(2 / 3)
    assert heads == (2, 0, 1)


@pytest.mark.parametrize(
    ("weights", "keys", "error", "says"),
    [
        (torch.ones(2, 4, 4), RING, ValueError, r"weights has shape \(2, 4, 4\); it has to be 4-D"),
        ([[1.0]], RING, TypeError, "weights is a list"),
        (looking_at(PREVIOUS).long(), RING, TypeError, "weights has dtype torch.int64"),
        (looking_at(PREVIOUS, NEXT), RING[0], ValueError, r"right_keys has shape \(4,\); it has to be 2-D"),
        (looking_at(PREVIOUS, NEXT), RING.double(), TypeError, "right_keys has dtype torch.float64"),
        (looking_at(PREVIOUS, NEXT), RING[:, :3], ValueError, r"right_keys \(2, 3\)"),
        (looking_at(PREVIOUS, NEXT), RING[:0], ValueError, r"right_keys \(0, 4\).*no axis empty"),
        (looking_at(PREVIOUS, NEXT), RING + 1, ValueError, "each has to be a key, from 0 to 3"),
        (looking_at(PREVIOUS, NEXT), RING - 1, ValueError, "each has to be a key, from 0 to 3"),
        (looking_at(PREVIOUS), RING, ValueError, "right_keys has 2 jobs and weights 1 heads"),
    ],
)
def test_specialisation_refuses_what_does_not_fit(
    weights: object, keys: Tensor, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        toy_task.specialisation(weights, keys)


def test_task_refuses_what_it_cannot_work_with() -> None:
    generator = torch.Generator()
    with pytest.raises(ValueError, match="length=0 has to be at least 1"):
        toy_task.right_keys(0)
    with pytest.raises(TypeError, match="tokens has dtype torch.float32"):
        toy_task.answers(torch.zeros(2, 8))
    with pytest.raises(ValueError, match="size=-1 has to be at least 1"):
        toy_task.make_batch(-1, generator)
    with pytest.raises(TypeError, match="steps=2.5 is a float"):
        toy_task.train(2, 0, steps=2.5)
    with pytest.raises(ValueError, match="d_model=32 is not divisible by num_heads=3"):
        toy_task.train(3, 0)
    with pytest.raises(ValueError, match=r"logits has shape \(1, 2, 3, 8\) and targets \(1, 2, 4\)"):
        toy_task.accuracy(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"tokens has shape \(1, 5\); the model takes sequences of 8"):
        toy_task.NeighbourModel(2)(torch.zeros(1, 5, dtype=torch.long))
