"""A right layer passes however it is written; a wrong one never does, however it is written."""

# ruff: noqa: N801 (a hundred layers, each known by the words in its decorator)

import collections
import dataclasses
import functools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mha
from mha.check.catalogue import mistakes_of
from mha.check.diagnose import judge
from mha.check.exercises.layer import LAYER
from mha.check.layers.inputs import layer_probes, with_large_masked
from mha.check.layers.marking import mark_layer
from mha.check.layers.reading import Reading
from mha.check.weights import find_projections

RIGHT: dict[str, tuple] = {}
WRONG: dict[str, tuple] = {}


def right(name: str, **how) -> Callable[[type], type]:
    """Enter a right layer; `how` is given on to mark_layer."""

    def enter(answer: type) -> type:
        assert name not in RIGHT
        RIGHT[name] = (answer, how)
        return answer

    return enter


def wrong(name: str, *ids: str, stage: str | None = None) -> Callable[[type], type]:
    """Enter a wrong layer, and the mistakes that have to be named: none where nothing known fits."""

    def enter(answer: type) -> type:
        assert name not in WRONG
        WRONG[name] = (answer, set(ids), stage)
        return answer

    return enter


# ---------------------------------------------------------------- what most layers below are made of


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is None:
        weights = torch.softmax(scores, -1)
    else:
        weights = torch.nan_to_num(torch.softmax(scores.masked_fill(mask == 0, float("-inf")), -1))
    return weights @ v, weights


class Base(nn.Module):
    """A layer whose `project` gives queries, keys and values as (B, L, d_model)."""

    def __init__(self, d_model: int, num_heads: int):
        super().__init__()
        if d_model % num_heads:
            raise ValueError("not divisible")
        self.d_model, self.num_heads, self.d_k = d_model, num_heads, d_model // num_heads
        self.build(d_model, num_heads, self.d_k)

    def build(self, d, h, d_k):
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d, d, bias=False) for _ in range(4))

    def project(self, Q, K, V):
        return self.W_q(Q), self.W_k(K), self.W_v(V)

    def split(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, self.d_k).transpose(1, 2)

    def attend(self, q, k, v, mask):
        return attend(q, k, v, mask)

    def merge(self, x):
        return x.transpose(1, 2).flatten(2)

    def output(self, x):
        return self.W_o(x)

    def forward(self, Q, K, V, mask=None):
        heads, weights = self.attend(*map(self.split, self.project(Q, K, V)), mask)
        return self.output(self.merge(heads)), weights


def named(q: str, k: str, v: str, o: str, bias: bool = False) -> type:
    class Named(Base):
        def build(self, d, h, d_k):
            for name in (q, k, v, o):
                setattr(self, name, nn.Linear(d, d, bias=bias))

        def project(self, Q, K, V):
            return getattr(self, q)(Q), getattr(self, k)(K), getattr(self, v)(V)

        def output(self, x):
            return getattr(self, o)(x)

    return Named


# ---------------------------------------------------------------- right: names

for _names in (
    "q_proj k_proj v_proj out_proj",
    "wq wk wv wo",
    "Wq Wk Wv Wo",
    "query key value dense",
    "queries keys values fc_out",
    "to_q to_k to_v to_out",
    "fc_q fc_k fc_v fc_o",
    "W_query W_key W_value out_proj",
    "linear_q linear_k linear_v linear_out",
    "w_qs w_ks w_vs fc",
    "query_layer key_layer value_layer output_layer",
    "tokeys toqueries tovalues unifyheads",
    "lin1 lin2 lin3 lin4",
    "a b c d",
    "qProj kProj vProj oProj",
    "W_Q W_K W_V W_O",
):
    _q, _k, _v, _o = _names.split()
    if _q == "tokeys":
        _q, _k = _k, _q
    right(f"names {_names}")(named(_q, _k, _v, _o))
right("biases")(named("W_q", "W_k", "W_v", "W_o", bias=True))
right("unnamed, with biases")(named("one", "two", "three", "four", bias=True))


@right("made in another order, names that do not tell")
class _(Base):
    def build(self, d, h, d_k):
        self.layer_a, self.layer_b, self.layer_c, self.layer_d = (nn.Linear(d, d) for _ in range(4))

    def project(self, Q, K, V):
        return self.layer_c(Q), self.layer_d(K), self.layer_a(V)

    def output(self, x):
        return self.layer_b(x)


