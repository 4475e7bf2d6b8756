"""Finding the four projections of a layer that somebody else wrote, whatever they called them.

Names first: `W_q`, `wq`, `q_proj`, `query`, `to_q` …, three in one (`qkv`, `c_attn`, `in_proj_weight`), one
matrix per head. Where names or shapes leave a choice, each possible reading is given, the likeliest first:
whoever asks has to find out under which one the layer makes sense.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, permutations

import torch
from torch import Tensor, nn

_ROLES = "qkvo"
_BEFORE = r"(w|to|fc|lin|linear|proj|dense|mat|u)?"
_AFTER = r"(s|w|proj|projection|lin|linear|fc|dense|layer|mat|matrix|net|heads?|weights?)?"
_WORDS = {  # one word of a name, such as the "q" of "q_proj" or the "wq" of "attn.wq"
    "q": rf"{_BEFORE}(q|query|queries){_AFTER}",
    "k": rf"{_BEFORE}(k|key|keys){_AFTER}",
    "v": rf"{_BEFORE}(v|val|value|values){_AFTER}",
    "o": rf"{_BEFORE}(o|out|output|combine|unify|final|mix){_AFTER}",
}
_MAX_READINGS = 200


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
    likely: bool = True  # False: only to be believed where the numbers agree

    def to(self, dtype: torch.dtype) -> "Projections":
        """Return them in another dtype."""
        tensors = {name: x.to(dtype) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **tensors)


@dataclass(frozen=True)
class _Block:
    """One tensor of weights as the layer holds it."""

    name: str
    weight: Tensor
    bias: Tensor | None
    is_linear: bool  # (out, in) for certain, as nn.Linear stores it


@dataclass(frozen=True)
class _Piece:
    """One projection, in each way in which it can be read: matrices (out, in) and their biases."""

    name: str
    readings: tuple[tuple[Tensor, Tensor | None], ...]
    role: str | None = None

    def reading(self, i: int) -> tuple[Tensor, Tensor | None]:
        return self.readings[min(i, len(self.readings) - 1)]


def find_projections(layer: nn.Module, d_model: int, num_heads: int) -> Iterator[Projections]:
    """Yield what the projections of `layer` may be, the likeliest first; nothing if there are no four."""
    blocks, loose = _blocks(layer, d_model)
    readings = (
        found
        for layout in range(3)
        for found in _assigned(_pieces(blocks, d_model, num_heads, layout), loose, d_model, num_heads, layout)
    )
    seen: list[Projections] = []
    for found in islice(readings, _MAX_READINGS):
        if not any(_equal(found, other) for other in seen):
            seen.append(found)
            yield found


def _equal(a: Projections, b: Projections) -> bool:
    return all(torch.equal(getattr(a, f"W_{role}"), getattr(b, f"W_{role}")) for role in _ROLES)


def _blocks(layer: nn.Module, d_model: int) -> tuple[list[_Block], dict[str, Tensor]]:
    """Return the weights of the layer in the order in which it made them, and biases that stand alone."""
    blocks, loose = [], {}
    seen: set[int] = set()
    for prefix, module in layer.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if isinstance(module, nn.Linear | nn.Conv1d):
            weight, bias = module.weight.detach().flatten(1), module.bias
            blocks.append(_Block(prefix, weight, None if bias is None else bias.detach(), True))
            continue
        for name, parameter in own.items():
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            full = f"{prefix}.{name}".lstrip(".")
            x = parameter.detach()
            if x.ndim < 2 or x.numel() in (d_model, 3 * d_model):  # also biases of (h, 1, d_k)
                loose[full] = x
                continue
            bias_name = re.sub("weight$", "bias", name)
            bias = own.get(bias_name) if bias_name != name else None
            if bias is not None and bias.ndim == 1:
                seen.add(id(bias))
            is_linear = isinstance(module, nn.MultiheadAttention)
            blocks.append(_Block(full, x, None if bias is None else bias.detach(), is_linear))
    return blocks, loose


def _pieces(blocks: list[_Block], d_model: int, num_heads: int, layout: int) -> list[_Piece]:
    groups: dict[str, list[_Block]] = {}
    for block in blocks:
        groups.setdefault(re.sub(r"[._]?\d+", "", block.name), []).append(block)
    pieces: list[_Piece] = []
    for name, members in groups.items():
        size = sum(block.weight.numel() for block in members)
        if len(members) == num_heads and members[0].weight.numel() < d_model**2 and size % d_model**2 == 0:
            pieces += _from_heads(name, members, d_model, num_heads, layout)
            continue
        for block in members:
            pieces += _from_block(block, d_model, num_heads, layout)
    return pieces


def _from_heads(
    name: str, members: list[_Block], d_model: int, num_heads: int, layout: int
) -> Iterator[_Piece]:
    """One matrix per head: rows (or, for the output, columns) of the whole one."""
    width = members[0].weight.numel() // d_model
    weights = [block.weight for block in members]
    if any(x.shape not in {(width, d_model), (d_model, width)} for x in weights):
        return
    biases = [block.bias for block in members if block.bias is not None]
    whole = len(biases) == len(members)
    if _role(name) == "o":
        sides = [x if x.shape == (d_model, width) else x.T for x in weights]
        bias = torch.stack(biases).sum(0) if whole and biases[0].numel() == d_model else None
        yield _Piece(name, ((torch.cat(sides, dim=1), bias),), "o")
        return
    rows = torch.cat([x if x.shape == (width, d_model) else x.T for x in weights])
    bias = torch.cat(biases) if whole else None
    if rows.size(0) == d_model:
        yield _Piece(name, ((rows, bias),), _role(name))
    else:  # queries, keys and values of one head in one
        yield from _parted(name, rows, bias, d_model, num_heads, 1 if layout == 0 else layout)


def _from_block(block: _Block, d_model: int, num_heads: int, layout: int) -> Iterator[_Piece]:
    x, count = block.weight, block.weight.numel() // d_model**2
    if x.numel() != count * d_model**2 or count not in (1, 2, 3):
        return
    if count == 1:
        role = _role(block.name)
        matrices = _as_rows(x, block.is_linear, d_model, num_heads, role)
        if matrices:
            yield _Piece(block.name, tuple((matrix, block.bias) for matrix in matrices), role)
    elif x.ndim == 2 and d_model in x.shape:
        rows = x if x.size(1) == d_model else x.T
        yield from _parted(block.name, rows, block.bias, d_model, num_heads, layout)
    elif x.size(0) == count:
        for role, part in zip(_fused_roles(block.name, count), x, strict=True):
            matrices = _as_rows(part, False, d_model, num_heads, role)
            if matrices:
                yield _Piece(block.name, tuple((matrix, None) for matrix in matrices), role)


def _as_rows(x: Tensor, is_linear: bool, d_model: int, num_heads: int, role: str | None) -> list[Tensor]:
    """Return how `x` can be read as (out, in)."""
    if x.ndim == 2:
        if x.shape != (d_model, d_model):
            return []
        # A bare parameter is used as x @ W by most, so that is tried first.
        return [x] if is_linear else [x.T, x]
    wanted = (num_heads, d_model // num_heads, d_model)
    found = [x.permute(p) for p in permutations(range(x.ndim)) if x.permute(p).shape == wanted]
    return [y.reshape(d_model, d_model).T if role == "o" else y.reshape(d_model, d_model) for y in found]


def _parted(
    name: str, rows: Tensor, bias: Tensor | None, d_model: int, num_heads: int, layout: int
) -> Iterator[_Piece]:
    count = rows.size(0) // d_model
    matrices = _laid_out(rows, count, num_heads, layout)
    biases = [None] * count if bias is None else _laid_out(bias, count, num_heads, layout)
    for role, matrix, part in zip(_fused_roles(name, count), matrices, biases, strict=True):
        yield _Piece(name, ((matrix, part),), role)


def _laid_out(x: Tensor, count: int, num_heads: int, layout: int) -> list[Tensor]:
    """Cut several projections in one: one after the other (0), or head by head (1), or alternating (2)."""
    if layout == 0:
        return list(x.chunk(count))
    rest = x.shape[1:]
    d_k = x.size(0) // count // num_heads
    parts = x.view(num_heads, count, d_k, *rest) if layout == 1 else x.view(num_heads, d_k, count, *rest)
    return [part.flatten(0, 1) for part in parts.unbind(1 if layout == 1 else 2)]


def _fused_roles(name: str, count: int) -> str:
    if count == 2 and re.search(r"q_?k(?!_?v)|query_?key", name, re.I):
        return "qk"
    return "qkv"[3 - count :]


def _role(name: str) -> str | None:
    """Tell from its name what a projection is for, if the name tells."""
    split = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    words = [word for word in re.split(r"[\W_\d]+", split) if word]
    for role in _ROLES:
        if any(re.fullmatch(_WORDS[role], word) for word in words):
            return role
    return None


def _assigned(
    pieces: list[_Piece], loose: dict[str, Tensor], d_model: int, num_heads: int, layout: int
) -> Iterator[Projections]:
    named: dict[str, _Piece] = {}
    others: list[_Piece] = []
    for piece in pieces:
        if piece.role is None or piece.role in named:
            others.append(piece)
        else:
            named[piece.role] = piece
    missing = [role for role in _ROLES if role not in named]
    for n, chosen in enumerate(permutations(others[:6], len(missing))):
        roles = named | dict(zip(missing, chosen, strict=True))
        # One person uses one orientation throughout, or nearly: the output may be the other way round.
        for i, j in ((0, 0), (1, 1), (0, 1), (1, 0)):
            parts = {role: roles[role].reading(j if role == "o" else i) for role in _ROLES}
            biases = {f"b_{role}": bias for role, (_, bias) in parts.items() if bias is not None}
            for role, bias in _loose_biases(loose, d_model).items():
                biases.setdefault(f"b_{role}", bias)
            likely = n == 0 and i == j and layout == 0
            matrices = {f"W_{role}": matrix for role, (matrix, _) in parts.items()}
            yield Projections(num_heads, **matrices, **biases, likely=likely)


def _loose_biases(loose: dict[str, Tensor], d_model: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, bias in loose.items():
        last = name.rsplit(".", 1)[-1]
        role = _role(re.sub(r"^b(ias)?_?(?=.)|_?b(ias)?$", "", last))
        if bias.numel() == 3 * d_model:
            found |= dict(zip("qkv", bias.flatten().chunk(3), strict=True))
        elif bias.numel() == d_model and role is not None:
            found[role] = bias.flatten()
    return found
