"""The encoder against transformers' BertModel, on small random models, and what a wrong state dict gets."""

import re

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel

from mha import MultiHeadAttention, padding_mask
from mha.bert import BertEncoder, load_bert_layer

SMALL = {
    "vocab_size": 19,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 9,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-3,  # large enough to be seen if it got lost
    "initializer_range": 0.5,  # far from uniform attention
}


def theirs(kind: type = BertModel, **changes: object) -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(**(SMALL | changes), attn_implementation="eager")
    model = kind(config).double().eval()
    with torch.no_grad():
        for (
            parameter
        ) in model.parameters():  # biases and LayerNorms start as 0 and 1, which would hide mistakes
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def ours(model: BertModel) -> BertEncoder:
    config = model.config
    return BertEncoder(model.state_dict(), config.num_attention_heads, layer_norm_eps=config.layer_norm_eps)


def tokens(model: BertModel, B: int = 3, L: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    config = model.config
    ids = torch.randint(config.vocab_size, (B, L), generator=generator)
    return ids, torch.randint(config.type_vocab_size, (B, L), generator=generator)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_attention_heads": 1, "num_hidden_layers": 1},
        {"num_attention_heads": 12, "layer_norm_eps": 1e-12},
        {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 11, "intermediate_size": 8},
        {"type_vocab_size": 1, "max_position_embeddings": 7, "vocab_size": 5},
    ],
)
def test_output_and_every_layers_weights_are_those_of_transformers(changes):
    model = theirs(**changes)
    ids, token_types = tokens(model)
    lengths = torch.tensor([7, 1, 4])
    mask = padding_mask(lengths)
    output, weights = ours(model)(ids, mask, token_types)
    wanted = model(ids, mask[:, 0, 0].long(), token_types, output_attentions=True)
    assert weights.shape == (3, model.config.num_hidden_layers, model.config.num_attention_heads, 7, 7)
    torch.testing.assert_close(weights, torch.stack(wanted.attentions, dim=1), rtol=0, atol=1e-10)
    torch.testing.assert_close(output, wanted.last_hidden_state, rtol=0, atol=1e-10)


def test_without_mask_and_token_types_it_reads_all_tokens_as_one_text():
    model = theirs()
    ids, _ = tokens(model)
    torch.testing.assert_close(ours(model)(ids)[0], model(ids).last_hidden_state, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [BertForMaskedLM, BertForSequenceClassification])
def test_names_may_start_with_bert_and_the_heads_for_training_tasks_are_ignored(kind):
    model = theirs(kind)
    assert any(not name.startswith("bert.") for name in model.state_dict())
    ids, _ = tokens(model)
    torch.testing.assert_close(ours(model)(ids)[0], model.bert(ids).last_hidden_state, rtol=0, atol=1e-10)


def test_the_first_checkpoints_gamma_and_beta_are_weight_and_bias():
    model = theirs()
    norm = re.compile(r"LayerNorm\.(weight|bias)$")
    old = {"weight": "gamma", "bias": "beta"}
    state = {norm.sub(lambda m: f"LayerNorm.{old[m[1]]}", n): x for n, x in model.state_dict().items()}
    assert sum("gamma" in name for name in state) == 5
    ids, _ = tokens(model)
    encoder = BertEncoder(state, 3, layer_norm_eps=1e-3)
    assert torch.equal(encoder(ids)[0], ours(model)(ids)[0])


def test_load_bert_layer_puts_each_tensor_in_its_place():
    state = theirs().state_dict()
    layer = load_bert_layer(state, 1, 3)
    assert type(layer) is MultiHeadAttention
    assert (layer.d_model, layer.num_heads, layer.training) == (12, 3, False)
    places = {"self.query": "W_q", "self.key": "W_k", "self.value": "W_v", "output.dense": "W_o"}
    for theirs_, ours_ in places.items():
        for kind in ("weight", "bias"):
            mine = layer.get_parameter(f"{ours_}.{kind}")
            assert torch.equal(mine, state[f"encoder.layer.1.attention.{theirs_}.{kind}"])


