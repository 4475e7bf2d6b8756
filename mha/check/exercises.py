"""The exercises: what is asked, what it is marked against, and the inputs on which it is tried.

The inputs of an exercise are a ladder. They go from the smallest on which anything shows to the ones that
tell mistakes apart, so that the first on which an answer goes wrong is also the easiest to look at.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import mha
from mha.bert import load_bert_layer
from mha.check import pipelines
from mha.check.catalogue import Mistake, Stage, mistakes_of


@dataclass(frozen=True)
class Probe:
    """One input, and what it shows."""

    shows: str
    stage: str  # where an answer goes wrong that is right on the probes before
    arguments: dict[str, Any]


def _as_it_is(answer: Any) -> Any:
    return answer


@dataclass(frozen=True)
class Exercise:
    """Something to write, marked against the package's own code."""

    name: str
    signature: str
    reference: Callable[..., Any]
    stages: Mapping[str, Stage]
    pipeline: pipelines.Pipeline
    probes: Callable[[], list[Probe]]
    # From an answer to a function of a probe's arguments.
    drive: Callable[[Any], Any] = _as_it_is

    @property
    def wanted(self) -> str:
        """What an answer has to be."""
        if inspect.isclass(self.reference):
            return f"a class {self.reference.__name__}{self.signature}"
        return f"a function {self.name}{self.signature}"

    @property
    def mistakes(self) -> list[Mistake]:
        """What the catalogue knows of getting this wrong."""
        return mistakes_of(self.stages)

    def with_mistakes(self, *mistakes: Mistake) -> Callable[..., Any]:
        """Return the pipeline with these mistakes put in."""
        stages = dict(self.stages)
        for entry in mistakes:
            stages.update(entry.replaces)
        return lambda *arguments: self.pipeline(stages, *arguments)


