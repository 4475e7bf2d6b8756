"""The stages of each exercise as they should be: what the catalogue's wrong stages are put into.

A pipeline is a function of its stages and of the exercise's arguments. With every stage right it computes
what the package computes (a test holds the two together); with one replaced, what that mistake computes.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mha.cache import KVCache
from mha.check.catalogue import Stage
from mha.check.weights import Projections
from mha.positions import apply_rope

Pipeline = Callable[..., Any]


# ---------------------------------------------------------------- scaled dot-product attention


def score(Q: Tensor, K: Tensor) -> Tensor:
    """(B, h, Lq, d_k), (B, h, Lk, d_k) → (B, h, Lq, Lk)."""
    return Q @ K.transpose(-2, -1)


def scale(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    """Divide the scores by √d_k."""
    return scores / math.sqrt(d_k)


def mask(scores: Tensor, mask: Tensor) -> Tensor:
    """Fill what is blocked with the lowest number."""
    return scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)


def softmax(scores: Tensor) -> Tensor:
    """Let each query share out one whole over the keys."""
    return torch.softmax(scores, dim=-1)


def guard(weights: Tensor, mask: Tensor) -> Tensor:
    """Leave nothing on what is blocked, also where a whole row is."""
    return weights.masked_fill(mask == 0, 0.0)


def weigh(weights: Tensor, V: Tensor) -> Tensor:
    """(B, h, Lq, Lk), (B, h, Lk, d_k) → (B, h, Lq, d_k)."""
    return weights @ V


def give(output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output first and the weights second."""
    return output, weights


ATTENTION: dict[str, Stage] = {
    "score": score,
    "scale": scale,
    "mask": mask,
    "softmax": softmax,
    "guard": guard,
    "weigh": weigh,
    "give": give,
}


