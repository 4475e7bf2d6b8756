"""Taking heads out and sharing them out: right answers in any style pass, wrong ones are named."""

import copy

import pytest
import torch
from torch import nn

import mha
from mha.check import EXERCISES
from mha.check.diagnose import mark
from mha.check.exercises.pruning import weights_of

NAMES = ("W_q", "W_k", "W_v")


def by_views(layer, keep):
    h, d_k = layer.num_heads, layer.d_k
    given = {"W_o.weight": layer.W_o.weight.unflatten(1, (h, d_k))[:, keep].flatten(1), "b_o": layer.W_o.bias}
    for name in NAMES:
        W = getattr(layer, name)
        given[name] = W.weight.view(h, d_k, -1)[keep].flatten(0, 1)
        given[f"{name}.bias"] = None if W.bias is None else W.bias.view(h, d_k)[keep].flatten()
    return given


def by_slices(layer, keep):
    given = {}
    for name, x in layer.named_parameters():
        dim = 1 if name == "W_o.weight" else 0
        slices = [x.narrow(dim, head * layer.d_k, layer.d_k) for head in keep]
        given[name] = x if name == "W_o.bias" else torch.cat(slices, dim)
    return given


def as_a_layer(layer, keep):
    new, rows = copy.deepcopy(layer), [head * layer.d_k + n for head in keep for n in range(layer.d_k)]
    new.num_heads = len(keep)
    for name in NAMES:
        old = getattr(layer, name)
        W = nn.Linear(layer.d_model, len(rows), bias=old.bias is not None)
        W.weight = nn.Parameter(old.weight[rows])
        if old.bias is not None:
            W.bias = nn.Parameter(old.bias[rows])
        setattr(new, name, W)
    new.W_o = nn.Linear(len(rows), layer.d_model, bias=layer.W_o.bias is not None)
    new.W_o.weight = nn.Parameter(layer.W_o.weight[:, rows])
    if layer.W_o.bias is not None:
        new.W_o.bias = nn.Parameter(layer.W_o.bias.clone())
    return new


def with_arrays(layer, keep):
    """Arrays of numpy's, and how many heads there are."""
    given = by_slices(layer, keep)
    return {name: x.detach().numpy() for name, x in given.items()} | {"num_heads": len(keep)}


def with_projections(layer, keep):
    """A dict of nn.Linear."""
    pruned = as_a_layer(layer, keep)
    return {name: getattr(pruned, name) for name in (*NAMES, "W_o")}


@pytest.mark.parametrize("answer", [by_views, by_slices, as_a_layer, with_arrays, with_projections])
def test_another_right_way_to_prune_passes(answer):
    assert mark(EXERCISES["prune_heads"], answer).passed


def chunks(layer, world_size):
    """Views of the layer's matrices, and a share of b_o for each rank."""
    assert layer.num_heads % world_size == 0, "some ranks would have more heads than others"
    shards = []
    for rank in range(world_size):
        shard = {name: getattr(layer, name).weight.chunk(world_size)[rank] for name in NAMES}
        shard["W_o"] = layer.W_o.weight.chunk(world_size, dim=1)[rank]
        if layer.W_o.bias is not None:
            shard |= {f"b_{r}": getattr(layer, f"W_{r}").bias.chunk(world_size)[rank] for r in "qkv"}
            shard["b_o"] = layer.W_o.bias / world_size
        shards.append(shard)
    return shards


def zeros_elsewhere(layer, world_size):
    """Layers, each with a bias of W_o: that of all ranks but the first is zero."""
    shards = mha.head_shards(layer, world_size)
    if layer.W_o.bias is not None:
        for shard in shards[1:]:
            shard.W_o.bias = nn.Parameter(torch.zeros(layer.d_model))
    return tuple(shards)


@pytest.mark.parametrize("answer", [chunks, zeros_elsewhere])
def test_another_right_way_to_share_out_passes(answer):
    assert mark(EXERCISES["head_shards"], answer).passed


