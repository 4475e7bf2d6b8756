"""What no comparison of numbers shows: how a layer depends on chance, on earlier calls, on being trained."""

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mha.check.catalogue import CATALOGUE, Mistake
from mha.check.diagnose import Comparison
from mha.check.errors import kind_of
from mha.check.evidence import dtype_name
from mha.check.exercise import Exercise, Probe, changed
from mha.check.layers.calls import PLAIN, Built, Call, Form, signature_of
from mha.check.layers.making import asked_of, has_dropout, make, means
from mha.check.mistakes import layer as known
from mha.check.outcome import Outcome, run, same
from mha.masks import causal_mask, padding_mask

# ---------------------------------------------------------------- of a class


def seeds(answer: Callable[..., Any], d_model: int, num_heads: int) -> bool:
    """See whether making a layer sets the random state, so that each is drawn the same."""

    def state_after(seed: int) -> Tensor:
        torch.manual_seed(seed)
        make(answer, d_model, num_heads)
        return torch.get_rng_state()

    one, two = (run(state_after, {"seed": seed}) for seed in (1, 2))
    return one.error is None and two.error is None and torch.equal(one.value, two.value)


def truncates(answer: Callable[..., Any], like: Built) -> Mistake | None:
    """See whether a class accepts a width that its heads do not divide, and its layers leave out numbers."""
    if any(means("d_k", parameter.name) for parameter in asked_of(answer)):
        return None  # the heads have a size of their own
    x = torch.randn(1, 2, 10, generator=torch.Generator().manual_seed(0))

    def leaves_out() -> bool:
        built = replace(like, answer=make(answer, 10, 3), d_model=10, num_heads=3)
        with torch.enable_grad():
            output = first(built(x, x, x))
            used = [p for p in built.parameters.values() if p.ndim >= 2]
            gradients = torch.autograd.grad((output**2).sum(), used, allow_unused=True)
        return any(_has_a_row_of_zeros(gradient) for gradient in gradients if gradient is not None)

    return known.NOT_DIVISIBLE if run(leaves_out, {}).value else None


def takes_uneven_heads(answer: Callable[..., Any], like: Built) -> str | None:
    """Say what becomes of a width that heads do not divide, if a class takes it."""
    made = run(lambda: make(answer, 10, 3), {})
    if made.error is not None:
        return None
    built = replace(like, answer=made.value, d_model=10, num_heads=3)
    x = torch.randn(1, 2, 10, generator=torch.Generator().manual_seed(0))
    called = run(lambda: built(x, x, x), {})
    then = "that is an error only once it is called" if called.error else "its heads have another width"
    return f"It can be made with d_model=10 and num_heads=3, and {then}: refuse that in __init__."


def _has_a_row_of_zeros(x: Tensor) -> bool:
    """Whether all is 0 in a row, or along any other axis in a part of it."""
    return any((x.movedim(axis, 0).flatten(1) == 0).all(dim=1).any() for axis in range(x.ndim))


def dropout(answer: Callable[..., Any], like: Built) -> Mistake | None:
    """Return what is wrong with the dropout of a class that has one; `like` is a layer made by it."""
    if not has_dropout(answer):
        return None

    def made(p: float) -> Built:
        return replace(like, answer=run(lambda: make(answer, like.d_model, like.num_heads, p), {}).value)

    built, without = made(0.5), made(0.0)
    if not isinstance(built.answer, nn.Module) or not isinstance(without.answer, nn.Module):
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 8, like.d_model, generator=generator)
    one_value = x[:1, :1].expand(x.shape)
    asked = x if like.form.inputs > 1 else one_value  # a layer of one input takes its values from it
    built.answer.eval()
    if not _repeats(built, x, x, x):
        return known.DROPOUT_IN_EVAL
    steady = first(built(asked, asked, one_value)).detach()
    built.answer.train()
    if _repeats(built, x, x, x):
        return known.DROPOUT_MISSING
    without.answer.train()
    if not _repeats(without, x, x, x):
        return known.DROPOUT_NOT_AS_ASKED
    if _drops_elsewhere(built, x):
        return known.DROPOUT_ELSEWHERE
    # Where all values are the same, the output is that value times what the row of weights sums to.
    if _repeats(built, asked, asked, one_value):
        return known.DROPOUT_BEFORE_SOFTMAX
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = torch.stack([first(built(asked, asked, one_value)).detach() for _ in range(4)]).mean(0)
    ratio = float((drawn * steady).sum() / (steady * steady).sum())
    return known.DROPOUT_NOT_RESCALED if ratio < 0.75 else None


