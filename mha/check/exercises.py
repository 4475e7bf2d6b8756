"""The exercises: what is asked, what it is marked against, and the inputs on which it is tried.

The inputs of an exercise are a ladder. They go from the smallest on which anything shows to the ones that
tell mistakes apart, so that the first on which an answer goes wrong is also the easiest to look at.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import mha
from mha.check import pipelines
from mha.check.catalogue import Mistake, Stage, mistakes_of


@dataclass(frozen=True)
class Probe:
    """One input, and what it shows."""

    shows: str
    stage: str  # where an answer goes wrong that is right on the probes before
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Exercise:
    """Something to write, marked against the package's own code."""

    name: str
    signature: str
    reference: Callable[..., Any]
    stages: Mapping[str, Stage]
    pipeline: pipelines.Pipeline
    probes: Callable[[], list[Probe]]

    @property
    def mistakes(self) -> list[Mistake]:
        """What the catalogue knows of getting this wrong."""
        return mistakes_of(self.stages)

    def with_mistakes(self, *mistakes: Mistake) -> Callable[..., Any]:
        """Return the pipeline with these mistakes put in."""
        stages = dict(self.stages)
        for entry in mistakes:
            stages.update(entry.replaces)
        return lambda *arguments: self.pipeline(stages, *arguments)


def _random(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def _qkv(B: int, h: int, Lq: int, Lk: int, d_k: int, d_v: int) -> dict[str, Any]:
    Q, K, V = _random((B, h, Lq, d_k), (B, h, Lk, d_k), (B, h, Lk, d_v))
    return {"Q": Q, "K": K, "V": V}


def _mask(B: int, Lq: int, Lk: int) -> Tensor:
    """A mask that differs for each example and hides every key from no query."""
    mask = torch.rand(B, 1, Lq, Lk, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[..., 0] = True
    return mask


def _attention_probes() -> list[Probe]:
    cross, square = _qkv(2, 3, 4, 5, 6, 6), _qkv(2, 3, 4, 4, 6, 6)
    mask = _mask(2, 4, 5)
    empty = mask.clone()
    empty[1, 0, 2] = False
    half = {name: x.half() for name, x in cross.items()}
    large = {"Q": cross["Q"] * 300, "K": cross["K"] * 300, "V": cross["V"]}
    strided = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in cross.items()}
    return [
        Probe("one token, one head", "weigh", _qkv(1, 1, 1, 1, 4, 4)),
        Probe("three tokens, one head", "scale", _qkv(1, 1, 3, 3, 4, 4)),
        Probe("several heads and examples", "softmax", square),
        Probe("more keys than queries", "score", cross),
        Probe("inputs that do not lie in memory in order", "score", strided),
        Probe("large scores", "softmax", large),
        Probe("a mask", "mask", {**cross, "mask": mask}),
        Probe("a square mask", "mask", {**square, "mask": _mask(2, 4, 4)}),
        Probe("a mask of 0 and 1", "mask", {**cross, "mask": mask.long()}),
        Probe("a query with nothing to see", "guard", {**cross, "mask": empty}),
        Probe("a mask in half precision", "mask", {**half, "mask": mask}),
    ]


def _split_probes() -> list[Probe]:
    shapes = [(1, 1, 4), (1, 3, 8), (2, 3, 12), (2, 4, 12)]
    tensors = _random(*shapes)
    strided = tensors[2].transpose(0, 1).contiguous().transpose(0, 1)
    named = ["one token, two heads", "three tokens, two heads", "two examples, three heads", "six heads"]
    heads = [2, 2, 3, 6]
    probes = [
        Probe(name, "split", {"x": x, "num_heads": h})
        for name, x, h in zip(named, tensors, heads, strict=True)
    ]
    return [
        *probes,
        Probe("an x that does not lie in memory in order", "split", {"x": strided, "num_heads": 3}),
    ]


def _merge_probes() -> list[Probe]:
    tensors = _random((1, 2, 1, 4), (1, 2, 3, 4), (2, 3, 4, 5), (3, 3, 2, 5))
    named = ["one token, two heads", "three tokens, two heads", "two examples", "as many examples as heads"]
    strided = tensors[2].transpose(1, 2).contiguous().transpose(1, 2)
    probes = [Probe(name, "merge", {"x": x}) for name, x in zip(named, tensors, strict=True)]
    return [*probes, Probe("an x that does not lie in memory in order", "merge", {"x": strided})]


def _projection_probes(name: str) -> list[Probe]:
    x, one, square, wide = _random((2, 3, 4), (1, 1, 4), (4, 4), (6, 4))
    return [
        Probe("one token", "project", {name: one, "W": square}),
        Probe("several tokens and examples", "project", {name: x, "W": square}),
        Probe("a matrix that is not square", "project", {name: x, "W": wide}),
    ]


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


def _repeat_probes() -> list[Probe]:
    one, two, three = _random((1, 1, 2, 3), (2, 2, 3, 4), (2, 3, 4, 5))
    sizes = [
        ("one head", one, 2),
        ("two heads", two, 2),
        ("three heads", three, 4),
        ("no repetition", two, 1),
    ]
    return [Probe(name, "repeat", {"x": x, "n_rep": n}) for name, x, n in sizes]


def _linear(x: Tensor, W: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, W)


def _single(
    name: str, signature: str, reference: Stage, stage: str, probes: Callable[[], list[Probe]]
) -> Exercise:
    stages = {stage: getattr(pipelines, stage)}
    return Exercise(name, signature, reference, stages, pipelines.alone(stage), probes)


EXERCISES = {
    exercise.name: exercise
    for exercise in (
        _single("linear_projection", "(x, W)", _linear, "project", lambda: _projection_probes("x")),
        _single("split_heads", "(x, num_heads)", mha.split_heads, "split", _split_probes),
        Exercise(
            "scaled_dot_product_attention",
            "(Q, K, V, mask=None)",
            mha.scaled_dot_product_attention,
            pipelines.ATTENTION,
            pipelines.attention,
            _attention_probes,
        ),
        _single("merge_heads", "(x)", mha.merge_heads, "merge", _merge_probes),
        _single(
            "output_projection", "(concat, W_o)", _linear, "project", lambda: _projection_probes("concat")
        ),
        _single("causal_mask", "(Lq, Lk=None)", mha.causal_mask, "causal", _causal_probes),
        _single("padding_mask", "(lengths, max_len)", mha.padding_mask, "padding", _padding_probes),
        _single("repeat_kv", "(x, n_rep)", mha.repeat_kv, "repeat", _repeat_probes),
    )
}