def named(name, answer):
    result = mark(EXERCISES[name], answer)
    assert not result.passed
    return {entry.id for entry in result.mistakes}


def test_a_layer_that_keeps_its_num_heads_is_named():
    def answer(layer, keep):
        new = as_a_layer(layer, keep)
        new.num_heads = layer.num_heads
        return new

    assert named("prune_heads", answer) == {"prune-num-heads-left"}


def test_a_bias_that_two_layers_share_is_named():
    def answer(layer, keep):
        new = as_a_layer(layer, keep)
        new.W_o.bias = None if layer.W_o.bias is None else nn.Parameter(layer.W_o.bias)
        return new

    assert named("prune_heads", answer) == {"prune-output-bias-shared"}


def test_a_new_layer_of_the_wrong_d_k_is_named():
    def answer(layer, keep):
        new = mha.MultiHeadAttention(layer.d_model, len(keep), bias=layer.W_o.bias is not None)
        new.load_state_dict(by_slices(layer, keep))
        return new

    assert named("prune_heads", answer) == {"prune-new-layer-too-wide"}


def test_right_weights_under_other_names_are_named():
    def answer(layer, keep):
        pruned = mha.prune_heads(layer, keep)
        return {name.replace("_", ""): x for name, x in weights_of(pruned).items()}  # Wq, bq …

    assert named("prune_heads", answer) == {"prune-other-names"}


def test_pruning_the_layer_itself_is_a_side_effect():
    def answer(layer, keep):
        for name, module in mha.prune_heads(layer, keep).named_children():
            setattr(layer, name, module)
        layer.num_heads = len(keep)
        return layer

    result = mark(EXERCISES["prune_heads"], answer)
    assert not result.passed and "changes its input layer" in result.message


def shards_as_layers(layer, world_size, share):
    shards = mha.head_shards(layer, world_size)
    for rank, shard in enumerate(shards):
        share(layer, shard, rank)
    return shards


def test_views_of_the_layer_are_named():
    def view(layer, shard, rank):
        rows = shard.W_q.out_features
        shard.W_q.weight = nn.Parameter(layer.W_q.weight[rank * rows : (rank + 1) * rows])

    answer = named("head_shards", lambda layer, n: shards_as_layers(layer, n, view))
    assert answer == {"shard-shares-memory"}


def test_a_bias_on_every_rank_is_named():
    def copied(layer, shard, rank):
        shard.W_o.bias = None if layer.W_o.bias is None else nn.Parameter(layer.W_o.bias.clone())

    answer = named("head_shards", lambda layer, n: shards_as_layers(layer, n, copied))
    assert answer == {"shard-output-bias-everywhere"}


def test_a_return_inside_the_loop_is_named():
    assert named("head_shards", lambda layer, n: mha.head_shards(layer, n)[0]) == {"shard-rank-0-only"}
    assert named("prune_heads", lambda layer, keep: mha.prune_heads(layer, keep[:1])) == {
        "prune-one-head-returned"
    }


def test_a_number_of_ranks_that_does_not_divide_the_heads_need_not_be_refused():
    def answer(layer, world_size):
        h = layer.num_heads // world_size
        shards = [by_slices(layer, range(r * h, (r + 1) * h)) for r in range(world_size)]
        return [
            {name: x for name, x in one.items() if r == 0 or name != "W_o.bias"}
            for r, one in enumerate(shards)
        ]

    assert mark(EXERCISES["head_shards"], answer).passed


def test_a_copy_that_has_the_layers_own_projections_is_named():
    def answer(layer, keep):
        new = copy.copy(layer)
        new.num_heads = len(keep)
        for name, module in as_a_layer(layer, keep).named_children():
            setattr(new, name, module)
        return new

    assert named("prune_heads", answer) == {"prune-shallow-copy"}
