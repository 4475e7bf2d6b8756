"""What goes wrong when keys and values are kept, and when new tokens attend to them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mha import KVCache
from mha.check.catalogue import mistake
from mha.check.exercises.cache import cached_positions, turn_keys, turn_queries

Kept = Tensor | None
Join = Callable[[Kept, Tensor], Tensor]

# ---------------------------------------------------------------- what is kept


def _kept(id: str, title: str, effect: str, hint: str, join: Join) -> None:
    """Enter a way to keep both keys and values wrongly."""
    mistake(id, title, effect, hint, stage="cache_keys", also={"cache_values": join})(join)


def _along(dim: int) -> Join:
    return lambda kept, new: new if kept is None else torch.cat([kept, new], dim=dim)


_kept(
    "cache-grows-in-heads",
    "The cache grows along dim 1, the heads",
    "The number of heads grows and the length does not; with one head the error comes later.",
    "in (B, h, L, d_k) the tokens are dim 2 (or -2).",
    _along(1),
)
_kept(
    "cache-grows-in-batch",
    "The cache grows along dim 0, the batch",
    "The number of examples grows and the length does not.",
    "in (B, h, L, d_k) the tokens are dim 2 (or -2).",
    _along(0),
)
_kept(
    "cache-grows-in-numbers",
    "The cache grows along dim -1, the numbers of a token",
    "Keys get longer, and there are not more of them.",
    "in (B, h, L, d_k) the tokens are dim 2 (or -2).",
    _along(-1),
)
_kept(
    "cache-appended-twice",
    "Every step is appended twice",
    "The cache is twice as long as the text.",
    "update the cache in one place only.",
    lambda kept, new: torch.cat([new, new] if kept is None else [kept, new, new], dim=2),
)
_kept(
    "cache-later-steps-twice",
    "Every step but the first is appended twice",
    "The cache is longer than the text from the second step on.",
    "update the cache in one place only.",
    lambda kept, new: new if kept is None else torch.cat([kept, new, new], dim=2),
)
_kept(
    "cache-first-step-twice",
    "The first step is appended twice",
    "The first keys count double: they are set, and then appended as well.",
    "append with else, or return after the first step.",
    lambda kept, new: torch.cat([new if kept is None else kept, new], dim=2),
)
_kept(
    "cache-appended-in-front",
    "New tokens are put in front of the old ones",
    "Order is lost: a causal mask hides the old tokens instead of the later ones.",
    "torch.cat([kept, new], dim=2): the new ones behind.",
    lambda kept, new: new if kept is None else torch.cat([new, kept], dim=2),
)
_kept(
    "cache-overwritten",
    "Each step replaces what was kept",
    "A token sees only the tokens of its own step.",
    "torch.cat([kept, new], dim=2).",
    lambda kept, new: new,
)
_kept(
    "cache-never-updated",
    "Only the first step is kept",
    "Later tokens see the beginning, and not even themselves.",
    "assign what torch.cat returns: it changes nothing in place.",
    lambda kept, new: new if kept is None else kept,
)
_kept(
    "cache-stacked",
    "The steps are stacked along a new axis",
    "A fifth axis appears in the second step.",
    "torch.cat joins along an axis that is there: torch.cat([kept, new], dim=2).",
    lambda kept, new: new if kept is None else torch.stack([kept, new], dim=2),
)
_kept(
    "cache-last-token-of-step",
    "Only the last token of each step is kept",
    "Right for one token at a time; of a prompt only the end is left.",
    "append all tokens of the step.",
    lambda kept, new: new[:, :, -1:] if kept is None else torch.cat([kept, new[:, :, -1:]], dim=2),
)
_kept(
    "cache-last-token-of-later-steps",
    "After the first step, only the last token of each is kept",
    "Right for a prompt followed by one token at a time; of a longer step the beginning is lost.",
    "append all tokens of the step.",
    lambda kept, new: new if kept is None else torch.cat([kept, new[:, :, -1:]], dim=2),
)
_kept(
    "cache-added",
    "New keys and values are added to the old ones as numbers",
    "An error where lengths differ, else one token in the place of two.",
    "torch.cat([kept, new], dim=2) lays them one behind the other.",
    lambda kept, new: new if kept is None else kept + new,
)


def _one_of_two(id: str, title: str, effect: str, hint: str, stage: str, join: Join) -> None:
    mistake(id, title, effect, hint, stage=stage)(join)


for _what, _other in (("keys", "values"), ("values", "keys")):
    _one_of_two(
        f"cache-only-{_what}-grow",
        f"Only the {_what} are appended; the {_other} are those of the last step",
        "Keys and values differ in length from the second step on.",
        f"append the {_other} too.",
        f"cache_{_other}",
        lambda kept, new: new,
    )
    _one_of_two(
        f"cache-{_other}-of-first-step",
        f"The {_other} stay those of the first step",
        "Keys and values differ in length from the second step on.",
        f"append the {_other} too.",
        f"cache_{_other}",
        lambda kept, new: new if kept is None else kept,
    )
    _one_of_two(
        f"cache-{_other}-in-front",
        f"New {_other} are put in front of the old ones",
        "Each key belongs to the value of another token.",
        "torch.cat([kept, new], dim=2), for both alike.",
        f"cache_{_other}",
        lambda kept, new: new if kept is None else torch.cat([new, kept], dim=2),
    )
    _one_of_two(
        f"cache-{_other}-appended-twice",
        f"The {_other} are appended twice",
        "There are twice as many as there are tokens.",
        "update the cache in one place only.",
        f"cache_{_other}",
        lambda kept, new: torch.cat([new, new] if kept is None else [kept, new, new], dim=2),
    )


# ---------------------------------------------------------------- what append returns


def _given(id: str, title: str, effect: str, hint: str, give: Callable[..., Any]) -> None:
    mistake(id, title, effect, hint, stage="cache_give")(give)


_given(
    "cache-returns-new-only",
    "append returns the new keys and values only",
    "The cache is right, but the new tokens do not see the old ones.",
    "return all that is kept.",
    lambda k_all, v_all, k, v: (k, v),
)
_given(
    "cache-returns-values-first",
    "append returns the values first and the keys second",
    "Whoever unpacks them takes one for the other.",
    "return keys, values.",
    lambda k_all, v_all, k, v: (v_all, k_all),
)
_given(
    "cache-returns-nothing",
    "append returns nothing",
    "The caller gets None in place of keys and values.",
    "return all keys and all values.",
    lambda k_all, v_all, k, v: None,
)
_given(
    "cache-returns-keys-only",
    "append returns the keys only",
    "The values are missing.",
    "return all keys and all values.",
    lambda k_all, v_all, k, v: k_all,
)
_given(
    "cache-returns-keys-twice",
    "append returns the keys in place of the values too",
    "The output is a mix of keys.",
    "return all keys and all values.",
    lambda k_all, v_all, k, v: (k_all, k_all),
)
_given(
    "cache-returns-length",
    "append returns how long the cache is",
    "The caller gets a number in place of keys and values.",
    "return all keys and all values.",
    lambda k_all, v_all, k, v: k_all.size(2),
)
_given(
    "cache-returns-last-token",
    "append returns the last token's keys and values only",
    "The new tokens do not see the old ones.",
    "return all that is kept.",
    lambda k_all, v_all, k, v: (k_all[:, :, -1:], v_all[:, :, -1:]),
)


# ---------------------------------------------------------------- length and reset


def _length(id: str, title: str, effect: str, hint: str, length: Callable[..., int]) -> None:
    mistake(id, title, effect, hint, stage="cache_length")(length)


for _dim, _name in ((0, "examples"), (1, "heads"), (3, "numbers of a key")):
    _length(
        f"cache-length-of-{_name.split()[0]}",
        f"len() counts the {_name}",
        "New tokens are put at a wrong position, the same in every step.",
        "in (B, h, L, d_k) the tokens are dim 2: k.size(2).",
        lambda k, v, calls, dim=_dim: 0 if k is None else k.size(dim),
    )
_length(
    "cache-length-of-steps",
    "len() counts the steps, not the tokens",
    "Right for one token at a time; after a prompt, positions are too small.",
    "count tokens: k.size(2).",
    lambda k, v, calls: calls,
)
_length(
    "cache-length-of-python",
    "len() is that of the tensor, len(k), its first axis, also of an empty cache 0",
    "It counts examples; for one example it is always 1.",
    "len(tensor) is size(0); tokens are k.size(2).",
    lambda k, v, calls: 0 if k is None else len(k),
)
_length(
    "cache-length-both",
    "len() counts keys and values together",
    "It is twice the number of tokens.",
    "each token has one key and one value: k.size(2).",
    lambda k, v, calls: 0 if k is None else k.size(2) + v.size(2),
)
_length(
    "cache-length-one-less",
    "len() is one less than the number of tokens",
    "That is the position of the last token, not of the next.",
    "k.size(2), without - 1.",
    lambda k, v, calls: 0 if k is None else k.size(2) - 1,
)
_length(
    "cache-length-of-empty",
    "len() of an empty cache asks None for its size",
    "An error before the first step, when the first position is asked for.",
    "return 0 if nothing is kept.",
    lambda k, v, calls: k.size(2),
)
_length(
    "cache-length-of-all-numbers",
    "len() counts all numbers of all keys",
    "New tokens are put at positions far too large.",
    "count tokens: k.size(2).",
    lambda k, v, calls: 0 if k is None else k.numel(),
)


def _reset(id: str, title: str, effect: str, hint: str, reset: Callable[..., Any]) -> None:
    mistake(id, title, effect, hint, stage="cache_reset")(reset)


_reset(
    "cache-reset-does-nothing",
    "reset forgets nothing",
    "A new sequence sees the tokens of the old one.",
    "set keys and values to None; assign to self.k, not to k.",
    lambda k, v: (k, v),
)
_reset(
    "cache-reset-keys-only",
    "reset forgets the keys and keeps the values",
    "In a new sequence there are more values than keys.",
    "set both to None.",
    lambda k, v: (None, v),
)
_reset(
    "cache-reset-values-only",
    "reset forgets the values and keeps the keys",
    "In a new sequence there are more keys than values.",
    "set both to None.",
    lambda k, v: (k, None),
)
_reset(
    "cache-reset-to-zeros",
    "reset sets keys and values to zeros instead of removing them",
    "A new sequence sees tokens that never were, and its positions do not start at 0.",
    "set both to None.",
    lambda k, v: tuple(None if x is None else torch.zeros_like(x) for x in (k, v)),
)
_reset(
    "cache-reset-keeps-last",
    "reset keeps the last token",
    "A new sequence sees the last token of the old one.",
    "set both to None.",
    lambda k, v: tuple(None if x is None else x[:, :, -1:] for x in (k, v)),
)


# ---------------------------------------------------------------- positions behind a cache


@mistake(
    "cached-start-at-zero",
    "New tokens are rotated from position 0 in every step",
    "The first step is right; from the second on, distances are wrong and text derails.",
    "start at the number of cached tokens: start = len(cache).",
    stage="cached_start",
)
def _(cache: KVCache, L: int) -> int:
    return 0


@mistake(
    "cached-start-after-append",
    "The length of the cache is asked for after the new tokens are in it",
    "All positions are too large by the number of new tokens: distances to old tokens are wrong.",
    "start = len(cache) *before* append.",
    stage="cached_start",
)
def _(cache: KVCache, L: int) -> int:
    return len(cache) + L


@mistake(
    "cached-start-one-less",
    "The first new token gets the position of the last old one",
    "Two tokens share a position from the second step on.",
    "the next free position is len(cache).",
    stage="cached_start",
)
def _(cache: KVCache, L: int) -> int:
    return max(len(cache) - 1, 0)


@mistake(
    "cached-start-one-more",
    "Behind a cache, the new tokens start one position too far",
    "There is a gap between old and new tokens.",
    "positions are counted from 0: the next free one is len(cache).",
    stage="cached_start",
)
def _(cache: KVCache, L: int) -> int:
    return len(cache) + 1 if len(cache) else 0


@mistake(
    "cached-same-position",
    "All new tokens get the same position",
    "Right for one token at a time; a prompt loses its order.",
    "torch.arange(start, start + L).",
    stage="cached_positions",
)
def _(start: int, L: int) -> Tensor:
    return torch.full((L,), start)


@mistake(
    "cached-positions-backwards",
    "The positions of the new tokens run backwards",
    "Right for one token at a time; a prompt is read from its end.",
    "torch.arange(start, start + L).",
    stage="cached_positions",
)
def _(start: int, L: int) -> Tensor:
    return cached_positions(start, L).flip(0)


# ---------------------------------------------------------------- what is rotated


@mistake(
    "cached-queries-not-rotated",
    "The queries are not rotated",
    "A score depends on the key's position, not on the distance.",
    "rotate queries and keys alike.",
    stage="turn_queries",
)
def _(q: Tensor, positions: Tensor) -> Tensor:
    return q


@mistake(
    "cached-keys-not-rotated",
    "The new keys go into the cache as they are, not rotated",
    "They do not fit the rotated keys of earlier steps.",
    "rotate first, then append: the cache takes up rotated keys.",
    stage="turn_keys",
)
def _(k: Tensor, positions: Tensor) -> Tensor:
    return k


@mistake(
    "cached-nothing-rotated",
    "Neither queries nor keys are rotated",
    "Attention does not know the order of the tokens.",
    "apply_rope to both, with the positions of the new tokens.",
    stage="turn_queries",
    also={"turn_keys": lambda k, positions: k},
)
def _(q: Tensor, positions: Tensor) -> Tensor:
    return q


@mistake(
    "cached-values-rotated",
    "The values are rotated as well",
    "The weights are right, the output is not: what is mixed depends on where it stood.",
    "only queries and keys are rotated.",
    stage="turn_values",
)
def _(v: Tensor, positions: Tensor) -> Tensor:
    return turn_keys(v, positions)


@mistake(
    "cached-queries-from-zero",
    "The queries are rotated from position 0, the keys from their own",
    "The first step is right; afterwards the query believes to stand in front of all keys.",
    "queries and keys of the new tokens have the same positions.",
    stage="turn_queries",
)
def _(q: Tensor, positions: Tensor) -> Tensor:
    return turn_queries(q, positions - positions[0])


@mistake(
    "cached-keys-from-zero",
    "The keys are rotated from position 0, the queries from their own",
    "The first step is right; afterwards new keys seem to stand at the beginning.",
    "queries and keys of the new tokens have the same positions.",
    stage="turn_keys",
)
def _(k: Tensor, positions: Tensor) -> Tensor:
    return turn_keys(k, positions - positions[0])


@mistake(
    "cached-rotated-twice",
    "The new queries and keys are rotated twice",
    "Distances seem twice as large among new tokens, and wrong to old ones.",
    "rotate once, before append.",
    stage="turn_queries",
    also={"turn_keys": lambda k, positions: turn_keys(turn_keys(k, positions), positions)},
)
def _(q: Tensor, positions: Tensor) -> Tensor:
    return turn_queries(turn_queries(q, positions), positions)


def _append_then_rotate(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    k, v = cache.append(k, v)
    return turn_keys(k, torch.arange(k.size(2))), v


@mistake(
    "cached-all-keys-rotated-again",
    "The keys are appended as they are, and all keys of the cache rotated in every step",
    "What the cache holds is rotated once more; with a cache of its own, work is done again in every step.",
    "rotate the new keys only, and append them rotated.",
    stage="cached_append",
    also={"turn_keys": lambda k, positions: k},
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _append_then_rotate(cache, k, v)


@mistake(
    "cached-keys-rotated-before-and-after",
    "The keys are rotated before they are appended, and all of them again after",
    "Keys are turned by twice their position.",
    "rotate the new keys only, before append.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _append_then_rotate(cache, k, v)


# ---------------------------------------------------------------- append and give


@mistake(
    "cached-not-used",
    "The new tokens attend to the new tokens only",
    "What append returns is not used: the text so far is forgotten.",
    "k_all, v_all = cache.append(k, v), and attend to these.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    cache.append(k, v)
    return k, v


@mistake(
    "cached-appended-twice",
    "The new tokens are appended twice",
    "Each new key is seen twice, and gets twice the weight.",
    "call append once for each step.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    cache.append(k, v)
    return cache.append(k, v)


@mistake(
    "cached-keys-and-values-exchanged",
    "Keys and values are exchanged",
    "Queries are compared with values, and keys are mixed.",
    "k_all, v_all = cache.append(k, v).",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    k, v = cache.append(k, v)
    return v, k


@mistake(
    "cached-reset",
    "The cache is reset in every step",
    "Each step is the beginning of a new text.",
    "the caller resets the cache, between two texts.",
    stage="cached_append",
    also={"cached_start": lambda cache, L: [cache.reset(), 0][1]},
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return cache.append(k, v)


@mistake(
    "cached-last-token-only",
    "Only the last new token's output comes back",
    "Right for one token at a time; of a prompt one row is left.",
    "return a row for each new token.",
    stage="cached_give",
)
def _(output: Tensor) -> Any:
    return output[:, :, -1:]


@mistake(
    "cached-merged",
    "The heads are joined: (B, L new, h·d_k)",
    "Joining is a step of its own.",
    "return (B, h, L new, d_k).",
    stage="cached_give",
)
def _(output: Tensor) -> Any:
    return output.transpose(1, 2).flatten(2)


@mistake(
    "cached-weights-too",
    "Weights come back beside the output of the new tokens",
    "Whoever uses the output as a tensor finds a tuple.",
    "return the output: of a pair, its first part.",
    stage="cached_give",
    also={"weigh": lambda weights, V: (weights @ V, weights)},
)
def _(output: Any) -> Any:
    return output
