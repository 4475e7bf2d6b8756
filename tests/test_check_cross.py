"""Cross-attention, marked: right answers in any style pass, wrong ones in their own words are caught."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from mha.check import EXERCISES
from mha.check.catalogue import CATALOGUE
from mha.check.diagnose import judge, mark

EXERCISE = EXERCISES["cross_attention"]


def heads_of(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).flatten(2)


def projected(x, memory, W_q, W_k, W_v, num_heads):
    return [heads_of(a @ W.T, num_heads) for a, W in [(x, W_q), (memory, W_k), (memory, W_v)]]


def real_keys(lengths, Lk):
    return torch.arange(Lk)[None, None, None] < lengths[:, None, None, None]


# ---------------------------------------------------------------- right


def by_einsum(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    d_k = W_q.size(0) // num_heads
    q = torch.einsum("bqd,hkd->bhqk", x, W_q.view(num_heads, d_k, -1))
    k = torch.einsum("bld,hkd->bhlk", memory, W_k.view(num_heads, d_k, -1))
    v = torch.einsum("bld,hkd->bhlk", memory, W_v.view(num_heads, d_k, -1))
    scores = torch.einsum("bhqk,bhlk->bhql", q, k) / d_k**0.5
    if lengths is not None:
        scores = scores.masked_fill(~real_keys(lengths, memory.size(1)), -math.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    mixed = torch.einsum("bhql,bhlk->bqhk", weights, v)
    return torch.einsum("bqhk,dhk->bqd", mixed, W_o.view(-1, num_heads, d_k)), weights


def by_examples(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    """Without a mask: each example's memory is cut to its length, and its weights are filled up again."""
    d_k, Lk = W_q.size(0) // num_heads, memory.size(1)
    outputs, maps = [], []
    for b, length in enumerate([Lk] * len(x) if lengths is None else lengths.tolist()):
        here, rows, found = memory[b, :length], [], []
        for h in range(num_heads):
            own = slice(h * d_k, (h + 1) * d_k)
            scores = (x[b] @ W_q[own].T) @ (here @ W_k[own].T).T / math.sqrt(d_k)
            rows.append(F.pad(scores.softmax(-1), (0, Lk - length)))
            found.append(scores.softmax(-1) @ (here @ W_v[own].T))
        maps.append(torch.stack(rows))
        outputs.append(torch.cat(found, dim=-1) @ W_o.T)
    return torch.stack(outputs), torch.stack(maps)


