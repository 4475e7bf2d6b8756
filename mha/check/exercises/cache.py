"""The cache of keys and values, and attention with it: their stages, and how they are tried."""

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import mha
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe, driven
from mha.check.exercises.attention import scale, score, softmax, weigh
from mha.check.exercises.inputs import random_tensors
from mha.check.exercises.masks import causal


def cache_keys(kept: Tensor | None, new: Tensor) -> Tensor:
    """New keys go behind those that are kept."""
    return new if kept is None else torch.cat([kept, new], dim=2)


def cache_values(kept: Tensor | None, new: Tensor) -> Tensor:
    """New values go behind those that are kept."""
    return new if kept is None else torch.cat([kept, new], dim=2)


def cache_give(k_all: Tensor, v_all: Tensor, k: Tensor, v: Tensor) -> Any:
    """Return all keys and all values."""
    return k_all, v_all


def cache_reset(k: Tensor | None, v: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Nothing is left."""
    return None, None


def cache_length(k: Tensor | None, v: Tensor | None, calls: int) -> int:
    """The number of tokens."""
    return 0 if k is None else k.size(2)


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


Step = tuple[Tensor, Tensor] | Callable[[Any], int] | None  # keys and values, `len`, or None for a reset


class Steps(list[Step]):
    """Steps that can be read in a verdict: "append 2, reset, append 1"."""

    def __repr__(self) -> str:
        names = ["reset" if step is None else f"append {step[0].size(2)}" for step in self if step is not len]
        return ", ".join(names) or "nothing appended"


def use_cache(make: Callable[[], Any], steps: list[Step]) -> list[Any]:
    """Append the steps' keys and values, reset, and ask for the length; return all that is to be seen.

    That is each length, what each append returned, and what has become of it at the end.
    """
    cache = make()
    seen: list[Any] = []
    returned = []
    for step in steps:
        if step is None:
            cache.reset()
        elif callable(step):
            seen.append(step(cache))
        else:
            given = cache.append(*step)
            returned.append(tuple(given) if isinstance(given, list) else given)
            seen.append(copy.deepcopy(returned[-1]))
    return seen + returned


def cache(s: Mapping[str, Stage], steps: list[Step]) -> Any:
    """Use a cache with these stages."""
    return use_cache(lambda: StagedCache(s), steps)


def cached_start(cache: mha.KVCache, L: int) -> int:
    """The first new token stands behind those in the cache."""
    return len(cache)


def cached_positions(start: int, L: int) -> Tensor:
    """One position for each new token."""
    return torch.arange(start, start + L)


def turn_queries(q: Tensor, positions: Tensor) -> Tensor:
    """Queries are rotated."""
    return mha.apply_rope(q, positions)


def turn_keys(k: Tensor, positions: Tensor) -> Tensor:
    """Keys are rotated."""
    return mha.apply_rope(k, positions)


def turn_values(v: Tensor, positions: Tensor) -> Tensor:
    """Values are not rotated."""
    return v


def cached_append(cache: mha.KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
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


def cached(s: Mapping[str, Stage], q: Tensor, k: Tensor, v: Tensor, cache: mha.KVCache) -> Any:
    """Run the stages of attention with a cache."""
    L, num_heads = q.size(2), q.size(1)
    positions = s["cached_positions"](s["cached_start"](cache, L), L)
    q, k = s["turn_queries"](q, positions), s["turn_keys"](k, positions)
    k, v = s["cached_append"](cache, k, s["turn_values"](v, positions))
    scores = s["scale"](s["score"](q, k), q.size(-1), num_heads)
    scores = scores.masked_fill(s["causal"](L, k.size(2)) == 0, -math.inf)
    return s["cached_give"](s["weigh"](s["softmax"](scores, q.size(-1)), v))


def _cache_probes() -> list[Probe]:
    def tokens(L: int, seed: int, B: int = 2, h: int = 3) -> tuple[Tensor, Tensor]:
        k, v = random_tensors((B, h, L, 4), (B, h, L, 5), seed=seed)
        return k, v

    def measured(*steps: Step) -> list[Step]:
        """Ask for the length before and after each step."""
        return [len, *(part for step in steps for part in (step, len))]

    one, two, three = tokens(1, 1, B=1, h=1), tokens(1, 2, B=1, h=1), tokens(1, 3, B=1, h=1)
    rows: list[tuple[str, str, list[Step]]] = [
        ("an empty cache", "cache_length", measured()),
        ("one token", "cache_length", measured(one)),
        ("one token after another, one head", "cache_keys", measured(one, two, three)),
        ("several tokens at once", "cache_length", measured(tokens(4, 4))),
        ("several tokens, then one", "cache_keys", measured(tokens(4, 4), tokens(1, 5))),
        ("several at once after several", "cache_keys", measured(tokens(2, 6), tokens(5, 7), tokens(1, 8))),
        ("a reset", "cache_reset", measured(tokens(2, 6), tokens(1, 7), None)),
        (
            "a new sequence after a reset",
            "cache_reset",
            measured(tokens(3, 4), None, tokens(2, 9), tokens(1, 5)),
        ),
        ("a reset of an empty cache", "cache_reset", measured(None, one)),
        # As some mistakes show in the length, and some raise there, others are looked for without it.
        (
            "lengths never asked for",
            "cache_values",
            [tokens(2, 6), tokens(1, 5), None, tokens(3, 4), tokens(1, 7)],
        ),
        ("the length at the end only", "cache_length", [tokens(2, 6), tokens(1, 5), len]),
    ]
    return [Probe(shows, stage, {"steps": Steps(steps)}) for shows, stage, steps in rows]


def _as_a_cache(answer: Any) -> Any:
    return driven(answer, use_cache) if inspect.isclass(answer) else answer


class _Cache(mha.KVCache):
    """A cache that is there to be changed: it counts as an input that stayed as it was."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Cache)

    __hash__ = object.__hash__


def _cached_probes() -> list[Probe]:
    def arguments(
        cached: int, L: int, by: float = 1.0, B: int = 2, h: int = 3, d_k: int = 6
    ) -> dict[str, Any]:
        sizes = (B, h, cached + L, d_k)
        q, k, v = random_tensors(sizes, sizes, sizes, seed=cached + 10 * L)
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
        # Not as many examples as new tokens: for the package, a mask (Lq, Lk) could then be read in two ways.
        Probe("as many tokens as heads, half of them new", "score", arguments(2, 2, B=3, h=4, d_k=4)),
        Probe("as many tokens as heads, one of them new", "score", arguments(3, 1, h=4, d_k=4)),
        Probe("large scores", "softmax", arguments(5, 2, B=3, by=60.0)),
    ]


KV_CACHE = Exercise(
    "kv_cache",
    " with append(k, v), reset() and len()",
    mha.KVCache,
    CACHE,
    cache,
    _cache_probes,
    _as_a_cache,
)

CACHED_ATTENTION = Exercise(
    "cached_attention",
    "(q, k, v, cache)",
    mha.cached_attention,
    CACHED,
    cached,
    _cached_probes,
)
