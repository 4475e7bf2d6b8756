"""`MultiHeadAttention`: the seed's numbers, what PyTorch's layer computes, and every way to run it."""

import copy
import io
import pickle
import shutil
import sys
import sysconfig
from pathlib import Path
from textwrap import dedent

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mha import (
    MultiHeadAttention,
    causal_mask,
    merge_heads,
    padding_mask,
    scaled_dot_product_attention,
    split_heads,
)

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
CAN_COMPILE = (
    sys.platform == "linux"
    and shutil.which("g++")
    and Path(sysconfig.get_path("include"), "Python.h").exists()
)
BOTH_WAYS = pytest.mark.parametrize("need_weights", [True, False], ids=["with weights", "fused"])


@pytest.fixture(autouse=True)
def one_seed_one_thread() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # with tensors this small, a second thread only keeps the first one waiting


def printed(x: Tensor) -> str:
    """Return what the seed prints of a matrix."""
    return str(x.detach().numpy().round(3))


def same(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


# ------------------------------------------------------------------------------------- the seed's numbers

X = """\
[[ 1.927  1.487  0.901 -2.106  0.678 -1.235 -0.043 -1.605]
 [ 0.356 -0.687 -0.493  0.241 -1.111  0.092 -2.317 -0.217]
 [-0.31  -0.396  0.803 -0.622 -0.592 -0.063 -0.829  0.331]]"""
Q = """\
[[-0.271 -0.784  1.488  0.719 -0.327  0.441  0.234  1.221]
 [-0.625  0.412 -0.426 -0.654  0.348 -0.682  0.227  0.573]
 [-0.328 -0.06   0.218  0.275  0.024  0.011  0.139  0.127]]"""
Q_OF_HEAD = [
    """\
[[-0.271 -0.784  1.488  0.719]
 [-0.625  0.412 -0.426 -0.654]
 [-0.328 -0.06   0.218  0.275]]""",
    """\
[[-0.327  0.441  0.234  1.221]
 [ 0.348 -0.682  0.227  0.573]
 [ 0.024  0.011  0.139  0.127]]""",
]
WEIGHTS_OF_HEAD = [
    """\
[[0.357 0.339 0.305]
 [0.35  0.326 0.324]
 [0.336 0.346 0.319]]""",
    """\
[[0.524 0.222 0.254]
 [0.361 0.298 0.341]
 [0.361 0.308 0.331]]""",
]
CONCAT = """\
[[ 0.22   0.126  0.407  0.133  0.163 -0.207  0.27   0.002]
 [ 0.21   0.135  0.401  0.128  0.242 -0.045  0.354  0.175]
 [ 0.218  0.112  0.389  0.109  0.243 -0.047  0.356  0.174]]"""
OUTPUT = """\
[[ 0.135 -0.067 -0.081  0.272  0.143  0.194 -0.17   0.077]
 [ 0.008 -0.113 -0.176  0.234  0.044  0.139 -0.178 -0.029]
 [-0.001 -0.104 -0.175  0.238  0.04   0.133 -0.171 -0.021]]"""


@pytest.fixture
def running_example() -> tuple[MultiHeadAttention, Tensor]:
    torch.manual_seed(42)
    x = torch.randn(1, 3, 8)
    return MultiHeadAttention(8, 2), x


def test_every_stage_prints_the_seeds_numbers(running_example) -> None:
    layer, x = running_example
    queries = layer.W_q(x)
    Q_heads, K_heads, V_heads = (split_heads(W(x), 2) for W in (layer.W_q, layer.W_k, layer.W_v))
    heads, weights = scaled_dot_product_attention(Q_heads, K_heads, V_heads)
    concat = merge_heads(heads)
    assert (queries.shape, Q_heads.shape, weights.shape) == ((1, 3, 8), (1, 2, 3, 4), (1, 2, 3, 3))
    assert (heads.shape, concat.shape) == ((1, 2, 3, 4), (1, 3, 8))
    assert printed(x[0]) == X
    assert printed(queries[0]) == Q
    for i in range(2):
        assert printed(Q_heads[0, i]) == Q_OF_HEAD[i]
        assert printed(weights[0, i]) == WEIGHTS_OF_HEAD[i]
    assert printed(concat[0]) == CONCAT
    assert printed(layer.W_o(concat)[0]) == OUTPUT


def test_forward_prints_the_seeds_numbers(running_example) -> None:
    layer, x = running_example
    output, weights = layer(x, x, x)
    assert printed(output[0]) == OUTPUT
    assert [printed(head) for head in weights[0]] == WEIGHTS_OF_HEAD


def test_forward_differs_by_exactly_nothing_from_the_seeds_own_steps(running_example) -> None:
    layer, x = running_example
    q, k, v = (W(x).view(1, -1, 2, 4).transpose(1, 2) for W in (layer.W_q, layer.W_k, layer.W_v))
    weights = torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / 4**0.5, dim=-1)
    concat = torch.matmul(weights, v).transpose(1, 2).contiguous().view(1, -1, 8)
    output, returned = layer(x, x, x)
    assert torch.equal(output, layer.W_o(concat))
    assert torch.equal(returned, weights)