def _random(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def _qkv(B: int, h: int, Lq: int, Lk: int, d_k: int, d_v: int) -> dict[str, Any]:
    Q, K, V = _random((B, h, Lq, d_k), (B, h, Lk, d_k), (B, h, Lk, d_v))
    return {"Q": Q, "K": K, "V": V}


def _mask(B: int, Lq: int, Lk: int) -> Tensor:
    """A mask that differs for each example and hides every key from no query."""
    mask = torch.rand(B, 1, Lq, Lk, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[..., 0] = True
    return mask


def _attention_probes() -> list[Probe]:
    cross, square = _qkv(2, 3, 4, 5, 6, 6), _qkv(2, 3, 4, 4, 6, 6)
    mask = _mask(2, 4, 5)
    empty = mask.clone()
    empty[1, 0, 2] = False
    half = {name: x.half() for name, x in cross.items()}
    large = {"Q": cross["Q"] * 300, "K": cross["K"] * 300, "V": cross["V"]}
    strided = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in cross.items()}
    return [
        Probe("one token, one head", "weigh", _qkv(1, 1, 1, 1, 4, 4)),
        Probe("three tokens, one head", "scale", _qkv(1, 1, 3, 3, 4, 4)),
        Probe("several heads and examples", "softmax", square),
        Probe("more keys than queries", "score", cross),
        Probe("inputs that do not lie in memory in order", "score", strided),
        Probe("large scores", "softmax", large),
        Probe("a mask", "mask", {**cross, "mask": mask}),
        Probe("a square mask", "mask", {**square, "mask": _mask(2, 4, 4)}),
        Probe("a mask of 0 and 1", "mask", {**cross, "mask": mask.long()}),
        Probe("a query with nothing to see", "guard", {**cross, "mask": empty}),
        Probe("a mask in half precision", "mask", {**half, "mask": mask}),
    ]


def _split_probes() -> list[Probe]:
    shapes = [(1, 1, 4), (1, 3, 8), (2, 3, 12), (2, 4, 12)]
    tensors = _random(*shapes)
    strided = tensors[2].transpose(0, 1).contiguous().transpose(0, 1)
    named = ["one token, two heads", "three tokens, two heads", "two examples, three heads", "six heads"]
    heads = [2, 2, 3, 6]
    probes = [
        Probe(name, "split", {"x": x, "num_heads": h})
        for name, x, h in zip(named, tensors, heads, strict=True)
    ]
    return [
        *probes,
        Probe("an x that does not lie in memory in order", "split", {"x": strided, "num_heads": 3}),
    ]


def _merge_probes() -> list[Probe]:
    tensors = _random((1, 2, 1, 4), (1, 2, 3, 4), (2, 3, 4, 5), (3, 3, 2, 5))
    named = ["one token, two heads", "three tokens, two heads", "two examples", "as many examples as heads"]
    strided = tensors[2].transpose(1, 2).contiguous().transpose(1, 2)
    probes = [Probe(name, "merge", {"x": x}) for name, x in zip(named, tensors, strict=True)]
    return [*probes, Probe("an x that does not lie in memory in order", "merge", {"x": strided})]


def _projection_probes(name: str) -> list[Probe]:
    x, one, square, wide = _random((2, 3, 4), (1, 1, 4), (4, 4), (6, 4))
    return [
        Probe("one token", "project", {name: one, "W": square}),
        Probe("several tokens and examples", "project", {name: x, "W": square}),
        Probe("a matrix that is not square", "project", {name: x, "W": wide}),
    ]


def _causal_probes() -> list[Probe]:
    sizes = [(1, 1), (3, 3), (2, 5), (1, 4), (4, 2)]
    probes = [Probe(f"Lq={Lq}, Lk={Lk}", "causal", {"Lq": Lq, "Lk": Lk}) for Lq, Lk in sizes]
    return [*probes, Probe("Lq=3, no Lk given", "causal", {"Lq": 3})]


def _padding_probes() -> list[Probe]:
    rows = [([2], 3), ([1, 3, 2], 3), ([4, 1], 6), ([0, 2], 2)]
    return [
        Probe(f"lengths {lengths}, max_len {L}", "padding", {"lengths": torch.tensor(lengths), "max_len": L})
        for lengths, L in rows
    ]


def _repeat_probes() -> list[Probe]:
    one, two, three = _random((1, 1, 2, 3), (2, 2, 3, 4), (2, 3, 4, 5))
    sizes = [
        ("one head", one, 2),
        ("two heads", two, 2),
        ("three heads", three, 4),
        ("no repetition", two, 1),
    ]
    return [Probe(name, "repeat", {"x": x, "n_rep": n}) for name, x, n in sizes]


def _shapes_probes() -> list[Probe]:
    sizes = [(1, 3, 8, 2), (2, 5, 12, 3), (4, 3, 12, 6), (3, 1, 10, 1)]
    names = ("B", "L", "d_model", "h")
    return [Probe(f"(B, L, d_model, h) = {row}", "shape_split", dict(zip(names, row))) for row in sizes]


def _rope_probes() -> list[Probe]:
    pair, one, several = (x.float() for x in _random((1, 1, 3, 2), (1, 1, 1, 8), (2, 3, 4, 8)))
    strided = several.transpose(1, 2).contiguous().transpose(1, 2)
    probes = [
        ("one pair of numbers, positions 0, 1, 2", "rope_turn", pair, [0, 1, 2]),
        ("a token at position 0", "rope_positions", one, [0]),
        ("a token at position 1", "rope_frequencies", one, [1]),
        ("positions from 0 on", "rope_pairs", several, [0, 1, 2, 3]),
        ("positions that do not start at 0", "rope_positions", several, [5, 6, 7, 8]),
        ("positions far apart and in no order", "rope_positions", several, [7, 2, 30, 11]),
        ("an x that does not lie in memory in order", "rope_pairs", strided, [4, 5, 6, 7]),
    ]
    return [
        Probe(shows, stage, {"x": x, "positions": torch.tensor(positions)})
        for shows, stage, x, positions in probes
    ]


def _alibi_probes() -> list[Probe]:
    sizes = [(8, "alibi_row"), (1, "alibi_row"), (2, "alibi_row"), (16, "alibi_row")]
    sizes += [(3, "alibi_between"), (6, "alibi_between"), (12, "alibi_between"), (15, "alibi_between")]
    return [Probe(f"num_heads={h}", stage, {"num_heads": h}) for h, stage in sizes]


def _tile_probes() -> list[Probe]:
    Q, K, V = _qkv(2, 3, 4, 7, 6, 5).values()
    low = Q.abs() * 40, -K.abs() * 40, V
    rows = [
        ("one tile of all keys", "tile_divide", (Q, K, V), 7),
        ("two equal tiles", "tile_mix", (Q, K[:, :, :6], V[:, :, :6]), 3),
        ("a last tile that is shorter", "tiles", (Q, K, V), 3),
        ("a last tile of one key", "tiles", (Q, K, V), 2),
        ("one key at a time", "tiles", (Q, K, V), 1),
        ("a tile larger than all keys", "tiles", (Q, K, V), 10),
        ("large scores", "tile_largest", (Q * 60, K * 60, V), 2),
        ("scores far below zero", "tile_start", low, 3),
    ]
    return [
        Probe(shows, stage, dict(zip("QKV", qkv)) | {"block": block}) for shows, stage, qkv, block in rows
    ]


def _cache_probes() -> list[Probe]:
    def tokens(L: int, seed: int, B: int = 2, h: int = 3) -> tuple[Tensor, Tensor]:
        k, v = _random((B, h, L, 4), (B, h, L, 5), seed=seed)
        return k, v

    one, two, three = tokens(1, 1, B=1, h=1), tokens(1, 2, B=1, h=1), tokens(1, 3, B=1, h=1)
    rows = [
        ("an empty cache", "cache_length", []),
        ("one token", "cache_length", [one]),
        ("one token after another, one head", "cache_keys", [one, two, three]),
        ("several tokens at once", "cache_length", [tokens(4, 4)]),
        ("several tokens, then one", "cache_keys", [tokens(4, 4), tokens(1, 5)]),
        ("several at once after several", "cache_keys", [tokens(2, 6), tokens(5, 7), tokens(1, 8)]),
        ("a reset", "cache_reset", [tokens(2, 6), tokens(1, 7), None]),
        ("a new sequence after a reset", "cache_reset", [tokens(3, 4), None, tokens(2, 9), tokens(1, 5)]),
        ("a reset of an empty cache", "cache_reset", [None, one]),
    ]
    return [Probe(shows, stage, {"steps": steps}) for shows, stage, steps in rows]


class _Cache(mha.KVCache):
    """A cache that is there to be changed: it counts as an input that stayed as it was."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Cache)

    __hash__ = object.__hash__


def _cached_probes() -> list[Probe]:
    def arguments(cached: int, L: int, by: float = 1.0, B: int = 2, h: int = 3) -> dict[str, Any]:
        sizes = (B, h, cached + L, 6)
        q, k, v = _random(sizes, sizes, sizes, seed=cached + 10 * L)
        q, k = q * by, k * by
        cache = _Cache()
        if cached:
            cache.append(mha.apply_rope(k[:, :, :cached], torch.arange(cached)), v[:, :, :cached])
        new = {name: x[:, :, cached:] for name, x in (("q", q), ("k", k), ("v", v))}
        return {**new, "cache": cache}

    return [
        Probe("one token, nothing in the cache", "weigh", arguments(0, 1, B=1, h=1)),
        Probe("several tokens, nothing in the cache", "causal", arguments(0, 5)),
        Probe("one token after two", "cached_start", arguments(2, 1)),
        Probe("one token after six", "cached_start", arguments(6, 1)),
        Probe("several tokens after four", "causal", arguments(4, 3)),
        Probe("large scores", "softmax", arguments(5, 2, by=60.0)),
    ]


class _TorchLayer(nn.MultiheadAttention):
    """An `nn.MultiheadAttention` that can be compared with a copy of itself."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _TorchLayer) or self.training != other.training:
            return False
        mine, others = self.state_dict(), other.state_dict()
        return mine.keys() == others.keys() and all(torch.equal(x, others[name]) for name, x in mine.items())

    __hash__ = nn.MultiheadAttention.__hash__


def _torch_layer(d_model: int, num_heads: int, seed: int) -> _TorchLayer:
    with torch.device("meta"):
        layer = _TorchLayer(d_model, num_heads, bias=False, batch_first=True)
    packed, out = _random((3 * d_model, d_model), (d_model, d_model), seed=seed)
    state = {"in_proj_weight": packed.float() / 2, "out_proj.weight": out.float() / 2}
    layer.load_state_dict(state, assign=True)
    return layer.requires_grad_(False).eval()


def _torch_mha_probes() -> list[Probe]:
    mha, one = _torch_layer(12, 3, seed=1), _torch_layer(4, 1, seed=2)
    x, batch = _random((1, 3, 4), (2, 5, 12), seed=3)
    by_key = torch.ones(2, 5, dtype=torch.bool)
    by_key[0, 3:] = by_key[1, 1] = False
    by_pair = torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(4)) < 0.5
    by_pair |= torch.eye(5, dtype=torch.bool)
    return [
        Probe("one example, one head", "torch_call", {"mha": one, "x": x.float()}),
        Probe("two examples, three heads", "torch_layer", {"mha": mha, "x": batch.float()}),
        Probe("a mask over keys, (B, L)", "torch_keys", {"mha": mha, "x": batch.float(), "keep": by_key}),
        Probe(
            "a mask over pairs, (B, L, L)", "torch_pairs", {"mha": mha, "x": batch.float(), "keep": by_pair}
        ),
    ]


