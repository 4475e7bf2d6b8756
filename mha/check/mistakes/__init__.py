"""The entries of the catalogue, a file for each group of stages."""

import gc
import importlib

_GROUPS = (
    "attention",
    "behaviour",
    "cache",
    "cross",
    "heads",
    "layer",
    "loading",
    "masks",
    "parallel",
    "positions",
    "pruning",
    "shapes",
    "specialisation",
    "tiles",
    "torch_api",
)

# So many small objects are made here that a full collection would start, and look through all of torch for
# nothing: that takes as long as the entries themselves.
_collects = gc.isenabled()
gc.disable()
try:
    for _group in _GROUPS:
        importlib.import_module(f"{__name__}.{_group}")
finally:
    if _collects:
        gc.enable()
