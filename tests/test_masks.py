"""The causal and the padding mask, and what every mask has to be before the scores meet it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mha import MultiHeadAttention, causal_mask, padding_mask, scaled_dot_product_attention
from mha.masks import may_attend

CPU = torch.device("cpu")


def test_causal_mask_lets_a_token_see_itself_and_what_came_before() -> None:
    assert causal_mask(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]


def test_causal_mask_is_aligned_at_the_last_query_and_the_last_key() -> None:
    assert causal_mask(2, 4).tolist() == [[True, True, True, False], [True, True, True, True]]
    assert causal_mask(1, 4).all()


def test_causal_mask_leaves_nothing_to_queries_from_before_the_first_key() -> None:
    assert causal_mask(4, 2).tolist() == [[False, False], [False, False], [True, False], [True, True]]


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 8))
def test_causal_mask_is_true_where_the_key_is_no_later(Lq: int, Lk: int) -> None:
    mask = causal_mask(Lq, Lk)
    assert mask.dtype == torch.bool
    # Positions are counted from the end of each sequence.
    wanted = [[(Lk - 1 - k) >= (Lq - 1 - q) for k in range(Lk)] for q in range(Lq)]
    assert mask.tolist() == wanted


def test_causal_masks_of_new_tokens_are_the_last_rows_of_the_whole_one() -> None:
    assert torch.equal(causal_mask(3, 7), causal_mask(7)[-3:])


def test_padding_mask_is_true_for_real_tokens() -> None:
    mask = padding_mask([1, 3, 0])
    assert mask.shape == (3, 1, 1, 3)
    assert mask.dtype == torch.bool
    assert mask[:, 0, 0].tolist() == [[True, False, False], [True, True, True], [False, False, False]]


def test_padding_mask_is_as_long_as_it_is_asked_to_be() -> None:
    assert padding_mask([2, 1], max_len=4)[:, 0, 0].tolist() == [
        [True, True, False, False],
        [True] + [False] * 3,
    ]


@pytest.mark.parametrize(
    "lengths",
    [
        (2, 0, 3),
        np.array([2, 0, 3]),
        np.array([2, 0, 3], dtype=np.uint16),
        torch.tensor([2, 0, 3], dtype=torch.uint8),
        [np.int64(2), 0, torch.tensor(3)],
    ],
    ids=lambda lengths: type(lengths).__name__,
)
def test_lengths_may_be_any_row_of_integers(lengths) -> None:
    assert torch.equal(padding_mask(lengths), padding_mask(torch.tensor([2, 0, 3])))


def test_padding_mask_of_no_sequence_has_no_row() -> None:
    assert padding_mask(torch.tensor([], dtype=torch.long), max_len=4).shape == (0, 1, 1, 4)


def test_padding_mask_leaves_the_lengths_alone() -> None:
    lengths = torch.tensor([1, 2])
    padding_mask(lengths, 3)
    assert lengths.tolist() == [1, 2]


def test_masks_combine_with_and() -> None:
    both = causal_mask(3) & padding_mask([3, 2])
    assert both.shape == (2, 1, 3, 3)
    assert both[1, 0].tolist() == [[True, False, False], [True, True, False], [True, True, False]]


# ---------------------------------------------------------------------------- masks that have two readings


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize(("B", "Lq", "Lk"), [(4, 4, 4), (3, 3, 5), (5, 5, 3)])
def test_causal_mask_is_let_through_when_there_are_as_many_examples_as_queries(
    B: int, Lq: int, Lk: int, dtype: torch.dtype
) -> None:
    mask = causal_mask(Lq, Lk).to(dtype)
    assert torch.equal(may_attend(mask, (B, 2, Lq, Lk), CPU), causal_mask(Lq, Lk))


@pytest.mark.parametrize(
    ("shape", "scores", "per_example", "its_shape", "for_all"),
    [
        ((4, 5), (4, 2, 4, 5), "mask[:, None, None]", (4, 1, 1, 5), "mask[None, None]"),
        ((4, 1), (4, 2, 4, 5), "mask[:, None, None]", (4, 1, 1, 1), "mask[None, None]"),
        ((2, 4, 5), (2, 2, 4, 5), "mask[:, None]", (2, 1, 4, 5), "mask[None]"),
        ((2, 1, 5), (2, 2, 4, 5), "mask[:, None]", (2, 1, 1, 5), "mask[None]"),
        ((3, 5), (3, 3, 5), "mask[:, None]", (3, 1, 5), "mask[None]"),
    ],
)
def test_mask_with_two_readings_is_refused_and_both_pieces_of_advice_work(
    shape: tuple[int, ...],
    scores: tuple[int, ...],
    per_example: str,
    its_shape: tuple[int, ...],
    for_all: str,
) -> None:
    mask = torch.zeros(shape)
    mask.view(-1)[-1] = 1
    with pytest.raises(ValueError, match="two ways") as refused:
        may_attend(mask, scores, CPU)
    message = str(refused.value)
    assert f"mask has shape {shape}" in message
    assert f"write {per_example}: {its_shape}" in message
    assert f"all {len(scores)} axes, {for_all}" in message
    for advice in (per_example, for_all):
        advised = eval(advice, {"mask": mask})
        assert torch.equal(may_attend(advised, scores, CPU), advised != 0)


@pytest.mark.parametrize(
    ("shape", "scores"),
    [
        ((5,), (5, 2, 5, 5)),
        ((1, 5), (4, 2, 4, 5)),
        ((1, 4, 5), (2, 2, 4, 5)),
        ((4, 5), (1, 2, 4, 5)),
        ((), (2, 2, 2, 2)),
    ],
    ids=str,
)
def test_mask_with_one_reading_needs_no_more_axes(shape: tuple[int, ...], scores: tuple[int, ...]) -> None:
    mask = torch.rand(shape) > 0.5
    assert torch.equal(may_attend(mask, scores, CPU), torch.atleast_2d(mask))


def test_mask_of_each_example_reaches_its_own_example_in_layer_and_function() -> None:
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(8, 2), torch.randn(4, 4, 8)
    keep = padding_mask([4, 1, 2, 3])  # (B, 1, 1, Lk), with B = Lq
    for weights in (
        layer(x, x, x, keep)[1],
        scaled_dot_product_attention(*[x.view(4, 2, 4, 4)] * 3, keep)[1],
    ):
        for b, n in enumerate([4, 1, 2, 3]):
            assert (weights[b, :, :, :n] > 0).all()
            assert (weights[b, :, :, n:] == 0).all()
