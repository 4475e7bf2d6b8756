"""How a result that no known mistake explains stands to the right one: of another kind, shape, size, order.

A relation has to hold on every input on which the answer is wrong. It names what is wrong with the result,
not the line that is to blame.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mha.check.catalogue import Mistake, behaviour
from mha.check.evidence import dtype_name, number

Pair = tuple[Any, Any]  # what was given, what was wanted

OTHER_KIND = behaviour(
    "result-of-another-kind",
    "result",
    "The result is of another kind than was asked for",
    "Whoever calls it cannot use it as it is.",
    "return what the docstring says, and nothing around it.",
)
OTHER_DTYPE = behaviour(
    "result-of-another-dtype",
    "result",
    "The numbers are right, their dtype is not",
    "It does not go together with the tensors that came in.",
    "keep the dtype of the inputs: no .float(), no tensor that is made without dtype=.",
)
OTHER_SHAPE = behaviour(
    "result-of-another-shape",
    "result",
    "The numbers are right, in their order, but the shape is not",
    "An axis is missing, or there is one too many.",
    "compare the shape with that of the docstring, axis by axis.",
)
OTHER_AXES = behaviour(
    "result-axes-exchanged",
    "result",
    "The numbers are right, but axes are exchanged",
    "The same numbers, each at another place.",
    "transpose the axes that are exchanged.",
)
REVERSED = behaviour(
    "result-reversed",
    "result",
    "The numbers are right, but an axis runs the other way",
    "The same numbers in reverse order.",
    "do not flip; count from 0 upwards.",
)
FACTOR = behaviour(
    "result-times-a-number",
    "result",
    "Every number is the right one times a constant",
    "A factor, a division or a mean is too much or missing.",
    "look for what multiplies or divides the result.",
)
OFFSET = behaviour(
    "result-plus-a-number",
    "result",
    "Every number is the right one plus a constant",
    "Something is added that nobody asked for.",
    "look for what is added to the result.",
)
ROW_FACTORS = behaviour(
    "result-rows-times-numbers",
    "result",
    "Every row is the right one times a number of its own",
    "Rows are not divided by what they sum to: by another sum, twice, or not at all.",
    "divide each row of exponentials by its own sum, once.",
)
HIDES_TOO_MUCH = behaviour(
    "mask-hides-too-much",
    "mask",
    "Keys that may be seen get no weight; the others share it among them",
    "More is hidden than the mask says, or than there is to hide.",
    "hide what the mask forbids, query by query, and nothing else: cut no key off.",
)
ROUNDED = behaviour(
    "result-rounded",
    "result",
    "The numbers are right to two or three digits only",
    "Something is worked out in half precision on the way, or a small number is added where none belongs.",
    "keep the dtype that comes in throughout; no .half(), no .bfloat16(), no + 1e-3.",
)
ZEROED = behaviour(
    "result-zero-in-part",
    "guard",
    "Whole rows are 0 that should not be; all the others are right",
    "Where one query has nothing to see, others that have are silenced with it.",
    "ask row by row: mask.any(dim=-1, keepdim=True) keeps a True or False for each query.",
)
BENT = behaviour(
    "softmax-of-bent-scores",
    "softmax",
    "The order of the weights is right in every row, and rows sum to 1, but softmax gets other scores",
    "Large scores count less, or more, than they should: a cap, a clamp, a power, another base.",
    "softmax gets the scores as they are, divided by √d_k and masked; nothing bends them.",
)
OTHER_SCALE = behaviour(
    "scale-other",
    "scale",
    "The scores have another scale than 1/√d_k",
    "The order of the keys is right; the weights are too peaked or too flat.",
    "divide the scores by math.sqrt(Q.size(-1)), once.",
)


def relation(pairs: Sequence[Pair]) -> tuple[Mistake, str] | None:
    """Return the relation in which all pairs of results stand, and what is to be said of it."""
    if any(given is None for given, _ in pairs):
        return None
    if any(_kind(given) != _kind(wanted) for given, wanted in pairs):
        return _of_another_kind(pairs)
    for entry, say in _OF_WHOLE_RESULTS:
        said = say(pairs)
        if said is not None:
            return entry, said
    parts = _differing(pairs)
    for entry, find in _RELATIONS:
        said = None if parts is None else find(parts)
        if said is not None:
            return entry, said
    for entry, say in _OF_ROWS:
        said = say(pairs)
        if said is not None:
            return entry, said
    return None


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list) and value:
        return f"{type(value).__name__} of {len(value)} {_of(value)}"
    if isinstance(value, dict) and value:
        return f"dict of {_of(value.values())}"
    return "tensor" if isinstance(value, Tensor) else type(value).__name__


def _of(values: Iterable[Any]) -> str:
    """Return what is in a tuple, a list or a dict: "tensors", "ndarrays", else "things"."""
    kinds = {"tensor" if isinstance(item, Tensor) else type(item).__name__ for item in values}
    return f"{kinds.pop()}s" if len(kinds) == 1 else "things"


def _of_another_kind(pairs: Sequence[Pair]) -> tuple[Mistake, str] | None:
    kinds = {(_kind(given), _kind(wanted)) for given, wanted in pairs}
    if any(given == wanted for given, wanted in kinds) or len({wanted for _, wanted in kinds}) > 1:
        return None
    given, wanted = next(iter(kinds))
    if given.startswith("tuple of") and given.endswith("tensors") and wanted.startswith("tuple of"):
        return None  # the right kind, and too many or too few: their shapes tell more
    right = all(_equal_in_numbers(value, right) for value, right in pairs)
    return OTHER_KIND, f"It is a {given}, a {wanted} is wanted{'; the numbers are right' if right else ''}."


def _equal_in_numbers(given: Any, wanted: Any) -> bool:
    """Whether a value holds what is wanted, in lists or arrays for instance."""
    if isinstance(wanted, tuple) and isinstance(given, tuple | list):
        return len(given) == len(wanted) and all(map(_equal_in_numbers, given, wanted))
    if isinstance(wanted, dict) and isinstance(given, dict):
        return given.keys() == wanted.keys() and all(
            _equal_in_numbers(given[key], wanted[key]) for key in wanted
        )
    try:
        given = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        return False
    return isinstance(wanted, Tensor) and given.shape == wanted.shape and _close(given, wanted)


def _as(like: Tensor, x: Tensor) -> Tensor:
    """Round to the dtype of a result: half precision is to be compared as such."""
    return x.to(like.dtype)


def _differing(pairs: Sequence[Pair]) -> list[tuple[Tensor, Tensor]] | None:
    """Return the one tensor of each result that is wrong; None where more than one is."""
    if all(isinstance(given, Tensor) for given, _ in pairs):
        return [(given, wanted) for given, wanted in pairs]
    if not all(isinstance(given, tuple) for given, _ in pairs):
        return None
    if not all(isinstance(item, Tensor) for pair in pairs for value in pair for item in value):
        return None
    places = range(len(pairs[0][1]))
    wrong = [i for i in places if not all(_equal(given[i], wanted[i]) for given, wanted in pairs)]
    return [(given[wrong[0]], wanted[wrong[0]]) for given, wanted in pairs] if len(wrong) == 1 else None


def _equal(given: Tensor, wanted: Tensor) -> bool:
    return given.shape == wanted.shape and given.dtype == wanted.dtype and _close(given, wanted)


def _close(given: Tensor, wanted: Tensor) -> bool:
    if given.is_complex() or wanted.is_complex():
        return given.is_complex() == wanted.is_complex() and torch.allclose(given, wanted, equal_nan=True)
    rtol = 1e-2 if 2 in (given.element_size(), wanted.element_size()) else 1e-3  # half precision is coarse
    return torch.allclose(given.double(), wanted.double(), rtol=rtol, atol=1e-4, equal_nan=True)


def _has_another_dtype(pairs: Sequence[Pair]) -> str | None:
    tensors = [both for pair in pairs for both in zip(*map(_tensors, pair), strict=False)]
    if not all(g.shape == w.shape and _close(g, w) for g, w in tensors):
        return None
    other = next(((g, w) for g, w in tensors if g.dtype != w.dtype), None)
    return other and f"It is of {dtype_name(other[0])}, {dtype_name(other[1])} is wanted."


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors of a result, in their order."""
    if isinstance(value, dict):
        return [x for name in sorted(value, key=str) for x in _tensors(value[name])]
    if isinstance(value, tuple | list):
        return [x for item in value for x in _tensors(item)]
    return [value] if isinstance(value, Tensor) else []


