"""An attention as engineers really have it, given as it is: right ones pass, and what is wrong is named.

Each style is written here in the manner of a well-known library. `slip` says what is put in wrongly.
"""

# ruff: noqa: N801

import inspect
import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mha
from mha.check import CATALOGUE
from mha.check.layers.marking import mark_layer

STYLES: dict[str, tuple[Callable, dict]] = {}  # name: what makes the answer with a slip, how to mark it
SLIPS: list[tuple[str, str, set[str]]] = []  # style, slip, the mistakes that have to be named


def style(name: str, slips: dict[str, set[str]], **how) -> Callable:
    """Enter a style: `slips` are the wrong variants and what they have to be named; `how` is for marking."""

    def enter(made: Callable) -> Callable:
        STYLES[name] = (made, how)
        SLIPS.extend((name, slip, ids) for slip, ids in slips.items())
        return made

    return enter


class Slipping(nn.Module):
    """A layer with something put in wrongly."""

    def __init__(self, slip: str = ""):
        super().__init__()
        self.slip = slip


def additive(layer, Q, K, V, mask):
    if mask is None:
        return layer(Q)
    return layer(Q, torch.zeros(mask.shape, dtype=Q.dtype).masked_fill(mask == 0, torch.finfo(Q.dtype).min))


# ---------------------------------------------------------------- self-attention only


