"""Calling torch's own attention: what has to be turned round, and the inputs on which it is tried."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import mha
from mha.check.catalogue import Stage
from mha.check.exercise import Exercise, Probe, drawing_nothing, driven
from mha.check.exercises.inputs import qkv, random_mask, random_tensors
from mha.check.exercises.masks import causal, causal_sense


def torch_layer(layer: nn.MultiheadAttention) -> nn.MultiheadAttention:
    """The layer takes (B, L, d_model)."""
    return layer


def torch_input(x: Tensor, keep: Tensor | None) -> Tensor:
    """Tokens that are hidden stay as they are: the mask hides them."""
    return x


def torch_keys(keep: Tensor, num_heads: int) -> dict[str, Tensor]:
    """(B, L), True where a key may be looked at: for torch, True is 'ignore'."""
    return {"key_padding_mask": ~keep}


def torch_pairs(keep: Tensor, num_heads: int) -> dict[str, Tensor]:
    """(B, L, L): torch wants (B·h, L, L), the heads of one example together."""
    return {"attn_mask": (~keep).repeat_interleave(num_heads, dim=0)}


def torch_call(layer: nn.MultiheadAttention, x: Tensor, masks: Mapping[str, Any]) -> Any:
    """One map for each head comes back."""
    return layer(x, x, x, need_weights=True, average_attn_weights=False, **masks)


def torch_after(output: Tensor, weights: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """What was hidden was so within the layer: nothing is left to hide."""
    return output, weights


def torch_give(output: Tensor, weights: Tensor) -> Any:
    """Output first, weights second."""
    return output, weights


TORCH_MHA: dict[str, Stage] = {
    "torch_layer": torch_layer,
    "torch_input": torch_input,
    "torch_keys": torch_keys,
    "torch_pairs": torch_pairs,
    "torch_call": torch_call,
    "torch_after": torch_after,
    "torch_give": torch_give,
}


def torch_mha(
    s: Mapping[str, Stage], mha: nn.MultiheadAttention, x: Tensor, keep: Tensor | None = None
) -> Any:
    """Run the stages of a call of nn.MultiheadAttention."""
    masks: Mapping[str, Any] = {}
    if keep is not None:
        masks = s["torch_keys" if keep.ndim == 2 else "torch_pairs"](keep, mha.num_heads)
    x = s["torch_input"](x, keep)
    output, weights = s["torch_call"](s["torch_layer"](mha), x, masks)
    return s["torch_give"](*s["torch_after"](output, weights, keep))


def sdpa_keep(keep: Tensor | None) -> Tensor | None:
    """As it comes: True is 'may attend'."""
    return keep


def sdpa_join(keep: Tensor | None, causal: Tensor) -> Tensor:
    """Both have to allow it."""
    return causal if keep is None else keep & causal


def sdpa_mask(keep: Tensor) -> Tensor:
    """True is 'may attend' here and there."""
    return keep


def sdpa_call(Q: Tensor, K: Tensor, V: Tensor, keep: Tensor | None) -> Any:
    """The scale is left to torch."""
    return torch.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=keep)


TORCH_SDPA: dict[str, Stage] = {
    "sdpa_keep": sdpa_keep,
    "causal": causal,
    "causal_sense": causal_sense,
    "sdpa_join": sdpa_join,
    "sdpa_mask": sdpa_mask,
    "sdpa_call": sdpa_call,
}


def torch_sdpa(
    s: Mapping[str, Stage],
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    keep: Tensor | None = None,
    causal: bool = False,
) -> Any:
    """Run the stages of a call of F.scaled_dot_product_attention."""
    keep = s["sdpa_keep"](keep)
    if causal:
        keep = s["sdpa_join"](keep, s["causal_sense"](s["causal"](Q.size(-2), K.size(-2))))
    return s["sdpa_call"](Q, K, V, None if keep is None else s["sdpa_mask"](keep))


class _TorchLayer(nn.MultiheadAttention):
    """An `nn.MultiheadAttention` that can be compared with a copy of itself."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _TorchLayer) or self.training != other.training:
            return False
        mine, others = self.state_dict(), other.state_dict()
        return mine.keys() == others.keys() and all(torch.equal(x, others[name]) for name, x in mine.items())

    __hash__ = nn.MultiheadAttention.__hash__


def torch_layer_of(d_model: int, num_heads: int, seed: int) -> _TorchLayer:
    """Return an nn.MultiheadAttention without biases whose weights are those of the seed."""
    with torch.device("meta"):
        layer = _TorchLayer(d_model, num_heads, bias=False, batch_first=True)
    packed, out = random_tensors((3 * d_model, d_model), (d_model, d_model), seed=seed)
    state = {"in_proj_weight": packed.float() / 2, "out_proj.weight": out.float() / 2}
    layer.load_state_dict(state, assign=True)
    return layer.requires_grad_(False).eval()


