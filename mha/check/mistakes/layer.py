"""What goes wrong in the layer as a whole: which weights meet which input, and what becomes of the heads."""

import torch
from torch import Tensor

from mha.check.catalogue import behaviour, mistake
from mha.check.exercises.attention import score, take
from mha.check.exercises.layer import (
    Inputs,
    linear,
    output,
    project_k,
    project_q,
    project_v,
    same_length,
)
from mha.check.weights import Projections

# ---------------------------------------------------------------- project


@mistake(
    "layer-not-transposed",
    "X @ W.weight in place of the nn.Linear itself",
    "Right shapes and wrong numbers in queries, keys and values.",
    "nn.Linear stores (out, in) and computes X @ W.T: call it, or transpose.",
    stage="project_q",
    also={
        "project_k": lambda inputs, w: linear(inputs[1], w.W_k.T, w.b_k),
        "project_v": lambda inputs, w: linear(inputs[2], w.W_v.T, w.b_v),
    },
)
def _(inputs: Inputs, w: Projections) -> Tensor:
    return linear(inputs[0], w.W_q.T, w.b_q)


def _other(id: str, title: str, effect: str, hint: str, stage: str, source: int, role: str) -> None:
    """Enter one of the ways to take the wrong input or the wrong matrix."""

    @mistake(id, title, effect, hint, stage=stage)
    def _(inputs: Inputs, w: Projections) -> Tensor:
        return linear(inputs[source], getattr(w, f"W_{role}"), getattr(w, f"b_{role}"))


_STAGES = {"q": ("project_q", 0, "queries"), "k": ("project_k", 1, "keys"), "v": ("project_v", 2, "values")}
for _role, (_stage, _source, _what) in _STAGES.items():
    for _taken in "qkvo".replace(_role, ""):
        _other(
            f"layer-{_what}-by-w_{_taken}",
            f"The {_what} are projected with W_{_taken}",
            f"W_{_role} is never used and gets no gradient.",
            f"project {_what} with W_{_role}.",
            _stage,
            _source,
            _taken,
        )
    for _from, _name in enumerate("QKV"):
        if _from != _source:
            _other(
                f"layer-{_what}-from-{_name}",
                f"The {_what} are made from {_name}",
                "Right for self-attention, where Q, K and V are one tensor; wrong for any other.",
                f"make {_what} from {'QKV'[_source]}.",
                _stage,
                _from,
                _role,
            )


@mistake(
    "layer-self-attention-only",
    "Keys and values are made from Q: the arguments K and V are ignored",
    "Right for self-attention; cross-attention looks at the wrong sequence.",
    "make keys from K and values from V.",
    stage="project_k",
    also={"project_v": lambda inputs, w: linear(inputs[0], w.W_v, w.b_v)},
)
def _(inputs: Inputs, w: Projections) -> Tensor:
    return linear(inputs[0], w.W_k, w.b_k)


@mistake(
    "layer-queries-and-keys-exchanged",
    "W_q projects the keys and W_k the queries",
    "The scores are those of the transposed question.",
    "W_q belongs to the queries, W_k to the keys.",
    stage="project_q",
    also={"project_k": lambda inputs, w: linear(inputs[1], w.W_q, w.b_q)},
)
def _(inputs: Inputs, w: Projections) -> Tensor:
    return linear(inputs[0], w.W_k, w.b_k)


_ORDERS = {  # which matrix projects queries, keys and values
    "qvk": "W_k projects the values and W_v the keys",
    "vkq": "W_q projects the values and W_v the queries",
    "kvq": "Queries, keys and values are projected by W_k, W_v and W_q",
    "vqk": "Queries, keys and values are projected by W_v, W_q and W_k",
}
for _order, _what in _ORDERS.items():

    @mistake(
        f"layer-projections-in-order-{_order}",
        _what,
        "It trains as well as any, but weights made elsewhere do not fit.",
        "queries by W_q, keys by W_k, values by W_v; three in one are cut in that order.",
        stage="project_q",
        also={
            "project_k": lambda i, w, r=_order[1]: linear(i[1], getattr(w, f"W_{r}"), getattr(w, f"b_{r}")),
            "project_v": lambda i, w, r=_order[2]: linear(i[2], getattr(w, f"W_{r}"), getattr(w, f"b_{r}")),
        },
    )
    def _(inputs: Inputs, w: Projections, _taken: str = _order[0]) -> Tensor:
        return linear(inputs[0], getattr(w, f"W_{_taken}"), getattr(w, f"b_{_taken}"))


