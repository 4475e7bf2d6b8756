"""The real model: that it computes what transformers does, what its heads look at, and what bad text gets."""

import json
import os
import subprocess
import sys
from copy import deepcopy

import pytest
import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertForMaskedLM, BertModel

from mha import MultiHeadAttention, padding_mask, pretrained
from mha.pretrained import TextEncoder
from mha.weight_files import read_minilm

TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."
TEXTS = [TIRED, "Attention!", "", "Où est la bibliothèque? 你好 🙂"]


@pytest.fixture(scope="module")
def model() -> TextEncoder:
    return pretrained.load()


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return read_minilm()


@pytest.fixture(scope="module")
def reference(files) -> BertModel:
    config = BertConfig(**json.loads(files["config.json"]), attn_implementation="eager")
    with torch.device("meta"):
        bert = BertModel(config)
    bert = bert.to_empty(device="cpu")
    bert.embeddings.position_ids = torch.arange(512)[None]
    bert.embeddings.token_type_ids = torch.zeros(1, 512, dtype=torch.long)
    missing, unexpected = bert.load_state_dict(load_safetensors(files["model.safetensors"]), strict=False)
    assert missing == [] and set(unexpected) <= {"embeddings.position_ids"}
    return bert.eval()


# ---------------------------------------------------------------- what transformers computes


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_output_and_all_72_heads_are_those_of_transformers(model, reference, dtype, atol):
    mine, theirs = deepcopy(model).to(dtype), deepcopy(reference).to(dtype)
    ids, lengths = mine.tokenize(TEXTS)
    mask = padding_mask(lengths)
    with torch.no_grad():
        output, weights = mine(ids, mask)
        wanted = theirs(ids, mask[:, 0, 0].long(), output_attentions=True)
    for b, L in enumerate(lengths):  # what a padding token looks at is nobody's business
        layers = torch.stack([layer[b, :, :L] for layer in wanted.attentions])  # (layers, h, L, Lk)
        torch.testing.assert_close(weights[b, :, :, :L], layers, rtol=0, atol=atol)
        torch.testing.assert_close(output[b, :L], wanted.last_hidden_state[b, :L], rtol=0, atol=atol)


def test_a_text_of_all_512_positions_is_read_as_transformers_reads_it(model, reference):
    ids, _ = model.tokenize("far " * 510)
    assert ids.shape == (1, 512)
    with torch.no_grad():
        output, _ = model(ids)
        torch.testing.assert_close(output, reference(ids).last_hidden_state, rtol=0, atol=1e-5)


def test_similarities_are_those_that_sentence_transformers_documents(model):
    # From the quick start at sbert.net, made with the same weights.
    vectors = model.embed(
        ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    )
    wanted = torch.tensor([[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]])
    torch.testing.assert_close(vectors @ vectors.T, wanted, rtol=0, atol=1e-4)


# ---------------------------------------------------------------- read


def test_reading_gives_tokens_weights_of_every_head_and_output(model):
    reading = model.read(TIRED)
    tokens = ["[CLS]", "the", "animal", "didn", "'", "t", "cross", "the"]
    tokens += ["street", "because", "it", "was", "too", "tired", ".", "[SEP]"]
    assert reading.tokens == tokens
    assert reading.weights.shape == (6, 12, 16, 16)
    assert reading.output.shape == (16, 384)
    torch.testing.assert_close(reading.weights.sum(dim=-1), torch.ones(6, 12, 16))
    assert not reading.output.requires_grad


def test_the_layers_are_the_courses_own(model):
    assert [type(layer.attention) for layer in model.layers] == [MultiHeadAttention] * 6
    assert {(m.attention.d_model, m.attention.num_heads) for m in model.layers} == {(384, 12)}
    assert not any(module.training for module in model.modules())


def test_the_state_dict_holds_the_weights_that_the_model_was_loaded_with(model):
    tensors = pretrained.state_dict()
    layer = pretrained.load_bert_layer(tensors, 3, 12)
    x = torch.randn(1, 5, 384, generator=torch.Generator().manual_seed(0))
    expected, _ = model.layers[3].attention(x, x, x)
    assert torch.equal(layer(x, x, x)[0], expected)
    assert tensors["encoder.layer.3.attention.self.query.bias"].shape == (384,)


