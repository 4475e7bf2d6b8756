"""The two reshapes and scaled dot-product attention, against `F.scaled_dot_product_attention` and by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mha import MultiHeadAttention, merge_heads, scaled_dot_product_attention, split_heads

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
MASK_DTYPES = [
    torch.bool,
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
]
EXACT = {"rtol": 1e-9, "atol": 1e-12}  # for float64


@pytest.fixture(autouse=True)
def one_seed_one_thread() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # with tensors this small, a second thread only keeps the first one waiting


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, **EXACT)


def attention_by_loops(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    """One head's output, (Lq, d_v), with nothing but numbers and sums."""
    rows = []
    for q in Q.tolist():
        scores = [sum(a * b for a, b in zip(q, k)) / math.sqrt(len(q)) for k in K.tolist()]
        shares = [math.exp(s) for s in scores]
        weights = [s / sum(shares) for s in shares]
        rows.append([sum(w * v for w, v in zip(weights, column)) for column in V.T.tolist()])
    return torch.tensor(rows, dtype=Q.dtype)


@st.composite
def mask_shapes(draw: st.DrawFn, full: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Any shape that broadcasts to `full` and can be read in one way only."""
    shape = tuple(draw(st.sampled_from([1, size])) for size in full)
    short = shape[draw(st.integers(0, 4)) :]
    two_readings = 2 <= len(short) < 4 and short[0] == full[0] > 1
    return shape if two_readings else short


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Q, K and V that want gradients, and a mask of any shape, dtype and density, or none."""
    B, h, Lq, Lk, d_k, d_v = (draw(st.integers(1, 5)) for _ in range(6))
    noise = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    Q, K, V = (
        torch.randn(B, h, *size, generator=noise, dtype=torch.float64).mul(2).requires_grad_()
        for size in ((Lq, d_k), (Lk, d_k), (Lk, d_v))
    )
    if draw(st.integers(0, 9)) == 0:
        return Q, K, V, None
    shape = draw(mask_shapes((B, h, Lq, Lk)))
    density = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))  # at 0.0 and 0.3 whole rows are masked
    mask = torch.rand(shape, generator=noise) < density
    return Q, K, V, mask.to(draw(st.sampled_from(MASK_DTYPES)))


def outputs_and_gradients(attend, Q: Tensor, K: Tensor, V: Tensor) -> list[Tensor]:
    output = attend(Q, K, V)
    slope = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view_as(output)
    return [output, *torch.autograd.grad(output, (Q, K, V), slope)]


@settings(max_examples=120, deadline=None)
@given(problems())
def test_output_and_gradients_are_those_of_torch(problem) -> None:
    Q, K, V, mask = problem
    keep = None if mask is None else torch.atleast_2d(mask != 0)
    ours = outputs_and_gradients(lambda *qkv: scaled_dot_product_attention(*qkv, mask)[0], Q, K, V)
    theirs = outputs_and_gradients(lambda *qkv: F.scaled_dot_product_attention(*qkv, attn_mask=keep), Q, K, V)
    for mine, torchs in zip(ours, theirs):
        assert not mine.isnan().any()
        close(mine, torchs)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_weights_are_those_of_torch(problem) -> None:
    # With the identity for values, the output of the fused kernel *is* its weights.
    Q, K, V, mask = problem
    keep = None if mask is None else torch.atleast_2d(mask != 0)
    one_hot = torch.eye(K.size(-2), dtype=K.dtype).expand(*K.shape[:-1], -1)
    weights = scaled_dot_product_attention(Q, K, V, mask)[1]
    close(weights, F.scaled_dot_product_attention(Q, K, one_hot, attn_mask=keep))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_each_row_of_weights_sums_to_one_or_is_all_zero(problem) -> None:
    Q, K, V, mask = problem
    weights = scaled_dot_product_attention(Q, K, V, mask)[1]
    keep = torch.tensor(True) if mask is None else mask != 0
    some_key_left = keep.expand(weights.shape).any(dim=-1)
    close(weights.sum(dim=-1), some_key_left.double())
    assert (weights[~keep.expand(weights.shape)] == 0).all()