@right("clones in a ModuleList, (h, d_model), as in the Annotated Transformer")
class _(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        if d_model % h:
            raise ValueError("not divisible")
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        n = query.size(0)
        query, key, value = [
            lin(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        self.attn = self.dropout(scores.softmax(-1).nan_to_num())
        x = (self.attn @ value).transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k)
        return self.linears[-1](x), self.attn


@right("three clones and an output")
class _(Base):
    def build(self, d, h, d_k):
        self.projections = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(3))
        self.final = nn.Linear(d, d)

    def project(self, Q, K, V):
        return [p(x) for p, x in zip(self.projections, (Q, K, V))]

    def output(self, x):
        return self.final(x)


@right("a ModuleDict")
class _(Base):
    def build(self, d, h, d_k):
        self.proj = nn.ModuleDict({name: nn.Linear(d, d) for name in ("query", "key", "value", "out")})

    def project(self, Q, K, V):
        return self.proj["query"](Q), self.proj["key"](K), self.proj["value"](V)

    def output(self, x):
        return self.proj["out"](x)


# ---------------------------------------------------------------- right: several in one


@right("fused qkv, its rows used one by one")
class _(Base):
    def build(self, d, h, d_k):
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def project(self, Q, K, V):
        return self.qkv(Q).chunk(3, -1)[0], self.qkv(K).chunk(3, -1)[1], self.qkv(V).chunk(3, -1)[2]

    def output(self, x):
        return self.proj(x)


@right("fused qkv with F.linear on slices")
class _(Base):
    def build(self, d, h, d_k):
        self.in_proj, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def project(self, Q, K, V):
        return [F.linear(x, W) for x, W in zip((Q, K, V), self.in_proj.weight.split(self.d_model))]

    def output(self, x):
        return self.out(x)


class GPT2Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.2)
        self.bias = nn.Parameter(torch.randn(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


@right("c_attn and c_proj of GPT-2's Conv1D")
class _(Base):
    def build(self, d, h, d_k):
        self.c_attn, self.c_proj = GPT2Conv1D(3 * d, d), GPT2Conv1D(d, d)

    def project(self, Q, K, V):
        return [self.c_attn(x).split(self.d_model, -1)[i] for i, x in enumerate((Q, K, V))]

    def output(self, x):
        return self.c_proj(x)


@right("fused keys and values")
class _(Base):
    def build(self, d, h, d_k):
        self.to_q, self.to_kv = nn.Linear(d, d, bias=False), nn.Linear(d, 2 * d, bias=False)
        self.to_out = nn.Sequential(nn.Linear(d, d), nn.Dropout(0.0))

    def project(self, Q, K, V):
        return self.to_q(Q), self.to_kv(K).chunk(2, -1)[0], self.to_kv(V).chunk(2, -1)[1]

    def output(self, x):
        return self.to_out(x)


@right("fused qkv, head by head: (h, 3, d_k)")
class _(Base):
    def build(self, d, h, d_k):
        self.query_key_value, self.dense = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def project(self, Q, K, V):
        parts = [self.query_key_value(x).view(*x.shape[:2], self.num_heads, 3, self.d_k) for x in (Q, K, V)]
        return [part[..., i, :].flatten(2) for i, part in enumerate(parts)]

    def output(self, x):
        return self.dense(x)


@right("fused qkv as one parameter (3, d_model, d_model)")
class _(Base):
    def build(self, d, h, d_k):
        self.w_qkv = nn.Parameter(torch.randn(3, d, d) * 0.2)
        self.w_out = nn.Parameter(torch.randn(d, d) * 0.2)

    def project(self, Q, K, V):
        return [x @ W for x, W in zip((Q, K, V), self.w_qkv)]

    def output(self, x):
        return x @ self.w_out


# ---------------------------------------------------------------- right: parameters and heads


def parameters(shape: str, qkv: str, o: str, out_shape: str) -> type:
    """A layer of bare parameters with einsum; the letters are d model, e model, h heads, k size of a head."""

    class Parameters(Base):
        def build(self, d, h, d_k):
            sizes = {"d": d, "e": d, "h": h, "k": d_k}
            for name in "qkv":
                setattr(self, f"W_{name}", nn.Parameter(torch.randn([sizes[s] for s in shape]) * 0.2))
            self.W_o = nn.Parameter(torch.randn([sizes[s] for s in out_shape]) * 0.2)

        def forward(self, Q, K, V, mask=None):
            q, k, v = (
                torch.einsum(f"bld,{shape}->b{qkv}", x, getattr(self, f"W_{n}"))
                for n, x in zip("qkv", (Q, K, V))
            )
            if qkv == "le":
                q, k, v = map(self.split, (q, k, v))
            heads, weights = attend(q, k, v, mask)
            if len(out_shape) == 2:
                return torch.einsum(f"ble,{out_shape}->bld", self.merge(heads), self.W_o), weights
            return torch.einsum(f"bhlk,{out_shape}->bl{o}", heads, self.W_o), weights

    return Parameters


for _shape, _qkv, _o, _out in (
    ("de", "le", "d", "ed"),
    ("ed", "le", "d", "de"),
    ("de", "le", "d", "de"),
    ("ed", "le", "d", "ed"),
    ("hdk", "hlk", "d", "ed"),
    ("hdk", "hlk", "d", "hkd"),
    ("hkd", "hlk", "d", "dhk"),
    ("dhk", "hlk", "d", "hkd"),
    ("dhk", "hlk", "d", "hdk"),
):
    right(f"parameters {_shape} and {_out}")(parameters(_shape, _qkv, _o, _out))


@right("parameters and their biases apart")
class _(Base):
    def build(self, d, h, d_k):
        for name in "qkvo":
            setattr(self, f"W_{name}", nn.Parameter(torch.randn(d, d) * 0.2))
            setattr(self, f"b_{name}", nn.Parameter(torch.randn(d)))

    def project(self, Q, K, V):
        return Q @ self.W_q + self.b_q, K @ self.W_k + self.b_k, V @ self.W_v + self.b_v

    def output(self, x):
        return x @ self.W_o + self.b_o


@right("one Linear per head")
class PerHead(Base):
    def build(self, d, h, d_k):
        for name in "qkv":
            setattr(self, f"W_{name}", nn.ModuleList(nn.Linear(d, d_k) for _ in range(h)))
        self.W_o = nn.Linear(d, d)

    def one(self, i, Q, K, V, mask):
        return attend(self.W_q[i](Q), self.W_k[i](K), self.W_v[i](V), mask)

    def forward(self, Q, K, V, mask=None):
        if mask is not None:
            mask = mask[:, 0]
        heads, weights = zip(*(self.one(i, Q, K, V, mask) for i in range(self.num_heads)))
        return self.W_o(torch.cat(self.order(heads), -1)), torch.stack(weights, 1)

    def order(self, heads):
        return heads


class Head(nn.Module):
    def __init__(self, d, d_k):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(d, d_k, bias=False) for _ in range(3))

    def forward(self, Q, K, V, mask):
        return attend(self.query(Q), self.key(K), self.value(V), mask)


@right("a module per head")
class _(PerHead):
    def build(self, d, h, d_k):
        self.heads = nn.ModuleList(Head(d, d_k) for _ in range(h))
        self.proj = nn.Linear(d, d)

    def one(self, i, Q, K, V, mask):
        return self.heads[i](Q, K, V, mask)

    def W_o(self, x):
        return self.proj(x)


@right("one output per head, added up")
class _(PerHead):
    def build(self, d, h, d_k):
        super().build(d, h, d_k)
        self.W_o = nn.ModuleList(nn.Linear(d_k, d, bias=False) for _ in range(h))

    def forward(self, Q, K, V, mask=None):
        heads, weights = zip(
            *(self.one(i, Q, K, V, None if mask is None else mask[:, 0]) for i in range(self.num_heads))
        )
        return sum(W(x) for W, x in zip(self.W_o, heads)), torch.stack(weights, 1)


@right("attributes q0, k0, v0 … per head")
class _(PerHead):
    def build(self, d, h, d_k):
        for i in range(h):
            for name in "qkv":
                setattr(self, f"{name}{i}", nn.Linear(d, d_k))
        self.W_o = nn.Linear(d, d)

    def one(self, i, Q, K, V, mask):
        return attend(*(getattr(self, f"{n}{i}")(x) for n, x in zip("qkv", (Q, K, V))), mask)


@right("a ParameterList per role")
class _(PerHead):
    def build(self, d, h, d_k):
        for name in "qkv":
            setattr(self, f"W_{name}", nn.ParameterList(torch.randn(d, d_k) * 0.2 for _ in range(h)))
        self.W_o = nn.Linear(d, d)

    def one(self, i, Q, K, V, mask):
        return attend(Q @ self.W_q[i], K @ self.W_k[i], V @ self.W_v[i], mask)


@right("one qkv Linear per head")
class _(PerHead):
    def build(self, d, h, d_k):
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d_k) for _ in range(h))
        self.W_o = nn.Linear(d, d)

    def one(self, i, Q, K, V, mask):
        return attend(*(self.qkv[i](x).chunk(3, -1)[n] for n, x in enumerate((Q, K, V))), mask)