@style(
    "BERT: query, key, value, no output projection",
    {
        "no scale": {"scale-missing"},
        "query for key": {"layer-keys-by-w_q"},
        "softmax dim": {"softmax-over-queries"},
    },
)
class _(Slipping):
    def __init__(self, slip=""):
        super().__init__(slip)
        self.num_attention_heads, self.attention_head_size, self.all_head_size = 3, 10, 30
        self.query, self.key, self.value = (nn.Linear(30, 30) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def transpose_for_scores(self, x):
        return x.view(*x.shape[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None, head_mask=None, output_attentions=False):
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores((self.query if "query" in self.slip else self.key)(hidden_states))
        scores = q @ k.transpose(-1, -2)
        if self.slip != "no scale":
            scores = scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask == 0, torch.finfo(scores.dtype).min)
        probs = self.dropout(scores.softmax(-2 if self.slip == "softmax dim" else -1))
        if attention_mask is not None:
            probs = probs * (attention_mask != 0)
        context = probs @ self.transpose_for_scores(self.value(hidden_states))
        context = context.permute(0, 2, 1, 3).contiguous()
        return (context.view(*context.shape[:-2], self.all_head_size),)


class BertAdditive(nn.Module):
    """As BERT has it: the mask is added, and comes as 0 and the lowest number."""

    def __init__(self, config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.query, self.key, self.value, self.dense = (
            nn.Linear(config.hidden_size, config.hidden_size) for _ in range(4)
        )
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (
            layer(hidden_states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.mT / q.size(-1) ** 0.5
        if attention_mask is not None:
            scores = scores + attention_mask
        return self.dense((self.dropout(scores.softmax(-1)) @ v).transpose(1, 2).flatten(2))


class CausalSelfAttention(Slipping):
    """As in nanoGPT: a config, one c_attn, a buffer of ones below the diagonal."""

    def __init__(self, config, slip=""):
        super().__init__(slip)
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout, self.resid_dropout = nn.Dropout(config.dropout), nn.Dropout(config.dropout)
        self.n_head, self.n_embd = config.n_head, config.n_embd
        ones = torch.ones(config.block_size, config.block_size)
        self.register_buffer("bias", torch.tril(ones).view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        if self.slip == "view":
            q, k, v = (y.reshape(B, self.n_head, T, C // self.n_head) for y in (q, k, v))
        else:
            q, k, v = (y.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for y in (q, k, v))
        att = q @ k.transpose(-2, -1) / math.sqrt(C if self.slip == "d_model" else k.size(-1))
        seen = self.bias[:, :, :T, :T]
        if self.slip == "turned":
            seen = seen.mT
        blocked = seen != 0 if self.slip == "upside down" else seen == 0
        if self.slip not in ("after", "none"):
            att = att.masked_fill(blocked, 0.0 if self.slip == "zero" else float("-inf"))
        att = F.softmax(att, dim=-2 if self.slip == "dim" else -1)
        y = self.attn_dropout(att * seen if self.slip == "after" else att) @ v
        y = y if self.slip == "merge" else y.transpose(1, 2)
        return self.resid_dropout(self.c_proj(y.contiguous().view(B, T, C)))


GPT = SimpleNamespace(n_embd=30, n_head=3, dropout=0.1, bias=True, block_size=16)
style(
    "nanoGPT, built",
    {
        "view": {"split-view-only"},
        "turned": {"mask-transposed"},
        "upside down": {"mask-inverted-nan"},
        "zero": {"mask-fill-zero"},
        "after": {"mask-after-softmax"},
        "dim": {"softmax-over-queries"},
        "d_model": {"scale-by-d_model"},
        "merge": {"merge-no-transpose"},
    },
)(lambda slip="": CausalSelfAttention(GPT, slip))
style("nanoGPT, as a class", {"merge": {"merge-no-transpose"}})(
    lambda slip="": type(
        "_",
        (CausalSelfAttention,),
        {"__init__": lambda self, config: CausalSelfAttention.__init__(self, config, slip)},
    )
)


@style(
    "timm: one qkv, (3, B, h, N, d_k)",
    {
        "order": {"layer-projections-in-order-qvk"},
        "no proj": {"layer-no-output-projection"},
        "(h, N) exchanged": {"split-view-only"},
    },
)
class _(Slipping):
    def __init__(self, slip="", dim=30, num_heads=3, qkv_bias=True):
        super().__init__(slip)
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.scale = self.head_dim**-0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3, bias=qkv_bias), nn.Linear(dim, dim)
        self.q_norm, self.k_norm, self.attn_drop = nn.Identity(), nn.Identity(), nn.Dropout(0.0)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x)
        if "exchanged" in self.slip:
            qkv = torch.stack([y.reshape(B, self.num_heads, N, self.head_dim) for y in qkv.chunk(3, -1)])
        else:
            qkv = qkv.reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.slip == "order":
            k, v = v, k
        attn = ((self.q_norm(q) * self.scale) @ self.k_norm(k).transpose(-2, -1)).softmax(dim=-1)
        x = (self.attn_drop(attn) @ v).transpose(1, 2).reshape(B, N, C)
        return x if self.slip == "no proj" else self.proj(x)


@style(
    "GPT-NeoX and BLOOM: head by head, (h, 3, d_k)",
    {"no scale": {"scale-missing"}, "causal + 1": {"layer-causal-sees-next"}},
)
class _(Slipping):
    def __init__(self, slip=""):
        super().__init__(slip)
        self.num_attention_heads = 3
        self.query_key_value, self.dense = nn.Linear(30, 90), nn.Linear(30, 30)

    def forward(self, hidden_states):
        fused = self.query_key_value(hidden_states).unflatten(-1, (3, 3 * 10)).transpose(1, 2)
        q, k, v = fused.chunk(3, dim=-1)
        L = q.size(2)
        keep = torch.ones(L, L, dtype=torch.bool).tril(int(self.slip == "causal + 1"))
        if self.slip == "no scale":
            q = q * 10**0.5
        return self.dense(F.scaled_dot_product_attention(q, k, v, attn_mask=keep).transpose(1, 2).flatten(2))


class FromScratch(nn.Module):
    """As books have it: (d_in, d_out, context_length, dropout, num_heads), causal."""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        if d_out % num_heads:
            raise ValueError("d_out must be divisible by num_heads")
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.W_query, self.W_key, self.W_value = (nn.Linear(d_in, d_out, bias=qkv_bias) for _ in range(3))
        self.out_proj, self.dropout = nn.Linear(d_out, d_out), nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, n, _ = x.shape
        k, q, v = (
            W(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
            for W in (self.W_key, self.W_query, self.W_value)
        )
        scores = (q @ k.transpose(2, 3)).masked_fill(self.mask.bool()[:n, :n], -torch.inf)
        weights = self.dropout(torch.softmax(scores / k.shape[-1] ** 0.5, dim=-1))
        return self.out_proj((weights @ v).transpose(1, 2).contiguous().view(b, n, self.d_out))


style("from a book, built", {})(lambda slip="": FromScratch(30, 30, 32, 0.1, 3))


# ---------------------------------------------------------------- with keys and values of their own


@style(
    "x-transformers: to_q, to_kv, einsum",
    {
        "kv order": {"layer-projections-in-order-qvk"},
        "interleaved": {"split-interleaved"},
        "blocked": {"mask-inverted"},
    },
)
class _(Slipping):
    def __init__(self, slip="", dim=30, heads=3):
        super().__init__(slip)
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_q, self.to_kv = nn.Linear(dim, dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(0.0))

    def forward(self, x, context, context_v, mask=None):
        k, v = self.to_kv(context).chunk(2, dim=-1)[0], self.to_kv(context_v).chunk(2, dim=-1)[1]
        if self.slip == "kv order":
            k, v = self.to_kv(context).chunk(2, dim=-1)[1], self.to_kv(context_v).chunk(2, dim=-1)[0]
        if self.slip == "interleaved":
            q, k, v = (y.unflatten(-1, (-1, self.heads)).permute(0, 3, 1, 2) for y in (self.to_q(x), k, v))
        else:
            q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.to_q(x), k, v))
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        if mask is not None:
            mask = (mask == 0) if self.slip == "blocked" else mask.bool()
            dots = dots.masked_fill(~mask, -torch.finfo(dots.dtype).max)
        attn = dots.softmax(dim=-1)
        if mask is not None:
            attn = attn.masked_fill(~mask, 0.0)
        return self.to_out(torch.einsum("bhij,bhjd->bhid", attn, v).transpose(1, 2).flatten(2))


@style(
    "Annotated Transformer: four clones",
    {"self.d_k ** 1": {"scale-by-d_k"}, "zip of two": {"layer-values-by-w_k"}, "nan": {"mask-empty-row-nan"}},
)
class _(Slipping):
    def __init__(self, slip="", h=3, d_model=30):
        super().__init__(slip)
        self.d_k, self.h, self.attn = d_model // h, h, None
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])

    def forward(self, query, key, value, mask=None):
        order = (0, 1, 1) if self.slip == "zip of two" else (0, 1, 2)
        query, key, value = (
            self.linears[i](x).view(x.size(0), -1, self.h, self.d_k).transpose(1, 2)
            for i, x in zip(order, (query, key, value))
        )
        scores = query @ key.transpose(-2, -1) / (self.d_k if "d_k" in self.slip else self.d_k**0.5)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -math.inf)
        self.attn = scores.softmax(-1) if self.slip == "nan" else scores.softmax(-1).nan_to_num()
        x = (self.attn @ value).transpose(1, 2).contiguous().view(query.size(0), -1, self.h * self.d_k)
        return self.linears[-1](x)


@style(
    "Keras: kernels of (d_model, h, d_k)",
    {"scores bqkh": {"softmax-over-heads"}, "value by key": {"layer-values-by-w_k"}},
)
class _(Slipping):
    def __init__(self, slip="", dim=30, num_heads=3):
        super().__init__(slip)
        self.num_heads, self.key_dim = num_heads, dim // num_heads
        for name in ("query", "key", "value"):
            setattr(self, f"{name}_kernel", nn.Parameter(torch.randn(dim, num_heads, self.key_dim) * 0.2))
            setattr(self, f"{name}_bias", nn.Parameter(torch.randn(num_heads, self.key_dim)))
        self.output_kernel = nn.Parameter(torch.randn(num_heads, self.key_dim, dim) * 0.2)
        self.output_bias = nn.Parameter(torch.randn(dim))

    def forward(self, query, key, value, mask=None):
        of_value = "key" if self.slip == "value by key" else "value"
        q, k, v = (
            torch.einsum("abc,cde->abde", x, getattr(self, f"{name}_kernel")) + getattr(self, f"{name}_bias")
            for name, x in (("query", query), ("key", key), (of_value, value))
        )
        scores = torch.einsum("aecd,abcd->acbe", k, q * self.key_dim**-0.5)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        weights = scores.softmax(1 if self.slip == "scores bqkh" else -1)
        if mask is not None:
            weights = weights.masked_fill(mask == 0, 0)
        return (
            torch.einsum("acbe,aecd->abcd", weights, v).flatten(2) @ self.output_kernel.flatten(0, 1)
            + self.output_bias
        )


class Fairseq(Slipping):
    """As in fairseq: (L, B, d_model), heads folded into the batch, True in a mask forbids."""

    def __init__(self, slip="", embed_dim=30, num_heads=3):
        super().__init__(slip)
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (
            nn.Linear(embed_dim, embed_dim) for _ in range(4)
        )

    def forward(self, query, key, value, attn_mask=None):
        tgt_len, bsz, embed_dim = query.size()
        q = self.q_proj(query) * (1 if self.slip == "no scaling" else self.scaling)
        q, k, v = (
            x.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
            for x in (q, self.k_proj(key), self.v_proj(value))
        )
        scores = torch.bmm(q, k.transpose(1, 2)).view(bsz, self.num_heads, tgt_len, -1)
        if attn_mask is not None and self.slip != "mask lost":
            scores = scores.masked_fill(attn_mask, float("-inf"))
        weights = scores.softmax(-1).nan_to_num().flatten(0, 1)
        attn = torch.bmm(weights, v)
        if self.slip != "merge":
            attn = attn.transpose(0, 1)
        return self.out_proj(attn.contiguous().view(tgt_len, bsz, embed_dim)), weights.unflatten(
            0, (bsz, self.num_heads)
        )


def length_first(layer, Q, K, V, mask):
    output, weights = layer(*(x.transpose(0, 1) for x in (Q, K, V)), None if mask is None else mask == 0)
    return output.transpose(0, 1), weights


style(
    "fairseq and how to call it",
    {"no scaling": {"scale-missing"}, "mask lost": {"mask-ignored"}},
    call=length_first,
)(Fairseq)


@style(
    "a user of F.multi_head_attention_forward",
    {"inverted": {"mask-inverted-nan"}, "order": {"layer-queries-and-keys-exchanged"}},
)
class _(Slipping):
    def __init__(self, slip="", dim=30, num_heads=3):
        super().__init__(slip)
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.randn(3 * dim, dim) * 0.2)
        self.in_proj_bias = nn.Parameter(torch.randn(3 * dim))
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, Q, K, V, mask=None):
        blocked = None
        if mask is not None:
            size = (Q.size(0), self.num_heads, Q.size(1), K.size(1))
            blocked = (mask != 0 if self.slip == "inverted" else mask == 0).expand(size).flatten(0, 1)
            if self.slip != "inverted":
                empty = blocked.all(-1, keepdim=True)
                blocked = blocked & ~empty
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if self.slip == "order":
            weight, bias = (torch.cat([x.chunk(3)[i] for i in (1, 0, 2)]) for x in (weight, bias))
        output, weights = F.multi_head_attention_forward(
            *(x.transpose(0, 1) for x in (Q, K, V)),
            Q.size(-1),
            self.num_heads,
            weight,
            bias,
            None,
            None,
            False,
            0.0,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.training,
            attn_mask=blocked,
            average_attn_weights=False,
        )
        output = output.transpose(0, 1)
        if blocked is not None and self.slip != "inverted" and empty.any():
            weights = weights.masked_fill(empty.view(*weights.shape[:3], 1), 0)
            v = F.linear(V, *(x.chunk(3)[2] for x in (self.in_proj_weight, self.in_proj_bias)))
            v = v.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            output = self.out_proj((weights @ v).transpose(1, 2).flatten(2))
        return output, weights


