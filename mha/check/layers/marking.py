"""Marking a whole layer, given as a class, built, or as a function: its own weights go into the pipeline."""

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mha._validate import check_torch_layer
from mha.check.catalogue import CATALOGUE, Mistake
from mha.check.diagnose import is_blank
from mha.check.exercise import Probe, changed
from mha.check.layers import behaviour as layer_behaviour
from mha.check.layers.behaviour import first
from mha.check.layers.calls import (
    PLAIN,
    WANTED,
    Built,
    Call,
    Form,
    as_torch_has_it,
    form_of,
    is_made,
    lent,
    signature_of,
)
from mha.check.layers.inputs import (
    HALF,
    NUMBERS,
    GivenError,
    Weights,
    given_projections,
    layer_probes,
    other_masks,
    with_large_masked,
)
from mha.check.layers.making import (
    asked_of,
    follows_the_exercise,
    is_optional,
    make,
    means,
    takes_a_config,
)
from mha.check.layers.own_input import Inputs, check_width, own_probe, with_own
from mha.check.layers.reading import NAME, Reading, believable, diagnosed
from mha.check.layers.verdict import (
    explained,
    in_half,
    is_of_a_method,
    named,
    no_projections,
    of_more_parameters,
    of_shared,
    raised,
    refused,
    remarked,
    returned_otherwise,
    said,
    takes_no_mask,
    told,
)
from mha.check.mistakes import layer as known
from mha.check.outcome import Outcome, computes_in_float32, run, same
from mha.check.result import Result
from mha.check.weights import Projections, find_projections, find_some_projections, width_of

D_K, NUM_HEADS = 5, 4  # so that d_model = 20: no two of the sizes of a probe are the same


@dataclass(frozen=True)
class _Given:
    """What came beside the answer."""

    call: Call | None = None
    num_heads: int | None = None
    weights: Weights | None = None
    own: Probe | None = None  # an input of its owner


def mark_layer(
    answer: object,
    call: Call | None = None,
    num_heads: int | None = None,
    weights: Weights | None = None,
    inputs: Inputs | None = None,
) -> Result:
    """Mark a multi-head attention: a class, a layer that is built, or a function and its weights.

    Args:
        answer: a class called as answer(d_model, num_heads) or with a config, an nn.Module, which is left
            as it was, or any function of Q, K, V, mask.
        call: how to call it, where that is not answer(Q, K, V, mask).
        num_heads: of a built layer, if it has no attribute that tells; of a function.
        weights: (W_q, W_k, W_v, W_o) or without W_o, of an answer in which they cannot be found.
        inputs: an input of one's own: X, (Q, K, V) or (Q, K, V, mask).

    Raises:
        GivenError: a ValueError, if what is given beside the answer cannot be used.
    """
    _check_call(call)
    given = _Given(call, num_heads, weights, None if inputs is None else own_probe(inputs))
    marked = run(lambda: _marked(answer, given), {})
    if isinstance(marked.error, GivenError):
        raise marked.error
    if marked.error is not None:  # something of the layer that is not its forward, or forward in training
        return raised("it cannot be marked", "using it", marked)
    return marked.value


def _check_call(call: Call | None) -> None:
    if call is None:
        return
    wanted = "it has to be a function of (layer, Q, K, V, mask)"
    if not callable(call):
        raise GivenError(f"call is a {type(call).__name__}; {wanted}")
    try:
        inspect.signature(call).bind(*[None] * 5)
    except TypeError:
        raise GivenError(f"call takes {inspect.signature(call)}; {wanted}") from None
    except ValueError:
        return


