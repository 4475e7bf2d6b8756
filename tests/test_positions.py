"""Rotary embeddings and ALiBi's slopes."""

import pytest
import torch

from mha.positions import alibi_slopes, apply_rope

F64 = torch.float64


def test_rotation_is_multiplication_by_a_complex_number_of_length_1():
    x = torch.randn(2, 3, 5, 8, dtype=F64, generator=torch.Generator().manual_seed(0))
    z = torch.complex(x[..., :4], x[..., 4:])  # pair (i, i + d_k/2) as one number
    angles = torch.tensor([[p * 10000 ** (-i / 4) for i in range(4)] for p in range(5)], dtype=F64)
    turned = z * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat([turned.real, turned.imag], dim=-1)
    torch.testing.assert_close(apply_rope(x, torch.arange(5)), expected, rtol=0, atol=1e-14)


def test_scores_depend_on_the_distance_alone():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 16, dtype=F64)

    def score(at_query, at_key):
        return apply_rope(q, torch.tensor([at_query])) @ apply_rope(k, torch.tensor([at_key])).T

    torch.testing.assert_close(score(7, 3), score(1007, 1003), rtol=0, atol=1e-12)
    assert (score(7, 3) - score(7, 4)).abs() > 1e-3


def test_position_0_turns_nothing_and_lengths_stay():
    x = torch.randn(4, 6, dtype=F64, generator=torch.Generator().manual_seed(0))
    turned = apply_rope(x, torch.arange(4))
    assert torch.equal(turned[0], x[0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_half_precision_does_not_blur_a_far_position():
    x = torch.ones(1, 8)
    far = torch.tensor([4001])  # bfloat16 knows 4000 and 4016, and nothing between
    torch.testing.assert_close(apply_rope(x.bfloat16(), far).float(), apply_rope(x, far), rtol=0, atol=0.02)


def test_slopes_are_those_of_the_paper():
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(16)[:2].tolist() == pytest.approx([2**-0.5, 2**-1])
    assert alibi_slopes(1).tolist() == [2.0**-8]


def test_slopes_between_powers_of_two_come_from_the_next_power():
    expected = [2.0**-i for i in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert alibi_slopes(12).tolist() == pytest.approx(expected)
    assert all(len(alibi_slopes(h)) == h for h in range(1, 40))


@pytest.mark.parametrize(
    "x, positions, error, message",
    [
        (torch.ones(3, 5), torch.arange(3), ValueError, r"x has shape \(3, 5\); .* even d_k"),
        (torch.ones(3, 4), torch.arange(2), ValueError, "positions has 2 entries and x has L=3"),
        (torch.ones(3, 4), torch.ones(1, 3), ValueError, r"positions has shape \(1, 3\); it has to be 1-D"),
        (torch.ones(3, 4), [0, 1, 2], TypeError, "positions is a list"),
        (torch.ones(3, 4).long(), torch.arange(3), TypeError, "x has dtype torch.int64"),
        ([[1.0, 2.0]], torch.arange(1), TypeError, "x is a list"),
        (torch.ones(3, 4), torch.arange(3, device="meta"), ValueError, "positions is on meta and x on cpu"),
    ],
)
def test_bad_input_is_named(x, positions, error, message):
    with pytest.raises(error, match=message):
        apply_rope(x, positions)


def test_a_number_of_heads_that_is_none_is_refused():
    with pytest.raises(ValueError, match="num_heads=0"):
        alibi_slopes(0)