@pytest.mark.parametrize("name", STYLES)
def test_a_right_layer_passes_in_the_style_of_a_library(name):
    made, how = STYLES[name]
    torch.manual_seed(0)
    result = mark_layer(made(), **how)
    assert result.passed, result.message


@pytest.mark.parametrize("name, slip, ids", SLIPS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_wrong_layer_is_named_in_the_style_of_a_library(name, slip, ids):
    made, how = STYLES[name]
    torch.manual_seed(0)
    result = mark_layer(made(slip), **how)
    assert not result.passed
    assert ids <= {entry.id for entry in result.mistakes}, result.message


# ---------------------------------------------------------------- how it is given


def test_a_class_made_with_a_config_is_made():
    for answer in (CausalSelfAttention, FromScratch):
        result = mark_layer(answer)
        assert result.passed and "It is causal without being asked" in result.message


def test_a_causal_mask_that_is_left_out_leaves_a_right_layer_and_is_not_claimed():
    result = mark_layer(CausalSelfAttention(GPT, "none"))
    assert result.passed and "causal" not in result.message


def test_a_width_that_is_no_multiple_is_no_mistake_where_the_layer_refuses_it_when_called():
    class Late(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.n_head, self.qkv = config.n_head, nn.Linear(config.n_embd, 3 * config.n_embd)
            self.proj = nn.Linear(config.n_embd, config.n_embd)

        def forward(self, x):
            q, k, v = (mha.split_heads(y, self.n_head) for y in self.qkv(x).chunk(3, -1))
            return self.proj(mha.merge_heads(mha.scaled_dot_product_attention(q, k, v)[0]))

    assert mark_layer(Late).passed


def test_a_config_is_answered_by_item_as_well_and_says_what_it_does_not_know():
    class ByItem(FromScratch):
        def __init__(self, cfg):
            super().__init__(
                cfg["emb_dim"], cfg["emb_dim"], cfg["context_length"], cfg["drop_rate"], cfg["n_heads"]
            )

    class Odd(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.a = nn.Linear(config.moons, 3)

    assert mark_layer(ByItem).passed
    message = mark_layer(Odd).message
    assert "does not know 'moons'" in message and "check.multi_head_attention(Odd(…))" in message


def test_dropout_that_a_config_asks_for_is_looked_at():
    class Always(CausalSelfAttention):
        def __init__(self, config):
            super().__init__(config)
            self.p = config.dropout

        def forward(self, x):
            return F.dropout(super().forward(x), self.p)

    assert [entry.id for entry in mark_layer(Always).mistakes] == ["layer-dropout-in-eval"]


def test_a_class_as_the_exercise_wants_it_is_told_that_one_input_is_too_few():
    class Alone(mha.MultiHeadAttention):
        def forward(self, x):
            return super().forward(x, x, x)

    class Unscaled(Alone):
        def forward(self, x):
            return mha.MultiHeadAttention.forward(self, x * 5**0.5, x, x)

    result = mark_layer(Alone)
    assert not result.passed and result.stage == "signature"
    assert (
        "forward(self, Q, K, V, mask=None)" in result.message and "self-attention: passed" in result.message
    )
    assert mark_layer(Alone(20, 4)).passed
    assert [entry.id for entry in mark_layer(Unscaled).mistakes] == ["scale-missing"]


def test_a_layer_that_takes_a_mask_and_is_causal_all_the_same_is_named():
    class Always(BertAdditive):
        def forward(self, x, mask=None):
            q, k, v = (
                layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                for layer in (self.query, self.key, self.value)
            )
            seen = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
            seen = seen if mask is None else seen & mask.bool()
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            return self.dense(out.transpose(1, 2).flatten(2))

    config = SimpleNamespace(num_attention_heads=3, hidden_size=30, attention_probs_dropout_prob=0.1)
    assert {entry.id for entry in mark_layer(Always(config)).mistakes} >= {"layer-always-causal"}


def test_one_input_for_keys_and_values_is_enough():
    class Context(mha.MultiHeadAttention):
        def forward(self, x, context=None, mask=None):
            context = x if context is None else context
            return super().forward(x, context, context, mask)

    class Unscaled(Context):
        def forward(self, x, context=None, mask=None):
            return mha.MultiHeadAttention.forward(self, x * 10**0.5, context, context, mask)

    assert mark_layer(Context(30, 3)).passed
    assert [entry.id for entry in mark_layer(Unscaled(30, 3)).mistakes] == ["scale-missing"]


def test_how_to_call_it_leads_to_a_comparison_under_an_added_mask():
    config = SimpleNamespace(num_attention_heads=3, hidden_size=30, attention_probs_dropout_prob=0.1)
    torch.manual_seed(0)
    result = mark_layer(BertAdditive(config))
    assert "mask-added" in {entry.id for entry in result.mistakes}
    assert "If it wants a mask of 0 and -inf to be added, say so in call=…" in result.message
    # The lowest number added hides what it should, but for a row of nothing else.
    assert "mask-empty-row-uniform" in {
        entry.id for entry in mark_layer(BertAdditive(config), additive).mistakes
    }


def test_a_large_number_added_leaves_a_row_with_nothing_to_see_as_without_a_mask():
    config = SimpleNamespace(num_attention_heads=3, hidden_size=30, attention_probs_dropout_prob=0.1)

    def call(layer, Q, K, V, mask):
        return layer(Q) if mask is None else layer(Q, (mask == 0) * -1e9)

    ids = {entry.id for entry in mark_layer(BertAdditive(config), call).mistakes}
    assert "mask-large-number-added" in ids


def test_a_layer_that_hands_its_mask_to_torch_may_want_bool():
    class Handing(mha.MultiHeadAttention):
        def forward(self, x, attn_mask=None):
            q, k, v = (mha.split_heads(W(x), 3) for W in (self.W_q, self.W_k, self.W_v))
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
            return self.W_o(mha.merge_heads(heads))

    result = mark_layer(Handing(24, 3))
    assert result.passed and "It wants a mask of bool" in result.message


def test_three_things_that_come_back_are_asked_about():
    class Three(mha.MultiHeadAttention):
        def forward(self, Q, K, V, mask=None):
            output, weights = super().forward(Q, K, V, mask)
            return output, weights.sum(), weights

    assert "It returns 3 things: call=… can pick" in mark_layer(Three(24, 3)).message
    assert mark_layer(Three(24, 3), lambda layer, *given: layer(*given)[::2]).passed


def test_a_layer_that_takes_the_length_first_is_named():
    assert [entry.id for entry in mark_layer(Fairseq()).mistakes] == ["layer-length-first"]


def test_a_layer_that_adds_an_axis_to_its_mask_is_named():
    class Adding(mha.MultiHeadAttention):
        def forward(self, Q, K, V, mask=None):
            return super().forward(Q, K, V, None if mask is None else mask.unsqueeze(1))

    assert [entry.id for entry in mark_layer(Adding).mistakes] == ["layer-mask-of-three-axes"]
    assert mark_layer(
        Adding, lambda layer, Q, K, V, mask: layer(Q, K, V, None if mask is None else mask[:, 0])
    ).passed


@pytest.mark.parametrize("batch_first", [False, True])
def test_torchs_own_layer_is_told_what_it_does_with_nothing_to_see(batch_first):
    class Same(nn.MultiheadAttention):
        pass

    for layer in (nn.MultiheadAttention, Same(32, 4, batch_first=batch_first)):
        result = mark_layer(layer)
        assert [entry.id for entry in result.mistakes] == ["mask-empty-row-nan"]
        assert "All else is right. nn.MultiheadAttention gives NaN there" in result.message
    assert "add_zero_attn=True" in mark_layer(nn.MultiheadAttention(32, 4, add_zero_attn=True)).message


# ---------------------------------------------------------------- several in one


ROWS = {  # where the row of role r, head h, number i stands in three projections in one
    "(3, h, d_k)": "rhi",
    "(h, 3, d_k)": "hri",
    "(h, d_k, 3)": "hir",
    "(d_k, 3, h)": "irh",
}


class Cut(nn.Module):
    def __init__(self, name: str, rows: str, order: str, scaled: bool = True):
        super().__init__()
        self.num_heads, self.name, self.rows, self.order, self.scaled = 3, name, rows, order, scaled
        setattr(self, name, nn.Linear(30, 90))
        self.c_proj = nn.Linear(30, 30)

    def forward(self, Q, K, V, mask=None):
        sizes = {"r": 3, "h": 3, "i": 10}
        parts = {
            role: torch.einsum(
                f"bl{self.rows}->rbhli",
                getattr(self, self.name)(x).unflatten(-1, [sizes[axis] for axis in self.rows]),
            )[self.order.index(role)]
            for role, x in zip("qkv", (Q, K, V))
        }
        q = parts["q"] * (1 if self.scaled else 10**0.5)
        heads, weights = mha.scaled_dot_product_attention(q, parts["k"], parts["v"], mask)
        return self.c_proj(heads.transpose(1, 2).flatten(2)), weights


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("order", ["qkv", "kqv", "vkq"])
def test_three_in_one_may_be_cut_in_any_way(rows, order):
    result = mark_layer(Cut("c_attn", ROWS[rows], order))
    assert result.passed
    assert ("are cut" in result.message) == (rows != "(3, h, d_k)" or order != "qkv")


@pytest.mark.parametrize("rows", ROWS)
def test_a_wrong_layer_is_named_however_its_three_in_one_is_cut(rows):
    assert [e.id for e in mark_layer(Cut("c_attn", ROWS[rows], "qkv", scaled=False)).mistakes] == [
        "scale-missing"
    ]


def test_a_name_that_tells_an_order_is_held_to_it():
    assert mark_layer(Cut("kqv_proj", "rhi", "kqv")).passed
    for name in ("qkv_proj", "in_proj"):
        result = mark_layer(Cut(name, "rhi", "kqv"))
        assert "layer-queries-and-keys-exchanged" in {entry.id for entry in result.mistakes}


def test_heads_may_be_wider_together_than_d_model():
    class Wide(nn.Module):
        def __init__(self, dim=20, heads=5, dim_head=16, scaled=True):
            super().__init__()
            self.heads, self.scaled = heads, scaled
            self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
            self.to_kv = nn.Linear(dim, 2 * heads * dim_head, bias=False)
            self.to_out = nn.Linear(heads * dim_head, dim)

        def forward(self, x, context, mask=None):
            q, k, v = (
                y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for y in (self.to_q(x), *self.to_kv(context).chunk(2, -1))
            )
            q = q if self.scaled else q * 4
            heads, _ = mha.scaled_dot_product_attention(q, k, v, mask)
            return self.to_out(heads.transpose(1, 2).flatten(2))

    assert mark_layer(Wide()).passed
    assert "passed" in mark_layer(Wide).message  # of a width that its heads need not divide
    assert [entry.id for entry in mark_layer(Wide(scaled=False)).mistakes] == ["scale-missing"]


# ---------------------------------------------------------------- a function and its weights


def function(weights, num_heads, slip=""):
    """An attention as a function, with its weights around it."""

    def attend(Q, K, V, mask=None):
        W_q, W_k, W_v, *W_o = weights
        q, k, v = (
            (x @ (W if slip == "not transposed" else W.T)).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for x, W in ((Q, W_q), (K, W_k), (V, W_v))
        )
        scores = q @ k.mT / (1 if slip == "no scale" else math.sqrt(q.size(-1)))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -math.inf)
        heads = (scores.softmax(-1).nan_to_num() @ v).transpose(1, 2).flatten(2)
        return heads @ W_o[0].T if W_o and slip != "no W_o" else heads

    return attend


@pytest.fixture
def weights() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(24, 24, generator=generator) * 0.2 for _ in range(4)]


@pytest.mark.parametrize("count", [3, 4])
def test_a_function_is_marked_with_the_weights_that_are_given(weights, count):
    given = [W.clone() for W in weights[:count]]
    assert mark_layer(function(weights[:count], 3), weights=given, num_heads=3).passed
    result = mark_layer(function(weights[:count], 3, "no scale"), weights=given, num_heads=3)
    assert [entry.id for entry in result.mistakes] == ["scale-missing"]
    assert all(torch.equal(W, before) for W, before in zip(given, weights))


@pytest.mark.parametrize(
    "slip, id", [("not transposed", "layer-not-transposed"), ("no W_o", "layer-no-output-projection")]
)
def test_what_a_function_does_with_its_weights_is_named(weights, slip, id):
    result = mark_layer(function(weights, 3, slip), weights=weights, num_heads=3)
    assert id in {entry.id for entry in result.mistakes}


def test_a_function_may_take_its_weights_and_linear_layers_give_their_biases():
    layer = mha.MultiHeadAttention(24, 3, bias=True)
    linears = [layer.W_q, layer.W_k, layer.W_v, layer.W_o]

    def attend(Q, K, V, W_q, W_k, W_v, W_o, num_heads, mask):
        q, k, v = (mha.split_heads(W(x), num_heads) for W, x in ((W_q, Q), (W_k, K), (W_v, V)))
        return W_o(mha.merge_heads(mha.scaled_dot_product_attention(q, k, v, mask)[0]))

    result = mark_layer(
        attend, lambda f, Q, K, V, mask: f(Q, K, V, *linears, 3, mask), num_heads=3, weights=linears
    )
    assert result.passed, result.message


def test_a_layer_whose_weights_cannot_be_found_is_given_them(weights):
    class Hidden(nn.Module):
        def forward(self, Q, K, V, mask=None):
            return function([W.to(Q.dtype) for W in weights], 3)(Q, K, V, mask)

    assert mark_layer(Hidden(), weights=weights, num_heads=3).passed
    assert not mark_layer(Hidden(), num_heads=3).passed


@pytest.mark.parametrize(
    "how, said",
    [
        ({"weights": lambda w: w[:2], "num_heads": 3}, "weights is 2 matrices; it has to be (W_q, W_k, W_v)"),
        ({"weights": lambda w: w}, "num_heads=None"),
        ({"weights": lambda w: w, "num_heads": 5}, "W_q has 24 rows, which num_heads=5 does not divide"),
        (
            {"weights": lambda w: [*w[:3], w[3][:3]], "num_heads": 3},
            "W_o has to be (d_model, h·d_k) = (24",
        ),
        ({"weights": lambda w: [w[0], w[1][:8], w[2]], "num_heads": 3}, "W_k (8, 24)"),
        ({"weights": lambda w: [w[0], w[1], "W_v"], "num_heads": 3}, "W_v is str; it has to be (out, in)"),
        ({"weights": lambda w: w, "num_heads": 3, "call": lambda f, Q: Q}, "call takes (f, Q)"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, how, said):
    how = {name: value(weights) if name == "weights" else value for name, value in how.items()}
    with pytest.raises(ValueError) as error:
        mark_layer(function(weights, 3), **how)
    assert said in str(error.value)


# ---------------------------------------------------------------- an input of one's own


class OnLong(mha.MultiHeadAttention):
    """Right on all short inputs; `slip` is what it does with ten tokens or more."""

    def __init__(self, slip: str):
        super().__init__(24, 3)
        self.slip = slip

    def forward(self, Q, K, V, mask=None):
        if Q.size(1) < 10:
            return super().forward(Q, K, V, mask)
        if self.slip == "no scale":
            return super().forward(Q * 8**0.5, K, V, mask)
        if self.slip == "raises":
            raise OverflowError("too long")
        output, weights = super().forward(Q, K, V, mask)
        return output * 1.5, weights


def own(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def test_a_right_layer_is_right_on_an_input_of_ones_own_and_leaves_it_as_it_is():
    X, K, V = own((2, 5, 24), (2, 7, 24), (2, 7, 24))
    mask = torch.ones(2, 1, 5, 7, dtype=torch.bool).tril()
    before = [x.clone() for x in (X, K, V, mask)]
    layer = mha.MultiHeadAttention(24, 3)
    for inputs in (X, (X,), (X, K, V), (X, K, V, mask), (X, K, V, mask[0, 0]), (X, K, V, None)):
        assert "On your own input it is right." in mark_layer(layer, inputs=inputs).message
    assert all(torch.equal(x, y) for x, y in zip(before, (X, K, V, mask)))
    assert mark_layer(mha.MultiHeadAttention, inputs=X, num_heads=3).passed


def test_a_layer_that_is_wrong_on_ones_own_input_only_is_named():
    (X,) = own((2, 12, 24))
    result = mark_layer(OnLong("no scale"), inputs=X)
    assert not result.passed and "scale-missing" in {entry.id for entry in result.mistakes}
    assert "On all other inputs it is right." in result.message
    assert mark_layer(OnLong("no scale"), inputs=X[:, :9]).passed


def test_what_nothing_explains_on_ones_own_input_is_shown_on_the_smallest_part_of_it():
    result = mark_layer(OnLong("larger"), inputs=own((3, 40, 24))[0])
    assert (result.passed, result.stage) == (False, "own input")
    assert [entry.id for entry in result.mistakes] == ["result-times-a-number"]
    assert "a part of your own input" in result.message


def test_an_error_on_ones_own_input_is_shown_with_its_line():
    message = mark_layer(OnLong("raises"), inputs=own((1, 12, 24))[0]).message
    assert 'raise OverflowError("too long")' in message and "your own input" in message


def test_a_mistake_is_said_to_show_on_ones_own_input_or_not():
    class Unscaled(mha.MultiHeadAttention):
        def forward(self, Q, K, V, mask=None):
            return super().forward(Q * 8**0.5, K, V, mask)

    class Unmasked(mha.MultiHeadAttention):
        def forward(self, Q, K, V, mask=None):
            return super().forward(Q, K, V)

    X = own((2, 5, 24))[0]
    result = mark_layer(Unscaled(24, 3), inputs=X)
    assert [entry.id for entry in result.mistakes] == ["scale-missing"]
    assert "It shows on your own input, too." in result.message
    result = mark_layer(Unmasked(24, 3), inputs=X)
    assert "mask-ignored" in {entry.id for entry in result.mistakes}
    assert "Your own input does not show it." in result.message


def test_what_rounding_makes_of_ones_own_input_is_no_mistake():
    class Reordered(mha.MultiHeadAttention):
        def forward(self, Q, K, V, mask=None):
            output, weights = super().forward(Q.double(), K.double(), V.double(), mask)
            return output.to(Q.dtype), weights.to(Q.dtype)

        def to(self, *arguments):
            return super().to(torch.float64)

    X = own((2, 60, 24))[0] * 300
    result = mark_layer(Reordered(24, 3), inputs=X)
    assert result.passed, result.message


@pytest.mark.parametrize(
    "inputs, said",
    [
        (torch.zeros(2, 5, 25), "Q has shape (2, 5, 25); its last axis has to be d_model=24"),
        (torch.zeros(5, 24), "Q has shape (5, 24); it has to be (B, L, d_model)"),
        (torch.zeros(2, 5, 24, dtype=torch.long), "Q is of torch.int64"),
        (
            (torch.zeros(2, 5, 24),) * 2,
            "inputs holds 2 tensors; it has to be X, (Q, K, V)",
        ),
        ((*(torch.zeros(2, 5, 24),) * 2, torch.zeros(2, 4, 24)), "they have to be (B, Lq, d_model)"),
        ((*(torch.zeros(2, 5, 24),) * 3, torch.ones(2, 5)), "the mask has shape (2, 5)"),
        ((*(torch.zeros(2, 5, 24),) * 3, torch.full((5, 5), -1e9)), "holds other numbers than 0 and 1"),
        ({"Q": 1}, "inputs holds a dict"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(inputs, said):
    with pytest.raises(ValueError) as error:
        mark_layer(mha.MultiHeadAttention(24, 3), inputs=inputs)
    assert said in str(error.value)


# ---------------------------------------------------------------- what cannot be marked, and why


class MisNamed(mha.MultiHeadAttention):
    def forward(self, Q, K, V, mask=None):
        return self.W_query(Q)


class NotCalled(mha.MultiHeadAttention):
    def forward(self, Q, K, V, mask=None):
        return self.W_q(Q) @ K.transpose


@pytest.mark.parametrize(
    "answer, said",
    [
        (MisNamed, "What its __init__ makes: W_q, W_k, W_v, W_o, dropout."),
        (MisNamed, "return self.W_query(Q)"),
        (NotCalled, "its parentheses () are missing"),
        (mha.MultiHeadAttention(24, 3).forward, "the method forward of a MultiHeadAttention; give the layer"),
        (lambda Q, K, V, mask=None: Q, "a function does not show its weights"),
        (3, "the answer is a int"),
    ],
)
def test_what_stands_in_the_way_is_explained(answer, said):
    result = mark_layer(answer)
    assert not result.passed and said in result.message


def test_an_error_inside_of_a_library_is_shown_with_the_line_that_led_to_it():
    class Inverting(mha.MultiHeadAttention):
        def forward(self, Q, K, V, mask=None):
            return numpy.linalg.inv(numpy.zeros((2, 2)))

    assert "return numpy.linalg.inv(numpy.zeros((2, 2)))" in mark_layer(Inverting).message


class Grouped(nn.Module):
    """Four heads of queries share two, or one, of keys and values."""

    repeat = staticmethod(mha.repeat_kv)

    def __init__(self, key_heads=2, d_model=32):
        super().__init__()
        self.num_heads, self.key_heads, d_k = 4, key_heads, d_model // 4
        self.q_proj, self.o_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.k_proj, self.v_proj = (nn.Linear(d_model, key_heads * d_k) for _ in range(2))

    def projected(self, Q, K, V):
        return self.q_proj(Q), self.k_proj(K), self.v_proj(V)

    def forward(self, Q, K, V, mask=None):
        q, k, v = self.projected(Q, K, V)
        q, k, v = mha.split_heads(q, 4), *(mha.split_heads(x, self.key_heads) for x in (k, v))
        k, v = (self.repeat(x, 4 // self.key_heads) for x in (k, v))
        return self.o_proj(mha.merge_heads(mha.scaled_dot_product_attention(q, k, v, mask)[0]))


class GroupedInOne(Grouped):
    """As GPT-BigCode has it: queries, keys and values in one, of which the last two are smaller."""

    def __init__(self, key_heads=1):
        super().__init__(key_heads)
        del self.q_proj, self.k_proj, self.v_proj
        self.c_attn = nn.Linear(32, 32 + 2 * key_heads * 8)

    def projected(self, *inputs):
        sizes = [32, self.key_heads * 8, self.key_heads * 8]
        return tuple(self.c_attn(x).split(sizes, -1)[i] for i, x in enumerate(inputs))


@pytest.mark.parametrize("layer", [Grouped(), Grouped(1), GroupedInOne(), GroupedInOne(2)])
def test_grouped_queries_are_compared_with_each_key_head_repeated(layer):
    result = mark_layer(layer)
    assert result.passed and "as in grouped-query attention" in result.message


def test_what_is_wrong_in_grouped_queries_is_named():
    class Tiled(Grouped):
        repeat = staticmethod(lambda x, n: x.repeat(1, n, 1, 1))

    class Unscaled(Grouped):
        def projected(self, Q, K, V):
            q, k, v = super().projected(Q, K, V)
            return q * 8**0.5, k, v

    assert "repeat-tiled" in {entry.id for entry in mark_layer(Tiled()).mistakes}
    assert [entry.id for entry in mark_layer(Unscaled()).mistakes] == ["scale-missing"]


def test_a_part_of_the_layer_may_tell_its_heads():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = mha.MultiHeadAttention(20, 4)

        def forward(self, x):
            return self.attention(x, x, x)

    assert mark_layer(Around()).passed


def test_a_function_of_another_signature_is_told_which_is_wanted(weights):
    result = mark_layer(lambda q, k: q, weights=weights, num_heads=3)
    assert result.stage == "signature" and "(Q, K, V, mask=None), or call=" in result.message


# ---------------------------------------------------------------- what is found inside, how it is called


class Block(mha.MultiHeadAttention):
    """A layer with what belongs around it inside: `where` it normalises."""

    def __init__(self, where: str):
        super().__init__(24, 3)
        self.where, self.norm = where, nn.LayerNorm(24)

    def forward(self, q, k, v, mask=None):
        if self.where == "before":
            return super().forward(self.norm(q), self.norm(k), self.norm(v), mask)
        output, weights = super().forward(q, k, v, mask)
        return self.norm(output + q), weights


@pytest.mark.parametrize(
    "where, id", [("before", "layer-inputs-normalised"), ("after", "layer-add-and-norm")]
)
def test_what_belongs_around_a_layer_is_named_inside(where, id):
    assert [entry.id for entry in mark_layer(Block(where)).mistakes] == [id]


def calling(names: str) -> type:
    """A layer whose forward takes these arguments: the first, and whatever stands for K, V and the mask."""

    def forward(self, *inputs, **named):
        bound = signature.bind(self, *inputs, **named).arguments
        Q, K, V, mask = (
            next((bound[name] for name in choice.split() if name in bound), None)
            for choice in (
                "x query hidden_states",
                "key xa context encoder_hidden_states",
                "value",
                "mask attn_mask attention_mask valid_lens",
            )
        )
        K = Q if K is None else K
        output, weights = mha.MultiHeadAttention.forward(self, Q, K, K if V is None else V, mask)
        return output, weights, None

    forward.__signature__ = signature = inspect.signature(eval(f"lambda self, {names}: None"))
    return type("Calling", (mha.MultiHeadAttention,), {"forward": forward})


@pytest.mark.parametrize(
    "names",
    [
        "x",
        "x, mask=None",
        "x, *, mask=None",
        "hidden_states, attention_mask=None, head_mask=None, output_attentions=False",
        "hidden_states, layer_past=None, attention_mask=None, use_cache=False",
        "x, xa=None, mask=None, kv_cache=None",
        "x, context=None, mask=None, context_mask=None",
        "query, key, value",
        "query, key=None, value=None, mask=None",
        "query, key, value, *, attn_mask=None",
        "query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None",
    ],
)
def test_a_layer_is_called_as_its_arguments_are_named(names):
    result = mark_layer(calling(names)(24, 3))
    assert result.passed, result.message


def test_a_fourth_argument_that_is_no_mask_is_asked_about():
    class ByLength(mha.MultiHeadAttention):
        def forward(self, queries, keys, values, valid_lens=None):
            mask = None if valid_lens is None else mha.padding_mask(valid_lens, keys.size(1))
            return super().forward(queries, keys, values, mask)

    message = mark_layer(ByLength(24, 3)).message
    assert "Its fourth argument is 'valid_lens': say in call=…" in message


class InSingle(mha.MultiHeadAttention):
    """As language models have it: the softmax in float32, whatever comes."""

    def __init__(self, d_model, num_heads, scaled=True):
        super().__init__(d_model, num_heads)
        self.scaled = scaled

    def forward(self, Q, K, V, mask=None):
        q, k, v = (
            mha.split_heads(W(x), self.num_heads) for W, x in zip((self.W_q, self.W_k, self.W_v), (Q, K, V))
        )
        scores = q @ k.mT / (q.size(-1) ** 0.5 if self.scaled else 1)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        weights = weights if mask is None else weights * (mask != 0)
        return self.W_o(mha.merge_heads(weights @ v)), weights


def test_a_softmax_in_float32_is_right_and_what_else_is_wrong_is_named():
    torch.manual_seed(0)
    assert mark_layer(InSingle).passed
    assert mark_layer(InSingle(512, 8)).passed
    assert [entry.id for entry in mark_layer(InSingle(48, 4, scaled=False)).mistakes] == ["scale-missing"]


# ---------------------------------------------------------------- masks of self-attention


class _ReadsItsMask(mha.MultiHeadAttention):
    """The package's layer, but that a mask is read in a way of its own."""

    def forward(self, Q, K, V, mask=None):
        return super().forward(Q, K, V, None if mask is None else self.read(mask))


def _reading(read):
    return type("Attention", (_ReadsItsMask,), {"read": staticmethod(read)})


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "read",
    [
        lambda mask: ~mask.bool() if mask.size(-1) == mask.size(-2) else mask,
        lambda mask: mask.transpose(-2, -1) if mask.size(-1) == mask.size(-2) else mask,
    ],
    ids=["upside down where Lq = Lk", "transposed where Lq = Lk"],
)
def test_a_mask_that_is_misread_in_self_attention_only_does_not_pass(read):
    result = mark_layer(_reading(read)(20, 4))
    assert not result.passed and "self-attention and" in result.message


@pytest.mark.parametrize(
    "read, shape, id",
    [
        (lambda mask: torch.ones_like(mask) if mask.ndim == 2 else mask, "(L, L)", None),
        (
            lambda mask: mask[:, None, None] if mask.ndim == 2 else mask,
            "(L, L)",
            "layer-mask-of-two-axes",
        ),
        (
            lambda mask: ~mask.bool() if mask.ndim == 4 and mask.size(2) == 1 else mask,
            "(B, 1, 1, L)",
            "layer-mask-of-one-row",
        ),
    ],
)
def test_a_shorter_mask_that_is_not_read_as_it_broadcasts_is_told(read, shape, id):
    layer = _reading(read)(20, 4)
    built = mark_layer(layer)
    assert built.passed and f"It does not take a mask of {shape}" in built.message
    # Of a learner's class it is asked that it takes the masks that the course makes for what they are.
    assert [entry.id for entry in mark_layer(type(layer)).mistakes] == ([id] if id else [])


def test_a_built_layer_is_told_what_it_does_in_half_precision_under_a_mask():
    class Filled(InSingle):
        def forward(self, Q, K, V, mask=None):
            if mask is not None:
                torch.zeros(1, dtype=Q.dtype).masked_fill(mask[:1, 0, 0, :1] == 0, -1e9)
            return mha.MultiHeadAttention.forward(self, Q, K, V, mask)

    result = mark_layer(Filled(20, 4))
    assert result.passed and "With a mask, in float16, it raises" in result.message
    assert CATALOGUE["mask-half-overflow"].title in result.message
    assert [entry.id for entry in mark_layer(Filled).mistakes] == ["mask-half-overflow"]


def test_a_layer_that_reads_every_mask_has_no_such_remark():
    assert mark_layer(mha.MultiHeadAttention).message == "multi_head_attention: passed."
