"""What bad input gets: an error that names the argument, what came and what was wanted.

Only shapes, types and devices are looked at, never values, so that a layer can still be traced.
"""

from numbers import Integral, Real

import torch
from torch import Tensor, nn


def check_size(name: str, value: object) -> None:
    """Raise unless `value` is an integer of at least 1."""
    if isinstance(value, Tensor):
        raise TypeError(f"{name} is a tensor; it has to be an integer: {name}.item()")
    if isinstance(value, bool) or not isinstance(value, Integral | torch.SymInt):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; it has to be an integer")
    if value < 1:
        raise ValueError(f"{name}={value} has to be at least 1")


def check_divisible(d_model: int, num_heads: int) -> None:
    """Raise unless `num_heads` is a size that divides `d_model`."""
    check_size("num_heads", num_heads)
    if d_model % num_heads:
        raise ValueError(f"d_model={d_model} is not divisible by num_heads={num_heads}")


def check_probability(name: str, value: object) -> None:
    """Raise unless `value` is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; it has to be a number")
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value} has to lie between 0 and 1")


def check_tensor(name: str, x: object, axes: tuple[str, ...], *, floating: bool | None = None) -> None:
    """Raise unless `x` is a tensor with these axes; `floating` asks for a float or an integer dtype."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; it has to be a tensor ({', '.join(axes)})")
    if x.ndim != len(axes):
        wanted = f"{name} has shape {tuple(x.shape)}; it has to be {len(axes)}-D, ({', '.join(axes)})"
        add = f". Add the {axes[0]} axis in front: {name}.unsqueeze(0)"
        raise ValueError(wanted + (add if x.ndim == len(axes) - 1 and x.ndim else ""))
    if floating is True and not x.is_floating_point():
        raise TypeError(f"{name} has dtype {x.dtype}; it has to be a floating-point tensor")
    if floating is False and (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool):
        raise TypeError(f"{name} has dtype {x.dtype}; it has to hold integers")


def check_heads(Q: object, K: object, V: object) -> None:
    """Raise unless Q (…, Lq, d_k), K (…, Lk, d_k) and V (…, Lk, d_v) can attend to one another."""
    for name, x in (("Q", Q), ("K", K), ("V", V)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; it has to be a tensor (B, h, L, d_k)")
        if x.ndim < 2:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; it has to end in (L, d_k)")
        if not x.is_floating_point():
            raise TypeError(f"{name} has dtype {x.dtype}; it has to be a floating-point tensor")
    if Q.size(-1) != K.size(-1) or Q.size(-1) == 0:
        raise ValueError(
            f"Q has d_k={Q.size(-1)} and K has d_k={K.size(-1)}; they have to be the same, and at least 1"
        )
    for name, x in (("K", K), ("V", V)):
        if x.shape[:-2] != Q.shape[:-2]:
            raise ValueError(
                f"Q has shape {tuple(Q.shape)} and {name} {tuple(x.shape)}; "
                "all but the last two axes have to agree"
            )
    _check_together(Q, K, V)


def check_sequences(Q: object, K: object, V: object, weight: Tensor) -> None:
    """Raise unless Q, K, V are (B, L, d_model) for the layer whose W_q has this `weight`."""
    d_model = weight.size(1)
    for name, x in (("Q", Q), ("K", K), ("V", V)):
        check_tensor(name, x, axes=("B", "L", "d_model"), floating=True)
        if x.size(-1) != d_model:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; its last axis has to be d_model={d_model}")
    for name, x in (("K", K), ("V", V)):
        if x.size(0) != Q.size(0):
            raise ValueError(f"Q has batch size {Q.size(0)} and {name} has {x.size(0)}; they have to agree")
    _check_together(Q, K, V)
    _check_same("Q", Q, "the layer's W_q", weight)


def check_torch_layer(layer: object) -> None:
    """Raise unless `layer` is an `nn.MultiheadAttention` with nothing but what the paper's layer has."""
    if not isinstance(layer, nn.MultiheadAttention):
        raise TypeError(f"layer is a {type(layer).__name__}; it has to be an nn.MultiheadAttention")
    extras = {
        f"kdim={layer.kdim}": layer.kdim != layer.embed_dim,
        f"vdim={layer.vdim}": layer.vdim != layer.embed_dim,
        "add_bias_kv=True": layer.bias_k is not None,
        "add_zero_attn=True": layer.add_zero_attn,
    }
    found = [name for name, present in extras.items() if present]
    if found:
        raise ValueError(
            f"layer was made with {', '.join(found)}; only kdim = vdim = embed_dim={layer.embed_dim}, "
            "without add_bias_kv and add_zero_attn, can be taken over"
        )


def _check_together(Q: Tensor, K: Tensor, V: Tensor) -> None:
    if K.size(-2) != V.size(-2):
        raise ValueError(
            f"K has length {K.size(-2)} and V has length {V.size(-2)}; every key needs its value"
        )
    _check_same("Q", Q, "K", K)
    _check_same("Q", Q, "V", V)


def _check_same(name: str, x: Tensor, other_name: str, other: Tensor) -> None:
    if x.device != other.device:
        raise ValueError(
            f"{name} is on {x.device} and {other_name} on {other.device}; move them to one device"
        )
    if x.dtype != other.dtype and not _autocast_unites(x, other):
        raise ValueError(f"{name} has dtype {x.dtype} and {other_name} {other.dtype}; they have to agree")


def _autocast_unites(x: Tensor, other: Tensor) -> bool:
    """Whether autocast will bring the two to one dtype by itself; it leaves float64 alone."""
    kind = x.device.type
    enabled = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return enabled and torch.float64 not in (x.dtype, other.dtype)
