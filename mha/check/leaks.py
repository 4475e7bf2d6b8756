"""Masks that let something through: how the weights of hidden keys come about, whatever the number is."""

from collections.abc import Iterable

import torch
from torch import Tensor

from mha.check.catalogue import Mistake, behaviour

FILLED = behaviour(
    "mask-filled-too-high",
    "mask",
    "Masked scores are all set to one number, which is not low enough: what is hidden gets weight",
    "exp makes a little of every number but the lowest: 1e-9 and -1 are as good as 0.",
    "fill with -inf, or with torch.finfo(scores.dtype).min, before the softmax.",
)
ADDED = behaviour(
    "mask-added-too-little",
    "mask",
    "Masked scores are lowered by a number that is not large enough: what is hidden gets weight",
    "A hidden key that fits well enough is seen all the same.",
    "fill with -inf, or with torch.finfo(scores.dtype).min, before the softmax.",
)


def hidden_keys(wanted: Tensor) -> Tensor:
    """Return which keys right weights (B, h, Lq, Lk) hide from queries that see others."""
    return (wanted == 0) & (wanted.sum(dim=-1, keepdim=True) > 0.5)


def leak(weights: Iterable[tuple[Tensor, Tensor, Tensor]]) -> tuple[Mistake, str] | None:
    """Say how hidden keys get weight, if it is so in one way on all inputs.

    Args:
        weights: given, right, and what they would be without a mask, on each input that hides keys.
    """
    # Scores so far apart that exp of the difference is 0 say nothing.
    found = [_leak(*three) for three in weights if not bool((three[2] == 0).any())]
    if not found or None in found:
        return None
    lowered = torch.cat([by for by, _ in found])
    if lowered.numel() and (lowered - lowered[0]).abs().max() < 1e-3 and lowered[0].abs() > 1e-6:
        return ADDED, f"They are lowered by {-lowered[0]:.4g}."
    return (FILLED, "") if all(filled for _, filled in found) else None


def _leak(given: Tensor, wanted: Tensor, unmasked: Tensor) -> tuple[Tensor, bool] | None:
    """Return by how much hidden scores are raised, and whether a row's hidden keys all get the same."""
    if not given.shape == wanted.shape == unmasked.shape:
        return None
    hidden = hidden_keys(wanted)
    seen = (wanted > 0) & hidden.any(dim=-1, keepdim=True)
    ratio = (given.double() / unmasked.double()).log()
    if not ratio[seen | hidden].isfinite().all():
        return None
    of_seen = _one_in_each_row(ratio, seen)
    if of_seen is None:
        return None
    raised = _one_in_each_row(ratio, hidden)
    filled = _one_in_each_row(given.double().log(), hidden)
    rows = hidden.any(dim=-1)
    if raised is None and filled is None:
        return None
    by = ratio.new_empty(0) if raised is None else (raised - of_seen)[rows]
    return by, filled is not None


def _one_in_each_row(x: Tensor, where: Tensor) -> Tensor | None:
    """Return the number that stands in all of a row's places, (B, h, Lq); None if one row has several."""
    low = x.masked_fill(~where, torch.inf).amin(dim=-1)
    high = x.masked_fill(~where, -torch.inf).amax(dim=-1)
    several = where.any(dim=-1) & ((high - low) > 1e-4)
    return None if several.any() else low
