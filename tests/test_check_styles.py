"""Right answers pass in many styles; wrong ones are named in words of their own, not the catalogue's."""

import functools
import itertools
import math
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mha
from mha.check import EXERCISES
from mha.check.diagnose import mark

# ---------------------------------------------------------------- right answers


def shapes_yielded(B, L, d_model, h):
    yield from [(B, L, d_model)] * 2
    yield from [(B, h, L, d_model // h), (B, h, L, L), (B, h, L, d_model // h)]
    yield from [(B, L, d_model)] * 2


def shapes_in_a_dict(*sizes):
    return dict(zip(["X", "Q", "split", "weights", "heads", "joined", "output"], shapes_yielded(*sizes)))


def shapes_of_tensors(B, L, d_model, h):
    x = torch.zeros(B, L, d_model)
    q = x.unflatten(-1, (h, -1)).transpose(1, 2)
    return x.shape, x.shape, q.shape, (q @ q.mT).shape, (q @ q.mT @ q).shape, x.shape, x.shape


def project_by_loops(x, W):
    out = x.new_empty(*x.shape[:2], len(W))
    for b, t, o in itertools.product(*map(range, out.shape)):
        out[b, t, o] = torch.dot(x[b, t], W[o])
    return out


class Projection:
    def __call__(self, x, W):
        return x.matmul(W.T)


@functools.cache
def head(i: int, width: int) -> slice:
    return slice(i * width, (i + 1) * width)


@torch.enable_grad()
def split_by_slices(tokens: torch.Tensor, n_head: int = 8, *, dim: int = -1) -> torch.Tensor:
    heads = [tokens[..., head(i, tokens.size(dim) // n_head)] for i in range(n_head)]
    return torch.cat([one.unsqueeze(1) for one in heads], dim=1)


def attend_by_loops(Q, K, V, mask=None):
    weights = Q.new_zeros(*Q.shape[:3], K.size(2))
    seen = torch.ones_like(weights) if mask is None else mask.expand_as(weights)
    for row in itertools.product(*map(range, Q.shape[:3])):
        keys = seen[row].nonzero()[:, 0].tolist()
        if keys:
            scores = torch.stack([Q[row] @ K[row[:2]][k] for k in keys]) / math.sqrt(Q.size(-1))
            weights[row][keys] = F.softmax(scores, dim=0)
    return weights @ V, weights


def attend_by_log_sum_exp(Q, K, V, mask=None):
    scores = torch.einsum("bhqd,bhkd->bhqk", Q * Q.size(-1) ** -0.25, K * Q.size(-1) ** -0.25)
    seen = 1 if mask is None else mask != 0
    scores = scores if mask is None else scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
    weights = torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True)) * seen
    return torch.einsum("bhqk,bhkd->bhqd", weights, V), weights


def attend_to_bools(Q, K, V, mask=None):
    """Whose mask has to be of bools: ~ turns 0 and 1 into other numbers."""
    scores = Q @ K.mT / Q.size(-1) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    return Attended(weights @ V, weights) if mask is None else Attended(weights * mask @ V, weights * mask)


Attended = namedtuple("Attended", "output weights")


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, query, key, value, keep=None):
        scores = (query[..., None, :] * key[..., None, :, :]).sum(-1) / math.sqrt(key.shape[-1])
        if keep is None:
            return self.softmax(scores) @ value, None
        scores = torch.where(keep != 0, scores, -torch.inf)
        weights = torch.where((keep != 0).any(-1, keepdim=True), self.softmax(scores), 0.0)
        return weights.to(value.dtype) @ value, None


def causal_by_rows(n_q, n_k=None):
    n_k = n_q if n_k is None else n_k
    return torch.tensor([[j <= i + n_k - n_q for j in range(n_k)] for i in range(n_q)])


def causal_as_the_end_of_a_square(Lq, Lk=None):
    Lk = Lq if Lk is None else Lk
    n = max(Lq, Lk)
    return torch.ones(n, n).tril().byte()[n - Lq :, n - Lk :]


def weights_and_no_biases(layer):
    q, k, v = layer.in_proj_weight.split(layer.embed_dim)
    none = dict.fromkeys(["b_q", "b_k", "b_v", "b_o"])
    return {"W_q": q, "W_k": k, "W_v": v, "W_o": layer.out_proj.weight, **none}


def torch_mha_by_examples(layer, x, keep=None):
    pairs = []
    for b, one in enumerate(x.split(1)):
        mask = None if keep is None else (~keep[b]).expand(x.size(1), -1)
        pairs.append(layer(one, one, one, attn_mask=mask, average_attn_weights=False))
    return tuple(map(torch.cat, zip(*pairs)))


def sdpa_by_queries(Q, K, V, keep=None, causal=False):
    rows, before = [], K.size(2) - Q.size(2)
    for i, q in enumerate(Q.split(1, dim=2)):
        n = before + i + 1 if causal else K.size(2)
        own = None if keep is None else keep[:, :, i : i + 1, :n]
        rows.append(F.scaled_dot_product_attention(q, K[:, :, :n], V[:, :, :n], attn_mask=own))
    return torch.cat(rows, dim=2)


def cross_by_heads(decoder, encoder, W_q, W_k, W_v, W_o, h, real=None):
    output, maps = 0, []
    hidden = None if real is None else torch.arange(encoder.size(1)) >= real[:, None, None]
    for own in torch.arange(len(W_q)).chunk(h):
        scores = (decoder @ W_q[own].T) @ (encoder @ W_k[own].T).mT / math.sqrt(len(own))
        if hidden is not None:
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        maps.append(scores.softmax(-1) if hidden is None else scores.softmax(-1).masked_fill(hidden, 0))
        output = output + maps[-1] @ (encoder @ W_v[own].T) @ W_o[:, own].T
    return [output, torch.stack(maps, dim=1)][0]


def rope_by_matrices(x, positions):
    d, out = x.size(-1), torch.empty_like(x)
    for row, position in enumerate(positions.tolist()):
        R = torch.zeros(d, d)
        for i, j in zip(range(d // 2), range(d // 2, d)):
            angle = position * 10_000 ** (-2 * i / d)
            R[i, i] = R[j, j] = math.cos(angle)
            R[i, j], R[j, i] = -math.sin(angle), math.sin(angle)
        out[..., row, :] = x[..., row, :] @ R.T.to(x.dtype)
    return out


def slopes_in_a_closed_form(n):
    p = 2 ** math.floor(math.log2(n))
    return torch.tensor([2 ** (-8 * (i + 1) / p if i < p else -4 * (2 * (i - p) + 1) / p) for i in range(n)])


class Subclassed(list):
    def append(self, k, v):
        super().append((k, v))
        return [torch.cat(part, dim=2) for part in zip(*self)]

    def reset(self):
        self.clear()

    def __len__(self):
        return sum(k.size(2) for k, _ in self.__iter__())


def cached_token_by_token(q, k, v, cache):
    rows = []
    for new in zip(*(x.split(1, dim=2) for x in (q, k, v))):
        at = torch.tensor([len(cache)])
        keys, values = cache.append(mha.apply_rope(new[1], at), new[2])
        rows.append(mha.scaled_dot_product_attention(mha.apply_rope(new[0], at), keys, values)[0])
    return torch.cat(rows, dim=2)


def cached_with_a_mask_of_its_own(q, k, v, cache):
    at = torch.arange(len(cache), len(cache) + q.size(2))
    keys, values = cache.append(mha.apply_rope(k, at), v)
    scores = mha.apply_rope(q, at) @ keys.mT / math.sqrt(q.size(-1))
    return scores.masked_fill(torch.arange(keys.size(2)) > at[:, None], -1e30).softmax(-1) @ values


def online_by_log_sum_exp(Q, K, V, block):
    parts = []
    for k, v in zip(K.split(block, dim=2), V.split(block, dim=2)):
        scores = Q @ k.mT * Q.size(-1) ** -0.5
        parts.append((scores.logsumexp(-1, keepdim=True), scores.softmax(-1) @ v))
    totals, mixes = map(torch.stack, zip(*parts))
    return (totals.softmax(0) * mixes).sum(0)


def online_in_powers_of_2(Q, K, V, block):
    largest = total = mix = None
    for k, v in zip(K.split(block, dim=2), V.split(block, dim=2)):
        scores = Q @ k.mT * (math.log2(math.e) / math.sqrt(Q.size(-1)))
        new = scores.amax(-1, keepdim=True)
        new = new if largest is None else torch.maximum(largest, new)
        powers = torch.exp2(scores - new)
        shrink = 0 if largest is None else torch.exp2(largest - new)
        total = powers.sum(-1, keepdim=True) + (0 if total is None else total * shrink)
        mix, largest = powers @ v + (0 if mix is None else mix * shrink), new
    return mix / total


def prune_by_unflattening(layer, keep):
    def cut(name, x):
        if name == "W_o.bias":
            return x
        axis = 1 if name == "W_o.weight" else 0
        heads = x.unflatten(axis, (layer.num_heads, -1))
        return heads.index_select(axis, torch.tensor(keep)).flatten(axis, axis + 1)

    return {name: cut(name, x) for name, x in layer.state_dict().items()}


def shards_in_a_module_list(layer, world_size):
    return nn.ModuleList(mha.head_shards(layer, world_size))


def shards_by_a_generator(layer, world_size):
    return (shard for shard in mha.head_shards(layer, world_size))


def bert_through_torch(state_dict, layer, num_heads):
    (start,) = {name.split("encoder.")[0] for name in state_dict if "encoder." in name}
    part = f"{start}encoder.layer.{layer}.attention."
    made = nn.MultiheadAttention(state_dict[f"{part}self.key.bias"].numel(), num_heads, batch_first=True)
    for kind in ("weight", "bias"):
        joined = torch.cat([state_dict[f"{part}self.{name}.{kind}"] for name in ("query", "key", "value")])
        getattr(made, f"in_proj_{kind}").data = joined
        getattr(made.out_proj, kind).data = state_dict[f"{part}output.dense.{kind}"].clone()
    return mha.MultiHeadAttention.from_torch(made)


RIGHT = [
    ("shapes", shapes_yielded),
    ("shapes", shapes_in_a_dict),
    ("shapes", shapes_of_tensors),
    ("linear_projection", project_by_loops),
    ("linear_projection", F.linear),
    ("linear_projection", functools.partial(torch.einsum, "bli,oi->blo")),
    ("output_projection", Projection()),
    ("output_projection", lambda x, W: (W @ x.mT).mT),
    ("split_heads", split_by_slices),
    ("split_heads", lambda x, n: torch.stack(x.chunk(n, -1), dim=1)),
    ("split_heads", lambda x, n: x.unfold(-1, x.size(-1) // n, x.size(-1) // n).movedim(2, 1)),
    ("scaled_dot_product_attention", attend_by_loops),
    ("scaled_dot_product_attention", attend_by_log_sum_exp),
    ("scaled_dot_product_attention", attend_to_bools),
    ("scaled_dot_product_attention", Attend()),
    ("scaled_dot_product_attention", F.scaled_dot_product_attention),
    ("merge_heads", lambda x: torch.cat(x.unbind(1), dim=-1)),
    ("merge_heads", lambda x: x.mT.flatten(1, 2).mT),
    ("from_torch_mha", weights_and_no_biases),
    ("causal_mask", causal_by_rows),
    ("causal_mask", causal_as_the_end_of_a_square),
    ("padding_mask", lambda n, L: torch.tensor([[1] * i + [0] * (L - i) for i in n.tolist()])[:, None, None]),
    ("padding_mask", lambda n, L: torch.ones(L + 1, L).tril(-1).bool()[n][:, None, None]),
    ("call_torch_mha", torch_mha_by_examples),
    ("call_torch_sdpa", sdpa_by_queries),
    ("cross_attention", cross_by_heads),
    ("prune_heads", prune_by_unflattening),
    ("apply_rope", rope_by_matrices),
    ("alibi_slopes", slopes_in_a_closed_form),
    ("load_bert_layer", bert_through_torch),
    ("kv_cache", Subclassed),
    ("cached_attention", cached_token_by_token),
    ("cached_attention", cached_with_a_mask_of_its_own),
    ("repeat_kv", lambda x, n: x[:, torch.arange(x.size(1) * n) // n]),
    ("repeat_kv", lambda x, n: x[:, :, None].expand(-1, -1, n, -1, -1).flatten(1, 2)),
    ("online_attention", online_by_log_sum_exp),
    ("online_attention", online_in_powers_of_2),
    ("head_shards", shards_in_a_module_list),
    ("head_shards", shards_by_a_generator),
]


@pytest.mark.parametrize("name, answer", RIGHT, ids=lambda value: getattr(value, "__name__", None))
def test_a_right_answer_passes_in_any_style(name, answer):
    result = mark(EXERCISES[name], answer)
    assert result.passed, result.message


# ---------------------------------------------------------------- wrong answers


def masked(fill=lambda scores, mask: scores, after=lambda weights, mask: weights):
    def attend(Q, K, V, mask=None):
        scores = Q @ K.mT / math.sqrt(Q.size(-1))
        scores = scores if mask is None else fill(scores, mask)
        weights = scores.softmax(-1) if mask is None else after(scores.softmax(-1), mask)
        return weights @ V, weights

    return attend


def sharing_out(share):
    """Attention whose weights are made from the scores by `share`, right but for that."""

    def attend(Q, K, V, mask=None):
        scores = Q @ K.mT / math.sqrt(Q.size(-1))
        if mask is None:
            return share(scores) @ V, share(scores)
        weights = share(scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)) * (mask != 0)
        return weights @ V, weights

    return attend


def causal_if(keep_causal):
    def call(Q, K, V, keep=None, causal=False):
        return F.scaled_dot_product_attention(Q, K, V, attn_mask=keep_causal(Q, K, keep, causal))

    return call


def causal_too_often(Q, K, keep, causal):
    allowed = mha.causal_mask(Q.size(2), K.size(2))
    return allowed if keep is None else keep & allowed


def cached_and_weights(q, k, v, cache):
    at = torch.arange(len(cache), len(cache) + q.size(2))
    keys, values = cache.append(mha.apply_rope(k, at), v)
    allowed = mha.causal_mask(q.size(2), keys.size(2))
    return mha.scaled_dot_product_attention(mha.apply_rope(q, at), keys, values, allowed)


def cached_top_left(q, k, v, cache):
    at = torch.arange(len(cache), len(cache) + q.size(2))
    keys, values = cache.append(mha.apply_rope(k, at), v)
    allowed = torch.ones(q.size(2), keys.size(2)).tril() == 1
    return mha.scaled_dot_product_attention(mha.apply_rope(q, at), keys, values, allowed)[0]


def tiles_of_softmax(join):
    def attend(Q, K, V, block):
        tiles = zip(K.split(block, dim=2), V.split(block, dim=2))
        return join([F.scaled_dot_product_attention(Q, k, v) for k, v in tiles])

    return attend


def online_from(lowest):
    def attend(Q, K, V, block):
        largest = torch.full_like(Q[..., :1], lowest)
        total, mix = torch.zeros_like(largest), 0
        for k, v in zip(K.split(block, dim=2), V.split(block, dim=2)):
            scores = Q @ k.mT / math.sqrt(Q.size(-1))
            new = torch.maximum(largest, scores.amax(-1, keepdim=True))
            powers, shrink, largest = (scores - new).exp(), (largest - new).exp(), new
            total, mix = total * shrink + powers.sum(-1, keepdim=True), mix * shrink + powers @ v
        return mix / total

    return attend


def bert_in(part, **roles):
    """A layer that is loaded from names that start with `part`, with some roles' names exchanged."""
    names = {"W_q": "self.query", "W_k": "self.key", "W_v": "self.value", "W_o": "output.dense"} | roles

    def load(state_dict, layer, num_heads):
        start = part if part is not None else "bert." * any(name.startswith("bert.") for name in state_dict)
        found = {ours: f"{start}encoder.layer.{layer}.attention.{name}" for ours, name in names.items()}
        made = mha.MultiHeadAttention(len(state_dict[f"{found['W_q']}.weight"]), num_heads, bias=True)
        for ours, name in found.items():
            getattr(made, ours).weight.data = state_dict[f"{name}.weight"]
            getattr(made, ours).bias.data = state_dict[f"{name}.bias"]
        return made

    return load


WRONG = [
    ("shapes", lambda *s: tuple(shapes_yielded(*s))[:-1], "shapes-last-left-out"),
    ("shapes", lambda *s: [shape[1:] for shape in shapes_yielded(*s)], "shapes-no-batch"),
    ("linear_projection", lambda x, W: F.relu(F.linear(x, W)), "project-activation"),
    (
        "linear_projection",
        lambda x, W: nn.Linear(4, len(W), dtype=W.dtype)(x),
        "project-drawn-weight-and-bias",
    ),
    ("output_projection", lambda x, W: torch.einsum("bli,oi->bol", x, W), "project-axes-exchanged"),
    ("split_heads", lambda x, n: x.split(x.size(-1) // n, dim=-1), "split-in-a-tuple"),
    ("split_heads", lambda x, n: torch.cat(x.chunk(n, dim=2), dim=0), "split-batch-behind-heads"),
    ("scaled_dot_product_attention", masked(lambda s, m: s.masked_fill(m, -math.inf)), "mask-inverted-nan"),
    ("scaled_dot_product_attention", masked(lambda s, m: s.masked_fill(m == 1, -1e9)), "mask-inverted-1e9"),
    ("scaled_dot_product_attention", masked(lambda s, m: s + m.float() * -1e9), "mask-inverted-added"),
    ("scaled_dot_product_attention", masked(lambda s, m: s.masked_fill(~m, -math.inf)), "mask-empty-row-nan"),
    ("scaled_dot_product_attention", masked(after=lambda w, m: w * m), "mask-after-softmax"),
    (
        "scaled_dot_product_attention",
        sharing_out(lambda s: (s - s.max()).exp() / (s - s.max()).exp().sum(-1, keepdim=True)),
        "softmax-largest-of-all",
    ),
    ("scaled_dot_product_attention", sharing_out(lambda s: s.exp() / s.exp().sum()), "softmax-sum-of-all"),
    ("merge_heads", lambda x: torch.cat(x.unbind(1), dim=1), "merge-along-tokens"),
    ("merge_heads", lambda x: torch.stack(x.unbind(2)).flatten(2), "merge-tokens-first"),
    ("causal_mask", lambda n, m=None: torch.ones(n, m or n).triu(1).bool(), "causal-forbidden-top-left"),
    (
        "causal_mask",
        lambda n, m=None: nn.Transformer.generate_square_subsequent_mask(n),
        "causal-generated",
    ),
    ("causal_mask", lambda n, m=None: mha.causal_mask(n, m)[None, None], "causal-with-axes"),
    ("padding_mask", lambda n, L: (torch.arange(L) < n[:, None])[..., None, None], "padding-axes-behind"),
    (
        "padding_mask",
        lambda n, L: (torch.arange(n.max()) < n[:, None])[:, None, None],
        "padding-to-the-longest",
    ),
    ("call_torch_sdpa", causal_if(causal_too_often), "sdpa-always-causal-from-the-end"),
    ("cached_attention", cached_and_weights, "cached-weights-too"),
    ("cached_attention", cached_top_left, "causal-top-left"),
    ("repeat_kv", lambda x, n: torch.stack([x] * n, dim=2), "repeat-axis-left"),
    ("online_attention", tiles_of_softmax(sum), "tiles-summed"),
    ("online_attention", online_from(-1e4), "tile-starts-at-minus-10000"),
    ("load_bert_layer", bert_in("bert."), "bert-prefix-demanded"),
    ("load_bert_layer", bert_in(None, W_k="self.query", W_v="self.query"), "bert-qqq"),
    ("alibi_slopes", lambda h: torch.logspace(-1, -8, h, base=2), "alibi-from-one-half"),
]


@pytest.mark.parametrize("name, answer, id", WRONG, ids=[f"{name}-{id}" for name, _, id in WRONG])
def test_a_wrong_answer_in_its_own_words_is_named(name, answer, id):
    result = mark(EXERCISES[name], answer)
    assert id in {entry.id for entry in result.mistakes}, result.message


def test_a_layer_that_is_given_the_weights_is_told_why_it_would_not_be_trained():
    def by_a_layer(x, W):
        layer = nn.Linear(W.size(1), W.size(0), bias=False)  # which draws weights: no side effect
        layer.weight = nn.Parameter(W)
        return layer(x)

    result = mark(EXERCISES["linear_projection"], by_a_layer)
    assert [entry.id for entry in result.mistakes] == ["behaviour-gradient-cut"]


def test_a_scale_taken_from_the_values_shows_where_they_are_wider():
    def by_values(Q, K, V, mask=None):
        return mha.scaled_dot_product_attention(Q * math.sqrt(Q.size(-1) / V.size(-1)), K, V, mask)

    result = mark(EXERCISES["scaled_dot_product_attention"], by_values)
    assert [entry.id for entry in result.mistakes] == ["scale-by-values"]
    assert "On values that are wider than the keys: weights[0, 0, 0, 0] is" in result.message


def test_the_steps_of_a_cache_are_told_in_words():
    class KVCache(Subclassed):
        def append(self, k, v):
            return torch.cat([past for past, _ in self] + [k, v], dim=2), v

    assert "one token: steps append 1\n" in mark(EXERCISES["kv_cache"], KVCache).message
