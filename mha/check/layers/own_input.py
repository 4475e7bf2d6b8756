"""An input on which its owner sees a layer go wrong: does it, and what explains it?"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mha.check.catalogue import Mistake, pairs_of
from mha.check.diagnose import Comparison
from mha.check.exercise import Probe
from mha.check.layers.behaviour import first
from mha.check.layers.calls import Built
from mha.check.layers.inputs import GivenError
from mha.check.layers.reading import Reading
from mha.check.layers.verdict import said, told
from mha.check.outcome import Outcome, run, same
from mha.check.result import Result

OWN = "your own input"
_LARGE = 100_000  # numbers; the catalogue is not tried on more than that
Inputs = Tensor | Sequence[Tensor | None]


def own_probe(given: Tensor | Sequence[Tensor | None]) -> Probe:
    """Make a probe of an input that somebody gives: X, (Q, K, V) or (Q, K, V, mask).

    Raises:
        GivenError: if that is not what came, or its shapes do not fit one another.
    """
    parts = [given] * 3 if isinstance(given, Tensor) else list(given) if isinstance(given, Sequence) else []
    if len(parts) == 1:
        parts *= 3
    if len(parts) not in (3, 4):
        what = f"{len(parts)} tensors" if parts else f"a {type(given).__name__}"
        raise GivenError(f"inputs holds {what}; it has to be X, (Q, K, V) or (Q, K, V, mask)")
    Q, K, V = parts[:3]
    for name, x in zip("QKV", (Q, K, V), strict=True):
        if not isinstance(x, Tensor) or not x.is_floating_point():
            what = f"of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise GivenError(
                f"inputs: {name} is {what}; it has to be a floating-point tensor (B, L, d_model)"
            )
        if x.ndim != 3:
            raise GivenError(f"inputs: {name} has shape {tuple(x.shape)}; it has to be (B, L, d_model)")
    if K.size(0) != Q.size(0) or V.shape[:2] != K.shape[:2]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (Q, K, V))
        raise GivenError(
            f"inputs: Q, K, V have shapes {shapes}; they have to be (B, Lq, d_model), (B, Lk, d_model) twice"
        )
    arguments = {"Q": Q.detach(), "K": K.detach(), "V": V.detach()}
    if Q is K:
        arguments["K"] = arguments["Q"]
    if K is V:
        arguments["V"] = arguments["K"]
    if len(parts) == 4 and parts[3] is not None:
        arguments["mask"] = _fitting_mask(parts[3], Q, K)
    return Probe(OWN, "own input", arguments)


def _fitting_mask(mask: object, Q: Tensor, K: Tensor) -> Tensor:
    wanted = f"(B, 1, Lq, Lk) = {(Q.size(0), 1, Q.size(1), K.size(1))}, or what broadcasts to (B, h, Lq, Lk)"
    if not isinstance(mask, Tensor):
        raise GivenError(f"inputs: the mask is a {type(mask).__name__}; it has to be a tensor {wanted}")
    sizes = (Q.size(0), mask.size(-3) if mask.ndim > 2 else 1, Q.size(1), K.size(1))
    if mask.ndim not in (2, 4) or any(
        n not in (1, size) for n, size in zip(reversed(mask.shape), reversed(sizes), strict=False)
    ):
        raise GivenError(f"inputs: the mask has shape {tuple(mask.shape)}; it has to be {wanted}")
    if mask.dtype != torch.bool and not ((mask == 0) | (mask == 1)).all():
        raise GivenError(
            "inputs: the mask holds other numbers than 0 and 1; True or 1 has to mean 'may attend': "
            "of a mask that is added, give mask == 0, and turn it back in call="
        )
    return mask.detach()


def check_width(probe: Probe, d_model: int) -> None:
    """Raise GivenError unless an input of one's own is as wide as the layer."""
    for name in "QKV":
        x = probe.arguments[name]
        if x.size(-1) != d_model:
            raise GivenError(
                f"inputs: {name} has shape {tuple(x.shape)}; its last axis has to be d_model={d_model}"
            )


