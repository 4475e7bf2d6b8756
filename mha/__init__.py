"""Multi-head attention by hand: the one implementation that the course's notebooks import.

`import mha` loads torch and nothing heavier; `mha.plot` and `mha.pretrained` are imported when first used.
"""

from importlib import import_module
from types import ModuleType

from mha.attention import (
    MultiHeadAttention,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from mha.masks import causal_mask, padding_mask

__all__ = [
    "MultiHeadAttention",
    "causal_mask",
    "merge_heads",
    "padding_mask",
    "plot",
    "pretrained",
    "scaled_dot_product_attention",
    "split_heads",
]

_ON_FIRST_USE = {"plot", "pretrained"}


def __getattr__(name: str) -> ModuleType:
    if name in _ON_FIRST_USE:
        return import_module(f"mha.{name}")
    raise AttributeError(f"module 'mha' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
