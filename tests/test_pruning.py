"""Heads taken out: against the layer whose joined row is zeroed by hand, and against counting."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mha import (
    MultiHeadAttention,
    ablate_heads,
    causal_mask,
    head_outputs,
    merge_heads,
    padding_mask,
    prune_heads,
    scaled_dot_product_attention,
    split_heads,
)

B, LQ, LK, D_MODEL, H = 2, 3, 5, 24, 4  # d_k = 6
KEEPS = [[0], [3], [1, 2], [0, 2, 3], [2, 0], [3, 1, 0, 2]]


def layer_of(bias: bool, num_heads: int = H, dropout: float = 0.0) -> MultiHeadAttention:
    torch.manual_seed(0)
    layer = MultiHeadAttention(D_MODEL, num_heads, bias=bias, dropout=dropout).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)  # biases too, and far enough from zero to be missed
    return layer.eval()


def sequences() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    Q = torch.randn(B, LQ, D_MODEL, generator=generator, dtype=torch.float64)
    K, V = torch.randn(2, B, LK, D_MODEL, generator=generator, dtype=torch.float64)
    return Q, K, V


def zeroed_by_hand(layer: MultiHeadAttention, keep: list[int], mask: Tensor | None = None) -> Tensor:
    """The layer's own steps, with zeros in the joined row in the place of all other heads."""
    Q, K, V = sequences()
    h = layer.num_heads
    split = [split_heads(W(x), h) for W, x in ((layer.W_q, Q), (layer.W_k, K), (layer.W_v, V))]
    heads, _ = scaled_dot_product_attention(*split, mask)
    concat = merge_heads(heads)  # (B, Lq, h·d_k)
    d_k = D_MODEL // h
    for head in range(h):
        if head not in keep:
            concat[..., head * d_k : (head + 1) * d_k] = 0
    return layer.W_o(concat)


def same(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


both_biases = pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
every_keep = pytest.mark.parametrize("keep", KEEPS, ids=str)
MASKS = {
    "none": None,
    "causal": causal_mask(LQ, LK),
    "padding": padding_mask([5, 2]),
    "nothing left": torch.zeros(LQ, LK, dtype=torch.bool),
}
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


# ------------------------------------------------------------------------------------- prune_heads


@both_biases
@every_keep
@each_mask
def test_pruned_output_is_that_of_the_other_heads_zeroed(bias, keep, mask):
    layer = layer_of(bias)
    output, weights = prune_heads(layer, keep)(*sequences(), mask)
    same(output, zeroed_by_hand(layer, keep, mask))
    same(weights, layer(*sequences(), mask)[1][:, keep])  # in the order of keep


@both_biases
@each_mask
def test_the_fused_way_gives_the_same(bias, mask):
    pruned = prune_heads(layer_of(bias), [3, 1])
    output, weights = pruned(*sequences(), mask, need_weights=False)
    assert weights is None
    same(output, zeroed_by_hand(layer_of(bias), [3, 1], mask))


def test_each_head_keeps_its_own_rows_and_columns():
    layer = MultiHeadAttention(6, 3, bias=True)  # d_k = 2
    with torch.no_grad():
        for W in (layer.W_q, layer.W_k, layer.W_v):
            W.weight.copy_(torch.arange(36.0).view(6, 6))
            W.bias.copy_(torch.arange(6.0))
        layer.W_o.weight.copy_(torch.arange(36.0).view(6, 6))
        layer.W_o.bias.copy_(torch.arange(6.0))
    pruned = prune_heads(layer, [2, 0])
    for W in (pruned.W_q, pruned.W_k, pruned.W_v):
        assert W.weight[:, 0].tolist() == [24, 30, 0, 6]  # rows 4, 5, 0, 1
        assert W.weight.shape == (4, 6)
        assert W.bias.tolist() == [4, 5, 0, 1]
    assert pruned.W_o.weight[0].tolist() == [4, 5, 0, 1]
    assert pruned.W_o.weight.shape == (6, 4)
    assert pruned.W_o.bias.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "bias, keep, count",
    [
        (False, [0], 4 * 24 * 6),  # four matrices of 24 by one head of 6
        (False, [0, 1, 2], 4 * 24 * 18),
        (True, [0], 4 * 24 * 6 + 3 * 6 + 24),  # the bias of W_o stays whole
        (True, [1, 2, 3], 4 * 24 * 18 + 3 * 18 + 24),
    ],
)
def test_the_parameters_that_are_left_can_be_counted(bias, keep, count):
    assert sum(p.numel() for p in prune_heads(layer_of(bias), keep).parameters()) == count


def test_the_sizes_say_what_is_left():
    pruned = prune_heads(layer_of(True), [1, 3])
    assert (pruned.d_model, pruned.num_heads, pruned.d_k) == (24, 2, 6)
    assert (pruned.W_q.in_features, pruned.W_q.out_features) == (24, 12)
    assert (pruned.W_o.in_features, pruned.W_o.out_features) == (12, 24)
    assert "d_model=24, num_heads=2" in repr(pruned)
    assert "(W_o): Linear(in_features=12, out_features=24, bias=True)" in repr(pruned)


