"""Finding the four projections of a layer that somebody else wrote, whatever they called them.

Names first: `W_q`, `wq`, `q_proj`, `query`, `to_q` …, three in one (`qkv`, `c_attn`, `in_proj_weight`), one
matrix per head. Three in one may be cut in any order, one after the other or head by head, unless the name
tells the order (`qkv`, `to_kv`). Where names or shapes leave a choice, each possible reading is given, the
likeliest first: whoever asks has to find out under which one the layer makes sense.
"""

import re
from collections.abc import Iterator, Sequence
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
_ROLE_WORD = r"quer(?:y|ies)|keys?|val(?:ue)?s?|[qkv]"
_MAX_READINGS = 200
_ORDERS = ("qkv", "kqv", "kvq", "vqk", "vkq", "qvk")  # of three in one whose name does not tell
_LAYOUTS = ("", "head by head", "number by number", "number by number, all heads of each together")


@dataclass(frozen=True)
class Projections:
    """Four matrices as nn.Linear stores them, (out, in), their biases, and how many heads share them.

    Without a W_o, the heads joined are the output.
    """

    num_heads: int
    W_q: Tensor
    W_k: Tensor
    W_v: Tensor
    W_o: Tensor | None
    b_q: Tensor | None = None
    b_k: Tensor | None = None
    b_v: Tensor | None = None
    b_o: Tensor | None = None
    likely: bool = True  # False: only to be believed where the numbers agree
    cut: str = ""  # how several in one are cut, where that is neither usual nor told by a name
    kv_heads: int | None = None  # how many heads keys and values have, if fewer: rows are repeated for each
    shared: str = ""  # the roles among "qo" whose one small matrix, repeated here, serves several heads
    absent: str = ""  # roles that have no matrix: what stands for it here is drawn, and nothing can use it

    def __deepcopy__(self, memo: dict[int, object]) -> "Projections":
        return self  # nothing in it is ever changed

    def to(self, dtype: torch.dtype) -> "Projections":
        """Return them in another dtype."""
        if self.W_q.dtype == dtype:
            return self
        tensors = {name: x.to(dtype) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **tensors)


@dataclass(frozen=True)
class _Sizes:
    d_model: int
    inner: int  # h·d_k, nearly always d_model
    num_heads: int

    @property
    def one(self) -> int:
        """How many numbers one projection has."""
        return self.d_model * self.inner


@dataclass(frozen=True)
class _Arrangement:
    """How several projections in one are cut: a layout, and an order where the name does not tell it."""

    layout: int = 0
    order: str = _ORDERS[0]

    def __str__(self) -> str:
        order = "" if self.order == _ORDERS[0] else f"in the order {', '.join(self.order)}"
        return ", ".join(filter(None, [order, _LAYOUTS[self.layout]]))


@dataclass(frozen=True)
class _Block:
    """One tensor of weights as the layer holds it."""

    name: str
    weight: Tensor
    bias: Tensor | None
    is_linear: bool  # (out, in) for certain, as nn.Linear stores it
    heads: int | None = None  # how many heads have rows of their own, if not all


@dataclass(frozen=True)
class _Piece:
    """One projection, in each way in which it can be read: matrices (out, in) and their biases."""

    name: str
    readings: tuple[tuple[Tensor, Tensor | None], ...]
    role: str | None = None
    heads: int | None = None

    def reading(self, i: int) -> tuple[Tensor, Tensor | None]:
        return self.readings[min(i, len(self.readings) - 1)]


def find_projections(layer: nn.Module, d_model: int, num_heads: int) -> Iterator[Projections]:
    """Yield what the projections of `layer` may be, the likeliest first; nothing if there are none."""
    blocks, loose = _blocks(layer, d_model)
    sizes = _Sizes(d_model, _inner(blocks, d_model), num_heads)
    if sizes.inner % num_heads:
        return
    readings = (
        found
        for how in _arrangements(blocks, sizes)
        for found in _assigned(_pieces(blocks, sizes, how), loose, sizes, how)
    )
    seen: list[Projections] = []
    for found in islice(readings, _MAX_READINGS):
        if not any(_equal(found, other) for other in seen):
            seen.append(found)
            yield found


