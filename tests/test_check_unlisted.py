"""What is said of answers that no mistake of the catalogue explains on every input."""

import functools
import inspect
import math

import numpy as np
import pytest
import torch
from torch import nn

import mha
from mha.check import EXERCISES
from mha.check.diagnose import judge, mark
from mha.check.layers.marking import mark_layer
from mha.check.origin import origin

ATTENTION = "scaled_dot_product_attention"


def ids(result):
    return [entry.id for entry in result.mistakes]


# ---------------------------------------------------------------- a mistake on some inputs, in one part


def test_a_mistake_in_one_branch_is_named_with_the_inputs_that_take_it():
    def attention(Q, K, V, mask=None):
        mask = mask if mask is not None and mask.dtype == torch.bool else None
        return mha.scaled_dot_product_attention(Q, K, V, mask)

    result = mark(EXERCISES[ATTENTION], attention)
    assert ids(result) == ["mask-ignored"]
    assert "The mask has no effect, on some inputs only\n" in result.message
    assert "So it does on a mask of 0 and 1, a mask of 0 and 2, and not on 15 others" in result.message


def test_a_branch_that_goes_wrong_in_a_way_of_its_own_has_no_name():
    def attention(Q, K, V, mask=None):
        output, weights = mha.scaled_dot_product_attention(Q, K, V, mask)
        return output.sin() if mask is not None and mask.dtype == torch.long else output, weights

    assert ids(mark(EXERCISES[ATTENTION], attention)) == []


def test_a_wrong_output_beside_right_weights_is_explained_by_itself():
    def attention(Q, K, V, mask=None):
        output, _ = mha.scaled_dot_product_attention(Q, K, V)
        return output, mha.scaled_dot_product_attention(Q, K, V, mask)[1]

    result = mark(EXERCISES[ATTENTION], attention)
    assert ids(result) == ["mask-ignored"]
    said = "the weights are right; the output is wrong: The mask has no effect"
    assert result.message.startswith(f"{ATTENTION}: {said}\n")


def test_wrong_weights_beside_a_right_output_are_explained_by_themselves():
    def attention(Q, K, V, mask=None):
        output, _ = mha.scaled_dot_product_attention(Q, K, V, mask)
        return output, mha.scaled_dot_product_attention(Q * math.sqrt(Q.size(-1)), K, V, mask)[1]

    result = mark(EXERCISES[ATTENTION], attention)
    assert ids(result) == ["scale-missing"]
    said = "the weights are wrong: The scores are not divided by √d_k; the output is right"
    assert result.message.startswith(f"{ATTENTION}: {said}\n")


def test_two_parts_that_are_wrong_in_two_ways_are_both_named():
    def attention(Q, K, V, mask=None):
        output, _ = mha.scaled_dot_product_attention(Q, K, V)
        _, weights = mha.scaled_dot_product_attention(Q / math.sqrt(Q.size(-1)), K, V, mask)
        return output, weights

    result = mark(EXERCISES[ATTENTION], attention)
    assert {"mask-ignored", "scale-by-d_k"} <= set(ids(result))


def test_an_error_that_comes_first_does_not_hide_what_all_numbers_tell():
    def apply_rope(x, positions):
        half = x.size(-1) // 2
        step = math.log(10000) / (half - 1)  # nothing to divide by where there is one pair
        angles = positions.double()[:, None] * torch.exp(-step * torch.arange(half))
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    result = mark(EXERCISES["apply_rope"], apply_rope)
    assert ids(result) == ["rope-last-exponent-1"]
    assert "it raises ZeroDivisionError" in result.message


def test_an_error_in_other_words_is_still_that_of_the_mistake_which_the_numbers_tell():
    def attention(Q, K, V, mask=None):
        scores = torch.einsum("bqhd,bkhd->bhqk", Q, K) / math.sqrt(Q.size(-1))
        weights = scores.softmax(dim=-1)
        if mask is not None:
            weights = scores.masked_fill(mask == 0, -1e4).softmax(dim=-1).masked_fill(mask == 0, 0.0)
        return torch.einsum("bhqk,bkhd->bqhd", weights, V), weights

    assert ids(mark(EXERCISES[ATTENTION], attention)) == ["take-heads-and-tokens-exchanged"]