def test_layer_3_head_1_finds_what_it_stands_for_when_the_animal_is_tired(model):
    tired, wide = model.read([TIRED, WIDE])
    it, animal = tired.tokens.index("it"), tired.tokens.index("animal")
    assert tired.weights[3, 1, it, animal].item() == pytest.approx(0.68, abs=0.005)
    assert wide.weights[3, 1, it, animal] < 0.3
    assert tired.weights[5, 11, it, animal].item() == pytest.approx(0.67, abs=0.005)
    assert wide.weights[5, 11, it, animal].item() == pytest.approx(0.56, abs=0.005)


def test_layer_0_head_2_looks_at_the_previous_token(model):
    reading = model.read(TIRED)
    it = reading.tokens.index("it")
    assert reading.tokens[it - 1] == "because"
    assert reading.weights[0, 2, it, it - 1].item() == pytest.approx(1.00, abs=0.005)


def test_in_a_padded_batch_a_text_is_read_as_alone(model):
    together = model.read(TEXTS)
    assert len({len(reading.tokens) for reading in together}) == 4
    for text, reading in zip(TEXTS, together, strict=True):
        alone = model.read(text)
        assert reading.tokens == alone.tokens
        torch.testing.assert_close(reading.weights, alone.weights, rtol=0, atol=1e-5)
        torch.testing.assert_close(reading.output, alone.output, rtol=0, atol=1e-5)


def test_an_empty_text_is_its_two_special_tokens(model):
    reading = model.read("")
    assert reading.tokens == ["[CLS]", "[SEP]"]
    assert reading.weights.shape == (6, 12, 2, 2)


def test_a_list_gives_a_list_and_an_empty_list_an_empty_one(model):
    assert [reading.tokens[1] for reading in model.read(["tired"])] == ["tired"]
    assert model.read([]) == []
    assert model.embed([]).shape == (0, 384)


def test_texts_are_padded_to_the_longest_and_not_to_what_the_tokenizer_file_asks_for(model, files):
    assert json.loads(files["tokenizer.json"])["padding"]["strategy"] == {"Fixed": 128}
    ids, lengths = model.tokenize(["tired", "too tired"])
    assert ids.tolist() == [[101, 5458, 102, 0], [101, 2205, 5458, 102]]
    assert lengths.tolist() == [3, 4]


def test_a_text_with_more_tokens_than_positions_is_refused_and_never_cut(model):
    for read in (model.read, model.embed, model.tokenize):
        with pytest.raises(ValueError, match="^text has 513 tokens; cut it into parts of at most 512$"):
            read("far " * 511)
    with pytest.raises(ValueError, match=r"^text\[1\] has 600 tokens"):
        model.read(["near", "far " * 598])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (5, "text is a int; it has to be a string or a list of strings"),
        (b"tired", "text is a bytes"),
        (None, "text is a NoneType"),
        (["tired", 5], r"text\[1\] is a int; it has to be a string"),
        ([["tired"]], r"text\[0\] is a list"),
    ],
)
def test_what_is_not_text_is_named(model, text, message):
    for read in (model.read, model.embed, model.tokenize):
        with pytest.raises(TypeError, match=message):
            read(text)


# ---------------------------------------------------------------- embed


def test_an_embedding_is_the_direction_of_the_mean_over_real_tokens(model):
    vectors = model.embed(TEXTS)
    for vector, reading in zip(vectors, model.read(TEXTS), strict=True):
        mean = reading.output.mean(dim=0)
        torch.testing.assert_close(vector, mean / mean.norm(), rtol=0, atol=1e-5)
        assert vector.norm().item() == pytest.approx(1, abs=1e-5)


def test_an_embedding_of_one_text_is_one_vector(model):
    assert model.embed(TIRED).shape == (384,)
    torch.testing.assert_close(model.embed(TIRED), model.embed([WIDE, TIRED])[1], rtol=0, atol=1e-5)


# ---------------------------------------------------------------- dtypes, devices, gradients


def test_bfloat16_reads_the_same_within_its_precision(model):
    other = deepcopy(model).bfloat16()
    reading, embedding = other.read(TIRED), other.embed(TIRED)
    assert reading.weights.dtype == reading.output.dtype == embedding.dtype == torch.bfloat16
    torch.testing.assert_close(reading.weights.float(), model.read(TIRED).weights, rtol=0, atol=0.03)
    assert torch.cosine_similarity(embedding.float(), model.embed(TIRED), dim=0) > 0.999


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_it_reads_the_same(model):
    reading = deepcopy(model).cuda().read(TIRED)
    assert reading.weights.is_cuda
    torch.testing.assert_close(reading.weights.cpu(), model.read(TIRED).weights, rtol=0, atol=1e-3)


