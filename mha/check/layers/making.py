"""Making a layer from somebody else's class: each argument that it asks for gets what its name says."""

import inspect
import re
from collections.abc import Callable
from typing import Any

_MEANINGS = {  # what arguments and attributes are called, by what they mean
    "heads": r"(num|n)_?(attention_?|attn_?)?heads?|heads?|h|nh|head_(num|count)|encoder_attention_heads",
    "d_model": r"d_?(model|in|out)|(embed|model|hidden|hid|emb|input|in|out)(ding)?_?(dim|size)|d(im)?"
    r"|n_?embd?|num_hiddens|width|dim_?(in|out|model)|n_state|(in|out)_features|(key|value|query)_?(dim|size)|[qkv]_?dim",
    "d_k": r"d_?[kv]|d_?kv|(head|key|value)_?(dim|size)|d_?head|dim_head|attention_head_size",
    "dropout": r"(p_?|attn_?|attention_?|resid_?|hidden_?|proj_?|attention_probs_?|embd_?)?"
    r"(dropout|drop|pdrop)(_?(p|rate|prob))?|p",
    "Q": r"q|query|queries|x_?q|q_?in(put)?",
    "K": r"k|keys?|x_?k|k_?in(put)?",
    "V": r"v|values?|x_?v|v_?in(put)?",
    # Only of a config, or of what has to be given:
    "length": r"(block|max|max_seq|context|ctx|seq)_?(size|len|length)|n_(ctx|positions)"
    r"|(max_)?seq(uence)?_len(gth)?|max_position_embeddings|max_(seq|context)_len(gth)?",
    "key_heads": r"(num|n)_?(key_value|kv)_?heads?",
    "bias": r"((qkv|q|attn|attention|proj|use|add)_?)?bias|bias_?(qkv|attn)",
    "layers": r"(num|n)_?(hidden_?|decoder_?|encoder_?)?layers?",
    "scaled": r"scale_attn_weights|scaled?",
    "extra": r"(is|use|add|do|has|output|tie|reorder)_\w+|scale_attn_by_\w+|flash|causal|rotary",
}
_LENGTH = 64  # longer than any input on which a layer is tried


def means(what: str, name: str) -> bool:
    """Whether an argument of this name is a `what`: "heads", "d_model", "dropout", "Q" and so on."""
    return re.fullmatch(_MEANINGS[what], name, re.IGNORECASE) is not None


class Config:
    """Stands for a config of any kind: answers `config.n_embd` or `config["emb_dim"]` by what the name means.

    Raises:
        AttributeError, KeyError: for a name of unknown meaning, so that `getattr(config, name, None)` works.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float) -> None:
        self._values = {
            "heads": num_heads,
            "key_heads": num_heads,
            "d_model": d_model,
            "d_k": d_model // num_heads,
            "dropout": dropout,
            "length": _LENGTH,
            "bias": True,
            "layers": 2,
            "scaled": True,
            "extra": False,
        }
        self.asked: set[str] = set()  # what the layer wanted to know

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self.get(name)
        if value is None:
            raise AttributeError(f"the config that stands in for yours does not know {name!r}")
        return value

    def __getitem__(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """Return what the name asks for, else `default`."""
        what = next((what for what in self._values if means(what, name)), None)
        if what is None:
            return default
        self.asked.add(what)
        return self._values[what]


def asked_of(answer: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that a class is made with; none where it does not tell."""
    try:
        return list(inspect.signature(answer).parameters.values())
    except ValueError:
        return []


def is_optional(parameter: inspect.Parameter) -> bool:
    """Whether nothing need be given for it."""
    loose = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is not parameter.empty or parameter.kind in loose


def takes_a_config(answer: Callable[..., Any]) -> bool:
    """Whether the one thing that it has to be given holds all the sizes, such as nanoGPT's `config`."""
    required = [p for p in asked_of(answer) if not is_optional(p)]
    known = ("heads", "d_model", "d_k", "length")
    return len(required) == 1 and not any(means(what, required[0].name) for what in known)


def follows_the_exercise(answer: Callable[..., Any]) -> bool:
    """Whether it is made as answer(d_model, num_heads), as the exercise asks."""
    if takes_a_config(answer):
        return False
    return not any(means("length", p.name) for p in asked_of(answer) if not is_optional(p))


def make(answer: Callable[..., Any], d_model: int, num_heads: int, dropout: float | None = None) -> Any:
    """Make the layer, giving each argument that it asks for what its name says."""
    asked = asked_of(answer)
    if takes_a_config(answer):
        return answer(Config(d_model, num_heads, dropout or 0.0))
    keywords, unknown = {}, []
    for parameter in asked:
        name = parameter.name
        if means("heads", name):
            keywords[name] = num_heads
        elif means("d_model", name):
            keywords[name] = d_model
        elif means("dropout", name) and (dropout is not None or not is_optional(parameter)):
            keywords[name] = dropout or 0.0
        elif means("d_k", name) and (isinstance(parameter.default, int) or not is_optional(parameter)):
            keywords[name] = d_model // num_heads
        elif is_optional(parameter):
            continue
        elif means("length", name):
            keywords[name] = _LENGTH
        elif means("bias", name):
            keywords[name] = True
        else:
            unknown.append(name)
    sizes = {name for name in keywords if means("heads", name) or means("d_model", name)}
    if unknown or len(sizes) < 2 or any(p.kind is p.POSITIONAL_ONLY for p in asked):
        return answer(d_model, num_heads) if dropout is None else answer(d_model, num_heads, dropout=dropout)
    return answer(**keywords)


def has_dropout(answer: Callable[..., Any]) -> bool:
    """Whether a dropout can be asked for when it is made."""
    if takes_a_config(answer):
        config = Config(4, 2, 0.0)
        answer(config)
        return "dropout" in config.asked
    return any(means("dropout", p.name) for p in asked_of(answer))