def with_own(
    built: Built, reading: Reading, result: Result, own: Probe, probes: list[Probe], given: list[Outcome]
) -> Result:
    """Say what becomes of an input of the owner, and find what explains it together with all the others."""
    outcome = run(built, own.arguments)
    whole = reading.compare([own], [outcome])
    if not whole.wrong:
        right = "On your own input it is right."
        return told(result, right if result.passed else "Your own input does not show it.")
    rounding = _rounding(outcome.value, whole.wanted[0].value)
    if rounding is not None:
        return told(result, f"On your own input it differs by no more than rounding: {rounding}.")
    if not result.passed:
        if _explain(result.mistakes, whole, outcome):
            return told(result, "It shows on your own input, too.")
        return told(result, f"Your own input shows something else besides: {said(whole.unknown())}")
    # Shown first and tried last: it is only worked through where all the others fit.
    found = reading.compare([own, *probes], [outcome, *given]).one_mistake()
    if found is None:
        part, of_part = _cut_down(built, reading, own, outcome)
        smallest = reading.compare([part], [of_part])
        searched = smallest if sum(x.numel() for x in own.arguments.values()) > _LARGE else whole
        found = searched.one_mistake() or smallest.unknown()
    return told(found, "On all other inputs it is right.")


def _explain(mistakes: Sequence[Mistake], whole: Comparison, outcome: Outcome) -> bool:
    """Whether one of these mistakes, or two of them, come to the same on the owner's input as well."""
    arguments = whole.probes[0].arguments
    tried = [(entry,) for entry in mistakes]
    tried += pairs_of(mistakes)
    outcomes = (run(whole.exercise.with_mistakes(*entries), arguments) for entries in tried)
    return any(other.error is None and same(first(outcome.value), first(other.value)) for other in outcomes)


def _cut_down(built: Built, reading: Reading, own: Probe, outcome: Outcome) -> tuple[Probe, Outcome]:
    """Return the smallest part of an input that goes wrong alone: one example, half of it, half of that."""
    smaller = True
    while smaller:
        smaller = False
        for arguments in _parts(own.arguments):
            tried = run(built, arguments)
            part = Probe(f"a part of {OWN}", own.stage, arguments)
            if reading.compare([part], [tried]).wrong:
                own, outcome, smaller = part, tried, True
                break
    return own, outcome


def _parts(arguments: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return each example of a batch, else the first and the second half of one."""
    Q, K = arguments["Q"], arguments["K"]
    if Q.size(0) > 1:
        return [_part(arguments, slice(b, b + 1), slice(None), slice(None)) for b in range(Q.size(0))]
    q, k = (x.size(1) // 2 for x in (Q, K))
    return [
        _part(arguments, slice(None), *lengths)
        for lengths in ((slice(q), slice(k)), (slice(q, None), slice(k, None)))
        if q and k
    ]


def _part(arguments: dict[str, Tensor], examples: slice, queries: slice, keys: slice) -> dict[str, Tensor]:
    cut: dict[int, Tensor] = {}  # what was one tensor stays one
    for name in "QKV":
        x = arguments[name]
        cut.setdefault(id(x), x[examples, queries if name == "Q" else keys])
    parts = {name: cut[id(arguments[name])] for name in "QKV"}
    if "mask" in arguments:
        mask = arguments["mask"].expand(*arguments["mask"].shape[:-2], *(arguments[x].size(1) for x in "QK"))
        mask = mask[..., queries, keys]
        parts["mask"] = mask[examples] if mask.ndim == 4 and mask.size(0) > 1 else mask
    return parts


def _rounding(given: Any, wanted: Any) -> str | None:
    """Return by how much two outputs differ, if that is what the rounding of their dtype may make."""
    given, wanted = first(given), first(wanted)
    if not isinstance(given, Tensor) or given.shape != wanted.shape or given.dtype != wanted.dtype:
        return None
    difference = (given.double() - wanted.double()).abs().max().item()
    steps = 8 if given.dtype in (torch.bfloat16, torch.float16) else 1000
    limit = steps * torch.finfo(given.dtype).eps * wanted.double().abs().max().item()
    return f"{difference:.0e} in {str(given.dtype).removeprefix('torch.')}" if difference <= limit else None
