"""The encoder of a BERT model, with `MultiHeadAttention` at the heart of each layer, made from its weights.

Sources: Devlin et al. 2019, "BERT"; post-norm layers as in Vaswani et al. 2017, section 3.1.
Shapes: B batch, L tokens, h heads.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mha._validate import check_probability, check_tensor
from mha.attention import MultiHeadAttention


def load_bert_layer(state_dict: Mapping[str, Tensor], layer: int, num_heads: int) -> MultiHeadAttention:
    """Copy the attention of one BERT layer, biases included, out of a state dict.

    Args:
        state_dict: that of any BERT model; its names may start with "bert.".
        layer: which layer, counted from 0.
        num_heads: h; the weights do not tell.

    Returns:
        the layer in evaluation mode, without dropout.

    Raises:
        TypeError, ValueError: if a tensor is missing or does not fit (the message names it), or num_heads
            does not divide d_model.
    """
    weights = _Weights(state_dict)
    part = f"encoder.layer.{layer}.attention"
    d_model = weights.rows(f"{part}.self.query.weight")
    with torch.device("meta"):  # no memory, and no draw from the global random state
        attention = MultiHeadAttention(d_model, num_heads, bias=True)
    weights.fill(attention.W_q, f"{part}.self.query")
    weights.fill(attention.W_k, f"{part}.self.key")
    weights.fill(attention.W_v, f"{part}.self.value")
    weights.fill(attention.W_o, f"{part}.output.dense")
    return attention.eval()


class BertEncoder(nn.Module):
    """Token ids in; a vector for each token out, and what every head of every layer looked at.

    It is made in evaluation mode, in the dtype and on the device of the weights, and has no dropout.

    Args:
        state_dict: that of any BERT model; its names may start with "bert.". Sizes are read off the shapes;
            what an encoder has no use for (the pooler, heads for training tasks) is left alone.
        num_heads: h; the weights do not tell.
        layer_norm_eps: what each LayerNorm adds to the variance.

    Raises:
        TypeError, ValueError: if a tensor is missing or does not fit (the message names it), or num_heads
            does not divide d_model.
    """

    def __init__(
        self, state_dict: Mapping[str, Tensor], num_heads: int, *, layer_norm_eps: float = 1e-12
    ) -> None:
        super().__init__()
        check_probability("layer_norm_eps", layer_norm_eps)
        weights = _Weights(state_dict)
        self.word_embeddings = weights.embedding("embeddings.word_embeddings")
        self.position_embeddings = weights.embedding("embeddings.position_embeddings")
        self.token_type_embeddings = weights.embedding("embeddings.token_type_embeddings")
        self.embeddings_norm = weights.layer_norm("embeddings.LayerNorm", layer_norm_eps)
        self.layers = nn.ModuleList(
            BertLayer(state_dict, layer, num_heads, layer_norm_eps=layer_norm_eps)
            for layer in range(weights.num_layers())
        )
        self.max_length = self.position_embeddings.num_embeddings
        self.eval()

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        *,
        need_weights: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Read token ids.

        Args:
            ids: (B, L), integers.
            mask: True or non-zero where a token *may attend*; broadcasts to (B, h, L, L). Padded ids need
                `padding_mask(lengths)`.
            token_types: 0 for tokens of the first text and 1 for those of the second, (B, L); 0 for all
                unless given.
            need_weights: False takes PyTorch's fused kernel, which never keeps the weights.

        Returns:
            output (B, L, d_model), and weights (B, layers, h, L, L) or None.

        Raises:
            TypeError, ValueError: for ids that the model has no embedding for, more tokens than it has
                positions, or a mask that does not fit.
        """
        _check_ids("ids", ids, self.word_embeddings)
        token_types = torch.zeros_like(ids) if token_types is None else token_types
        _check_ids("token_types", token_types, self.token_type_embeddings)
        if token_types.shape != ids.shape:
            raise ValueError(
                f"token_types has shape {tuple(token_types.shape)} and ids {tuple(ids.shape)}; "
                "they have to agree"
            )
        if ids.size(1) > self.max_length:
            raise ValueError(f"ids has shape {tuple(ids.shape)}; L has to be at most {self.max_length}")
        x = self.word_embeddings(ids) + self.token_type_embeddings(token_types)  # (B, L, d_model)
        x = x + self.position_embeddings(torch.arange(ids.size(1), device=ids.device))
        x = self.embeddings_norm(x)
        weights = []
        for layer in self.layers:
            x, layer_weights = layer(x, mask, need_weights=need_weights)  # (B, L, d_model), (B, h, L, L)
            weights.append(layer_weights)
        return x, torch.stack(weights, dim=1) if need_weights else None