# ---------------------------------------------------------------- how results stand to the right ones


def test_scores_that_are_bent_are_told_by_the_order_of_the_weights():
    def attention(Q, K, V, mask=None):
        scores = 20 * torch.tanh(Q @ K.mT / math.sqrt(Q.size(-1)) / 20)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -math.inf)
        weights = scores.softmax(dim=-1).nan_to_num(0.0)
        return weights @ V, weights

    result = mark(EXERCISES[ATTENTION], attention)
    assert ids(result) == ["softmax-of-bent-scores"]


def test_rows_that_are_not_normalised_are_told_in_output_and_weights_at_once():
    def attention(Q, K, V, mask=None):
        output, weights = mha.scaled_dot_product_attention(Q, K, V, mask)
        factor = 1 + weights.amax(dim=-1, keepdim=True)
        return output * factor, weights * factor

    assert ids(mark(EXERCISES[ATTENTION], attention)) == ["result-rows-times-numbers"]


def test_numbers_that_are_right_to_two_digits_are_told_as_rounded():
    def cross_attention(x, memory, W_q, W_k, W_v, W_o, num_heads, lengths=None):
        output, weights = mha.check.EXERCISES["cross_attention"].reference(
            x, memory, W_q, W_k, W_v, W_o, num_heads, lengths
        )
        return output + 1e-3, weights

    assert ids(mark(EXERCISES["cross_attention"], cross_attention)) == ["result-plus-a-number"]
    assert ids(mark(EXERCISES["split_heads"], lambda x, h: mha.split_heads(x, h).bfloat16().to(x.dtype))) == [
        "result-rounded"
    ]


def test_rows_that_are_silenced_with_an_empty_one_are_told():
    def attention(Q, K, V, mask=None):
        output, weights = mha.scaled_dot_product_attention(Q, K, V, mask)
        if mask is None:
            return output, weights
        whole = (mask != 0).any(dim=-1).all(dim=-1)[..., None, None]  # of an example
        return output * whole, weights * whole

    result = mark(EXERCISES[ATTENTION], attention)
    assert ids(result) == ["result-zero-in-part"]


def test_keys_that_are_cut_off_are_told_with_the_first_of_them():
    def attention(Q, K, V, mask=None):
        if mask is None:
            return mha.scaled_dot_product_attention(Q, K, V)
        keep = torch.broadcast_to(mask != 0, (*Q.shape[:3], K.size(2)))
        return mha.scaled_dot_product_attention(
            Q, K, V, keep & (torch.arange(K.size(2)) < keep.sum(-1).max())
        )

    result = mark(EXERCISES[ATTENTION], attention)
    assert ids(result) == ["mask-hides-too-much"]
    assert "does not see key 4." in result.message


@pytest.mark.parametrize(
    "masked, id, said",
    [
        (lambda scores, mask: scores.masked_fill(mask == 0, -3.0), "mask-filled-too-high", ""),
        (lambda scores, mask: scores - 5.0 * (mask == 0), "mask-added-too-little", "They are lowered by 5."),
    ],
)
@pytest.mark.parametrize("scaled", [True, False])
def test_a_mask_that_lets_something_through_is_told_whatever_the_number(masked, id, said, scaled):
    def attention(Q, K, V, mask=None):
        scores = Q @ K.mT / (math.sqrt(Q.size(-1)) if scaled else 1)
        if mask is None:
            weights = scores.softmax(dim=-1)
        else:
            weights = masked(scores, mask).softmax(dim=-1) * (mask != 0).any(dim=-1, keepdim=True)
        return weights @ V, weights

    result = mark(EXERCISES[ATTENTION], attention)
    assert ids(result) == ([id] if scaled else ["scale-missing", id])
    assert said in result.message


