"""Making masks: each is made, and given."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import mha
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe, driven


def causal(Lq: int, Lk: int | None = None) -> Tensor:
    """(Lq, Lk), bottom-right aligned."""
    Lk = Lq if Lk is None else Lk
    return torch.arange(Lk) <= torch.arange(Lq)[:, None] + Lk - Lq


def causal_sense(mask: Tensor) -> Tensor:
    """True is 'may attend'."""
    return mask


def padding(lengths: Tensor, max_len: int) -> Tensor:
    """(B,) → (B, Lk)."""
    return torch.arange(max_len) < lengths[:, None]


def padding_rows(mask: Tensor, lengths: Tensor, max_len: int) -> Tensor:
    """(B, Lk), as it is: this stage is there for mistakes that are looked for in this exercise only."""
    return mask


def padding_axes(mask: Tensor) -> Tensor:
    """(B, Lk) → (B, 1, 1, Lk)."""
    return mask[:, None, None]


def causal_give(mask: Tensor) -> Any:
    """(Lq, Lk), bool."""
    return mask


def padding_give(mask: Tensor, lengths: Tensor, max_len: int) -> Any:
    """(B, 1, 1, Lk), bool."""
    return mask


CAUSAL: dict[str, Stage] = {
    "causal": causal,
    "causal_sense": causal_sense,
    "causal_give": causal_give,
}
PADDING: dict[str, Stage] = {
    "padding": padding,
    "padding_rows": padding_rows,
    "padding_axes": padding_axes,
    "padding_give": padding_give,
}


def make_causal(s: Mapping[str, Stage], Lq: int, Lk: int | None = None) -> Any:
    """Run the stages of a causal mask."""
    return s["causal_give"](s["causal_sense"](s["causal"](Lq, Lk)))


def make_padding(s: Mapping[str, Stage], lengths: Tensor, max_len: int) -> Any:
    """Run the stages of a padding mask."""
    rows = s["padding_rows"](s["padding"](lengths, max_len), lengths, max_len)
    return s["padding_give"](s["padding_axes"](rows), lengths, max_len)


def _causal_probes() -> list[Probe]:
    sizes = [(1, 1), (3, 3), (2, 5), (1, 4), (4, 2)]
    probes = [Probe(f"Lq={Lq}, Lk={Lk}", "causal", {"Lq": Lq, "Lk": Lk}) for Lq, Lk in sizes]
    return [*probes, Probe("Lq=3, no Lk given", "causal", {"Lq": 3})]


def _padding_probes() -> list[Probe]:
    # No length is the first, the last, the shortest and the longest at once.
    rows = [([2], 3), ([2, 3, 1], 3), ([2, 4, 1, 3], 6), ([2, 0], 2)]
    return [
        Probe(f"lengths {lengths}, max_len {L}", "padding", {"lengths": torch.tensor(lengths), "max_len": L})
        for lengths, L in rows
    ]


HIDDEN = -1e9  # what a large negative number of an additive mask counts as


def _with_one_number(answer: Any) -> Any:
    """Additive masks of 0 and -1e4, -1e9 or the lowest number that there is are one mistake."""

    def use(answer: Any, *arguments: Any) -> Any:
        mask = answer(*arguments)
        if not isinstance(mask, Tensor) or not mask.is_floating_point():
            return mask
        return mask.masked_fill(mask.isfinite() & (mask < -1000), HIDDEN)

    return driven(answer, use) if callable(answer) else answer


def no_keys_given() -> TypeError:
    """Return what is raised where Lk is used as a number although it was not given."""
    return TypeError("Lk is None: it was not given, and nothing took its place")


def _without_a_default(answer: Any) -> Any:
    """What an answer raises because Lk is None depends on the line that meets it first: it is told as one."""

    def use(answer: Any, Lq: int, Lk: int | None = None) -> Any:
        try:
            return answer(Lq) if Lk is None else answer(Lq, Lk)
        except Exception as error:
            if Lk is not None or not _takes(answer, Lq):
                raise
            raise no_keys_given().with_traceback(error.__traceback__) from None

    return _with_one_number(driven(answer, use) if callable(answer) else answer)


def _takes(answer: Any, Lq: int) -> bool:
    try:
        answer(Lq, Lq)
    except Exception:
        return False
    return True


CAUSAL_MASK = Exercise(
    "causal_mask", "(Lq, Lk=None)", mha.causal_mask, CAUSAL, make_causal, _causal_probes, _without_a_default
)

PADDING_MASK = Exercise(
    "padding_mask",
    "(lengths, max_len)",
    mha.padding_mask,
    PADDING,
    make_padding,
    _padding_probes,
    _with_one_number,
)
