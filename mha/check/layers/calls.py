"""Calling an attention that somebody else wrote: how many inputs it takes, where its mask goes."""

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mha.check.layers.making import means

Answer = nn.Module | Callable[..., Any]
Call = Callable[[Any, Tensor, Tensor, Tensor, Tensor | None], Any]

WANTED = "forward(self, Q, K, V, mask=None)"
_MASK = re.compile(r"((attn|attention|src|self|causal)_?)?(mask|bias)", re.IGNORECASE)
_CONTEXT = re.compile(
    r"context|ctx|memory|mem|(encoder|enc)_?(hidden_states|outputs?|out)|encoded|cond|kv|x_?kv|y|source|src"
    r"|key_value_states|other|xa",
    re.IGNORECASE,
)
_OUTPUT = re.compile(r"out|hidden|context|result|^(y|x|z)$", re.IGNORECASE)
_WEIGHTS = re.compile(r"weight|att|prob|map|alpha", re.IGNORECASE)
_ONLY = re.compile(r"x|xs|inputs?|hidden(_states)?|tokens|embeddings|src|h", re.IGNORECASE)


@dataclass(frozen=True)
class Form:
    """How a layer is called: with Q, K and V, with Q and one for K and V, or with one input for all."""

    inputs: int = 3
    mask: str | int | None = 3  # the name of the argument, or its place; None where it takes no mask

    def __call__(self, answer: Answer, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None) -> Any:
        """Give the answer what it takes of Q, K, V and the mask."""
        given = (Q, K, V)[: self.inputs]
        if mask is None or self.mask is None:
            return answer(*given)
        return answer(*given, mask) if isinstance(self.mask, int) else answer(*given, **{self.mask: mask})


PLAIN = Form()


def as_torch_has_it(
    layer: nn.MultiheadAttention, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None
) -> Any:
    """Call a layer as nn.MultiheadAttention is called, for the weights of each head."""
    blocked = None if mask is None else mask == 0
    if blocked is not None:  # one mask per head, True where it must not look
        size = (Q.size(0), layer.num_heads, Q.size(1), K.size(1))
        blocked = blocked.expand(size).flatten(0, 1)
    if not layer.batch_first:
        Q, K, V = (x.transpose(0, 1) for x in (Q, K, V))
    output, weights = layer(Q, K, V, attn_mask=blocked, average_attn_weights=False)
    return output if layer.batch_first else output.transpose(0, 1), weights


def signature_of(answer: Answer) -> inspect.Signature | None:
    """Return what has to be given to `answer`, or to its forward; None if it does not tell."""
    try:
        return inspect.signature(answer.forward if isinstance(answer, nn.Module) else answer)
    except (ValueError, TypeError):
        return None


def form_of(answer: Answer) -> Form | None:
    """Tell from the names and the number of its arguments how `answer` is called; None where nothing fits."""
    signature = signature_of(answer)
    if signature is None:
        return PLAIN
    positional = [
        p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    names = [p.name for p in positional]
    second, third = (*names[1:3], "", "")[:2]
    masks = [p.name for p in signature.parameters.values() if _MASK.fullmatch(p.name)]
    by_name = next((name for name in masks if name not in names[:1]), None)
    if second in masks or len(names) == 1 and not _binds(signature, 3):
        return Form(1, by_name) if _binds(signature, 1) else None
    if _CONTEXT.fullmatch(second) and not means("V", third) and _binds(signature, 2):
        return Form(2, by_name)
    alone = _binds(signature, 1) and not means("K", second)
    if alone and (_ONLY.fullmatch(names[0]) if names else False) or alone and not _binds(signature, 3):
        return Form(1, by_name)
    if not _binds(signature, 3):
        return None
    takes_it_fourth = _binds(signature, 4) and (not names[3:] or names[3] in masks or by_name is None)
    return PLAIN if takes_it_fourth else Form(3, by_name)


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


@dataclass(frozen=True)
class Built:
    """An answer that can be called: a layer, or a function whose weights have been given."""

    answer: Answer
    d_model: int
    num_heads: int
    call: Call
    form: Form = PLAIN
    like: Tensor | None = None  # a tensor of the dtype and on the device that inputs have to be of, if any

    def cast(self, x: Tensor) -> Tensor:
        """Bring an input to where a function has its weights, or to the dtype in which a layer computes."""
        if self.like is None:
            return x
        return x.to(self.like) if x.is_floating_point() else x.to(self.like.device)

    def __call__(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Any:
        """Return output and weights, or the output alone."""
        value = unpacked(self.returned(Q, K, V, mask))
        while isinstance(value, tuple) and len(value) > 1 and value[-1] is None:  # no weights, no cache
            value = value[:-1]
        return value[0] if isinstance(value, tuple) and len(value) == 1 else value

    def returned(self, *arguments: Tensor | None) -> Any:
        """Return what the answer itself returns."""
        if not isinstance(self.answer, nn.Module):
            return self.call(self.answer, *arguments)
        if arguments[0].dtype in (torch.bfloat16, torch.float16):  # what is rounded does not come back
            with lent(self.answer):
                return self.call(self.answer.to(arguments[0]), *arguments)
        return self.call(self.answer.to(arguments[0]), *arguments)  # its dtype, and its device

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Its weights by name, but for those that a first call has still to make."""
        named = self.answer.named_parameters() if isinstance(self.answer, nn.Module) else ()
        return {name: p for name, p in named if is_made(p)}


def unpacked(value: Any) -> Any:
    """Return output and weights of what holds them by name: a dict, a dataclass, a named tuple."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        held = value._asdict()
    elif isinstance(value, Mapping):
        held = {str(name): item for name, item in value.items()}
    else:
        return value
    tensors = [name for name, item in held.items() if isinstance(item, Tensor)]
    if not tensors:
        return value
    output = next(filter(_OUTPUT.search, tensors), tensors[0])
    others = [name for name in tensors if name != output]
    weights = next(filter(_WEIGHTS.search, others), others[0] if others else None)
    return held[output] if weights is None else (held[output], held[weights])


@contextlib.contextmanager
def lent(layer: nn.Module) -> Iterator[None]:
    """Put back weights, buffers, gradients and modes as they were, whatever happens to the layer."""
    parameters = [(p, p.data, p.grad, p.requires_grad) for p in layer.parameters() if is_made(p)]
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


def is_made(parameter: nn.Parameter) -> bool:
    """Whether it has a shape: the parameters of a lazy layer get one in its first call."""
    return not isinstance(parameter, nn.parameter.UninitializedParameter)
