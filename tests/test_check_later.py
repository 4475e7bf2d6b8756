"""The later notebooks' exercises: right answers in any style pass, reported and other mistakes are named."""

import csv
import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mha
from mha.bert import load_bert_layer
from mha.check import CATALOGUE, EXERCISES
from mha.check.diagnose import mark
from mha.check.outcome import run, same

CASES = Path(__file__).parent / "mistakes"
LATER = [
    "shapes",
    "apply_rope",
    "alibi_slopes",
    "online_attention",
    "kv_cache",
    "cached_attention",
    "call_torch_mha",
    "call_torch_sdpa",
    "from_torch_mha",
    "load_bert_layer",
]

# What each reported case has to be named as; where two entries compute the same numbers, both are named.
NAMED = {
    "67": {"torch-mask-inverted"},
    "69": {"torch-batch-first-missing", "torch-input-transposed"},
    "70": {"torch-weights-averaged", "torch-give-averaged"},
    "72": {"sdpa-mask-inverted", "sdpa-mask-minus-inf-inverted"},
    "73": {"sdpa-is-causal", "causal-top-left"},
    "78": {"rope-neighbours-paired"},
    "79": {"rope-mixed-conventions"},
    "81": {"rope-exponent-halved", "rope-base-100"},  # 10000^(-i/d) is 100^(-2i/d)
    "85": {"cache-grows-in-heads"},
    "87": {"cache-appended-twice"},
    "88": {"cached-start-at-zero"},
    "92": {"causal-top-left"},
    "94": {
        "alibi-exponent-from-0",
        "alibi-no-interpolation",
        "alibi-slope-1-in-front",
        "alibi-from-0-in-front",
    },
    "96": {"tile-mix-not-shrunk"},
    "97": {"tile-mix-inverted"},
}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem, CASES / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases() -> list[dict[str, str]]:
    with (CASES / "cases.tsv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file, delimiter="\t") if row["id"] in NAMED]


def exercise_of(target: str):
    return EXERCISES["kv_cache" if target == "KVCache" else target]


def named(name: str, answer: object) -> set[str]:
    result = mark(EXERCISES[name], answer)
    assert not result.passed
    return {entry.id for entry in result.mistakes}


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_a_reported_mistake_is_named_as_what_it_is(case):
    result = mark(exercise_of(case["target"]), getattr(load(case["file"]), case["target"]))
    assert not result.passed
    assert {entry.id for entry in result.mistakes} == NAMED[case["id"]]


def test_every_reported_case_of_these_exercises_is_looked_at():
    with (CASES / "cases.tsv").open(encoding="utf-8", newline="") as file:
        targets = {row["id"]: row["target"] for row in csv.DictReader(file, delimiter="\t")}
    later = {*LATER, "KVCache"}
    assert {id for id, target in targets.items() if target in later} == NAMED.keys()


@pytest.mark.parametrize(
    "target",
    [
        "apply_rope",
        "alibi_slopes",
        "online_attention",
        "KVCache",
        "cached_attention",
        "call_torch_mha",
        "call_torch_sdpa",
        "from_torch_mha",
    ],
)
def test_another_persons_right_answer_passes(target):
    assert mark(exercise_of(target), getattr(load("correct.py"), target)).passed


@pytest.mark.parametrize("name", LATER)
def test_the_right_pipeline_is_the_package_on_every_probe(name):
    exercise = EXERCISES[name]
    for probe in exercise.probes():
        package = run(exercise.drive(exercise.reference), probe.arguments)
        stages = run(exercise.with_mistakes(), probe.arguments)
        assert package.error is None and stages.error is None, probe.shows
        assert same(package.value, stages.value), probe.shows


# ---------------------------------------------------------------- right answers in other styles


def rope_by_rotate_half(x, positions):
    d = x.size(-1)
    angles = torch.outer(positions.float(), 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d))
    angles = torch.cat((angles, angles), dim=-1)
    x1, x2 = x.chunk(2, dim=-1)
    return (x * angles.cos() + torch.cat((-x2, x1), dim=-1) * angles.sin()).to(x.dtype)


