"""Marking a whole layer, given as a class or built: its own weights are put into the pipeline."""

import contextlib
import copy
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha.attention import merge_heads, scaled_dot_product_attention, split_heads
from mha.check.catalogue import Mistake
from mha.check.diagnose import Comparison, Result, is_blank, verdict
from mha.check.exercise import Exercise, Probe
from mha.check.exercises.layer import LAYER
from mha.check.exercises.layer import layer as run_layer
from mha.check.mistakes import layer as known
from mha.check.outcome import Outcome, run, same
from mha.check.weights import Projections, find_projections

NAME = "multi_head_attention"
D_MODEL, NUM_HEADS = 20, 4  # so that d_k = 5: no two of the sizes of a probe are the same

Call = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor | None], Any]

_ARGUMENTS = {  # what a constructor's or a layer's arguments are called, by what they mean
    "heads": r"(num|n)_?(attention_?|attn_?)?heads?|heads?|h|nh|head_(num|count)",
    "d_model": r"d_?model|(embed|model|hidden|hid|emb|input)_?(dim|size)|d(im)?|n_?embd?|num_hiddens|width"
    r"|(key|value|query)_?(dim|size)|[qkv]_?dim",
    "d_k": r"d_?[kv]|head_?(dim|size)|d_?head|dim_head",
    "dropout": r"(p_?|attn_?|attention_?|resid_?)?(dropout|drop|pdrop)(_?(p|rate|prob))?|p",
    "Q": r"q|query|queries|x_?q|q_?in(put)?",
    "K": r"k|keys?|x_?k|k_?in(put)?",
    "V": r"v|values?|x_?v|v_?in(put)?",
}


def _means(what: str, name: str) -> bool:
    return re.fullmatch(_ARGUMENTS[what], name, re.IGNORECASE) is not None


def _plainly(layer: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None) -> Any:
    return layer(Q, K, V) if mask is None else layer(Q, K, V, mask)


def _as_torch_has_it(
    layer: nn.MultiheadAttention, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None
) -> Any:
    blocked = None if mask is None else mask == 0
    if blocked is not None:  # one mask per head, True where it must not look
        size = (Q.size(0), layer.num_heads, Q.size(1), K.size(1))
        blocked = blocked.expand(size).flatten(0, 1)
    if not layer.batch_first:
        Q, K, V = (x.transpose(0, 1) for x in (Q, K, V))
    output, weights = layer(Q, K, V, attn_mask=blocked, average_attn_weights=False)
    return output if layer.batch_first else output.transpose(0, 1), weights