@pytest.mark.parametrize("dtype", MASK_DTYPES, ids=str)
def test_mask_of_every_dtype_means_what_the_bool_one_means(dtype: torch.dtype) -> None:
    Q, K, V = torch.randn(3, 2, 2, 4, 5).unbind()
    keep = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]])
    expected = scaled_dot_product_attention(Q, K, V, keep.bool())
    actual = scaled_dot_product_attention(Q, K, V, keep.to(dtype))
    assert all(torch.equal(a, e) for a, e in zip(actual, expected))


def test_non_zero_integers_may_attend() -> None:
    Q, K, V = torch.randn(3, 1, 2, 4, 5).unbind()
    keep = torch.tensor([[7, 0, 2, 1]])
    assert torch.equal(
        scaled_dot_product_attention(Q, K, V, keep)[1], scaled_dot_product_attention(Q, K, V, keep.bool())[1]
    )


def test_one_head_agrees_with_plain_arithmetic() -> None:
    Q, K = torch.randn(4, 3).double(), torch.randn(5, 3).double()
    V = torch.randn(5, 2).double()
    close(scaled_dot_product_attention(Q, K, V)[0], attention_by_loops(Q, K, V))


@pytest.mark.parametrize("axes", [(), (6,), (2, 3), (2, 3, 4)], ids=str)
def test_any_leading_axes_are_attended_one_by_one(axes: tuple[int, ...]) -> None:
    Q, K, V = torch.randn(*axes, 4, 3), torch.randn(*axes, 5, 3), torch.randn(*axes, 5, 2)
    output, weights = scaled_dot_product_attention(Q.double(), K.double(), V.double())
    assert weights.shape == (*axes, 4, 5)
    first = (0,) * len(axes)
    close(output[first], attention_by_loops(Q[first].double(), K[first].double(), V[first].double()))


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_fully_masked_query_gets_zeros_and_passes_no_gradient() -> None:
    Q, K, V = (torch.randn(2, 2, 3, 4, requires_grad=True) for _ in range(3))
    mask = torch.ones(2, 1, 3, 3, dtype=torch.bool)
    mask[1, 0, 2] = False
    with torch.autograd.detect_anomaly(check_nan=True):
        output, weights = scaled_dot_product_attention(Q, K, V, mask)
        (output.sum() + weights.square().sum()).backward()
    assert (weights[1, :, 2] == 0).all()
    assert (output[1, :, 2] == 0).all()
    assert (Q.grad[1, :, 2] == 0).all()
    assert (Q.grad[1, :, 1] != 0).any()
    for x in (Q, K, V):
        assert x.grad.isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_score_too_large_for_half_precision_before_scaling_is_no_trouble(
    dtype: torch.dtype, device: str
) -> None:
    # q·k = 64 · 40 · 40 = 102,400: more than float16 holds. Divided by √64 it is 12,800.
    Q = torch.full((1, 1, 1, 64), 40.0, dtype=dtype, device=device)
    K = torch.cat([Q, -Q, Q], dim=-2)
    V = torch.tensor([[2.0], [100.0], [4.0]], dtype=dtype, device=device).expand(1, 1, 3, 1)
    output, weights = scaled_dot_product_attention(Q, K, V)
    assert weights.flatten().tolist() == [0.5, 0.0, 0.5]
    assert output.item() == 3.0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-14), (torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)],
    ids=str,
)
def test_every_float_dtype_keeps_its_dtype_and_the_masked_zeros(
    dtype: torch.dtype, tolerance: float, device: str
) -> None:
    Q, K, V = torch.randn(3, 2, 3, 4, 5).to(device, dtype).unbind()
    mask = torch.ones(4, 4, device=device).tril()
    mask[2] = 0
    output, weights = scaled_dot_product_attention(Q, K, V, mask)
    assert output.dtype == weights.dtype == dtype
    exact_output, exact_weights = scaled_dot_product_attention(Q.double(), K.double(), V.double(), mask)
    torch.testing.assert_close(output.double(), exact_output, rtol=0, atol=tolerance)
    torch.testing.assert_close(weights.double(), exact_weights, rtol=0, atol=tolerance)
    assert (weights[..., mask == 0] == 0).all()


