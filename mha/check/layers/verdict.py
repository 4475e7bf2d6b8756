"""What is said of a layer: that it is refused, what is wrong with it, and what it does otherwise."""

import inspect
import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mha.check.catalogue import CATALOGUE, Mistake
from mha.check.errors import cause
from mha.check.evidence import difference
from mha.check.exercise import Probe
from mha.check.layers.behaviour import first
from mha.check.layers.calls import PLAIN, Built, as_torch_has_it, signature_of
from mha.check.layers.reading import NAME, Reading
from mha.check.mistakes import layer as known
from mha.check.outcome import Outcome, run
from mha.check.result import Result
from mha.check.result import named as named_of
from mha.check.weights import Projections, role_of

_ADDED = "torch.zeros(mask.shape).masked_fill(mask == 0, float('-inf'))"
_FORBIDS = "If True is to forbid in its masks, as in nn.MultiheadAttention, say so in call=…: mask == 0."
_CONVENTIONS = {  # what is a mistake only where a mask is meant to be True for what may be seen
    "mask-added": f"If it wants a mask of 0 and -inf to be added, say so in call=…: {_ADDED}.",
    "mask-inverted": _FORBIDS,
    "mask-inverted-nan": _FORBIDS,
}


def refused(message: str, stage: str = "signature") -> Result:
    """Return the verdict on what cannot be marked, or not be passed."""
    return Result(NAME, False, f"{NAME}: {message}", stage)


# ---------------------------------------------------------------- what is said besides


def remarked(
    built: Built, reading: Reading, result: Result, remarks: list[str], searched: bool, strict: bool
) -> Result:
    """Add what there is to say of the weights and of the form; `strict` wants a W_o."""
    w = reading.w
    if w.W_o is None and strict:
        entry = CATALOGUE["layer-no-output-projection"]
        if result.passed:
            return named(entry)
        return replace(told(result, f"{entry.title}."), mistakes=(*result.mistakes, entry))
    if w.kv_heads is not None and strict and result.passed:
        return named(known.KEYS_SHARED, f"{built.num_heads} heads share {w.kv_heads} of keys and values.")
    nan = CATALOGUE["mask-empty-row-nan"]
    if nan in result.mistakes and built.call is as_torch_has_it:  # then it is no other that gives NaN, too
        result = replace(result, message=f"{NAME}: {nan.title}\n  {nan.effect}", mistakes=(nan,))
    if result.mistakes[:1] == (nan,):
        line = "nn.MultiheadAttention gives NaN there; F.scaled_dot_product_attention and mha give zeros."
        return told(result, f"All else is right. {line}")
    if result.mistakes and not strict and not reading.causal and result.mistakes[0].id in _CONVENTIONS:
        result = told(result, _CONVENTIONS[result.mistakes[0].id])
    if reading.causal:
        remarks = ["It is causal without being asked: it was compared under a causal mask.", *remarks]
    elif built.form.inputs == 1:
        remarks = ["It takes one input: it was compared as self-attention.", *remarks]
    if not result.passed:
        return told(result, "It was compared under a causal mask.") if reading.causal else result
    if w.kv_heads is not None:
        heads = f"{built.num_heads} heads share {w.kv_heads} of keys and values"
        remarks.append(f"Its {heads}, as in grouped-query attention: it was compared with each repeated.")
    if w.cut:
        remarks.append(f"Its projections in one are cut {w.cut}.")
    if searched and w.W_o is None:
        remarks.append("It has no output projection: the heads joined are its output.")
    if searched and any(getattr(w, f"b_{role}") is not None for role in "qkvo"):
        remarks.append("Its projections have biases; the package's have none unless asked for.")
    for remark in remarks:
        result = told(result, remark)
    return result


def of_more_parameters(built: Built, w: Projections, result: Result, probe: Probe) -> Result:
    """Tell the parameters that a wrong layer uses, and that are no part of its four projections."""
    if result.passed or result.mistakes:
        return result
    held = [x for name in "qkvo" for kind in "Wb" if (x := getattr(w, f"{kind}_{name}")) is not None]
    numbers = torch.cat([x.flatten().double() for x in held])
    more = [name for name, x in _used(built, probe) if not torch.isin(x.detach().double(), numbers).all()]
    if not more:
        return result
    told_which = ", ".join(f"{name} {tuple(built.parameters[name].shape)}" for name in more)
    shown = difference(result.given, result.wanted)
    found = named(known.MORE_PARAMETERS, f"They are {told_which}.{f' {shown}.' if shown else ''}")
    return replace(found, given=result.given, wanted=result.wanted)


