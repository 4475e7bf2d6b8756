"""Heads taken out of a layer: what each of them adds, the layer without some, and a smaller layer.

W_o joins the heads by a sum, a block of its columns for each, so one head can be looked at, or taken out,
without the others.

Sources: Michel et al. 2019, "Are Sixteen Heads Really Better than One?"; Voita et al. 2019, "Analyzing
Multi-Head Self-Attention: Specialized Heads Do the Heavy Lifting, the Rest Can Be Pruned".
Shapes: B batch, L length (Lq of the queries, Lk of the keys), h heads, d_k numbers per head.
"""

import copy
from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor, nn

from mha._validate import check_sequences
from mha.attention import MultiHeadAttention, scaled_dot_product_attention, split_heads


def head_outputs(
    layer: MultiHeadAttention, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Take a layer's output apart: what each head adds to it.

    Args:
        layer: whose heads; its dropout is left out.
        Q, K, V, mask: as for the layer.

    Returns:
        (B, h, Lq, d_model). The sum over the heads, plus the bias of W_o, is the layer's output.

    Raises:
        TypeError, ValueError: as the layer does, and if `layer` is not a `MultiHeadAttention`.

    Source: Vaswani et al. 2017, section 3.2.2: Concat(head_1 … head_h) W_O, written as a sum over blocks.
    """
    check_layer(layer)
    check_sequences(Q, K, V, layer.W_q.weight)
    inputs = (layer.W_q(Q), layer.W_k(K), layer.W_v(V))  # (B, L, h·d_k) each
    Q, K, V = (split_heads(x, layer.num_heads) for x in inputs)  # (B, h, L, d_k)
    heads, _ = scaled_dot_product_attention(Q, K, V, mask)  # (B, h, Lq, d_k)
    W_o = layer.W_o.weight.unflatten(1, (layer.num_heads, layer.d_k))  # (d_model, h, d_k)
    return heads @ W_o.permute(1, 2, 0)  # (B, h, Lq, d_k) @ (h, d_k, d_model)


def ablate_heads(layer: MultiHeadAttention, heads: Sequence[int] | Tensor) -> MultiHeadAttention:
    """Silence some heads: a copy of the layer to whose output they add nothing.

    The copy is as large as the layer. It is for measuring what heads are worth, and may even be left with
    none of them; `prune_heads` makes a layer smaller.

    Args:
        layer: stays as it is.
        heads: their numbers, counted from 0.

    Raises:
        TypeError, ValueError: if `layer` is not a `MultiHeadAttention`, or `heads` are not numbers of its
            heads, each at most once.

    Source: Michel et al. 2019, section 2.3, "Masking Attention Heads".
    """
    columns = _numbers_of(layer, "heads", heads)
    ablated = copy.deepcopy(layer)
    with torch.no_grad():
        ablated.W_o.weight[:, columns] = 0  # all that a head adds goes through its columns of W_o
    return ablated


def prune_heads(layer: MultiHeadAttention, keep: Sequence[int] | Tensor) -> MultiHeadAttention:
    """Make the smaller layer that has only the heads in `keep`, in that order.

    A head is d_k rows of W_q, W_k and W_v (and of their biases) and d_k columns of W_o; the bias of W_o
    belongs to no head and stays whole. The output is that of the layer with the other heads ablated. d_k
    stays what it was, so num_heads · d_k is now less than d_model.

    Args:
        layer: stays as it is. The new layer has weights of its own; dtype, device, dropout and train or eval
            mode are taken over.
        keep: the numbers of the heads that stay, counted from 0, at least one.

    Raises:
        TypeError, ValueError: if `layer` is not a `MultiHeadAttention`, or `keep` is empty, or not numbers of
            its heads, each at most once.

    Source: Michel et al. 2019, section 4, "Iterative Pruning of Attention Heads".
    """
    rows = _numbers_of(layer, "keep", keep)  # (h kept · d_k,)
    if len(rows) == 0:
        raise ValueError("keep is empty; a layer has to keep at least one head")
    pruned = copy.deepcopy(layer)
    pruned.num_heads = len(rows) // layer.d_k
    for projection in (pruned.W_q, pruned.W_k, pruned.W_v):
        _select(projection, rows, dim=0)  # (h·d_k, d_model) → (h kept · d_k, d_model)
    _select(pruned.W_o, rows, dim=1)  # (d_model, h·d_k) → (d_model, h kept · d_k)
    return pruned


def check_layer(layer: object) -> None:
    """Raise unless `layer` is a `MultiHeadAttention`."""
    if not isinstance(layer, MultiHeadAttention):
        raise TypeError(f"layer is a {type(layer).__name__}; it has to be a mha.MultiHeadAttention")


def _numbers_of(layer: MultiHeadAttention, name: str, heads: Sequence[int] | Tensor) -> Tensor:
    """Find the heads' numbers in a joined row: head i has numbers i·d_k to (i + 1)·d_k - 1."""
    check_layer(layer)
    heads = _head_numbers(name, heads, layer.num_heads)
    first = torch.tensor(heads, dtype=torch.long, device=layer.W_o.weight.device) * layer.d_k
    return (first[:, None] + torch.arange(layer.d_k, device=first.device)).flatten()  # (len(heads) · d_k,)


def _head_numbers(name: str, heads: object, num_heads: int) -> list[int]:
    if isinstance(heads, Tensor):
        heads = heads.tolist()
    if not isinstance(heads, list | tuple | range):
        raise TypeError(f"{name}={heads!r} is a {type(heads).__name__}; it has to be a list of head numbers")
    for i, head in enumerate(heads):
        if isinstance(head, bool) or not isinstance(head, Integral):
            raise TypeError(f"{name}[{i}]={head!r} is a {type(head).__name__}; it has to be an integer")
        if not 0 <= head < num_heads:
            raise ValueError(f"{name}[{i}]={head}; the layer has num_heads={num_heads}, 0 to {num_heads - 1}")
    if len(set(heads)) < len(heads):
        raise ValueError(f"{name}={list(heads)} names a head more than once")
    return [int(head) for head in heads]


def _select(linear: nn.Linear, numbers: Tensor, dim: int) -> None:
    """Leave `linear` only these rows (dim=0, with their biases) or columns (dim=1) of its weight."""
    linear.weight = _part(linear.weight, numbers, dim)
    if dim == 0 and linear.bias is not None:
        linear.bias = _part(linear.bias, numbers, dim)
    linear.out_features, linear.in_features = linear.weight.shape


def _part(parameter: nn.Parameter, numbers: Tensor, dim: int) -> nn.Parameter:
    return nn.Parameter(parameter.detach().index_select(dim, numbers), parameter.requires_grad)