@mistake(
    "layer-one-projection-for-all",
    "W_q projects queries, keys and values",
    "Scores are symmetric in self-attention; W_k and W_v get no gradient.",
    "three projections: W_q, W_k, W_v.",
    stage="project_k",
    also={"project_v": lambda inputs, w: linear(inputs[2], w.W_q, w.b_q)},
)
def _(inputs: Inputs, w: Projections) -> Tensor:
    return linear(inputs[1], w.W_q, w.b_q)


def _unprojected(id: str, what: str, stage: str, source: int) -> None:
    @mistake(
        id,
        f"The {what} are not projected",
        "A head can only use the numbers in its own columns of the input.",
        f"apply W_{what[0]} first.",
        stage=stage,
    )
    def _(inputs: Inputs, w: Projections) -> Tensor:
        return inputs[source]


for _role, (_stage, _source, _what) in _STAGES.items():
    _unprojected(f"layer-{_what}-not-projected", _what, _stage, _source)


# ---------------------------------------------------------------- lengths


@mistake(
    "layer-keys-with-lq",
    "Keys and values are viewed with the length of the queries",
    "Right for self-attention; an error, or mixed rows, where Lq ≠ Lk.",
    "take the length from the tensor that is cut: K.size(1).",
    stage="key_length",
)
def _(x: Tensor, Lq: int) -> Tensor:
    return x.view(x.size(0), Lq, x.size(-1))


@mistake(
    "layer-keys-cut-to-lq",
    "Keys and values beyond the length of the queries are dropped",
    "Right for self-attention; keys are lost where Lk is larger than Lq.",
    "use all keys.",
    stage="key_length",
)
def _(x: Tensor, Lq: int) -> Tensor:
    return x[:, :Lq]


# ---------------------------------------------------------------- a mask that nobody asked for


def _always_causal(id: str, title: str, effect: str, from_the_end: bool, finite: bool = False) -> None:
    # Where something is taken at all: with a cache, attention has to be causal.
    @mistake(id, title, effect, "mask only where a mask is given.", stage="score", also={"take": take})
    def _(Q: Tensor, K: Tensor) -> Tensor:
        scores = score(Q, K)
        shift = scores.size(-1) - scores.size(-2) if from_the_end else 0
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1 + shift)
        # Of more queries than keys, the first see nothing: NaN after -inf, all alike after a finite number.
        return scores.masked_fill(future, torch.finfo(scores.dtype).min if finite else float("-inf"))


_always_causal(
    "layer-always-causal",
    "It is causal without being asked: no query sees a later key",
    "PyTorch's layer is causal only with a mask, F.scaled_dot_product_attention with is_causal=True.",
    from_the_end=False,
)
_always_causal(
    "layer-always-causal-from-the-end",
    "It is causal without being asked, and takes the queries for the last positions",
    "Each query sees the keys up to its own place, counted from the end, though no mask was given.",
    from_the_end=True,
)
_always_causal(
    "layer-always-causal-finite",
    "It is causal without being asked, with a finite fill, the queries being the last positions",
    "Each query sees the keys up to its own place; one that is left with none attends to all evenly.",
    from_the_end=True,
    finite=True,
)