def _has_another_shape(parts: Sequence[tuple[Tensor, Tensor]]) -> str | None:
    if not all(g.numel() == w.numel() and g.shape != w.shape for g, w in parts):
        return None
    if not all(_close(g.flatten(), w.flatten()) for g, w in parts):
        return None
    given, wanted = parts[0]
    return f"It has shape {tuple(given.shape)}, wanted {tuple(wanted.shape)}."


def _has_axes_exchanged(parts: Sequence[tuple[Tensor, Tensor]]) -> str | None:
    axes = range(parts[0][1].ndim)
    for order in itertools.permutations(axes):
        if order != tuple(axes) and all(_is(given, wanted, order) for given, wanted in parts):
            return f"Its axes are those that are wanted in the order {', '.join(map(str, order))}."
    return None


def _is(given: Tensor, wanted: Tensor, order: tuple[int, ...]) -> bool:
    return wanted.ndim == len(order) and _equal(given, wanted.permute(order))


def _runs_backwards(parts: Sequence[tuple[Tensor, Tensor]]) -> str | None:
    for axis in range(parts[0][1].ndim):
        if all(axis < w.ndim and _equal(g, w.flip(axis)) for g, w in parts):
            return f"Axis {axis} is reversed."
    return None


def _is_a_multiple(parts: Sequence[tuple[Tensor, Tensor]]) -> str | None:
    factor = _fitted(parts, lambda given, wanted: (given * wanted).sum() / (wanted * wanted).sum())
    if factor is None or not factor.isfinite() or abs(factor - 1) < 1e-3:
        return None
    if not all(_close(g, _as(w, w.double() * factor)) for g, w in parts):
        return None
    return f"Each is {number(factor)} times what it should be."