@right("biases per head, (h, 1, d_k)")
class _(Base):
    def build(self, d, h, d_k):
        for name in "qkv":
            setattr(self, f"W_{name}", nn.Parameter(torch.randn(h, d, d_k) * 0.2))
            setattr(self, f"b_{name}", nn.Parameter(torch.randn(h, 1, d_k)))
        self.W_o = nn.Linear(d, d)

    def forward(self, Q, K, V, mask=None):
        parts = zip((Q, K, V), (self.W_q, self.W_k, self.W_v), (self.b_q, self.b_k, self.b_v))
        heads, weights = attend(*(x[:, None] @ W + b for x, W, b in parts), mask)
        return self.W_o(self.merge(heads)), weights


@right("fused as (3, h, d_model, d_k) with biases (3, d_model)")
class _(Base):
    def build(self, d, h, d_k):
        self.qkv = nn.Parameter(torch.randn(3, h, d, d_k) * 0.2)
        self.qkv_bias = nn.Parameter(torch.randn(3, d))
        self.proj = nn.Linear(d, d)

    def project(self, Q, K, V):
        parts = zip((Q, K, V), self.qkv, self.qkv_bias)
        return [torch.einsum("bld,hdk->blhk", x, W).flatten(2) + b for x, W, b in parts]

    def output(self, x):
        return self.proj(x)


@right("convolutions of width 1")
class _(Base):
    def build(self, d, h, d_k):
        self.conv_q, self.conv_k, self.conv_v, self.conv_o = (nn.Conv1d(d, d, 1) for _ in range(4))

    def project(self, *inputs):
        convolutions = (self.conv_q, self.conv_k, self.conv_v)
        return [c(x.transpose(1, 2)).transpose(1, 2) for c, x in zip(convolutions, inputs)]

    def output(self, x):
        return self.conv_o(x.transpose(1, 2)).transpose(1, 2)


@right("weights under weight_norm")
class _(Base):
    def build(self, d, h, d_k):
        super().build(d, h, d_k)
        for name in "qkvo":
            nn.utils.parametrizations.weight_norm(getattr(self, f"W_{name}"))


@right("the size told as key_size, query_size, value_size, num_hiddens")
class _(Base):
    def __init__(self, key_size, query_size, value_size, num_hiddens, num_heads, bias=False):
        if {key_size, query_size, value_size} != {num_hiddens}:
            raise ValueError("one size is wanted")
        super().__init__(num_hiddens, num_heads)


# ---------------------------------------------------------------- right: the middle in other words


@right("output only")
class _(Base):
    def forward(self, *inputs):
        return super().forward(*inputs)[0]


@right("weights given as None")
class _(Base):
    def forward(self, *inputs):
        return super().forward(*inputs)[0], None


@right("F.scaled_dot_product_attention")
class _(Base):
    def forward(self, Q, K, V, mask=None):
        q, k, v = map(self.split, self.project(Q, K, V))
        mask = None if mask is None else mask.bool()
        return self.W_o(self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))


@right("loops over examples, heads and tokens")
class _(Base):
    def attend(self, q, k, v, mask):
        heads, weights = torch.zeros_like(q), q.new_zeros(*q.shape[:3], k.size(2))
        mask = None if mask is None else mask.expand(weights.shape)
        for b in range(q.size(0)):
            for h in range(q.size(1)):
                for i in range(q.size(2)):
                    s = torch.stack([q[b, h, i] @ k[b, h, j] for j in range(k.size(2))]) / self.d_k**0.5
                    keep = torch.ones_like(s) if mask is None else mask[b, h, i].to(s.dtype)
                    e = (s - s.max()).exp() * keep
                    row = e / e.sum().clamp_min(1e-30)
                    weights[b, h, i] = row
                    heads[b, h, i] = row @ v[b, h]
        return heads, weights


@right("baddbmm on (B·h, L, d_k)")
class _(Base):
    def attend(self, q, k, v, mask):
        (B, h, Lq, d_k), Lk = q.shape, k.size(2)
        q, k, v = (x.reshape(B * h, -1, d_k) for x in (q, k, v))
        bias = q.new_zeros(B, h, Lq, Lk)
        if mask is not None:
            bias = bias.masked_fill(mask == 0, float("-inf"))
        scores = torch.baddbmm(bias.view(B * h, Lq, Lk), q, k.transpose(1, 2), alpha=d_k**-0.5)
        weights = scores.softmax(-1).nan_to_num(0.0)
        return (weights @ v).view(B, h, Lq, d_k), weights.view(B, h, Lq, Lk)


@right("torch.where, and a softmax by hand")
class _(Base):
    def attend(self, q, k, v, mask):
        scores = torch.einsum("bhqd,bhkd->bhqk", q * q.size(-1) ** -0.25, k * q.size(-1) ** -0.25)
        keep = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.bool().expand_as(scores)
        scores = torch.where(keep, scores, torch.finfo(scores.dtype).min)
        powers = torch.where(keep, (scores - scores.amax(-1, keepdim=True)).exp(), 0)
        weights = powers / powers.sum(-1, keepdim=True).clamp_min(1e-12)
        return torch.einsum("bhqk,bhkd->bhqd", weights, v), weights