def _call_torch_mha(layer: nn.MultiheadAttention, x: Tensor, keep: Tensor | None = None) -> Any:
    # The package's own layer, since it is that which the call has to agree with.
    layer = mha.MultiHeadAttention.from_torch(layer)
    if keep is None:
        return layer(x, x, x)
    return layer(x, x, x, keep[:, None, None] if keep.ndim == 2 else keep[:, None])


def _call_torch_sdpa(
    Q: Tensor, K: Tensor, V: Tensor, keep: Tensor | None = None, causal: bool = False
) -> Tensor:
    if causal:
        allowed = mha.causal_mask(Q.size(-2), K.size(-2))
        keep = allowed if keep is None else keep & allowed
    return mha.scaled_dot_product_attention(Q, K, V, keep)[0]


def _torch_mha_probes() -> list[Probe]:
    mha, one = torch_layer_of(12, 3, seed=1), torch_layer_of(4, 1, seed=2)
    x, batch, alike = random_tensors((1, 3, 4), (2, 5, 12), (3, 3, 12), seed=3)
    by_key = torch.ones(2, 5, dtype=torch.bool)
    by_key[0, 3:] = by_key[1, 1] = False
    by_pair = torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(4)) < 0.5
    by_pair |= torch.eye(5, dtype=torch.bool)
    by_pair[1, :, 4], by_pair[1, 4, 0] = False, True  # nobody may look at one token, which looks at another
    square = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    return [
        Probe("one example, one head", "torch_call", {"mha": one, "x": x.float()}),
        Probe("two examples, three heads", "torch_layer", {"mha": mha, "x": batch.float()}),
        Probe("a mask over keys, (B, L)", "torch_keys", {"mha": mha, "x": batch.float(), "keep": by_key}),
        Probe(
            "a mask over pairs, (B, L, L)", "torch_pairs", {"mha": mha, "x": batch.float(), "keep": by_pair}
        ),
        Probe(
            "a mask over keys, as many examples as tokens",
            "torch_keys",
            {"mha": mha, "x": alike.float(), "keep": square},
        ),
    ]


def _torch_sdpa_probes() -> list[Probe]:
    cross = {name: x.float() for name, x in qkv(2, 3, 4, 6, 5, 5).items()}
    square = {name: x.float() for name, x in qkv(2, 3, 4, 4, 5, 5).items()}
    alike = {name: x.float() for name, x in qkv(2, 4, 4, 4, 5, 5).items()}
    step = {**cross, "Q": cross["Q"][:, :, :1]}
    keep, no_keep = {"keep": random_mask(2, 4, 6)}, {"keep": None}
    empty = random_mask(2, 4, 6)
    empty[1, 0, 2] = False
    return [
        Probe("no mask", "sdpa_call", cross),
        Probe("a mask", "sdpa_mask", {**cross, **keep}),
        Probe("a square mask", "sdpa_mask", {**square, "keep": random_mask(2, 4, 4)}),
        Probe("a query with nothing to see", "sdpa_mask", {**cross, "keep": empty}),
        Probe("causal, as many keys as queries", "causal", {**square, **no_keep, "causal": True}),
        Probe("causal, more keys than queries", "causal", {**cross, **no_keep, "causal": True}),
        Probe("causal, one new query", "causal", {**step, **no_keep, "causal": True}),
        Probe("causal and a mask", "sdpa_join", {**cross, **keep, "causal": True}),
        Probe(
            "as many heads as tokens", "sdpa_join", {**alike, "keep": random_mask(2, 4, 4), "causal": True}
        ),
        Probe("not causal", "sdpa_mask", {**square, **no_keep, "causal": False}),
    ]


def _with_its_own_layer(answer: Any) -> Any:
    """Where make_torch_mha is written beside the answer, the layer is made by it."""
    make = getattr(answer, "__globals__", {}).get("make_torch_mha")

    def use(answer: Any, mha: nn.MultiheadAttention, x: Tensor, keep: Tensor | None = None) -> Any:
        own = drawing_nothing(make, mha.embed_dim, mha.num_heads)
        own.load_state_dict(mha.state_dict(), strict=False)
        return answer(own.requires_grad_(False).eval(), x, keep)

    return answer if make is None else driven(answer, use)


CALL_TORCH_MHA = Exercise(
    "call_torch_mha",
    "(mha, x, keep=None)",
    _call_torch_mha,
    TORCH_MHA,
    torch_mha,
    _torch_mha_probes,
    _with_its_own_layer,
)

CALL_TORCH_SDPA = Exercise(
    "call_torch_sdpa",
    "(Q, K, V, keep=None, causal=False)",
    _call_torch_sdpa,
    TORCH_SDPA,
    torch_sdpa,
    _torch_sdpa_probes,
)