@dataclass(frozen=True)
class _Built:
    layer: nn.Module
    d_model: int
    num_heads: int
    call: Call

    def __call__(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Any:
        if Q.dtype in (torch.bfloat16, torch.float16):  # what is rounded does not come back
            with _lent(self.layer):
                value = self.call(self.layer.to(Q.dtype), Q, K, V, mask)
        else:
            value = self.call(self.layer.to(Q.dtype), Q, K, V, mask)
        without_weights = isinstance(value, tuple) and len(value) == 2 and value[1] is None
        return value[0] if without_weights else value


@contextlib.contextmanager
def _lent(layer: nn.Module) -> Iterator[None]:
    """Put back weights, buffers, gradients and modes as they were, whatever happens to the layer."""
    parameters = [(p, p.data, p.grad, p.requires_grad) for p in layer.parameters() if _is_made(p)]
    buffers = [
        (module._buffers, name, x)
        for module in layer.modules()
        for name, x in module._buffers.items()
        if x is not None
    ]
    copies = [data.clone() for _, data, _, _ in parameters], [x.clone() for _, _, x in buffers]
    modes = [(module, module.training) for module in layer.modules()]
    try:
        yield
    finally:
        for (parameter, data, grad, requires_grad), copy in zip(parameters, copies[0], strict=True):
            parameter.data = data.copy_(copy)
            parameter.grad = grad
            parameter.requires_grad_(requires_grad)
        for (held, name, x), copy in zip(buffers, copies[1], strict=True):
            held[name] = x.copy_(copy)
        for module, training in modes:
            module.training = training


def _is_made(parameter: nn.Parameter) -> bool:
    return not isinstance(parameter, nn.parameter.UninitializedParameter)


def mark_layer(answer: object, call: Call | None = None, num_heads: int | None = None) -> Result:
    """Mark a class that makes a multi-head attention layer, or a layer that is built already.

    Args:
        answer: a class called as answer(d_model, num_heads), or an nn.Module, which is left as it was.
        call: how to call the layer, where that is not layer(Q, K, V, mask).
        num_heads: of a built layer, if it has no attribute that tells.
    """
    marked = run(lambda: _marked(answer, call, num_heads), {})
    if marked.error is not None:  # something of the layer that is not its forward, or forward in training
        return _raised("it cannot be marked", "using it", marked)
    return marked.value


def _marked(answer: object, call: Call | None, num_heads: int | None) -> Result:
    if inspect.isclass(answer):
        return _mark_class(answer, call or _plainly)
    if isinstance(answer, nn.Module):
        usual = _as_torch_has_it if isinstance(answer, nn.MultiheadAttention) else _plainly
        with _lent(answer):
            return _mark_built(answer, call or usual, num_heads)
    wanted = "it has to be a class MultiHeadAttention(d_model, num_heads), or a layer made by one"
    return Result(NAME, False, f"{NAME}: the answer is a {type(answer).__name__}; {wanted}", "signature")


# ---------------------------------------------------------------- a class


def _mark_class(answer: type, call: Call) -> Result:
    if "forward" in vars(answer) and is_blank(answer.forward):
        return Result(NAME, False, f"{NAME}: not attempted yet", attempted=False)
    made = run(lambda: _make(answer, D_MODEL, NUM_HEADS), {})
    if made.error is not None:
        return _raised("it cannot be made", f"{answer.__name__}({D_MODEL}, {NUM_HEADS})", made)
    if not isinstance(made.value, nn.Module):
        message = f"{NAME}: {answer.__name__} has to be an nn.Module, so that its weights can be trained"
        return Result(NAME, False, message, "signature")
    result = _mark(_Built(made.value, D_MODEL, NUM_HEADS, call), fresh=True)
    if not result.passed:
        return result
    changed = [thing for thing in made.changed if thing != "the random state"]  # drawing weights changes it
    if _seeds(answer):
        changed.append("the random state to a fixed seed")
    if changed:
        message = f"{NAME}: right result, but making it changes {', '.join(changed)}"
        return Result(NAME, False, message, "side effects")
    behaviour = _truncates(answer) or _dropout(answer, call)
    return _named(behaviour) if behaviour else result


def _make(answer: type, d_model: int, num_heads: int, dropout: float | None = None) -> Any:
    """Make the layer, giving each argument that it asks for what its name says."""
    keywords, positional = {}, []
    try:
        asked = list(inspect.signature(answer).parameters.values())
    except ValueError:
        asked = []
    for parameter in asked:
        is_optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if _means("heads", parameter.name):
            keywords[parameter.name] = num_heads
        elif _means("d_model", parameter.name):
            keywords[parameter.name] = d_model
        elif _means("dropout", parameter.name) and (dropout is not None or not is_optional):
            keywords[parameter.name] = dropout or 0.0
        elif is_optional:
            continue
        elif _means("d_k", parameter.name):
            keywords[parameter.name] = d_model // num_heads
        else:
            positional.append(parameter.name)
    sizes = {name for name in keywords if _means("heads", name) or _means("d_model", name)}
    if positional or len(sizes) < 2 or any(p.kind is p.POSITIONAL_ONLY for p in asked):
        return answer(d_model, num_heads) if dropout is None else answer(d_model, num_heads, dropout=dropout)
    return answer(**keywords)


def _seeds(answer: type) -> bool:
    def state_after(seed: int) -> Tensor:
        torch.manual_seed(seed)
        _make(answer, D_MODEL, NUM_HEADS)
        return torch.get_rng_state()

    one, two = (run(state_after, {"seed": seed}) for seed in (1, 2))
    return one.error is None and two.error is None and torch.equal(one.value, two.value)


def _truncates(answer: type) -> Mistake | None:
    made = run(lambda: _make(answer, 10, 3), {})
    return known.NOT_DIVISIBLE if made.error is None else None


def _dropout(answer: type, call: Call) -> Mistake | None:
    """Return what is wrong with the dropout of a class that has one."""
    try:
        if not any(_means("dropout", name) for name in inspect.signature(answer).parameters):
            return None
    except ValueError:
        return None

    def made(p: float) -> _Built:
        return _Built(run(lambda: _make(answer, D_MODEL, NUM_HEADS, p), {}).value, D_MODEL, NUM_HEADS, call)

    built, without = made(0.5), made(0.0)
    if not isinstance(built.layer, nn.Module) or not isinstance(without.layer, nn.Module):
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 8, D_MODEL, generator=generator)
    one_value = x[:1, :1].expand(x.shape)
    built.layer.eval()
    if not _repeats(built, x, x, x):
        return known.DROPOUT_IN_EVAL
    steady = _output(built(x, x, one_value)).detach()
    built.layer.train()
    if _repeats(built, x, x, x):
        return known.DROPOUT_MISSING
    without.layer.train()
    if not _repeats(without, x, x, x):
        return known.DROPOUT_NOT_AS_ASKED
    # Where all values are the same, the output is that value times what the row of weights sums to.
    if _repeats(built, x, x, one_value):
        return known.DROPOUT_BEFORE_SOFTMAX
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = torch.stack([_output(built(x, x, one_value)).detach() for _ in range(4)]).mean(0)
    ratio = float((drawn * steady).sum() / (steady * steady).sum())
    return known.DROPOUT_NOT_RESCALED if ratio < 0.75 else None