@right("the scale as a tensor of float32, which half precision does not meet")
class _(Base):
    def attend(self, q, k, v, mask):
        scores = q @ k.transpose(-2, -1) / torch.sqrt(torch.FloatTensor([self.d_k]))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e10)
        weights = scores.softmax(-1)
        if mask is not None:
            weights = weights * (mask != 0)
        return weights @ v, weights


@right("softmax in float32")
class _(Base):
    def attend(self, q, k, v, mask):
        scores = q @ k.transpose(-2, -1) / self.d_k**0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(q.dtype)
        if mask is not None:
            weights = weights.masked_fill(mask == 0, 0)
        return weights @ v, weights


@right("heads kept on the third axis")
class _(Base):
    def forward(self, Q, K, V, mask=None):
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)) for x in self.project(Q, K, V))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -torch.inf)
        weights = scores.softmax(-1).nan_to_num()
        return self.W_o(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(-2)), weights


@right("a list of chunks as heads")
class _(Base):
    def forward(self, Q, K, V, mask=None):
        q, k, v = (torch.stack(x.chunk(self.num_heads, -1), 1) for x in self.project(Q, K, V))
        heads, weights = attend(q, k, v, mask)
        return self.W_o(torch.cat(heads.unbind(1), -1)), weights


@right("wraps nn.MultiheadAttention")
class _(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.mha = nn.MultiheadAttention(d_model, num_heads, batch_first=True)

    def forward(self, Q, K, V, mask=None):
        if mask is None:
            return self.mha(Q, K, V, average_attn_weights=False)
        blocked = (mask == 0).expand(-1, self.mha.num_heads, Q.size(1), K.size(1)).flatten(0, 1)
        empty = blocked.all(-1, keepdim=True)
        out, weights = self.mha(Q, K, V, attn_mask=blocked & ~empty, average_attn_weights=False)
        empty = empty.view(*weights.shape[:-1], 1)
        if not empty.any():
            return out, weights
        weights = weights.masked_fill(empty, 0)
        W, b = self.mha.in_proj_weight.chunk(3)[2], self.mha.in_proj_bias.chunk(3)[2]
        v = F.linear(V, W, b).unflatten(-1, (weights.size(1), -1)).transpose(1, 2)
        return self.mha.out_proj((weights @ v).transpose(1, 2).flatten(2)), weights


# ---------------------------------------------------------------- right: what stands around it


@right("dropout=0.1 by default")
class Dropping(Base):
    def __init__(self, embed_dim, num_heads, dropout=0.1, bias=True):
        super().__init__(embed_dim, num_heads)
        self.p, self.dropout = dropout, nn.Dropout(dropout)

    def attend(self, q, k, v, mask):
        _, weights = attend(q, k, v, mask)
        weights = self.drop(weights)
        return weights @ v, weights

    def drop(self, weights):
        return self.dropout(weights)


@right("dropout by F.dropout, and on the output as well")
class _(Dropping):
    def drop(self, weights):
        return F.dropout(weights, self.p, self.training)

    def output(self, x):
        return F.dropout(self.W_o(x), self.p, training=self.training)


@right("keyword-only num_heads")
class _(Base):
    def __init__(self, d_model, *, n_heads):
        super().__init__(d_model, n_heads)


@right("more arguments: hid_dim, n_heads, dropout, device")
class _(Base):
    def __init__(self, hid_dim, n_heads, dropout):
        super().__init__(hid_dim, n_heads)
        self.drop = nn.Dropout(dropout)

    def attend(self, q, k, v, mask):
        _, weights = attend(q, k, v, mask)
        return self.drop(weights) @ v, weights


@right("other parts that are not used")
class _(Base):
    def build(self, d, h, d_k):
        super().build(d, h, d_k)
        self.norm, self.spare = nn.LayerNorm(d), nn.Linear(d, d)
        self.register_buffer("bias", torch.ones(1, 1, 64, 64).tril())
        self.register_buffer("scale", torch.tensor(d_k**0.5))


@right("keeps the weights for a look later")
class _(Base):
    def attend(self, q, k, v, mask):
        heads, self.attention_weights = attend(q, k, v, mask)
        return heads, self.attention_weights


@right("prints")
class _(Base):
    def forward(self, Q, K, V, mask=None):
        print(Q.shape)
        return super().forward(Q, K, V, mask)


@right("weights made by the first call")
class _(Base):
    def build(self, d, h, d_k):
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.LazyLinear(d) for _ in range(4))


Named = collections.namedtuple("Named", "weights output")


@dataclasses.dataclass
class Held:
    context: torch.Tensor
    attentions: torch.Tensor | None = None


for _what, _function in {
    "a dict": lambda output, weights: {"attn_output": output, "attn_weights": weights},
    "a dict of more": lambda output, weights: {"out": output, "scores": weights * 2, "probs": weights},
    "a dataclass": Held,
    "a named tuple": lambda output, weights: Named(weights, output),
}.items():
    right(f"comes back in {_what}")(
        type("_", (Base,), {"forward": lambda self, *inputs, f=_function: f(*Base.forward(self, *inputs))})
    )


