"""What has been tried so far: hints in steps, solutions, and how far you are."""

import difflib
import inspect
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from mha.attention import MultiHeadAttention
from mha.check.exercises import EXERCISES
from mha.check.result import Result

_LAYER = "multi_head_attention"
_NAMES = [*EXERCISES, _LAYER]


class Record:
    """The last verdict on each exercise, and how many hints were given since."""

    def __init__(self) -> None:
        self.results: dict[str, Result] = {}
        self.hints: Counter[str] = Counter()
        self.started: float | None = None

    def keep(self, result: Result) -> None:
        """Remember a verdict; another one than before starts the hints anew."""
        before = self.results.get(result.exercise)
        if before is None or before.message != result.message:
            self.hints[result.exercise] = 0
        self.results[result.exercise] = result


RECORD = Record()


def hint(name: str) -> None:
    """Print the next hint on an exercise: first where it goes wrong, then what it is, then how to mend it.

    Raises:
        ValueError: if there is no exercise of that name.
    """
    _check_name(name)
    result = RECORD.results.get(name)
    if result is None or not result.attempted:
        print(
            f"{name}: write it and run check.{name}({_answer(name)}) first; the hint looks at what is wrong"
        )
    elif result.passed:
        print(f"{name}: passed, there is nothing to hint at")
    else:
        hints = steps(result)
        step = min(RECORD.hints[name], len(hints) - 1)
        RECORD.hints[name] += 1
        print(f"{name}, hint {step + 1} of {len(hints)}: {hints[step]}")


def solution(name: str) -> None:
    """Print the package's own code for an exercise: what answers are marked against.

    Raises:
        ValueError: if there is no exercise of that name.
    """
    _check_name(name)
    reference = MultiHeadAttention if name == _LAYER else EXERCISES[name].reference
    print("\n\n".join(_with_parts(reference, {}).values()))


def progress() -> None:
    """Print each exercise and how it stands, and the time if the clock is running."""
    for name in _NAMES:
        result = RECORD.results.get(name)
        if result is None or not result.attempted:
            state = "not attempted yet"
        elif result.passed:
            state = "passed"
        else:
            state = (
                ", ".join(entry.title for entry in result.mistakes) or f"wrong at the stage '{result.stage}'"
            )
        print(f"{name:<30} {state}")
    if RECORD.started is not None:
        minutes, seconds = divmod(int(time.monotonic() - RECORD.started), 60)
        print(f"{minutes} min {seconds:02} s since the clock was started")


def start_clock() -> None:
    """Start the clock, or start it anew: from now on `progress` says how long you have been at it."""
    RECORD.started = time.monotonic()


def _with_parts(function: Callable[..., Any], seen: dict[str, Any]) -> dict[str, Any]:
    """Return the source of `function`, after that of what it calls of its own module and nobody else sees."""
    module = sys.modules[function.__module__]
    seen.setdefault(function.__qualname__, None)  # so that nothing comes twice
    for name in re.findall(r"(?<![\w.])_[a-z]\w*(?=\()", inspect.getsource(function)):
        part = getattr(module, name, None)
        if inspect.isfunction(part) and part.__module__ == module.__name__ and name not in seen:
            _with_parts(part, seen)
    seen[function.__qualname__] = seen.pop(function.__qualname__) or inspect.getsource(function)
    return seen


def steps(result: Result) -> list[str]:
    """Return the hints on what is wrong, one after the other: where, what, how."""
    where = f"where: look at the stage '{result.stage}'"
    if not result.mistakes:
        where += ", or at what comes after it"
        return [where, f"what: {result.message}", f"how: compare with check.solution({result.exercise!r})"]
    what = " And: ".join(f"{entry.title}. {entry.effect}" for entry in result.mistakes)
    how = " And: ".join(entry.hint for entry in result.mistakes)
    return [where, f"what: {what}", f"how: {how}"]


def _answer(name: str) -> str:
    return "MultiHeadAttention" if name == _LAYER else name


def nearest(name: str, names: Iterable[str], cutoff: float) -> str | None:
    """Return the one of `names` that is most like `name`, but for case and underscores, if one is.

    Args:
        cutoff: how like it has to be, from 0 to 1, as `difflib` has it.
    """
    plain = {known.lower().replace("_", ""): known for known in names}
    close = difflib.get_close_matches(name.lower().replace("_", ""), plain, n=1, cutoff=cutoff)
    return plain[close[0]] if close else None


def _check_name(name: str) -> None:
    if name not in _NAMES:
        close = nearest(str(name), _NAMES, cutoff=0.6)
        meant = f"do you mean {close!r}?" if close else f"there are {', '.join(_NAMES)}"
        raise ValueError(f"name={name!r} is no exercise; {meant}")
