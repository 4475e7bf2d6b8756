"""What an exception means is told by its kind, with the tensors of the line in which it arose."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mha.check import EXERCISES
from mha.check.diagnose import mark
from mha.check.errors import cause, kind_of

Q, K = torch.randn(2, 4, 5, 3), torch.randn(2, 4, 7, 3)
X = torch.randn(2, 5, 12)
MASK = torch.ones(5, 7, dtype=torch.bool)
LINEAR = nn.Linear(8, 8)
TORCHS = nn.MultiheadAttention(12, 4, batch_first=True)


@pytest.mark.parametrize(
    "raises, id",
    [
        (lambda: Q @ K, "product-of-shapes"),
        (lambda: torch.bmm(Q, K), "product-of-matrices-only"),
        (lambda: torch.mm(X, LINEAR.weight), "product-of-matrices-only"),
        (lambda: LINEAR(X), "product-of-shapes"),
        (lambda: torch.einsum("bhqd,bhqd->bhq", Q, K), "product-of-shapes"),
        (lambda: torch.einsum("bqd,bkd->bqk", Q, K), "axes-counted-wrong"),
        (lambda: Q + K, "shapes-do-not-broadcast"),
        (lambda: Q @ K.transpose(1, 2), "shapes-do-not-broadcast"),
        (lambda: (Q @ K.mT)[MASK], "shapes-do-not-broadcast"),
        (lambda: X.expand(2, 5, 13), "shapes-do-not-broadcast"),
        (lambda: (Q @ K.mT).masked_fill(MASK.float(), 0), "mask-dtype"),
        (lambda: 1 - MASK, "mask-dtype"),
        (lambda: -MASK, "mask-dtype"),
        (lambda: ~MASK.float(), "mask-dtype"),
        (lambda: torch.where(MASK.float(), Q @ K.mT, 0), "mask-dtype"),
        (lambda: F.scaled_dot_product_attention(Q, K, K, attn_mask=MASK.int()), "mask-dtype"),
        (lambda: Q @ K.double().mT, "dtypes-mixed"),
        (lambda: Q.half().masked_fill(Q > 0, -1e9), "number-too-large"),
        (lambda: torch.sqrt(3), "number-for-tensor"),
        (lambda: math.sqrt(Q), "number-for-tensor"),
        (lambda: Q.transpose(1, 2).view(2, 5, 12), "view-not-contiguous"),
        (lambda: Q.view(2, 5, 11), "sizes-do-not-multiply"),
        (lambda: X.unflatten(2, (5, 3)), "sizes-do-not-multiply"),
        (lambda: X.view(2, 5, 4, 12 / 4), "float-as-size"),
        (lambda: nn.Linear(4, 4 / 2), "float-as-size"),
        (lambda: range(12 / 4), "float-as-size"),
        (lambda: torch.cat([Q, K], dim=1), "join-of-other-sizes"),
        (lambda: Q.permute(0, 2, 1), "axes-counted-wrong"),
        (lambda: Q.transpose(1, 5), "axes-counted-wrong"),
        (lambda: [x for B, L, D in [Q.shape] for x in (B, L, D)], "axes-counted-wrong"),
        (lambda: Q[7], "index-out-of-range"),
        (lambda: bool(MASK), "truth-of-a-tensor"),
        (lambda: undefined(Q), "undefined-name"),  # noqa: F821
        (lambda: Q.swap_axes(1, 2), "missing-attribute"),
        (lambda: Q.size @ K, "not-called"),
        (lambda: Q @ None, "none-used"),
        (lambda: torch.cat([None, Q], dim=2), "none-used"),
        (lambda: TORCHS(X, X, X)[0] @ TORCHS(X, X, X), "list-for-tensor"),
        (lambda: [Q, K].shape, "list-for-tensor"),
        (lambda: LINEAR.weight.numpy(), "numpy-of-a-graph"),
        (lambda: {}["query.weight"], "missing-key"),
        (lambda: LINEAR.load_state_dict({"w": X}), "missing-key"),
        (lambda: TORCHS(X, X), "wrong-arguments"),
        (lambda: torch.softmax(Q), "wrong-arguments"),
        (lambda: TORCHS(X[..., :5], X, X), "refused-by-torch"),
        (lambda: torch.ones(1, 3).expand(4, 3).add_(1), "in-place-on-a-graph"),
        (lambda: LINEAR.weight.add_(1), "in-place-on-a-graph"),
        (lambda: Q.max(-1) - Q, "unsupported-operands"),
        (lambda: 1 / 0, "division-by-zero"),
    ],
)
def test_an_error_is_known_by_its_kind(raises, id):
    with pytest.raises(Exception) as raised:
        raises()
    assert kind_of(raised.value) == f"error-{id}"


def test_the_tensors_in_the_line_are_told():
    def scaled_dot_product_attention(Q, K, V, mask=None):
        weights = (Q @ K).softmax(dim=-1)
        return weights @ V, weights

    # One token has Lq = Lk = 1 and d_k > 1: the product of one row with one row.
    with pytest.raises(RuntimeError) as raised:
        scaled_dot_product_attention(Q, K, K)
    entry, said = cause(raised.value)
    assert entry.id == "error-product-of-shapes"
    assert said == "There Q is (2, 4, 5, 3), K is (2, 4, 7, 3)."


def test_weights_in_the_line_are_told_with_their_layer():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.W_q = nn.Linear(6, 6)

        def forward(self, x):
            return self.W_q(x)

    with pytest.raises(RuntimeError) as raised:
        Layer()(X)
    assert cause(raised.value)[1] == "There self.W_q.weight is (6, 6), x is (2, 5, 12)."


@pytest.mark.filterwarnings("ignore:The use of `x.T`")
def test_what_turns_all_axes_round_is_told():
    with pytest.raises(RuntimeError) as raised:
        Q @ K.T
    assert cause(raised.value)[1].endswith(
        ".T turns all axes round; .mT, or transpose(-2, -1), the last two."
    )
    with pytest.raises(RuntimeError) as raised:
        X @ LINEAR.weight.T
    assert ".T" not in cause(raised.value)[1]


def test_dtypes_are_told_where_they_are_what_matters():
    with pytest.raises(RuntimeError) as raised:
        Q @ K.double().mT
    assert cause(raised.value)[1] == "There Q is (2, 4, 5, 3) of float32, K is (2, 4, 7, 3) of float32."


def test_what_is_none_in_the_line_is_told():
    def from_torch_mha(mha):
        q, out = mha.q_proj_weight, mha.out_proj.weight
        return {"W_q": q.detach(), "W_o": out.detach()}

    with pytest.raises(AttributeError) as raised:
        from_torch_mha(TORCHS)
    assert cause(raised.value)[1] == "There q is None."


def test_an_answer_that_raises_on_purpose_is_told_so():
    def asserts(x, num_heads):
        assert x.size(0) == 1, "one example at a time"
        return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    def raises(x, num_heads):
        if x.size(0) > 1: raise ValueError("one example at a time")  # fmt: skip  # noqa: E701
        return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    for split_heads in (asserts, raises):
        result = mark(EXERCISES["split_heads"], split_heads)
        assert [entry.id for entry in result.mistakes] == ["error-own-check"]
        assert "Error: one example at a time" in result.message


def test_an_error_nobody_knows_stays_one():
    class StrangeError(Exception):
        pass

    def merge_heads(x):
        def inner():
            raise StrangeError

        return inner()

    result = mark(EXERCISES["merge_heads"], merge_heads)
    assert [entry.id for entry in result.mistakes] == ["error-own-check"]
    assert kind_of(StrangeError()) == "StrangeError"


def test_what_explains_most_is_named_with_what_it_leaves_open():
    def split_heads(x, num_heads):
        if num_heads == 6:  # is another mistake
            return x[:, None] + 1
        return x.unflatten(-1, (num_heads, -1))

    result = mark(EXERCISES["split_heads"], split_heads)
    assert [entry.id for entry in result.mistakes] == ["split-no-transpose"]
    assert "inputs on which it is wrong, but not on" in result.message