def _causal_shifted(id: str, title: str, effect: str, shift: int) -> None:
    """Enter a diagonal at the wrong place, in a layer that is causal by itself."""

    def future(scores: Tensor) -> Tensor:
        return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(shift)

    @mistake(
        id,
        title,
        effect,
        "a token sees itself and what stands before: block triu(diagonal=1), or keep tril().",
        stage="mask",
        also={
            "guard": lambda weights, mask: weights.masked_fill(future(weights), 0.0),
            "key_length": same_length,
        },
    )
    def _(scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(future(scores), float("-inf"))


_causal_shifted(
    "layer-causal-sees-next",
    "It is causal by itself, and a token sees the next one, too: one diagonal too generous",
    "The answer leaks: training looks perfect, generation is useless.",
    shift=2,
)


@mistake(
    "mask-large-number-added",
    "A large negative number is added to the scores where the mask blocks",
    "Right but for a query with nothing to see, which attends as if there were no mask.",
    "fill with the lowest number in place of adding, and set blocked weights to 0 after the softmax.",
    stage="mask",
    also={"guard": lambda weights, mask: weights},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + torch.zeros_like(scores).masked_fill(mask == 0, -1e4)


# ---------------------------------------------------------------- output


@mistake(
    "layer-no-output-projection",
    "W_o is not applied",
    "Each output column hears one head only, and W_o gets no gradient.",
    "return W_o(concat).",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return concat


@mistake(
    "layer-output-not-transposed",
    "The output is concat @ W_o.weight",
    "The right shape and wrong numbers.",
    "nn.Linear stores (out, in): call it, or use W_o.weight.T.",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return linear(concat, w.W_o.T, w.b_o)


@mistake(
    "layer-output-twice",
    "W_o is applied twice",
    "The right shape and wrong numbers.",
    "apply it once.",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return output(output(concat, inputs, w), inputs, w)


for _taken in "qkv":

    @mistake(
        f"layer-output-by-w_{_taken}",
        f"The output is projected with W_{_taken}",
        "W_o is never used and gets no gradient.",
        "the last projection is W_o.",
        stage="output",
    )
    def _(concat: Tensor, inputs: Inputs, w: Projections, _taken: str = _taken) -> Tensor:
        return linear(concat, getattr(w, f"W_{_taken}"), getattr(w, f"b_{_taken}"))


@mistake(
    "layer-residual-added",
    "The input Q is added to the output",
    "The residual connection belongs outside of the layer.",
    "return W_o(concat) alone.",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return output(concat, inputs, w) + inputs[0]


@mistake(
    "layer-output-normalised",
    "A LayerNorm is applied inside of the layer",
    "Every output row has mean 0 and variance 1.",
    "normalisation belongs outside of the layer.",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return torch.nn.functional.layer_norm(output(concat, inputs, w), concat.shape[-1:])


@mistake(
    "layer-add-and-norm",
    "The input is added to the output, and a LayerNorm applied, inside of the layer",
    "Every output row has mean 0 and variance 1: the block around the layer is in the layer.",
    "return W_o(concat) alone; x + attention(x) and its normalisation belong outside.",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return torch.nn.functional.layer_norm(output(concat, inputs, w) + inputs[0], inputs[0].shape[-1:])


def _normalised(inputs: Inputs) -> Inputs:
    Q, K, V = (torch.nn.functional.layer_norm(x, x.shape[-1:]) for x in inputs)
    return Q, K, V


@mistake(
    "layer-inputs-normalised",
    "A LayerNorm is applied to the inputs inside of the layer",
    "The size of the input makes no difference to the result.",
    "normalisation belongs outside of the layer.",
    stage="project_q",
    also={
        "project_k": lambda inputs, w: project_k(_normalised(inputs), w),
        "project_v": lambda inputs, w: project_v(_normalised(inputs), w),
    },
)
def _(inputs: Inputs, w: Projections) -> Tensor:
    return project_q(_normalised(inputs), w)


@mistake(
    "layer-activation-after-output",
    "A ReLU is applied to the output",
    "No output number is negative.",
    "the output is linear: return W_o(concat).",
    stage="output",
)
def _(concat: Tensor, inputs: Inputs, w: Projections) -> Tensor:
    return torch.relu(output(concat, inputs, w))


@mistake(
    "layer-activation-after-projections",
    "A ReLU is applied to queries, keys and values",
    "None of them is negative.",
    "the projections are linear.",
    stage="project_q",
    also={
        "project_k": lambda inputs, w: torch.relu(project_k(inputs, w)),
        "project_v": lambda inputs, w: torch.relu(project_v(inputs, w)),
    },
)
def _(inputs: Inputs, w: Projections) -> Tensor:
    return torch.relu(project_q(inputs, w))


# ---------------------------------------------------------------- give


@mistake(
    "give-in-a-list",
    "Output and weights come back in a list",
    "Code that tells a pair from a tensor by its type, isinstance(result, tuple), is misled.",
    "return output, weights: a tuple.",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> list[Tensor]:
    return [output, weights]


@mistake(
    "give-nothing",
    "Nothing comes back: the return is missing",
    "The result is None.",
    "return output, weights.",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> None:
    return None


@mistake(
    "give-weights-only",
    "Only the weights come back",
    "The result says where each query looks, not what it found there.",
    "return output, weights.",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> Tensor:
    return weights


@mistake(
    "give-weights-summed",
    "The weights come back summed over the heads",
    "One map is left of h, and its rows sum to h.",
    "return one map per head, (B, h, Lq, Lk).",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output, weights.sum(dim=1)


@mistake(
    "give-weights-of-one-head",
    "The weights of the first head only come back",
    "One map is left of h.",
    "return one map per head, (B, h, Lq, Lk).",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output, weights[:, 0]


# ---------------------------------------------------------------- what numbers of one call do not show


STATE_KEPT = behaviour(
    "layer-keeps-state",
    "state",
    "A call depends on the calls before it",
    "The same input gives another result the second time.",
    "keep nothing of a call in self that the next call reads.",
)
ARGUMENT_ORDER = behaviour(
    "layer-arguments-in-another-order",
    "signature",
    "forward takes its arguments in another order than Q, K, V",
    "Right if they are given by name; given by position, one takes the place of another.",
    "forward(self, Q, K, V, mask=None).",
)
LENGTH_FIRST = behaviour(
    "layer-length-first",
    "signature",
    "It takes the length first, (L, B, d_model), as nn.MultiheadAttention without batch_first does",
    "Given (B, L, d_model), a token attends to the tokens of other examples at its own place.",
    "exchange axes 0 and 1 of inputs and output; to mark it, do so in call=.",
)
MASK_OF_THREE_AXES = behaviour(
    "layer-mask-of-three-axes",
    "mask",
    "It adds an axis to the mask: it wants (B, Lq, Lk), without the axis of the heads",
    "A mask (B, 1, Lq, Lk) gets five axes, and lines the batch up with the heads.",
    "use the mask as it comes, (B, 1, Lq, Lk); to mark it as it is, give mask[:, 0] in call=.",
)
GRADIENT_CUT = behaviour(
    "layer-gradient-cut",
    "gradient",
    "The result is right, but its gradient is not",
    "Nothing before the cut is trained: a detach(), .data, .item(), no_grad() or a new tensor is in the way.",
    "compute with the tensors themselves from the inputs to the output.",
)
WEIGHTS_FROZEN = behaviour(
    "layer-weights-frozen",
    "gradient",
    "Weights are made with requires_grad=False",
    "They stay as they were drawn: no optimiser trains them.",
    "leave requires_grad as it is: nn.Linear and nn.Parameter set it.",
)
DROPOUT_NOT_AS_ASKED = behaviour(
    "layer-dropout-not-as-asked",
    "dropout",
    "Numbers are dropped also where dropout=0.0 was asked for",
    "The argument has no effect.",
    "hand the argument on: nn.Dropout(dropout).",
)
DROPOUT_BEFORE_SOFTMAX = behaviour(
    "layer-dropout-before-softmax",
    "dropout",
    "Dropout acts on the scores, before the softmax",
    "A dropped score is 0, not 'nothing': its key keeps weight, and each row still sums to 1.",
    "drop weights, after the softmax.",
)
DROPOUT_NOT_RESCALED = behaviour(
    "layer-dropout-not-rescaled",
    "dropout",
    "What dropout leaves is not scaled up by 1 / (1 - p)",
    "The layer is weaker in training than in evaluation.",
    "use nn.Dropout, which scales.",
)
NO_PARAMETERS = behaviour(
    "layer-no-parameters",
    "project",
    "The layer reports no parameters, or too few",
    "Layers in a plain Python list are invisible: an optimiser would not train them.",
    "assign them as attributes, or use nn.ModuleList.",
)
HEADS_SHARE = behaviour(
    "layer-heads-share-projection",
    "project",
    "All heads share one small projection, (d_k, d_k)",
    "Far fewer parameters; every head sees its part through the same matrix.",
    "project with (d_model, d_model) first and split afterwards.",
)
NOT_DIVISIBLE = behaviour(
    "layer-truncates-d_model",
    "split",
    "A d_model that num_heads does not divide is accepted, and numbers are dropped",
    "The last d_model % num_heads numbers of each token are lost without a word.",
    "raise a ValueError in __init__.",
)
DROPOUT_IN_EVAL = behaviour(
    "layer-dropout-in-eval",
    "dropout",
    "Dropout also acts in evaluation mode",
    "Two calls in eval() disagree.",
    "use nn.Dropout, or pass training=self.training (for F.scaled_dot_product_attention: dropout_p=0.0).",
)
DROPOUT_MISSING = behaviour(
    "layer-dropout-missing",
    "dropout",
    "The dropout that was asked for is never applied",
    "In training mode with dropout > 0 two calls agree.",
    "apply it to the weights: self.dropout(weights).",
)
