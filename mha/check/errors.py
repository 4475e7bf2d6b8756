"""What an exception that an answer raises most likely means, told with the sizes of what stands in its line.

An error by itself says little: one text of torch's stands for many mistakes, and many texts for one. What
tells a learner more is the kind of error and what the tensors in that line were at that moment.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mha.check.catalogue import Mistake, behaviour
from mha.check.evidence import dtype_name
from mha.check.outcome import OwnCode, own_code

SHOWN = 4  # as many tensors as are shown of a line


def _shape(x: Any) -> str | None:
    return f"{tuple(x.shape)}" if isinstance(x, Tensor) else None


def _shape_and_dtype(x: Any) -> str | None:
    return f"{tuple(x.shape)} of {dtype_name(x)}" if isinstance(x, Tensor) else None


def _none(x: Any) -> str | None:
    return "None" if x is None else None


@dataclass(frozen=True)
class _Kind:
    """Errors that mean one thing: what they are called, how to know them, what to show of the tensors."""

    entry: Mistake
    text: str  # a pattern of what the error's type and text contain, "TypeError: …"
    show: Callable[[Any], str | None] | None = _shape


def _error(id: str, title: str, effect: str, hint: str, *texts: str, show: Any = _shape) -> _Kind:
    entry = behaviour(f"error-{id}", "error", title, effect, hint)
    return _Kind(entry, "|".join(texts), show)


_OWN_CHECK = behaviour(
    "error-own-check",
    "error",
    "A check of its own refuses a right input",
    "The code itself raises, on an input that the exercise allows.",
    "look at what the check forbids: Lq ≠ Lk, a mask of another shape or dtype, no mask are all allowed.",
)
# As torch says it of @ and of einsum, and as the package says it.
_NO_PRODUCT = re.compile(
    r"Expected size for first two dimensions of batch2|einsum\(\): subscript \w has size"
    r"|K has length \d+ and V has length|Q has d_k=\d+ and K has d_k"
)
_KINDS = (
    _error(
        "undefined-name",
        "A name is used that nothing has given a value",
        "An import is missing, a variable has another name elsewhere, or is set on another branch only.",
        "import it, or give it its value on every way through the code.",
        "^(NameError|UnboundLocalError|ImportError|ModuleNotFoundError)",
        show=None,
    ),
    _error(
        "endless-recursion",
        "The function calls itself without end",
        "A helper has the name of the function that is asked for, or self(…) stands where a part is meant.",
        "give the helper another name.",
        "^RecursionError",
        show=None,
    ),
    _error(
        "module-init-missing",
        "super().__init__() is missing in __init__, or comes too late",
        "nn.Module's own __init__ makes the place in which layers and parameters are kept.",
        "let __init__ begin with super().__init__(), without arguments.",
        r"before Module\.__init__",
        r"no attribute '_(modules|parameters|buffers|\w*hooks\w*)'",
        "descriptor '__init__' of 'super'",
        show=None,
    ),
    _error(
        "no-layer-nor-parameter",
        "Something else stands where a layer or a parameter belongs",
        "nn.ModuleList holds layers, in a list; an attribute that is a layer or a parameter stays one.",
        "see what it is: print(type(x)); give what is no weight another name.",
        "is not a Module subclass",
        "cannot assign",
        "ModuleList.extend",
        "ModuleDict",
        "Only Tensors of floating point",
        show=None,
    ),
    _error(
        "none-used",
        "None is used as if it was a tensor",
        "An argument or attribute that may be None is not looked at first, or a function returns nothing.",
        "ask `if mask is not None` before it is used; see that each function returns its result.",
        "NoneType",
        r"not None\b",
        "must be Tensor, not None",
        show=_none,
    ),
    _error(
        "not-called",
        "A method stands where its result is wanted",
        "Its parentheses () are missing: x.size is the method, x.size() what it returns.",
        "call it: put () behind its name.",
        "(builtin_function_or_method|method_descriptor|'method'|'function') ?",
        show=None,
    ),
    _error(
        "truth-of-a-tensor",
        "A whole tensor stands where one True or False is wanted",
        "`if mask:` asks for one answer, and the tensor has one for each of its numbers.",
        "write `if mask is not None`; for a choice number by number take torch.where or masked_fill.",
        "Boolean value of Tensor",
        "truth value of an array",
    ),
    _error(
        "float-as-size",
        "A size or an index is a float",
        "`/` gives a float even where nothing is left over; sizes and indices are integers.",
        "divide with `//`, and keep math.sqrt out of what is used as a size.",
        r"float\d*'? object cannot be interpreted as an integer",
        "TypeError.*(type float|got float|not float|'float')",
        "TypeError.*float.*(size|shape|dim)",
        "(slice indices must be|only) integers",
        r"type tuple of \(.*float",
        show=None,
    ),
    _error(
        "number-for-tensor",
        "A plain number stands where torch wants a tensor, or a tensor where a number is wanted",
        "torch.sqrt and torch.exp take tensors only, math.sqrt numbers only.",
        "math.sqrt(d_k) for the number d_k; torch.sqrt(x) for a tensor x.",
        "must be Tensor, not (int|float)",
        "only (one element|integer) tensors",
        "cannot be converted to Scalar",
        "can only convert an array",
        "must be real number, not Tensor",
    ),
    _error(
        "list-for-tensor",
        "A list, a tuple or an array stands where a tensor is wanted",
        "Lists do not multiply, have no shape and no transpose.",
        "put the parts together: torch.stack makes a new axis, torch.cat lengthens one that is there.",
        r"'(list|tuple|ndarray|numpy\.ndarray)' (object|and)",
        "has no len",
        "must be Tensor, not (list|tuple|numpy)",
        r"not (list|tuple|ndarray)\b",
        "and '(list|tuple|ndarray)'",
        show=None,
    ),
    _error(
        "numpy-of-a-graph",
        "A tensor is turned into an array that cannot be turned into one",
        "numpy knows neither gradients nor bfloat16.",
        "stay in torch from the inputs to the output.",
        r"Can't call numpy\(\)",
        "unsupported ScalarType",
        "can't convert .* tensor to numpy",
        show=None,
    ),
    _error(
        "mask-dtype",
        "The mask is of a dtype that this operation does not take",
        "masked_fill and ~ want a bool mask; arithmetic with `-` wants numbers; a mask may be either.",
        "make it bool at first: `mask == 0` is where nobody may look, whatever its dtype.",
        "only supports boolean masks",
        "mask dtype",
        "expects? mask",
        r"operator\.invert",
        "bitwise_not",
        "with (a bool tensor|two bool tensors)",
        "on a bool tensor",
        "attn_mask.*dtype",
        "dtype.*attn_mask",
        "where expected condition to be a boolean",
        r'"(mul|add|softmax|neg)\w*" not implemented for \'Bool\'',
        "(must be long, int, byte or bool|tensors used as indices)",
        show=_shape_and_dtype,
    ),
    _error(
        "dtypes-mixed",
        "Tensors of different dtypes meet",
        "Something that is made inside has another dtype than what came in.",
        "make new tensors with dtype=Q.dtype (and device=Q.device), or with Q.new_zeros(…).",
        "same dtype",
        "expected scalar type",
        "dtypes? to (match|be)",
        "can't be cast",
        "not implemented for",
        "could not infer output dtype",
        "requires a floating point input type",
        "dtypes do not match",
        "[Ii]nput type .* should be the same",
        "Expected query, key, and value to have the same dtype",
        "floating.point or complex",
        show=_shape_and_dtype,
    ),
    _error(
        "number-too-large",
        "A number is filled in that half precision cannot hold",
        "float16 ends at 65504; -1e9 and float32's lowest number are beyond it.",
        "fill with torch.finfo(scores.dtype).min, or with float('-inf').",
        "without overflow",
        r"out of range: -?\d",
        "value cannot be converted",
        show=_shape_and_dtype,
    ),
    _error(
        "devices-mixed",
        "Tensors on different devices meet",
        "Something that is made inside is on another device than what came in.",
        "make new tensors with device=Q.device.",
        "on the same device",
        "at least two devices",
        "on the expected device",
        show=None,
    ),
    _error(
        "view-not-contiguous",
        "view is asked of a tensor whose numbers do not lie in that order",
        "After transpose or permute, and on inputs that are slices, view cannot merge axes without copying.",
        "take reshape, or contiguous() before view.",
        "view size is not compatible",
    ),
    _error(
        "sizes-do-not-multiply",
        "It is cut into sizes whose product is not the number of numbers there are",
        "One of the sizes is that of another axis or another tensor: Lq in place of Lk, or d_k for d_model.",
        "write down the shape before and after: the products of their sizes are equal.",
        "is invalid for input of size",
        "unflatten",
        "not divisible",
        "split_with_sizes",
        "only one dimension can be inferred",
        "last dimension of size 2",
        "chunk expects",
        "does not result in an equal division",
    ),
    _error(
        "join-of-other-sizes",
        "Tensors are joined whose other sizes differ",
        "torch.cat wants all sizes alike but that of the axis along which it joins; torch.stack wants all.",
        "look at the axis: dim=-2 is the length, dim=-1 the numbers of a token.",
        "Sizes of tensors must match except",
        "stack expects each tensor",
        "expected a non-empty list",
        "Tensors must have same number of dimensions",
    ),
    _error(
        "product-of-matrices-only",
        "A product for tensors of two or three axes is given one with more",
        "torch.mm wants two matrices, torch.bmm two batches of them, torch.dot two vectors; none broadcasts.",
        "take @ or torch.matmul, which multiply the last two axes and leave those in front alone.",
        "1D tensors expected",
        "must be a matrix",
        "[Mm]atrices expected",
        "batch[12] must be a 3D",
        r"vector \+ matrix @",
    ),
    _error(
        "product-of-shapes",
        "Two matrices are multiplied whose inner sizes differ",
        "In A @ B the last size of A and the last but one of B are the same: (Lq, d_k) @ (d_k, Lk).",
        "transpose the last two axes of the second, or see which of the two has not the shape you think.",
        "shapes cannot be multiplied",
        "first two dimensions of batch2",
        "batch1 dim",
        "mat1 and mat2",
        "size mismatch",
        "matmul: ",
        "inconsistent tensor size",
        r"subscript \w+ has size",
        "dot : expected",
        "both arguments to (linear|matmul)",
    ),
    _error(
        "axes-counted-wrong",
        "An axis is asked for that the tensor does not have, or more or fewer than it has",
        "A tensor here has another number of axes than the code counts on.",
        "count from the end, dim=-1 and dim=-2, which holds with and without (B, h) in front.",
        "Dimension out of range",
        "values to unpack",
        "too many indices",
        "dimension specified as",
        "number of dimensions in",
        "tuple index out of range",
        r"expected to have \d",
        "permute",
        r"Expected \d+-?[dD]",
        "only supports? .*D tensors",
        r"more than \d dimensions",
        "1-D tensor",
        "dims? (must|should)",
        "repeat dims",
        "number of subscripts",
        "Number of dimensions of repeat",
        "expects a tensor with <= 2 dimensions",
        r"t\(\) expects",
    ),
    _error(
        "index-out-of-range",
        "An index points behind the end",
        "It counts to another length than that of the tensor: Lq in place of Lk, or one too far.",
        "loop over the size of the axis that is indexed.",
        "out of (bounds|range)",
    ),
    _error(
        "shapes-do-not-broadcast",
        "Tensors meet whose shapes do not go together",
        "From the last axis backwards sizes are equal, or one is 1; in a product, all but the last two.",
        "put axes of size 1 where one is missing: mask[:, None] for the heads; keep Lq and Lk apart.",
        "must match the (size|existing size) of tensor",
        "must match the existing size",
        "not broadcastable",
        "doesn't match the broadcast",
        "[Ss]hape mismatch",
        "cannot be broadcast",
        "expanded size",
        "broadcast",
        "operands could not",
        "shape of the (2D|3D|mask)",
        r"should be (of shape|\()",
        "expecting (key_padding|attn)",
        "The size of tensor",
    ),
    _error(
        "in-place-on-a-graph",
        "A tensor is changed in place that may not be",
        "Gradients need its old numbers, or several of its places are one and the same number in memory.",
        "make a new tensor: x = x * …, masked_fill in place of masked_fill_.",
        "in-?place operation",
        "single memory location",
        "leaf Variable",
        show=None,
    ),
    _error(
        "unsupported-operands",
        "An operation is asked of things that do not know it",
        "One of the two is of another kind than it seems: a tuple of results, a number, a text.",
        "see what each is: a function that returns output and weights gives a pair.",
        "unsupported operand",
        "not subscriptable",
        "not iterable",
        "can only concatenate",
        "not supported between",
        show=None,
    ),
    _error(
        "thing-in-a-name",
        "A thing stands in a name where its number or its name should",
        "An f-string writes whatever the variable holds; it was given another value before this line.",
        "keep the number under a name of its own: a new layer is not `layer`, if that is its number.",
        r"^KeyError.*[(<].*(=|object at|tensor\()",
        show=None,
    ),
    _error(
        "range-ends-too-early",
        "A range ends before it begins",
        "torch.arange(start, end) counts up to end; end is no number of steps.",
        "torch.arange(start, start + n) has n numbers.",
        "inconsistent with step sign",
        show=lambda x: str(x) if isinstance(x, int) else None,
    ),
    _error(
        "missing-key",
        "A key is looked up that is not there",
        "The names in the dictionary are others than those that the code expects.",
        "print the keys, and take their names from there.",
        "^KeyError",
        "loading state_dict",
        "Unexpected key",
        "Missing key",
        show=None,
    ),
    _error(
        "missing-attribute",
        "Something is asked for an attribute or a method that it does not have",
        "It was never made in __init__, has another name, or the thing is of another kind than it seems.",
        "see what it is: print(type(x)).",
        "^(AttributeError|ModuleAttributeError)",
        "has no attribute",
        show=None,
    ),
    _error(
        "wrong-arguments",
        "A function is called with arguments that it does not take",
        "One is missing, one too many, or one has another name or kind.",
        "look up its signature: help(function).",
        "positional argument",
        "unexpected keyword",
        "invalid combination of arguments",
        "multiple values for",
        r"missing \d* ?required",
        "is not callable",
        "not callable",
        "must be .*, not",
        "got an unexpected",
        "takes no",
        show=None,
    ),
    _error(
        "refused-by-torch",
        "torch refuses this call",
        "Its own functions check their arguments; the text says which goes with which.",
        "read the text to its end: it names the argument.",
        "^AssertionError",
        "attn_mask",
        "is_causal",
        "key_padding",
        "embed_dim",
        "need_weights",
        "average_attn",
    ),
    _error(
        "not-written",
        "A part of it is not written yet",
        "It raises NotImplementedError.",
        "write it.",
        "^NotImplementedError",
        show=None,
    ),
    _error(
        "division-by-zero",
        "Plain numbers are divided by zero",
        "A length or a count is 0 on this input.",
        "look at the input: a sequence may be empty, a row may have no key.",
        "^ZeroDivisionError",
        "math domain error",
        "division by zero",
        show=None,
    ),
)


_ABOUT_SHAPES = {
    "error-view-not-contiguous",
    "error-sizes-do-not-multiply",
    "error-join-of-other-sizes",
    "error-product-of-matrices-only",
    "error-product-of-shapes",
    "error-axes-counted-wrong",
    "error-index-out-of-range",
    "error-shapes-do-not-broadcast",
}


def cause(error: BaseException) -> tuple[Mistake, str] | None:
    """Return what an error most likely means, and the tensors that stand in the answer's own line.

    Returns:
        For instance the entry `error-product-of-shapes` and "There Q is (2, 3, 4), K is (2, 5, 4)."; None for
        an error of no kind that is known, or one that arose where the answer has no part.
    """
    code = own_code(error)
    if code is None:
        return None
    if _raised_on_purpose(code.text):
        return _OWN_CHECK, _those_in(code, _shape_and_dtype)
    kind = _kind(error)
    if kind is None:
        return None
    if kind.show is None:
        return kind.entry, ""
    return kind.entry, f"{_those_in(code, kind.show)}{_of_all_axes(code)}"


def what_it_says(error: BaseException | None) -> tuple[str, str] | None:
    """Return an error's type and text without sizes, which differ from input to input.

    That rows of one length meet columns of another is one text, whichever way the product is written.
    """
    if error is None:
        return None
    text = text_of(error)
    if _NO_PRODUCT.search(text):
        return RuntimeError.__name__, "no product"
    return type(error).__name__, re.sub(r"[\d\s,]+", "", text)


def text_of(error: BaseException) -> str:
    """Return what an error says; nothing if it cannot even say that."""
    try:
        return str(error)
    except Exception:
        return ""


def alike_in_kind(one: BaseException, other: BaseException) -> bool:
    """Whether two errors can be of one mistake, written in two ways: of one kind, or both about shapes."""
    kinds = {kind_of(one), kind_of(other)}
    return len(kinds) == 1 or kinds <= _ABOUT_SHAPES


def kind_of(error: BaseException) -> str:
    """Return the kind of an error: one mistake, written in two ways, raises errors of one kind."""
    kind = _kind(error)
    return type(error).__name__ if kind is None else kind.entry.id


def _kind(error: BaseException) -> _Kind | None:
    text = f"{type(error).__name__}: {text_of(error)}"
    return next((kind for kind in _KINDS if re.search(kind.text, text, re.DOTALL)), None)


def _raised_on_purpose(line: str) -> bool:
    return bool(re.search(r"(^|:)\s*(raise\b(?!\s*NotImplementedError)|assert\b)", line))


def _of_all_axes(code: OwnCode) -> str:
    """Say what .T does, where it stands behind a tensor of more than two axes."""
    turned = (code.names.get(name) for name in re.findall(r"\b(\w+)\.T\b", code.text))
    if not any(isinstance(x, Tensor) and x.ndim > 2 for x in turned):
        return ""
    return " .T turns all axes round; .mT, or transpose(-2, -1), the last two."


def _those_in(code: OwnCode, show: Callable[[Any], str | None]) -> str:
    """Say what things are whose names stand in a line: "There Q is (2, 3, 4), K is (2, 5, 4)."."""
    written = re.findall(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", code.text) or [*code.names.maps[0]]
    shown = {name: show(value) for name, value in _values(dict.fromkeys(written), code.names)}
    told = [f"{name} is {text}" for name, text in shown.items() if text is not None]
    return f"There {', '.join(told[:SHOWN])}." if told else ""


def _attribute(layer: nn.Module, name: str) -> Any:
    try:
        return getattr(layer, name, None)
    except Exception:  # a property of the answer's own
        return None


def _values(written: Iterable[str], names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in written:
        first, *rest = name.split(".")
        if first not in names:
            continue
        value = names[first]
        while isinstance(value, nn.Module) and rest:  # self.W_q.weight; no attribute of anything else
            first, value = f"{first}.{rest[0]}", _attribute(value, rest.pop(0))
        if isinstance(value, nn.Linear):
            first, value = f"{first}.weight", value.weight
        yield first, value