def _is_shifted(parts: Sequence[tuple[Tensor, Tensor]]) -> str | None:
    shift = _fitted(parts, lambda given, wanted: (given - wanted).mean())
    if shift is None or not shift.isfinite():
        return None
    if not all(_close(g, _as(w, w.double() + shift)) for g, w in parts):
        return None
    return f"Each is {number(shift)} more than it should be."


def _fitted(parts: Sequence[tuple[Tensor, Tensor]], fit: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
    """Return the number that fits the largest result, if all are numbers of the right shape."""
    if not all(g.shape == w.shape and g.is_floating_point() and w.is_floating_point() for g, w in parts):
        return None
    if not any(w.numel() for _, w in parts):
        return None
    given, wanted = max(parts, key=lambda part: part[1].numel())
    return fit(given.double(), wanted.double())


def _weights(pairs: Sequence[Pair]) -> list[tuple[Tensor, Tensor]] | None:
    """Return given and right weights (B, h, Lq, Lk) beside outputs; None where none can be compared."""
    found = []
    for given, wanted in pairs:
        if not all(isinstance(value, tuple) and len(value) == 2 for value in (given, wanted)):
            return None
        one, other = given[1], wanted[1]
        if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.shape != other.shape:
            return None
        if one.ndim != 4 or not one.numel() or not one.is_floating_point():
            return None
        found.append((one, other))
    return found


def _alike_in_shape(pairs: Sequence[Pair]) -> list[tuple[Tensor, Tensor]] | None:
    """Return all given and right tensors, if shapes and dtypes agree, of numbers."""
    found = []
    for given, wanted in pairs:
        given, wanted = _tensors(given), _tensors(wanted)
        alike = [g.shape == w.shape and g.dtype == w.dtype for g, w in zip(given, wanted, strict=False)]
        if not given or len(given) != len(wanted) or not all(alike):
            return None
        if not all(w.is_floating_point() and w.numel() for w in wanted):
            return None
        found += zip(given, wanted, strict=True)
    return found


def _scale(pairs: Sequence[Pair]) -> str | None:
    """Say how much larger than they should be the scores are from which the weights come, if that is all."""
    weights = _weights(pairs)
    if weights is None:
        return None
    found = []
    for given, wanted in weights:
        factor = _of_logarithms(given, wanted)
        if factor is None:
            return None
        found.append(factor)
    known = [factor for factor in found if not factor.isnan() and abs(factor - 1) > 1e-3]
    return f"There they are {number(known[0])} times what they should be." if known else None


def _of_logarithms(given: Tensor, wanted: Tensor) -> Tensor | None:
    """Return the factor between the scores of two (B, h, Lq, Lk) of weights; NaN where it cannot be seen."""
    if given.shape != wanted.shape or given.ndim != 4:
        return None
    if wanted.dtype not in (torch.float32, torch.float64):  # too coarse
        return torch.tensor(torch.nan)
    visible = (wanted > 1e-6) & (given > 1e-6)
    if (given > 1e-6).ne(wanted > 1e-6).any() and (wanted[~visible] > 1e-3).any():
        return None
    one, other = (_centred(x.double(), visible) for x in (given, wanted))
    size = (other * other).sum()
    if size < 1e-9:
        return torch.tensor(torch.nan)
    factor = (one * other).sum() / size
    return factor if torch.allclose(one, other * factor, rtol=1e-3, atol=1e-3) else None


def _centred(weights: Tensor, visible: Tensor) -> Tensor:
    """Return the logarithms of the weights less their mean in each row."""
    logarithms = weights.clamp_min(1e-12).log().masked_fill(~visible, 0.0)
    mean = logarithms.sum(dim=-1, keepdim=True) / visible.sum(dim=-1, keepdim=True).clamp_min(1)
    return (logarithms - mean).masked_fill(~visible, 0.0)


def _bent(pairs: Sequence[Pair]) -> str | None:
    """Say that weights have the right order in every row, if that is so and rows sum to what they should."""
    weights, compared = _weights(pairs), 0
    if weights is None or all(_close(given, wanted) for given, wanted in weights):
        return None
    for one, other in weights:
        one, other = one.double(), other.double()
        if not _close(one.sum(dim=-1), other.sum(dim=-1)):
            return None
        steps, right = (x[..., :, None] - x[..., None, :] for x in (one, other))
        told = (right > 1e-3) & (other[..., :, None] < 1)
        if (steps[told] < -1e-6).any():
            return None
        compared += int(told.sum())
    # So many by chance are as good as impossible.
    return f"So it is in all {compared} pairs of keys." if compared >= 24 else None


def _rows_times_numbers(pairs: Sequence[Pair]) -> str | None:
    shown = None
    for g, w in _alike_in_shape(pairs) or ():
        if g.ndim != 4:
            return None
        size = w.double().square().sum(dim=-1, keepdim=True)
        factor = (g.double() * w).sum(dim=-1, keepdim=True) / size.clamp_min(1e-12)
        if not _close(g, _as(w, w.double() * factor)):
            return None
        away = factor[(factor - 1).abs().gt(1e-3) & size.gt(1e-9)]
        shown = away[0] if shown is None and away.numel() else shown
    return None if shown is None else f"There a row is {number(shown)} times what it should be."


def _zero_in_part(pairs: Sequence[Pair]) -> str | None:
    shown = None
    for g, w in _alike_in_shape(pairs) or ():
        if g.ndim < 3:
            return None
        right = g.double().isclose(w.double(), rtol=1e-3, atol=1e-4, equal_nan=True).all(dim=-1)
        if not right.any() or not (g[~right] == 0).all():
            return None
        shown = (~right).nonzero()[0].tolist() if shown is None and not right.all() else shown
    return None if shown is None else f"The first of them is [{', '.join(map(str, shown))}]."


def _rounded(pairs: Sequence[Pair]) -> str | None:
    largest = 0.0
    for g, w in _alike_in_shape(pairs) or ():
        away = (g.double() - w.double()).abs()
        if not bool((away <= 0.02 * w.double().abs().max().clamp_min(1e-6)).all()):
            return None
        largest = max(largest, float(away.max()))
    return f"They are off by {largest:.1g} at most." if largest else None


def _hides_too_much(pairs: Sequence[Pair]) -> str | None:
    shown = None
    for one, other in _weights(pairs) or ():
        coarse = 2e-2 if one.element_size() == 2 else 1e-3
        one, other = one.double(), other.double()
        kept = one > 0
        silent = ~kept.any(dim=-1) & (other > 0).any(dim=-1)  # of a whole row there is more to say
        if one.isnan().any() or silent.any():
            return None
        factor = (one / other.clamp_min(1e-300)).masked_fill(~kept, torch.nan)
        spread = factor.nan_to_num(-torch.inf).amax(dim=-1) - factor.nan_to_num(torch.inf).amin(dim=-1)
        if (kept & (other == 0)).any() or (spread > coarse * factor.nan_to_num(0.0).amax(dim=-1)).any():
            return None
        silenced = (~kept & (other > 1e-3)).nonzero()
        if shown is None and len(silenced):
            b, h, q, k = silenced[0].tolist()
            shown = f"In example {b}, head {h}, query {q} does not see key {k}."
    return shown


_OF_ROWS: tuple[tuple[Mistake, Callable[[Sequence[Pair]], str | None]], ...] = (
    (ZEROED, _zero_in_part),
    (HIDES_TOO_MUCH, _hides_too_much),
    (ROW_FACTORS, _rows_times_numbers),
    (ROUNDED, _rounded),
    (BENT, _bent),
)
_OF_WHOLE_RESULTS: tuple[tuple[Mistake, Callable[[Sequence[Pair]], str | None]], ...] = (
    (OTHER_SCALE, _scale),
    (OTHER_DTYPE, _has_another_dtype),
)
_RELATIONS: tuple[tuple[Mistake, Callable[[Sequence[tuple[Tensor, Tensor]]], str | None]], ...] = (
    (OTHER_SHAPE, _has_another_shape),
    (OTHER_AXES, _has_axes_exchanged),
    (REVERSED, _runs_backwards),
    (FACTOR, _is_a_multiple),
    (OFFSET, _is_shifted),
)
