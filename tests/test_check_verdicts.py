"""What a verdict says besides the name: numbers, remarks, and what only a second look shows."""

import math
from types import SimpleNamespace

import IPython.display
import pytest
import torch
import torch.nn.functional as F

import mha
import mha.check.__main__ as command
from mha import check
from mha.check import EXERCISES, evidence
from mha.check.diagnose import mark


def marked(name, answer):
    return mark(EXERCISES[name], answer)


def attention(Q, K, V, mask=None):
    return mha.scaled_dot_product_attention(Q, K, V, mask)


# ---------------------------------------------------------------- the evidence


def test_the_first_number_that_differs_is_shown_with_its_place():
    given, wanted = torch.zeros(2, 3), torch.zeros(2, 3)
    given[1, 0] = 0.25
    wanted[1, 2] = -7.0
    assert (
        evidence.difference(given, wanted)
        == "result[1, 0] is 0.25, wanted 0 (2 of 6 numbers differ, by 7 at most)"
    )


def test_the_weights_are_looked_at_before_the_output():
    right = torch.zeros(1, 2), torch.full((1, 1, 2), 0.5)
    wrong = torch.ones(1, 2), torch.tensor([[[0.5, float("nan")]]])
    assert evidence.difference(wrong, right) == "weights[0, 0, 1] is nan, wanted 0.5 (1 of 2 numbers differ)"
    only_output = torch.ones(1, 2), right[1]
    assert evidence.difference(only_output, right).startswith("output[0, 0] is 1, wanted 0 (2 of 2 ")


def test_values_of_different_forms_have_no_first_difference():
    assert evidence.difference(torch.zeros(2), torch.zeros(3)) is None
    assert evidence.difference(None, torch.zeros(3)) is None
    assert evidence.difference(torch.zeros(3), torch.zeros(3)) is None


def test_an_unknown_mistake_is_shown_with_its_input():
    result = marked("split_heads", lambda x, num_heads: mha.split_heads(x, num_heads).sin())
    assert result.mistakes == ()
    first, given, wanted, parts, last = result.message.splitlines()
    assert first.endswith(
        "at the stage 'split' or after it, on one token, two heads: x (1, 1, 4), num_heads 2"
    )
    assert given.startswith("  given:  shape (1, 2, 1, 2), float64, [")
    assert wanted.startswith("  wanted: shape (1, 2, 1, 2), float64, [")
    assert last == "  No mistake that is known, and no two of them, come to this."
    assert parts.startswith("  result[0, 0, 0, 0] is ") and parts.endswith(
        "(4 of 4 numbers differ, by 1.358 at most)"
    )


# ---------------------------------------------------------------- remarks


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
@pytest.mark.parametrize("name", ["causal_mask", "padding_mask"])
def test_a_mask_of_0_and_1_passes_with_a_remark(name, dtype):
    right = getattr(mha, name)
    result = marked(name, lambda *arguments: right(*arguments).to(dtype))
    assert result.passed
    assert "Its mask is of numbers 0 and 1; the package's is bool" in result.message


def test_a_wrong_mask_of_0_and_1_is_named_all_the_same():
    result = marked("causal_mask", lambda Lq, Lk=None: torch.ones(Lq, Lk or Lq).tril())
    assert [entry.id for entry in result.mistakes] == ["causal-top-left"]


def test_none_for_the_weights_is_as_good_as_leaving_them_away():
    result = marked("scaled_dot_product_attention", lambda *arguments: (attention(*arguments)[0], None))
    assert result.passed and "returns the output only" in result.message


def test_printing_is_remarked_on():
    def merge_heads(x):
        print(x.shape)
        return mha.merge_heads(x)

    assert marked("merge_heads", merge_heads).message == "merge_heads: passed. (It prints while it runs.)"


# ---------------------------------------------------------------- chance, state, gradients


def test_a_result_that_depends_on_chance_is_named():
    def with_dropout(Q, K, V, mask=None):
        weights = F.dropout(attention(Q, K, V, mask)[1], 0.5)
        return weights @ V, weights

    result = marked("scaled_dot_product_attention", with_dropout)
    assert [entry.id for entry in result.mistakes] == ["behaviour-by-chance"]


def test_a_result_that_depends_on_the_calls_before_is_named():
    seen = []

    def merge_heads(x):
        seen.append(x)
        return mha.merge_heads(seen[0] if x.shape == seen[0].shape else x) + len(seen) - 1

    assert [entry.id for entry in marked("merge_heads", merge_heads).mistakes] == ["behaviour-state-kept"]


@pytest.mark.parametrize(
    "name, answer",
    [
        ("linear_projection", lambda x, W: F.linear(x, W.detach())),
        ("split_heads", lambda x, num_heads: mha.split_heads(x.detach(), num_heads)),
        ("merge_heads", lambda x: torch.tensor(mha.merge_heads(x).tolist(), dtype=x.dtype)),
        ("repeat_kv", lambda x, n_rep: mha.repeat_kv(x.data, n_rep)),
        ("apply_rope", lambda x, positions: mha.apply_rope(x.detach(), positions)),
        ("scaled_dot_product_attention", lambda *given: attention(given[0], given[1].detach(), *given[2:])),
    ],
)
def test_a_right_result_whose_gradient_is_cut_does_not_pass(name, answer):
    result = marked(name, answer)
    assert not result.passed and result.stage == "gradient"
    assert [entry.id for entry in result.mistakes] == ["behaviour-gradient-cut"]