def find_some_projections(layer: nn.Module, d_model: int, num_heads: int) -> Iterator[Projections]:
    """Yield what the projections of `layer` may be that has too few of them.

    What is missing is drawn. A layer that computes something can then only be explained by mistakes that make
    no use of it, such as values that are not projected.
    """
    blocks, loose = _blocks(layer, d_model)
    sizes = _Sizes(d_model, _inner(blocks, d_model), num_heads)
    if sizes.inner % num_heads:
        return
    how = _Arrangement()
    pieces = list(_pieces(blocks, sizes, how))[:3]
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(4, sizes.inner, d_model, generator=generator, dtype=torch.float64)
    absent = [
        _Piece(f"absent.{role}", ((x.T if role == "o" else x, None),), role)
        for role, x in zip(_ROLES, drawn, strict=True)
    ]
    known = {piece.role for piece in pieces}
    free = [piece for piece in absent if piece.role not in known]
    for taken in permutations(free, len([piece for piece in pieces if piece.role is None])):
        # Those that stand in for a piece without a name make room for it.
        filled = [*pieces, *(piece for piece in free if piece not in taken)]
        missing = "".join(piece.role or "" for piece in free if piece not in taken)
        for found in islice(_assigned(filled, loose, sizes, how), 2):
            yield replace(found, absent=missing)


def width_of(layer: nn.Module, told: Sequence[object]) -> int | None:
    """Return d_model: the input of what makes the queries, else a size that all matrices have in common.

    Args:
        told: what attributes say that it is; believed if it is such a size.
    """
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear) and role_of(name) == "q":
            return module.in_features
    shapes = [
        set(p.shape)
        for name, p in layer.named_parameters()
        if not isinstance(p, nn.parameter.UninitializedParameter) and p.ndim >= 2 and "bias" not in name
    ]
    common = set.intersection(*shapes) if shapes else set()
    return next((size for size in told if size in common), max(common, default=None))


def _inner(blocks: list[_Block], d_model: int) -> int:
    """Return h·d_k: what the queries are projected to, where that can be seen."""
    square = (d_model, d_model)
    if any(role_of(block.name) == "o" and tuple(block.weight.shape) == square for block in blocks):
        return d_model  # then fewer rows are shared by several heads
    for block in blocks:
        if block.is_linear and block.weight.size(1) == d_model and not re.search(r"\d", block.name):
            parts = len(_told_order(block.name)) or (role_of(block.name) == "q")
            if parts and block.weight.size(0) % parts == 0:
                return block.weight.size(0) // parts
    return d_model


def _arrangements(blocks: list[_Block], sizes: _Sizes) -> list[_Arrangement]:
    """Return the ways to cut what holds several projections; one is enough where nothing does."""
    fused = [block for block in blocks if block.weight.numel() in (2 * sizes.one, 3 * sizes.one)]
    per_head = [
        block for block in blocks if block.weight.numel() * sizes.num_heads in (2 * sizes.one, 3 * sizes.one)
    ]
    if not fused and not per_head:
        return [_Arrangement()]
    told = all(_told_order(block.name) for block in fused + per_head)
    orders = _ORDERS[:1] if told else _ORDERS
    return [_Arrangement(layout, order) for order in orders for layout in range(len(_LAYOUTS))]


def _equal(a: Projections, b: Projections) -> bool:
    pairs = [(getattr(a, f"W_{role}"), getattr(b, f"W_{role}")) for role in _ROLES]
    return all(x is y or x is not None and y is not None and torch.equal(x, y) for x, y in pairs)


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