def rope_by_complex_numbers(x, positions):
    a, b = x.float().chunk(2, dim=-1)
    d = x.size(-1)
    angles = positions[:, None] * torch.exp(-math.log(10000) * torch.arange(0, d, 2) / d)
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1).to(x.dtype)


def alibi_by_recursion(n):
    def power_of_two(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return torch.tensor(power_of_two(n))
    closest = 2 ** math.floor(math.log2(n))
    extra = alibi_by_recursion(2 * closest)[0::2][: n - closest].tolist()
    return torch.tensor(power_of_two(closest) + extra)


def online_by_queries(Q, K, V, block):
    out = torch.empty(*Q.shape[:-1], V.size(-1), dtype=Q.dtype)
    for index in torch.cartesian_prod(*(torch.arange(n) for n in Q.shape[:-1])).tolist():
        b, h, i = index
        m, z, acc = -math.inf, 0.0, torch.zeros(V.size(-1), dtype=Q.dtype)
        for start in range(0, K.size(-2), block):
            s = K[b, h, start : start + block] @ Q[b, h, i] * Q.size(-1) ** -0.5
            new = max(m, s.max().item())
            p = (s - new).exp()
            z = z * math.exp(m - new) + p.sum()
            acc = acc * math.exp(m - new) + p @ V[b, h, start : start + block]
            m = new
        out[b, h, i] = acc / z
    return out


class ListCache:
    def __init__(self):
        self.steps = []

    def append(self, k, v):
        self.steps.append((k, v))
        return tuple(torch.cat(part, dim=-2) for part in zip(*self.steps, strict=True))

    def reset(self):
        self.steps = []

    def __len__(self):
        return sum(k.shape[-2] for k, _ in self.steps)


class PreallocatedCache:
    def __init__(self, max_len=64):
        self.max_len, self.n, self.k, self.v = max_len, 0, None, None

    def append(self, k, v):
        if self.n == 0:
            self.k = k.new_zeros(*k.shape[:2], self.max_len, k.size(3))
            self.v = v.new_zeros(*v.shape[:2], self.max_len, v.size(3))
        end = self.n + k.size(2)
        self.k[:, :, self.n : end], self.v[:, :, self.n : end] = k, v
        self.n = end
        return self.k[:, :, :end], self.v[:, :, :end]

    def reset(self):
        self.n = 0

    def __len__(self):
        return self.n


def cached_by_torch(q, k, v, cache):
    past = len(cache)
    at = past + torch.arange(q.size(2))
    keys, values = cache.append(mha.apply_rope(k, at), v)
    allowed = torch.arange(keys.size(2)) <= at[:, None]
    return F.scaled_dot_product_attention(mha.apply_rope(q, at), keys, values, attn_mask=allowed)


def torch_mha_by_float_masks(mha, x, keep=None):
    mask = None
    if keep is not None:
        keep = keep[:, None] if keep.dim() == 2 else keep
        keep = keep.expand(-1, x.size(1), -1)
        mask = torch.zeros(keep.shape).masked_fill(~keep, -math.inf)
        mask = mask[:, None].expand(-1, mha.num_heads, -1, -1).flatten(0, 1)
    return mha(x, x, x, attn_mask=mask, average_attn_weights=False)


def sdpa_by_float_mask(Q, K, V, keep=None, causal=False):
    bias = torch.zeros(Q.size(-2), K.size(-2))
    if causal:
        bias = bias.masked_fill(torch.ones_like(bias).triu(1 + K.size(-2) - Q.size(-2)).bool(), -math.inf)
    if keep is not None:
        bias = bias.masked_fill(~keep, -math.inf)
    return F.scaled_dot_product_attention(Q, K, V, attn_mask=bias)


def weights_by_slices(layer):
    d = layer.embed_dim
    W = layer.in_proj_weight
    return {"W_o": layer.out_proj.weight, "W_v": W[2 * d :], "W_k": W[d : 2 * d], "W_q": W[:d]}


def bert_by_state_dict(state_dict, layer, num_heads):
    start = next(name for name in state_dict if f"encoder.layer.{layer}.attention" in name)
    part = start[: start.index("attention")] + "attention."
    names = {"W_q": "self.query", "W_k": "self.key", "W_v": "self.value", "W_o": "output.dense"}
    made = mha.MultiHeadAttention(state_dict[part + "self.query.weight"].size(0), num_heads, bias=True)
    made.load_state_dict(
        {
            f"{ours}.{x}": state_dict[f"{part}{theirs}.{x}"]
            for ours, theirs in names.items()
            for x in ("weight", "bias")
        }
    )
    return made


def shapes_by_lists(B, L, D, h):
    x, head = [B, L, D], [B, h, L, D // h]
    return [x, x, head, torch.Size([B, h, L, L]), head, x, x]


@pytest.mark.parametrize(
    "name, answer",
    [
        ("apply_rope", rope_by_rotate_half),
        ("apply_rope", rope_by_complex_numbers),
        ("alibi_slopes", alibi_by_recursion),
        ("online_attention", online_by_queries),
        ("online_attention", lambda Q, K, V, block: F.scaled_dot_product_attention(Q, K, V)),
        ("kv_cache", ListCache),
        ("kv_cache", PreallocatedCache),
        ("cached_attention", cached_by_torch),
        ("call_torch_mha", torch_mha_by_float_masks),
        ("call_torch_sdpa", sdpa_by_float_mask),
        ("from_torch_mha", weights_by_slices),
        ("from_torch_mha", mha.MultiHeadAttention.from_torch),
        ("load_bert_layer", load_bert_layer),
        ("shapes", shapes_by_lists),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_right_answer_passes_in_any_style(name, answer):
    result = mark(EXERCISES[name], answer)
    assert result.passed, result.message


def test_that_a_layer_draws_its_weights_is_no_side_effect():
    result = mark(EXERCISES["load_bert_layer"], bert_by_state_dict)
    assert result.passed, result.message


# ---------------------------------------------------------------- wrong answers as people write them


class KeepsOldSequence(ListCache):
    def reset(self):
        steps = []  # noqa: F841  (a new name, not the attribute)


class CountsSteps(ListCache):
    def __len__(self):
        return len(self.steps)


class ReturnsNothing(ListCache):
    def append(self, k, v):
        self.steps.append((k, v))


def rope_in_place(x, positions):
    half = x.size(-1) // 2
    angles = positions[:, None] * 10000 ** (-torch.arange(half) / half)
    x = x.clone()
    x[..., :half] = x[..., :half] * angles.cos() - x[..., half:] * angles.sin()
    x[..., half:] = x[..., :half] * angles.sin() + x[..., half:] * angles.cos()
    return x


def rope_in_degrees_from_1(x, positions):
    return mha.apply_rope(x, torch.deg2rad((positions + 1).double()))


def online_forgets_scale_and_shrink(Q, K, V, block):
    m = torch.full_like(Q[..., :1], -math.inf)
    total, mix = torch.zeros_like(m), Q.new_zeros(*Q.shape[:-1], V.size(-1))
    for k, v in zip(K.split(block, -2), V.split(block, -2), strict=True):
        s = Q @ k.mT
        m = torch.maximum(m, s.amax(-1, keepdim=True))
        p = (s - m).exp()
        total, mix = total + p.sum(-1, keepdim=True), mix + p @ v
    return mix / total


def cached_rotates_values(q, k, v, cache):
    at = torch.arange(len(cache), len(cache) + q.size(2))
    q, k, v = (mha.apply_rope(x, at) for x in (q, k, v))
    k, v = cache.append(k, v)
    return mha.scaled_dot_product_attention(q, k, v, mha.causal_mask(q.size(2), k.size(2)))[0]


def torch_mha_repeats_the_batch(mha, x, keep=None):
    masks = {}
    if keep is not None:
        masks = (
            {"key_padding_mask": ~keep}
            if keep.ndim == 2
            else {"attn_mask": ~keep.repeat(mha.num_heads, 1, 1)}
        )
    return mha(x, x, x, average_attn_weights=False, **masks)


def bert_without_biases(state_dict, layer, num_heads):
    right = load_bert_layer(state_dict, layer, num_heads)
    made = mha.MultiHeadAttention(right.d_model, num_heads)
    made.load_state_dict({name: x for name, x in right.state_dict().items() if name.endswith("weight")})
    return made


@pytest.mark.parametrize(
    "name, answer, wanted",
    [
        ("kv_cache", KeepsOldSequence, {"cache-reset-does-nothing"}),
        ("kv_cache", CountsSteps, {"cache-length-of-steps"}),
        ("kv_cache", ReturnsNothing, {"cache-returns-nothing"}),
        ("apply_rope", rope_in_place, {"rope-new-a-used-for-b"}),
        ("apply_rope", rope_in_degrees_from_1, {"rope-degrees", "rope-positions-from-1"}),
        ("online_attention", online_forgets_scale_and_shrink, {"scale-missing", "tile-never-shrunk"}),
        ("cached_attention", cached_rotates_values, {"cached-values-rotated"}),
        ("call_torch_mha", torch_mha_repeats_the_batch, {"torch-pair-mask-tiled"}),
        ("load_bert_layer", bert_without_biases, {"bert-no-biases"}),
        (
            "shapes",
            lambda B, L, D, h: (
                ((B, L, D),) * 2 + ((B, h, L, D // h), (B, L, L), (B, h, L, D // h)) + ((B, L, D),) * 2
            ),
            {"shapes-weights-no-heads"},
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_answer_in_its_own_words_is_named(name, answer, wanted):
    assert wanted <= named(name, answer)


def test_a_cache_that_is_not_written_yet_is_no_mistake():
    class KVCache:
        """Keys and values of all tokens so far."""

        def append(self, k, v):
            """Add new tokens."""
            ...

        def reset(self): ...

        def __len__(self): ...

    result = mark(EXERCISES["kv_cache"], KVCache)
    assert (result.passed, result.attempted) == (False, False)


def test_what_is_no_class_is_explained():
    message = mark(EXERCISES["kv_cache"], lambda: None).message
    assert "it has to be a class KVCache with append(k, v), reset() and len()" in message


@pytest.mark.parametrize("name", ["from_torch_mha", "load_bert_layer", "call_torch_mha", "cached_attention"])
def test_a_wrong_number_of_arguments_is_explained(name):
    result = mark(EXERCISES[name], lambda: None)
    assert result.stage == "signature"
    assert f"it has to be a function {name}{EXERCISES[name].signature}" in result.message


def test_an_error_in_a_class_is_shown_with_its_own_line():
    class KVCache(ListCache):
        def append(self, k, v):
            return k.missing

    assert "return k.missing" in mark(EXERCISES["kv_cache"], KVCache).message


def test_a_cache_that_changes_what_it_gave_away_is_caught():
    class KVCache(ListCache):
        def append(self, k, v):
            for old_k, _ in self.steps:
                old_k.zero_()
            return super().append(k, v)

    assert not mark(EXERCISES["kv_cache"], KVCache).passed


def test_a_layer_of_ones_own_is_used_where_one_is_made():
    module = load("correct.py")
    module.make_torch_mha = lambda d_model, h: nn.MultiheadAttention(
        d_model, h, batch_first=True
    )  # with a bias
    assert mark(EXERCISES["call_torch_mha"], module.call_torch_mha).passed


@pytest.mark.parametrize("name", LATER)
def test_each_exercise_knows_many_mistakes(name):
    assert len(EXERCISES[name].mistakes) >= 15
    assert all(CATALOGUE[entry.id] is entry for entry in EXERCISES[name].mistakes)
