"""An exercise: what is asked, what it is marked against, and the inputs on which it is tried.

The inputs of an exercise are a ladder. They go from the smallest on which anything shows to the ones that
tell mistakes apart, so that the first on which an answer goes wrong is also the easiest to look at.

The stages of an exercise are those of the right answer; its pipeline is a function of them and of the
exercise's arguments. With every stage right it computes what the package computes (a test holds the two
together); with one replaced, what that mistake computes.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mha.check.catalogue import Mistake, Stage, mistakes_of
from mha.check.outcome import Outcome

Pipeline = Callable[..., Any]


@dataclass(frozen=True)
class Probe:
    """One input, and what it shows."""

    shows: str
    stage: str  # where an answer goes wrong that is right on the probes before
    arguments: dict[str, Any]


def _as_it_is(answer: Any) -> Any:
    return answer


def _nothing(answer: Any) -> str | None:
    return None


def _no_sources(arguments: dict[str, Any]) -> Mapping[str, Tensor]:
    return {}


@dataclass(frozen=True)
class Exercise:
    """Something to write, marked against the package's own code."""

    name: str
    signature: str
    reference: Callable[..., Any]
    stages: Mapping[str, Stage]
    pipeline: Pipeline
    probes: Callable[[], list[Probe]]
    # From an answer to a function of a probe's arguments.
    drive: Callable[[Any], Any] = _as_it_is
    # What there is to say of a right answer, where `drive` makes up for something that it does otherwise.
    remark: Callable[[Any], str | None] = _nothing
    # From a probe's arguments to the tensors, by name, out of which the result is put together.
    sources: Callable[[dict[str, Any]], Mapping[str, Tensor]] = _no_sources
    # What came of mistakes, and () of the right code, by the number of the probe; filled as they are tried.
    outcomes: dict[tuple[int, tuple[Mistake, ...]], Outcome] = field(default_factory=dict, compare=False)

    @property
    def wanted(self) -> str:
        """What an answer has to be."""
        if inspect.isclass(self.reference):
            return f"a class {self.reference.__name__}{self.signature}"
        return f"a function {self.name}{self.signature}"

    @property
    def mistakes(self) -> list[Mistake]:
        """What the catalogue knows of getting this wrong."""
        return mistakes_of(self.stages)

    def in_float32(self) -> "Exercise | None":
        """Return the exercise on inputs of float32 in place of float64; None if they are no plain tensors."""
        probes = self.probes()
        if not all(isinstance(x, Tensor | int | None) for probe in probes for x in probe.arguments.values()):
            return None
        narrow = [replace(probe, arguments=changed(probe.arguments, _narrow)) for probe in probes]
        return replace(self, probes=lambda: narrow, outcomes={})

    def with_mistakes(self, *mistakes: Mistake) -> Callable[..., Any]:
        """Return the pipeline with these mistakes put in."""
        stages = dict(self.stages)
        for entry in mistakes:
            stages.update(entry.replaces)
        return lambda *arguments: self.pipeline(stages, *arguments)


def changed(arguments: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Change each argument; what was one tensor under two names stays one."""
    new = {id(x): change(x) for x in arguments.values()}
    return {name: new[id(x)] for name, x in arguments.items()}


def _narrow(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.dtype == torch.float64 else x


def single(
    name: str, signature: str, reference: Stage, stage: Stage, probes: Callable[[], list[Probe]]
) -> Exercise:
    """Return an exercise of one stage, which takes the exercise's own arguments."""

    def pipeline(s: Mapping[str, Stage], *arguments: Any) -> Any:
        return s[stage.__name__](*arguments)

    return Exercise(name, signature, reference, {stage.__name__: stage}, pipeline, probes)


def driven(answer: Any, use: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a probe's arguments that hands them to `use` together with the answer."""

    def call(*arguments: Any) -> Any:
        return use(answer, *arguments)

    # With the answer's own signature, so that a wrong one is still noticed; a class has another anyway.
    return call if inspect.isclass(answer) else functools.wraps(answer)(call)


def without_none(answer: Any) -> Any:
    """An answer that gives None for the weights leaves them away."""

    def use(answer: Any, *arguments: Any) -> Any:
        value = answer(*arguments)
        return value[0] if isinstance(value, tuple) and len(value) == 2 and value[1] is None else value

    return driven(answer, use) if callable(answer) else answer


def drawing_nothing(make: Callable[..., Any], *arguments: Any) -> Any:
    """Call `make`; that a new layer draws its weights is no side effect."""
    with torch.random.fork_rng(devices=[]):
        return make(*arguments)
