"""Taking weights from elsewhere: the stages, and the weights on which it is tried."""

import copy
import functools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import mha
from mha.bert import load_bert_layer
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe, drawing_nothing, driven
from mha.check.exercises.inputs import random_tensors
from mha.check.exercises.torch_api import torch_layer_of
from mha.check.outcome import run, same
from mha.check.weights import find_projections, width_of


def packed_blocks(packed: Tensor, num_heads: int) -> tuple[Tensor, ...]:
    """(3·d_model, d_model) → W_q, W_k, W_v."""
    return packed.chunk(3, dim=0)


def packed_roles(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Queries, keys, values, in this order."""
    return {"W_q": q, "W_k": k, "W_v": v}


def packed_output(mha: nn.MultiheadAttention) -> dict[str, Tensor]:
    """W_o is out_proj."""
    return {"W_o": mha.out_proj.weight}


def packed_give(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """As nn.Linear stores them, (out, in)."""
    return weights


PACKED: dict[str, Stage] = {
    "packed_blocks": packed_blocks,
    "packed_roles": packed_roles,
    "packed_output": packed_output,
    "packed_give": packed_give,
}


def packed(s: Mapping[str, Stage], mha: nn.MultiheadAttention) -> Any:
    """Run the stages of taking an nn.MultiheadAttention apart."""
    # Taken apart by name, as most people do, so that too many or too few blocks give the same error.
    q, k, v = s["packed_blocks"](mha.in_proj_weight, mha.num_heads)
    roles = s["packed_roles"](q, k, v)
    return s["packed_give"]({**roles, **s["packed_output"](mha)})


State = Mapping[str, Tensor]


class Loaded(dict[str, Any]):
    """What a layer holds: W_q … W_o, b_q … b_o, num_heads, d_model, and whether it drops weights."""


def bert_part(state: State, layer: int) -> str:
    """Where the layer's attention is found."""
    return f"encoder.layer.{layer}.attention"


def bert_names(part: str) -> dict[str, str]:
    """The four projections by their names."""
    return {
        "q": f"{part}.self.query",
        "k": f"{part}.self.key",
        "v": f"{part}.self.value",
        "o": f"{part}.output.dense",
    }


def bert_matrices(matrices: dict[str, Tensor]) -> dict[str, Tensor]:
    """BERT stores (out, in), as nn.Linear does."""
    return matrices


def bert_biases(biases: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each projection has a bias."""
    return biases


def bert_heads(num_heads: int, d_model: int) -> int:
    """As many as are asked for."""
    return num_heads


def bert_give(layer: Loaded) -> Loaded:
    """A mha.MultiHeadAttention that drops nothing."""
    return layer


BERT: dict[str, Stage] = {
    "bert_part": bert_part,
    "bert_names": bert_names,
    "bert_matrices": bert_matrices,
    "bert_biases": bert_biases,
    "bert_heads": bert_heads,
    "bert_give": bert_give,
}


def bert_layer(s: Mapping[str, Stage], state_dict: State, layer: int, num_heads: int) -> Any:
    """Run the stages of loading a BERT layer, and tell what it holds."""
    names = s["bert_names"](s["bert_part"](state_dict, layer))
    # Weights first, as most people load them: where a name is not found, it is the same that is missed.
    matrices = s["bert_matrices"]({f"W_{role}": state_dict[f"{name}.weight"] for role, name in names.items()})
    biases = s["bert_biases"]({f"b_{role}": state_dict[f"{name}.bias"] for role, name in names.items()})
    d_model = matrices["W_q"].size(-1)
    heads = s["bert_heads"](num_heads, d_model)
    loaded = {**matrices, **biases, "num_heads": heads, "d_model": d_model, "drops": False}
    return s["bert_give"](Loaded(loaded))


def separate_weights_are_none() -> AttributeError:
    """Return what is raised where q_proj_weight or another is used, which the usual layer does not have."""
    return AttributeError("q_proj_weight, k_proj_weight and v_proj_weight are None")


def bert_is_of_another_size() -> ValueError:
    """Return what is raised where the tensors do not fit into the layer."""
    return ValueError("the layer is made for another d_model than the tensors have")


def bert_has_no_biases() -> ValueError:
    """Return what is raised where the layer has no biases to copy into."""
    return ValueError("the layer is made without biases, and has no place for them")


def bert_is_of_another_kind(kind: str) -> TypeError:
    """Return what is raised where no layer of the package's kind comes back."""
    return TypeError(f"what comes back is of the kind {kind}, a mha.MultiHeadAttention is wanted")


def _from_torch_probes() -> list[Probe]:
    sizes = [(4, 1), (12, 3), (10, 2)]
    return [
        Probe(
            f"d_model={d_model}, num_heads={h}", "packed_blocks", {"mha": torch_layer_of(d_model, h, seed=h)}
        )
        for d_model, h in sizes
    ]


def _giving_weights(answer: Any) -> Any:
    """The weights are given in a dict; a layer that holds them will do as well.

    What was left as it was drawn counts as 0.
    """

    def use(answer: Any, mha: nn.MultiheadAttention) -> Any:
        again = copy.deepcopy(mha)
        try:
            given, other = _weights(_seeded(1, answer, mha)), _weights(_seeded(2, answer, again))
        except Exception as error:
            if "NoneType" not in str(error) or not re.search(r"(?<!in)_proj_weight", _words_of(answer)):
                raise
            raise separate_weights_are_none().with_traceback(error.__traceback__) from None
        if not isinstance(given, dict) or not isinstance(other, dict):
            return tuple(given) if isinstance(given, list) else given
        return {name: x if same(x, other.get(name)) else torch.zeros_like(x) for name, x in given.items()}

    return driven(answer, use) if callable(answer) else answer


def _words_of(answer: Any) -> str:
    """Return the names and the constants that a function's code is made of."""
    code = getattr(answer, "__code__", None)
    return "" if code is None else " ".join(map(str, (*code.co_names, *code.co_consts)))


def _weights(given: Any) -> Any:
    """Return weights by their names; by their number where there are four, and the names are others."""
    if isinstance(given, nn.Module):
        given = {name.removesuffix(".weight"): x for name, x in given.named_parameters()}
    if not isinstance(given, dict):
        return given
    # What is no tensor is told by its kind: two layers or arrays cannot be compared as they are.
    weights = {
        name: x if isinstance(x, Tensor | str | np.ndarray) else type(x).__name__
        for name, x in given.items()
        if x is not None
    }
    as_asked = weights.keys() == {"W_q", "W_k", "W_v", "W_o"}
    return dict(enumerate(weights.values())) if len(weights) == 4 and not as_asked else weights


@functools.cache  # drawing them takes longer than marking
def _bert_state(d_model: int, layers: int, seed: int) -> dict[str, Tensor]:
    """Return the tensors of a model, all of whose matrices but the embeddings are square.

    So a matrix that is taken from a wrong place fits, and its numbers tell which it is.
    """
    shapes: dict[str, tuple[int, ...]] = {"embeddings.word_embeddings.weight": (3 * d_model, d_model)}
    for layer in range(layers):
        part = f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            shapes |= _of_linear(f"{part}.attention.self.{name}", d_model)
        for name in ("attention.output.dense", "attention.output.LayerNorm"):
            shapes |= _of_linear(f"{part}.{name}", d_model)
        for name in ("intermediate.dense", "output.dense", "output.LayerNorm"):
            shapes |= _of_linear(f"{part}.{name}", d_model)
    tensors = random_tensors(*shapes.values(), seed=seed)
    return {name: x.float() / 2 for name, x in zip(shapes, tensors, strict=True)}


def _of_linear(name: str, size: int) -> dict[str, tuple[int, ...]]:
    weight = (size,) if name.endswith("LayerNorm") else (size, size)
    return {f"{name}.weight": weight, f"{name}.bias": (size,)}


def _bert_probes() -> list[Probe]:
    # First a layer that has one before it and one behind: taking these gives numbers, no missing name.
    rows = [
        ("layer 1 of three", "bert_names", _bert_state(12, 3, seed=2), 1, 3),
        ("a model of one layer", "bert_part", _bert_state(12, 1, seed=1), 0, 3),
        ("layer 1 of eleven", "bert_part", _bert_state(12, 11, seed=3), 1, 2),
        ("heads that are not 64 wide", "bert_heads", _bert_state(128, 1, seed=6), 0, 4),
        ("as many heads as in BERT-base", "bert_heads", _bert_state(24, 1, seed=5), 0, 12),
    ]
    return [
        Probe(shows, stage, {"state_dict": state, "layer": layer, "num_heads": h})
        for shows, stage, state, layer, h in rows
    ]


def _giving_a_layer(answer: Any) -> Any:
    """It is read off the layer what it holds; what was left as it was drawn counts as 0."""

    def use(answer: Any, state_dict: State, layer: int, num_heads: int) -> Any:
        untouched = dict(state_dict)
        try:
            given = _seeded(1, answer, state_dict, layer, num_heads)
            again = _seeded(2, answer, untouched, layer, num_heads)
        except Exception as error:
            restated = _restated(error, answer, untouched, layer, num_heads)
            raise restated.with_traceback(error.__traceback__) from None
        if given is None or isinstance(given, Loaded):  # Loaded: from the pipeline, which makes no layer
            return given
        held, other = _held(given, num_heads), _held(again, num_heads)
        return {name: x if same(x, other[name]) else torch.zeros_like(x) for name, x in held.items()}

    return driven(answer, use) if callable(answer) else answer


def _seeded(seed: int, answer: Any, *arguments: Any) -> Any:
    def make() -> Any:
        torch.manual_seed(seed)
        return answer(*arguments)

    return drawing_nothing(make)


def _held(layer: object, num_heads: int) -> Loaded:
    """Return what a layer holds, of the package's class or of an own one."""
    if not isinstance(layer, nn.Module) or isinstance(layer, nn.ModuleList):
        raise bert_is_of_another_kind(type(layer).__name__)
    h = getattr(layer, "num_heads", num_heads)
    of_torch = isinstance(layer, nn.MultiheadAttention)
    d_model = layer.embed_dim if of_torch else getattr(layer, "d_model", None) or width_of(layer, [])
    found = next(find_projections(layer, d_model, h), None)
    if found is None:
        raise bert_is_of_another_size()
    held = {name: getattr(found, name) for name in (f"{kind}_{role}" for kind in "Wb" for role in "qkvo")}
    held = {name: torch.zeros(d_model) if x is None else x.detach() for name, x in held.items()}
    drops = any(x.training and x.p > 0 for x in layer.modules() if isinstance(x, nn.Dropout))
    kind = {"kind": nn.MultiheadAttention.__name__} if of_torch else {}
    return Loaded(held, num_heads=h, d_model=d_model, drops=drops, **kind)


def _restated(error: Exception, answer: Any, state_dict: State, layer: int, num_heads: int) -> Exception:
    """Return one error for one mistake, however the line that raises it was written."""
    said = str(error)
    if "NoneType" in said or ("Unexpected key" in said and "Missing key" not in said):
        return bert_has_no_biases()
    if "size mismatch" in said or "must match the size" in said:
        return bert_is_of_another_size()
    try:
        _seeded(1, answer, {f"bert.{name}": x for name, x in state_dict.items()}, layer, num_heads)
    except Exception:
        return error
    return KeyError(f"bert.{bert_names(bert_part(state_dict, layer))['q']}.weight")


def _in_one_memory(answer: Any) -> str | None:
    """Say that a layer holds the very tensors of the state dict, if it does."""
    state = _bert_state(12, 1, seed=1)
    given = run(lambda: _seeded(1, answer, dict(state), 0, 3), {}).value
    held = given.parameters() if isinstance(given, nn.Module) else ()
    places = {x.untyped_storage().data_ptr() for x in state.values()}
    if not any(x.untyped_storage().data_ptr() in places for x in held):
        return None
    return "Its weights are the very tensors of the state dict: training the layer changes these."


FROM_TORCH_MHA = Exercise(
    "from_torch_mha",
    "(mha)",
    mha.MultiHeadAttention.from_torch,
    PACKED,
    packed,
    _from_torch_probes,
    _giving_weights,
    sources=lambda arguments: arguments["mha"].state_dict(),
)

LOAD_BERT_LAYER = Exercise(
    "load_bert_layer",
    "(state_dict, layer, num_heads)",
    load_bert_layer,
    BERT,
    bert_layer,
    _bert_probes,
    _giving_a_layer,
    _in_one_memory,
    sources=lambda arguments: arguments["state_dict"],
)
