"""Finding the four projections of a layer that somebody else wrote, whatever they called them.

Names first: `W_q`, `wq`, `q_proj`, `query`, `to_q` …, three in one (`qkv`, `c_attn`, `in_proj_weight`), one
matrix per head. Where the names say nothing, the order in which the layer made them.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

_ROLES = "qkvo"
_ONE = (
    r"(^|_|\.)(w_?{0}s?|{0}_?(proj|lin(ear)?|fc|attn)?|{1}(_?proj(ection)?)?|(to|fc|lin(ear)?)_?{0}|w_?{1})$"
)
_NAMES = {  # on the part of a name before ".weight" or ".bias"
    "o": r"(^|_|\.)(w_?o(ut(put)?)?|o(ut(put)?)?(_?proj(ection)?)?|(to|fc|lin(ear)?)_?o(ut)?|"
    r"(c_)?proj|dense|combine)$",
    "q": _ONE.format("q", "quer(y|ies)"),
    "k": _ONE.format("k", "keys?"),
    "v": _ONE.format("v", "values?"),
}


@dataclass(frozen=True)
class Projections:
    """Four matrices as nn.Linear stores them, (out, in), their biases, and how many heads share them."""

    num_heads: int
    W_q: Tensor
    W_k: Tensor
    W_v: Tensor
    W_o: Tensor
    b_q: Tensor | None = None
    b_k: Tensor | None = None
    b_v: Tensor | None = None
    b_o: Tensor | None = None

    def to(self, dtype: torch.dtype) -> "Projections":
        """Return them in another dtype."""
        tensors = {name: x.to(dtype) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **tensors)


def find_projections(layer: nn.Module, d_model: int, num_heads: int) -> Iterator[Projections]:
    """Yield what the projections of `layer` may be, the likeliest first; nothing if there are no four."""
    matrices, biases = _by_role(layer, d_model)
    if len(matrices) < len(_ROLES):
        return
    sure = all(is_linear for _, is_linear in matrices.values())
    for flip in (False,) if sure else (False, True):
        parts = {f"W_{role}": _oriented(*matrices[role], flip) for role in _ROLES}
        yield Projections(num_heads, **parts, **{f"b_{role}": biases.get(role) for role in _ROLES})


def _oriented(matrix: Tensor, is_linear: bool, flip: bool) -> Tensor:
    # A bare parameter is used as x @ W by most, so that is tried first.
    return matrix if is_linear or flip else matrix.T


def _by_role(layer: nn.Module, d_model: int) -> tuple[dict[str, tuple[Tensor, bool]], dict[str, Tensor]]:
    linear = {f"{name}.weight" for name, module in layer.named_modules() if isinstance(module, nn.Linear)}
    groups: dict[str, list[tuple[str, Tensor]]] = defaultdict(list)
    for name, tensor in layer.named_parameters():
        part = re.sub(r"\.(weight|bias)$", "", name)
        groups[re.sub(r"\.\d+$", "", part)].append((name, tensor.detach()))  # one matrix per head: one group
    matrices: dict[str, tuple[Tensor, bool]] = {}
    biases: dict[str, Tensor] = {}
    unnamed: list[tuple[Tensor, bool]] = []
    for part, members in groups.items():
        weights = [(name, x) for name, x in members if x.ndim >= 2]
        if not weights:
            _take_bias(part, members, biases, d_model)
            continue
        is_linear = weights[0][0] in linear or weights[0][0].endswith("in_proj_weight")
        matrix = _joined([x for _, x in weights], is_linear)
        bias = [x for _, x in members if x.ndim == 1]
        bias_row = torch.cat(bias) if bias else None
        _take(part, matrix, is_linear, bias_row, d_model, matrices, biases, unnamed)
    missing = [role for role in _ROLES if role not in matrices]
    if len(unnamed) >= len(missing):
        matrices |= dict(zip(missing, unnamed))
    return matrices, biases


def _joined(weights: list[Tensor], is_linear: bool) -> Tensor:
    if len(weights) == 1 and weights[0].ndim == 3:  # (h, d_model, d_k): one matrix per head in one tensor
        return weights[0].transpose(0, 1).flatten(1)
    return torch.cat(weights, dim=0 if is_linear else 1)


def _take(
    part: str,
    matrix: Tensor,
    is_linear: bool,
    bias: Tensor | None,
    d_model: int,
    matrices: dict[str, tuple[Tensor, bool]],
    biases: dict[str, Tensor],
    unnamed: list[tuple[Tensor, bool]],
) -> None:
    out = matrix.size(0 if is_linear else 1)
    if out in (2 * d_model, 3 * d_model):  # keys and values, or all three, in one
        roles = "qkv"[3 - out // d_model :]
        for role, block in zip(roles, matrix.chunk(len(roles), dim=0 if is_linear else 1)):
            matrices[role] = (block, is_linear)
        if bias is not None:
            biases.update(zip(roles, bias.chunk(len(roles))))
    elif matrix.numel() == d_model * d_model:
        role = next((role for role, names in _NAMES.items() if re.search(names, part, re.I)), None)
        if role is None or role in matrices:
            unnamed.append((matrix, is_linear))
        else:
            matrices[role] = (matrix, is_linear)
            if bias is not None:
                biases[role] = bias


def _take_bias(part: str, members: list[tuple[str, Tensor]], biases: dict[str, Tensor], d_model: int) -> None:
    bias = members[0][1]
    if bias.numel() == 3 * d_model:
        biases.update(zip("qkv", bias.chunk(3)))
    elif bias.numel() == d_model:
        name = re.sub(r"^b(ias)?_?", "", part.rsplit(".", 1)[-1])
        role = next((role for role, names in _NAMES.items() if re.search(names, name, re.I)), None)
        if role is not None:
            biases[role] = bias