def test_a_layer_with_parameters_of_its_own_is_told_which():
    class TalkingHeads(mha.MultiHeadAttention):
        def __init__(self, d_model, num_heads):
            super().__init__(d_model, num_heads)
            self.talk = nn.Parameter(torch.eye(num_heads) + 0.3)

        def forward(self, Q, K, V, mask=None):
            q, k, v = (
                mha.split_heads(W(x), self.num_heads)
                for W, x in ((self.W_q, Q), (self.W_k, K), (self.W_v, V))
            )
            scores = torch.einsum("hi,bijk->bhjk", self.talk.to(q.dtype), q @ k.mT / math.sqrt(q.size(-1)))
            if mask is not None:
                scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
            weights = scores.softmax(dim=-1)
            weights = weights if mask is None else weights.masked_fill(mask == 0, 0.0)
            return self.W_o(mha.merge_heads(weights @ v)), weights

    result = mark_layer(TalkingHeads)
    assert ids(result) == ["layer-more-parameters"]
    assert "They are talk (4, 4)." in result.message


class OneKeyHead(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, d_k = num_heads, d_model // num_heads
        self.W_q, self.W_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(2))
        self.W_k, self.W_v = (nn.Linear(d_model, d_k, bias=False) for _ in range(2))

    def forward(self, Q, K, V, mask=None):
        q = mha.split_heads(self.W_q(Q), self.num_heads)
        k, v = (W(x)[:, None].expand(-1, self.num_heads, -1, -1) for W, x in ((self.W_k, K), (self.W_v, V)))
        output, weights = mha.scaled_dot_product_attention(q, k, v, mask)
        return self.W_o(mha.merge_heads(output)), weights


def test_heads_that_share_keys_pass_as_a_layer_of_ones_own_and_not_as_the_exercise():
    assert mark_layer(OneKeyHead(24, 3)).passed
    assert ids(mark_layer(OneKeyHead)) == ["layer-heads-share-keys"]


def test_a_mask_for_each_head_that_is_not_taken_is_spoken_of():
    class OfFirstHead(mha.MultiHeadAttention):
        def forward(self, Q, K, V, mask=None):
            return super().forward(Q, K, V, None if mask is None else mask[:, :1] if mask.ndim == 4 else mask)

    result = mark_layer(OfFirstHead)
    assert result.passed and "It does not take a mask of (B, h, L, L)" in result.message


def test_another_dtype_of_output_and_weights_at_once_is_told():
    def attention(Q, K, V, mask=None):
        output, weights = mha.scaled_dot_product_attention(Q.double(), K.double(), V.double(), mask)
        return output.float(), weights.float()

    result = mark(EXERCISES[ATTENTION], attention)
    assert set(ids(result)) & {"result-of-another-dtype", "give-as-float32", "take-as-float32"}


def test_a_tensor_from_a_wrong_place_is_told_with_both_places():
    def load_bert_layer(state_dict, layer, num_heads):
        made = mha.bert.load_bert_layer(state_dict, layer, num_heads)
        bias = state_dict[f"encoder.layer.{layer}.attention.output.LayerNorm.bias"]
        made.W_o.bias = nn.Parameter(bias.clone())
        return made

    result = mark(EXERCISES["load_bert_layer"], load_bert_layer)
    assert ids(result) == ["result-from-elsewhere"]
    part = "encoder.layer.1.attention.output"
    assert f"b_o is {part}.LayerNorm.bias, wanted {part}.dense.bias." in result.message


def test_rows_from_a_wrong_place_are_told_by_their_numbers():
    def from_torch_mha(layer):
        d = layer.embed_dim
        W = layer.in_proj_weight
        return {"W_q": W[:d], "W_k": W[d : 2 * d], "W_v": W[2 * d : -1], "W_o": layer.out_proj.weight}

    result = mark(EXERCISES["from_torch_mha"], from_torch_mha)
    assert ids(result) == ["result-from-elsewhere"]
    assert "W_v is in_proj_weight, rows 8 to 10, wanted in_proj_weight, rows 8 to 11." in result.message


def test_numbers_from_nowhere_have_no_place():
    def from_torch_mha(layer):
        q, k, v = layer.in_proj_weight.chunk(3)
        return {"W_q": q, "W_k": k.sin(), "W_v": v, "W_o": layer.out_proj.weight}

    assert ids(mark(EXERCISES["from_torch_mha"], from_torch_mha)) == []


W = torch.arange(12.0).view(4, 3)
SOURCES = {"bias": torch.tensor([20.0, 21.0, 22.0]), "W": W, "other": W + 100}