def test_the_encoder_holds_the_layers_that_load_bert_layer_gives():
    model = theirs()
    for i, layer in enumerate(ours(model).layers):
        for name, x in load_bert_layer(model.state_dict(), i, 3).state_dict().items():
            assert torch.equal(layer.attention.state_dict()[name], x)


def test_weights_are_copies():
    state = theirs().state_dict()
    encoder = BertEncoder(state, 3)
    before = {name: x.clone() for name, x in encoder.state_dict().items()}
    for x in state.values():
        x.zero_()
    for name, x in encoder.state_dict().items():
        assert torch.equal(x, before[name])


def test_building_leaves_the_random_state_and_the_default_dtype_alone():
    state = theirs().float().state_dict()
    torch.manual_seed(7)
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        encoder = BertEncoder(state, 3)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
    assert {x.dtype for x in encoder.parameters()} == {torch.float32}
    assert {x.device.type for x in encoder.parameters()} == {"cpu"}


def test_every_missing_tensor_is_named():
    state = theirs(BertForMaskedLM).state_dict()
    needed = [n for n in state if n.startswith("bert.") and "position_ids" not in n]
    assert len(needed) == 5 + 16 * 2
    for name in needed:
        lacking = {n: x for n, x in state.items() if n != name}
        with pytest.raises(ValueError, match=re.escape(name)):
            BertEncoder(lacking, 3)


def test_every_tensor_of_another_shape_is_named_with_both_shapes():
    state = theirs().state_dict()
    for name, x in state.items():
        if name.startswith("pooler"):
            continue
        # One axis more: no size can be read off it that another tensor would then be blamed for.
        with pytest.raises(ValueError, match=re.escape(f"'{name}'] has shape {(*x.shape, 1)}; it has to be")):
            BertEncoder(state | {name: x[..., None]}, 3)


def test_a_tensor_that_is_too_short_is_an_error():
    state = theirs().state_dict()
    name = "encoder.layer.1.output.dense.weight"
    with pytest.raises(ValueError, match=re.escape(f"'{name}'] has shape (12, 19); it has to be (12, 20)")):
        BertEncoder(state | {name: state[name][:, :-1]}, 3)


@pytest.mark.parametrize("wrong", [torch.ones(12, dtype=torch.int8), torch.tensor(1.0), [1.0] * 12])
def test_what_is_no_tensor_of_numbers_is_named(wrong):
    state = theirs().state_dict() | {"embeddings.LayerNorm.bias": wrong}
    with pytest.raises(ValueError, match=r"'embeddings\.LayerNorm\.bias'\] has to be a tensor of floating"):
        BertEncoder(state, 3)


def test_a_layer_that_is_not_there_is_an_error():
    state = theirs().state_dict()
    with pytest.raises(ValueError, match=r"no 'encoder\.layer\.2\.attention\.self\.query\.weight'"):
        load_bert_layer(state, 2, 3)
    no_layers = {name: x for name, x in state.items() if "layer." not in name}
    with pytest.raises(ValueError, match=r"no 'encoder\.layer\.0\."):
        BertEncoder(no_layers, 3)


def test_a_module_is_no_state_dict():
    with pytest.raises(TypeError, match="state_dict is a BertModel; it has to map names to tensors"):
        BertEncoder(theirs(), 3)


def test_num_heads_that_do_not_divide_d_model_are_an_error():
    with pytest.raises(ValueError, match="d_model=12 is not divisible by num_heads=5"):
        BertEncoder(theirs().state_dict(), 5)


