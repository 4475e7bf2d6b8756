"""Sinusoidal encodings, rotary embeddings and ALiBi, against papers, arithmetic and transformers."""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as rotate_neighbours
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from mha.attention import split_heads
from mha.positions import (
    alibi_bias,
    alibi_slopes,
    apply_rope,
    rope_half_split_to_interleaved,
    rope_interleaved_to_half_split,
    sinusoidal_encoding,
)

F64 = torch.float64


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def rotate_neighbours_by_complex_numbers(x: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (2i, 2i + 1) of x (…, L, d_k) at positions 0 to L - 1."""
    L, d_k = x.shape[-2:]
    angles = torch.tensor(
        [[p * 10000 ** (-2 * i / d_k) for i in range(d_k // 2)] for p in range(L)], dtype=F64
    )
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


# ---------------------------------------------------------------- sinusoidal encodings


def test_sines_and_cosines_alternate_as_in_the_paper():
    encoding = sinusoidal_encoding(50, 6)
    for p in (0, 1, 7, 49):
        angles = [p / 10000 ** (2 * i / 6) for i in range(3)]
        expected = [f(angle) for angle in angles for f in (math.sin, math.cos)]
        assert encoding[p].tolist() == pytest.approx(expected, abs=1e-7)
    assert encoding.shape == (50, 6) and encoding.dtype == torch.float32


def test_a_far_position_is_not_blurred():
    # 99999 in float32, times a frequency in float32, is wrong in the third decimal.
    expected = [math.sin(99_999), math.cos(99_999), math.sin(99_999 / 10**2), math.cos(99_999 / 10**2)]
    assert sinusoidal_encoding(100_000, 4)[-1].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_encoding_of_a_later_position_is_the_same_linear_map_of_each():
    # What section 3.5 gives as the reason for sines and cosines: k steps on are a rotation of each pair.
    encoding, k = sinusoidal_encoding(40, 8).double(), 5
    pairs = torch.view_as_complex(encoding.unflatten(-1, (-1, 2)).contiguous())  # sin + i cos
    turn = torch.polar(torch.ones(4, dtype=F64), -k * 10000.0 ** (-torch.arange(4, dtype=F64) / 4))
    torch.testing.assert_close(pairs[k:], pairs[:-k] * turn, rtol=0, atol=1e-6)


# ---------------------------------------------------------------- rotary embeddings


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

    for shift in (1, 100, 1000):
        torch.testing.assert_close(score(7, 3), score(7 + shift, 3 + shift), rtol=0, atol=1e-12)
    assert (score(7, 3) - score(7, 4)).abs() > 1e-3
    assert (score(7, 3) - score(3, 7)).abs() > 1e-3  # before and behind are told apart


def test_position_0_turns_nothing_and_lengths_stay():
    x = torch.randn(4, 6, dtype=F64, generator=torch.Generator().manual_seed(0))
    turned = apply_rope(x, torch.arange(4))
    assert torch.equal(turned[0], x[0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_half_precision_does_not_blur_a_far_position():
    x = torch.ones(1, 8)
    far = torch.tensor([4001])  # bfloat16 knows 4000 and 4016, and nothing between
    torch.testing.assert_close(apply_rope(x.bfloat16(), far).float(), apply_rope(x, far), rtol=0, atol=0.02)


def test_rotation_is_that_of_llama_in_transformers():
    q, k = normal(2, 3, 6, 40, 16, dtype=torch.float32)  # each (B, h, L, d_k)
    config = LlamaConfig(hidden_size=96, num_attention_heads=6)
    positions = torch.arange(40) + 7
    cos, sin = LlamaRotaryEmbedding(config)(q, positions[None])
    for mine, theirs in zip((q, k), apply_rotary_pos_emb(q, k, cos, sin)):
        torch.testing.assert_close(apply_rope(mine, positions), theirs, rtol=0, atol=2e-5)


# ---------------------------------------------------------------- the two layouts


def test_rows_of_each_head_are_dealt_out_as_pairs():
    rows = torch.arange(12)  # two heads of d_k = 6
    dealt = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
    assert rope_half_split_to_interleaved(rows, 2).tolist() == dealt
    assert rope_interleaved_to_half_split(torch.tensor(dealt), 2).tolist() == rows.tolist()


@pytest.mark.parametrize("num_heads", [1, 2, 4])
def test_there_and_back_is_the_same_weight(num_heads):
    for W in (normal(16, 5), normal(16), normal(5, 16).T, normal(16, 5).bfloat16(), normal(16, 0)):
        there = rope_half_split_to_interleaved(W, num_heads)
        assert there.shape == W.shape and there.dtype == W.dtype
        assert torch.equal(rope_interleaved_to_half_split(there, num_heads), W)
        back = rope_interleaved_to_half_split(W, num_heads)
        assert torch.equal(rope_half_split_to_interleaved(back, num_heads), W)


@pytest.mark.parametrize("num_heads", [1, 2, 8])  # 8 heads of one pair: nothing to move, and a copy still
def test_what_comes_back_is_a_copy(num_heads):
    for convert in (rope_half_split_to_interleaved, rope_interleaved_to_half_split):
        W = normal(16, 5)
        convert(W, num_heads).zero_()
        assert torch.equal(W, normal(16, 5))


def test_with_converted_weights_the_other_rotation_gives_the_same_scores():
    x, W_q, W_k = normal(2, 9, 12), normal(24, 12, seed=1), normal(24, 12, seed=2)

    def scores(W_q, W_k, rotate):
        q, k = (rotate(split_heads(x @ W.T, 3)) for W in (W_q, W_k))  # (B, h, L, d_k) each
        return q @ k.mT

    halves = scores(W_q, W_k, lambda q: apply_rope(q, torch.arange(9)))
    unconverted = scores(W_q, W_k, rotate_neighbours_by_complex_numbers)
    converted = (rope_half_split_to_interleaved(W, 3) for W in (W_q, W_k))
    torch.testing.assert_close(
        scores(*converted, rotate_neighbours_by_complex_numbers), halves, rtol=0, atol=1e-12
    )
    assert (unconverted - halves).abs().max() > 1


def test_a_checkpoint_of_neighbours_runs_on_halves_as_gptj_runs_it():
    x = normal(1, 30, 12, dtype=torch.float32)
    W_q, W_k = (normal(24, 12, seed=s, dtype=torch.float32) for s in (1, 2))  # two heads of d_k = 12
    sin, cos = create_sinusoidal_positions(30, 12)[None].chunk(2, dim=-1)
    q, k = (rotate_neighbours((x @ W.T).view(1, 30, 2, 12), sin, cos) for W in (W_q, W_k))  # (B, L, h, d_k)
    theirs = torch.einsum("bqhd,bkhd->bhqk", q, k)
    halves = (rope_interleaved_to_half_split(W, 2) for W in (W_q, W_k))
    q, k = (apply_rope(split_heads(x @ W.T, 2), torch.arange(30)) for W in halves)
    torch.testing.assert_close(q @ k.mT, theirs, rtol=0, atol=1e-3)


# ---------------------------------------------------------------- ALiBi


def test_slopes_are_those_of_the_paper():
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    sixteen = [2 ** (-i / 2) for i in range(1, 17)]  # "2^-0.5, 2^-1, 2^-1.5, … 2^-8"
    assert alibi_slopes(16).tolist() == pytest.approx(sixteen)
    assert alibi_slopes(1).tolist() == [2.0**-8]
    assert alibi_slopes(8).dtype == torch.float32


def test_slopes_between_powers_of_two_come_from_the_next_power():
    expected = [2.0**-i for i in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert alibi_slopes(12).tolist() == pytest.approx(expected)
    assert alibi_slopes(3).tolist() == [2.0**-4, 2.0**-8, 2.0**-2]


@pytest.mark.parametrize("num_heads", range(1, 41))
def test_slopes_are_those_of_bloom_in_transformers(num_heads):
    theirs = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), num_heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(alibi_slopes(num_heads), theirs, rtol=1e-6, atol=0)


def test_the_bias_is_minus_slope_times_distance():
    slopes = torch.tensor([1 / 16, 1 / 256])
    distance = torch.tensor([[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    assert torch.equal(alibi_bias(2, 3), torch.stack([-slope * distance for slope in slopes]))
    assert not torch.signbit(alibi_bias(2, 3)[0, 0, 0])  # 0 and not -0


def test_the_last_query_stands_at_the_last_key():
    assert alibi_bias(8, 1, 4)[0].tolist() == [[-1.5, -1.0, -0.5, 0.0]]
    assert torch.equal(alibi_bias(12, 2, 5), alibi_bias(12, 5)[:, 3:])
    assert alibi_bias(8, 3, 2)[0].tolist() == [[-0.5, -1.0], [0.0, -0.5], [-0.5, 0.0]]


# ---------------------------------------------------------------- bad input


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


W = torch.ones(12, 5)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: sinusoidal_encoding(0, 4), ValueError, "L=0 has to be at least 1"),
        (lambda: sinusoidal_encoding(3.0, 4), TypeError, "L=3.0 is a float"),
        (lambda: sinusoidal_encoding(torch.ones(3), 4), TypeError, "L is a tensor"),
        (lambda: sinusoidal_encoding(3, -2), ValueError, "d_model=-2 has to be at least 1"),
        (lambda: sinusoidal_encoding(3, True), TypeError, "d_model=True is a bool"),
        (lambda: sinusoidal_encoding(3, 5), ValueError, "d_model=5 has to be even"),
        (lambda: alibi_slopes(0), ValueError, "num_heads=0 has to be at least 1"),
        (lambda: alibi_bias(2.0, 3), TypeError, "num_heads=2.0 is a float"),
        (lambda: alibi_bias(2, 0), ValueError, "Lq=0 has to be at least 1"),
        (lambda: alibi_bias(2, torch.tensor(3)), TypeError, "Lq is a tensor"),
        (lambda: alibi_bias(2, 3, -1), ValueError, "Lk=-1 has to be at least 1"),
    ],
)
def test_a_size_that_is_none_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("convert", [rope_half_split_to_interleaved, rope_interleaved_to_half_split])
@pytest.mark.parametrize(
    "weight, num_heads, error, message",
    [
        (W, 4, ValueError, "W has 12 rows and num_heads=4; .* an even d_k"),  # d_k = 3
        (W, 5, ValueError, "W has 12 rows and num_heads=5"),
        (W[:0], 2, ValueError, "W has 0 rows and num_heads=2"),
        (W, 0, ValueError, "num_heads=0 has to be at least 1"),
        (W, "2", TypeError, "num_heads='2' is a str"),
        (W[None], 2, ValueError, r"W has shape \(1, 12, 5\); it has to be \(h·d_k, d_model\) or \(h·d_k,\)"),
        (torch.tensor(1.0), 2, ValueError, r"W has shape \(\)"),
        (torch.nn.Linear(5, 12), 2, TypeError, "W is a Linear; it has to be a tensor"),
        (W.tolist(), 2, TypeError, "W is a list"),
    ],
)
def test_a_weight_that_does_not_make_heads_of_pairs_is_refused(convert, weight, num_heads, error, message):
    with pytest.raises(error, match=message):
        convert(weight, num_heads)
