"""Reading a layer: what its weights are taken for, and what it is held against."""

import re
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from mha.attention import merge_heads, scaled_dot_product_attention, split_heads
from mha.check.catalogue import Mistake
from mha.check.diagnose import Comparison, explained
from mha.check.exercise import Exercise, Probe
from mha.check.exercises.layer import GROUPED, LAYER
from mha.check.exercises.layer import layer as run_layer
from mha.check.layers import behaviour as layer_behaviour
from mha.check.layers.behaviour import first
from mha.check.layers.calls import Built, Form
from mha.check.outcome import Outcome, run, same
from mha.check.result import Result
from mha.check.weights import Projections, find_projections
from mha.masks import causal_mask

NAME = "multi_head_attention"


@dataclass(frozen=True)
class Reading:
    """One way to read an answer: what its weights are, and whether it is causal by itself."""

    w: Projections
    causal: bool = False

    def right(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute output and weights as the package does."""
        w = self.w.to(Q.dtype)
        parts = zip((Q, K, V), (w.W_q, w.W_k, w.W_v), (w.b_q, w.b_k, w.b_v), strict=True)
        q, k, v = (split_heads(F.linear(x, W, b), w.num_heads) for x, W, b in parts)
        heads, weights = scaled_dot_product_attention(q, k, v, self._mask(Q, mask))
        concat = merge_heads(heads)
        return concat if w.W_o is None else F.linear(concat, w.W_o, w.b_o), weights

    def _mask(self, Q: Tensor, mask: Tensor | None) -> Tensor | None:
        return causal_mask(Q.size(1)).to(Q.device) if self.causal else mask

    def exercise(self, probes: list[Probe]) -> Exercise:
        """Return the layer with these weights as an exercise."""

        def pipeline(s: Any, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Any:
            return run_layer(s, self.w, Q, K, V, self._mask(Q, mask))

        stages = LAYER if self.w.kv_heads is None else GROUPED
        return Exercise(NAME, "(Q, K, V, mask=None)", self.right, stages, pipeline, lambda: probes)

    def compare(self, probes: list[Probe], given: list[Outcome]) -> Comparison:
        """Hold an answer's outcomes on probes against the right ones."""
        return _Comparison(self.exercise(probes), probes, given)


class _Comparison(Comparison):
    """Holds an answer against pipelines; of several readings, those count whose errors agree in size."""

    def named_as(self, readings: list[tuple[Mistake, ...]]) -> Result | None:
        return super().named_as(list(filter(self._says_the_same, readings)) or readings)

    def _says_the_same(self, mistakes: tuple[Mistake, ...]) -> bool:
        """Whether their errors give the same sizes as the answer's."""
        raised = [i for i, outcome in enumerate(self.given) if outcome.error is not None]
        return all(
            _told_by(self.with_mistakes(i, mistakes).error) == _told_by(self.given[i].error) for i in raised
        )


def _told_by(error: BaseException | None) -> str:
    """Return what an error says of sizes: of a view, how many numbers there are, however they are viewed."""
    viewed = re.search(r"invalid for input of size \d+", str(error))
    return viewed[0] if viewed else str(error)


def believable(
    built: Built, w: Projections | None, probes: list[Probe], given: list[Outcome]
) -> list[Reading]:
    """Return the readings of the answer under which the simplest probes agree, else the likely ones."""
    found = [w] if w is not None else list(find_projections(built.answer, built.d_model, built.num_heads))
    # A layer that takes one input and no mask may be causal by itself, as those of language models are.
    by_itself = (False,)
    if built.form == Form(1, None):
        by_itself = (True,) if layer_behaviour.looks_back_only(built) else (False, True)
    readings = [Reading(w, causal) for causal in by_itself for w in found]
    if w is not None or len(found) == 1 and found[0].likely:
        return readings

    def agreeing(reading: Reading) -> int:
        """Count the probes up to the first that goes wrong."""
        for i, (probe, outcome) in enumerate(zip(probes, given, strict=True)):
            wanted = run(reading.right, probe.arguments).value
            if not same(first(outcome.value), first(wanted)):
                return i
        return len(probes)

    counts = [agreeing(reading) for reading in readings]
    best = max(counts, default=0)
    agree = [reading for reading, count in zip(readings, counts, strict=True) if count == best]
    if best >= 2:  # one token says nothing of queries and keys
        return agree[:2]
    likely = [reading for reading in readings if reading.w.likely][: 2 * len(by_itself)]
    if best == 1 and not any(reading.w.likely for reading in agree):  # but it tells W_v and W_o
        return likely[:1] + agree[:1]
    return likely or [reading for reading in readings if reading.w.W_o is not None][:1]


def diagnosed(compared: list[tuple[Reading, Comparison]]) -> tuple[Reading, Result]:
    """Return the reading that explains the answer best, and the verdict under it."""
    best, result = explained([comparison for _, comparison in compared])
    return next(reading for reading, comparison in compared if comparison is best), result