def _marked(answer: object, given: _Given) -> Result:
    if inspect.isclass(answer):
        return _mark_class(answer, given)
    if isinstance(answer, functools.partial) and inspect.isclass(answer.func):
        return _mark_partial(answer, given)
    if isinstance(answer, nn.Module):
        with lent(answer):
            return _mark_built(answer, given)
    owner = getattr(answer, "__self__", None)
    if isinstance(owner, nn.Module) and given.weights is None:
        of = f"the method {answer.__name__} of a {type(owner).__name__}"
        return refused(f"the answer is {of}; give the layer itself, whose weights are needed")
    if not callable(answer):
        wanted = "a class MultiHeadAttention(d_model, num_heads), a layer made by one, or a function"
        return refused(f"the answer is a {type(answer).__name__}; it has to be {wanted}")
    return _mark_function(answer, given)


# ---------------------------------------------------------------- a class


def _mark_partial(answer: functools.partial[Any], given: _Given) -> Result:
    """Mark a class of which some arguments are given already: a class still, if its sizes are not."""
    sizes = [name for p in asked_of(answer) for name in ("heads", "d_model") if means(name, p.name)]
    if {"heads", "d_model"} <= set(sizes) or takes_a_config(answer):
        return _mark_class(answer, given)
    heads = {p.name: NUM_HEADS for p in asked_of(answer) if means("heads", p.name) and not is_optional(p)}
    made = run(lambda: answer(**heads), {})
    if made.error is not None:
        return raised("it cannot be made", f"{_name(answer)}(…)", made)
    return _marked(made.value, given)


def _name(answer: Callable[..., Any]) -> str:
    return answer.func.__name__ if isinstance(answer, functools.partial) else answer.__name__


def _mark_class(answer: Callable[..., Any], given: _Given) -> Result:
    if given.weights is not None:
        raise GivenError("weights=… goes with a function or a built layer; a class makes its own")
    if "forward" in vars(answer) and is_blank(answer.forward):
        return Result(NAME, False, f"{NAME}: not attempted yet", attempted=False)
    num_heads, d_model = _sizes(given)
    made = run(lambda: make(answer, d_model, num_heads), {})
    if made.error is not None:
        given_to = "config" if takes_a_config(answer) else f"{d_model}, {num_heads}"
        refusal = raised("it cannot be made", f"{_name(answer)}({given_to})", made)
        if follows_the_exercise(answer):
            return refusal
        built = f"check.multi_head_attention({_name(answer)}(…))"
        return replace(refusal, message=f"{refusal.message}\n  Give it a layer that is built: {built}")
    if not isinstance(made.value, nn.Module):
        no_module = refused(f"{_name(answer)} has to be an nn.Module, so that its weights can be trained")
        return replace(no_module, mistakes=(known.NO_MODULE,))
    built = _called_as(Built(made.value, d_model, num_heads, PLAIN), given)
    if isinstance(built, Result):
        return built
    result = _mark(built, given.own, fresh=True, strict=follows_the_exercise(answer))
    if result.passed:
        result = _class_behaviour(answer, built, made) or result
    if follows_the_exercise(answer) and known.NOT_DIVISIBLE not in result.mistakes:
        uneven = layer_behaviour.takes_uneven_heads(answer, built)
        result = result if uneven is None else told(result, uneven)
    return _strictly(answer, built, result) if given.call is None else result


def _sizes(given: _Given) -> tuple[int, int]:
    """Return num_heads and d_model to make a class with."""
    num_heads = NUM_HEADS if given.num_heads is None else given.num_heads
    if isinstance(num_heads, bool) or not isinstance(num_heads, int) or num_heads < 1:
        raise GivenError(f"num_heads={num_heads!r}; it has to be an integer of at least 1")
    if given.own is None:
        return num_heads, D_K * num_heads
    d_model = given.own.arguments["Q"].size(-1)
    if d_model % num_heads:
        raise GivenError(f"inputs have d_model={d_model}, which num_heads={num_heads} does not divide")
    return num_heads, d_model