def test_layer_has_256_parameters_in_the_seeds_order(running_example) -> None:
    layer, _ = running_example
    assert sum(p.numel() for p in layer.parameters()) == 256
    sizes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert list(sizes.items()) == [(f"W_{s}.weight", (8, 8)) for s in "qkvo"]


# ------------------------------------------------------------------- parity with nn.MultiheadAttention


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_from_torch_computes_what_torchs_layer_computes(bias: bool, batch_first: bool, dtype) -> None:
    theirs = nn.MultiheadAttention(12, 3, bias=bias, batch_first=batch_first, dtype=dtype)
    if bias:  # they start at zero, and would prove nothing
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    ours = MultiHeadAttention.from_torch(theirs)
    x, memory = torch.randn(2, 4, 12, dtype=dtype), torch.randn(2, 5, 12, dtype=dtype)
    keep = torch.rand(4, 5) > 0.4
    keep[:, 0] = True
    real = padding_mask([5, 2])
    for mask, torchs in (
        (None, {}),
        (keep, {"attn_mask": ~keep}),  # the opposite polarity
        (real, {"key_padding_mask": ~real[:, 0, 0]}),
        (keep & real, {"attn_mask": ~keep, "key_padding_mask": ~real[:, 0, 0]}),
        (keep & real, {"attn_mask": ~(keep & real).expand(2, 3, 4, 5).reshape(6, 4, 5)}),
    ):
        q, k = (x, memory) if batch_first else (x.transpose(0, 1), memory.transpose(0, 1))
        expected, expected_weights = theirs(q, k, k, average_attn_weights=False, **torchs)
        output, weights = ours(x, memory, memory, mask)
        tolerance = 1e-6 if dtype == torch.float32 else 1e-14
        same(output, expected if batch_first else expected.transpose(0, 1), tolerance)
        same(weights, expected_weights, tolerance)


def test_mask_of_torchs_layer_taken_over_unchanged_gives_another_result() -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 4, 8)
    expected = theirs(x, x, x, attn_mask=causal_mask(4).logical_not())[0]
    ours = MultiHeadAttention.from_torch(theirs)
    same(ours(x, x, x, causal_mask(4))[0], expected, 1e-6)
    assert (ours(x, x, x, causal_mask(4).logical_not())[0] - expected).abs().max() > 0.1


def test_gradients_are_those_of_torchs_layer() -> None:
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    ours = MultiHeadAttention.from_torch(theirs)
    x = torch.randn(2, 4, 12, dtype=torch.float64)
    for layer in (theirs, ours):
        layer(x, x, x)[0].square().sum().backward()
    packed = torch.cat([ours.W_q.weight.grad, ours.W_k.weight.grad, ours.W_v.weight.grad])
    packed_bias = torch.cat([ours.W_q.bias.grad, ours.W_k.bias.grad, ours.W_v.bias.grad])
    same(packed, theirs.in_proj_weight.grad)
    same(packed_bias, theirs.in_proj_bias.grad)
    same(ours.W_o.weight.grad, theirs.out_proj.weight.grad)
    same(ours.W_o.bias.grad, theirs.out_proj.bias.grad)