class _Dropped(TorchFunctionMode):
    """Notes the shapes of what dropout is applied to."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []
        self.fused = False  # what a fused attention does inside is not seen

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (F.dropout, torch.dropout):
            self.shapes += [x.shape for x in (*args, *(kwargs or {}).values()) if isinstance(x, Tensor)]
        self.fused |= function in (F.scaled_dot_product_attention, F.multi_head_attention_forward)
        return function(*args, **(kwargs or {}))


def _drops_elsewhere(built: Built, x: Tensor) -> bool:
    """Whether dropout is seen to act, and on nothing of the shape of weights."""
    mode, L = _Dropped(), x.size(1)

    def watched() -> None:
        with mode:
            built(x, x, x)

    run(watched, {})
    return bool(mode.shapes) and not mode.fused and all(shape[-2:] != (L, L) for shape in mode.shapes)


def in_training(answer: Callable[..., Any], like: Built) -> Mistake | None:
    """Return what a class gets wrong in training mode under a mask: without dropout, then with it."""
    drops = has_dropout(answer)

    def made(p: float) -> Built:
        return replace(like, answer=make(answer, like.d_model, like.num_heads, p if drops else None))

    without = run(lambda: made(0.0), {}).value
    if without is None or like.form.mask is None:
        return None
    if not _as_in_evaluation(without):
        return known.OTHER_IN_TRAINING
    return None if _hears_nothing_masked(made(0.5)) else known.MASK_LOST_IN_TRAINING


def _as_in_evaluation(built: Built) -> bool:
    """Whether training mode makes no difference, as far as nothing is left to chance in it."""
    X = built.cast(torch.randn(2, 5, built.d_model, generator=torch.Generator().manual_seed(4)))
    mask = causal_mask(5).expand(2, 1, 5, 5).clone()
    mask[1, 0, 2] = False
    for given in ((X, X, X), (X, X, X, mask)):
        built.answer.eval()
        steady = run(built, dict(enumerate(given)))
        built.answer.train()
        one, two = (run(built, dict(enumerate(given))) for _ in range(2))
        by_chance = any("the random state" in outcome.changed for outcome in (one, two))
        if not by_chance and (steady.error is not None or not same(one.value, steady.value)):
            return False
    return True


def _hears_nothing_masked(built: Built) -> bool:
    """Whether, in training mode, padding makes no difference to the tokens before it."""
    X = built.cast(torch.randn(2, 5, built.d_model, generator=torch.Generator().manual_seed(5)))
    other, mask = X.clone(), padding_mask([3, 3], 5).expand(2, 1, 5, 5)
    other[:, 3:] += 1
    built.answer.train()

    def of_tokens(x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return first(built(x, x, x, mask))[:, :3]

    one, two = run(of_tokens, {"x": X}), run(of_tokens, {"x": other})
    if one.error is not None:
        raise one.error
    return bool(one.value.isfinite().all()) and same(one.value, two.value)


def _repeats(built: Built, Q: Tensor, K: Tensor, V: Tensor) -> bool:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        one, two = (first(built(Q, K, V)) for _ in range(2))
    return torch.allclose(one, two, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- of its calls


def first(value: Any) -> Any:
    """Return the output of what may be an output and weights."""
    return value[0] if isinstance(value, tuple | list) and value else value


def unsteady(built: Built, probes: list[Probe], given: list[Outcome]) -> Mistake | None:
    """See whether the answer depends on chance, or on the calls before."""
    i = 2
    if given[i].error is None and not isinstance(first(given[i].value), Tensor):
        return None  # no kind of value that can be compared

    def seeded(*arguments: Any) -> Any:
        torch.manual_seed(12345)
        return built(*arguments)

    again, reseeded = run(built, probes[i].arguments), run(seeded, probes[i].arguments)
    by_chance = again.error is None and reseeded.error is None and not same(again.value, reseeded.value)
    if by_chance and "the random state" in again.changed:
        return known.MADE_IN_FORWARD if _makes_layers(built, probes[i]) else known.DROPOUT_IN_EVAL
    if (again.error is None) != (given[i].error is None) or not same(again.value, given[i].value):
        return known.STATE_KEPT
    return None


def _makes_layers(built: Built, probe: Probe) -> bool:
    """Whether a call makes an nn.Linear, which draws its weights as it is made."""
    with mock.patch.object(
        nn.Linear, "reset_parameters", autospec=True, side_effect=nn.Linear.reset_parameters
    ) as drawn:
        run(built, probe.arguments)
    return drawn.called


def keeps_state(unused: Built, probes: list[Probe], exercises: Sequence[Exercise]) -> Mistake | None:
    """See whether the answer is right wherever it has not been called before."""
    if not isinstance(unused.answer, nn.Module):
        return None
    alone = [run(replace(unused, answer=copy.deepcopy(unused.answer)), probe.arguments) for probe in probes]
    return known.STATE_KEPT if _right_in_one(exercises, probes, alone) else None


def called_otherwise(built: Built, probes: list[Probe], exercises: Sequence[Exercise]) -> Mistake | None:
    """See whether the answer is right if its arguments come in another order, or in another form."""
    signature = signature_of(built.answer)
    if built.call == PLAIN and signature is not None:
        names = list(signature.parameters)[:3]
        order = "".join(next((what for what in "QKV" if means(what, name)), "?") for name in names)
        if sorted(order) == sorted("QKV") and order != "QKV":
            return known.ARGUMENT_ORDER
    unmasked = [probe for probe in probes if "mask" not in probe.arguments]
    for entry, call, shown in (
        (known.LENGTH_FIRST, _length_first(built.call), unmasked),
        (known.MASK_OF_THREE_AXES, _mask_of_three_axes(built.call), probes),
    ):
        given = [run(replace(built, call=call), probe.arguments) for probe in shown]
        if _right_in_one(exercises, shown, given):
            return entry
    return None


def _right_in_one(exercises: Sequence[Exercise], probes: list[Probe], given: list[Outcome]) -> bool:
    return any(not Comparison(exercise, probes, given).wrong for exercise in exercises)


def _length_first(call: Call) -> Call:
    def transposed(answer: Any, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None) -> Any:
        value = call(answer, Q.transpose(0, 1), K.transpose(0, 1), V.transpose(0, 1), mask)
        if isinstance(value, tuple):
            return value[0].transpose(0, 1), *value[1:]
        return value.transpose(0, 1)

    return transposed


def _mask_of_three_axes(call: Call) -> Call:
    return lambda answer, Q, K, V, mask: call(answer, Q, K, V, None if mask is None else mask[:, 0])


# ---------------------------------------------------------------- of its gradients and dtypes


def cut_gradient(built: Built, right: Callable[..., Any]) -> str | None:
    """See whether the gradient at the inputs is that of `right`; return what there is to say if it is not."""
    generator = torch.Generator().manual_seed(1)
    lengths = (3, 7, 7)[: built.form.inputs]
    inputs = [
        built.cast(
            torch.randn(2, L, built.d_model, generator=generator, dtype=torch.float64)
        ).requires_grad_()
        for L in lengths
    ]

    def of(layer: Callable[..., Any]) -> Outcome:
        def gradients() -> Any:
            with torch.enable_grad():
                output = first(layer(*(inputs + inputs[-1:] * 2)[:3]))
                return torch.autograd.grad((output**2).sum(), inputs)

        return run(gradients, {})

    wanted, given = of(right), of(built)
    if given.error is not None:
        said = f"{type(given.error).__name__}: {str(given.error).splitlines()[0]}"
        return f"its backward pass raises {said}"
    return None if same(given.value, wanted.value) else ""


def frozen(built: Built) -> bool:
    """Whether a matrix of the layer is not to be trained."""
    return any(not p.requires_grad for p in built.parameters.values() if p.ndim >= 2)


def only_rounded(probe: Probe, outcome: Outcome) -> bool:
    """Whether a layer meets its limits in half precision: another dtype comes out, or it says so."""
    if outcome.error is not None:
        return refuses_dtype(outcome)
    value = outcome.value
    if not isinstance(first(value), Tensor):
        return False
    tensors = [x for x in (value if isinstance(value, tuple) else [value]) if isinstance(x, Tensor)]
    return any(x.dtype != probe.arguments["Q"].dtype for x in tensors)


def in_masked_half(built: Built, probe: Probe) -> tuple[Mistake, str] | None:
    """See whether half precision fails under a mask; return why, and what is to be said of it.

    Args:
        probe: one with a mask.
    """
    for dtype in (torch.float16, torch.bfloat16):
        outcome = run(
            built, changed(probe.arguments, lambda x, to=dtype: x.to(to) if x.is_floating_point() else x)
        )
        where = f"With a mask, in {str(dtype).removeprefix('torch.')}, "
        if outcome.error is not None:
            overflows = kind_of(outcome.error) == "error-number-too-large"
            entry = CATALOGUE["mask-half-overflow"] if overflows else known.MASK_MADE_IN_FLOAT32
            raised = f"it raises {type(outcome.error).__name__}: {str(outcome.error).splitlines()[0]}"
            return entry, f"{where}{raised}{f', {outcome.line}' if outcome.line else ''}."
        value = first(outcome.value)
        if value.dtype != dtype:
            return known.MASK_MADE_IN_FLOAT32, f"{where}the output is of {dtype_name(value)}."
        if value.isnan().any():
            return CATALOGUE["mask-half-overflow"], f"{where}the output holds NaN."
    return None


def misread_mask(built: Built, right: Callable[..., Any]) -> Mistake | None:
    """See whether a mask that the course makes is taken for another one, without an error."""
    if built.form.mask is None:
        return None
    L = 6  # as many examples as tokens, so that no error tells one axis from the other
    X = built.cast(torch.randn(L, L, built.d_model, generator=torch.Generator().manual_seed(6)))
    causal, padding = causal_mask(L), padding_mask(range(1, L + 1), L)

    def output(layer: Callable[..., Any], mask: Tensor) -> Any:
        return first(run(layer, {"Q": X, "K": X, "V": X, "mask": mask}).value)

    square, row = output(built, causal), output(built, padding)
    if square is not None and same(square, output(right, causal[:, None, None])):
        return known.MASK_OF_TWO_AXES
    return None if row is None or same(row, output(right, padding)) else known.MASK_OF_ONE_ROW


def refuses_dtype(outcome: Outcome) -> bool:
    """Whether an error says that a dtype is not the one wanted."""
    return re.search(r"dtype|scalar type|Half|BFloat16", str(outcome.error or "")) is not None


def looks_back_only(built: Built) -> bool:
    """See whether the first token hears nothing of the last, though no mask was given."""
    generator = torch.Generator().manual_seed(3)
    size = (1, 2 * built.num_heads + 1, built.d_model)
    one, other = (built.cast(torch.randn(size, generator=generator, dtype=torch.float64)) for _ in range(2))
    other[:, :-1] = one[:, :-1]
    starts = [run(lambda x=x: first(built(x, x, x))[:, 0], {}) for x in (one, other)]
    return all(start.error is None for start in starts) and same(starts[0].value, starts[1].value)


def listens_to(built: Built) -> Form:
    """Tell by its results which of K, V and the mask a call makes use of, where its form leaves a doubt."""
    generator = torch.Generator().manual_seed(2)
    Q, K, V, other = (
        built.cast(torch.randn(2, 4, built.d_model, generator=generator, dtype=torch.float64))
        for _ in range(4)
    )
    mask = torch.ones(4, 4, dtype=torch.bool).tril()[None, None]

    def result(*arguments: Tensor | None) -> Any:
        outcome = run(lambda: first(built(*arguments)), {})
        return outcome.error or outcome.value

    usual = result(Q, K, V, None)
    hears_k, hears_v, hears_mask = (
        isinstance(x, Exception) or isinstance(usual, Exception) or not same(usual, x)
        for x in (result(Q, other, V, None), result(Q, K, other, None), result(Q, K, V, mask))
    )
    inputs = 3 if hears_v else 2 if hears_k else 1
    return Form(max(inputs, built.form.inputs), 3 if hears_mask or built.form.mask is not None else None)
