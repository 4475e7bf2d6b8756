"""Where the numbers of a tensor come from: which of the tensors that were given, which of its rows."""

from collections.abc import Mapping

import torch
from torch import Tensor


def origin(x: Tensor, sources: Mapping[str, Tensor]) -> str | None:
    """Say where the numbers of `x` stand in one of `sources`: whole, transposed, some rows, some columns.

    Returns:
        For instance "in_proj_weight, rows 4 to 7"; None where they are not found.
    """
    for name, source in sources.items():
        if _equal(x, source):
            return name
    for name, source in sources.items():
        if x.ndim == source.ndim == 2 and _equal(x, source.mT):
            return f"{name}, transposed"
    for name, source in sources.items():
        found = _part(x, source)
        if found is not None:
            return f"{name}, {found}"
    return None


def _part(x: Tensor, source: Tensor) -> str | None:
    if x.ndim != source.ndim or not x.numel():
        return None
    for what, axis in (("rows", 0), ("columns", 1))[: x.ndim]:
        rows = _places(x.movedim(axis, 0), source.movedim(axis, 0))
        if rows is not None:
            return f"{what if x.ndim > 1 else 'numbers'} {_listed(rows)}"
        if x.ndim == 2:
            rows = _places(x.mT.movedim(axis, 0), source.movedim(axis, 0))
            if rows is not None:
                return f"{what} {_listed(rows)}, transposed"
    return None


def _places(x: Tensor, source: Tensor) -> list[int] | None:
    """Return for each row of `x` its place among those of `source`; None if one is not there."""
    if x.shape[1:] != source.shape[1:]:
        return None
    rows, others = x.double().flatten(1) if x.ndim > 1 else x.double()[:, None], source.double()
    others = others.flatten(1) if others.ndim > 1 else others[:, None]
    alike = (rows[:, None] - others[None]).abs().amax(dim=-1) < 1e-6
    return alike.int().argmax(dim=1).tolist() if bool(alike.any(dim=1).all()) else None


def _listed(places: list[int]) -> str:
    first, last = places[0], places[-1]
    if places == list(range(first, last + 1)):
        return f"{first} to {last}" if last > first else f"{first}"
    shown = ", ".join(map(str, places[:8]))
    return shown if len(places) <= 8 else f"{shown} …"


def _equal(x: Tensor, source: Tensor) -> bool:
    return x.shape == source.shape and torch.allclose(x.double(), source.double(), atol=1e-6)