def test_layer_norm_eps_has_to_be_a_number():
    with pytest.raises(TypeError, match="layer_norm_eps='1e-12'"):
        BertEncoder(theirs().state_dict(), 3, layer_norm_eps="1e-12")


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (torch.zeros(1, 10, dtype=torch.long), ValueError, r"ids has shape \(1, 10\); L has to be at most 9"),
        (torch.tensor([[3, 19]]), ValueError, "ids holds 19; each has to lie between 0 and 18"),
        (torch.tensor([[-1, 3]]), ValueError, "ids holds -1"),
        (torch.tensor([3, 4]), ValueError, r"ids has shape \(2,\); .*ids\.unsqueeze\(0\)"),
        (torch.tensor([[3.0, 4.0]]), TypeError, "ids has dtype torch.float32; it has to hold integers"),
        ([[3, 4]], TypeError, "ids is a list"),
    ],
)
def test_ids_that_the_model_cannot_read_are_an_error(ids, error, message):
    with pytest.raises(error, match=message):
        ours(theirs())(ids)


def test_token_types_have_to_be_known_and_of_the_shape_of_ids():
    encoder, ids = ours(theirs()), torch.tensor([[3, 4]])
    with pytest.raises(ValueError, match="token_types holds 2; each has to lie between 0 and 1"):
        encoder(ids, None, torch.tensor([[0, 2]]))
    with pytest.raises(ValueError, match=r"token_types has shape \(2, 2\) and ids \(1, 2\)"):
        encoder(ids, None, torch.zeros(2, 2, dtype=torch.long))


def test_without_weights_the_output_is_the_same():
    model = theirs()
    ids, _ = tokens(model)
    mask = padding_mask([7, 2, 5])
    output, weights = ours(model)(ids, mask, need_weights=False)
    assert weights is None
    torch.testing.assert_close(output, ours(model)(ids, mask)[0], rtol=0, atol=1e-10)


def test_gradients_reach_every_parameter_that_was_used():
    model = theirs()
    encoder, (ids, _) = ours(model), tokens(model)
    encoder(ids)[0].square().sum().backward()
    for name, parameter in encoder.named_parameters():
        if "W_k.bias" in name:  # shifts all of a query's scores alike, which softmax does not see
            assert parameter.grad.abs().max() < 1e-10, name
        else:
            assert parameter.grad.abs().max() > 1e-6, name


@pytest.mark.parametrize("shape", [(0, 4), (2, 1), (2, 0)])
def test_empty_batches_and_single_tokens_go_through(shape):
    output, weights = ours(theirs())(torch.zeros(shape, dtype=torch.long))
    B, L = shape
    assert output.shape == (B, L, 12)
    assert weights.shape == (B, 2, 3, L, L)


@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 1e-4), (torch.bfloat16, 0.15), (torch.float16, 0.02)]
)
def test_other_dtypes_give_the_same_within_their_precision(dtype, atol):
    model = theirs()
    encoder, (ids, _) = ours(model), tokens(model)
    wanted, _ = encoder(ids)
    output, weights = encoder.to(dtype)(ids)
    assert output.dtype == weights.dtype == dtype
    torch.testing.assert_close(output.double(), wanted, rtol=0, atol=atol)


def test_autocast_gives_the_same_within_its_precision():
    model = theirs().float()
    encoder, (ids, _) = ours(model), tokens(model)
    wanted, _ = encoder(ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = encoder(ids)
    assert not torch.equal(output, wanted)
    torch.testing.assert_close(output.float(), wanted, rtol=0, atol=0.15)


def test_it_can_be_compiled_and_exported():
    model = theirs()
    encoder, (ids, _) = ours(model), tokens(model)
    mask = padding_mask([7, 2, 5])
    wanted = encoder(ids, mask)
    compiled = torch.compile(encoder, backend="eager", fullgraph=True)
    exported = torch.export.export(encoder, (ids, mask)).module()
    for way in (compiled, exported):
        for found, one in zip(way(ids, mask), wanted, strict=True):
            torch.testing.assert_close(found, one, rtol=0, atol=1e-10)
