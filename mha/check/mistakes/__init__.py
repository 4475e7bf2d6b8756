"""The entries of the catalogue, a file for each group of stages."""

from mha.check.mistakes import attention, heads, layer, masks

__all__ = ["attention", "heads", "layer", "masks"]
