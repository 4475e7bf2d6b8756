"""Multi-head attention by hand: the one implementation that the course's notebooks import.

`import mha` loads torch and nothing heavier; `mha.plot`, `mha.pretrained`, `mha.check` and
`mha.toy_task` are imported when first used.
"""

from importlib import import_module
from types import ModuleType

from mha.attention import (
    MultiHeadAttention,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from mha.cache import KVCache, cached_attention
from mha.grouped import repeat_kv
from mha.masks import causal_mask, padding_mask
from mha.online import online_attention
from mha.parallel import head_shards
from mha.positions import alibi_bias, alibi_slopes, apply_rope, sinusoidal_encoding
from mha.pruning import ablate_heads, head_outputs, prune_heads

__all__ = [
    "KVCache",
    "MultiHeadAttention",
    "ablate_heads",
    "alibi_bias",
    "alibi_slopes",
    "apply_rope",
    "cached_attention",
    "causal_mask",
    "check",
    "head_outputs",
    "head_shards",
    "merge_heads",
    "online_attention",
    "padding_mask",
    "plot",
    "pretrained",
    "prune_heads",
    "repeat_kv",
    "scaled_dot_product_attention",
    "sinusoidal_encoding",
    "split_heads",
    "toy_task",
]

_ON_FIRST_USE = {"check", "plot", "pretrained", "toy_task"}


def __getattr__(name: str) -> ModuleType:
    if name in _ON_FIRST_USE:
        return import_module(f"mha.{name}")
    raise AttributeError(f"module 'mha' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