def test_a_gradient_of_nan_behind_a_right_result_is_named():
    def hides_nan(Q, K, V, mask=None):
        scores = Q @ K.transpose(-2, -1) / Q.size(-1) ** 0.5
        if mask is not None:
            scores = scores + torch.where(mask == 0, float("-inf"), 0.0).to(scores.dtype)
        weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
        return weights @ V, weights

    result = marked("scaled_dot_product_attention", hides_nan)
    assert [entry.id for entry in result.mistakes] == ["behaviour-gradient-nan"]
    assert "a query with nothing to see" in result.message


def test_an_input_that_no_gradient_reaches_is_named():
    def linear_projection(x, W):
        return x @ W.detach().T

    result = marked("linear_projection", linear_projection)
    assert [entry.id for entry in result.mistakes] == ["behaviour-gradient-cut"]
    assert "No gradient at all arrives at W." in result.message


def test_a_change_in_place_that_stops_the_backward_pass_is_named():
    def scaled_dot_product_attention(Q, K, V, mask=None):
        output, weights = mha.scaled_dot_product_attention(Q, K, V, mask)
        powers = weights.exp()
        output = output + (powers * powers).sum() * 0.0
        powers += 1.0
        return output, weights

    result = marked("scaled_dot_product_attention", scaled_dot_product_attention)
    assert [entry.id for entry in result.mistakes] == ["behaviour-gradient-in-place"]


def test_torchs_own_function_passes_gradients_and_all():
    def fused(Q, K, V, mask=None):
        return F.scaled_dot_product_attention(Q, K, V, None if mask is None else mask != 0)

    assert marked("scaled_dot_product_attention", fused).passed


# ---------------------------------------------------------------- in a notebook


def test_in_a_notebook_the_weights_are_shown_without_being_asked_for(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(IPython.display, "display", shown.append)
    check.scaled_dot_product_attention(attention)
    check.merge_heads(lambda x: x.flatten(2))
    assert shown == []  # passed, and nothing to draw
    check.scaled_dot_product_attention(lambda Q, K, V, mask=None: attention(Q, K, V))
    (figure,) = shown
    assert [ax.get_title() for ax in figure.axes][:2] == ["Head 0, yours", "Head 0, right"]
    assert "scaled_dot_product_attention: The mask has no effect" in capsys.readouterr().out


def test_elsewhere_only_text_is_shown(capsys):
    check.scaled_dot_product_attention(lambda Q, K, V, mask=None: attention(Q, K, V))
    assert capsys.readouterr().out.startswith("scaled_dot_product_attention: The mask has no effect\n")


# ---------------------------------------------------------------- what is no right kind of answer


def test_nothing_that_comes_back_is_said_in_plain_words():
    def merge_heads(x):
        mha.merge_heads(x)

    result = marked("merge_heads", merge_heads)
    assert result.message.startswith("merge_heads: nothing comes back: is the return missing?\n")
    assert [entry.id for entry in result.mistakes] == ["behaviour-nothing-returned"]


def test_a_class_in_place_of_a_function_is_explained():
    result = marked("split_heads", torch.nn.Linear)
    assert result.message.startswith("split_heads: the answer is a class, Linear; it has to be a function")


def test_a_class_that_inherits_all_is_not_taken_for_blank():
    class KVCache(mha.KVCache):
        pass

    assert marked("kv_cache", KVCache).passed


def test_a_named_mistake_that_raises_shows_the_answers_own_line():
    def merge_heads(x):
        B, h, L, d_k = x.shape
        return x.transpose(1, 2).view(B, L, h * d_k)

    result = marked("merge_heads", merge_heads)
    assert [entry.id for entry in result.mistakes] == ["merge-view-not-contiguous"]
    assert "it raises RuntimeError: view size is not compatible" in result.message
    assert "return x.transpose(1, 2).view(B, L, h * d_k)" in result.message


def test_a_layer_among_the_inputs_is_called_by_its_kind():
    result = marked("call_torch_mha", lambda mha, x, keep=None: (x, x))
    assert "on one example, one head: mha nn.MultiheadAttention, x (1, 3, 4)" in result.message


def test_floats_in_a_list_may_be_rounded():
    assert marked("alibi_slopes", lambda h: [2.0 ** (-8 * i / h) + 1e-12 for i in range(1, h + 1)]).mistakes


def test_the_number_of_threads_is_put_back():
    threads = torch.get_num_threads()

    def merge_heads(x):
        torch.set_num_threads(threads + 1)
        return mha.merge_heads(x)

    assert "It changes the number of threads" in marked("merge_heads", merge_heads).message
    assert torch.get_num_threads() == threads


# ---------------------------------------------------------------- hints and solutions


def test_a_solution_is_whole(capsys):
    check.solution("scaled_dot_product_attention")
    namespace = {"math": math, "torch": torch, "Tensor": torch.Tensor}
    namespace |= {name: getattr(mha.attention, name) for name in ("check_heads", "may_attend")}
    exec(capsys.readouterr().out, namespace)
    assert marked("scaled_dot_product_attention", namespace["scaled_dot_product_attention"]).passed


def test_the_command_line_hints_if_asked(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text("def merge_heads(x):\n    return x.mean(1)\n")
    assert not command.mark_file(file)
    assert "how:" not in capsys.readouterr().out
    assert not command.mark_file(file, hint=True)
    assert capsys.readouterr().out.splitlines()[-1].startswith("  how: ")
