"""What bad input gets: an error that names the argument, what came and what was wanted. Nothing changes."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mha import (
    MultiHeadAttention,
    causal_mask,
    merge_heads,
    padding_mask,
    scaled_dot_product_attention,
    split_heads,
)

X = torch.linspace(-1, 1, 96).view(3, 4, 8)  # (B, L, d_model)
HEADS = torch.linspace(-1, 1, 96).view(3, 2, 4, 4)  # (B, h, L, d_k)
LAYER = MultiHeadAttention(8, 2)


def case(call: Callable[[], object], error: type[Exception], *words: str, id: str) -> object:
    return pytest.param(call, error, words, id=id)


def state() -> list[Tensor]:
    """Everything that a call could have changed."""
    return [
        X.clone(),
        HEADS.clone(),
        *(p.detach().clone() for p in LAYER.parameters()),
        torch.get_rng_state(),
    ]


def refuses(call: Callable[[], object], error: type[Exception], words: tuple[str, ...]) -> None:
    before = state()
    with pytest.raises(error) as caught:
        call()
    assert caught.type is error
    for word in words:
        assert word in str(caught.value)
    assert all(torch.equal(x, old) for x, old in zip(state(), before))


SIZES = [
    case(
        lambda: MultiHeadAttention(10, 3),
        ValueError,
        "d_model=10 is not divisible by num_heads=3",
        id="remainder",
    ),
    case(
        lambda: MultiHeadAttention(2, 4),
        ValueError,
        "d_model=2 is not divisible by num_heads=4",
        id="too many",
    ),
    case(lambda: MultiHeadAttention(0, 1), ValueError, "d_model=0", "at least 1", id="d_model 0"),
    case(lambda: MultiHeadAttention(-8, 2), ValueError, "d_model=-8", "at least 1", id="d_model -8"),
    case(lambda: MultiHeadAttention(8, 0), ValueError, "num_heads=0", "at least 1", id="num_heads 0"),
    case(lambda: MultiHeadAttention(8, -2), ValueError, "num_heads=-2", "at least 1", id="num_heads -2"),
    case(
        lambda: MultiHeadAttention(8.0, 2), TypeError, "d_model=8.0 is a float", "integer", id="d_model float"
    ),
    case(
        lambda: MultiHeadAttention(8, 2.0),
        TypeError,
        "num_heads=2.0 is a float",
        "integer",
        id="num_heads float",
    ),
    case(lambda: MultiHeadAttention("8", 2), TypeError, "d_model='8' is a str", "integer", id="d_model str"),
    case(lambda: MultiHeadAttention(None, 2), TypeError, "d_model=None is a NoneType", id="d_model None"),
    case(
        lambda: MultiHeadAttention(True, 1), TypeError, "d_model=True is a bool", "integer", id="d_model bool"
    ),
    case(lambda: MultiHeadAttention(8, True), TypeError, "num_heads=True is a bool", id="num_heads bool"),
    case(
        lambda: MultiHeadAttention(8, np.True_),
        TypeError,
        "num_heads=",
        "is a bool",
        id="num_heads numpy bool",
    ),
    case(
        lambda: MultiHeadAttention(np.float64(8), 2), TypeError, "is a float64", "integer", id="numpy float"
    ),
    case(
        lambda: MultiHeadAttention(np.array([8, 8]), 2),
        TypeError,
        "is a ndarray",
        "integer",
        id="numpy array",
    ),
    case(
        lambda: MultiHeadAttention(torch.tensor(8), 2),
        TypeError,
        "d_model is a tensor",
        "d_model.item()",
        id="tensor",
    ),
    case(
        lambda: MultiHeadAttention(8, 2, dropout=-0.1),
        ValueError,
        "dropout=-0.1",
        "0 and 1",
        id="dropout < 0",
    ),
    case(
        lambda: MultiHeadAttention(8, 2, dropout=1.5), ValueError, "dropout=1.5", "0 and 1", id="dropout > 1"
    ),
    case(lambda: MultiHeadAttention(8, 2, dropout=float("nan")), ValueError, "dropout=nan", id="dropout nan"),
    case(
        lambda: MultiHeadAttention(8, 2, dropout="0.1"), TypeError, "dropout='0.1' is a str", id="dropout str"
    ),
    case(
        lambda: MultiHeadAttention(8, 2, dropout=True), TypeError, "dropout=True is a bool", id="dropout bool"
    ),
    case(
        lambda: MultiHeadAttention(8, 2, dropout=None), TypeError, "dropout=None", "number", id="dropout None"
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), SIZES)
def test_constructor_refuses_sizes_and_dropout_that_make_no_layer(call, error, words) -> None:
    refuses(call, error, words)


def test_numpy_numbers_are_numbers() -> None:
    layer = MultiHeadAttention(np.int64(8), np.int32(2), dropout=np.float32(0.25))
    assert (type(layer.d_model), type(layer.num_heads), layer.d_k) == (int, int, 4)
    assert layer.dropout.p == 0.25
    assert torch.equal(causal_mask(np.int64(3)), causal_mask(3))


def attend(Q: object = X, K: object = X, V: object = X, mask: object = None, **options: bool) -> object:
    return LAYER(Q, K, V, mask, **options)


SEQUENCES = [
    case(
        lambda: attend(Q=X[0]),
        ValueError,
        "Q has shape (4, 8)",
        "(B, L, d_model)",
        "Q.unsqueeze(0)",
        id="Q 2-D",
    ),
    case(lambda: attend(K=X[0]), ValueError, "K has shape (4, 8)", "K.unsqueeze(0)", id="K 2-D"),
    case(lambda: attend(V=X[0]), ValueError, "V has shape (4, 8)", "V.unsqueeze(0)", id="V 2-D"),
    case(
        lambda: attend(Q=X[None]), ValueError, "Q has shape (1, 3, 4, 8)", "3-D, (B, L, d_model)", id="Q 4-D"
    ),
    case(lambda: attend(Q=X[0, 0]), ValueError, "Q has shape (8,)", "3-D", id="Q 1-D"),
    case(lambda: attend(Q=X[..., :6]), ValueError, "Q has shape (3, 4, 6)", "d_model=8", id="Q narrow"),
    case(lambda: attend(V=X[..., :6]), ValueError, "V has shape (3, 4, 6)", "d_model=8", id="V narrow"),
    case(
        lambda: attend(V=X[:, :3]), ValueError, "K has length 4 and V has length 3", id="lengths of K and V"
    ),
    case(
        lambda: attend(K=X[:, :3]), ValueError, "K has length 3 and V has length 4", id="lengths of V and K"
    ),
    case(lambda: attend(K=X[:2]), ValueError, "Q has batch size 3 and K has 2", id="batch of K"),
    case(lambda: attend(V=X[:1]), ValueError, "Q has batch size 3 and V has 1", id="batch of V"),
    case(
        lambda: attend(K=X.double()),
        ValueError,
        "Q has dtype torch.float32 and K torch.float64",
        id="dtype of K",
    ),
    case(
        lambda: attend(V=X.half()),
        ValueError,
        "Q has dtype torch.float32 and V torch.float16",
        id="dtype of V",
    ),
    case(
        lambda: attend(*[X.double()] * 3),
        *(ValueError, "Q has dtype torch.float64 and the layer's W_q torch.float32"),
        id="dtype of the layer",
    ),
    case(
        lambda: attend(K=X.to("meta")),
        ValueError,
        "Q is on cpu and K on meta",
        "one device",
        id="device of K",
    ),
    case(lambda: attend(V=X.to("meta")), ValueError, "Q is on cpu and V on meta", id="device of V"),
    case(
        lambda: attend(*[X.to("meta")] * 3),
        *(ValueError, "Q is on meta and the layer's W_q on cpu"),
        id="device of the layer",
    ),
    case(lambda: attend(Q=X.tolist()), TypeError, "Q is a list", "tensor (B, L, d_model)", id="Q list"),
    case(lambda: attend(K=X.numpy()), TypeError, "K is a ndarray", "tensor", id="K array"),
    case(lambda: attend(V=None), TypeError, "V is a NoneType", "tensor", id="V None"),
    case(lambda: attend(Q=X.long()), TypeError, "Q has dtype torch.int64", "floating-point", id="Q integers"),
    case(lambda: attend(K=X > 0), TypeError, "K has dtype torch.bool", "floating-point", id="K bool"),
    case(
        lambda: attend(V=X.cfloat()),
        TypeError,
        "V has dtype torch.complex64",
        "floating-point",
        id="V complex",
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), SEQUENCES)
def test_layer_refuses_inputs_that_do_not_fit(call, error, words) -> None:
    refuses(call, error, words)


def test_autocast_lets_dtypes_differ_but_not_float64_which_it_leaves_alone() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attend(K=X.half())[0].dtype == torch.bfloat16
        words = ("Q has dtype torch.float32 and K torch.float64",)
        refuses(lambda: attend(K=X.double()), ValueError, words)


def test_dtypes_are_compared_on_a_device_without_autocast_too() -> None:
    layer, x = MultiHeadAttention(8, 2).to("meta"), X.to("meta")
    refuses(lambda: layer(x, x.double(), x), ValueError, ("Q has dtype torch.float32 and K torch.float64",))


def additive(fill: float) -> Tensor:
    return torch.zeros(4, 4).masked_fill(~causal_mask(4), fill)


MASKS = [
    case(
        lambda: attend(mask=torch.ones(4, 5)),
        ValueError,
        "mask has shape (4, 5)",
        "(3, 2, 4, 4)",
        id="too long",
    ),
    case(
        lambda: attend(mask=torch.ones(2, 4)),
        ValueError,
        "mask has shape (2, 4)",
        "(3, 2, 4, 4)",
        id="2 rows",
    ),
    case(
        lambda: attend(mask=torch.ones(3, 4)),
        *(ValueError, "mask has shape (3, 4)", "(3, 2, 4, 4)", "mask[:, None, None]: (3, 1, 1, 4)"),
        id="(B, Lk)",
    ),
    case(
        lambda: attend(mask=torch.ones(3, 4, 4)),
        *(ValueError, "mask has shape (3, 4, 4)", "mask[:, None]: (3, 1, 4, 4)"),
        id="(B, Lq, Lk)",
    ),
    case(
        lambda: attend(mask=torch.ones(6, 4, 4)), ValueError, "mask has shape (6, 4, 4)", id="(B·h, Lq, Lk)"
    ),
    case(
        lambda: attend(mask=torch.ones(1, 3, 2, 4, 4)), ValueError, "mask has shape (1, 3, 2, 4, 4)", id="5-D"
    ),
    case(
        lambda: attend(*[X[:, :3]] * 3, mask=padding_mask([3, 2, 1])[:, 0, 0]),
        *(ValueError, "mask has shape (3, 3)", "two ways", "mask[:, None, None]: (3, 1, 1, 3)"),
        id="(B, Lk) with B = Lq",
    ),
    case(
        lambda: attend(*[X[:2]] * 3, mask=causal_mask(4).expand(2, 4, 4)),
        *(ValueError, "mask has shape (2, 4, 4)", "two ways", "mask[:, None]: (2, 1, 4, 4)"),
        id="(B, Lq, Lk) with B = h",
    ),
    case(
        lambda: attend(mask=additive(-torch.inf)),
        ValueError,
        "mask holds -inf",
        "mask == 0",
        id="additive -inf",
    ),
    case(
        lambda: attend(mask=additive(-1e9)),
        ValueError,
        "mask holds -1000000000.0",
        "mask == 0",
        id="additive -1e9",
    ),
    case(lambda: attend(mask=additive(-torch.inf).half()), ValueError, "mask holds -inf", id="additive half"),
    case(
        lambda: attend(mask=additive(-10000).int()), ValueError, "mask holds -10000", id="additive integers"
    ),
    case(lambda: attend(mask=torch.full((4, 4), 0.5)), ValueError, "mask holds 0.5", "True or 1", id="0.5"),
    case(lambda: attend(mask=torch.full((4, 4), 2.0)), ValueError, "mask holds 2.0", id="2.0"),
    case(lambda: attend(mask=torch.full((4, 4), torch.nan)), ValueError, "mask holds nan", id="nan"),
    case(lambda: attend(mask=torch.full((4, 4), torch.inf)), ValueError, "mask holds inf", id="inf"),
    case(
        lambda: attend(mask=torch.ones(4, 4).cfloat()),
        TypeError,
        "mask has dtype torch.complex64",
        id="complex",
    ),
    case(lambda: attend(mask=[[True] * 4] * 4), TypeError, "mask is a list", "tensor", id="list"),
    case(lambda: attend(mask=np.ones((4, 4))), TypeError, "mask is a ndarray", "tensor", id="array"),
    case(lambda: attend(mask=False), TypeError, "mask is a bool", "tensor", id="flag"),
    case(
        lambda: attend(mask=torch.ones(4, 4, device="meta")),
        *(ValueError, "mask is on meta and the scores on cpu", "mask.to("),
        id="device",
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), MASKS)
def test_layer_refuses_masks_that_do_not_mean_what_they_seem_to(call, error, words) -> None:
    refuses(call, error, words)


def test_both_ways_through_the_layer_and_the_function_refuse_the_same_masks() -> None:
    for mask in (additive(-torch.inf), torch.ones(4, 5), torch.ones(3, 4, 4)):
        for call in (
            lambda mask=mask: attend(mask=mask, need_weights=False),
            lambda mask=mask: scaled_dot_product_attention(HEADS, HEADS, HEADS, mask),
        ):
            with pytest.raises(ValueError, match="mask h"):
                call()


def test_advice_for_an_additive_mask_gives_the_mask_that_was_meant() -> None:
    mask = additive(-torch.inf)
    assert torch.equal(attend(mask=(mask == 0))[1], attend(mask=causal_mask(4))[1])


def sdpa(Q: object = HEADS, K: object = HEADS, V: object = HEADS) -> object:
    return scaled_dot_product_attention(Q, K, V)


FUNCTIONS = [
    case(lambda: sdpa(Q=HEADS[0, 0, 0]), ValueError, "Q has shape (4,)", "(L, d_k)", id="Q 1-D"),
    case(lambda: sdpa(K=HEADS[..., :3]), ValueError, "Q has d_k=4 and K has d_k=3", id="d_k"),
    case(lambda: sdpa(*[HEADS[..., :0]] * 3), ValueError, "d_k=0", "at least 1", id="d_k 0"),
    case(
        lambda: sdpa(K=HEADS[:1]), ValueError, "Q has shape (3, 2, 4, 4) and K (1, 2, 4, 4)", id="batch of K"
    ),
    case(
        lambda: sdpa(V=HEADS[:, :1]),
        ValueError,
        "Q has shape (3, 2, 4, 4) and V (3, 1, 4, 4)",
        id="heads of V",
    ),
    case(lambda: sdpa(K=HEADS[:, 0]), ValueError, "and K (3, 4, 4)", "last two axes", id="axes of K"),
    case(lambda: sdpa(V=HEADS[:, :, :3]), ValueError, "K has length 4 and V has length 3", id="lengths"),
    case(lambda: sdpa(K=HEADS.double()), ValueError, "torch.float32 and K torch.float64", id="dtype of K"),
    case(lambda: sdpa(V=HEADS.to("meta")), ValueError, "Q is on cpu and V on meta", id="device of V"),
    case(lambda: sdpa(Q=HEADS.tolist()), TypeError, "Q is a list", "tensor", id="Q list"),
    case(
        lambda: sdpa(V=HEADS.long()), TypeError, "V has dtype torch.int64", "floating-point", id="V integers"
    ),
    case(
        lambda: split_heads(X, 3),
        ValueError,
        "d_model=8 is not divisible by num_heads=3",
        id="split remainder",
    ),
    case(lambda: split_heads(X, 0), ValueError, "num_heads=0", "at least 1", id="split 0"),
    case(lambda: split_heads(X, 2.0), TypeError, "num_heads=2.0 is a float", id="split float"),
    case(lambda: split_heads(X[0], 2), ValueError, "x has shape (4, 8)", "x.unsqueeze(0)", id="split 2-D"),
    case(
        lambda: split_heads(HEADS, 2),
        ValueError,
        "x has shape (3, 2, 4, 4)",
        "(B, L, d_model)",
        id="split 4-D",
    ),
    case(lambda: split_heads([1], 2), TypeError, "x is a list", "tensor (B, L, d_model)", id="split list"),
    case(lambda: merge_heads(X), ValueError, "x has shape (3, 4, 8)", "(B, h, L, d_k)", id="merge 3-D"),
    case(lambda: merge_heads(HEADS.numpy()), TypeError, "x is a ndarray", "(B, h, L, d_k)", id="merge array"),
    case(lambda: causal_mask(0), ValueError, "Lq=0", "at least 1", id="causal 0"),
    case(lambda: causal_mask(3, -1), ValueError, "Lk=-1", "at least 1", id="causal -1"),
    case(lambda: causal_mask(2.0), TypeError, "Lq=2.0 is a float", "integer", id="causal float"),
    case(lambda: causal_mask(3, True), TypeError, "Lk=True is a bool", "integer", id="causal bool"),
    case(lambda: causal_mask(torch.tensor(3)), TypeError, "Lq is a tensor", "Lq.item()", id="causal tensor"),
    case(lambda: causal_mask(X), TypeError, "Lq is a tensor", "integer", id="causal of x"),
    case(lambda: padding_mask([2, 5], 4), ValueError, "lengths=[2, 5]", "max_len=4", id="padding too long"),
    case(
        lambda: padding_mask([2, -1]), ValueError, "lengths=[2, -1]", "between 0 and", id="padding negative"
    ),
    case(
        lambda: padding_mask([2.0, 1.0]),
        TypeError,
        "lengths has dtype torch.float32",
        "integers",
        id="padding float",
    ),
    case(lambda: padding_mask([True, False]), TypeError, "lengths has dtype torch.bool", id="padding bool"),
    case(
        lambda: padding_mask([]),
        TypeError,
        "lengths has dtype torch.float32",
        "integers",
        id="padding empty list",
    ),
    case(lambda: padding_mask(3), ValueError, "lengths has shape ()", "1-D, (B)", id="padding number"),
    case(lambda: padding_mask([[2, 1]]), ValueError, "lengths has shape (1, 2)", "1-D", id="padding 2-D"),
    case(lambda: padding_mask("21"), TypeError, "lengths='21'", "row of integers", id="padding str"),
    case(lambda: padding_mask(None), TypeError, "lengths=None", "row of integers", id="padding None"),
    case(lambda: padding_mask([[1], [2, 3]]), TypeError, "lengths=[[1], [2, 3]]", id="padding ragged"),
    case(lambda: padding_mask([2, 1], 0), ValueError, "max_len=0", "at least 1", id="padding max_len 0"),
    case(lambda: padding_mask([2, 1], 2.0), TypeError, "max_len=2.0 is a float", id="padding max_len float"),
]


@pytest.mark.parametrize(("call", "error", "words"), FUNCTIONS)
def test_functions_refuse_arguments_that_do_not_fit(call, error, words) -> None:
    refuses(call, error, words)


def torch_layer(**options: object) -> Callable[[], object]:
    return lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, **options))


FOREIGN = [
    case(lambda: MultiHeadAttention.from_torch(LAYER), TypeError, "layer is a MultiHeadAttention", id="ours"),
    case(lambda: MultiHeadAttention.from_torch(None), TypeError, "layer is a NoneType", id="None"),
    case(
        lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention),
        *(TypeError, "layer is a type", "nn.MultiheadAttention"),
        id="the class",
    ),
    case(torch_layer(kdim=4), ValueError, "kdim=4", "embed_dim=8", id="kdim"),
    case(torch_layer(vdim=16), ValueError, "vdim=16", "embed_dim=8", id="vdim"),
    case(torch_layer(add_bias_kv=True), ValueError, "add_bias_kv=True", id="add_bias_kv"),
    case(torch_layer(add_zero_attn=True), ValueError, "add_zero_attn=True", id="add_zero_attn"),
    case(
        torch_layer(kdim=4, vdim=6, add_zero_attn=True),
        ValueError,
        "kdim=4, vdim=6, add_zero_attn",
        id="three",
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), FOREIGN)
def test_from_torch_refuses_what_it_cannot_take_over(call, error, words) -> None:
    with pytest.raises(error) as caught:
        call()
    assert caught.type is error
    assert all(word in str(caught.value) for word in words)


def test_from_torch_takes_kdim_and_vdim_that_change_nothing() -> None:
    theirs = nn.MultiheadAttention(8, 2, kdim=8, vdim=8)
    assert torch.equal(MultiHeadAttention.from_torch(theirs).W_o.weight, theirs.out_proj.weight)