def _repeats(built: _Built, Q: Tensor, K: Tensor, V: Tensor) -> bool:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, second = (_output(built(Q, K, V)) for _ in range(2))
    return torch.allclose(first, second, rtol=1e-4, atol=1e-6)


def _output(value: Any) -> Tensor:
    return value[0] if isinstance(value, tuple) else value


# ---------------------------------------------------------------- a layer that is built


def _mark_built(layer: nn.Module, call: Call, num_heads: int | None) -> Result:
    told = (value for name, value in vars(layer).items() if _means("heads", name))
    heads = next(told, None) if num_heads is None else num_heads
    d_model = _width(layer)
    if not isinstance(heads, int) or d_model is None:
        return Result(NAME, False, f"{NAME}: say how many heads it has: num_heads=…", "signature")
    if heads < 1 or d_model % heads:
        message = f"{NAME}: its width of {d_model} cannot be cut into num_heads={heads}"
        return Result(NAME, False, message, "signature")
    return _mark(_Built(layer, d_model, heads, call), fresh=False)


def _width(layer: nn.Module) -> int | None:
    """Return d_model: the size that all matrices have in common."""
    shapes = [set(p.shape) for p in layer.parameters() if _is_made(p) and p.ndim >= 2]
    common = set.intersection(*shapes) if shapes else set()
    told = [value for name, value in vars(layer).items() if _means("d_model", name)]
    return next((value for value in told if value in common), max(common, default=None))


def _mark(built: _Built, fresh: bool) -> Result:
    built.layer.eval()
    probes = _probes(built.d_model)
    if not all(map(_is_made, built.layer.parameters())):
        run(built, probes[0].arguments)  # lazy layers make their weights in the first call
    unused = run(lambda: copy.deepcopy(built.layer), {}).value
    given = [run(built, probe.arguments) for probe in probes]
    refused = any(isinstance(outcome.error, TypeError | NotImplementedError) for outcome in given)
    refusal = _not_this_signature(built) if refused else None
    if refusal is not None:
        return refusal
    candidates = _believable(built, probes, given)
    if not candidates:
        return _no_projections(built, given)
    remarks = []
    half = next(i for i, probe in enumerate(probes) if probe.shows == "half precision")
    if _only_rounded(probes[half], given[half]):
        remarks.append(_in_half(given[half]))
        del probes[half], given[half]
    readings = [Comparison(_exercise(built, w), probes, given) for w in candidates]
    if all(reading.wrong for reading in readings):
        behaviour = (
            _unsteady(built, probes, given)
            or _keeps_state(replace(built, layer=unused), probes, candidates)
            or _order_of_arguments(built)
        )
        if behaviour:
            return _named(behaviour)
        return readings[0].unknown() if _raises_its_own(given) else verdict(readings)
    result = verdict(readings)
    if not result.passed:
        return result
    w = next(w for w, reading in zip(candidates, readings, strict=True) if not reading.wrong)
    behaviour = _unsteady(built, probes, given)
    refusal = _named(behaviour) if behaviour else _gradients(built, w, fresh)
    if refusal is not None:
        return refusal
    if any(outcome.printed for outcome in given):
        remarks.append("It prints while it runs.")
    if any(getattr(w, f"b_{role}") is not None for role in "qkvo"):
        remarks.append("Its projections have biases; the package's have none unless asked for.")
    return replace(result, message=" ".join([result.message, *(f"({remark})" for remark in remarks)]))