def _class_behaviour(answer: Callable[..., Any], built: Built, made: Outcome) -> Result | None:
    changed = [thing for thing in made.changed if thing != "the random state"]  # drawing weights changes it
    if changed:
        return refused(f"right result, but making it changes {', '.join(changed)}", "side effects")
    if layer_behaviour.seeds(answer, built.d_model, built.num_heads):
        return named(known.SEEDED)
    looks = (layer_behaviour.truncates, layer_behaviour.dropout, layer_behaviour.in_training)
    behaviour = next(filter(None, (look(answer, built) for look in looks)), None)
    return named(behaviour) if behaviour else None


def _strictly(answer: Callable[..., Any], built: Built, result: Result) -> Result:
    """Hold a class that follows the exercise to what the exercise asks: K, V and a mask of their own."""
    if built.form == PLAIN or not isinstance(built.call, Form) or not follows_the_exercise(answer):
        return result
    kind = "For one input, as self-attention" if built.form.inputs == 1 else "As it takes it"
    message = f"{NAME}: {_other_signature(built.answer)}\n  {kind}: {said(result)}"
    mistakes = result.mistakes or (known.OTHER_FORWARD,)
    return replace(result, passed=False, message=message, stage="signature", mistakes=mistakes)


# ---------------------------------------------------------------- a layer that is built, a function


def _mark_built(layer: nn.Module, given: _Given) -> Result:
    w = None if given.weights is None else given_projections(given.weights, _heads(layer, given))
    heads = _heads(layer, given)
    told = [vars(layer)[name] for name in vars(layer) if means("d_model", name) and not means("d_k", name)]
    d_model = width_of(layer, told) if w is None else w.W_q.size(1)
    if not isinstance(heads, int) or d_model is None:
        return refused("say how many heads it has: num_heads=…")
    if heads < 1 or w is None and d_model % heads and not any(find_projections(layer, d_model, heads)):
        return refused(f"its width of {d_model} cannot be cut into num_heads={heads}")
    built = _called_as(Built(layer, d_model, heads, PLAIN), given)
    return built if isinstance(built, Result) else _mark(built, given.own, w)


def _heads(layer: nn.Module, given: _Given) -> Any:
    told = (
        value
        for module in layer.modules()
        for name, value in vars(module).items()
        if means("heads", name) and isinstance(value, int)
    )
    return next(told, None) if given.num_heads is None else given.num_heads


def _mark_function(answer: Any, given: _Given) -> Result:
    if given.weights is None:
        return refused("a function does not show its weights: give weights=(W_q, W_k, W_v, W_o), num_heads=…")
    if is_blank(answer):
        return Result(NAME, False, f"{NAME}: not attempted yet", attempted=False)
    w = given_projections(given.weights, given.num_heads)
    built = _called_as(Built(answer, w.W_q.size(1), w.num_heads, PLAIN, like=w.W_q), given)
    return built if isinstance(built, Result) else _mark(built, given.own, w)


# ---------------------------------------------------------------- how it is called


def _called_as(built: Built, given: _Given) -> Built | Result:
    """Find out how the answer is called; return a refusal where nothing fits."""
    if isinstance(built.answer, nn.MultiheadAttention):
        try:
            check_torch_layer(built.answer)
        except ValueError as error:
            return refused(str(error))
    form = _as_torch(built.answer) or form_of(built.answer)
    if given.call is not None:
        built = replace(built, call=given.call, form=form if isinstance(form, Form) else PLAIN)
        return built if built.form == PLAIN else replace(built, form=layer_behaviour.listens_to(built))
    if form is None or _lacks_forward(built.answer):
        told = refused(_other_signature(built.answer))
        return replace(told, mistakes=(known.OTHER_FORWARD,)) if isinstance(built.answer, nn.Module) else told
    if not isinstance(form, Form):
        return replace(built, call=form)
    return replace(built, call=form, form=form)


def _lacks_forward(answer: Any) -> bool:
    """Whether a layer has no forward, or one that takes no self."""
    if not isinstance(answer, nn.Module):
        return False
    forward = inspect.unwrap(type(answer).forward)
    names = list(inspect.signature(forward).parameters)
    return forward.__name__ == "_forward_unimplemented" or bool(names) and means("Q", names[0])