@right("one output matrix per head, of heads that need not divide d_model")
class _(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        d_k = d_model // num_heads
        self.W = nn.ParameterDict({n: torch.randn(d_model, num_heads, d_k) * 0.2 for n in "qkv"})
        self.W["o"] = nn.Parameter(torch.randn(num_heads, d_k, d_model) * 0.2)

    def forward(self, Q, K, V, mask=None):
        inputs = zip((Q, K, V), "qkv")
        heads, weights = attend(*(torch.einsum("bld,dhk->bhlk", x, self.W[n]) for x, n in inputs), mask)
        return torch.einsum("bhlk,hkd->bld", heads, self.W["o"]), weights


@right("four in one, (4, d_model, d_model)")
class _(Base):
    def build(self, d, h, d_k):
        self.W = nn.Parameter(torch.randn(4, d, d) * 0.2)

    def project(self, Q, K, V):
        return Q @ self.W[0], K @ self.W[1], V @ self.W[2]

    def output(self, x):
        return x @ self.W[3]


# ---------------------------------------------------------------- right: a partial class

right("a partial class")(functools.partial(mha.MultiHeadAttention, bias=True))
right("a partial class with its heads")(functools.partial(mha.MultiHeadAttention, num_heads=2))
right("a partial class with its width")(functools.partial(mha.MultiHeadAttention, 24))
right("a partial class with all sizes")(functools.partial(mha.MultiHeadAttention, 24, 3))


# ---------------------------------------------------------------- right: built layers

right("built, of its own size")(mha.MultiHeadAttention(24, 3))
right("built, with num_heads told", num_heads=2)(mha.MultiHeadAttention(20, 2))
right("built, in float16")(mha.MultiHeadAttention(24, 3).half())


def _through_torch(layer, Q, K, V, mask):
    blocked = None if mask is None else (mask == 0).expand(-1, layer.num_heads, -1, -1).flatten(0, 1)
    out, weights = layer(Q, K, V, attn_mask=blocked, average_attn_weights=False)
    if mask is None or not torch.isnan(out).any():
        return out, weights
    weights = weights.nan_to_num()
    v = F.linear(V, *(x.chunk(3)[2] for x in (layer.in_proj_weight, layer.in_proj_bias)))
    v = v.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
    return layer.out_proj((weights @ v).transpose(1, 2).flatten(2)), weights


right("nn.MultiheadAttention and how to call it", call=_through_torch)(
    nn.MultiheadAttention(20, 4, batch_first=True)
)
right("another order of arguments and how to call it", call=lambda m, Q, K, V, mask: m(mask, V, K, Q))(
    type("_", (Base,), {"forward": lambda self, mask, V, K, Q: Base.forward(self, Q, K, V, mask)})
)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_layer_passes_in_any_style(name):
    answer, how = RIGHT[name]
    torch.manual_seed(0)
    result = mark_layer(answer, **how)
    assert result.passed, result.message


# ---------------------------------------------------------------- wrong


def middle(name: str, *ids: str, base: type = Base, stage: str | None = None):
    """Enter a layer that is right but for the function decorated, which attends."""

    def enter(function):
        wrong(name, *ids, stage=stage)(type("_", (base,), {"attend": lambda self, *a: function(*a)}))
        return function

    return enter


def projecting(name: str, *ids: str, base: type = Base):
    def enter(function):
        wrong(name, *ids)(type("_", (base,), {"project": function}))
        return function

    return enter


class Fused(Base):
    order, layout = (0, 1, 2), "3hk"

    def build(self, d, h, d_k):
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)

    def project(self, Q, K, V):
        return [self.qkv(x).chunk(3, -1)[i] for x, i in zip((Q, K, V), self.order)]

    def output(self, x):
        return self.proj(x)


for _order, _id in {
    (1, 0, 2): "layer-queries-and-keys-exchanged",
    (0, 2, 1): "layer-projections-in-order-qvk",
    (2, 1, 0): "layer-projections-in-order-vkq",
    (1, 2, 0): "layer-projections-in-order-kvq",
    (2, 0, 1): "layer-projections-in-order-vqk",
}.items():
    wrong(f"fused, cut in the order {_order}", _id)(type("_", (Fused,), {"order": _order}))

wrong("fused, values by the keys' part", "layer-values-by-w_k")(type("_", (Fused,), {"order": (0, 1, 1)}))


@projecting("fused, only of Q", "layer-self-attention-only", base=Fused)
def _(self, Q, K, V):
    return self.qkv(Q).chunk(3, -1)


@wrong("fused, split into (d_k, h)", "split-interleaved")
class _(Fused):
    def split(self, x):
        return x.view(*x.shape[:2], self.d_k, self.num_heads).permute(0, 3, 1, 2)


@wrong("fused, viewed as (B, h, L, d_k)", "split-view-only")
class _(Fused):
    def split(self, x):
        return x.reshape(x.size(0), self.num_heads, x.size(1), self.d_k)


@wrong("fused, the merge without a transpose and no scale", "merge-no-transpose", "scale-missing")
class _(Fused):
    def attend(self, q, k, v, mask):
        return attend(q * self.d_k**0.5, k, v, mask)

    def merge(self, x):
        return x.reshape(x.size(0), x.size(2), -1)


@wrong("per head, joined in reverse order", "merge-heads-reversed")
class _(PerHead):
    def order(self, heads):
        return heads[::-1]


@wrong("per head, and no output projection", "layer-no-output-projection")
class _(PerHead):
    def forward(self, Q, K, V, mask=None):
        mask = None if mask is None else mask[:, 0]
        heads, weights = zip(*(self.one(i, Q, K, V, mask) for i in range(self.num_heads)))
        return torch.cat(heads, -1), torch.stack(weights, 1)


@wrong("per head, without the scale", "scale-missing")
class _(PerHead):
    def one(self, i, Q, K, V, mask):
        return attend(self.W_q[i](Q) * self.d_k**0.5, self.W_k[i](K), self.W_v[i](V), mask)


@wrong("per head, with the keys' projection of head 0 for all")
class _(PerHead):
    def one(self, i, Q, K, V, mask):
        return attend(self.W_q[i](Q), self.W_k[0](K), self.W_v[i](V), mask)


@wrong("parameters, the scale by d_model", "scale-by-d_model")
class _(parameters("de", "le", "d", "ed")):
    def forward(self, Q, K, V, mask=None):
        return super().forward(Q / self.num_heads**0.5, K, V, mask)


@wrong("unnamed, without the scale", "scale-missing")
class _(named("a", "b", "c", "d")):
    def attend(self, q, k, v, mask):
        return attend(q * self.d_k**0.5, k, v, mask)


@wrong("unnamed, the mask left out", "mask-ignored")
class _(named("a", "b", "c", "d", bias=True)):
    def attend(self, q, k, v, mask):
        return attend(q, k, v, None)


@projecting("values by W_q", "layer-values-by-w_q")
def _(self, Q, K, V):
    return self.W_q(Q), self.W_k(K), self.W_q(V)


@projecting("keys and values exchanged", "layer-keys-from-V", "layer-values-from-K")
def _(self, Q, K, V):
    return self.W_q(Q), self.W_k(V), self.W_v(K)


@projecting(
    "no projection of queries and values", "layer-queries-not-projected", "layer-values-not-projected"
)
def _(self, Q, K, V):
    return Q, self.W_k(K), V


@wrong("a residual and no scale", "layer-residual-added", "scale-missing")
class _(Base):
    def forward(self, Q, K, V, mask=None):
        heads, weights = attend(*map(self.split, self.project(Q * 5**0.5, K, V)), mask)
        return self.W_o(self.merge(heads)) + Q, weights


