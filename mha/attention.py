"""Scaled dot-product attention, the two reshapes around it, and the layer made of them.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2 and equation 1.
Shapes: B batch, L length (Lq of the queries, Lk of the keys), h heads, d_k numbers per head.
"""

import math
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha._validate import (
    check_divisible,
    check_heads,
    check_probability,
    check_sequences,
    check_size,
    check_tensor,
    check_torch_layer,
)
from mha.masks import may_attend


def scaled_dot_product_attention(
    Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mix the values V by how well each query matches each key: softmax(Q Kᵀ / √d_k) V.

    Args:
        Q: queries, (B, h, Lq, d_k). K, V: keys (B, h, Lk, d_k) and values (B, h, Lk, d_v). Any number
            of leading axes will do, as long as the three agree on them.
        mask: True or non-zero where a query *may attend* to a key; broadcasts to (B, h, Lq, Lk).

    Returns:
        output (B, h, Lq, d_v) and weights (B, h, Lq, Lk). Each row of the weights sums to 1; a query
        whose keys are all masked gets zero weights and a zero output.

    Raises:
        TypeError, ValueError: for tensors or a mask that do not fit together; the message says which.

    Source: Vaswani et al. 2017, equation 1.
    """
    check_heads(Q, K, V)
    weights = _attention_weights(Q, K, mask)  # (B, h, Lq, Lk)
    return weights @ V, weights  # (B, h, Lq, d_v)


def _attention_weights(Q: Tensor, K: Tensor, mask: Tensor | None) -> Tensor:
    # Scaling Q instead of the scores is the same product with Lk/d_k times fewer divisions, and a large
    # score is made small before half precision could overflow.
    Q = Q / math.sqrt(Q.size(-1))
    # K is laid out in one piece first: turned as it is, it would be copied number by number.
    scores = Q @ K.contiguous().transpose(-2, -1)  # (B, h, Lq, Lk)
    if mask is None:
        return torch.softmax(scores, dim=-1)
    blocked = ~may_attend(mask, scores.shape, scores.device)
    # The lowest finite number, not -inf: a row of nothing but -inf would become NaN.
    scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(blocked, 0.0)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Cut every token's row into heads, and put the heads before the tokens.

    (B, L, d_model) → (B, L, h, d_k) → (B, h, L, d_k), where d_k = d_model / num_heads. A view: no number
    is copied.

    Raises:
        TypeError, ValueError: if x is not a 3-D tensor or num_heads does not divide d_model.

    Source: Vaswani et al. 2017, section 3.2.2.
    """
    check_tensor("x", x, axes=("B", "L", "d_model"))
    B, L, d_model = x.shape
    check_divisible(d_model, num_heads)
    return x.view(B, L, num_heads, d_model // num_heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Undo `split_heads`: lay each token's heads side by side again.

    (B, h, L, d_k) → (B, L, h, d_k) → (B, L, h·d_k).

    Raises:
        TypeError, ValueError: if x is not a 4-D tensor.

    Source: Vaswani et al. 2017, section 3.2.2, "Concat".
    """
    check_tensor("x", x, axes=("B", "h", "L", "d_k"))
    B, h, L, d_k = x.shape
    return x.transpose(1, 2).reshape(B, L, h * d_k)


class MultiHeadAttention(nn.Module):
    """Multi-head attention: project, split into heads, attend in each, join the heads, project again.

    Args:
        d_model: size of a token's vector, a multiple of num_heads.
        num_heads: h, the number of heads; each works on d_k = d_model / num_heads numbers.
        bias: whether the four projections add a bias.
        dropout: probability with which a weight is dropped in training.

    Raises:
        TypeError, ValueError: for sizes that are not positive integers, a d_model that num_heads does not
            divide, or a dropout outside [0, 1].

    Source: Vaswani et al. 2017, section 3.2.2.
    """

    def __init__(self, d_model: int, num_heads: int, *, bias: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        check_size("d_model", d_model)
        check_divisible(d_model, num_heads)
        check_probability("dropout", dropout)
        self.d_model, self.num_heads = int(d_model), int(num_heads)
        self.d_k = self.d_model // self.num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=bias)
        self.W_k = nn.Linear(d_model, d_model, bias=bias)
        self.W_v = nn.Linear(d_model, d_model, bias=bias)
        self.W_o = nn.Linear(d_model, d_model, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        Q: Tensor,
        K: Tensor,
        V: Tensor,
        mask: Tensor | None = None,
        *,
        need_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Let every token of Q look at the tokens of K and take from V what it finds.

        Args:
            Q: (B, Lq, d_model). K, V: (B, Lk, d_model). Self-attention passes one tensor three times.
            mask: True or non-zero where a query *may attend* to a key; broadcasts to (B, h, Lq, Lk).
            need_weights: False takes PyTorch's fused kernel, which never keeps the weights.

        Returns:
            output (B, Lq, d_model), and weights (B, h, Lq, Lk) or None. In training the weights are those
            after dropout, as `nn.MultiheadAttention` returns them.

        Raises:
            TypeError, ValueError: for inputs or a mask that do not fit; the message says which and why.
        """
        check_sequences(Q, K, V, self.W_q.weight)
        Q = split_heads(self.W_q(Q), self.num_heads)  # (B, h, Lq, d_k)
        K = split_heads(self.W_k(K), self.num_heads)  # (B, h, Lk, d_k)
        V = split_heads(self.W_v(V), self.num_heads)  # (B, h, Lk, d_k)
        if need_weights:
            weights = self.dropout(_attention_weights(Q, K, mask))  # (B, h, Lq, Lk)
            heads = weights @ V  # (B, h, Lq, d_k)
        else:
            weights = None
            heads = self._fused(Q, K, V, mask)  # (B, h, Lq, d_k)
        return self.W_o(merge_heads(heads)), weights  # (B, Lq, d_model)

    def _fused(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            mask = may_attend(mask, (*Q.shape[:-1], K.size(-2)), Q.device)
        dropout_p = self.dropout.p if self.training else 0.0
        return F.scaled_dot_product_attention(Q, K, V, attn_mask=mask, dropout_p=dropout_p)

    @classmethod
    def from_torch(cls, layer: nn.MultiheadAttention) -> Self:
        """Make the layer that computes what an `nn.MultiheadAttention` computes, from a copy of its weights.

        dtype, device, bias, dropout and train or eval mode are taken over. The result takes (B, L, d_model)
        whether or not the layer was made with `batch_first`.

        Raises:
            TypeError: if `layer` is not an `nn.MultiheadAttention`.
            ValueError: if it has what this layer has not: its own kdim or vdim, add_bias_kv, add_zero_attn.
        """
        check_torch_layer(layer)
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):  # leaves the random state as it is
            made = cls(
                layer.embed_dim,
                layer.num_heads,
                bias=layer.in_proj_bias is not None,
                dropout=layer.dropout,
            )
        made = made.to(layer.in_proj_weight)
        # in_proj_weight is W_q, W_k and W_v stacked along dim 0: (3·d_model, d_model).
        state = dict(zip(("W_q.weight", "W_k.weight", "W_v.weight"), layer.in_proj_weight.chunk(3)))
        state["W_o.weight"] = layer.out_proj.weight
        if layer.in_proj_bias is not None:
            state |= zip(("W_q.bias", "W_k.bias", "W_v.bias"), layer.in_proj_bias.chunk(3))
            state["W_o.bias"] = layer.out_proj.bias
        made.load_state_dict(state)
        return made.train(layer.training)

    def extra_repr(self) -> str:
        """Name the sizes when the layer is printed."""
        return f"d_model={self.d_model}, num_heads={self.num_heads}"