def _torch_sdpa_probes() -> list[Probe]:
    cross = {name: x.float() for name, x in _qkv(2, 3, 4, 6, 5, 5).items()}
    square = {name: x.float() for name, x in _qkv(2, 3, 4, 4, 5, 5).items()}
    step = {**cross, "Q": cross["Q"][:, :, :1]}
    keep, no_keep = {"keep": _mask(2, 4, 6)}, {"keep": None}
    return [
        Probe("no mask", "sdpa_call", cross),
        Probe("a mask", "sdpa_mask", {**cross, **keep}),
        Probe("a square mask", "sdpa_mask", {**square, "keep": _mask(2, 4, 4)}),
        Probe("causal, as many keys as queries", "causal", {**square, **no_keep, "causal": True}),
        Probe("causal, more keys than queries", "causal", {**cross, **no_keep, "causal": True}),
        Probe("causal, one new query", "causal", {**step, **no_keep, "causal": True}),
        Probe("causal and a mask", "sdpa_join", {**cross, **keep, "causal": True}),
        Probe("not causal", "sdpa_mask", {**square, **no_keep, "causal": False}),
    ]


def _from_torch_probes() -> list[Probe]:
    sizes = [(4, 1), (12, 3), (10, 2)]
    return [
        Probe(f"d_model={d_model}, num_heads={h}", "packed_blocks", {"mha": _torch_layer(d_model, h, seed=h)})
        for d_model, h in sizes
    ]