def _believable(built: _Built, probes: list[Probe], given: list[Outcome]) -> list[Projections]:
    """Return the readings of its weights under which the simplest probes agree, else the likely ones."""
    readings = list(find_projections(built.layer, built.d_model, built.num_heads))
    if len(readings) < 2:
        return readings

    def agreeing(w: Projections) -> int:
        """Count the probes up to the first that goes wrong."""
        for i, (probe, outcome) in enumerate(zip(probes, given, strict=True)):
            wanted = run(lambda *arguments: _right(w, *arguments), probe.arguments).value
            value = outcome.value
            if not same(_first(value), wanted[0]):
                return i
        return len(probes)

    counts = [agreeing(w) for w in readings]
    best = max(counts)
    if best >= 2:  # one token says nothing of queries and keys
        return [w for w, count in zip(readings, counts, strict=True) if count == best][:2]
    return [w for w in readings if w.likely][:2] or readings[:1]


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) and value else value


def _exercise(built: _Built, w: Projections) -> Exercise:
    return Exercise(
        NAME,
        "(Q, K, V, mask=None)",
        lambda Q, K, V, mask=None: _right(w, Q, K, V, mask),
        LAYER,
        lambda s, *arguments: run_layer(s, w, *arguments),
        lambda: _probes(built.d_model),
    )


