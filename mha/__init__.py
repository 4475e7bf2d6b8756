"""Multi-head attention by hand: the one implementation that the course's notebooks import.

`import mha` loads torch and nothing heavier; `mha.plot`, `mha.pretrained` and `mha.check`
are imported when first used.
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
from mha.positions import alibi_slopes, apply_rope

__all__ = [
    "KVCache",
    "MultiHeadAttention",
    "alibi_slopes",
    "apply_rope",
    "cached_attention",
    "causal_mask",
    "check",
    "merge_heads",
    "online_attention",
    "padding_mask",
    "plot",
    "pretrained",
    "repeat_kv",
    "scaled_dot_product_attention",
    "split_heads",
]

_ON_FIRST_USE = {"check", "plot", "pretrained"}


def __getattr__(name: str) -> ModuleType:
    if name in _ON_FIRST_USE:
        return import_module(f"mha.{name}")
    raise AttributeError(f"module 'mha' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
