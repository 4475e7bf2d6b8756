"""The inputs on which a layer is tried, easiest first, and weights that its owner gives."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mha.check.exercise import Probe
from mha.check.exercises.inputs import random_mask
from mha.check.weights import Projections
from mha.masks import causal_mask, padding_mask

HALF, NUMBERS, MASKED = "half precision", "a mask of 0 and 1", "a mask"
Weights = Sequence[Tensor | nn.Linear]


class GivenError(ValueError):
    """What was given beside the answer cannot be used: the message says which, what came, what is wanted."""


def layer_probes(d_model: int, inputs: int = 3, masked: bool = True) -> list[Probe]:
    """Return the ladder for a layer of `inputs` inputs: 1 is self-attention only, 2 has one for K and V."""
    generator = torch.Generator().manual_seed(0)

    def x(B: int, L: int) -> Tensor:
        return torch.randn(B, L, d_model, generator=generator, dtype=torch.float64)

    def together(Q: Tensor, K: Tensor, V: Tensor) -> dict[str, Tensor]:
        return {"Q": Q, "K": Q if inputs == 1 else K, "V": (Q, K, V)[inputs - 1]}

    one, three, square = x(1, 1), x(1, 3), x(2, 6)
    cross = together(x(2, 3), x(2, 7), x(2, 7))
    short = together(x(2, 6), x(2, 3), x(2, 3))
    large = together(cross["Q"] * 60, cross["K"] * 60, cross["V"])
    Lq, Lk = cross["Q"].size(1), cross["K"].size(1)
    mask = random_mask(2, Lq, Lk)
    empty = mask.clone()
    empty[1, 0, 2] = False
    itself = {"Q": square, "K": square, "V": square}
    causal, padding = causal_mask(6), padding_mask([6, 4], 6)
    square_mask = random_mask(2, 6, 6)
    half = {name: t.bfloat16() for name, t in cross.items()}
    if inputs == 1:  # what was one tensor stays one
        half = dict.fromkeys("QKV", half["Q"])
    ladder = [
        Probe("one token", "project", {"Q": one, "K": one, "V": one}),
        Probe("self-attention of three tokens", "split", {"Q": three, "K": three, "V": three}),
        Probe("a batch", "split", {"Q": square, "K": square, "V": square}),
    ]
    if inputs > 1:
        ladder += [
            Probe("keys and values of their own", "project", together(square, x(2, 6), x(2, 6))),
            Probe("more queries than keys", "score", short),
            Probe("more keys than queries", "score", cross),
            # As many tokens as heads, and as numbers in a head: what else would raise shows its numbers.
            Probe("as many tokens as heads", "split", together(x(2, 4), x(2, 4), x(2, 4))),
            Probe("as many tokens as numbers in a head", "split", together(x(2, 5), x(2, 5), x(2, 5))),
        ]
    ladder += [Probe("large scores", "softmax", large), Probe(HALF, "softmax", half)]
    if masked:
        ladder += [
            Probe(MASKED, "mask", {**cross, "mask": mask}),
            Probe(NUMBERS, "mask", {**cross, "mask": mask.long()}),
            Probe("a query with nothing to see", "guard", {**cross, "mask": empty}),
            Probe("self-attention and a mask", "mask", {**itself, "mask": square_mask}),
            Probe("self-attention and a causal mask", "mask", {**itself, "mask": causal.expand(2, 1, 6, 6)}),
            Probe("self-attention and padding", "mask", {**itself, "mask": padding.expand(2, 1, 6, 6)}),
        ]
    return ladder


def with_large_masked(probes: list[Probe]) -> list[Probe]:
    """Return the ladder with one more that tells wrong masks apart: what they hide is by far the best.

    Who is right but for scores that large is right enough, so no answer is refused for it.
    """
    i = next((i for i, probe in enumerate(probes) if probe.shows == MASKED), None)
    if i is None:
        return probes
    arguments = probes[i].arguments
    larger = {id(arguments[name]): arguments[name] * 60 for name in "QK"}
    shown = {name: larger.get(id(x), x) for name, x in arguments.items()}  # what was one tensor stays one
    return [*probes[: i + 1], Probe("large scores and a mask", "mask", shown), *probes[i + 1 :]]


def other_masks(d_model: int, num_heads: int) -> dict[str, dict[str, Tensor]]:
    """Return self-attention under masks of other shapes, by these: not every layer takes them."""
    x = torch.randn(2, 6, d_model, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    masks = {
        "(L, L)": causal_mask(6),
        "(B, 1, 1, L)": padding_mask([6, 4], 6),
        "(B, h, L, L)": random_mask(2, 6, 6, h=num_heads),
    }
    return {shape: {"Q": x, "K": x, "V": x, "mask": mask} for shape, mask in masks.items()}


def given_projections(weights: Weights, num_heads: int | None) -> Projections:
    """Return the projections that somebody gives: (W_q, W_k, W_v) or with W_o, (out, in) or nn.Linear.

    Raises:
        GivenError: if there are not three or four, their shapes do not fit, or heads cannot be cut.
    """
    named = dict(zip("qkvo", weights, strict=False)) if isinstance(weights, Sequence) else {}
    if len(named) < 3 or len(weights) > 4:
        what = f"{len(weights)} matrices" if named else f"a {type(weights).__name__}"
        raise GivenError(f"weights is {what}; it has to be (W_q, W_k, W_v) or (W_q, W_k, W_v, W_o)")
    if isinstance(num_heads, bool) or not isinstance(num_heads, int) or num_heads < 1:
        raise GivenError(f"num_heads={num_heads!r}; with weights=… say how many heads share them, at least 1")
    tensors = {}
    for role, W in named.items():
        if isinstance(W, nn.Linear) and W.bias is not None:
            tensors[f"b_{role}"] = W.bias.detach()
        tensors[f"W_{role}"] = W = W.weight.detach() if isinstance(W, nn.Linear) else W
        if not isinstance(W, Tensor) or W.ndim != 2 or not W.is_floating_point():
            what = f"of shape {tuple(W.shape)} and {W.dtype}" if isinstance(W, Tensor) else type(W).__name__
            raise GivenError(f"weights: W_{role} is {what}; it has to be (out, in), as nn.Linear stores it")
        tensors[f"W_{role}"] = W.detach()
    _check_shapes(tensors, num_heads)
    return Projections(num_heads, **{"W_o": None, **tensors})


def _check_shapes(tensors: dict[str, Tensor], num_heads: int) -> None:
    out, d_model = tensors["W_q"].shape
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items() if name.startswith("W"))
    if any(tensors[f"W_{role}"].shape != (out, d_model) for role in "kv"):
        raise GivenError(f"weights: {shapes}; W_q, W_k and W_v have to be (h·d_k, d_model), all three")
    if "W_o" in tensors and tensors["W_o"].shape != (d_model, out):
        raise GivenError(f"weights: {shapes}; W_o has to be (d_model, h·d_k) = {(d_model, out)}")
    if out % num_heads:
        raise GivenError(f"weights: W_q has {out} rows, which num_heads={num_heads} does not divide")
    dtypes = {x.dtype for x in tensors.values()} | {x.device for x in tensors.values()}
    if len(dtypes) > 2:
        raise GivenError(
            f"weights are of {', '.join(sorted(map(str, dtypes)))}; one dtype and device is wanted"
        )
