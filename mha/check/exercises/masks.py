"""Making masks: one stage each."""

import torch
from torch import Tensor

import mha
from mha.check.exercise import Probe, single


def causal(Lq: int, Lk: int | None = None) -> Tensor:
    """(Lq, Lk), bottom-right aligned."""
    Lk = Lq if Lk is None else Lk
    return torch.arange(Lk) <= torch.arange(Lq)[:, None] + Lk - Lq


def padding(lengths: Tensor, max_len: int) -> Tensor:
    """(B,) → (B, 1, 1, Lk)."""
    return (torch.arange(max_len) < lengths[:, None])[:, None, None]


def _causal_probes() -> list[Probe]:
    sizes = [(1, 1), (3, 3), (2, 5), (1, 4), (4, 2)]
    probes = [Probe(f"Lq={Lq}, Lk={Lk}", "causal", {"Lq": Lq, "Lk": Lk}) for Lq, Lk in sizes]
    return [*probes, Probe("Lq=3, no Lk given", "causal", {"Lq": 3})]


def _padding_probes() -> list[Probe]:
    rows = [([2], 3), ([1, 3, 2], 3), ([4, 1], 6), ([0, 2], 2)]
    return [
        Probe(f"lengths {lengths}, max_len {L}", "padding", {"lengths": torch.tensor(lengths), "max_len": L})
        for lengths, L in rows
    ]


CAUSAL_MASK = single("causal_mask", "(Lq, Lk=None)", mha.causal_mask, causal, _causal_probes)

PADDING_MASK = single("padding_mask", "(lengths, max_len)", mha.padding_mask, padding, _padding_probes)
