"""A wrong result that no mistake explains is told by how it stands to the right one."""

import pytest
import torch
import torch.nn.functional as F

import mha
from mha.check import EXERCISES
from mha.check.diagnose import mark
from mha.check.layers.marking import mark_layer


def attention_scaled_by(factor):
    def attention(Q, K, V, mask=None):
        return mha.scaled_dot_product_attention(Q * factor(Q.size(-1)), K, V, mask)

    return attention


@pytest.mark.parametrize(
    "name, answer, id, said",
    [
        ("split_heads", lambda x, n: mha.split_heads(x, n).numpy(), "result-of-another-kind", "ndarray"),
        ("merge_heads", lambda x: [mha.merge_heads(x)], "result-of-another-kind", "list of 1"),
        ("repeat_kv", lambda x, n: mha.repeat_kv(x, n).float(), "result-of-another-dtype", "of float32"),
        ("merge_heads", lambda x: mha.merge_heads(x)[:, None], "result-of-another-shape", "(1, 1, 1, 8)"),
        ("apply_rope", lambda x, p: mha.apply_rope(x, p).mT, "result-axes-exchanged", "0, 1, 3, 2"),
        ("repeat_kv", lambda x, n: mha.repeat_kv(x, n).flip(3), "result-reversed", "Axis 3"),
        ("linear_projection", lambda x, W: F.linear(x, W) * 3, "result-times-a-number", "Each is 3 times"),
        ("output_projection", lambda x, W: F.linear(x, W) - 2, "result-plus-a-number", "Each is -2 more"),
        (
            "scaled_dot_product_attention",
            attention_scaled_by(lambda d_k: 0.7),
            "scale-other",
            "On three tokens, one head: There they are 0.7 times",
        ),
        (
            "scaled_dot_product_attention",
            attention_scaled_by(lambda d_k: d_k**-0.25),
            "scale-other",
            "There they are 0.7071 times",
        ),
    ],
)  # fmt: skip
def test_a_relation_that_holds_everywhere_is_named(name, answer, id, said):
    result = mark(EXERCISES[name], answer)
    assert [entry.id for entry in result.mistakes] == [id]
    assert said in result.message


def test_a_relation_that_holds_on_some_inputs_only_is_not_named():
    def merge_heads(x):
        return mha.merge_heads(x) * (3 if x.size(0) == 1 else 5)

    assert mark(EXERCISES["merge_heads"], merge_heads).mistakes == ()


def test_an_output_that_is_wrong_beside_right_weights_is_looked_at_alone():
    def attention(Q, K, V, mask=None):
        output, weights = mha.scaled_dot_product_attention(Q, K, V, mask)
        return output * 2, weights

    result = mark(EXERCISES["scaled_dot_product_attention"], attention)
    assert [entry.id for entry in result.mistakes] == ["result-times-a-number"]


@pytest.mark.no_cover
def test_a_layer_is_told_of_its_odd_scale_too():
    class Attention(mha.MultiHeadAttention):
        def forward(self, Q, K, V, mask=None):
            scale = 1.7
            self.W_q.weight.data.mul_(scale)
            result = super().forward(Q, K, V, mask)
            self.W_q.weight.data.div_(scale)
            return result

    result = mark_layer(Attention(20, 4))
    assert [entry.id for entry in result.mistakes] == ["scale-other"]
    assert "1.7 times" in result.message


def test_numbers_in_no_relation_stay_unknown():
    assert mark(EXERCISES["merge_heads"], lambda x: torch.sin(mha.merge_heads(x))).mistakes == ()
