"""The heads of one layer on several ranks: the sum of the shards is the whole."""

import pytest
import torch
from torch import Tensor, nn

from mha import MultiHeadAttention, causal_mask, head_shards

D_MODEL, H = 24, 6  # d_k = 4


def layer_of(bias: bool) -> MultiHeadAttention:
    torch.manual_seed(0)
    layer = MultiHeadAttention(D_MODEL, H, bias=bias).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer.eval()


def sequences() -> tuple[Tensor, Tensor, Tensor]:
    Q, K, V = torch.randn(3, 2, 5, D_MODEL, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Q[:, :3], K, V


def same(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mask", [None, causal_mask(3, 5)], ids=["no mask", "causal"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_the_outputs_add_up_to_the_layers(bias, need_weights, mask, world_size):
    layer = layer_of(bias)
    whole, weights = layer(*sequences(), mask, need_weights=need_weights)
    parts = [shard(*sequences(), mask, need_weights=need_weights) for shard in head_shards(layer, world_size)]
    assert len(parts) == world_size
    same(sum(output for output, _ in parts), whole)
    if need_weights:  # rank 0 has the first heads, and so on
        same(torch.cat([part for _, part in parts], dim=1), weights)


def test_each_rank_holds_one_block_of_every_matrix():
    layer = layer_of(True)
    for rank, shard in enumerate(head_shards(layer, 3)):
        block = slice(8 * rank, 8 * (rank + 1))  # two heads of 4
        for name in ("W_q", "W_k", "W_v"):
            assert torch.equal(getattr(shard, name).weight, getattr(layer, name).weight[block])
            assert torch.equal(getattr(shard, name).bias, getattr(layer, name).bias[block])
        assert torch.equal(shard.W_o.weight, layer.W_o.weight[:, block])


def test_the_bias_of_w_o_is_on_rank_0_only():
    layer = layer_of(True)
    first, *others = head_shards(layer, 3)
    assert torch.equal(first.W_o.bias, layer.W_o.bias)
    assert [shard.W_o.bias for shard in others] == [None, None]


@pytest.mark.parametrize("world_size, heads", [(1, 6), (2, 3), (3, 2), (6, 1)])
def test_the_parameters_are_shared_out(world_size, heads):
    counts = [sum(p.numel() for p in shard.parameters()) for shard in head_shards(layer_of(True), world_size)]
    own = 4 * 24 * 4 * heads + 3 * 4 * heads  # four matrices and three biases, d_k = 4 numbers a head
    assert counts == [own + 24] + [own] * (world_size - 1)


def test_gradients_of_the_shards_are_the_blocks_of_the_layers():
    layer = layer_of(True)
    shards = head_shards(layer, 2)
    sum(shard(*sequences())[0] for shard in shards).square().sum().backward()
    layer(*sequences())[0].square().sum().backward()
    for name in ("W_q.weight", "W_q.bias", "W_k.weight", "W_v.weight", "W_v.bias"):
        parts = torch.cat([shard.get_parameter(name).grad for shard in shards])
        same(parts, layer.get_parameter(name).grad, 1e-9)
    same(torch.cat([shard.W_o.weight.grad for shard in shards], dim=1), layer.W_o.weight.grad, 1e-9)
    same(shards[0].W_o.bias.grad, layer.W_o.bias.grad, 1e-9)


def test_the_shards_have_weights_of_their_own():
    layer = layer_of(True)
    before = layer(*sequences())[0]
    with torch.no_grad():
        for shard in head_shards(layer, 2):
            for parameter in shard.parameters():
                parameter.zero_()
    assert torch.equal(layer(*sequences())[0], before)


def test_a_torch_layer_with_its_biases_is_cut_as_well():
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(D_MODEL, H, batch_first=True).double().eval()
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    shards = head_shards(MultiHeadAttention.from_torch(theirs), 3)
    same(sum(shard(*sequences())[0] for shard in shards), theirs(*sequences())[0])


@pytest.mark.parametrize(
    "world_size, error, message",
    [
        (4, ValueError, "num_heads=6 is not divisible by world_size=4"),
        (12, ValueError, "num_heads=6 is not divisible by world_size=12"),
        (0, ValueError, "world_size=0 has to be at least 1"),
        (-2, ValueError, "world_size=-2 has to be at least 1"),
        (2.0, TypeError, "world_size=2.0 is a float; it has to be an integer"),
        (True, TypeError, "world_size=True is a bool; it has to be an integer"),
        (None, TypeError, "world_size=None is a NoneType"),
    ],
)
def test_a_wrong_world_size_is_named(world_size, error, message):
    with pytest.raises(error, match=message):
        head_shards(layer_of(False), world_size)


def test_what_is_no_layer_is_named():
    with pytest.raises(TypeError, match="layer is a Linear; it has to be a mha.MultiHeadAttention"):
        head_shards(nn.Linear(4, 4), 2)
