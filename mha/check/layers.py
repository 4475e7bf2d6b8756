"""Marking a whole layer, given as a class or built: its own weights are put into the pipeline."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mha.attention import MultiHeadAttention
from mha.check import pipelines
from mha.check.catalogue import Mistake
from mha.check.diagnose import Comparison, Result, verdict
from mha.check.exercises import Exercise, Probe
from mha.check.mistakes import layer as known
from mha.check.outcome import Outcome, run
from mha.check.weights import Projections, find_projections

NAME = "multi_head_attention"
D_MODEL, NUM_HEADS = 12, 3

Call = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor | None], Any]


def _plainly(layer: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None) -> Any:
    return layer(Q, K, V) if mask is None else layer(Q, K, V, mask)


@dataclass(frozen=True)
class _Built:
    layer: nn.Module
    d_model: int
    num_heads: int
    call: Call

    def __call__(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Any:
        self.layer.to(Q.dtype)
        return self.call(self.layer, Q, K, V, mask)


def mark_layer(answer: object, call: Call | None = None, num_heads: int | None = None) -> Result:
    """Mark a class that makes a multi-head attention layer, or a layer that is built already.

    Args:
        answer: a class called as answer(d_model, num_heads), or an nn.Module.
        call: how to call the layer, where that is not layer(Q, K, V, mask).
        num_heads: of a built layer, if it has no attribute that tells.
    """
    if inspect.isclass(answer):
        return _mark_class(answer, call or _plainly)
    if isinstance(answer, nn.Module):
        return _mark_built(answer, call or _plainly, num_heads)
    wanted = "it has to be a class MultiHeadAttention(d_model, num_heads), or a layer made by one"
    return Result(NAME, False, f"{NAME}: the answer is a {type(answer).__name__}; {wanted}", "signature")


def _mark_class(answer: type, call: Call) -> Result:
    made = run(lambda: answer(D_MODEL, NUM_HEADS), {})
    if made.error is not None:
        return _raised("it cannot be made", f"{answer.__name__}({D_MODEL}, {NUM_HEADS})", made)
    if not isinstance(made.value, nn.Module):
        message = f"{NAME}: {answer.__name__} has to be an nn.Module, so that its weights can be trained"
        return Result(NAME, False, message, "signature")
    built = _Built(made.value, D_MODEL, NUM_HEADS, call)
    result = _mark(built)
    if not result.passed:
        return result
    behaviour = _truncates(answer) or _dropout(answer, call)
    return _named(behaviour) if behaviour else result


def _mark_built(layer: nn.Module, call: Call, num_heads: int | None) -> Result:
    heads = num_heads or next(
        (
            getattr(layer, name)
            for name in ("num_heads", "n_heads", "n_head", "heads", "h")
            if hasattr(layer, name)
        ),
        None,
    )
    sizes = [max(p.shape) for p in layer.parameters() if p.ndim == 2]
    d_model = min((min(p.shape) for p in layer.parameters() if p.ndim == 2), default=0)
    if heads is None or not sizes:
        return Result(NAME, False, f"{NAME}: say how many heads it has: num_heads=…", "signature")
    return _mark(_Built(layer.eval(), d_model, int(heads), call))


def _mark(built: _Built) -> Result:
    built.layer.eval()
    candidates = list(find_projections(built.layer, built.d_model, built.num_heads))
    if not candidates:
        return _no_projections(built)
    probes = _probes(built.d_model)
    given = [run(built, probe.arguments) for probe in probes]
    return verdict([Comparison(_exercise(built, w), probes, given) for w in candidates])


def _exercise(built: _Built, w: Projections) -> Exercise:
    right = _reference(w)
    return Exercise(
        NAME,
        "(Q, K, V, mask=None)",
        lambda Q, K, V, mask=None: right.to(Q.dtype)(Q, K, V, mask),
        pipelines.LAYER,
        lambda s, *arguments: pipelines.layer(s, w, *arguments),
        lambda: _probes(built.d_model),
    )


def _reference(w: Projections) -> MultiHeadAttention:
    layer = MultiHeadAttention(w.W_q.size(0), w.num_heads, bias=True)
    state = {}
    for role in "qkvo":
        matrix, bias = getattr(w, f"W_{role}"), getattr(w, f"b_{role}")
        state[f"W_{role}.weight"] = matrix
        state[f"W_{role}.bias"] = matrix.new_zeros(matrix.size(0)) if bias is None else bias
    layer.load_state_dict(state)
    return layer.requires_grad_(False).eval()


def _probes(d_model: int) -> list[Probe]:
    generator = torch.Generator().manual_seed(0)

    def x(B: int, L: int) -> Tensor:
        return torch.randn(B, L, d_model, generator=generator, dtype=torch.float64)

    one, three, square = x(1, 1), x(1, 3), x(2, 4)
    cross = {"Q": x(2, 4), "K": x(2, 6), "V": x(2, 6)}
    short = {"Q": x(2, 5), "K": x(2, 3), "V": x(2, 3)}
    mask = torch.rand(2, 1, 4, 6, generator=generator) < 0.5
    mask[..., 0] = True
    empty = mask.clone()
    empty[1, 0, 2] = False
    half = {name: t.bfloat16() for name, t in cross.items()}
    return [
        Probe("one token", "project", {"Q": one, "K": one, "V": one}),
        Probe("self-attention of three tokens", "split", {"Q": three, "K": three, "V": three}),
        Probe("a batch", "split", {"Q": square, "K": square, "V": square}),
        Probe("keys and values of their own", "project", {"Q": square, "K": x(2, 4), "V": x(2, 4)}),
        Probe("more queries than keys", "score", short),
        Probe("more keys than queries", "score", cross),
        Probe("a mask", "mask", {**cross, "mask": mask}),
        Probe("a mask of 0 and 1", "mask", {**cross, "mask": mask.long()}),
        Probe("a query with nothing to see", "guard", {**cross, "mask": empty}),
        Probe("half precision", "softmax", half),
    ]


def _no_projections(built: _Built) -> Result:
    shapes = {name: tuple(p.shape) for name, p in built.layer.named_parameters()}
    d_k = built.d_model // built.num_heads
    if any(shape == (d_k, d_k) for shape in shapes.values()):
        return _named(known.HEADS_SHARE)
    if sum(p.numel() for p in built.layer.parameters()) < 4 * built.d_model**2:
        return _named(known.NO_PARAMETERS)
    listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    message = f"{NAME}: four projections of {built.d_model} by {built.d_model} are wanted; it has {listed}"
    return Result(NAME, False, message, "project")


def _truncates(answer: type) -> Mistake | None:
    made = run(lambda: answer(10, 3), {})
    return known.NOT_DIVISIBLE if made.error is None else None


def _dropout(answer: type, call: Call) -> Mistake | None:
    if "dropout" not in inspect.signature(answer).parameters:
        return None
    layer = run(lambda: answer(D_MODEL, NUM_HEADS, dropout=0.5), {}).value
    if not isinstance(layer, nn.Module):
        return None
    x = torch.randn(2, 8, D_MODEL, generator=torch.Generator().manual_seed(0))
    if not _repeats(_Built(layer.eval(), D_MODEL, NUM_HEADS, call), x):
        return known.DROPOUT_IN_EVAL
    if _repeats(_Built(layer.train(), D_MODEL, NUM_HEADS, call), x):
        return known.DROPOUT_MISSING
    return None


def _repeats(built: _Built, x: Tensor) -> bool:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, second = (_output(built(x, x, x)) for _ in range(2))
    return torch.equal(first, second)


def _output(value: Any) -> Tensor:
    return value[0] if isinstance(value, tuple) else value


def _named(entry: Mistake) -> Result:
    return Result(NAME, False, f"{NAME}: {entry.title}\n  {entry.effect}", entry.stage, (entry,))


def _raised(what: str, where: str, made: Outcome) -> Result:
    line = f", {made.line}" if made.line else ""
    message = f"{NAME}: {what}\n  {where} raises {type(made.error).__name__}: {made.error}{line}"
    return Result(NAME, False, message, "init")