def by_fused_kernel(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    keep = None if lengths is None else real_keys(lengths, memory.size(1))
    q, k, v = projected(x, memory, W_q, W_k, W_v, num_heads)
    return joined(F.scaled_dot_product_attention(q, k, v, attn_mask=keep)) @ W_o.T


def by_fused_kernel_and_none(*arguments):
    return by_fused_kernel(*arguments), None


def by_torch_layer(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    width = memory.size(-1) if memory.size(-1) != x.size(-1) else None
    layer = nn.MultiheadAttention(
        x.size(-1), num_heads, bias=False, batch_first=True, kdim=width, vdim=width, dtype=x.dtype
    )
    if width is None:
        weights = {"in_proj_weight": torch.cat([W_q, W_k, W_v])}
    else:
        weights = {"q_proj_weight": W_q, "k_proj_weight": W_k, "v_proj_weight": W_v}
    there = 1 if lengths is None else (lengths > 0).to(x.dtype)[:, None, None]
    ignore = None
    if lengths is not None:  # nn.MultiheadAttention makes NaN of an empty memory: it sees all of it first
        ignore = ~real_keys(lengths, memory.size(1))[:, 0, 0] & (lengths > 0)[:, None]
    options = {"key_padding_mask": ignore, "average_attn_weights": False}
    parameters = {**weights, "out_proj.weight": W_o}
    output, maps = functional_call(layer, parameters, (x, memory, memory), options)
    return output * there, maps * (there if lengths is None else there[..., None])


def by_one_projection_for_both(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    k, v = (memory @ torch.cat([W_k, W_v]).T).chunk(2, dim=-1)
    q, k, v = (heads_of(a, num_heads) for a in (x @ W_q.T, k, v))
    scores = (q * q.size(-1) ** -0.5) @ k.mT
    real = torch.ones(1, 1, 1, 1) if lengths is None else real_keys(lengths, memory.size(1))
    scores = scores.masked_fill(real == 0, torch.finfo(scores.dtype).min)
    powers = (scores - scores.amax(-1, keepdim=True)).exp() * real.to(scores.dtype)
    weights = powers / powers.sum(-1, keepdim=True).clamp(min=1e-5)
    return joined(weights @ v) @ W_o.T, weights


def by_additive_bias(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    q, k, v = projected(x, memory, W_q, W_k, W_v, num_heads)
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    if lengths is not None:
        bias = torch.zeros(len(x), memory.size(1), dtype=x.dtype)
        for b, length in enumerate(lengths):
            bias[b, length:] = torch.finfo(x.dtype).min
        scores = scores + bias[:, None, None]
    weights = (
        torch.softmax(scores.float(), dim=-1).to(x.dtype) if x.dtype == torch.half else scores.softmax(-1)
    )
    if lengths is not None:
        weights = weights * (lengths > 0)[:, None, None, None]
    return F.linear(joined(weights @ v), W_o), weights


@pytest.mark.parametrize(
    "answer",
    [
        by_einsum,
        by_examples,
        by_fused_kernel,
        by_fused_kernel_and_none,
        by_torch_layer,
        by_one_projection_for_both,
        by_additive_bias,
    ],
)
def test_a_right_answer_passes_in_any_style(answer):
    result = mark(EXERCISE, answer)
    assert result.passed, result.message


# ---------------------------------------------------------------- wrong


def attend(q, k, v, keep=None, *, divisor=None, dim=-1):
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(divisor or q.size(-1))
    if keep is not None:
        scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim)
    if keep is not None:
        weights = weights * keep
    return weights @ v, weights


def mask_of(lengths, memory):
    return None if lengths is None else real_keys(lengths, memory.size(1))


def by_itself(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    """Calls the names Q, K, V in the order of the sentence "memory is queried by x"."""
    q, k, v = projected(memory, x, W_q, W_k, W_v, num_heads)
    mixed, weights = attend(q, k, v, mask_of(lengths, memory))
    return joined(mixed) @ W_o.T, weights


def one_position_too_many(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    keep = None if lengths is None else torch.arange(memory.size(1)) <= lengths.view(-1, 1, 1, 1)
    mixed, weights = attend(*projected(x, memory, W_q, W_k, W_v, num_heads), keep)
    return joined(mixed) @ W_o.T, weights


def keys_compete_for_queries(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    q, k, v = projected(x, memory, W_q, W_k, W_v, num_heads)
    mixed, weights = attend(q, k, v, mask_of(lengths, memory), dim=2)
    return joined(mixed) @ W_o.T, weights


def heads_unmixed(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    mixed, weights = attend(*projected(x, memory, W_q, W_k, W_v, num_heads), mask_of(lengths, memory))
    return joined(mixed), weights


def torchs_other_polarity(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    keep = mask_of(lengths, memory)
    q, k, v = projected(x, memory, W_q, W_k, W_v, num_heads)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=None if keep is None else ~keep)
    return joined(mixed) @ W_o.T


def like_a_decoder(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    q, k, v = projected(x, memory, W_q, W_k, W_v, num_heads)
    past = torch.ones(q.size(2), k.size(2)).tril().bool()
    keep = past[None, None] if lengths is None else mask_of(lengths, memory) & past
    mixed, weights = attend(q, k, v, keep)
    return joined(mixed) @ W_o.T, weights


def one_shape_for_all(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    B, L, d_model = x.shape
    cut = (B, L, num_heads, d_model // num_heads)
    q, k, v = ((a @ W.T).view(cut).transpose(1, 2) for a, W in [(x, W_q), (memory, W_k), (memory, W_v)])
    mixed, weights = attend(q, k, v, mask_of(lengths, memory))
    return joined(mixed) @ W_o.T, weights


def nothing_is_not_a_number(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    q, k, v = projected(x, memory, W_q, W_k, W_v, num_heads)
    scores = q @ k.mT / q.size(-1) ** 0.5
    if lengths is not None:
        scores = scores + torch.where(mask_of(lengths, memory), 0.0, -math.inf).to(x.dtype)
    return joined(scores.softmax(-1) @ v) @ W_o.T, scores.softmax(-1)


def padding_blanked(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    if lengths is not None:
        memory = memory * mask_of(lengths, memory)[:, 0, 0, :, None]
    mixed, weights = attend(*projected(x, memory, W_q, W_k, W_v, num_heads))
    return joined(mixed) @ W_o.T, weights


def scale_of_all_heads(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    q, k, v = projected(x, memory, W_q, W_k, W_v, num_heads)
    mixed, weights = attend(q, k, v, mask_of(lengths, memory), divisor=x.size(-1))
    return joined(mixed) @ W_o.T, weights


def mask_without_axes(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    keep = None if lengths is None else mask_of(lengths, memory).squeeze()
    mixed, weights = attend(*projected(x, memory, W_q, W_k, W_v, num_heads), keep)
    return joined(mixed) @ W_o.T, weights


def prefix(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    both = torch.cat((x, memory), dim=1)
    keep = None
    if lengths is not None:
        keep = F.pad(mask_of(lengths, memory), (x.size(1), 0), value=True)
    mixed, weights = attend(*projected(x, both, W_q, W_k, W_v, num_heads), keep)
    return joined(mixed) @ W_o.T, weights


def residual_and_no_scale(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    q, k, v = projected(x, memory, W_q, W_k, W_v, num_heads)
    mixed, weights = attend(q, k, v, mask_of(lengths, memory), divisor=1)
    return x + joined(mixed) @ W_o.T, weights


def one_map(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    mixed, weights = attend(*projected(x, memory, W_q, W_k, W_v, num_heads), mask_of(lengths, memory))
    return joined(mixed) @ W_o.T, sum(weights.unbind(1)) / num_heads


def weights_of_another_call(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    """The output without the padding, the weights with it."""
    q, k, v = projected(x, memory, W_q, W_k, W_v, num_heads)
    return joined(attend(q, k, v, mask_of(lengths, memory))[0]) @ W_o.T, attend(q, k, v)[1]


@pytest.mark.parametrize(
    "answer, wanted",
    [
        (by_itself, {"cross-roles-exchanged"}),
        (one_position_too_many, {"padding-one-too-many"}),
        (keys_compete_for_queries, {"softmax-over-queries"}),
        (heads_unmixed, {"cross-no-output-projection"}),
        (torchs_other_polarity, {"mask-inverted"}),
        (like_a_decoder, {"cross-causal-added-top-left"}),
        (one_shape_for_all, {"layer-keys-with-lq"}),
        (nothing_is_not_a_number, {"mask-empty-row-nan"}),
        (padding_blanked, {"cross-padding-zeroed"}),
        (scale_of_all_heads, {"scale-by-d_model"}),
        (mask_without_axes, {"padding-no-axes"}),
        (prefix, {"cross-x-before-memory"}),
        (residual_and_no_scale, {"cross-residual-added", "scale-missing"}),
        (one_map, {"give-averaged"}),
        (weights_of_another_call, {"give-weights-from-before-the-mask"}),
    ],
)
def test_a_wrong_answer_in_its_own_words_is_named(answer, wanted):
    result = mark(EXERCISE, answer)
    assert not result.passed
    assert wanted <= {entry.id for entry in result.mistakes}


def keys_of_the_neighbour(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
    q, k, v = projected(x, memory, W_q, W_k, W_v, num_heads)
    mixed, weights = attend(q, k.roll(1, dims=2), v, mask_of(lengths, memory))
    return joined(mixed) @ W_o.T, weights


@pytest.mark.no_cover
def test_what_the_catalogue_does_not_know_is_caught_at_the_first_input_that_shows_it():
    result = mark(EXERCISE, keys_of_the_neighbour)
    assert (result.passed, result.mistakes, result.stage) == (False, (), "scale")


def test_the_mistakes_of_attention_masks_and_heads_can_be_made_here_too():
    known = {entry.id for entry in EXERCISE.mistakes}
    assert {"scale-missing", "softmax-over-heads", "padding-inverted", "split-view-only"} <= known
    assert len([id for id in known if id.startswith("cross-")]) >= 30


def test_the_padding_of_a_memory_is_told_from_the_length_of_x():
    # Right lengths, wrong axis: where Lq = Lk no shape gives it away.
    result = judge(EXERCISE, CATALOGUE["cross-mask-of-length-lq"])
    assert {entry.id for entry in result.mistakes} == {"cross-mask-of-length-lq"}
