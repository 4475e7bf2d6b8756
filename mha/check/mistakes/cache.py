"""What goes wrong when keys and values are kept, and when new tokens attend to them."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mha import KVCache
from mha.check.catalogue import Stage, mistake
from mha.check.exercises.cache import (
    CACHE,
    CACHED,
    Kept,
    cached_positions,
    missing,
    no_such_method,
    other_arguments,
    turn_keys,
    turn_queries,
)
from mha.check.exercises.masks import causal

Join = Callable[[Tensor | None, Tensor], Tensor]


def _raising(error: Exception) -> Stage:
    def stage(*_: Any) -> Any:
        raise error

    return stage


# ---------------------------------------------------------------- the class, and whose the tokens are


def _unusable(id: str, title: str, effect: str, hint: str, stage: str, error: Exception) -> None:
    """Enter what raises before anything else of a class can be seen, so that no second mistake can."""
    others = {name: right for name, right in CACHE.items() if name != stage}
    mistake(id, title, effect, hint, stage=stage, also=others)(_raising(error))


_unusable(
    "cache-append-takes-other-arguments",
    "append asks for other arguments than keys and values",
    "It raises a TypeError in the first step.",
    "def append(self, k, v): whatever else is needed, k and v tell.",
    "cache_take",
    other_arguments("append(k, v)"),
)
_unusable(
    "cache-class-takes-arguments",
    "The class asks for arguments, and is made with none: KVCache()",
    "It raises a TypeError before there is a cache.",
    "give each argument of __init__ a default, or make buffers when the first k and v come.",
    "cache_new",
    other_arguments("KVCache()"),
)


@mistake(
    "cache-nothing-at-first-is-joined",
    "The first step joins new keys and values to None",
    "torch.cat raises a TypeError in the first step, when nothing is kept yet.",
    "if self.k is None: keep k and v as they are; else torch.cat.",
    stage="cache_keys",
    also={name: right for name, right in CACHE.items() if name != "cache_keys"},
)
def _(kept: Tensor | None, new: Tensor) -> Tensor:
    return torch.cat([kept, new], dim=2)  # type: ignore[list-item]


_unusable(
    "cache-has-no-append",
    "The class has no method append",
    "It raises an AttributeError in the first step; in transformers the method is called update.",
    "def append(self, k, v), which returns all keys and all values.",
    "cache_take",
    missing("append"),
)
mistake(
    "cache-has-no-len",
    "The class has no method __len__, which len(cache) calls",
    "A method or an attribute called len, length or size does not do: len(cache) raises a TypeError.",
    "def __len__(self), with two underscores on each side.",
    stage="cache_length",
)(_raising(missing("__len__")))
mistake(
    "cache-has-no-reset",
    "The class has no method reset",
    "It raises an AttributeError when a new sequence begins.",
    "def reset(self), which forgets keys and values.",
    stage="cache_reset",
)(_raising(missing("reset")))
mistake(
    "cache-shared-by-all",
    "All caches share one store: a list of the class, or one that is a default argument",
    "A second cache starts with the tokens of the first, and each grows with what the other is given.",
    "make the lists in __init__: self.keys = [].",
    stage="cache_new",
)(lambda shared: shared)


@mistake(
    "cache-shared-and-emptied",
    "All caches share one store, which each new cache empties",
    "Making a second cache makes the first forget, and each grows with what the other is given.",
    "make the lists in __init__: self.keys = [], not in the class.",
    stage="cache_new",
)
def _(shared: Kept) -> Kept:
    shared.k = shared.v = None
    shared.steps = shared.tokens = 0
    return shared


# ---------------------------------------------------------------- what is taken for what


def _taken(id: str, title: str, effect: str, hint: str, take: Callable[..., Any]) -> None:
    mistake(id, title, effect, hint, stage="cache_take")(take)


_taken(
    "cache-detached",
    "Keys and values are detached before they are kept",
    "The numbers are right, but no gradient arrives at the keys and values.",
    "keep k and v as they come: no detach(), no .data, no torch.no_grad().",
    lambda c, k, v: (k.detach(), v.detach()),
)


def _onto_detached(kept: Tensor | None, new: Tensor) -> Tensor:
    return new if kept is None else torch.cat([kept.detach(), new], dim=2)


mistake(
    "cache-old-detached",
    "What was kept is detached when new tokens join it",
    "The numbers are right, but no gradient arrives at the tokens of earlier steps.",
    "keep k and v as they come: no detach(), no .data, no torch.no_grad().",
    stage="cache_keys",
    also={"cache_values": _onto_detached},
)(_onto_detached)
_taken(
    "cache-values-take-keys",
    "The new keys are joined to the old values too",
    "Right in the first step; later values are keys, or an error says that sizes do not match.",
    "join the values with v: torch.cat([self.v, v], dim=2).",
    lambda c, k, v: (k, v if c.k is None else k),
)
_taken(
    "cache-keys-take-values",
    "The new values are joined to the old keys too",
    "Right in the first step; later keys are values, or an error says that sizes do not match.",
    "join the keys with k: torch.cat([self.k, k], dim=2).",
    lambda c, k, v: (k if c.k is None else v, v),
)
_taken(
    "cache-later-keys-and-values-exchanged",
    "After the first step, new keys go to the values and new values to the keys",
    "Right in the first step; later keys are values and the other way round.",
    "join k to the keys and v to the values.",
    lambda c, k, v: (k, v) if c.k is None else (v, k),
)


@mistake(
    "cache-values-join-all-keys",
    "The new values are joined to the keys, to which the new ones have just been added",
    "Right in the first step; then the old values are keys, or an error says that sizes do not match.",
    "torch.cat([self.v, v], dim=2).",
    stage="cache_take",
    also={"cache_values": lambda kept, new: new},
)
def _(c: Kept, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return k, v if c.k is None else torch.cat([c.k, k, v], dim=2)


_taken(
    "cache-values-as-wide-as-keys",
    "The buffer of the values is made as wide as the keys",
    "Right where d_v = d_k; else the values do not fit.",
    "make it with v.size(-1).",
    lambda c, k, v: (k, torch.empty_like(k).copy_(v)),
)


@mistake(
    "cache-values-join-keys",
    "The new values are joined to the old keys, not to the old values",
    "Right in the first step; then the old values are keys, or an error says that sizes do not match.",
    "torch.cat([self.v, v], dim=2).",
    stage="cache_take",
    also={"cache_values": lambda kept, new: new},
)
def _(c: Kept, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return k, v if c.k is None else torch.cat([c.k, v], dim=2)


def _written_over(c: Kept, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    if c.k is not None and c.v is not None:
        c.k, c.v = c.k[:, :, : c.steps], c.v[:, :, : c.steps]
    return k, v


mistake(
    "cache-place-advances-by-1",
    "The place to write to advances by 1 in each step, whatever the number of its tokens",
    "Right for one token at a time; else a step writes over the end of the one before.",
    "self.pos += k.size(2).",
    stage="cache_take",
    also={"cache_length": lambda c: c.steps},
)(_written_over)

# ---------------------------------------------------------------- what is kept


def _kept(id: str, title: str, effect: str, hint: str, join: Join) -> None:
    """Enter a way to keep both keys and values wrongly."""
    mistake(id, title, effect, hint, stage="cache_keys", also={"cache_values": join})(join)


def _along(dim: int) -> Join:
    return lambda kept, new: new if kept is None else torch.cat([kept, new], dim=dim)


def _into_one_place(new: Tensor) -> Tensor:
    place = torch.zeros_like(new[:, :, :1])
    place[:] = new
    return place


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
    "cache-first-token-of-step",
    "Only the first token of each step is kept",
    "Right for one token at a time; of a prompt only the beginning is left.",
    "append all tokens of the step.",
    lambda kept, new: new[:, :, :1] if kept is None else torch.cat([kept, new[:, :, :1]], dim=2),
)
_kept(
    "cache-list-extended",
    "The lists are lengthened by the examples of k: list += k, or extend(k)",
    "A tensor is taken apart along the batch; the pieces have one axis less.",
    "self.keys.append(k).",
    lambda kept, new: torch.cat([*([] if kept is None else [kept]), *new], dim=2),
)
_kept(
    "cache-room-for-one-token",
    "Each step is written into the place of one token",
    "Right for one token at a time; several tokens do not fit, and an error says so.",
    "write to [pos : pos + k.size(2)], and advance by as many.",
    lambda kept, new: torch.cat(([] if kept is None else [kept]) + [_into_one_place(new)], dim=2),
)
_kept(
    "cache-float32",
    "Keys and values are kept as float32, whatever they come as",
    "Other dtypes come back as float32, and do not go together with the queries.",
    "make buffers with dtype=k.dtype and device=k.device, or with k.new_zeros(…).",
    lambda kept, new: new.float() if kept is None else torch.cat([kept, new.float()], dim=2),
)
_kept(
    "cache-starts-in-float32",
    "It begins with an empty tensor of float32, and what is joined to it becomes float32, too",
    "Half precision comes back as float32, and does not go together with the queries.",
    "begin with None; or make the empty tensor of k.dtype.",
    lambda kept, new: _joined_to_float32(new) if kept is None else torch.cat([kept, new], dim=2),
)
_kept(
    "cache-half-precision",
    "Keys and values are kept in half precision, whatever they come as",
    "They come back rounded and as float16, and do not go together with the queries.",
    "keep the dtype of k and v.",
    lambda kept, new: new.half() if kept is None else torch.cat([kept, new.half()], dim=2),
)
_kept(
    "cache-reversed",
    "All tokens are turned round in every step",
    "Old tokens change their order again and again.",
    "torch.cat([kept, new], dim=2), without flip.",
    lambda kept, new: (new if kept is None else torch.cat([kept, new], dim=2)).flip(2),
)
_kept(
    "cache-added",
    "New keys and values are added to the old ones as numbers",
    "An error where lengths differ, else one token in the place of two.",
    "torch.cat([kept, new], dim=2) lays them one behind the other.",
    lambda kept, new: new if kept is None else kept + new,
)


# The same while len() is a counter of its own, and right.
for _where, _dim in (("heads", 1), ("batch", 0), ("numbers", 3)):
    mistake(
        f"cache-grows-in-{_where}-while-counted",
        f"The cache grows along dim {_dim}, the {_where}, while len() counts the tokens apart",
        "len() is right; keys and values are not longer, or an error says that sizes do not match.",
        "in (B, h, L, d_k) the tokens are dim 2 (or -2).",
        stage="cache_keys",
        also={"cache_values": _along(_dim), "cache_length": lambda c: c.tokens},
    )(_along(_dim))
mistake(
    "cache-steps-stacked",
    "The steps are stacked along a new axis, from the first on",
    "There are five axes; steps of several lengths cannot be stacked.",
    "torch.cat joins along an axis that is there: torch.cat(self.keys, dim=2).",
    stage="cache_keys",
    also={"cache_values": lambda kept, new: _stacked(kept, new), "cache_length": lambda c: c.tokens},
)(lambda kept, new: _stacked(kept, new))


def _joined_to_float32(new: Tensor) -> Tensor:
    return torch.cat([new[:, :, :0].float(), new], dim=2)


def _stacked(kept: Tensor | None, new: Tensor) -> Tensor:
    return torch.stack([*([] if kept is None else kept.unbind(2)), new], dim=2)


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


def _before(c: Kept, k: Tensor) -> tuple[Tensor, Tensor]:
    end = c.k.size(2) - k.size(2)
    return c.k[:, :, :end], c.v[:, :, :end]


def _in_one_buffer(c: Kept, room: int) -> tuple[Tensor, Tensor]:
    """Return keys and values as parts of one buffer each: what was returned before changes with them."""
    if room and c.steps == 1:
        c.given.clear()  # the first step makes a new buffer
    now = _with_room(c.k, room), _with_room(c.v, room)
    for before in c.given:
        for old, new in zip(before, now, strict=True):
            both = min(old.size(2), new.size(2))
            old[:, :, :both] = new[:, :, :both]
    c.given.append(now)
    return now


def _with_room(x: Tensor, room: int) -> Tensor:
    return torch.cat([x, x.new_zeros(x.size(0), x.size(1), room, x.size(3))], dim=2)


def _given(id: str, title: str, effect: str, hint: str, give: Callable[..., Any]) -> None:
    mistake(id, title, effect, hint, stage="cache_give")(give)


def _not_kept(id: str, title: str, effect: str, returns: Stage, keep: Join, keep_values: Join) -> None:
    """Enter what returns the right keys and values in a step and does not keep them."""
    hint = "keep what is returned: self.k = torch.cat([self.k, k], dim=2), and return self.k."
    joins = {"cache_keys": keep, "cache_values": keep_values}
    mistake(id, title, effect, hint, stage="cache_give", also=joins)(returns)


def _first(kept: Tensor | None, new: Tensor) -> Tensor:
    return new if kept is None else kept


def _behind_the_first(kept: Tensor, new: Tensor, c: Kept) -> Tensor:
    return new if c.steps == 1 else torch.cat([kept, new], dim=2)


_not_kept(
    "cache-returned-not-kept",
    "After the first step, what is joined is returned, but not kept",
    "Each step is seen once: later ones find the first step and nothing in between.",
    lambda c, k, v: (_behind_the_first(c.k, k, c), _behind_the_first(c.v, v, c)),
    _first,
    _first,
)
_not_kept(
    "cache-returned-values-not-kept",
    "After the first step, the joined values are returned, but not kept",
    "The keys grow and the values do not.",
    lambda c, k, v: (c.k, _behind_the_first(c.v, v, c)),
    _along(2),
    _first,
)
_not_kept(
    "cache-returned-keys-not-kept",
    "After the first step, the joined keys are returned, but not kept",
    "The values grow and the keys do not.",
    lambda c, k, v: (_behind_the_first(c.k, k, c), c.v),
    _first,
    _along(2),
)
mistake(
    "cache-nothing-kept",
    "append keeps nothing: k and v come back as they were given",
    "Right for the first step only; the length stays 0.",
    "self.k, self.v = …, in append: a local variable k is forgotten with the call.",
    stage="cache_give",
    also={"cache_length": lambda c: 0},
)(lambda c, k, v: (k, v))

_given(
    "cache-returns-new-only",
    "append returns the new keys and values only",
    "The cache is right, but the new tokens do not see the old ones.",
    "return all that is kept.",
    lambda c, k, v: (k, v),
)
_given(
    "cache-returns-values-first",
    "append returns the values first and the keys second",
    "Whoever unpacks them takes one for the other.",
    "return keys, values.",
    lambda c, k, v: (c.v, c.k),
)
_given(
    "cache-returns-nothing",
    "append returns nothing",
    "The caller gets None in place of keys and values.",
    "return all keys and all values.",
    lambda c, k, v: None,
)
_given(
    "cache-returns-keys-only",
    "append returns the keys only",
    "The values are missing.",
    "return all keys and all values.",
    lambda c, k, v: c.k,
)
_given(
    "cache-returns-keys-twice",
    "append returns the keys in place of the values too",
    "The output is a mix of keys.",
    "return all keys and all values.",
    lambda c, k, v: (c.k, c.k),
)
_given(
    "cache-returns-length",
    "append returns how long the cache is",
    "The caller gets a number in place of keys and values.",
    "return all keys and all values.",
    lambda c, k, v: c.k.size(2),
)
_given(
    "cache-returns-last-token",
    "append returns the last token's keys and values only",
    "The new tokens do not see the old ones.",
    "return all that is kept.",
    lambda c, k, v: (c.k[:, :, -1:], c.v[:, :, -1:]),
)
_given(
    "cache-returns-whole-buffer",
    "append returns the whole buffer, with the room behind the last token",
    "Queries attend to keys of zeros that stand for no token, and the causal mask does not fit.",
    "return what is filled: self.k[:, :, : self.pos].",
    lambda c, k, v: _in_one_buffer(c, room=1),
)
_given(
    "cache-returns-whole-buffer-copied",
    "append returns a copy of the whole buffer, with the room behind the last token",
    "Queries attend to keys of zeros that stand for no token, and the causal mask does not fit.",
    "return what is filled: self.k[:, :, : self.pos].",
    lambda c, k, v: (_with_room(c.k, 1), _with_room(c.v, 1)),
)
_given(
    "cache-returns-nothing-at-first",
    "The first append returns nothing",
    "The return stands in the branch of the later steps only: the caller cannot unpack None.",
    "return all keys and all values in every step: behind the if and its else.",
    lambda c, k, v: None if c.steps == 1 else (c.k, c.v),
)
_given(
    "cache-returns-nothing-later",
    "Only the first append returns something",
    "The return stands in the branch of the first step only: from the second on the caller gets None.",
    "return all keys and all values in every step: behind the if and its else.",
    lambda c, k, v: (c.k, c.v) if c.steps == 1 else None,
)
_given(
    "cache-returns-what-was-before",
    "append returns what was kept before the new tokens were added",
    "The new tokens see the old ones and not themselves.",
    "join first, and return all that is kept then.",
    lambda c, k, v: _before(c, k) if c.steps > 1 else (k, v),
)
_given(
    "cache-returns-none-at-first",
    "append returns what was kept before, the first time None for keys and values",
    "The new tokens see the old ones and not themselves; in the first step there is nothing.",
    "join first, and return all that is kept then.",
    lambda c, k, v: _before(c, k) if c.steps > 1 else (None, None),
)
_given(
    "cache-returns-up-to-old-place",
    "append returns the buffer up to the place where the new tokens begin",
    "The new tokens see the old ones and not themselves; in the first step there is nothing.",
    "advance the place first: self.pos += k.size(2), then return self.k[:, :, : self.pos].",
    lambda c, k, v: _before(c, k),
)
_given(
    "cache-returns-lists",
    "append returns the lists of all steps, not joined",
    "Scores need one tensor of keys.",
    "return torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2).",
    lambda c, k, v: ([c.k], [c.v]),
)
_given(
    "cache-returns-dict",
    "append returns a dictionary",
    "Whoever unpacks it gets its names, not its tensors.",
    "return the pair: return self.k, self.v.",
    lambda c, k, v: {"k": c.k, "v": c.v},
)
_given(
    "cache-returns-arrays",
    "append returns numpy arrays",
    "They do not go together with the queries, and carry no gradient.",
    "stay in torch.",
    lambda c, k, v: (c.k.numpy(), c.v.numpy()),
)
_given(
    "cache-returns-keys-and-values-joined",
    "append returns keys and values joined along the last axis",
    "One tensor comes back where two are unpacked.",
    "return the pair: return self.k, self.v.",
    lambda c, k, v: torch.cat([c.k, c.v], dim=-1),
)
_given(
    "cache-returns-squeezed",
    "append returns keys and values squeezed: every axis of size 1 is gone",
    "Right but for one example, one head or one token.",
    "leave squeeze() away.",
    lambda c, k, v: (c.k.squeeze(), c.v.squeeze()),
)
_given(
    "cache-returns-tokens-before-heads",
    "append returns keys and values as (B, L, h, d_k)",
    "Heads and tokens are exchanged: scores are those of one head with another.",
    "keep and return (B, h, L, d_k), as they come.",
    lambda c, k, v: (c.k.transpose(1, 2), c.v.transpose(1, 2)),
)
_given(
    "cache-returns-keys-transposed",
    "append returns the keys transposed, (B, h, d_k, L)",
    "Whoever transposes them for the scores undoes it.",
    "return keys (B, h, L, d_k); transpose where the scores are made.",
    lambda c, k, v: (c.k.transpose(-2, -1), c.v),
)
_given(
    "cache-returns-length-too",
    "append returns the length beside keys and values",
    "Three things come back where two are unpacked.",
    "return keys and values; len(cache) tells the length.",
    lambda c, k, v: (c.k, c.v, c.k.size(2)),
)
_given(
    "cache-returns-one-tensor",
    "append returns keys and values stacked in one tensor",
    "Right to unpack, but only where d_v = d_k.",
    "return the pair: return self.k, self.v.",
    lambda c, k, v: torch.stack([c.k, c.v]),
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
        lambda c, dim=_dim: 0 if c.k is None else c.k.size(dim),
    )
_length(
    "cache-length-of-steps",
    "len() counts the steps, not the tokens",
    "Right for one token at a time; after a prompt, positions are too small.",
    "count tokens: k.size(2).",
    lambda c: c.steps,
)
_length(
    "cache-length-of-python",
    "len() is that of the tensor, len(k), its first axis, also of an empty cache 0",
    "It counts examples; for one example it is always 1.",
    "len(tensor) is size(0); tokens are k.size(2).",
    lambda c: 0 if c.k is None else len(c.k),
)
_length(
    "cache-length-both",
    "len() counts keys and values together",
    "It is twice the number of tokens.",
    "each token has one key and one value: k.size(2).",
    lambda c: 0 if c.k is None else c.k.size(2) + c.v.size(2),
)
_length(
    "cache-length-one-less",
    "len() is one less than the number of tokens",
    "That is the position of the last token, not of the next.",
    "k.size(2), without - 1.",
    lambda c: 0 if c.k is None else c.k.size(2) - 1,
)
_length(
    "cache-length-of-empty",
    "len() of an empty cache asks None for its size",
    "An error before the first step, when the first position is asked for.",
    "return 0 if nothing is kept.",
    lambda c: c.k.size(2),
)
_length(
    "cache-length-of-all-numbers",
    "len() counts all numbers of all keys",
    "New tokens are put at positions far too large.",
    "count tokens: k.size(2).",
    lambda c: 0 if c.k is None else c.k.numel(),
)
_length(
    "cache-length-returns-nothing",
    "__len__ returns nothing",
    "len(cache) raises a TypeError: None cannot be interpreted as an integer.",
    "return the number of tokens, 0 if there is none.",
    lambda c: None,
)
_length(
    "cache-length-of-empty-is-none",
    "__len__ of an empty cache returns nothing",
    "len(cache) raises a TypeError before the first step, when the first position is asked for.",
    "return 0 if nothing is kept.",
    lambda c: None if c.k is None else c.k.size(2),
)
_length(
    "cache-length-is-shape",
    "__len__ returns the shape, not one number of it",
    "len(cache) raises a TypeError: it has to be an integer.",
    "k.size(2).",
    lambda c: 0 if c.k is None else c.k.shape,
)
_length(
    "cache-length-one-more",
    "len() is one more than the number of tokens",
    "New tokens leave a gap behind the old ones.",
    "k.size(2), without + 1.",
    lambda c: 0 if c.k is None else c.k.size(2) + 1,
)
_length(
    "cache-length-of-empty-is-one",
    "len() counts from 1: an empty cache has length 1",
    "The first token gets position 1, and each later one is one too far too.",
    "start the counter with 0.",
    lambda c: 1 + (0 if c.k is None else c.k.size(2)),
)
_length(
    "cache-length-of-last-step",
    "len() is the number of tokens of the last step",
    "Right in the first step; later the counter is set where it should be increased.",
    "self.length += k.size(2), or k.size(2) of all keys.",
    lambda c: c.last,
)
_length(
    "cache-length-never-reset",
    "len() goes on counting after a reset",
    "A new sequence starts at the position at which the old one ended.",
    "set the counter to 0 in reset, or ask the keys: k.size(2).",
    lambda c: c.ever,
)
_length(
    "cache-length-of-examples-of-each-step",
    "len() adds up the examples of each step",
    "It grows by B in each step, however many tokens there are.",
    "add up tokens: k.size(2).",
    lambda c: 0 if c.k is None else c.k.size(0) * c.steps,
)
_length(
    "cache-length-of-batch-and-tokens",
    "len() counts the tokens of all examples together",
    "It is B times too large.",
    "all examples have the same positions: k.size(2).",
    lambda c: 0 if c.k is None else c.k.size(0) * c.k.size(2),
)


def _reset(id: str, title: str, effect: str, hint: str, reset: Callable[..., Any]) -> None:
    mistake(id, title, effect, hint, stage="cache_reset")(reset)


_reset(
    "cache-reset-does-nothing",
    "reset forgets nothing",
    "A new sequence sees the tokens of the old one.",
    "set keys and values to None; assign to self.k, not to k.",
    lambda c: (c.k, c.v),
)
_reset(
    "cache-reset-keys-only",
    "reset forgets the keys and keeps the values",
    "In a new sequence there are more values than keys.",
    "set both to None.",
    lambda c: (None, c.v),
)
_reset(
    "cache-reset-values-only",
    "reset forgets the values and keeps the keys",
    "In a new sequence there are more keys than values.",
    "set both to None.",
    lambda c: (c.k, None),
)
_reset(
    "cache-reset-to-zeros",
    "reset sets keys and values to zeros instead of removing them",
    "A new sequence sees tokens that never were, and its positions do not start at 0.",
    "set both to None.",
    lambda c: tuple(None if x is None else torch.zeros_like(x) for x in (c.k, c.v)),
)
_reset(
    "cache-reset-keeps-last",
    "reset keeps the last token",
    "A new sequence sees the last token of the old one.",
    "set both to None.",
    lambda c: tuple(None if x is None else x[:, :, -1:] for x in (c.k, c.v)),
)
mistake(
    "cache-reset-counter-only",
    "reset sets the length to 0 and keeps keys and values",
    "len() is right, but a new sequence sees the tokens of the old one.",
    "forget keys and values too.",
    stage="cache_reset",
    also={"cache_length": lambda c: c.tokens},
)(lambda c: (c.k, c.v))
mistake(
    "cache-reset-zeroes-what-was-returned",
    "reset writes zeros into the memory of which append returned a part",
    "Who still holds keys and values of the sequence before finds zeros.",
    "let go of the buffers, self.k = None, instead of zero_(), or return copies.",
    stage="cache_reset",
    also={"cache_give": lambda c, k, v: _in_one_buffer(c, room=0)},
)(lambda c: [[x.zero_() for pair in c.given for x in pair], (None, None)][1])
mistake(
    "cache-writes-over-what-was-returned",
    "After a reset the same memory is written again: append returned a part of it",
    "Who still holds keys and values of the sequence before finds those of the new one.",
    "make new buffers in reset, or return copies.",
    stage="cache_reset",
    also={"cache_give": lambda c, k, v: _in_one_buffer(c, room=0)},
)(lambda c: (None, None))


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
    "cached-start-before-the-cache",
    "The new tokens start L new positions before the end of the cache",
    "len(cache) - L new is where they would start if the cache held them already.",
    "before append, start = len(cache).",
    stage="cached_start",
)
def _(cache: KVCache, L: int) -> int:
    return len(cache) - L


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


def _queries_at(id: str, where: str, effect: str, positions_of: Callable[[Tensor], Tensor]) -> None:
    @mistake(
        id,
        f"The queries are rotated {where}, the keys by their own positions",
        effect,
        "queries and keys of the new tokens have the same positions: from len(cache) before append on.",
        stage="turn_queries",
    )
    def _(q: Tensor, positions: Tensor) -> Tensor:
        return turn_queries(q, positions_of(positions))


_queries_at(
    "cached-queries-after-append",
    "from the length of the cache after append",
    "Every query stands as many positions too far as there are new tokens.",
    lambda positions: positions + len(positions),
)
_queries_at(
    "cached-queries-at-last-position",
    "by the position of the last new token, all of them",
    "Right for one token at a time; of a prompt only the last query stands where it should.",
    lambda positions: positions[-1:].expand_as(positions),
)
_queries_at(
    "cached-queries-at-first-position",
    "by the position of the first new token, all of them",
    "Right for one token at a time; of a prompt only the first query stands where it should.",
    lambda positions: positions[:1].expand_as(positions),
)


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
    "cached-all-rotated-after-append",
    "The start is the length after append, and all keys of the cache are rotated in every step",
    "New queries are turned too far by L new, and what the cache holds is rotated once more.",
    "start = len(cache) before append; rotate the new keys only, and append them rotated.",
    stage="cached_append",
    also={"turn_keys": lambda k, positions: k, "cached_start": lambda cache, L: len(cache) + L},
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return _append_then_rotate(cache, k, v)


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


def _rotated_otherwise(
    id: str, title: str, effect: str, hint: str, turn: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Enter a rotation of its own for new queries and keys, which does not fit that of the cached keys."""
    mistake(id, title, effect, hint, stage="turn_queries", also={"turn_keys": turn})(turn)


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate (…, L, d_k) in halves by angles (L, d_k)."""
    a, b = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-b, a], dim=-1) * angles.sin()


def _angles(positions: Tensor, d_k: int, base: float = 10_000.0) -> Tensor:
    """(L,) → (L, d_k/2)."""
    return positions[:, None] * base ** (-torch.arange(0, d_k, 2).double() / d_k)


def _in_neighbours(x: Tensor, positions: Tensor) -> Tensor:
    angles = _angles(positions, x.size(-1))
    a, b = x[..., 0::2], x[..., 1::2]
    turned = a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()
    return torch.stack(turned, dim=-1).flatten(-2)


_rotated_otherwise(
    "cached-rotates-neighbours",
    "The rotation pairs neighbours (2i, 2i + 1), as Meta's code of Llama does",
    "New keys do not fit the cached ones, whose pairs are (i, i + d_k/2).",
    "rotate with apply_rope, or pair x[..., :d_k // 2] with x[..., d_k // 2 :].",
    _in_neighbours,
)
_rotated_otherwise(
    "cached-rotates-backwards",
    "The rotation turns the other way round",
    "Distances count with the wrong sign, and new keys do not fit the cached ones.",
    "a cos - b sin and a sin + b cos: rotate_half(x) is cat(-b, a).",
    lambda x, positions: turn_keys(x, -positions),
)
_rotated_otherwise(
    "cached-rotates-halves-by-angles-of-neighbours",
    "The numbers are paired in halves, but each angle stands twice in a row: repeat_interleave",
    "The two numbers of a pair are turned by different angles.",
    "torch.cat([angles, angles], dim=-1) for pairs (i, i + d_k/2).",
    lambda x, positions: _turned(x, _angles(positions, x.size(-1)).repeat_interleave(2, dim=-1)),
)
_rotated_otherwise(
    "cached-rotates-with-another-base",
    "The base of the frequencies is 500000, that of Llama 3",
    "New keys do not fit the cached ones, which are rotated with base 10000.",
    "10000 ** (-2i / d_k), as apply_rope has it.",
    lambda x, positions: _turned(x, _angles(positions, x.size(-1), 500_000.0).repeat(1, 2)),
)
_rotated_otherwise(
    "cached-rotates-heads",
    "The axis of the heads is taken for that of the tokens: each head has one position",
    "In (B, h, L, d_k) the tokens are dim 2.",
    "positions belong to dim -2: (L, d_k) broadcasts over (B, h, L, d_k) as it is.",
    lambda x, positions: turn_keys(x.transpose(1, 2), positions[0] + torch.arange(x.size(1))).transpose(1, 2),
)


# ---------------------------------------------------------------- what may be seen


def _seen(id: str, title: str, effect: str, hint: str, allowed: Callable[[int, int], Tensor]) -> None:
    mistake(id, title, effect, hint, stage="causal", also={"cached_give": lambda output: output})(allowed)


_seen(
    "cached-top-left-for-several",
    "For several new tokens the mask is aligned top-left: is_causal=True where L new > 1",
    "Right for one token at a time and for an empty cache; a second prompt sees the oldest keys only.",
    "align bottom-right: causal_mask(Lq, Lk).",
    lambda Lq, Lk: torch.ones(Lq, Lk, dtype=torch.bool).tril(0 if Lq > 1 else Lk),
)
_seen(
    "cached-no-mask-behind-a-cache",
    "There is a mask only while the cache is empty",
    "Right for one token at a time; several tokens behind a cache see the later ones among them.",
    "mask in every step: causal_mask(Lq, Lk).",
    lambda Lq, Lk: causal(Lq, Lk) if Lq == Lk else torch.ones(Lq, Lk, dtype=torch.bool),
)
_seen(
    "cached-mask-parts-exchanged",
    "The triangle for the new tokens stands in front of the columns for the cached ones",
    "New tokens see later ones, and not all of the cached.",
    "cached keys come first: torch.cat([ones(Lq, Lk - Lq), tril], dim=-1).",
    lambda Lq, Lk: torch.cat([causal(Lq), torch.ones(Lq, Lk - Lq, dtype=torch.bool)], dim=-1),
)
_seen(
    "cached-mask-sizes-exchanged",
    "The mask is made with its sizes exchanged: causal_mask(Lk, Lq)",
    "It broadcasts for one new token, and gives too many rows; else an error.",
    "queries are the rows: causal_mask(Lq, Lk).",
    lambda Lq, Lk: causal(Lk, Lq),
)
_seen(
    "cached-mask-sees-first-row",
    "Every new token sees what the first of them sees",
    "Right for one token at a time; the others do not see themselves.",
    "a row for each query: keys up to start + i.",
    lambda Lq, Lk: causal(Lq, Lk)[:1].expand(Lq, Lk),
)

# What becomes of a query that sees nothing depends on how it is written: NaN with -inf, as in the entries of
# masks; zeros in scaled_dot_product_attention, also PyTorch's; the mean of the values with a large negative
# number.
_OF_NOTHING: dict[str, tuple[str, Stage]] = {
    "zeros": (
        "where nothing is left to see, the output is zero",
        lambda scores, d_k: torch.softmax(scores, dim=-1).nan_to_num(0.0),
    ),
    "mean": (
        "where nothing is left to see, all values are mixed alike",
        lambda scores, d_k: torch.softmax(scores.clamp_min(torch.finfo(scores.dtype).min), dim=-1),
    ),
}
_WITH_EMPTY_ROWS: tuple[tuple[str, str, str, Callable[[int, int], Tensor]], ...] = (
    (
        "excludes-self",
        "A token may not see itself, only those before it",
        "keep the diagonal: key position <= query position.",
        lambda Lq, Lk: torch.ones(Lq, Lk).tril(Lk - Lq - 1),
    ),
    (
        "mask-inverted",
        "The mask is inverted, so that tokens see the future only",
        "True means may attend, also in PyTorch's scaled_dot_product_attention: tril, not triu.",
        lambda Lq, Lk: ~causal(Lq, Lk),
    ),
    (
        "mask-inverted-top-left",
        "The mask is inverted, triu(diagonal=1), and aligned top-left",
        "True means may attend, bottom-right aligned: tril(diagonal=Lk - Lq).",
        lambda Lq, Lk: torch.ones(Lq, Lk).triu(1),
    ),
    (
        "excludes-self-top-left",
        "A token may not see itself, and the mask is aligned top-left, tril(diagonal=-1)",
        "tril(diagonal=Lk - Lq).",
        lambda Lq, Lk: torch.ones(Lq, Lk).tril(-1),
    ),
    (
        "mask-shifted-the-wrong-way",
        "The diagonal of the mask is shifted by Lq - Lk",
        "shift by Lk - Lq: the last query sees the last key.",
        lambda Lq, Lk: torch.ones(Lq, Lk).tril(Lq - Lk),
    ),
)
for _id, _title, _hint, _allowed in _WITH_EMPTY_ROWS:
    for _what, (_then, _softmax) in _OF_NOTHING.items():
        mistake(
            f"cached-{_id}-gives-{_what}",
            f"{_title}; {_then}",
            "It shows at once: the first token of a text should see itself.",
            _hint,
            stage="causal",
            also={"softmax": _softmax, "cached_hide": CACHED["cached_hide"]},
        )(_allowed)
mistake(
    "cached-hides-with-zero",
    "What may not be seen gets score 0, not -inf",
    "exp(0) is 1: hidden keys take their share.",
    "masked_fill(~allowed, float('-inf')).",
    stage="cached_hide",
)(lambda scores, allowed: scores.masked_fill(allowed == 0, 0.0))
mistake(
    "cached-hides-with-plus-inf",
    "What may not be seen gets score +inf, not -inf",
    "The result is NaN wherever anything is hidden.",
    "masked_fill(~allowed, float('-inf')).",
    stage="cached_hide",
)(lambda scores, allowed: scores.masked_fill(allowed == 0, torch.inf))
mistake(
    "cached-adds-mask",
    "The mask of True and False is added to the scores: + 1 where a key may be seen",
    "Nothing is hidden; what may be seen counts e times as much.",
    "masked_fill(~allowed, float('-inf')).",
    stage="cached_hide",
    also={"causal": causal},  # an additive mask is to be added
)(lambda scores, allowed: scores + allowed)


@mistake(
    "cached-hides-after-softmax",
    "The weights are set to 0 after the softmax",
    "Rows of weights sum to less than 1 where anything is hidden.",
    "hide the scores, before the softmax.",
    stage="cached_hide",
    also={"softmax": lambda scores, d_k: scores},
)
def _(scores: Tensor, allowed: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1).masked_fill(allowed == 0, 0.0)


# ---------------------------------------------------------------- append and give


mistake(
    "cached-methods-of-another-cache",
    "The cache is asked for what it does not have",
    "get_seq_length and update are methods of transformers' caches, and older ones are pairs of tensors.",
    "len(cache) for the length; k_all, v_all = cache.append(k, v).",
    stage="cached_start",
)(_raising(no_such_method()))


@mistake(
    "cached-appended-for-keys-and-for-values",
    "append is called once for the keys and once more for the values",
    "Each call adds the new tokens: there are more values than keys.",
    "k_all, v_all = cache.append(k, v), once.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    k_all, _ = cache.append(k, v)
    return k_all, cache.append(k, v)[1]


@mistake(
    "cached-appended-once-more",
    "append is called once more after its result was taken, or once for the keys and once for the values",
    "This step is right; the next one finds each token in the cache twice.",
    "k_all, v_all = cache.append(k, v), once.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    both = cache.append(k, v)
    cache.append(k, v)
    return both


@mistake(
    "cached-empty-is-false",
    "An empty cache is taken for none, and another one is filled in its place",
    "Its len is 0, so that `cache or KVCache()` and `if not cache` pass it over: the first tokens are lost.",
    "ask `if cache is None`.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return cache.append(k, v) if len(cache) else (k, v)


@mistake(
    "cached-never-filled",
    "The new tokens do not stay in the cache: they are joined with a copy of it, or beside it",
    "This step is right; the next one does not see them, and begins at the same position.",
    "k_all, v_all = cache.append(k, v), of the cache that was given.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return copy.deepcopy(cache).append(k, v)


@mistake(
    "cached-all-appended-again",
    "What append returned is appended once more: all keys and values, not the new ones",
    "This step is right; the next one finds every token in the cache twice.",
    "append the new tokens, once; the cache keeps what it returns.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    both = cache.append(k, v)
    cache.append(*both)
    return both


@mistake(
    "cached-last-token-kept",
    "All new tokens are attended to, but only the last of them is appended",
    "Right for one token at a time; of a prompt the next step finds the end only.",
    "append all new tokens.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    both = copy.deepcopy(cache).append(k, v)
    cache.append(k[:, :, -1:], v[:, :, -1:])
    return both


@mistake(
    "cached-kept-without-rotation",
    "Attention uses the rotated keys, but those that are appended are not rotated",
    "This step is right; the next one finds keys that were never rotated.",
    "rotate the new keys, then append these.",
    stage="cached_append",
    also={"turn_keys": lambda k, positions: k},
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    both = copy.deepcopy(cache).append(turn_keys(k, cached_positions(len(cache), k.size(2))), v)
    cache.append(k, v)
    return both


@mistake(
    "cached-reset-at-the-end",
    "The cache is reset after the step",
    "This step is right; the next one finds an empty cache.",
    "the caller resets the cache, between two texts.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    both = cache.append(k, v)
    cache.reset()
    return both


@mistake(
    "cached-first-keys-not-rotated",
    "With an empty cache, the keys are appended before they are rotated",
    "This step is right; the next one finds keys that were never rotated.",
    "rotate the new keys first, then append them, in each step.",
    stage="cached_append",
    also={"turn_keys": lambda k, positions: k},
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    start = len(cache)
    new = turn_keys(k, cached_positions(start, k.size(2)))
    if start:
        return cache.append(new, v)
    cache.append(k, v)
    return new, v


@mistake(
    "cached-values-of-new-tokens",
    "All keys are compared, but only the new values are mixed",
    "Right with an empty cache; else an error, as there are more weights than values.",
    "use both that append returns: k_all and v_all.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return cache.append(k, v)[0], v


@mistake(
    "cached-keys-of-new-tokens",
    "All values are mixed, but only the new keys are compared",
    "Right with an empty cache; else an error, as there are fewer weights than values.",
    "use both that append returns: k_all and v_all.",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return k, cache.append(k, v)[1]


@mistake(
    "cached-scores-of-new-keys",
    "Queries are compared with the new keys only, while mask and values are those of all",
    "Right with an empty cache; else the mask does not fit, and an error says so.",
    "q @ k_all.transpose(-2, -1).",
    stage="score",
    also={"cached_give": lambda output: output},
)
def _(q: Tensor, k: Tensor) -> Tensor:
    return q @ k[:, :, k.size(2) - q.size(2) :].transpose(-2, -1)


@mistake(
    "cached-values-appended-as-keys",
    "append is given the values first and the keys second",
    "With an empty cache keys and values are exchanged; else each is mixed of both.",
    "cache.append(k, v).",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return cache.append(v, k)


@mistake(
    "cached-values-appended-as-keys-and-back",
    "append is given the values first and the keys second, and what it returns is taken so too",
    "Right with an empty cache; else the new keys go to the cached values.",
    "k_all, v_all = cache.append(k, v).",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    v, k = cache.append(v, k)
    return k, v


@mistake(
    "cached-keys-appended-twice",
    "The keys are appended as the values too",
    "What is mixed are keys, at least those of the new tokens.",
    "cache.append(k, v).",
    stage="cached_append",
)
def _(cache: KVCache, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return cache.append(k, k)


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