def test_all_heads_kept_is_the_same_layer():
    layer = layer_of(True)
    for name, x in prune_heads(layer, range(H)).state_dict().items():
        assert torch.equal(x, layer.state_dict()[name])


def test_a_pruned_layer_can_be_pruned_again():
    layer = layer_of(True)
    twice = prune_heads(prune_heads(layer, [0, 2, 3]), [1, 2])  # of 0, 2, 3: 2 and 3
    same(twice(*sequences())[0], zeroed_by_hand(layer, [2, 3]))


@pytest.mark.parametrize("keep", [(1, 3), range(1, 4, 2), torch.tensor([1, 3]), [np.int64(1), np.int64(3)]])
def test_head_numbers_come_in_any_sequence(keep):
    layer = layer_of(False)
    same(prune_heads(layer, keep)(*sequences())[0], zeroed_by_hand(layer, [1, 3]))


def test_the_layer_stays_as_it_was_and_shares_nothing():
    layer = layer_of(True)
    before = copy.deepcopy(layer.state_dict())
    random_state = torch.get_rng_state()
    pruned = prune_heads(layer, range(H))
    with torch.no_grad():
        for parameter in pruned.parameters():
            parameter.add_(1)
    assert torch.equal(torch.get_rng_state(), random_state)
    for name, x in layer.state_dict().items():
        assert torch.equal(x, before[name])


@pytest.mark.parametrize("training", [False, True])
def test_dtype_mode_dropout_and_frozen_weights_are_taken_over(training):
    layer = MultiHeadAttention(8, 2, bias=True, dropout=0.25).to(torch.bfloat16).train(training)
    layer.W_k.requires_grad_(False)
    pruned = prune_heads(layer, [1])
    assert {p.dtype for p in pruned.parameters()} == {torch.bfloat16}
    assert (pruned.training, pruned.W_q.training, pruned.dropout.p) == (training, training, 0.25)
    frozen = {name for name, p in pruned.named_parameters() if not p.requires_grad}
    assert frozen == {"W_k.weight", "W_k.bias"}


def test_dropout_drops_weights_of_a_pruned_layer():
    torch.manual_seed(0)
    pruned = prune_heads(layer_of(False, dropout=0.5).train(), [0, 2])
    _, weights = pruned(*sequences())
    assert 0.2 < (weights == 0).double().mean() < 0.8
    same(pruned.eval()(*sequences())[0], zeroed_by_hand(layer_of(False), [0, 2]))


@both_biases
def test_gradients_are_those_of_the_kept_rows_and_columns(bias):
    layer, keep = layer_of(bias), [1, 3]
    pruned = prune_heads(layer, keep)
    pruned(*sequences())[0].square().sum().backward()
    zeroed_by_hand(layer, keep).square().sum().backward()
    rows = [6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 22, 23]
    for name in ("W_q", "W_k", "W_v"):
        small, whole = getattr(pruned, name), getattr(layer, name)
        same(small.weight.grad, whole.weight.grad[rows], 1e-9)
        if bias:
            same(small.bias.grad, whole.bias.grad[rows], 1e-9)
    same(pruned.W_o.weight.grad, layer.W_o.weight.grad[:, rows], 1e-9)
    if bias:
        same(pruned.W_o.bias.grad, layer.W_o.bias.grad, 1e-9)


def test_a_pruned_layer_is_saved_copied_and_loaded_like_any():
    pruned = prune_heads(layer_of(True), [2, 1])
    file = io.BytesIO()
    torch.save(pruned.state_dict(), file)
    file.seek(0)
    other = prune_heads(MultiHeadAttention(D_MODEL, H, bias=True).double(), [0, 1])
    other.load_state_dict(torch.load(file))
    for again in (other, copy.deepcopy(pruned)):
        assert torch.equal(again(*sequences())[0], pruned(*sequences())[0])


def test_weights_taken_from_torch_can_be_pruned():
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(D_MODEL, H, batch_first=True).double().eval()
    nn.init.normal_(theirs.in_proj_bias)
    layer = MultiHeadAttention.from_torch(theirs)
    same(prune_heads(layer, [3, 0])(*sequences())[0], zeroed_by_hand(layer, [0, 3]))


def test_a_pruned_layer_refuses_what_the_whole_one_refuses():
    pruned = prune_heads(layer_of(False), [0])
    with pytest.raises(ValueError, match="its last axis has to be d_model=24"):
        pruned(*(x[..., :6] for x in sequences()))


# ------------------------------------------------------------------------------------- ablate_heads


@both_biases
@pytest.mark.parametrize("heads", [[], [1], [3, 0], [0, 1, 2, 3]], ids=str)
@each_mask
def test_ablated_heads_add_nothing(bias, heads, mask):
    layer = layer_of(bias)
    kept = [head for head in range(H) if head not in heads]
    ablated = ablate_heads(layer, heads)
    output, weights = ablated(*sequences(), mask)
    same(output, zeroed_by_hand(layer, kept, mask))
    same(weights, layer(*sequences(), mask)[1])  # they still look
    same(ablated(*sequences(), mask, need_weights=False)[0], output)