@wrong("values by W_k and no W_o", "layer-values-by-w_k", "layer-no-output-projection")
class _(Base):
    def project(self, Q, K, V):
        return self.W_q(Q), self.W_k(K), self.W_k(V)

    def output(self, x):
        return x


@wrong("output only, softmax over the queries", "softmax-over-queries")
class _(Base):
    def forward(self, Q, K, V, mask=None):
        q, k, v = map(self.split, self.project(Q, K, V))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-2)
        if mask is not None:
            weights = weights.masked_fill(mask == 0, 0)
        return self.W_o(self.merge(weights @ v))


@middle("F.scaled_dot_product_attention, the mask the wrong way round", "mask-inverted")
def _(q, k, v, mask):
    mask = None if mask is None else mask == 0
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask), attend(
        q, k, v, None if mask is None else mask
    )[1]


@wrong("F.scaled_dot_product_attention, always causal")
class _(Base):
    def forward(self, Q, K, V, mask=None):
        q, k, v = map(self.split, self.project(Q, K, V))
        return self.W_o(self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


@middle("a mask of 0 and 1 taken for one to be added", "mask-added")
def _(q, k, v, mask):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    weights = (scores if mask is None else scores + mask).softmax(-1)
    return weights @ v, weights


@middle("the mask of the first example for all")
def _(q, k, v, mask):
    return attend(q, k, v, None if mask is None else mask[:1])


@middle("the scale after the softmax")
def _(q, k, v, mask):
    heads, weights = attend(q * q.size(-1) ** 0.5, k, v, mask)
    return heads / q.size(-1) ** 0.5, weights / q.size(-1) ** 0.5


@middle("a bug beyond 6 keys only", stage="score")
def _(q, k, v, mask):
    return attend(q, k[:, :, :6], v[:, :, :6], None if mask is None else mask[..., :6])


@wrong("weights summed over the heads", "give-weights-summed")
class _(Base):
    def forward(self, *inputs):
        output, weights = super().forward(*inputs)
        return output, weights.sum(1)


@wrong("weights of the first head only", "give-weights-of-one-head")
class _(Base):
    def forward(self, *inputs):
        output, weights = super().forward(*inputs)
        return output, weights[:, 0]


for _id, _function in {
    "give-in-a-list": list,
    "give-nothing": lambda pair: None,
    "give-weights-only": lambda pair: pair[1],
    "give-exchanged": lambda pair: pair[::-1],
}.items():
    wrong(f"what comes back: {_id}", _id)(
        type("_", (Base,), {"forward": lambda self, *inputs, f=_function: f(Base.forward(self, *inputs))})
    )


# ---------------------------------------------------------------- wrong: behaviour


@wrong("keeps keys and values of earlier calls", "layer-keeps-state")
class _(Base):
    past = None

    def project(self, Q, K, V):
        q, k, v = super().project(Q, K, V)
        if self.past is not None and self.past.size(0) == k.size(0):
            k, v = torch.cat([self.past, k], 1), torch.cat([self.past, v], 1)
        self.past = k
        return q, k, v


@wrong("divides by the number of calls", "layer-keeps-state")
class _(Base):
    calls = 0

    def output(self, x):
        self.calls += 1
        return self.W_o(x) / self.calls


@wrong("keeps the first mask", "layer-keeps-state")
class _(Base):
    mask = None

    def attend(self, q, k, v, mask):
        if mask is not None and self.mask is None:
            self.mask = mask
        return attend(q, k, v, self.mask if mask is not None else None)


@wrong("changes Q in place", stage="side effects")
class _(Base):
    def forward(self, Q, K, V, mask=None):
        result = super().forward(Q, K, V, mask)
        Q.mul_(2)
        return result


@wrong("changes the mask in place", stage="side effects")
class _(Base):
    def forward(self, Q, K, V, mask=None):
        result = super().forward(Q, K, V, mask)
        if mask is not None:
            mask.fill_(1)
        return result


@wrong("raises in __init__", stage="init")
class _(Base):
    def __init__(self, d_model, num_heads):
        raise KeyError("no")


@wrong("super().__init__() forgotten", stage="init")
class _(nn.Module):
    def __init__(self, d_model, num_heads):
        self.W_q = nn.Linear(d_model, d_model)


@wrong("no forward", stage="signature")
class _(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))


@wrong("forward(x)", stage="signature")
class _(Base):
    def forward(self, x):
        return super().forward(x, x, x)


@wrong("forward without a mask", stage="signature")
class _(Base):
    def forward(self, Q, K, V):
        return super().forward(Q, K, V)


@wrong("no nn.Module", "layer-no-module", stage="signature")
class _:
    def __init__(self, d_model, num_heads):
        pass


@wrong("values, keys, query in this order", "layer-arguments-in-another-order")
class _(Base):
    def forward(self, values, keys, query, mask=None):
        return super().forward(query, keys, values, mask)


@wrong("requires_grad=False", "layer-weights-frozen")
class _(Base):
    def build(self, d, h, d_k):
        super().build(d, h, d_k)
        self.requires_grad_(False)


@wrong("scores detached", "layer-gradient-cut")
class _(Base):
    def attend(self, q, k, v, mask):
        return attend(q.detach(), k.detach(), v, mask)


@wrong("no_grad", "layer-gradient-cut")
class _(Base):
    @torch.no_grad()
    def forward(self, *inputs):
        return super().forward(*inputs)


@wrong("writes over what the gradient needs", "layer-gradient-cut")
class _(Base):
    def attend(self, q, k, v, mask):
        heads, weights = attend(q, k, v, mask)
        weights += 0
        return heads, weights


@wrong("endless recursion")
class _(Base):
    def forward(self, Q, K, V, mask=None):
        return self(Q, K, V, mask)


@wrong("changes the default dtype in __init__", stage="side effects")
class _(Base):
    def build(self, d, h, d_k):
        super().build(d, h, d_k)
        torch.set_default_dtype(torch.float64)


@wrong("changes the default dtype in forward", stage="side effects")
class _(Base):
    def forward(self, *inputs):
        torch.set_default_dtype(torch.float64)
        return super().forward(*inputs)


@wrong("seeds in __init__", stage="side effects")
class _(Base):
    def build(self, d, h, d_k):
        torch.manual_seed(42)
        super().build(d, h, d_k)


