"""Grouped queries: several query heads share one head of keys and values.

Differs from the plain layer in one step: K and V have fewer heads, and each is used n_rep times.
Source: Ainslie et al. 2023, "GQA"; with a single shared head, Shazeer 2019, "Fast Transformer Decoding".
"""

from torch import Tensor

from mha._validate import check_size, check_tensor


def repeat_kv(x: Tensor, n_rep: int) -> Tensor:
    """Give each of the n_rep query heads of a group the keys (or values) that they share.

    (B, h_kv, L, d_k) → (B, h_kv·n_rep, L, d_k). The copies of a head stand next to each other: query head i
    reads key head i // n_rep.

    Raises:
        TypeError, ValueError: if x is not a 4-D tensor or n_rep is not a positive integer.

    Source: Ainslie et al. 2023, section 2.2.
    """
    check_tensor("x", x, axes=("B", "h_kv", "L", "d_k"))
    check_size("n_rep", n_rep)
    return x.repeat_interleave(n_rep, dim=1)