def test_forward_keeps_the_gradient_that_read_does_without(model):
    ids, _ = model.tokenize("tired")
    output, weights = model(ids)
    (gradient,) = torch.autograd.grad(output.sum() + weights.square().sum(), model.word_embeddings.weight)
    rows = gradient.abs().sum(dim=1).nonzero().flatten()
    assert rows.tolist() == sorted(ids[0].tolist())


# ---------------------------------------------------------------- other models, and files that are wrong


WORDS = {"[PAD]": 0, "[UNK]": 1, "too": 2, "tired": 3}


@pytest.fixture
def other(tmp_path):
    """Another model of the family, as transformers saves it, and its folder."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=4, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=6,
        max_position_embeddings=5, layer_norm_eps=1e-3, initializer_range=0.5, attn_implementation="eager",
    )  # fmt: skip
    bert = BertForMaskedLM(config).eval()
    bert.save_pretrained(tmp_path)
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_padding(length=4)
    tokenizer.enable_truncation(2)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return bert.bert, tmp_path


def test_another_model_is_read_from_its_folder(other):
    bert, folder = other
    reading = pretrained.from_folder(folder).read("too tired tired")
    wanted = bert(torch.tensor([[2, 3, 3]]), output_attentions=True)
    assert reading.tokens == ["too", "tired", "tired"]
    torch.testing.assert_close(reading.weights, torch.cat(wanted.attentions), rtol=0, atol=1e-5)
    torch.testing.assert_close(reading.output, wanted.last_hidden_state[0], rtol=0, atol=1e-5)


def test_load_refuses_another_model(other):
    with pytest.raises(
        ValueError, match=r"model\.safetensors from .* cut short, damaged, or of another model"
    ):
        pretrained.load(other[1])


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_file_of_another_model_that_is_cut_short_is_named(other, name):
    file = other[1] / name
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError, match=f"^{name} cannot be read, so it is damaged or cut short: "):
        pretrained.from_folder(other[1])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "roberta"),
        ("hidden_act", "gelu_new"),
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
    ],
)
def test_a_model_that_is_not_built_as_bert_is_refused(other, key, value):
    file = other[1] / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(ValueError, match=f"^config.json has {key}={value!r}; only "):
        pretrained.from_folder(other[1])


@pytest.mark.parametrize("text", ["{}", "[]"])
def test_a_config_without_the_number_of_heads_is_refused(other, text):
    (other[1] / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"^config\.json has no num_attention_heads$"):
        pretrained.from_folder(other[1])


def test_a_missing_tensor_of_another_model_is_named(other):
    file = other[1] / "model.safetensors"
    tensors = load_safetensors(file.read_bytes())
    del tensors["bert.encoder.layer.1.attention.self.key.bias"]
    save_file(tensors, file)
    with pytest.raises(ValueError, match=r"no 'bert\.encoder\.layer\.1\.attention\.self\.key\.bias'"):
        pretrained.from_folder(other[1])


# ---------------------------------------------------------------- what it must not do


QUIET = """
import sys
read = []
sys.addaudithook(lambda event, arguments: read.append((event, str(arguments[:1]))))
from mha import pretrained

late = {"safetensors", "tokenizers", "huggingface_hub", "transformers"}
assert not late & set(sys.modules), late & set(sys.modules)

def opened():
    names = ("model.zip", "model.safetensors", "tokenizer.json")
    return [path for event, path in read if event == "open" and any(name in path for name in names)]

assert not opened(), opened()
pretrained.load().read(["one", "two words"])
assert opened()
assert not {"huggingface_hub", "all_minilm_l6_v2"} & set(sys.modules)
assert not any(event.startswith("socket.") or event == "pickle.find_class" for event, _ in read)
"""


def test_importing_reads_nothing_and_loading_neither_prints_nor_leaves_a_file_nor_unpickles(tmp_path):
    changes = {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path), "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", QUIET], env=os.environ | changes, cwd=tmp_path, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert list(tmp_path.rglob("*")) == []