@wrong("seeds in forward", stage="side effects")
class _(Base):
    def forward(self, *inputs):
        torch.manual_seed(42)
        return super().forward(*inputs)


@wrong("exits", stage="project")
class _(Base):
    def forward(self, *inputs):
        raise SystemExit(0)


@wrong("W_q and W_k are one", "layer-keys-by-w_q")
class _(Base):
    def build(self, d, h, d_k):
        super().build(d, h, d_k)
        self.W_k = self.W_q


@wrong("weights drawn anew in each call")
class _(Base):
    def forward(self, *inputs):
        for parameter in self.parameters():
            nn.init.normal_(parameter)
        return super().forward(*inputs)


for _how, _function in {
    "sparse": Tensor.to_sparse,
    "on meta": lambda x: x.to("meta"),
    "numpy": Tensor.numpy,
}.items():
    wrong(f"what comes back: {_how}")(
        type(
            "_",
            (Base,),
            {"forward": lambda self, *i, f=_function: tuple(f(x.detach()) for x in Base.forward(self, *i))},
        )
    )


for _id, _drop in {
    "layer-dropout-in-eval": lambda self, w: F.dropout(w, self.p),
    "layer-dropout-missing": lambda self, w: w,
    "layer-dropout-not-as-asked": lambda self, w: F.dropout(w, 0.1, self.training),
    "layer-dropout-not-rescaled": lambda self, w: w * (torch.rand_like(w) >= self.p) if self.training else w,
}.items():
    wrong(f"dropout: {_id}", _id)(type("_", (Dropping,), {"drop": _drop}))


@wrong("dropout before the softmax", "layer-dropout-before-softmax")
class _(Dropping):
    def attend(self, q, k, v, mask):
        scores = self.drop(q @ k.transpose(-2, -1) / math.sqrt(self.d_k))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -torch.inf)
        weights = scores.softmax(-1).nan_to_num()
        return weights @ v, weights


@wrong("dropout of 0.1 in eval that nobody can set", "layer-dropout-in-eval")
class _(Base):
    def output(self, x):
        return F.dropout(self.W_o(x), 0.1)


@pytest.mark.no_cover
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_layer_is_caught_and_named_where_it_can_be(name):
    answer, ids, stage = WRONG[name]
    torch.manual_seed(0)
    result = mark_layer(answer)
    assert not result.passed
    assert ids <= {entry.id for entry in result.mistakes}, result.message
    assert stage in (None, result.stage)
    assert result.message.startswith("multi_head_attention: ")


# ---------------------------------------------------------------- wrong: too few weights


@wrong("one layer under three names", "layer-one-projection-for-all")
class _(Base):
    def build(self, d, h, d_k):
        super().build(d, h, d_k)
        self.W_k = self.W_v = self.W_q


@wrong("no W_v", "layer-values-not-projected")
class _(Base):
    def build(self, d, h, d_k):
        super().build(d, h, d_k)
        self.W_v = nn.Identity()


@wrong("one layer in the place of h", "layer-same-head-for-all")
class _(PerHead):
    def build(self, d, h, d_k):
        for name in "qkv":
            setattr(self, f"W_{name}", nn.ModuleList([nn.Linear(d, d_k)] * h))
        self.W_o = nn.Linear(d, d)


@wrong("one small W_o for each head", "layer-output-shared-by-heads")
class _(Base):
    def build(self, d, h, d_k):
        super().build(d, h, d_k)
        self.W_o = nn.Linear(d_k, d, bias=False)

    def output(self, x):
        return self.W_o(x.unflatten(-1, (self.num_heads, -1))).sum(2)


@wrong("numbers of one head only", "layer-projects-to-one-head")
class _(Base):
    def build(self, d, h, d_k):
        self.W_q, self.W_k, self.W_v = (nn.Linear(d, d_k) for _ in range(3))
        self.W_o = nn.Linear(d_k, d)


@wrong("weights that are no parameters", "layer-weights-not-parameters")
class _(Base):
    def build(self, d, h, d_k):
        self.W_q, self.W_k, self.W_v, self.W_o = torch.randn(4, d, d)

    def project(self, Q, K, V):
        return tuple(x @ W.to(x) for x, W in zip((Q, K, V), (self.W_q, self.W_k, self.W_v)))

    def output(self, x):
        return x @ self.W_o.to(x)


@wrong("layers made in forward", "layer-made-in-forward")
class _(Base):
    def build(self, d, h, d_k):
        self.d = d

    def project(self, *inputs):
        return tuple(nn.Linear(self.d, self.d).to(x)(x) for x in inputs)

    def output(self, x):
        return nn.Linear(self.d, self.d).to(x)(x)


# ---------------------------------------------------------------- wrong: batch and heads in one axis


class Folded(Base):
    def attend(self, q, k, v, mask):
        B, h, Lq, d_k = q.shape
        if mask is not None:
            mask = self.repeat(mask.expand(B, 1, Lq, k.size(2))[:, 0], h)
        heads, weights = attend(*(x.reshape(B * h, -1, d_k) for x in (q, k, v)), mask)
        return self.unfold(heads, B, h), weights.view(B, h, *weights.shape[1:])

    def repeat(self, mask, h):
        return mask.repeat_interleave(h, 0)

    def unfold(self, x, B, h):
        return x.view(B, h, *x.shape[1:])


right("batch and heads in one axis")(Folded)
wrong("masks repeated head by head", "mask-repeated-in-the-wrong-order")(
    type("_", (Folded,), {"repeat": lambda self, mask, h: mask.repeat(h, 1, 1)})
)
wrong("unfolded as (h, B)", "merge-unfolded-heads-first")(
    type("_", (Folded,), {"unfold": lambda self, x, B, h: x.view(h, B, *x.shape[1:]).transpose(0, 1)})
)


@wrong("any mask means causal", "mask-any-means-causal")
class _(Base):
    def attend(self, q, k, v, mask):
        if mask is not None:
            mask = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril()
        return attend(q, k, v, mask)


# ---------------------------------------------------------------- wrong: in one mode or dtype only


@wrong("no mask in training", "layer-differs-in-training")
class _(Dropping):
    def attend(self, q, k, v, mask):
        return super().attend(q, k, v, None if self.training else mask)


@wrong("no mask where dropout acts", "layer-mask-lost-in-training")
class _(Dropping):
    def attend(self, q, k, v, mask):
        return super().attend(q, k, v, None if self.training and self.p else mask)


