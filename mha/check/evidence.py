"""What a verdict shows of numbers: the input, and where given and wanted part."""

from typing import Any

from torch import Tensor, nn

FEW = 12  # as many numbers as are shown one by one
MANY = 300  # as many characters as are shown of what is no tensor


def describe(value: Any) -> str:
    """Return a value in a few words: shape and dtype of a tensor, its numbers if there are few."""
    if isinstance(value, tuple) and any(isinstance(item, Tensor) for item in value):
        return " and ".join(map(describe, value))
    if isinstance(value, dict) and any(isinstance(item, Tensor) for item in value.values()):
        return ", ".join(f"{name} {_short(item)}" for name, item in value.items())
    if isinstance(value, Tensor):
        numbers = f", {_rounded(value)}" if value.numel() <= FEW else ""
        return f"shape {tuple(value.shape)}, {dtype_name(value)}{numbers}"
    if callable(value):  # the repr of a method holds an address
        return f"a {type(value).__name__}"
    if isinstance(value, list | tuple) and any(
        isinstance(item, Tensor | list | tuple | dict) for item in value
    ):
        return f"{type(value).__name__} of {len(value)}: {cut(', '.join(map(_short, value)))}"
    return cut(repr(value))


def cut(text: str) -> str:
    """Return no more of a text than is read."""
    return text if len(text) <= MANY else f"{text[:MANY]} …"


def describe_input(arguments: dict[str, Any]) -> str:
    """Return a probe's arguments in a few words."""
    return ", ".join(f"{name} {_short(value)}" for name, value in arguments.items())


def difference(given: Any, wanted: Any) -> str | None:
    """Say where two values first differ that are alike in form; None where their forms differ.

    Returns:
        For instance "weights[0, 0, 2, 1] is 0.25, wanted 0.5 (6 of 24 numbers differ)".
    """
    if isinstance(given, tuple) and isinstance(wanted, tuple) and len(given) == len(wanted) == 2:
        # Weights say more of what went wrong than the output that is made with them.
        pairs = reversed(list(zip(("output", "weights"), given, wanted, strict=True)))
        return next(filter(None, (_first_difference(*pair) for pair in pairs)), None)
    if isinstance(given, dict) and isinstance(wanted, dict):
        pairs = ((str(name), given.get(name), wanted[name]) for name in wanted)
        return next(filter(None, (_first_difference(*pair) for pair in pairs)), None)
    return _first_difference("result", given, wanted)


def other_shape(given: Any, wanted: Any) -> str | None:
    """Say how the shape of a result differs from the one that is wanted; None where it does not."""
    parts = [("result", given, wanted)]
    if isinstance(given, tuple) and isinstance(wanted, tuple) and len(given) == len(wanted) == 2:
        parts = list(zip(("output", "weights"), given, wanted, strict=True))
    if isinstance(given, dict) and isinstance(wanted, dict):
        for names, what in (
            (wanted.keys() - given.keys(), "missing"),
            (given.keys() - wanted.keys(), "one too many"),
        ):
            if names:
                return f"{', '.join(sorted(map(str, names)))}: {what}"
        parts = [(str(name), given[name], wanted[name]) for name in wanted]
    for name, one, other in parts:
        if isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape != other.shape:
            return f"{name} has shape {tuple(one.shape)}, wanted {tuple(other.shape)}"
    return None


def _first_difference(name: str, given: Any, wanted: Any) -> str | None:
    if not isinstance(given, Tensor) or not isinstance(wanted, Tensor) or given.shape != wanted.shape:
        return None
    if given.is_complex() or wanted.is_complex():
        return None
    one, other = given.double(), wanted.double()
    differs = ~one.isclose(other, rtol=1e-3, atol=1e-6, equal_nan=True)
    if not differs.any():
        return None
    index = tuple(differs.nonzero()[0].tolist())
    count = f"{int(differs.sum())} of {differs.numel()} numbers differ"
    largest = (one - other).abs().nan_to_num(0.0).max()
    by = f", by {number(largest)} at most" if largest > 0 and int(differs.sum()) > 1 else ""
    return f"{name}{list(index)} is {number(one[index])}, wanted {number(other[index])} ({count}{by})"


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        if value.numel() <= FEW and value.ndim == 1 and not value.is_floating_point():
            return str(value.tolist())
        return str(tuple(value.shape))
    if isinstance(value, nn.Module):
        kinds = (kind for kind in type(value).__mro__ if kind.__module__.startswith("torch."))
        return f"nn.{next(kinds).__name__}"
    text = repr(value)
    return text if len(text) <= 40 else type(value).__name__


def dtype_name(value: Tensor) -> str:
    """Return a tensor's dtype as it is written: float32."""
    return str(value.dtype).removeprefix("torch.")


def number(x: Tensor) -> str:
    """Return one number as it is read: four digits."""
    return f"{x.item():.4g}"


def _rounded(value: Tensor) -> str:
    if not value.is_floating_point():
        return str(value.tolist())
    return str((value.double() * 1000).round().div(1000).tolist())