def _bert_state(d_model: int, layers: int, prefix: str, seed: int) -> dict[str, Tensor]:
    shapes = {}
    for layer in range(layers):
        part = f"{prefix}encoder.layer.{layer}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{part}.attention.{name}"] = (d_model, d_model)
        shapes[f"{part}.intermediate.dense"] = (2 * d_model, d_model)
        shapes[f"{part}.output.dense"] = (d_model, 2 * d_model)
    sizes = [size for out, into in shapes.values() for size in ((out, into), (out,))]
    tensors = iter(_random(*sizes, seed=seed))
    return {f"{name}.{kind}": next(tensors).float() / 2 for name in shapes for kind in ("weight", "bias")}


def _bert_probes() -> list[Probe]:
    rows = [
        ("a model of one layer", "bert_names", _bert_state(12, 1, "bert.", 1), 0, 3),
        ("layer 1 of three", "bert_part", _bert_state(12, 3, "bert.", 2), 1, 3),
        ("layer 1 of eleven", "bert_part", _bert_state(12, 11, "bert.", 3), 1, 2),
        ("names without a prefix", "bert_part", _bert_state(12, 2, "", 4), 0, 4),
        ("as many heads as in BERT-base", "bert_heads", _bert_state(24, 1, "bert.", 5), 0, 12),
    ]
    return [
        Probe(shows, stage, {"state_dict": state, "layer": layer, "num_heads": h})
        for shows, stage, state, layer, h in rows
    ]


