"""The cache of keys and values, and attention with it: their stages, and how they are tried."""

import contextlib
import copy
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import mha
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe, driven
from mha.check.exercises.attention import scale, score, softmax, weigh
from mha.check.exercises.inputs import random_tensors
from mha.check.exercises.masks import causal, causal_sense
from mha.check.outcome import detach, same


@dataclass
class Kept:
    """What one cache holds, and what has been appended to it."""

    k: Tensor | None = None
    v: Tensor | None = None
    steps: int = 0  # as many as were appended since the last reset
    tokens: int = 0  # in these steps
    last: int = 0  # in the last of them
    ever: int = 0  # those before a reset too
    given: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # what a stage chose to remember


def cache_new(shared: Kept) -> Kept:
    """Each cache has its own keys and values; `shared` would be one and the same for all of them."""
    return Kept()


def cache_take(c: Kept, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys are taken for keys, values for values."""
    return k, v


def cache_keys(kept: Tensor | None, new: Tensor) -> Tensor:
    """New keys go behind those that are kept."""
    return new if kept is None else torch.cat([kept, new], dim=2)


def cache_values(kept: Tensor | None, new: Tensor) -> Tensor:
    """New values go behind those that are kept."""
    return new if kept is None else torch.cat([kept, new], dim=2)


def cache_give(c: Kept, k: Tensor, v: Tensor) -> Any:
    """Return all keys and all values; k and v are the new ones."""
    return c.k, c.v


def cache_reset(c: Kept) -> tuple[Tensor | None, Tensor | None]:
    """Nothing is left."""
    return None, None


def cache_length(c: Kept) -> int:
    """The number of tokens."""
    return 0 if c.k is None else c.k.size(2)


CACHE: dict[str, Stage] = {
    "cache_new": cache_new,
    "cache_take": cache_take,
    "cache_keys": cache_keys,
    "cache_values": cache_values,
    "cache_give": cache_give,
    "cache_length": cache_length,
    "cache_reset": cache_reset,
}


class StagedCache:
    """A cache that does what its stages say."""

    def __init__(self, stages: Mapping[str, Stage], shared: Kept) -> None:
        self._stages, self._kept = stages, stages["cache_new"](shared)

    def append(self, k: Tensor, v: Tensor) -> Any:
        """Add new tokens."""
        c, s = self._kept, self._stages
        new_k, new_v = s["cache_take"](c, k, v)
        c.k, c.v = s["cache_keys"](c.k, new_k), s["cache_values"](c.v, new_v)
        c.steps, c.last = c.steps + 1, k.size(2)
        c.tokens, c.ever = c.tokens + c.last, c.ever + c.last
        return s["cache_give"](c, k, v)

    def reset(self) -> None:
        """Forget."""
        c = self._kept
        c.k, c.v = self._stages["cache_reset"](c)
        c.steps = c.tokens = c.last = 0

    def __len__(self) -> int:
        return self._stages["cache_length"](self._kept)


SWAP = "swap"  # a step: go on with a second cache, or back to the first
Step = tuple[Tensor, Tensor] | Callable[[Any], int] | str | None  # keys and values, `len`, SWAP, a reset


def _named_step(step: Step) -> str:
    if isinstance(step, tuple):
        return f"append {step[0].size(2)}"
    return step if isinstance(step, str) else "reset"


class Steps(list[Step]):
    """Steps that can be read in a verdict: "append 2, reset, append 1"."""

    def __deepcopy__(self, memo: object) -> "Steps":
        return Steps(tuple(x.clone() for x in step) if isinstance(step, tuple) else step for step in self)

    def __repr__(self) -> str:
        return ", ".join(_named_step(step) for step in self if step is not len) or "nothing appended"


def missing(name: str) -> Exception:
    """Return the error that says that a cache lacks what was asked for."""
    if name == "__len__":
        return TypeError("len(cache) asks for a method __len__, and the class has none")
    return AttributeError(f"the class has no method {name}")


def other_arguments(of: str) -> Exception:
    """Return the error that says that something takes other arguments than it will be given."""
    return TypeError(f"it has to be called as {of}")


def _call(function: Callable[..., Any], *arguments: Any, of: str) -> Any:
    try:
        return function(*arguments)
    except TypeError:
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError:
            raise other_arguments(of) from None
        raise


def _method(cache: Any, name: str) -> Callable[..., Any]:
    # A method that Python looks up by itself has to be the class's.
    if not hasattr(type(cache) if name == "__len__" else cache, name):
        raise missing(name)
    return getattr(cache, name)


def use_cache(make: Callable[[], Any], steps: list[Step]) -> dict[str, Any]:
    """Append the steps' keys and values, reset, and ask for the length; return all that is to be seen.

    That is each length, what each append returned, and what has become of it at the end; and of which steps
    no gradient arrives there, if they ask for any.
    """
    caches, seen, returned = [_call(make, of="KVCache()")], {}, {}
    done = 0
    for step in steps:
        cache = caches[0]
        if step is len:
            _method(cache, "__len__")
            seen[f"len() {f'after step {done}' if done else 'at first'}"] = len(cache)
            continue
        done += 1
        if isinstance(step, str):
            caches = [caches[1] if len(caches) > 1 else make(), cache]
        elif step is None:
            _method(cache, "reset")()
        else:
            given = _call(_method(cache, "append"), *step, of="append(k, v)")
            parts = _parts(f"step {done}, {_named_step(step)}", given)
            returned |= parts
            seen |= {name: x.clone() if isinstance(x, Tensor) else x for name, x in parts.items()}
    return seen | {"what was returned, at the end": returned} | _without_gradient(returned, steps)


def _without_gradient(returned: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Tell to which of the steps what the last append returned passes no gradient on."""
    given = [step for step in steps if isinstance(step, tuple) and step[0].requires_grad]
    last = [x for x in list(returned.values())[-2:] if isinstance(x, Tensor)]
    if not given or not last:
        return {}
    graph = [x.sum() for x in last if x.requires_grad]
    inputs = [x for step in given for x in step]
    gradients = torch.autograd.grad(sum(graph), inputs, allow_unused=True) if graph else [None] * len(inputs)
    cut = [i for i, gradient in enumerate(gradients) if gradient is None]
    return (
        {"no gradient arrives at": tuple(f"{'kv'[i % 2]} of step {i // 2 + 1}" for i in cut)} if cut else {}
    )


def _parts(name: str, given: Any) -> dict[str, Any]:
    """Return what append returned, by name, keys and values apart."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        return {name: _plain(given)}
    return {f"{name}: {part}": _plain(x) for part, x in zip(("keys", "values"), given, strict=True)}


def _plain(x: Any) -> Any:
    """Return a tensor without most of its room; of what is none its kind, which says enough."""
    if isinstance(x, Tensor):
        return _room_cut(x)
    if isinstance(x, tuple):
        return tuple(map(_plain, x))
    return x if x is None or isinstance(x, int) else f"a {type(x).__name__}"


def _room_cut(x: Tensor) -> Tensor:
    """Return keys or values with one token of zeros at most at their end: a buffer has any size."""
    if x.ndim != 4:
        return x
    filled = x.ne(0).any(dim=3).any(dim=1).any(dim=0)
    return x[:, :, : int(filled.nonzero().max()) + 2 if filled.any() else 1]


def cache(s: Mapping[str, Stage], steps: list[Step]) -> Any:
    """Use caches with these stages."""
    shared = Kept()
    return use_cache(lambda: StagedCache(s, shared), steps)


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


def cached_hide(scores: Tensor, allowed: Tensor) -> Tensor:
    """Take what may not be seen out of the softmax."""
    return scores.masked_fill(allowed == 0, -math.inf)


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
    "causal_sense": causal_sense,
    "cached_hide": cached_hide,
    "softmax": softmax,
    "weigh": weigh,
    "cached_give": cached_give,
}


def cached(s: Mapping[str, Stage], q: Tensor, k: Tensor, v: Tensor, cache: mha.KVCache) -> Any:
    """Run the stages of attention with a cache, and look at what they leave in it."""
    return _and_the_cache(functools.partial(_cached, s), q, k, v, cache)


def _cached(s: Mapping[str, Stage], q: Tensor, k: Tensor, v: Tensor, cache: mha.KVCache) -> Any:
    L, num_heads = q.size(2), q.size(1)
    positions = s["cached_positions"](s["cached_start"](cache, L), L)
    q, k = s["turn_queries"](q, positions), s["turn_keys"](k, positions)
    k, v = s["cached_append"](cache, k, s["turn_values"](v, positions))
    scores = s["scale"](s["score"](q, k), q.size(-1), num_heads)
    scores = s["cached_hide"](scores, s["causal_sense"](s["causal"](L, k.size(2))))
    return s["cached_give"](s["weigh"](s["softmax"](scores, q.size(-1)), v))


class LeftCacheError(ValueError):
    """The output of a step is right, but the cache is left in a state in which the next one goes wrong."""


def _and_the_cache(attend: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, cache: Any) -> Any:
    """Attend; where the output is right, see that the cache holds what it should.

    Raises:
        LeftCacheError: if it does not.
    """
    wanted, right = cache.right(q, k, v) if isinstance(cache, _Cache) else _right_of(cache, q, k, v)
    before = len(cache)
    output = attend(q, k, v, cache)
    if same(detach(output), wanted):
        left = _left(before, cache, right)
        if left is not None:
            raise LeftCacheError(f"the output is right, but afterwards the cache holds {left}")
    return output


def _right_of(cache: mha.KVCache, *new: Tensor) -> tuple[Tensor, mha.KVCache]:
    """Return the output that is wanted of new tokens, q, k and v, and the cache that should be left."""
    after = copy.deepcopy(cache)
    with torch.no_grad():
        return mha.cached_attention(*new, after), after


def _left(before: int, cache: Any, right: Any) -> str | None:
    """Say what a cache holds that should hold as much as another; None if it does."""
    added, new = len(cache) - before, len(right) - before
    if added == new:
        if not same(detach(cache._k), right._k):
            return "other keys than those rotated by their positions"
        return None if same(detach(cache._v), right._v) else "other values"
    if added == 2 * new:
        return "the new tokens twice"
    if added == 0:
        return "none of the new tokens"
    return f"{len(cache)} tokens, not {len(right)}" if len(cache) else "no tokens at all"


def _cache_probes() -> list[Probe]:
    def tokens(L: int, seed: int, B: int = 2, h: int = 3, d_v: int = 5) -> tuple[Tensor, Tensor]:
        k, v = random_tensors((B, h, L, 4), (B, h, L, d_v), seed=seed)
        return k, v

    def measured(*steps: Step) -> list[Step]:
        """Ask for the length before and after each step."""
        return [len, *(part for step in steps for part in (step, len))]

    one, two, three = (tokens(1, seed, B=1, h=1, d_v=4) for seed in (1, 2, 3))
    graph = [tuple(x.requires_grad_() for x in tokens(L, L)) for L in (3, 2, 1)]
    prompt, later, again = (tokens(L, seed, d_v=4) for L, seed in ((3, 10), (2, 11), (3, 12)))
    half = [(k.half(), v.half()) for k, v in (prompt, later)]
    rows: list[tuple[str, str, list[Step]]] = [
        ("an empty cache", "cache_length", measured()),
        ("one token", "cache_length", measured(one)),
        ("one token after another, one head", "cache_keys", measured(one, two, three)),
        ("several tokens at once", "cache_length", measured(tokens(4, 4))),
        ("several tokens, then one", "cache_keys", measured(tokens(4, 4), tokens(1, 5))),
        ("several at once after several", "cache_keys", measured(tokens(2, 6), tokens(5, 7), tokens(1, 8))),
        ("values as wide as keys", "cache_take", measured(prompt, later, again)),
        ("a reset", "cache_reset", measured(tokens(2, 6), tokens(1, 7), None)),
        (
            "a new sequence after a reset",
            "cache_reset",
            measured(tokens(3, 4), None, tokens(2, 9), tokens(1, 5)),
        ),
        ("a reset of an empty cache", "cache_reset", measured(None, one)),
        ("a reset after one step, values as wide as keys", "cache_reset", measured(prompt, None, again)),
        ("two caches in turn", "cache_new", measured(prompt, SWAP, later, SWAP, later)),
        ("half precision", "cache_keys", measured(*half)),
        ("many tokens", "cache_keys", measured(*(tokens(L, L, B=1, h=1) for L in (30, 1, 8, 1)))),
        # As some mistakes show in the length, and some raise there, others are looked for without it.
        (
            "lengths never asked for",
            "cache_values",
            [tokens(2, 6), tokens(1, 5), None, tokens(3, 4), tokens(1, 7)],
        ),
        (
            "two caches, and neither lengths nor resets",
            "cache_new",
            [prompt, later, SWAP, again, SWAP, later],
        ),
        ("the length at the end only", "cache_length", [tokens(2, 6), tokens(1, 5), len]),
        ("steps that ask for gradients", "cache_take", list(graph)),
        ("values as wide as keys, and a reset", "cache_reset", measured(prompt, later, None, again)),
    ]
    return [Probe(shows, stage, {"steps": Steps(steps)}) for shows, stage, steps in rows]


@contextlib.contextmanager
def _as_it_was(answer: type) -> Iterator[None]:
    """Let what a class keeps for all its caches hold nothing at first, and be put back afterwards.

    So what one input left behind there does not show on the next.
    """
    kept = {name: x for name, x in vars(answer).items() if isinstance(x, list | dict | Tensor | None)}
    functions = [x for x in vars(answer).values() if inspect.isfunction(x) and x.__defaults__]
    defaults = [function.__defaults__ for function in functions]
    try:
        for name, x in kept.items():
            if not name.startswith("__"):
                setattr(answer, name, _without_tensors(x))
        for function, values in zip(functions, defaults, strict=True):
            function.__defaults__ = tuple(map(_without_tensors, values))
        yield
    finally:
        for name, x in kept.items():
            if not name.startswith("__"):
                setattr(answer, name, x)
        for function, values in zip(functions, defaults, strict=True):
            function.__defaults__ = values


def _without_tensors(x: Any) -> Any:
    if isinstance(x, Tensor):
        return None
    if isinstance(x, list | dict) and any(isinstance(item, Tensor) for item in x):
        return type(x)()
    return copy.copy(x) if isinstance(x, list | dict) else x


def _as_a_cache(answer: Any) -> Any:
    def use(answer: type, steps: list[Step]) -> dict[str, Any]:
        with _as_it_was(answer):
            return use_cache(answer, steps)

    return driven(answer, use) if inspect.isclass(answer) else answer


def _looking_at_the_cache(answer: Any) -> Any:
    return driven(answer, _and_the_cache) if callable(answer) else answer


class _Cache(mha.KVCache):
    """A cache that is there to be changed: it counts as an input that stayed as it was.

    Its copies share what the last new tokens should have come to: mostly they are given the same once more.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: list[tuple[tuple[Tensor, ...], Tensor, mha.KVCache]] = []

    def right(self, *new: Tensor) -> tuple[Tensor, mha.KVCache]:
        """Return what should become of new tokens, as `_right_of` does; it is worked out once."""
        given = (*new, *(x for x in (self._k, self._v) if x is not None))
        known = self._known[0] if self._known else None
        if known is None or len(known[0]) != len(given) or not all(map(torch.equal, known[0], given)):
            self._known[:] = [(tuple(x.clone() for x in given), *_right_of(self, *new))]
        return self._known[0][1:]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Cache)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"of {len(self)} tokens"

    def __deepcopy__(self, memo: object) -> "_Cache":
        other = _Cache()
        other._known = self._known
        if self._k is not None and self._v is not None:
            other._k, other._v = self._k.clone(), self._v.clone()
        return other

    def __getattr__(self, name: str) -> Any:
        raise no_such_method()

    def __getitem__(self, index: object) -> Any:
        raise no_such_method()


class OtherCacheError(AttributeError, TypeError):
    """A cache is asked for what caches of other libraries have: a method, an attribute, an item."""


def no_such_method() -> OtherCacheError:
    """Return the error that says what a cache can do, to those who take it for another."""
    return OtherCacheError("the cache has append(k, v), reset() and len(cache), and nothing else")


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
    _looking_at_the_cache,
)