class BertLayer(nn.Module):
    """Attention, then a feed-forward network; each is added to its input, and the sum normalised."""

    def __init__(
        self, state_dict: Mapping[str, Tensor], layer: int, num_heads: int, *, layer_norm_eps: float
    ) -> None:
        super().__init__()
        weights, part = _Weights(state_dict), f"encoder.layer.{layer}"
        self.attention = load_bert_layer(state_dict, layer, num_heads)
        self.attention_norm = weights.layer_norm(f"{part}.attention.output.LayerNorm", layer_norm_eps)
        d_model, d_ff = self.attention.d_model, weights.rows(f"{part}.intermediate.dense.weight")
        with torch.device("meta"):
            widen, narrow = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        weights.fill(widen, f"{part}.intermediate.dense")
        weights.fill(narrow, f"{part}.output.dense")
        self.feed_forward = nn.Sequential(widen, nn.GELU(), narrow)
        self.output_norm = weights.layer_norm(f"{part}.output.LayerNorm", layer_norm_eps)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, need_weights: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """(B, L, d_model) → (B, L, d_model), and the attention weights (B, h, L, L) or None."""
        attended, weights = self.attention(x, x, x, mask, need_weights=need_weights)
        x = self.attention_norm(x + attended)
        return self.output_norm(x + self.feed_forward(x)), weights


class _Weights:
    """A BERT state dict under one set of names; each tensor is looked at before it is used."""

    def __init__(self, state_dict: Mapping[str, Tensor]) -> None:
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"state_dict is a {type(state_dict).__name__}; it has to map names to tensors")
        self.prefix = "bert." if any(name.startswith("bert.") for name in state_dict) else ""
        self.tensors = {_modern(name.removeprefix(self.prefix)): x for name, x in state_dict.items()}

    def rows(self, name: str) -> int:
        return self._find(name).size(0)

    def num_layers(self) -> int:
        # Named encoder.layer.0.attention… and so on. Of none at all, layer 0 is the first to be missed.
        numbers = [int(name.split(".")[2]) for name in self.tensors if name.startswith("encoder.layer.")]
        return max(numbers, default=0) + 1

    def copy(self, name: str, shape: tuple[int, ...]) -> Tensor:
        x = self._find(name)
        if x.shape != shape:
            raise ValueError(
                f"state_dict['{self.prefix}{name}'] has shape {tuple(x.shape)}; it has to be {shape}"
            )
        return x.detach().clone()

    def fill(self, module: nn.Module, part: str) -> None:
        """Give a module that was made on the meta device copies of its part's tensors."""
        wanted = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        copies = {name: self.copy(f"{part}.{name}", shape) for name, shape in wanted.items()}
        module.load_state_dict(copies, assign=True)

    def embedding(self, part: str) -> nn.Embedding:
        name = f"{part}.weight"
        shape = self.rows(name), self.rows("embeddings.LayerNorm.weight")
        return nn.Embedding.from_pretrained(self.copy(name, shape), freeze=False)

    def layer_norm(self, part: str, eps: float) -> nn.LayerNorm:
        norm = nn.LayerNorm(self.rows("embeddings.LayerNorm.weight"), eps, device="meta")
        self.fill(norm, part)
        return norm

    def _find(self, name: str) -> Tensor:
        x = self.tensors.get(name)
        if x is None:
            raise ValueError(f"state_dict has no '{self.prefix}{name}'")
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim == 0:
            raise ValueError(
                f"state_dict['{self.prefix}{name}'] has to be a tensor of floating-point numbers"
            )
        return x


def _modern(name: str) -> str:
    # The first BERT checkpoints call a LayerNorm's weight and bias gamma and beta.
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _check_ids(name: str, ids: object, table: nn.Embedding) -> None:
    check_tensor(name, ids, axes=("B", "L"), floating=False)
    unknown = (ids < 0) | (ids >= table.num_embeddings)
    if not torch.compiler.is_compiling() and unknown.any():
        raise ValueError(
            f"{name} holds {ids[unknown][0].item()}; each has to lie between 0 and {table.num_embeddings - 1}"
        )