# ---------------------------------------------------------------- answers that take more than a call


def _driven(answer: Any, use: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a probe's arguments that hands them to `use` together with the answer."""

    def call(*arguments: Any) -> Any:
        return use(answer, *arguments)

    # With the answer's own signature, so that a wrong one is still noticed; a class has another anyway.
    return call if inspect.isclass(answer) else functools.wraps(answer)(call)


def _drawing_nothing(make: Callable[..., Any], *arguments: Any) -> Any:
    """Call `make`; that a new layer draws its weights is no side effect."""
    with torch.random.fork_rng(devices=[]):
        return make(*arguments)


def _giving_shapes(answer: Any) -> Any:
    """A shape may be a tuple, a list or a torch.Size."""

    def plain(value: Any) -> Any:
        return tuple(map(plain, value)) if isinstance(value, tuple | list) else value

    def use(answer: Any, B: int, L: int, d_model: int, h: int) -> Any:
        return plain(answer(B, L, d_model, h))

    return _driven(answer, use) if callable(answer) else answer


def _as_a_cache(answer: Any) -> Any:
    return _driven(answer, pipelines.use_cache) if inspect.isclass(answer) else answer


def _with_its_own_layer(answer: Any) -> Any:
    """Where make_torch_mha is written beside the answer, the layer is made by it."""
    make = getattr(answer, "__globals__", {}).get("make_torch_mha")

    def use(answer: Any, mha: nn.MultiheadAttention, x: Tensor, keep: Tensor | None = None) -> Any:
        own = _drawing_nothing(make, mha.embed_dim, mha.num_heads)
        own.load_state_dict(mha.state_dict(), strict=False)
        return answer(own.requires_grad_(False).eval(), x, keep)

    return answer if make is None else _driven(answer, use)


def _giving_weights(answer: Any) -> Any:
    """The weights are given in a dict; a layer that holds them will do as well."""

    def use(answer: Any, mha: nn.MultiheadAttention) -> Any:
        given = _drawing_nothing(answer, mha)
        named = dict(given.named_parameters()) if isinstance(given, nn.Module) else given
        if not isinstance(named, dict):
            return given
        return {str(name).removesuffix(".weight"): x for name, x in named.items()}

    return _driven(answer, use) if callable(answer) else answer


def _giving_a_layer(answer: Any) -> Any:
    """The layer that was loaded is tried on an input."""

    def use(answer: Any, state_dict: pipelines.State, layer: int, num_heads: int) -> Any:
        given = _drawing_nothing(answer, state_dict, layer, num_heads)
        x = pipelines.bert_input(state_dict)
        return given(x, x, x) if isinstance(given, nn.Module) else given

    return _driven(answer, use) if callable(answer) else answer


# ---------------------------------------------------------------- references that the package has no name for


def _shapes(B: int, L: int, d_model: int, h: int) -> tuple[tuple[int, ...], ...]:
    """Read the shapes off the layer itself."""
    layer, X = _drawing_nothing(mha.MultiHeadAttention, d_model, h), torch.zeros(B, L, d_model)
    q, k, v = layer.W_q(X), layer.W_k(X), layer.W_v(X)
    split = [mha.split_heads(x, h) for x in (q, k, v)]
    heads, weights = mha.scaled_dot_product_attention(*split)
    joined = mha.merge_heads(heads)
    return tuple(tuple(x.shape) for x in (X, q, split[0], weights, heads, joined, layer.W_o(joined)))


def _call_torch_mha(layer: nn.MultiheadAttention, x: Tensor, keep: Tensor | None = None) -> Any:
    # The package's own layer, since it is that which the call has to agree with.
    layer = mha.MultiHeadAttention.from_torch(layer)
    if keep is None:
        return layer(x, x, x)
    return layer(x, x, x, keep[:, None, None] if keep.ndim == 2 else keep[:, None])


def _call_torch_sdpa(
    Q: Tensor, K: Tensor, V: Tensor, keep: Tensor | None = None, causal: bool = False
) -> Tensor:
    if causal:
        allowed = mha.causal_mask(Q.size(-2), K.size(-2))
        keep = allowed if keep is None else keep & allowed
    return mha.scaled_dot_product_attention(Q, K, V, keep)[0]


def _linear(x: Tensor, W: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, W)


def _single(
    name: str, signature: str, reference: Stage, stage: str, probes: Callable[[], list[Probe]]
) -> Exercise:
    stages = {stage: getattr(pipelines, stage)}
    return Exercise(name, signature, reference, stages, pipelines.alone(stage), probes)


EXERCISES = {
    exercise.name: exercise
    for exercise in (
        _single("linear_projection", "(x, W)", _linear, "project", lambda: _projection_probes("x")),
        _single("split_heads", "(x, num_heads)", mha.split_heads, "split", _split_probes),
        Exercise(
            "scaled_dot_product_attention",
            "(Q, K, V, mask=None)",
            mha.scaled_dot_product_attention,
            pipelines.ATTENTION,
            pipelines.attention,
            _attention_probes,
        ),
        _single("merge_heads", "(x)", mha.merge_heads, "merge", _merge_probes),
        _single(
            "output_projection", "(concat, W_o)", _linear, "project", lambda: _projection_probes("concat")
        ),
        _single("causal_mask", "(Lq, Lk=None)", mha.causal_mask, "causal", _causal_probes),
        _single("padding_mask", "(lengths, max_len)", mha.padding_mask, "padding", _padding_probes),
        _single("repeat_kv", "(x, n_rep)", mha.repeat_kv, "repeat", _repeat_probes),
        Exercise(
            "shapes",
            "(B, L, d_model, h)",
            _shapes,
            pipelines.SHAPES,
            pipelines.shapes,
            _shapes_probes,
            _giving_shapes,
        ),
        Exercise(
            "apply_rope", "(x, positions)", mha.apply_rope, pipelines.ROPE, pipelines.rope, _rope_probes
        ),
        Exercise(
            "alibi_slopes", "(num_heads)", mha.alibi_slopes, pipelines.ALIBI, pipelines.alibi, _alibi_probes
        ),
        Exercise(
            "online_attention",
            "(Q, K, V, block)",
            mha.online_attention,
            pipelines.TILES,
            pipelines.online,
            _tile_probes,
        ),
        Exercise(
            "kv_cache",
            " with append(k, v), reset() and len()",
            mha.KVCache,
            pipelines.CACHE,
            pipelines.cache,
            _cache_probes,
            _as_a_cache,
        ),
        Exercise(
            "cached_attention",
            "(q, k, v, cache)",
            mha.cached_attention,
            pipelines.CACHED,
            pipelines.cached,
            _cached_probes,
        ),
        Exercise(
            "call_torch_mha",
            "(mha, x, keep=None)",
            _call_torch_mha,
            pipelines.TORCH_MHA,
            pipelines.torch_mha,
            _torch_mha_probes,
            _with_its_own_layer,
        ),
        Exercise(
            "call_torch_sdpa",
            "(Q, K, V, keep=None, causal=False)",
            _call_torch_sdpa,
            pipelines.TORCH_SDPA,
            pipelines.torch_sdpa,
            _torch_sdpa_probes,
        ),
        Exercise(
            "from_torch_mha",
            "(mha)",
            mha.MultiHeadAttention.from_torch,
            pipelines.PACKED,
            pipelines.packed,
            _from_torch_probes,
            _giving_weights,
        ),
        Exercise(
            "load_bert_layer",
            "(state_dict, layer, num_heads)",
            load_bert_layer,
            pipelines.BERT,
            pipelines.bert_layer,
            _bert_probes,
            _giving_a_layer,
        ),
    )
}