def _pieces(blocks: list[_Block], sizes: _Sizes, how: _Arrangement) -> list[_Piece]:
    groups: dict[str, list[_Block]] = {}
    for block in blocks:
        groups.setdefault(re.sub(r"[._]?\d+", "", block.name), []).append(block)
    pieces: list[_Piece] = []
    for name, members in groups.items():
        size = sum(block.weight.numel() for block in members)
        one_per_head = len(members) == sizes.num_heads and members[0].weight.numel() < sizes.one
        if one_per_head and size % sizes.one == 0:
            pieces += _from_heads(name, members, sizes, how)
            continue
        for block in _whole(name, members, sizes, has_queries=len(groups) > 2):
            pieces += _from_block(block, sizes, how)
    return pieces


def _whole(name: str, members: list[_Block], sizes: _Sizes, has_queries: bool) -> list[_Block]:
    """Return the blocks with the rows that several heads share repeated for each of them."""
    d_k = sizes.inner // sizes.num_heads
    shape = (d_k, sizes.d_model)
    if 1 < len(members) < sizes.num_heads and all(tuple(block.weight.shape) == shape for block in members):
        biases = [block.bias for block in members if block.bias is not None]
        bias = torch.cat(biases) if len(biases) == len(members) else None
        members = [_Block(name, torch.cat([block.weight for block in members]), bias, True)]
    return [_widened(block, sizes, has_queries) for block in members]