def _used(built: Built, probe: Probe) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters on which the output of a layer depends, but for those of weight_norm."""
    ready = {
        name: x for name, x in built.parameters.items() if not x.is_meta and "parametrizations" not in name
    }

    def gradients() -> Any:
        with torch.enable_grad():
            output = first(built(*probe.arguments.values()))
            return torch.autograd.grad((output**2).sum(), [*ready.values()], allow_unused=True)

    found = run(gradients, {}).value if ready else None
    return [(name, ready[name]) for name, x in zip(ready, found or (), strict=False) if x is not None]


def of_shared(w: Projections, result: Result) -> Result:
    """Name one small matrix that serves all heads, where each has to have its own."""
    entries = [known.SAME_HEAD] * ("q" in w.shared) + [known.OUTPUT_SHARED] * ("o" in w.shared)
    for entry in entries:
        if result.passed:
            result = named(entry)
        else:
            result = replace(told(result, f"{entry.title}."), mistakes=(*result.mistakes, entry))
    return result


def returned_otherwise(built: Built, probe: Probe) -> list[str]:
    """Say in what output and weights come back, if not in a tuple."""
    value = run(lambda *inputs: built.returned(*inputs, None), probe.arguments).value
    if isinstance(value, Tensor) or type(value) in (tuple, list):
        return []
    return [f"It returns a {type(value).__name__}; the package's layer a tuple: output, weights."]


def in_half(outcome: Outcome) -> str:
    """Say what a layer that is right does in half precision."""
    if outcome.error is not None:
        return f"In half precision it raises {type(outcome.error).__name__}: {outcome.error}"
    return "In half precision its results come in another dtype than its inputs."


def explained(built: Built, result: Result, given: list[Outcome]) -> Result:
    """Say what an error of Python's own most likely means."""
    error = next((outcome.error for outcome in given if outcome.error is not None), None)
    parentheses = "A method stands where its result is wanted: its parentheses () are missing."
    value = given[0].value
    if error is None and inspect.isroutine(first(value)):
        return told(result, parentheses)
    if isinstance(value, tuple) and len(value) > 2 and not result.mistakes:
        more = told(result, f"It returns {len(value)} things: call=… can pick output and weights.")
        return replace(more, mistakes=(known.RETURNS_MORE,))
    # What an error means in general does not yet say where to look.
    if error is None or any(entry.stage != "error" for entry in result.mistakes):
        return result
    if (
        isinstance(error, AttributeError)
        and isinstance(built.answer, nn.Module)
        and error.obj is built.answer
    ):
        made = [*built.answer._modules, *built.answer._parameters, *built.answer._buffers]
        return told(
            result, f"It has no {error.name!r}. What its __init__ makes: {', '.join(made) or 'nothing'}."
        )
    if is_of_a_method(error):
        return told(result, parentheses)
    fourth = takes_no_mask(built, given)
    if fourth is not None:
        return told(result, f"Its fourth argument is {fourth!r}: say in call=… how it is given a mask.")
    return result


def takes_no_mask(built: Built, given: list[Outcome]) -> str | None:
    """Return the name of the fourth argument, if that is no name of a mask and only a mask makes it raise."""
    if given[0].error is not None or given[-1].error is None:
        return None
    signature = signature_of(built.answer)
    names = list(signature.parameters)[3:4] if built.call == PLAIN and signature is not None else []
    return names[0] if names and not re.search("mask|bias", names[0], re.IGNORECASE) else None


def is_of_a_method(error: BaseException) -> bool:
    """Whether an error arose because a method was used and not called."""
    return isinstance(error, TypeError | AttributeError) and "function_or_method" in str(error)


def no_projections(built: Built, given: list[Outcome]) -> Result:
    """Return the verdict on a layer in which no projections are found."""
    shapes = {name: tuple(p.shape) for name, p in built.parameters.items()}
    d_k = built.d_model // built.num_heads
    if any(shape == (d_k, d_k) for shape in shapes.values()):
        return named(known.HEADS_SHARE)
    makes_queries = [shape for name, shape in shapes.items() if role_of(name) == "q"]
    if any(shape in ((d_k, built.d_model), (built.d_model, d_k)) for shape in makes_queries):
        return named(known.ONE_HEAD)
    if sum(p.numel() for p in built.parameters.values()) < 4 * built.d_model**2:
        return named(_why_no_parameters(built, given))
    failed = next((outcome for outcome in given if outcome.error is not None), None)
    if failed is not None:
        return raised("it raises", "its forward", failed)
    listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    wanted = f"four projections of {built.d_model} by {built.d_model} are wanted"
    return refused(
        f"{wanted}; it has {listed}\n  If they are in there, say which: weights=(W_q, W_k, W_v, W_o)",
        "project",
    )


def _why_no_parameters(built: Built, given: list[Outcome]) -> Mistake:
    """Return why a layer that computes something reports no parameters, or too few."""
    if len(list(built.answer.named_parameters(remove_duplicate=False))) > len(built.parameters):
        return known.ONE_FOR_ALL
    own = [
        value
        for module in built.answer.modules()
        for name, value in vars(module).items()
        if not name.startswith("_")
    ]
    values = [x for value in own for x in (value if isinstance(value, list | tuple) else [value])]
    if any(isinstance(x, Tensor) and x.ndim >= 2 and built.d_model in x.shape for x in values):
        return known.NOT_PARAMETERS
    hidden = any(isinstance(x, nn.Module | dict | list | tuple) for x in values)
    by_chance = any("the random state" in outcome.changed for outcome in given)
    return known.MADE_IN_FORWARD if by_chance and not hidden else known.NO_PARAMETERS


def named(entry: Mistake, evidence: str = "") -> Result:
    """Return the verdict that names one mistake."""
    return named_of(NAME, entry, evidence)


def raised(what: str, where: str, made: Outcome) -> Result:
    """Return the verdict on an error that arose outside of the calls that are compared."""
    line = f", {made.line}" if made.line else ""
    raises = f"{where} raises {type(made.error).__name__}: {made.error}{line}"
    found = None if made.error is None else cause(made.error)
    if found is None:
        return refused(f"{what}\n  {raises}", "init")
    entry, there = found
    lines = [entry.title, entry.effect, f"{what[0].upper()}{what[1:]}: {raises}", there]
    return replace(refused("\n  ".join(filter(None, lines)), "init"), mistakes=(entry,))


def told(result: Result, line: str) -> Result:
    """Add a line to a verdict: behind a single one in brackets, below one of several."""
    if result.passed:
        return replace(result, message=f"{result.message} ({line})")
    return replace(result, message=f"{result.message}\n  {line}")


def said(result: Result) -> str:
    """Return a verdict without the name in front."""
    return result.message.removeprefix(f"{NAME}: ")
