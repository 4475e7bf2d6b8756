"""Projecting, splitting into heads, joining and repeating them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mha
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe, driven, single
from mha.check.exercises.inputs import random_tensors
from mha.check.outcome import run, same


def split(x: Tensor, num_heads: int) -> Tensor:
    """(B, L, d_model) → (B, h, L, d_k)."""
    B, L, d_model = x.shape
    return x.view(B, L, num_heads, d_model // num_heads).transpose(1, 2)


def split_give(heads: Tensor) -> Any:
    """As it is: this stage is there for the mistakes that no layer shows, where an error hides them."""
    return heads


def cut(s: Mapping[str, Stage], x: Tensor, num_heads: int) -> Any:
    """Run the stages of splitting into heads."""
    return s["split_give"](s["split"](x, num_heads))


def merge(x: Tensor) -> Tensor:
    """(B, h, L, d_k) → (B, L, h·d_k)."""
    B, h, L, d_k = x.shape
    return x.transpose(1, 2).reshape(B, L, h * d_k)


def merge_give(x: Tensor) -> Tensor:
    """As it is: this stage is there for what `split_give` is there for."""
    return x


def join(s: Mapping[str, Stage], x: Tensor) -> Any:
    """Run the stages of joining the heads."""
    return s["merge_give"](s["merge"](x))


def project(x: Tensor, W: Tensor) -> Tensor:
    """(…, in) → (…, out), with W as nn.Linear stores it."""
    return x @ W.T


def repeat(x: Tensor, n_rep: int) -> Tensor:
    """(B, h_kv, L, d_k) → (B, h_kv·n_rep, L, d_k)."""
    return x.repeat_interleave(n_rep, dim=1)


def split_alike(x: Tensor, num_heads: int) -> Tensor:
    """Queries, keys and values are split alike: this stage is there for mistakes with one of them."""
    raise NotImplementedError("what is split alike is split by the stage that serves all three")


SPLIT_ALIKE: dict[str, Stage] = {f"split_{role}": split_alike for role in "qkv"}


def splitter(s: Mapping[str, Stage], role: str) -> Stage:
    """Return what splits the queries, keys or values."""
    own = s[f"split_{role}"]
    return s["split"] if own is split_alike else own


def _split_probes() -> list[Probe]:
    shapes = [(1, 1, 4), (1, 3, 8), (2, 3, 12), (2, 4, 12)]
    tensors = random_tensors(*shapes)
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
    tensors = random_tensors((1, 2, 1, 4), (1, 2, 3, 4), (2, 3, 4, 5), (3, 3, 2, 5))
    named = ["one token, two heads", "three tokens, two heads", "two examples", "as many examples as heads"]
    strided = tensors[2].transpose(1, 2).contiguous().transpose(1, 2)
    probes = [Probe(name, "merge", {"x": x}) for name, x in zip(named, tensors, strict=True)]
    return [*probes, Probe("an x that does not lie in memory in order", "merge", {"x": strided})]


def _projection_probes(name: str) -> list[Probe]:
    x, one, square, wide, row, narrow = random_tensors(
        (2, 3, 4), (1, 1, 4), (4, 4), (6, 4), (3, 2, 8), (4, 8)
    )
    return [
        Probe("one token", "project", {name: one, "W": square}),
        Probe("several tokens and examples", "project", {name: x, "W": square}),
        Probe("rows that are wider than the result", "project", {name: row, "W": narrow}),
        Probe("a matrix that is not square", "project", {name: x, "W": wide}),
    ]


def _of_three_axes_only(answer: Any) -> str | None:
    """Say which x (…, d_in) is not taken, of one that is right for tokens of examples, (B, L, d_in)."""
    one, sequence, heads, W = random_tensors((4,), (3, 4), (2, 3, 5, 4), (6, 4))
    cases = {"(d_in,)": one, "(L, d_in)": sequence, "(B, h, L, d_in)": heads}
    wrong = [
        shape for shape, x in cases.items() if not same(run(answer, {"x": x, "W": W}).value, F.linear(x, W))
    ]
    return f"It is for (B, L, d_in) only: it does not take {' or '.join(wrong)}." if wrong else None


def _repeat_probes() -> list[Probe]:
    one, two, three = random_tensors((1, 1, 2, 3), (2, 2, 3, 4), (2, 3, 4, 5))
    sizes = [
        ("one head", one, 2),
        ("two heads", two, 2),
        ("three heads", three, 4),
        ("no repetition", two, 1),
    ]
    return [Probe(name, "repeat", {"x": x, "n_rep": n}) for name, x, n in sizes]


def _linear(x: Tensor, W: Tensor) -> Tensor:
    return F.linear(x, W)


def drawn(W: Tensor, bias: bool, dtype: torch.dtype) -> nn.Linear:
    """Return a new nn.Linear of the shape of W, as it draws itself from a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(W.size(1), W.size(0), bias=bias, dtype=dtype)


def _drawing_in_vain(answer: Any) -> Any:
    """A new nn.Linear draws weights; if it is given W then, nothing of them shows: no side effect.

    If something of them shows, it is told apart from other chance by drawing the same once more.
    """

    def use(answer: Any, x: Tensor, W: Tensor) -> Any:
        with torch.random.fork_rng(devices=[]):
            other, value = answer(x.clone(), W.clone()), answer(x, W)
            if same(other, value):
                return value
            torch.manual_seed(0)
            of_linear = _of_linear(answer(x, W), x, W)
        return answer(x, W) if of_linear is None else of_linear

    return driven(answer, use) if callable(answer) else answer


def _of_linear(value: Any, x: Tensor, W: Tensor) -> Tensor | None:
    """Return what an nn.Linear of x's dtype gives, if `value` is that, of whatever dtype it was made."""

    def results(dtype: torch.dtype) -> list[Tensor]:
        linear = drawn(W, True, dtype).to(x.dtype)
        choices = ((W, linear.bias), (linear.weight, None), (linear.weight, linear.bias))
        return [F.linear(x, weight, bias) for weight, bias in choices]

    made = zip([*results(x.dtype), *results(torch.float32)], 2 * results(x.dtype), strict=True)
    return next((own for one, own in made if same(value, one)), None)


LINEAR_PROJECTION = replace(
    single("linear_projection", "(x, W)", _linear, project, lambda: _projection_probes("x")),
    drive=_drawing_in_vain,
    remark=_of_three_axes_only,
)

SPLIT_HEADS = Exercise(
    "split_heads",
    "(x, num_heads)",
    mha.split_heads,
    {"split": split, "split_give": split_give},
    cut,
    _split_probes,
)

MERGE_HEADS = Exercise(
    "merge_heads",
    "(x)",
    mha.merge_heads,
    {"merge": merge, "merge_give": merge_give},
    join,
    _merge_probes,
)

OUTPUT_PROJECTION = replace(
    single("output_projection", "(concat, W_o)", _linear, project, lambda: _projection_probes("concat")),
    drive=_drawing_in_vain,
)

REPEAT_KV = single("repeat_kv", "(x, n_rep)", mha.repeat_kv, repeat, _repeat_probes)
