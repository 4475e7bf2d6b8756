"""Running an answer that nobody has vouched for, and telling whether two runs came to the same.

Whatever the answer does to its surroundings (random state, default dtype, its inputs, what it prints) is
noticed and undone.
"""

import contextlib
import copy
import io
import linecache
import math
import os
import sysconfig
import traceback
from collections import ChainMap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_ATOL = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
# Where the code of others lies: an error that arises there is shown with the line that led to it.
_NOT_OWN = (
    f"{Path(__file__).parents[1]}{os.sep}",
    f"{Path(torch.__file__).parent}{os.sep}",
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    "<frozen",
)


@dataclass(frozen=True)
class Outcome:
    """What came of one call: a value or an error, and what the call did besides."""

    value: Any = None
    error: BaseException | None = None
    line: str | None = None  # the answer's own line in which the error arose
    changed: tuple[str, ...] = ()  # what it changed besides: "its input Q", "the random state" …
    printed: str = ""


def attempt(function: Callable[..., Any], arguments: dict[str, Any]) -> Outcome:
    """Call code of our own that may fail on copies of `arguments`; return what came of it."""
    try:
        return Outcome(value=detach(function(*_copied(arguments).values())))
    except Exception as error:
        return Outcome(error=error)


def run(function: Callable[..., Any], arguments: dict[str, Any]) -> Outcome:
    """Call an answer on copies of `arguments`; return what came of it, whatever it was."""
    given = _copied(arguments)
    changed: list[str] = []
    said = io.StringIO()
    try:
        with _undone(changed, said):
            value = detach(function(*given.values()))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an answer may also call exit()
        return Outcome(error=error, line=_own_line(error), changed=tuple(changed), printed=said.getvalue())
    changed += [f"its input {name}" for name in arguments if not _untouched(given[name], arguments[name])]
    return Outcome(value=value, changed=tuple(changed), printed=said.getvalue())


class _Narrowed(TorchFunctionMode):
    """Notices whether numbers of float64 become float32 on the way."""

    seen = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = function(*args, **(kwargs or {}))
        wide = any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in args)
        self.seen |= wide and isinstance(value, Tensor) and value.dtype == torch.float32
        return value


def computes_in_float32(function: Callable[..., Any], arguments: dict[str, Any]) -> bool:
    """See whether an answer computes in float32 what comes in float64, as with softmax(…, dtype=…)."""
    mode = _Narrowed()

    def watched(*values: Any) -> Any:
        with mode:
            return function(*values)

    run(watched, arguments)
    return mode.seen


def _copied(arguments: dict[str, Any]) -> dict[str, Any]:
    """Copy arguments; what was one tensor under two names stays one."""
    copies: dict[int, Any] = {}
    for x in arguments.values():
        if id(x) not in copies:
            copies[id(x)] = _copy(x)
    return {name: copies[id(x)] for name, x in arguments.items()}


def _copy(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.clone()
    # deepcopy of a tensor is many times slower than clone.
    if type(x) is dict and all(isinstance(item, Tensor) for item in x.values()):
        return {name: item.clone() for name, item in x.items()}
    return copy.deepcopy(x)


def _untouched(given: Any, argument: Any) -> bool:
    if isinstance(given, Tensor):
        return given.shape == argument.shape and given.dtype == argument.dtype and given.equal(argument)
    return same(given, argument)


@contextlib.contextmanager
def _undone(changed: list[str], said: io.StringIO) -> Iterator[None]:
    random, dtype, grad = torch.get_rng_state(), torch.get_default_dtype(), torch.is_grad_enabled()
    device, threads = torch.get_default_device(), torch.get_num_threads()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        if torch.get_default_device() != device:
            changed.append("the default device")
            torch.set_default_device(device)
        if torch.get_num_threads() != threads:
            changed.append("the number of threads")
            torch.set_num_threads(threads)
        if torch.get_default_dtype() != dtype:
            changed.append("the default dtype")
        if torch.is_grad_enabled() != grad:
            changed.append("the gradient mode")
        if not torch.equal(torch.get_rng_state(), random):
            changed.append("the random state")
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_rng_state(random)


@dataclass(frozen=True)
class OwnCode:
    """The answer's own line in which an error arose."""

    number: int
    text: str
    names: ChainMap[str, Any]  # what its variables were at that moment, its own and then those around it


def own_code(error: BaseException) -> OwnCode | None:
    """Return the last of the answer's own lines that led to an error; None if it has no part in it."""
    frames = [
        (frame, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_NOT_OWN)
    ]
    if not frames:
        return None
    frame, number = frames[-1]
    return OwnCode(
        number,
        linecache.getline(frame.f_code.co_filename, number).strip(),
        ChainMap(frame.f_locals, frame.f_globals),
    )


def _own_line(error: BaseException) -> str | None:
    code = own_code(error)
    return code and f"line {code.number}: {code.text}"


def detach(value: Any) -> Any:
    """Return `value` with every tensor in it cut off from its graph.

    Raises:
        TypeError: for a tensor whose numbers cannot be looked at.
    """
    if isinstance(value, Tensor):
        kind = _odd(value)
        if kind is not None:
            raise TypeError(f"the result is a tensor {kind}: an ordinary one is wanted")
        return value.detach()
    if isinstance(value, tuple | list):
        return type(value)(map(detach, value)) if type(value) in (tuple, list) else value
    if isinstance(value, dict):
        return {key: detach(item) for key, item in value.items()}
    return value


def _odd(x: Tensor) -> str | None:
    """Say of which kind a tensor is whose numbers cannot be compared."""
    if x.is_meta:
        return "on the device meta"
    if x.is_nested or x.layout != torch.strided:
        return f"of layout {x.layout}"
    coarse = x.dtype == torch.complex32 or (x.is_floating_point() and x.element_size() < 2)
    if x.is_quantized or coarse:
        return f"of dtype {x.dtype}"
    return None


def dtypes_of(value: Any) -> list[torch.dtype]:
    """Return the dtypes of a tensor, or of those in a tuple or list."""
    if isinstance(value, tuple | list):
        return [dtype for item in value for dtype in dtypes_of(item)]
    return [value.dtype] if isinstance(value, Tensor) else []


def alike(a: Outcome, b: Outcome) -> bool:
    """Whether two calls came to the same: equal values, or errors of one kind."""
    if a.error is not None or b.error is not None:
        return type(a.error) is type(b.error)
    return same(a.value, b.value)


def same(a: Any, b: Any) -> bool:
    """Whether two values agree as closely as their dtype allows; NaN agrees with NaN."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _same_tensors(a, b)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return isinstance(a, list) == isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        numbers = a.dtype.kind in "biuf"
        return bool(np.allclose(a, b, rtol=1e-4, equal_nan=True) if numbers else a.tobytes() == b.tobytes())
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) or (math.isnan(a) and math.isnan(b))
    if type(a) is not type(b):
        return False
    try:
        return bool(a == b)
    except Exception:  # whatever the two are, they need not know how to be compared
        return False


def _same_tensors(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device or a.is_meta:
        return False
    if a.layout != b.layout:
        return False
    if torch.equal(a, b):  # to the last bit: that is frequent, and quickly seen
        return True
    if not a.is_floating_point():
        return False
    atol = _ATOL.get(a.dtype, 1e-6)
    if a.dtype in (torch.bfloat16, torch.float16) and b.numel():  # each step rounds to a share of its size
        atol = max(atol, 2 * torch.finfo(a.dtype).eps * b.nan_to_num(0.0, 0.0, 0.0).abs().max().item())
    return torch.allclose(a, b, rtol=1e-4, atol=atol, equal_nan=True)