def attention(s: Mapping[str, Stage], Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Any:
    """Run the stages of scaled dot-product attention."""
    scores = s["scale"](s["score"](Q, K), Q.size(-1), Q.size(1))
    if mask is not None:
        scores = s["mask"](scores, mask)
    weights = s["softmax"](scores)
    if mask is not None:
        weights = s["guard"](weights, mask)
    return s["give"](s["weigh"](weights, V), weights)


# ---------------------------------------------------------------- the whole layer

Inputs = tuple[Tensor, Tensor, Tensor]  # Q, K, V, each (B, L, d_model)


def linear(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """Compute what nn.Linear computes."""
    return torch.nn.functional.linear(x, W, b)


def project_q(inputs: Inputs, w: Projections) -> Tensor:
    """Queries are made from Q with W_q."""
    return linear(inputs[0], w.W_q, w.b_q)


def project_k(inputs: Inputs, w: Projections) -> Tensor:
    """Keys are made from K with W_k."""
    return linear(inputs[1], w.W_k, w.b_k)


def project_v(inputs: Inputs, w: Projections) -> Tensor:
    """Values are made from V with W_v."""
    return linear(inputs[2], w.W_v, w.b_v)


def output(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    """Mix the heads with W_o."""
    return linear(concat, w.W_o, w.b_o)


def same_length(x: Tensor, Lq: int) -> Tensor:
    """Keys and values keep a length of their own."""
    return x


def layer(
    s: Mapping[str, Stage], w: Projections, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None
) -> Any:
    """Run the stages of the whole layer with the weights `w`."""
    w, inputs, h, Lq = w.to(Q.dtype), (Q, K, V), w.num_heads, Q.size(1)
    q = s["split"](s["project_q"](inputs, w), h)
    k = s["split"](s["key_length"](s["project_k"](inputs, w), Lq), h)
    v = s["split"](s["key_length"](s["project_v"](inputs, w), Lq), h)
    heads, weights = attention({**s, "give": give}, q, k, v, mask)
    return s["give"](s["output"](s["merge"](heads), inputs, w), weights)


# ---------------------------------------------------------------- exercises of a single stage


def split(x: Tensor, num_heads: int) -> Tensor:
    """(B, L, d_model) → (B, h, L, d_k)."""
    B, L, d_model = x.shape
    return x.view(B, L, num_heads, d_model // num_heads).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """(B, h, L, d_k) → (B, L, h·d_k)."""
    B, h, L, d_k = x.shape
    return x.transpose(1, 2).reshape(B, L, h * d_k)


def project(x: Tensor, W: Tensor) -> Tensor:
    """(…, in) → (…, out), with W as nn.Linear stores it."""
    return x @ W.T


def causal(Lq: int, Lk: int | None = None) -> Tensor:
    """(Lq, Lk), bottom-right aligned."""
    Lk = Lq if Lk is None else Lk
    return torch.arange(Lk) <= torch.arange(Lq)[:, None] + Lk - Lq


def padding(lengths: Tensor, max_len: int) -> Tensor:
    """(B,) → (B, 1, 1, Lk)."""
    return (torch.arange(max_len) < lengths[:, None])[:, None, None]


def repeat(x: Tensor, n_rep: int) -> Tensor:
    """(B, h_kv, L, d_k) → (B, h_kv·n_rep, L, d_k)."""
    return x.repeat_interleave(n_rep, dim=1)


def alone(stage: str) -> Pipeline:
    """Return the pipeline of an exercise that has one stage only."""
    return lambda s, *arguments: s[stage](*arguments)


LAYER: dict[str, Stage] = {
    **ATTENTION,
    "project_q": project_q,
    "project_k": project_k,
    "project_v": project_v,
    "key_length": same_length,
    "split": split,
    "merge": merge,
    "output": output,
}


# ---------------------------------------------------------------- shapes


def shape_x(B: int, L: int, d_model: int, h: int) -> tuple[int, ...]:
    """The input: a row of d_model numbers for each token."""
    return B, L, d_model


def shape_projected(B: int, L: int, d_model: int, h: int) -> tuple[int, ...]:
    """Q, K and V are of the shape of the input."""
    return B, L, d_model


def shape_split(B: int, L: int, d_model: int, h: int) -> tuple[int, ...]:
    """Heads stand before tokens, each with its share of the numbers."""
    return B, h, L, d_model // h


def shape_weights(B: int, L: int, d_model: int, h: int) -> tuple[int, ...]:
    """One map for each head, queries by keys."""
    return B, h, L, L


def shape_heads(B: int, L: int, d_model: int, h: int) -> tuple[int, ...]:
    """What the heads come to is of the shape of V split."""
    return B, h, L, d_model // h


def shape_joined(B: int, L: int, d_model: int, h: int) -> tuple[int, ...]:
    """The heads side by side."""
    return B, L, d_model


def shape_output(B: int, L: int, d_model: int, h: int) -> tuple[int, ...]:
    """The shape of the input."""
    return B, L, d_model


SHAPES: dict[str, Stage] = {
    "shape_x": shape_x,
    "shape_projected": shape_projected,
    "shape_split": shape_split,
    "shape_weights": shape_weights,
    "shape_heads": shape_heads,
    "shape_joined": shape_joined,
    "shape_output": shape_output,
}


def shapes(s: Mapping[str, Stage], B: int, L: int, d_model: int, h: int) -> Any:
    """Return the shape after each step of the layer."""
    return tuple(s[stage](B, L, d_model, h) for stage in SHAPES)


# ---------------------------------------------------------------- rotary positions


def rope_frequencies(d_k: int) -> Tensor:
    """d_k → (d_k/2,): how far each pair turns from one position to the next."""
    return 10_000.0 ** (-torch.arange(0, d_k, 2, dtype=torch.float64) / d_k)


def rope_positions(positions: Tensor) -> Tensor:
    """As they are given."""
    return positions


def rope_angles(positions: Tensor, frequencies: Tensor) -> Tensor:
    """(L,), (d_k/2,) → (L, d_k/2)."""
    return positions.double()[:, None] * frequencies


def rope_layout(angles: Tensor) -> Tensor:
    """(L, d_k/2) → (L, d_k): the angle for each number, both of a pair alike."""
    return torch.cat([angles, angles], dim=-1)


def rope_pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Number i goes with number i + d_k/2."""
    half = x.size(-1) // 2
    return x[..., :half], x[..., half:]


def rope_turn(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turn the vectors (a, b); cos and sin are (L, d_k), those for a in front."""
    n = a.size(-1)
    return a * cos[..., :n] - b * sin[..., :n], a * sin[..., n:] + b * cos[..., n:]


def rope_join(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Put the halves back where they came from."""
    return torch.cat([a, b], dim=-1)


ROPE: dict[str, Stage] = {
    "rope_frequencies": rope_frequencies,
    "rope_positions": rope_positions,
    "rope_angles": rope_angles,
    "rope_layout": rope_layout,
    "rope_pairs": rope_pairs,
    "rope_turn": rope_turn,
    "rope_join": rope_join,
}


def rope(s: Mapping[str, Stage], x: Tensor, positions: Tensor) -> Any:
    """Run the stages of rotary positions."""
    frequencies = s["rope_frequencies"](x.size(-1))
    angles = s["rope_layout"](s["rope_angles"](s["rope_positions"](positions), frequencies))
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = s["rope_turn"](*s["rope_pairs"](x), cos, sin)
    return s["rope_join"](a, b, x)


# ---------------------------------------------------------------- ALiBi


def alibi_power(h: int) -> int:
    """The largest power of two up to h."""
    return 1 << (h.bit_length() - 1)


def alibi_row(n: int) -> list[float]:
    """The slopes of n heads, n a power of two."""
    return [2.0 ** (-8 * i / n) for i in range(1, n + 1)]


def alibi_between(row: list[float]) -> list[float]:
    """From the slopes of twice as many heads, every other one."""
    return row[0::2]


def alibi_order(slopes: list[float], between: list[float], h: int) -> list[float]:
    """The first h of both, one after the other."""
    return (slopes + between)[:h]


def alibi_give(slopes: list[float]) -> Any:
    """(h,), float32."""
    return torch.tensor(slopes, dtype=torch.float32)


ALIBI: dict[str, Stage] = {
    "alibi_power": alibi_power,
    "alibi_row": alibi_row,
    "alibi_between": alibi_between,
    "alibi_order": alibi_order,
    "alibi_give": alibi_give,
}


def alibi(s: Mapping[str, Stage], num_heads: int) -> Any:
    """Run the stages of ALiBi's slopes."""
    power = s["alibi_power"](num_heads)
    between = s["alibi_between"](s["alibi_row"](2 * power))
    return s["alibi_give"](s["alibi_order"](s["alibi_row"](power), between, num_heads))


# ---------------------------------------------------------------- attention in tiles


def tiles(Lk: int, block: int) -> list[slice]:
    """`block` keys each, the last with what is left."""
    return [slice(start, start + block) for start in range(0, Lk, block)]


def tile_start(Q: Tensor) -> Tensor:
    """Lower than any score."""
    return Q.new_full((*Q.shape[:-1], 1), -math.inf)


def tile_largest(largest: Tensor, scores: Tensor) -> Tensor:
    """The largest score of the row so far."""
    return torch.maximum(largest, scores.amax(dim=-1, keepdim=True))


def tile_shrink(largest: Tensor, larger: Tensor) -> Tensor:
    """What the old sums are worth relative to the new largest score."""
    return (largest - larger).exp()


def tile_powers(scores: Tensor, larger: Tensor, largest: Tensor) -> Tensor:
    """Exponentials relative to the largest score so far."""
    return (scores - larger).exp()


def tile_total(total: Tensor, shrink: Tensor, powers: Tensor) -> Tensor:
    """The sum of the exponentials so far."""
    return total * shrink + powers.sum(dim=-1, keepdim=True)


def tile_mix(mix: Tensor, shrink: Tensor, part: Tensor, total: Tensor) -> Tensor:
    """The mix of the values so far."""
    return mix * shrink + part


def tile_divide(mix: Tensor, total: Tensor, count: int) -> Tensor:
    """Divide once, at the end."""
    return mix / total


TILES: dict[str, Stage] = {
    "tiles": tiles,
    "score": score,
    "scale": scale,
    "tile_start": tile_start,
    "tile_largest": tile_largest,
    "tile_shrink": tile_shrink,
    "tile_powers": tile_powers,
    "tile_total": tile_total,
    "tile_mix": tile_mix,
    "tile_divide": tile_divide,
}


def online(s: Mapping[str, Stage], Q: Tensor, K: Tensor, V: Tensor, block: int) -> Any:
    """Run the stages of attention in tiles."""
    largest = s["tile_start"](Q)
    total, mix = torch.zeros_like(largest), Q.new_zeros((*Q.shape[:-1], V.size(-1)))
    parts = s["tiles"](K.size(-2), block)
    for part in parts:
        scores = s["scale"](s["score"](Q, K[..., part, :]), Q.size(-1), Q.size(1))
        larger = s["tile_largest"](largest, scores)
        shrink = s["tile_shrink"](largest, larger)
        powers = s["tile_powers"](scores, larger, largest)
        total = s["tile_total"](total, shrink, powers)
        mix = s["tile_mix"](mix, shrink, powers @ V[..., part, :], total)
        largest = larger
    return s["tile_divide"](mix, total, len(parts))


# ---------------------------------------------------------------- the cache


def cache_keys(kept: Tensor | None, new: Tensor) -> Tensor:
    """New keys go behind those that are kept."""
    return new if kept is None else torch.cat([kept, new], dim=2)


def cache_values(kept: Tensor | None, new: Tensor) -> Tensor:
    """New values go behind those that are kept."""
    return new if kept is None else torch.cat([kept, new], dim=2)


def cache_give(k_all: Tensor, v_all: Tensor, k: Tensor, v: Tensor) -> Any:
    """Return all keys and all values."""
    return k_all, v_all


def cache_length(k: Tensor | None, v: Tensor | None, calls: int) -> int:
    """The number of tokens."""
    return 0 if k is None else k.size(2)


def cache_reset(k: Tensor | None, v: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Nothing is left."""
    return None, None


CACHE: dict[str, Stage] = {
    "cache_keys": cache_keys,
    "cache_values": cache_values,
    "cache_give": cache_give,
    "cache_length": cache_length,
    "cache_reset": cache_reset,
}


class StagedCache:
    """A cache that does what its stages say."""

    def __init__(self, stages: Mapping[str, Stage]) -> None:
        self._stages, self._k, self._v, self._calls = stages, None, None, 0

    def append(self, k: Tensor, v: Tensor) -> Any:
        """Add new tokens."""
        self._calls += 1
        self._k = self._stages["cache_keys"](self._k, k)
        self._v = self._stages["cache_values"](self._v, v)
        return self._stages["cache_give"](self._k, self._v, k, v)

    def reset(self) -> None:
        """Forget."""
        self._k, self._v = self._stages["cache_reset"](self._k, self._v)
        self._calls = 0

    def __len__(self) -> int:
        return self._stages["cache_length"](self._k, self._v, self._calls)


def use_cache(make: Callable[[], Any], steps: list[tuple[Tensor, Tensor] | None]) -> list[Any]:
    """Append the steps' keys and values, or reset where a step is None; return all that is to be seen.

    That is how long the cache is before and after each step, what each append returned, and what has become
    of it at the end.
    """
    cache = make()
    seen: list[Any] = [len(cache)]
    returned = []
    for step in steps:
        if step is None:
            cache.reset()
        else:
            given = cache.append(*step)
            returned.append(tuple(given) if isinstance(given, list) else given)
            seen.append(copy.deepcopy(returned[-1]))
        seen.append(len(cache))
    return seen + returned


def cache(s: Mapping[str, Stage], steps: list[tuple[Tensor, Tensor] | None]) -> Any:
    """Use a cache with these stages."""
    return use_cache(lambda: StagedCache(s), steps)


# ---------------------------------------------------------------- attention with a cache


def cached_start(cache: KVCache, L: int) -> int:
    """The first new token stands behind those in the cache."""
    return len(cache)


def cached_positions(start: int, L: int) -> Tensor:
    """One position for each new token."""
    return torch.arange(start, start + L)


def turn_queries(q: Tensor, positions: Tensor) -> Tensor:
    """Queries are rotated."""
    return apply_rope(q, positions)


def turn_keys(k: Tensor, positions: Tensor) -> Tensor:
    """Keys are rotated."""
    return apply_rope(k, positions)


def turn_values(v: Tensor, positions: Tensor) -> Tensor:
    """Values are not rotated."""
    return v


def cached_append(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """All keys and values so far, and the new ones."""
    return cache.append(k, v)


def cached_give(output: Tensor) -> Any:
    """(B, h, L new, d_k)."""
    return output


CACHED: dict[str, Stage] = {
    "cached_start": cached_start,
    "cached_positions": cached_positions,
    "turn_queries": turn_queries,
    "turn_keys": turn_keys,
    "turn_values": turn_values,
    "cached_append": cached_append,
    "score": score,
    "scale": scale,
    "causal": causal,
    "softmax": softmax,
    "weigh": weigh,
    "cached_give": cached_give,
}


def cached(s: Mapping[str, Stage], q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> Any:
    """Run the stages of attention with a cache."""
    L, num_heads = q.size(2), q.size(1)
    positions = s["cached_positions"](s["cached_start"](cache, L), L)
    q, k = s["turn_queries"](q, positions), s["turn_keys"](k, positions)
    k, v = s["cached_append"](cache, k, s["turn_values"](v, positions))
    scores = s["scale"](s["score"](q, k), q.size(-1), num_heads)
    scores = scores.masked_fill(s["causal"](L, k.size(2)) == 0, -math.inf)
    return s["cached_give"](s["weigh"](s["softmax"](scores), v))


# ---------------------------------------------------------------- calling nn.MultiheadAttention


def torch_layer(layer: nn.MultiheadAttention) -> nn.MultiheadAttention:
    """The layer takes (B, L, d_model)."""
    return layer


def torch_keys(keep: Tensor) -> dict[str, Tensor]:
    """(B, L), True where a key may be looked at: for torch, True is 'ignore'."""
    return {"key_padding_mask": ~keep}


def torch_pairs(keep: Tensor, num_heads: int) -> dict[str, Tensor]:
    """(B, L, L): torch wants (B·h, L, L), the heads of one example together."""
    return {"attn_mask": (~keep).repeat_interleave(num_heads, dim=0)}


def torch_call(layer: nn.MultiheadAttention, x: Tensor, masks: Mapping[str, Any]) -> Any:
    """One map for each head comes back."""
    return layer(x, x, x, need_weights=True, average_attn_weights=False, **masks)


def torch_give(output: Tensor, weights: Tensor) -> Any:
    """Output first, weights second."""
    return output, weights


TORCH_MHA: dict[str, Stage] = {
    "torch_layer": torch_layer,
    "torch_keys": torch_keys,
    "torch_pairs": torch_pairs,
    "torch_call": torch_call,
    "torch_give": torch_give,
}


def torch_mha(
    s: Mapping[str, Stage], mha: nn.MultiheadAttention, x: Tensor, keep: Tensor | None = None
) -> Any:
    """Run the stages of a call of nn.MultiheadAttention."""
    masks: Mapping[str, Any] = {}
    if keep is not None:
        masks = s["torch_keys"](keep) if keep.ndim == 2 else s["torch_pairs"](keep, mha.num_heads)
    return s["torch_give"](*s["torch_call"](s["torch_layer"](mha), x, masks))


# ---------------------------------------------------------------- calling F.scaled_dot_product_attention


def sdpa_join(keep: Tensor | None, causal: Tensor) -> Tensor:
    """Both have to allow it."""
    return causal if keep is None else keep & causal


def sdpa_mask(keep: Tensor) -> Tensor:
    """True is 'may attend' here and there."""
    return keep


def sdpa_call(Q: Tensor, K: Tensor, V: Tensor, keep: Tensor | None) -> Any:
    """The scale is left to torch."""
    return torch.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=keep)


TORCH_SDPA: dict[str, Stage] = {
    "causal": causal,
    "sdpa_join": sdpa_join,
    "sdpa_mask": sdpa_mask,
    "sdpa_call": sdpa_call,
}


def torch_sdpa(
    s: Mapping[str, Stage],
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    keep: Tensor | None = None,
    causal: bool = False,
) -> Any:
    """Run the stages of a call of F.scaled_dot_product_attention."""
    if causal:
        keep = s["sdpa_join"](keep, s["causal"](Q.size(-2), K.size(-2)))
    return s["sdpa_call"](Q, K, V, None if keep is None else s["sdpa_mask"](keep))


# ---------------------------------------------------------------- weights from elsewhere


def packed_blocks(packed: Tensor) -> tuple[Tensor, ...]:
    """(3·d_model, d_model) → W_q, W_k, W_v."""
    return packed.chunk(3, dim=0)


def packed_roles(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Queries, keys, values, in this order."""
    return {"W_q": q, "W_k": k, "W_v": v}


def packed_output(mha: nn.MultiheadAttention) -> dict[str, Tensor]:
    """W_o is out_proj."""
    return {"W_o": mha.out_proj.weight}


def packed_give(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """As nn.Linear stores them, (out, in)."""
    return weights


PACKED: dict[str, Stage] = {
    "packed_blocks": packed_blocks,
    "packed_roles": packed_roles,
    "packed_output": packed_output,
    "packed_give": packed_give,
}


def packed(s: Mapping[str, Stage], mha: nn.MultiheadAttention) -> Any:
    """Run the stages of taking an nn.MultiheadAttention apart."""
    roles = s["packed_roles"](*s["packed_blocks"](mha.in_proj_weight))
    return s["packed_give"]({**roles, **s["packed_output"](mha)})


State = Mapping[str, Tensor]
run_layer = layer  # under a name that no argument hides


def bert_part(state: State, layer: int) -> str:
    """Where the layer's attention is found, with or without a prefix."""
    prefix = "bert." if any(name.startswith("bert.") for name in state) else ""
    return f"{prefix}encoder.layer.{layer}.attention"


def bert_names(part: str) -> dict[str, str]:
    """The four projections by their names."""
    return {
        "q": f"{part}.self.query",
        "k": f"{part}.self.key",
        "v": f"{part}.self.value",
        "o": f"{part}.output.dense",
    }


def bert_matrix(matrix: Tensor) -> Tensor:
    """BERT stores (out, in), as nn.Linear does."""
    return matrix


def bert_biases(biases: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each projection has a bias."""
    return biases


def bert_heads(num_heads: int) -> int:
    """As many as are asked for."""
    return num_heads


BERT: dict[str, Stage] = {
    "bert_part": bert_part,
    "bert_names": bert_names,
    "bert_matrix": bert_matrix,
    "bert_biases": bert_biases,
    "bert_heads": bert_heads,
}


def bert_layer(s: Mapping[str, Stage], state_dict: State, layer: int, num_heads: int) -> Any:
    """Run the stages of loading a BERT layer, and the layer itself on `bert_input`."""
    names = s["bert_names"](s["bert_part"](state_dict, layer))
    biases = s["bert_biases"]({f"b_{role}": state_dict[f"{name}.bias"] for role, name in names.items()})
    weights = {f"W_{role}": s["bert_matrix"](state_dict[f"{name}.weight"]) for role, name in names.items()}
    x = bert_input(state_dict)
    projections = Projections(s["bert_heads"](num_heads), **weights, **biases)
    return run_layer(LAYER, projections, x, x, x)


def bert_input(state_dict: State) -> Tensor:
    """Something to try a loaded layer on, (2, 5, d_model)."""
    d_model = next(x.size(-1) for name, x in state_dict.items() if name.endswith("self.query.weight"))
    return torch.randn(2, 5, d_model, generator=torch.Generator().manual_seed(3))