for _id, _masked in {
    "mask-half-overflow": lambda scores, mask: scores.masked_fill(mask == 0, -1e9),
    "layer-mask-in-float32": lambda scores, mask: (
        scores + torch.zeros(mask.shape).masked_fill(mask == 0, -torch.inf)
    ),
}.items():

    def _attend(self, q, k, v, mask, masked=_masked):
        scores = q @ k.mT / math.sqrt(self.d_k)
        weights = (scores if mask is None else masked(scores, mask)).softmax(-1).nan_to_num()
        weights = weights if mask is None else weights * (mask != 0)
        return weights @ v, weights

    wrong(f"in half precision: {_id}", _id)(type("_", (Base,), {"attend": _attend}))


# ---------------------------------------------------------------- wrong: cannot be made


@wrong("super().__init__() is missing", "error-module-init-missing", stage="init")
class _(nn.Module):
    def __init__(self, d_model, num_heads):
        self.W_q = nn.Linear(d_model, d_model)


@wrong("a float for a size", "error-float-as-size", stage="init")
class _(Base):
    def build(self, d, h, d_k):
        self.W_q = nn.Linear(d, h * (d / h))


@wrong("sets a seed", "layer-seeded")
class _(Base):
    def build(self, d, h, d_k):
        torch.manual_seed(0)
        super().build(d, h, d_k)


@pytest.mark.no_cover
def test_every_entry_of_a_layer_is_named():
    torch.manual_seed(0)
    layer = mha.MultiHeadAttention(20, 4, bias=True).double()
    probes, w = with_large_masked(layer_probes(20)), next(find_projections(layer, 20, 4))
    exercise = Reading(w).exercise(probes)
    for entry in mistakes_of(LAYER):
        if entry.id != "mask-half-overflow":  # half precision under a mask is looked at by itself
            assert entry in judge(exercise, entry).mistakes, entry.id


# ---------------------------------------------------------------- what is said, and what is left behind


def test_a_built_layer_is_left_as_it_was():
    layer = mha.MultiHeadAttention(24, 3, dropout=0.5).half().train()
    before = {name: x.clone() for name, x in layer.state_dict().items()}
    data = [parameter.data_ptr() for parameter in layer.parameters()]
    assert mark_layer(layer).passed
    assert layer.training and layer.dropout.training
    assert [parameter.data_ptr() for parameter in layer.parameters()] == data
    assert all(parameter.grad is None for parameter in layer.parameters())
    for name, x in layer.state_dict().items():
        assert x.dtype == torch.float16 and torch.equal(x, before[name])


def test_a_built_layer_that_changes_its_weights_gets_them_back():
    layer = WRONG["weights drawn anew in each call"][0](20, 4)
    before = layer.W_q.weight.detach().clone()
    assert not mark_layer(layer).passed
    assert torch.equal(layer.W_q.weight, before)


def test_marking_a_class_leaves_the_random_state_alone():
    state = torch.get_rng_state()
    assert mark_layer(mha.MultiHeadAttention).passed
    assert mark_layer(Dropping).passed
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "name, remark",
    [
        ("biases", "Its projections have biases"),
        ("output only", "returns the output only"),
        ("weights given as None", "returns the output only"),
        ("prints", "It prints while it runs"),
        (
            "the scale as a tensor of float32, which half precision does not meet",
            "In half precision it raises",
        ),
    ],
)
def test_a_right_layer_is_told_kindly_what_it_does_otherwise(name, remark):
    assert remark in mark_layer(RIGHT[name][0]).message


def test_a_plain_layer_gets_no_remark():
    assert mark_layer(Base).message == "multi_head_attention: passed."


def test_a_layer_of_torch_is_called_as_torch_has_it():
    result = mark_layer(nn.MultiheadAttention(20, 4))
    # It is right but for what it does with a query that may look at nothing.
    assert [entry.id for entry in result.mistakes] == ["mask-empty-row-nan"]


def test_a_layer_that_does_not_tell_its_heads_is_asked_for_them():
    layer = mha.MultiHeadAttention(20, 4)
    del layer.num_heads
    assert "num_heads=…" in mark_layer(layer).message
    assert mark_layer(mha.MultiHeadAttention(20, 4), num_heads=3).stage == "signature"


def test_an_error_in_a_layer_is_shown_with_its_own_line():
    assert "raise SystemExit(0)" in mark_layer(WRONG["exits"][0]).message
    assert 'raise KeyError("no")' in mark_layer(WRONG["raises in __init__"][0]).message


def test_a_wrong_signature_is_explained():
    assert "it has to be forward(self, Q, K, V, mask=None)" in mark_layer(WRONG["forward(x)"][0]).message
    assert "it has no method forward" in mark_layer(WRONG["no forward"][0]).message


def test_a_backward_pass_that_raises_is_told():
    message = mark_layer(WRONG["writes over what the gradient needs"][0]).message
    assert "its backward pass raises RuntimeError" in message


def _fails(*arguments, **keywords):
    raise RuntimeError("not like this")


@pytest.mark.parametrize("method", ["parameters", "named_modules", "eval", "to", "train", "extra_repr"])
def test_a_layer_whose_other_methods_fail_gets_a_verdict(method):
    result = mark_layer(type("_", (Base,), {method: _fails}))
    assert result.passed == (method == "extra_repr")
    assert result.passed or 'raise RuntimeError("not like this")' in result.message


def test_a_layer_that_fails_in_training_only_gets_a_verdict():
    def drop(self, weights):
        return _fails() if self.training else weights

    result = mark_layer(type("_", (Dropping,), {"drop": drop}))
    assert not result.passed and "not like this" in result.message


@pytest.mark.parametrize("num_heads", [0, -4, 3])
def test_a_number_of_heads_that_cannot_be_is_refused(num_heads):
    result = mark_layer(mha.MultiHeadAttention(20, 4), num_heads=num_heads)
    assert result.stage == "signature" and f"num_heads={num_heads}" in result.message


def test_a_result_that_cannot_be_compared_is_not_taken_for_one_that_changes():
    result = mark_layer(type("_", (Base,), {"forward": lambda self, *inputs: (x for x in inputs)}))
    assert [entry.id for entry in result.mistakes] == ["result-of-another-kind"]