def _widened(block: _Block, sizes: _Sizes, has_queries: bool) -> _Block:
    role, d_k, x = role_of(block.name), sizes.inner // sizes.num_heads, block.weight
    if x.ndim != 2:
        return block
    if role == "o":  # one small matrix takes each head's numbers
        if block.is_linear and x.shape == (sizes.d_model, d_k) != (sizes.d_model, sizes.inner):
            return replace(block, weight=x.repeat(1, sizes.num_heads), heads=1)
        return block
    rows = x if x.size(1) == sizes.d_model else x.T
    told = _told_order(block.name) or role
    whole_ones = rows.size(0) // sizes.inner if rows.size(0) % sizes.inner == 0 else 0
    if told is None and (whole_ones == 2 and has_queries or whole_ones not in (0, 2)):
        return block
    order = told or "qkv"
    heads = _own_heads(rows, order, sizes)
    if heads is None:
        return block
    repeated = [heads if part != "q" or order == "q" else sizes.num_heads for part in order]

    def whole(y: Tensor) -> Tensor:
        parts = y.split([count * d_k for count in repeated])
        of_heads = (part.unflatten(0, (-1, d_k)) for part in parts)
        copied = (part.repeat_interleave(sizes.num_heads // part.size(0), 0) for part in of_heads)
        return torch.cat([part.flatten(0, 1) for part in copied])

    weight = whole(rows) if x is rows or block.is_linear else whole(rows).T
    return replace(block, weight=weight, bias=None if block.bias is None else whole(block.bias), heads=heads)


def _own_heads(rows: Tensor, order: str, sizes: _Sizes) -> int | None:
    """Return how many heads have rows of their own, if several queries' heads share those; else None."""
    d_k, h = sizes.inner // sizes.num_heads, sizes.num_heads
    if rows.size(1) != sizes.d_model or rows.size(0) % d_k:
        return None
    count = rows.size(0) // d_k  # of all that stands in it
    if "q" in order and len(order) > 1:
        count, order = count - h, order.replace("q", "")
    heads, rest = divmod(count, len(order))
    return heads if rest == 0 and 0 < heads < h and h % heads == 0 else None


def _from_heads(name: str, members: list[_Block], sizes: _Sizes, how: _Arrangement) -> Iterator[_Piece]:
    """One matrix per head: rows (or, for the output, columns) of the whole one."""
    d_model = sizes.d_model
    width = members[0].weight.numel() // d_model
    weights = [block.weight for block in members]
    if any(x.shape not in {(width, d_model), (d_model, width)} for x in weights):
        return
    biases = [block.bias for block in members if block.bias is not None]
    whole = len(biases) == len(members)
    if role_of(name) == "o":
        sides = [x if x.shape == (d_model, width) else x.T for x in weights]
        bias = torch.stack(biases).sum(0) if whole and biases[0].numel() == d_model else None
        yield _Piece(name, ((torch.cat(sides, dim=1), bias),), "o")
        return
    rows = torch.cat([x if x.shape == (width, d_model) else x.T for x in weights])
    bias = torch.cat(biases) if whole else None
    if rows.size(0) == sizes.inner:
        yield _Piece(name, ((rows, bias),), role_of(name))
    else:  # queries, keys and values of one head in one
        yield from _parted(name, rows, bias, sizes, replace(how, layout=how.layout or 1))


def _from_block(block: _Block, sizes: _Sizes, how: _Arrangement) -> Iterator[_Piece]:
    x, count = block.weight, block.weight.numel() // sizes.one
    if x.numel() != count * sizes.one or count not in (1, 2, 3, 4):
        return
    if count == 1:
        role = role_of(block.name)
        matrices = _as_rows(x, block.is_linear, sizes, role)
        if matrices:
            readings = tuple((matrix, block.bias) for matrix in matrices)
            yield _Piece(block.name, readings, role, block.heads)
    elif x.ndim == 2 and sizes.d_model in x.shape and count < 4:
        rows = x if x.size(1) == sizes.d_model else x.T
        for piece in _parted(block.name, rows, block.bias, sizes, how):
            yield piece if piece.role == "q" else replace(piece, heads=block.heads)
    elif x.size(0) == count:
        for role, part in zip(_fused_roles(block.name, count, how.order), x, strict=True):
            matrices = _as_rows(part, False, sizes, role)
            if matrices:
                yield _Piece(block.name, tuple((matrix, None) for matrix in matrices), role)


def _as_rows(x: Tensor, is_linear: bool, sizes: _Sizes, role: str | None) -> list[Tensor]:
    """Return how `x` can be read as (out, in)."""
    rows = (sizes.inner, sizes.d_model)
    if x.ndim == 2:
        wanted = {rows, rows[::-1]} if role is None else {rows[::-1] if role == "o" else rows}
        # A bare parameter is used as x @ W by most, so that is tried first.
        return [y for y in ([x] if is_linear else [x.T, x]) if tuple(y.shape) in wanted]
    split = (sizes.num_heads, sizes.inner // sizes.num_heads, sizes.d_model)
    found = [x.permute(p) for p in permutations(range(x.ndim)) if x.permute(p).shape == split]
    return [y.reshape(rows).T if role == "o" else y.reshape(rows) for y in found]


def _parted(
    name: str, rows: Tensor, bias: Tensor | None, sizes: _Sizes, how: _Arrangement
) -> Iterator[_Piece]:
    count = rows.size(0) // sizes.inner
    matrices = _laid_out(rows, count, sizes.num_heads, how.layout)
    biases = [None] * count if bias is None else _laid_out(bias, count, sizes.num_heads, how.layout)
    roles = _fused_roles(name, count, how.order)
    for role, matrix, part in zip(roles, matrices, biases, strict=True):
        yield _Piece(name, ((matrix, part),), role)


def _laid_out(x: Tensor, count: int, num_heads: int, layout: int) -> list[Tensor]:
    """Cut several in one: rows are (count, h, d_k), (h, count, d_k), (h, d_k, count) or (d_k, count, h)."""
    d_k, rest = x.size(0) // count // num_heads, x.shape[1:]
    if layout == 0:
        return list(x.chunk(count))
    if layout == 3:
        return [part.transpose(0, 1).flatten(0, 1) for part in x.view(d_k, count, num_heads, *rest).unbind(1)]
    parts = x.view(num_heads, count, d_k, *rest) if layout == 1 else x.view(num_heads, d_k, count, *rest)
    return [part.flatten(0, 1) for part in parts.unbind(1 if layout == 1 else 2)]


def _told_order(name: str) -> str:
    """Return the roles that the name of several in one tells, in their order: "qkv" of `qkv_proj`."""
    last = re.sub(r"([._]?\d+)?(\.weight)?$", "", name).rsplit(".", 1)[-1].lower()
    if last.startswith("in_proj"):  # as nn.MultiheadAttention has it
        return _ORDERS[0]
    several = rf"(w|to)?({_ROLE_WORD})+(proj)?"
    words = [word for word in re.split(r"[\W_]+", last) if re.fullmatch(several, word)]
    letters = "".join(role[0] for word in words for role in re.findall(_ROLE_WORD, word))
    return letters if 2 <= len(letters) == len(set(letters)) else ""


def _fused_roles(name: str, count: int, order: str) -> str:
    told = _told_order(name)
    if len(told) == count:
        return told
    if count == 4:
        return f"{order}o"
    return order if count == 3 else order.replace("q", "")


def role_of(name: str) -> str | None:
    """Tell from its name what a projection is for, if the name tells."""
    split = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    words = [word for word in re.split(r"[\W_\d]+", split) if word]
    for role in _ROLES:
        if any(re.fullmatch(_WORDS[role], word) for word in words):
            return role
    return None


def _assigned(
    pieces: list[_Piece], loose: dict[str, Tensor], sizes: _Sizes, how: _Arrangement
) -> Iterator[Projections]:
    named: dict[str, _Piece] = {}
    others: list[_Piece] = []
    for piece in pieces:
        if piece.role is None or piece.role in named:
            others.append(piece)
        else:
            named[piece.role] = piece
    roles = _ROLES if len(pieces) != 3 or "o" in named else "qkv"  # the heads joined may be the output
    missing = [role for role in roles if role not in named]
    extra = _loose_biases(loose, sizes, how)
    for n, chosen in enumerate(permutations(others[:6], len(missing))):
        piece_of = named | dict(zip(missing, chosen, strict=True))
        # One person uses one orientation throughout, or nearly: the output may be the other way round.
        for i, j in ((0, 0), (1, 1), (0, 1), (1, 0)):
            parts = {role: piece_of[role].reading(j if role == "o" else i) for role in roles}
            if not all(_fits(role, W, sizes) for role, (W, _) in parts.items()):
                continue
            biases = {f"b_{role}": bias for role, (_, bias) in parts.items() if bias is not None}
            biases = {f"b_{role}": bias for role, bias in extra.items()} | biases
            likely = n == 0 and i == j and how == _Arrangement() and not (len(roles) == 3 and missing)
            matrices = {"W_o": None} | {f"W_{role}": matrix for role, (matrix, _) in parts.items()}
            heads = {role: piece_of[role].heads for role in roles if piece_of[role].heads is not None}
            yield Projections(
                sizes.num_heads,
                **matrices,
                **biases,
                likely=likely,
                cut=str(how),
                kv_heads=min((heads[role] for role in "kv" if role in heads), default=None),
                shared="".join(role for role in "qo" if role in heads),
            )


def _fits(role: str, W: Tensor, sizes: _Sizes) -> bool:
    rows = (sizes.inner, sizes.d_model)
    return tuple(W.shape) == (rows[::-1] if role == "o" else rows)


def _loose_biases(loose: dict[str, Tensor], sizes: _Sizes, how: _Arrangement) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, bias in loose.items():
        last = name.rsplit(".", 1)[-1]
        role = role_of(re.sub(r"^b(ias)?_?(?=.)|_?b(ias)?$", "", last))
        if bias.numel() == 3 * sizes.inner:
            parts = _laid_out(bias.flatten(), 3, sizes.num_heads, how.layout)
            found |= dict(zip(_fused_roles(name, 3, how.order), parts, strict=True))
        elif role is not None and bias.numel() == (sizes.d_model if role == "o" else sizes.inner):
            found[role] = bias.flatten()
    return found