def _as_torch(answer: Any) -> Call | None:
    if not isinstance(answer, nn.MultiheadAttention):
        return None
    names = signature_of(answer).parameters
    return as_torch_has_it if {"attn_mask", "average_attn_weights"} <= names.keys() else None


def _other_signature(answer: Any) -> str:
    if not isinstance(answer, nn.Module):
        name = getattr(answer, "__name__", "it")
        wanted = f"it has to be {name}(Q, K, V, mask=None), or call=… says how to call it"
        return f"the answer is {name}{signature_of(answer)}; {wanted}"
    forward = type(answer).forward
    if getattr(forward, "__name__", "") == "_forward_unimplemented":
        return f"it has no method {WANTED}"
    return f"its forward is forward{inspect.signature(forward)}; it has to be {WANTED}"


# ---------------------------------------------------------------- marking


def _mark(
    built: Built, own: Probe | None, w: Projections | None = None, fresh: bool = False, strict: bool = False
) -> Result:
    """Mark what can be called; `strict` asks for all that the exercise asks for, as of a learner's class."""
    if own is not None:
        check_width(own, built.d_model)
    if isinstance(built.answer, nn.Module):
        built.answer.eval()
    probes, remarks = _probes(built), []
    if isinstance(built.answer, nn.Module) and not all(map(is_made, built.answer.parameters())):
        run(built, probes[0].arguments)  # lazy layers make their weights in the first call
    unused = replace(built, answer=run(lambda: copy.deepcopy(built.answer), {}).value)
    if built.like is None and computes_in_float32(built, probes[2].arguments):
        built = replace(built, like=torch.empty(0, dtype=torch.float32))
        unused = replace(unused, like=built.like)
        probes, remarks = _probes(built), ["It computes in float32 inside, so that is where it was compared."]
    given = [run(built, probe.arguments) for probe in probes]
    readings = believable(built, w, probes, given)
    if not readings:
        return _of_too_few(built, probes, given) or no_projections(built, given)
    narrowed = False
    half = next((i for i, probe in enumerate(probes) if probe.shows == HALF), None)
    if half is not None and layer_behaviour.only_rounded(probes[half], given[half]):
        remarks.append(in_half(given[half]))
        narrowed = strict and given[half].error is None and first(given[half].value).dtype == torch.float32
        del probes[half], given[half]
    numbers = next((i for i, probe in enumerate(probes) if probe.shows == NUMBERS), None)
    if numbers is not None and layer_behaviour.refuses_dtype(given[numbers]):
        remarks.append("It wants a mask of bool: one of 0 and 1 is refused.")
        del probes[numbers], given[numbers]
    compared = [(reading, reading.compare(probes, given)) for reading in readings]
    if all(comparison.wrong for _, comparison in compared):
        probes = with_large_masked(probes)
        given = [run(built, probe.arguments) for probe in probes]
        compared = [(reading, reading.compare(probes, given)) for reading in readings]
        behaviour = _behaviour(built, unused, readings, probes, given)
        if behaviour is not None:
            return named(behaviour)
        known_error = not _is_foreign(given) and takes_no_mask(built, given) is None
        reading, result = diagnosed(compared) if known_error else (readings[0], compared[0][1].unknown())
        result = explained(built, result, given)
    else:
        reading, result = diagnosed(compared)
        if result.passed:
            result = _behaves_wrongly(built, reading, probes, given, fresh) or result
        if result.passed and narrowed:
            result = named(CATALOGUE["give-as-float32"])
        if result.passed:
            result = _in_masked_half(built, result, probes, strict)
            remarks += _masks_not_taken(built, reading) + returned_otherwise(built, probes[0])
        if result.passed and strict:
            misread = layer_behaviour.misread_mask(built, reading.right)
            result = named(misread) if misread else result
    result = of_more_parameters(built, reading.w, of_shared(reading.w, result), probes[1])
    if own is not None:
        result = with_own(built, reading, result, own, probes, given)
    return remarked(built, reading, result, remarks, w is None, strict)


