"""Taking weights from elsewhere: the stages, and the weights on which it is tried."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import mha
from mha.bert import load_bert_layer
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe, drawing_nothing, driven
from mha.check.exercises.inputs import random_tensors
from mha.check.exercises.layer import LAYER
from mha.check.exercises.layer import layer as run_layer
from mha.check.exercises.torch_api import torch_layer_of
from mha.check.weights import Projections


def packed_blocks(packed: Tensor) -> tuple[Tensor, ...]:
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
    roles = s["packed_roles"](*s["packed_blocks"](mha.in_proj_weight))
    return s["packed_give"]({**roles, **s["packed_output"](mha)})


State = Mapping[str, Tensor]


def bert_part(state: State, layer: int) -> str:
    """Where the layer's attention is found, with or without a prefix."""
    prefix = "bert." if any(name.startswith("bert.") for name in state) else ""
    return f"{prefix}encoder.layer.{layer}.attention"


def bert_names(part: str) -> dict[str, str]:
    """The four projections by their names."""
    return {
        "q": f"{part}.self.query",
        "k": f"{part}.self.key",
        "v": f"{part}.self.value",
        "o": f"{part}.output.dense",
    }


def bert_matrix(matrix: Tensor) -> Tensor:
    """BERT stores (out, in), as nn.Linear does."""
    return matrix


def bert_biases(biases: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each projection has a bias."""
    return biases


def bert_heads(num_heads: int) -> int:
    """As many as are asked for."""
    return num_heads


BERT: dict[str, Stage] = {
    "bert_part": bert_part,
    "bert_names": bert_names,
    "bert_matrix": bert_matrix,
    "bert_biases": bert_biases,
    "bert_heads": bert_heads,
}


def bert_layer(s: Mapping[str, Stage], state_dict: State, layer: int, num_heads: int) -> Any:
    """Run the stages of loading a BERT layer, and the layer itself on `bert_input`."""
    names = s["bert_names"](s["bert_part"](state_dict, layer))
    # Weights first, as most people load them: where a name is not found, it is the same that is missed.
    weights = {f"W_{role}": s["bert_matrix"](state_dict[f"{name}.weight"]) for role, name in names.items()}
    biases = s["bert_biases"]({f"b_{role}": state_dict[f"{name}.bias"] for role, name in names.items()})
    x = bert_input(state_dict)
    projections = Projections(s["bert_heads"](num_heads), **weights, **biases)
    return run_layer(LAYER, projections, x, x, x)


def bert_input(state_dict: State) -> Tensor:
    """Something to try a loaded layer on, (2, 5, d_model)."""
    d_model = next(x.size(-1) for name, x in state_dict.items() if name.endswith("self.query.weight"))
    return torch.randn(2, 5, d_model, generator=torch.Generator().manual_seed(3))


def _from_torch_probes() -> list[Probe]:
    sizes = [(4, 1), (12, 3), (10, 2)]
    return [
        Probe(
            f"d_model={d_model}, num_heads={h}", "packed_blocks", {"mha": torch_layer_of(d_model, h, seed=h)}
        )
        for d_model, h in sizes
    ]


def _giving_weights(answer: Any) -> Any:
    """The weights are given in a dict; a layer that holds them will do as well."""

    def use(answer: Any, mha: nn.MultiheadAttention) -> Any:
        given = drawing_nothing(answer, mha)
        named = dict(given.named_parameters()) if isinstance(given, nn.Module) else given
        if not isinstance(named, dict):
            return tuple(given) if isinstance(given, list) else given
        return {str(name).removesuffix(".weight"): x for name, x in named.items() if x is not None}

    return driven(answer, use) if callable(answer) else answer


def _bert_state(d_model: int, layers: int, prefix: str, seed: int) -> dict[str, Tensor]:
    shapes = {}
    for layer in range(layers):
        part = f"{prefix}encoder.layer.{layer}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{part}.attention.{name}"] = (d_model, d_model)
        shapes[f"{part}.intermediate.dense"] = (2 * d_model, d_model)
        shapes[f"{part}.output.dense"] = (d_model, 2 * d_model)
    sizes = [size for out, into in shapes.values() for size in ((out, into), (out,))]
    tensors = iter(random_tensors(*sizes, seed=seed))
    return {f"{name}.{kind}": next(tensors).float() / 2 for name in shapes for kind in ("weight", "bias")}


def _bert_probes() -> list[Probe]:
    rows = [
        ("a model of one layer", "bert_names", _bert_state(12, 1, "bert.", 1), 0, 3),
        ("layer 1 of three", "bert_part", _bert_state(12, 3, "bert.", 2), 1, 3),
        ("layer 1 of eleven", "bert_part", _bert_state(12, 11, "bert.", 3), 1, 2),
        ("names without a prefix", "bert_part", _bert_state(12, 2, "", 4), 0, 4),
        ("as many heads as in BERT-base", "bert_heads", _bert_state(24, 1, "bert.", 5), 0, 12),
    ]
    return [
        Probe(shows, stage, {"state_dict": state, "layer": layer, "num_heads": h})
        for shows, stage, state, layer, h in rows
    ]


def _giving_a_layer(answer: Any) -> Any:
    """The layer that was loaded is tried on an input."""

    def use(answer: Any, state_dict: State, layer: int, num_heads: int) -> Any:
        given = drawing_nothing(answer, state_dict, layer, num_heads)
        x = bert_input(state_dict)
        return given(x, x, x) if isinstance(given, nn.Module) else given

    return driven(answer, use) if callable(answer) else answer


FROM_TORCH_MHA = Exercise(
    "from_torch_mha",
    "(mha)",
    mha.MultiHeadAttention.from_torch,
    PACKED,
    packed,
    _from_torch_probes,
    _giving_weights,
)

LOAD_BERT_LAYER = Exercise(
    "load_bert_layer",
    "(state_dict, layer, num_heads)",
    load_bert_layer,
    BERT,
    bert_layer,
    _bert_probes,
    _giving_a_layer,
)