def test_fully_masked_query_gets_zeros_where_torchs_layer_gives_nan() -> None:
    theirs = nn.MultiheadAttention(8, 2, bias=False, batch_first=True)
    x = torch.randn(1, 3, 8)
    mask = torch.tensor([[1, 1, 1], [0, 0, 0], [0, 1, 0]])
    expected, expected_weights = theirs(x, x, x, attn_mask=mask == 0, average_attn_weights=False)
    output, weights = MultiHeadAttention.from_torch(theirs)(x, x, x, mask)
    assert expected[0, 1].isnan().all()
    assert (output[0, 1] == 0).all()
    assert (weights[0, :, 1] == 0).all()
    same(output[:, [0, 2]], expected[:, [0, 2]], 1e-6)
    same(weights[:, :, [0, 2]], expected_weights[:, :, [0, 2]], 1e-6)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_from_torch_takes_over_dropout_mode_and_dtype(training: bool) -> None:
    theirs = nn.MultiheadAttention(8, 2, dropout=0.25, dtype=torch.float64).train(training)
    ours = MultiHeadAttention.from_torch(theirs)
    assert ours.dropout.p == 0.25
    assert all(module.training is training for module in ours.modules())
    assert all(p.dtype == torch.float64 and p.requires_grad for p in ours.parameters())
    assert (ours.d_model, ours.num_heads, ours.d_k) == (8, 2, 4)


@pytest.mark.parametrize("device", DEVICES)
def test_from_torch_copies_the_weights(device: str) -> None:
    theirs = nn.MultiheadAttention(8, 2, device=device)
    before = copy.deepcopy(theirs.state_dict())
    ours = MultiHeadAttention.from_torch(theirs)
    assert {p.device for p in ours.parameters()} == {theirs.in_proj_weight.device}
    with torch.no_grad():
        for p in ours.parameters():
            p.fill_(7.0)
    assert all(torch.equal(theirs.state_dict()[name], value) for name, value in before.items())


def test_from_torch_draws_no_random_number() -> None:
    theirs = nn.MultiheadAttention(8, 2)
    state = torch.get_rng_state()
    MultiHeadAttention.from_torch(theirs)
    assert torch.equal(torch.get_rng_state(), state)


def test_from_torch_makes_the_subclass_it_is_called_on() -> None:
    class Mine(MultiHeadAttention):
        pass

    assert type(Mine.from_torch(nn.MultiheadAttention(8, 2))) is Mine