def _of_too_few(built: Built, probes: list[Probe], given: list[Outcome]) -> Result | None:
    """Return what explains a layer with fewer projections than four, if one mistake does."""
    if not isinstance(built.answer, nn.Module) or not built.parameters:
        return None
    for w in find_some_projections(built.answer, built.d_model, built.num_heads):
        found = Reading(w).compare(probes, given).one_mistake()
        if found is not None:
            absent = ", ".join(f"W_{role}" for role in w.absent)
            return told(found, f"There are no weights in the layer that could be {absent}.")
    return None


def _in_masked_half(built: Built, result: Result, probes: list[Probe], strict: bool) -> Result:
    """Look at half precision under a mask, where a layer is right in it without one."""
    masked = next((probe for probe in probes if "mask" in probe.arguments), None)
    if masked is None or all(probe.shows != HALF for probe in probes):
        return result
    found = layer_behaviour.in_masked_half(built, masked)
    if found is None:
        return result
    entry, where = found
    return named(entry, where) if strict else told(result, f"{where} {entry.title}.")


def _masks_not_taken(built: Built, reading: Reading) -> list[str]:
    """Say which masks of other shapes than (B, 1, Lq, Lk) a right layer does not read as they broadcast."""
    if reading.causal:
        return []
    if built.form.mask is None:
        return ["It takes no mask, so none was tried."]
    shapes = []
    for shape, arguments in other_masks(built.d_model, built.num_heads).items():
        probe = Probe(shape, "mask", arguments)
        cast = _cast(built, probe)
        value = run(built, cast).value
        if not same(first(value), first(run(reading.right, cast).value)):
            shapes.append(shape)
    if not shapes:
        return []
    return [f"It does not take a mask of {' or '.join(shapes)} as it broadcasts: give it (B, 1, Lq, Lk)."]


def _probes(built: Built) -> list[Probe]:
    probes = layer_probes(built.d_model, built.form.inputs, built.form.mask is not None)
    if built.like is None:
        return probes
    # A function has its weights in one dtype; what a layer does in half precision is looked at anyway.
    wide = [replace(p, arguments=_cast(built, p)) for p in probes if p.shows != HALF]
    return wide + [p for p in probes if p.shows == HALF and isinstance(built.answer, nn.Module)]


def _cast(built: Built, probe: Probe) -> dict[str, Tensor]:
    return changed(probe.arguments, built.cast)


def _behaviour(
    built: Built, unused: Built, readings: list[Reading], probes: list[Probe], given: list[Outcome]
) -> Mistake | None:
    exercises = [reading.exercise(probes) for reading in readings]
    return (
        layer_behaviour.unsteady(built, probes, given)
        or layer_behaviour.keeps_state(unused, probes, exercises)
        or layer_behaviour.called_otherwise(built, probes, exercises)
    )


def _behaves_wrongly(
    built: Built, reading: Reading, probes: list[Probe], given: list[Outcome], fresh: bool
) -> Result | None:
    """See what else there is to a layer whose results are right."""
    behaviour = layer_behaviour.unsteady(built, probes, given)
    if behaviour is not None:
        return named(behaviour)
    evidence = layer_behaviour.cut_gradient(built, reading.right)
    if evidence is not None:
        return named(known.GRADIENT_CUT, evidence)
    return named(known.WEIGHTS_FROZEN) if fresh and layer_behaviour.frozen(built) else None


def _is_foreign(given: list[Outcome]) -> bool:
    """Whether it raises or returns what no wrong stage of a pipeline does, so that none need be tried."""
    if any(isinstance(outcome.value, tuple) and len(outcome.value) > 2 for outcome in given):
        return True
    errors = [outcome.error for outcome in given if outcome.error is not None]
    usual = (RuntimeError, ValueError, IndexError, TypeError)
    return any(not isinstance(error, usual) or is_of_a_method(error) for error in errors)