def test_without_any_head_the_bias_of_w_o_is_left():
    layer = layer_of(True)
    output, _ = ablate_heads(layer, range(H))(*sequences())
    assert torch.equal(output, layer.W_o.bias.expand(B, LQ, D_MODEL))


def test_ablating_leaves_the_layer_as_it_was():
    layer = layer_of(True)
    before = copy.deepcopy(layer.state_dict())
    ablated = ablate_heads(layer, [0, 1])
    assert ablated.num_heads == H
    assert sum(p.numel() for p in ablated.parameters()) == sum(p.numel() for p in layer.parameters())
    for name, x in layer.state_dict().items():
        assert torch.equal(x, before[name])


# ------------------------------------------------------------------------------------- head_outputs


@both_biases
@each_mask
def test_each_heads_output_is_the_layers_with_only_that_head(bias, mask):
    layer = layer_of(bias)
    parts = head_outputs(layer, *sequences(), mask)
    assert parts.shape == (B, H, LQ, D_MODEL)
    b_o = layer.W_o.bias if bias else 0
    for head in range(H):
        same(parts[:, head] + b_o, zeroed_by_hand(layer, [head], mask))
    same(parts.sum(dim=1) + b_o, layer(*sequences(), mask)[0])


def test_the_parts_of_a_pruned_layer_are_those_of_the_whole():
    layer = layer_of(True)
    same(head_outputs(prune_heads(layer, [2, 0]), *sequences()), head_outputs(layer, *sequences())[:, [2, 0]])


def test_gradients_reach_the_layer_through_one_head_only():
    layer = layer_of(False)
    head_outputs(layer, *sequences())[:, 1].square().sum().backward()
    touched = layer.W_v.weight.grad.abs().sum(dim=1) > 0
    assert touched.nonzero().flatten().tolist() == [6, 7, 8, 9, 10, 11]


def test_bad_sequences_and_masks_are_named():
    Q, K, V = sequences()
    with pytest.raises(ValueError, match=r"K has shape \(2, 5, 6\); its last axis has to be d_model=24"):
        head_outputs(layer_of(False), Q, K[..., :6], V)
    with pytest.raises(ValueError, match="mask"):
        head_outputs(layer_of(False), Q, K, V, torch.ones(LQ, LK + 1, dtype=torch.bool))


# ------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "heads, error, message",
    [
        ([4], ValueError, r"\[0\]=4; the layer has num_heads=4, 0 to 3"),
        ([0, -1], ValueError, r"\[1\]=-1; the layer has num_heads=4, 0 to 3"),
        ([1, 2, 1], ValueError, r"=\[1, 2, 1\] names a head more than once"),
        ([True, False, True, True], TypeError, r"\[0\]=True is a bool; it has to be an integer"),
        (torch.tensor([True, False, True, True]), TypeError, r"\[0\]=True is a bool"),
        ([0, 1.0], TypeError, r"\[1\]=1.0 is a float; it has to be an integer"),
        (["0"], TypeError, r"\[0\]='0' is a str; it has to be an integer"),
        (1, TypeError, "=1 is a int; it has to be a list of head numbers"),
        (torch.tensor(1), TypeError, "=1 is a int; it has to be a list of head numbers"),
        (torch.tensor([[0, 1]]), TypeError, r"\[0\]=\[0, 1\] is a list; it has to be an integer"),
        ({0, 1}, TypeError, r"=\{0, 1\} is a set; it has to be a list of head numbers"),
        ("01", TypeError, "='01' is a str; it has to be a list of head numbers"),
        (None, TypeError, "=None is a NoneType; it has to be a list of head numbers"),
    ],
    ids=str,
)
@pytest.mark.parametrize("function, name", [(prune_heads, "keep"), (ablate_heads, "heads")])
def test_what_are_no_head_numbers_is_named(function, name, heads, error, message):
    with pytest.raises(error, match=f"^{name}{message}"):
        function(layer_of(False), heads)


@pytest.mark.parametrize("keep", [[], (), range(0), torch.tensor([], dtype=torch.long)])
def test_a_layer_keeps_at_least_one_head(keep):
    with pytest.raises(ValueError, match="keep is empty; a layer has to keep at least one head"):
        prune_heads(layer_of(False), keep)


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.MultiheadAttention(4, 2), MultiHeadAttention])
def test_what_is_no_layer_is_named(layer):
    x = torch.ones(1, 2, 4)
    calls = [lambda: prune_heads(layer, [0]), lambda: ablate_heads(layer, [0])]
    for call in (*calls, lambda: head_outputs(layer, x, x, x)):
        with pytest.raises(TypeError, match="^layer is a .*; it has to be a mha.MultiHeadAttention"):
            call()