# ------------------------------------------------------------------------------ without weights: fused


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_without_weights_the_output_and_gradients_are_the_same(data: st.DataObject) -> None:
    B, Lq, Lk, h, d_k = (data.draw(st.integers(1, 4)) for _ in range(5))
    torch.manual_seed(data.draw(st.integers(0, 2**32)))
    layer = MultiHeadAttention(h * d_k, h, bias=data.draw(st.booleans())).double()
    x = torch.randn(B, Lq, h * d_k, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(B, Lk, h * d_k, dtype=torch.float64, requires_grad=True)
    mask = torch.rand([data.draw(st.sampled_from([1, n])) for n in (B, h, Lq, Lk)]) < 0.5
    mask = data.draw(st.sampled_from([None, mask, mask.int(), mask.double()]))
    results = []
    for need_weights in (True, False):
        output, weights = layer(x, memory, memory, mask, need_weights=need_weights)
        assert (weights is not None) is need_weights
        wanted = [x, memory, *layer.parameters()]
        results.append([output, *torch.autograd.grad(output.square().sum(), wanted)])
    for with_weights, fused in zip(*results):
        assert not fused.isnan().any()
        same(fused, with_weights)


def test_without_weights_the_fused_kernel_is_called_with_a_bool_mask(monkeypatch) -> None:
    calls = []
    fused = F.scaled_dot_product_attention

    def spy(*args, **kwargs):
        calls.append(kwargs)
        return fused(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    layer = MultiHeadAttention(8, 2, dropout=0.25)
    x = torch.randn(3, 4, 8)
    layer(x, x, x, torch.ones(4, 4))
    assert calls == []
    layer(x, x, x, torch.ones(4, 4), need_weights=False)
    layer.eval()(x, x, x, need_weights=False)
    assert [call["dropout_p"] for call in calls] == [0.25, 0.0]
    assert calls[0]["attn_mask"].dtype == torch.bool
    assert calls[1]["attn_mask"] is None


class Largest(TorchDispatchMode):
    """Remember the size of the largest tensor that anything returned."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else [result]:
            self.numel = max(self.numel, x.numel() if isinstance(x, Tensor) else 0)
        return result


def test_only_with_weights_is_there_ever_a_matrix_of_queries_by_keys() -> None:
    layer, x = MultiHeadAttention(8, 2), torch.randn(1, 64, 8)
    for need_weights, largest in ((True, 2 * 64 * 64), (False, 64 * 8)):
        with Largest() as seen:
            layer(x, x, x, need_weights=need_weights)
        assert seen.numel == largest


# --------------------------------------------------------------------------------------------- dropout


def test_dropout_drops_that_share_of_the_weights_and_scales_up_the_rest() -> None:
    layer = MultiHeadAttention(8, 2, dropout=0.25).double()
    x = torch.randn(4, 64, 8, dtype=torch.float64)
    dropped = layer(x, x, x)[1]
    whole = layer.eval()(x, x, x)[1]
    kept = dropped != 0
    same(dropped[kept], whole[kept] / 0.75)
    # 32,768 weights: the share has a standard deviation of 0.0024.
    assert abs(kept.double().mean().item() - 0.75) < 0.012


def test_weights_are_returned_as_they_were_used_after_dropout() -> None:
    layer = MultiHeadAttention(8, 2, dropout=0.5)
    x = torch.randn(2, 4, 8)
    output, weights = layer(x, x, x)
    assert (weights == 0).any()
    assert torch.equal(output, layer.W_o(merge_heads(weights @ split_heads(layer.W_v(x), 2))))


@BOTH_WAYS
def test_dropout_works_in_training_only_and_averages_out(need_weights: bool) -> None:
    layer = MultiHeadAttention(8, 2, dropout=0.25).double()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    many = x.expand(4000, -1, -1)
    dropped = layer(many, many, many, need_weights=need_weights)[0].detach()
    layer.eval()
    whole = layer(x, x, x, need_weights=need_weights)[0].detach()
    assert torch.equal(layer(x, x, x, need_weights=need_weights)[0], whole)
    assert dropped.std(dim=0).min() > 0.01
    error = dropped.std(dim=0) / 4000**0.5
    assert ((dropped.mean(dim=0) - whole[0]).abs() < 5 * error).all()


@BOTH_WAYS
def test_dropout_of_one_leaves_nothing(need_weights: bool) -> None:
    layer, x = MultiHeadAttention(8, 2, dropout=1.0), torch.randn(2, 3, 8)
    assert (layer(x, x, x, need_weights=need_weights)[0] == 0).all()


# ------------------------------------------------------------------- dtypes, devices, shapes, gradients


@BOTH_WAYS
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)],
    ids=str,
)
def test_layer_works_in_every_float_dtype(
    dtype: torch.dtype, tolerance: float, device: str, need_weights: bool
) -> None:
    layer = MultiHeadAttention(16, 4, bias=True).to(device, dtype)
    x = torch.randn(2, 5, 16).to(device, dtype).requires_grad_()
    mask = padding_mask(torch.tensor([5, 0], device=device))
    output, weights = layer(x, x, x, mask, need_weights=need_weights)
    assert output.dtype == dtype
    assert output.device.type == device
    exact = copy.deepcopy(layer).double()(x.double(), x.double(), x.double(), mask)
    same(output.double(), exact[0], tolerance)
    assert torch.equal(output[1], layer.W_o.bias.expand(5, 16))  # no key left: W_o of nothing
    if need_weights:
        assert weights.dtype == dtype
        same(weights.double(), exact[1], tolerance)
    output.sum().backward()
    assert x.grad.isfinite().all()


@BOTH_WAYS
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_layer_works_under_autocast(dtype: torch.dtype, device: str, need_weights: bool) -> None:
    layer, x = MultiHeadAttention(8, 2).to(device), torch.randn(2, 4, 8, device=device, requires_grad=True)
    mask = padding_mask(torch.tensor([3, 0], device=device), max_len=4)
    exact = layer(x, x, x, mask)[0]
    with torch.autocast(device, dtype=dtype):
        output = layer(x, x, x, mask, need_weights=need_weights)[0]
        mixed = layer(x.to(dtype), x, x, mask, need_weights=need_weights)[0]
    assert output.dtype == mixed.dtype == dtype
    same(output.float(), exact, 1e-2)
    same(mixed.float(), exact, 1e-2)
    assert (output[1] == 0).all()
    output.float().sum().backward()
    assert x.grad.isfinite().all()


@BOTH_WAYS
def test_first_derivatives_are_right_with_a_fully_masked_query(need_weights: bool) -> None:
    layer = MultiHeadAttention(4, 2, bias=True).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 0, 0], [0, 0, 0], [1, 1, 1]])

    def attend(x: Tensor, *_: Tensor) -> Tensor:
        return layer(x, x, x, mask, need_weights=need_weights)[0]

    assert torch.autograd.gradcheck(attend, (x, *layer.parameters()))


def test_second_derivatives_are_right_with_a_fully_masked_query() -> None:
    layer = MultiHeadAttention(2, 2).double()
    x = torch.randn(1, 3, 2, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 0, 0], [0, 0, 0], [1, 1, 1]])
    assert torch.autograd.gradgradcheck(lambda x, *_: layer(x, x, x, mask), (x, *layer.parameters()))


@BOTH_WAYS
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_no_step_backwards_meets_a_nan_when_a_whole_example_is_masked(need_weights: bool) -> None:
    layer, x = MultiHeadAttention(8, 2), torch.randn(2, 4, 8, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True):
        layer(x, x, x, padding_mask([4, 0]), need_weights=need_weights)[0].square().sum().backward()
    assert (x.grad[1] == 0).all()
    assert (x.grad[0] != 0).any()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@BOTH_WAYS
def test_strides_do_not_matter(need_weights: bool) -> None:
    layer = MultiHeadAttention(8, 2)
    x = torch.randn(8, 2, 6).permute(1, 2, 0)[:, ::2]  # (2, 3, 8)
    mask = (torch.rand(3, 3, 2) > 0.3).permute(2, 0, 1)[:, None]
    assert not x.is_contiguous()
    straight = x.contiguous()
    expected = layer(straight, straight, straight, mask.contiguous(), need_weights=need_weights)[0]
    same(layer(x, x, x, mask, need_weights=need_weights)[0], expected, 1e-6)


@BOTH_WAYS
@pytest.mark.parametrize(("B", "Lq", "Lk"), [(0, 3, 4), (2, 0, 3), (0, 0, 0), (2, 3, 0)])
def test_nothing_to_attend_gives_zeros_of_the_right_shape(
    B: int, Lq: int, Lk: int, need_weights: bool
) -> None:
    layer, x = MultiHeadAttention(8, 2), torch.randn(B, Lq, 8, requires_grad=True)
    memory = torch.randn(B, Lk, 8)
    output, weights = layer(x, memory, memory, torch.ones(B, 1, Lq, Lk), need_weights=need_weights)
    assert torch.equal(output, torch.zeros(B, Lq, 8))
    assert weights is None or weights.shape == (B, 2, Lq, Lk)
    output.sum().backward()


@BOTH_WAYS
def test_single_token_attends_to_itself_alone(need_weights: bool) -> None:
    layer, x = MultiHeadAttention(8, 2), torch.randn(3, 1, 8)
    output, weights = layer(x, x, x, need_weights=need_weights)
    same(output, layer.W_o(layer.W_v(x)), 1e-6)
    assert weights is None or torch.equal(weights, torch.ones(3, 2, 1, 1))


@BOTH_WAYS
def test_inputs_mask_and_weights_stay_as_they_were(need_weights: bool) -> None:
    layer = MultiHeadAttention(8, 2, bias=True, dropout=0.5)
    tensors = [torch.randn(2, 3, 8), torch.randn(2, 4, 8), torch.randn(2, 4, 8), torch.ones(3, 4).tril()]
    watched = [*tensors, *layer.state_dict().values()]
    before = [(x.clone(), x._version) for x in watched]
    layer(*tensors, need_weights=need_weights)
    for x, (value, version) in zip(watched, before):
        assert torch.equal(x, value)
        assert x._version == version


@BOTH_WAYS
def test_later_tokens_change_nothing_under_the_causal_mask(need_weights: bool) -> None:
    layer, x = MultiHeadAttention(8, 2), torch.randn(2, 5, 8)
    longer = torch.cat([x, torch.randn(2, 2, 8)], dim=1)
    short = layer(x, x, x, causal_mask(5), need_weights=need_weights)[0]
    long = layer(longer, longer, longer, causal_mask(7), need_weights=need_weights)[0]
    same(long[:, :5], short, 1e-6)
    cached = layer(longer[:, 5:], longer, longer, causal_mask(2, 7), need_weights=need_weights)[0]
    same(cached, long[:, 5:], 1e-6)


@BOTH_WAYS
def test_padding_changes_nothing_under_the_padding_mask(need_weights: bool) -> None:
    layer, x = MultiHeadAttention(8, 2), torch.randn(3, 5, 8)
    lengths = [5, 2, 3]
    padded = layer(x, x, x, padding_mask(lengths), need_weights=need_weights)[0]
    for b, n in enumerate(lengths):
        alone = x[b : b + 1, :n]
        same(padded[b : b + 1, :n], layer(alone, alone, alone, need_weights=need_weights)[0], 1e-6)


# ------------------------------------------------------------------------- saved, copied, transformed


@pytest.mark.parametrize("bias", [True, False])
def test_state_dict_comes_back_as_it_was_saved(bias: bool) -> None:
    layer = MultiHeadAttention(8, 2, bias=bias)
    parts = ["weight", "bias"] if bias else ["weight"]
    assert list(layer.state_dict()) == [f"W_{s}.{part}" for s in "qkvo" for part in parts]
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = MultiHeadAttention(8, 2, bias=bias)
    other.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(2, 3, 8)
    assert torch.equal(other(x, x, x)[0], layer(x, x, x)[0])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copy_computes_the_same_and_shares_nothing(copied) -> None:
    layer, x = MultiHeadAttention(8, 2), torch.randn(2, 3, 8)
    expected = layer(x, x, x)[0].detach()
    other = copied(layer)
    with torch.no_grad():
        layer.W_q.weight.zero_()
    assert torch.equal(other(x, x, x)[0], expected)


def test_layer_says_what_it_is() -> None:
    assert str(MultiHeadAttention(8, 2, dropout=0.5)) == dedent("""\
        MultiHeadAttention(
          d_model=8, num_heads=2
          (W_q): Linear(in_features=8, out_features=8, bias=False)
          (W_k): Linear(in_features=8, out_features=8, bias=False)
          (W_v): Linear(in_features=8, out_features=8, bias=False)
          (W_o): Linear(in_features=8, out_features=8, bias=False)
          (dropout): Dropout(p=0.5, inplace=False)
        )""")


@BOTH_WAYS
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_runs_an_ensemble_of_layers_with_a_mask_for_each(need_weights: bool) -> None:
    layers = [MultiHeadAttention(8, 2) for _ in range(3)]
    stacked, _ = torch.func.stack_module_state(layers)
    x, mask = torch.randn(2, 4, 8), torch.rand(3, 2, 1, 4, 4) > 0.3

    def attend(parameters: dict[str, Tensor], mask: Tensor) -> Tensor:
        options = {"need_weights": need_weights}
        return torch.func.functional_call(layers[0], parameters, (x, x, x, mask), options)[0]

    outputs = torch.func.vmap(attend)(stacked, mask)
    for layer, output, its_mask in zip(layers, outputs, mask):
        same(output, layer(x, x, x, its_mask)[0], 1e-6)


def test_meta_device_gives_the_shapes_alone_whatever_the_mask() -> None:
    layer, x = MultiHeadAttention(8, 2).to("meta"), torch.empty(4, 4, 8, device="meta")
    for mask in (None, torch.empty(4, 4, device="meta"), torch.empty(4, 1, 1, 4, device="meta").bool()):
        output, weights = layer(x, x, x, mask)
        assert (output.shape, weights.shape) == ((4, 4, 8), (4, 2, 4, 4))


# ------------------------------------------------------------------------------- compiled and exported


@BOTH_WAYS
def test_layer_compiles_to_one_graph_with_masks_and_gradients(need_weights: bool) -> None:
    torch.compiler.reset()
    layer = MultiHeadAttention(8, 2)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    # B = L, so that the causal mask is the one that could be read in two ways.
    x = torch.randn(4, 4, 8, requires_grad=True)
    for mask in (causal_mask(4), padding_mask([4, 2, 0, 1]).float()):
        expected = layer(x, x, x, mask, need_weights=need_weights)[0]
        output = compiled(x, x, x, mask, need_weights=need_weights)[0]
        same(output, expected, 1e-6)
        gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (output, expected)]
        same(*gradients, 1e-5)


def test_masks_made_inside_a_compiled_function_follow_the_lengths() -> None:
    torch.compiler.reset()
    layer = MultiHeadAttention(8, 2)

    def attend(x: Tensor, lengths: Tensor) -> Tensor:
        mask = causal_mask(x.size(1)) & padding_mask(lengths, x.size(1))
        return layer(x, x, x, mask)[0]

    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    for B, L in ((2, 4), (3, 7)):
        x, lengths = torch.randn(B, L, 8), torch.randint(1, L, (B,))
        same(compiled(x, lengths), attend(x, lengths), 1e-6)


def test_compiled_layer_still_refuses_the_mask_whose_first_axis_fits_batch_and_heads() -> None:
    torch.compiler.reset()
    layer, x = MultiHeadAttention(8, 2), torch.randn(2, 4, 8)
    with pytest.raises(ValueError, match="mask has shape"):
        torch.compile(layer, backend="aot_eager")(x, x, x, torch.ones(2, 4, 4, dtype=torch.bool))


@pytest.mark.skipif(not CAN_COMPILE, reason="the default backend wants g++ and Python's headers")
def test_layer_compiles_with_the_default_backend() -> None:
    torch.compiler.reset()
    layer, x = MultiHeadAttention(8, 2), torch.randn(2, 4, 8)
    mask = padding_mask([3, 0], max_len=4)
    output, weights = torch.compile(layer, fullgraph=True)(x, x, x, mask)
    expected, expected_weights = layer(x, x, x, mask)
    same(output, expected, 1e-6)
    same(weights, expected_weights, 1e-6)


@BOTH_WAYS
@pytest.mark.parametrize("mask_axes", [None, "L L", "B 1 L L"])
def test_exported_layer_takes_any_batch_size_and_length(mask_axes: str | None, need_weights: bool) -> None:
    layer = MultiHeadAttention(8, 2)
    sizes = {"B": torch.export.Dim("B", max=64), "L": torch.export.Dim("L", max=512)}
    axes = None if mask_axes is None else mask_axes.split()

    def inputs(B: int, L: int) -> dict:
        real = {"B": B, "L": L, "1": 1}
        mask = None if axes is None else torch.rand([real[a] for a in axes]) > 0.3
        return dict.fromkeys("QKV", torch.randn(B, L, 8)) | {"mask": mask, "need_weights": need_weights}

    dynamic = dict.fromkeys("QKV", {0: sizes["B"], 1: sizes["L"]}) | {"need_weights": None}
    dynamic["mask"] = None if axes is None else {i: sizes[a] for i, a in enumerate(axes) if a != "1"}
    program = torch.export.export(layer, (), inputs(2, 4), dynamic_shapes=dynamic).module()
    for B, L in ((2, 4), (5, 7), (3, 9)):
        example = inputs(B, L)
        same(program(**example)[0], layer(**example)[0], 1e-6)


def test_exported_module_makes_its_masks_for_any_length() -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = MultiHeadAttention(8, 2)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            mask = causal_mask(x.size(1)) & padding_mask(lengths, x.size(1))
            return self.attention(x, x, x, mask)[0]

    module = Causal()
    B, L = torch.export.Dim("B", max=64), torch.export.Dim("L", max=512)
    example = (torch.randn(2, 4, 8), torch.tensor([1, 4]))
    program = torch.export.export(module, example, dynamic_shapes=({0: B, 1: L}, {0: B})).module()
    longer = (torch.randn(3, 7, 8), torch.tensor([7, 0, 2]))
    for inputs in (example, longer):
        same(program(*inputs), module(*inputs), 1e-6)