def test_first_and_second_derivatives_are_right_with_masks() -> None:
    Q, K, V = (torch.randn(1, 2, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.tensor([[1, 0, 0], [0, 0, 0], [1, 1, 1]])  # the second query has no key left

    def attend(*qkv: Tensor) -> tuple[Tensor, Tensor]:
        return scaled_dot_product_attention(*qkv, mask)

    assert torch.autograd.gradcheck(attend, (Q, K, V))
    assert torch.autograd.gradgradcheck(attend, (Q, K, V))


def test_inputs_and_mask_stay_as_they_were() -> None:
    tensors = [*torch.randn(3, 2, 2, 4, 5).unbind(), torch.ones(4, 4).tril()]
    before = [(x.clone(), x._version) for x in tensors]
    scaled_dot_product_attention(*tensors)
    for x, (value, version) in zip(tensors, before):
        assert torch.equal(x, value)
        assert x._version == version


def test_split_heads_gives_head_i_its_own_run_of_numbers_of_every_token() -> None:
    x = torch.arange(2 * 3 * 8).view(2, 3, 8)
    heads = split_heads(x, 4)
    assert heads.shape == (2, 4, 3, 2)
    for b in range(2):
        for i in range(4):
            for t in range(3):
                assert heads[b, i, t].tolist() == x[b, t, 2 * i : 2 * i + 2].tolist()


def test_merge_heads_lays_each_tokens_heads_side_by_side() -> None:
    heads = torch.arange(2 * 4 * 3 * 2).view(2, 4, 3, 2)
    joined = merge_heads(heads)
    assert joined.shape == (2, 3, 8)
    assert joined[1, 2].tolist() == [n for i in range(4) for n in heads[1, i, 2].tolist()]


@settings(deadline=None)
@given(st.integers(0, 3), st.integers(0, 4), st.integers(1, 4), st.integers(1, 4))
def test_merge_heads_undoes_split_heads(B: int, L: int, h: int, d_k: int) -> None:
    x = torch.randn(B, L, h * d_k)
    assert torch.equal(merge_heads(split_heads(x, h)), x)


def test_split_heads_copies_nothing_and_takes_any_strides() -> None:
    x = torch.randn(3, 8, 2).transpose(1, 2)  # (3, 2, 8), not contiguous
    heads = split_heads(x, 2)
    assert heads.data_ptr() == x.data_ptr()
    assert torch.equal(heads, split_heads(x.contiguous(), 2))


def test_merge_heads_takes_any_strides() -> None:
    x = torch.randn(2, 5, 4, 3).permute(0, 2, 3, 1)  # (B, h, L, d_k), not contiguous
    assert torch.equal(merge_heads(x), merge_heads(x.contiguous()))


def test_layer_is_its_stages_put_together() -> None:
    layer = MultiHeadAttention(8, 2, bias=True)
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    mask = torch.rand(2, 1, 3, 5) > 0.3
    Q = split_heads(layer.W_q(x), 2)
    K = split_heads(layer.W_k(memory), 2)
    V = split_heads(layer.W_v(memory), 2)
    heads, by_hand = scaled_dot_product_attention(Q, K, V, mask)
    output, weights = layer(x, memory, memory, mask)
    assert torch.equal(output, layer.W_o(merge_heads(heads)))
    assert torch.equal(weights, by_hand)
