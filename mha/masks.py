"""Who may look at whom: the two masks of the course, and the rule that every mask has to keep.

The rule is that of `F.scaled_dot_product_attention`: True or non-zero means *may attend*. Beware that
`nn.MultiheadAttention` takes the opposite, True for *ignore*.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mha._validate import check_size, check_tensor


def causal_mask(Lq: int, Lk: int | None = None) -> Tensor:
    """Let each query see its own position and the ones before it.

    Bottom-right aligned: the last query sees the last key, so Lq new tokens after Lk - Lq cached ones see
    all that came before them.

    Returns:
        bool (Lq, Lk), True where the query may attend. Lk is Lq unless given.

    Raises:
        TypeError, ValueError: for lengths that are not positive integers.

    Source: Vaswani et al. 2017, section 3.2.3.
    """
    Lk = Lq if Lk is None else Lk
    check_size("Lq", Lq)
    check_size("Lk", Lk)
    return torch.ones(Lq, Lk, dtype=torch.bool).tril(diagonal=Lk - Lq)


def padding_mask(lengths: Tensor | Sequence[int], max_len: int | None = None) -> Tensor:
    """Let every query see the real tokens of its own sequence, and none of the padding behind them.

    Args:
        lengths: number of real tokens of each sequence, (B,), integers.
        max_len: the padded length Lk; the longest of `lengths` unless given.

    Returns:
        bool (B, 1, 1, Lk), True for a real token: it broadcasts over heads and queries.

    Raises:
        TypeError, ValueError: for lengths that are not a row of integers from 0 to max_len.
    """
    lengths = _as_integers(lengths)
    if max_len is None:
        max_len = int(lengths.max()) if lengths.numel() else 0
    else:
        check_size("max_len", max_len)
    if _has_values(lengths) and ((lengths < 0) | (lengths > max_len)).any():
        raise ValueError(f"lengths={lengths.tolist()}: each has to lie between 0 and max_len={max_len}")
    steps = torch.arange(max_len, device=lengths.device)
    return (steps < lengths[:, None])[:, None, None, :]  # (B, 1, 1, Lk)


def may_attend(mask: Tensor, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return `mask` as bool after making sure that it means what its owner thinks it means.

    Args:
        mask: bool, or 0/1 of any dtype; True or non-zero means may attend.
        shape: that of the scores it is for, (B, h, Lq, Lk); a mask has to broadcast to it.
        device: that of the scores.

    Returns:
        bool, of at least two axes.

    Raises:
        TypeError: if it is not a tensor, or is complex.
        ValueError: if it does not broadcast, would broadcast by accident, is additive, or lies elsewhere.
    """
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask is a {type(mask).__name__}; it has to be a tensor")
    if mask.device != device:
        raise ValueError(f"mask is on {mask.device} and the scores on {device}: move it with mask.to(...)")
    _check_broadcast(mask, tuple(shape))
    if mask.dtype != torch.bool:
        _check_values(mask)
        mask = mask != 0
    return torch.atleast_2d(mask)


def _has_values(x: Tensor) -> bool:
    # There are none to ask for while a graph is traced, nor on the device that holds shapes alone.
    return not (torch.compiler.is_compiling() or x.is_meta)


def _as_integers(lengths: object) -> Tensor:
    try:
        row = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"lengths={lengths!r} has to be a row of integers, (B,)") from error
    check_tensor("lengths", row, axes=("B",), floating=False)
    return row.long()


def _check_broadcast(mask: Tensor, shape: tuple[int, ...]) -> None:
    wanted = f"mask has shape {tuple(mask.shape)}; it has to broadcast to the scores, {shape}"
    batch_first = 2 <= mask.ndim < len(shape) and mask.size(0) == shape[0] > 1
    hint = f". If its first axis is the batch, {_with_batch_axis(mask, shape)}" if batch_first else ""
    aligned = shape[len(shape) - mask.ndim :]
    if mask.ndim > len(shape) or any(m not in (1, s) for m, s in zip(mask.shape, aligned)):
        raise ValueError(wanted + hint)
    # B = aligned[0] fits both readings, by accident in one of them. Only the causal mask is let through: it
    # is made for no batch in particular.
    if batch_first and aligned[0] == shape[0] and not _is_causal(mask, shape):
        axis = "query" if mask.ndim == 2 else "head"
        raise ValueError(
            f"mask has shape {tuple(mask.shape)}, and there are as many examples as entries on the {axis} "
            f"axis ({shape[0]}), so it can be read in two ways{hint}; else give it all {len(shape)} axes, "
            f"mask[{', '.join(['None'] * (len(shape) - mask.ndim))}]"
        )


def _with_batch_axis(mask: Tensor, shape: tuple[int, ...]) -> str:
    gaps = ["None"] * (len(shape) - mask.ndim)
    return f"write mask[{', '.join([':', *gaps])}]: {(mask.size(0), *[1] * len(gaps), *mask.shape[1:])}"


def _is_causal(mask: Tensor, shape: tuple[int, ...]) -> bool:
    if mask.shape != shape[-2:]:
        return False
    # Where no value can be seen, it gets the benefit of the doubt.
    return not _has_values(mask) or torch.equal(mask != 0, causal_mask(*mask.shape).to(mask.device))


def _check_values(mask: Tensor) -> None:
    if mask.is_complex():
        raise TypeError(f"mask has dtype {mask.dtype}; it has to be bool, or hold 0 and 1")
    if not (_has_values(mask) and mask.dtype.is_signed):
        return
    additive = ((mask != 0) & (mask != 1)) if mask.is_floating_point() else mask < 0
    if additive.any():
        value = mask[additive][0].item()
        raise ValueError(
            f"mask holds {value}, so it looks like one that is added to the scores; here True or 1 means "
            "may attend. Convert it: mask == 0 for an additive mask of 0 and -inf (or a large negative one)"
        )