@pytest.mark.parametrize(
    "x, said",
    [
        (W, "W"),
        (W + 100, "other"),
        (W.T, "W, transposed"),
        (W[1:3], "W, rows 1 to 2"),
        (W[[3, 0]], "W, rows 3, 0"),
        (W[:, 1:], "W, columns 1 to 2"),
        (W[2:].T, "W, rows 2 to 3, transposed"),
        (SOURCES["bias"][1:], "bias, numbers 1 to 2"),
        (W + 0.5, None),
        (torch.empty(0, 3), None),
    ],
)
def test_the_origin_of_numbers_is_found(x, said):
    assert origin(x, SOURCES) == said


# ---------------------------------------------------------------- two mistakes, and right answers


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "name, pair",
    [
        ("padding_mask", ("padding-one-too-many", "padding-one-axis-short")),
        ("causal_mask", ("causal-forbidden", "causal-shifted-the-wrong-way")),
        ("call_torch_sdpa", ("sdpa-keep-inverted", "causal-sees-next")),
        (ATTENTION, ("scale-by-d_k", "mask-empty-row-nan-weights")),  # one of them rare
        (ATTENTION, ("mask-inverted", "take-as-float32")),
        # Neither alone is borne out: one brings the other to light.
        ("online_attention", ("tile-largest-of-this-tile", "tile-total-inverted")),
        ("cached_attention", ("cached-hides-with-zero", "causal-top-left")),
    ],
)
def test_two_mistakes_are_named_both(name, pair):
    made = [next(entry for entry in EXERCISES[name].mistakes if entry.id == id) for id in pair]
    assert set(pair) <= set(ids(judge(EXERCISES[name], *made)))


def test_who_computes_in_float32_is_compared_there():
    def attention(Q, K, V, mask=None, cap=None):
        scores = Q.float() @ K.float().mT / math.sqrt(Q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -math.inf)
        if cap:
            scores = scores.clamp(-cap, cap)
        weights = scores.softmax(dim=-1).nan_to_num(0.0)
        return (weights @ V.float()).to(Q.dtype), weights.to(Q.dtype)

    result = mark(EXERCISES[ATTENTION], attention)
    assert result.passed and "It computes in float32 inside" in result.message

    def unscaled(Q, K, V, mask=None):
        return attention(Q * math.sqrt(Q.size(-1)), K, V, mask)

    assert ids(mark(EXERCISES[ATTENTION], unscaled)) == ["scale-missing"]


def test_float32_for_any_input_is_no_way_to_compute_in_float32():
    def linear_projection(x, W):
        return x.float() @ W.float().T

    result = mark(EXERCISES["linear_projection"], linear_projection)
    assert not result.passed and "float32" in result.message


def test_a_projection_of_three_axes_passes_with_a_remark():
    result = mark(EXERCISES["linear_projection"], lambda x, W: torch.einsum("bld,od->blo", x, W))
    assert result.passed
    assert "it does not take (d_in,) or (L, d_in) or (B, h, L, d_in)" in result.message
    assert "(" not in mark(EXERCISES["linear_projection"], lambda x, W: x @ W.T).message


def test_heads_that_cannot_be_shared_out_evenly_are_spoken_of():
    def head_shards(layer, world_size):
        h = layer.num_heads // world_size
        weights = mha.check.exercises.pruning.weights_of(layer)
        rows = [slice(r * h * layer.d_k, (r + 1) * h * layer.d_k) for r in range(world_size)]
        shards = [
            {name: x[:, part] if name == "W_o" else x[part] for name, x in weights.items() if name != "b_o"}
            for part in rows
        ]
        return [{**shards[0], "b_o": weights["b_o"]}, *shards[1:]] if "b_o" in weights else shards

    result = mark(EXERCISES["head_shards"], head_shards)
    assert result.passed and "Six heads are given to four ranks" in result.message


def test_a_layer_in_the_memory_of_the_state_dict_is_spoken_of():
    def load_bert_layer(state_dict, layer, num_heads):
        made = mha.bert.load_bert_layer(state_dict, layer, num_heads)
        part = f"encoder.layer.{layer}.attention"
        made.W_q.weight = nn.Parameter(state_dict[f"{part}.self.query.weight"])
        return made

    result = mark(EXERCISES["load_bert_layer"], load_bert_layer)
    assert result.passed and "the very tensors of the state dict" in result.message