def _right(
    w: Projections, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    w = w.to(Q.dtype)
    parts = zip((Q, K, V), (w.W_q, w.W_k, w.W_v), (w.b_q, w.b_k, w.b_v), strict=True)
    q, k, v = (split_heads(F.linear(x, W, b), w.num_heads) for x, W, b in parts)
    heads, weights = scaled_dot_product_attention(q, k, v, mask)
    return F.linear(merge_heads(heads), w.W_o, w.b_o), weights


def _probes(d_model: int) -> list[Probe]:
    generator = torch.Generator().manual_seed(0)

    def x(B: int, L: int) -> Tensor:
        return torch.randn(B, L, d_model, generator=generator, dtype=torch.float64)

    one, three, square = x(1, 1), x(1, 3), x(2, 6)
    cross = {"Q": x(2, 3), "K": x(2, 7), "V": x(2, 7)}
    short = {"Q": x(2, 6), "K": x(2, 3), "V": x(2, 3)}
    mask = torch.rand(2, 1, 3, 7, generator=generator) < 0.5
    mask[..., 0] = True
    empty = mask.clone()
    empty[1, 0, 2] = False
    half = {name: t.bfloat16() for name, t in cross.items()}
    return [
        Probe("one token", "project", {"Q": one, "K": one, "V": one}),
        Probe("self-attention of three tokens", "split", {"Q": three, "K": three, "V": three}),
        Probe("a batch", "split", {"Q": square, "K": square, "V": square}),
        Probe("keys and values of their own", "project", {"Q": square, "K": x(2, 6), "V": x(2, 6)}),
        Probe("more queries than keys", "score", short),
        Probe("more keys than queries", "score", cross),
        Probe("half precision", "softmax", half),
        Probe("a mask", "mask", {**cross, "mask": mask}),
        Probe("a mask of 0 and 1", "mask", {**cross, "mask": mask.long()}),
        Probe("a query with nothing to see", "guard", {**cross, "mask": empty}),
    ]


# ---------------------------------------------------------------- what no comparison of numbers shows


def _not_this_signature(built: _Built) -> Result | None:
    if built.call is not _plainly:
        return None
    wanted = "forward(self, Q, K, V, mask=None)"
    forward = type(built.layer).forward
    if getattr(forward, "__name__", "") == "_forward_unimplemented":
        return Result(NAME, False, f"{NAME}: it has no method {wanted}", "signature")
    try:
        signature = inspect.signature(forward)
        signature.bind(None, None, None, None)
        signature.bind(None, None, None, None, None)
    except TypeError:
        message = f"{NAME}: its forward is forward{signature}; it has to be {wanted}"
        return Result(NAME, False, message, "signature")
    except ValueError:
        return None
    return None


def _order_of_arguments(built: _Built) -> Mistake | None:
    """See whether forward takes its arguments under the right names and in another order."""
    if built.call is not _plainly:
        return None
    names = list(inspect.signature(built.layer.forward).parameters)[:3]
    order = "".join(next((what for what in "QKV" if _means(what, name)), "?") for name in names)
    return known.ARGUMENT_ORDER if sorted(order) == sorted("QKV") and order != "QKV" else None


def _raises_its_own(given: list[Outcome]) -> bool:
    """Whether it raises what no wrong stage of a pipeline raises, so that none need be tried."""
    errors = {type(outcome.error) for outcome in given if outcome.error is not None}
    return not errors <= {RuntimeError, ValueError, IndexError, TypeError}


def _only_rounded(probe: Probe, outcome: Outcome) -> bool:
    """Whether a layer meets its limits in half precision: another dtype comes out, or it says so."""
    if outcome.error is not None:
        return re.search(r"dtype|scalar type|Half|BFloat16", str(outcome.error)) is not None
    value = outcome.value
    if not isinstance(_first(value), Tensor):
        return False
    tensors = [x for x in (value if isinstance(value, tuple) else [value]) if isinstance(x, Tensor)]
    return any(x.dtype != probe.arguments["Q"].dtype for x in tensors)


def _in_half(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f"In half precision it raises {type(outcome.error).__name__}: {outcome.error}"
    return "In half precision its results come in another dtype than its inputs."


def _unsteady(built: _Built, probes: list[Probe], given: list[Outcome]) -> Mistake | None:
    """See whether the answer depends on chance, or on the calls before."""
    i = 2
    if given[i].error is None and not isinstance(_first(given[i].value), Tensor):
        return None  # no kind of value that can be compared

    def seeded(*arguments: Any) -> Any:
        torch.manual_seed(12345)
        return built(*arguments)

    again, reseeded = run(built, probes[i].arguments), run(seeded, probes[i].arguments)
    by_chance = again.error is None and reseeded.error is None and not same(again.value, reseeded.value)
    if by_chance and "the random state" in again.changed:
        return known.DROPOUT_IN_EVAL
    if (again.error is None) != (given[i].error is None) or not same(again.value, given[i].value):
        return known.STATE_KEPT
    return None


def _keeps_state(unused: _Built, probes: list[Probe], candidates: list[Projections]) -> Mistake | None:
    """See whether the answer is right wherever it has not been called before."""
    if not isinstance(unused.layer, nn.Module):
        return None
    alone = [run(replace(unused, layer=copy.deepcopy(unused.layer)), probe.arguments) for probe in probes]
    right = any(not Comparison(_exercise(unused, w), probes, alone).wrong for w in candidates)
    return known.STATE_KEPT if right else None


def _gradients(built: _Built, w: Projections, fresh: bool) -> Result | None:
    """See whether what training needs arrives at the inputs and, in a layer just made, at the weights."""
    generator = torch.Generator().manual_seed(1)
    inputs = [
        torch.randn(2, L, built.d_model, generator=generator, dtype=torch.float64).requires_grad_()
        for L in (3, 7, 7)
    ]

    def of(layer: Callable[..., Any]) -> Outcome:
        def gradients() -> Any:
            with torch.enable_grad():
                output = _first(layer(*inputs))
                return torch.autograd.grad((output**2).sum(), inputs)

        return run(gradients, {})

    wanted, given = of(lambda *x: _right(w, *x)), of(built)
    if given.error is not None:
        said = f"{type(given.error).__name__}: {str(given.error).splitlines()[0]}"
        return _named(known.GRADIENT_CUT, f"its backward pass raises {said}")
    if not same(given.value, wanted.value):
        return _named(known.GRADIENT_CUT)
    frozen = any(not p.requires_grad for p in built.layer.parameters() if p.ndim >= 2)
    return _named(known.WEIGHTS_FROZEN) if fresh and frozen else None


def _no_projections(built: _Built, given: list[Outcome]) -> Result:
    shapes = {name: tuple(p.shape) for name, p in built.layer.named_parameters() if _is_made(p)}
    d_k = built.d_model // built.num_heads
    if any(shape == (d_k, d_k) for shape in shapes.values()):
        return _named(known.HEADS_SHARE)
    if sum(p.numel() for p in built.layer.parameters() if _is_made(p)) < 4 * built.d_model**2:
        return _named(known.NO_PARAMETERS)
    failed = next((outcome for outcome in given if outcome.error is not None), None)
    if failed is not None:
        return _raised("it raises", "its forward", failed)
    listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    message = f"{NAME}: four projections of {built.d_model} by {built.d_model} are wanted; it has {listed}"
    return Result(NAME, False, message, "project")


def _named(entry: Mistake, evidence: str = "") -> Result:
    lines = [f"{NAME}: {entry.title}", f"  {entry.effect}", *([f"  {evidence}"] if evidence else [])]
    return Result(NAME, False, "\n".join(lines), entry.stage, (entry,))


def _raised(what: str, where: str, made: Outcome) -> Result:
    line = f", {made.line}" if made.line else ""
    message = f"{NAME}: {what}\n  {where} raises {type(made.error).__name__}: {made.error}{line}"
    return Result(NAME, False, message, "init")