class Late(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(self, Q, K, V, mask=None):
        q, k, v = (
            mha.split_heads(W(x), self.num_heads) for W, x in ((self.W_q, Q), (self.W_k, K), (self.W_v, V))
        )
        output, weights = mha.scaled_dot_product_attention(q, k, v, mask)
        return self.W_o(mha.merge_heads(output)), weights


class Narrower(Late):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        inner = d_model // num_heads * num_heads
        self.W_q, self.W_k, self.W_v = (nn.Linear(d_model, inner, bias=False) for _ in range(3))
        self.W_o = nn.Linear(inner, d_model, bias=False)


@pytest.mark.parametrize(
    "answer, then",
    [(Late, "that is an error only once it is called"), (Narrower, "its heads have another width")],
)
def test_a_width_that_heads_do_not_divide_and_that_is_not_refused_is_spoken_of(answer, then):
    result = mark_layer(answer)
    assert result.passed
    assert f"It can be made with d_model=10 and num_heads=3, and {then}" in result.message


# ---------------------------------------------------------------- results too odd to be compared


class SilentError(Exception):
    def __str__(self):
        raise ValueError("nothing to say")


def raising(error):
    def answer(*arguments):
        raise error

    return answer


def odd(value):
    return lambda *arguments: value


ODD = {
    "a complex tensor": odd(torch.ones(2, 3, dtype=torch.complex64)),
    "complex numbers in half precision": odd(torch.ones(2, 3, dtype=torch.complex32)),
    "eight bits": odd(torch.ones(2, 3).to(torch.float8_e4m3fn)),
    "a quantized tensor": odd(torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.quint8)),
    "an empty tensor": odd(torch.empty(0, 3)),
    "a number": odd(3),
    "a 0-d tensor": odd(torch.tensor(2.0)),
    "texts in an array": odd(np.array(["a"])),
    "things in an array": odd(np.array([None])),
    "a text and a number": odd(["a", 1]),
    "a dict of None": odd({"W_q": None, 3: torch.ones(2)}),
    "nothing but NaN": odd(torch.full((2, 3), torch.nan)),
    "an error without a text": raising(SilentError()),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
@pytest.mark.parametrize("name", [name for name in EXERCISES if name != "kv_cache"])
def test_whatever_comes_back_gets_a_verdict(name, answer):
    signature = inspect.signature(EXERCISES[name].drive(EXERCISES[name].reference))
    taking = functools.wraps(answer)(lambda *arguments, **named: answer())
    taking.__signature__ = signature
    result = mark(EXERCISES[name], taking)
    assert not result.passed and result.message


def test_what_may_be_too_odd_for_one_look_is_left_to_the_next():
    def attention(Q, K, V, mask=None):
        output, weights = mha.scaled_dot_product_attention(Q, K, V, mask)
        return output, weights.to(torch.complex128)

    assert "complex128" in mark(EXERCISES[ATTENTION], attention).message


def test_two_mistakes_that_cancel_out_where_an_answer_is_right_are_no_reading():
    def attention(Q, K, V, mask=None):
        scores = Q @ K.mT / math.sqrt(Q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, math.inf)
        weights = scores.softmax(dim=-1).nan_to_num(0.0)
        return weights @ V, weights

    assert not {"score-negative", "softmax-minus"} & set(ids(mark(EXERCISES[ATTENTION], attention)))


def test_a_layer_that_wants_bools_passes_with_a_remark_as_a_class_too():
    class Bools(mha.MultiHeadAttention):
        def forward(self, Q, K, V, mask=None):
            if mask is not None:
                torch.zeros(()).masked_fill(~mask, 1.0)  # which takes bools only
            return super().forward(Q, K, V, mask)

    result = mark_layer(Bools)
    assert result.passed and "It wants a mask of bool" in result.message


def test_a_layer_without_a_mask_passes_and_says_that_none_was_tried():
    class Unmasked(mha.MultiHeadAttention):
        def forward(self, query, key, value):
            return super().forward(query, key, value)

    result = mark_layer(Unmasked(24, 3))
    assert result.passed and "It takes no mask, so none was tried." in result.message
