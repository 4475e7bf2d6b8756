"""What goes wrong between the scores and the output of a head."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from mha.check.catalogue import Stage, mistake
from mha.check.exercises.attention import ALONE, guard, score

# ---------------------------------------------------------------- take


@mistake(
    "take-keys-and-values-exchanged",
    "Keys and values are exchanged: the scores are made with V, and K is mixed",
    "Right only where K and V are one tensor.",
    "scores are made from Q and K; the weights mix V.",
    stage="take",
)
def _(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return Q, V, K


@mistake(
    "take-keys-as-values",
    "The keys are mixed in place of the values: weights @ K",
    "The weights are right; V has no influence on the output.",
    "the weights mix the values: weights @ V.",
    stage="take",
)
def _(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return Q, K, K


@mistake(
    "take-queries-as-values",
    "The queries are mixed in place of the values: weights @ Q",
    "The weights are right; V has no influence on the output, and there is an error where Lq ≠ Lk.",
    "the weights mix the values: weights @ V.",
    stage="take",
)
def _(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return Q, K, Q


@mistake(
    "take-first-example",
    "Keys and values of the first example serve for the whole batch",
    "The first example is right, the others look at the wrong sequence.",
    "leave the batch axis alone: no [0].",
    stage="take",
)
def _(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return Q, K[:1], V[:1].expand(Q.size(0), *V.shape[1:])


@mistake(
    "take-first-head",
    "Keys and values of the first head serve for all heads",
    "Head 0 is right; the others compare their queries with keys that are not theirs.",
    "leave the axis of the heads alone, or index it inside of the loop over heads.",
    stage="take",
)
def _(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return Q, K[:, :1], V[:, :1].expand(*V.shape[:1], Q.size(1), *V.shape[2:])


# ---------------------------------------------------------------- score


@mistake(
    "score-key-reshaped",
    "K is reshaped to (…, d_k, L) instead of transposed",
    "The scores compare a query with pieces of several keys. Shapes and row sums are right.",
    "reshape and view re-read memory in order and cannot swap axes: use K.transpose(-2, -1).",
    stage="score",
)
def _(Q: Tensor, K: Tensor) -> Tensor:
    return Q @ K.reshape(*K.shape[:-2], K.size(-1), K.size(-2))


@mistake(
    "score-key-all-axes-reversed",
    "K.T or K.transpose(1, 2) in place of K.transpose(-2, -1)",
    "With more than two axes, another pair of axes is swapped; mostly an error about shapes.",
    "only the last two axes change places: K.transpose(-2, -1).",
    stage="score",
)
def _(Q: Tensor, K: Tensor) -> Tensor:
    return Q @ K.transpose(1, 2)


@mistake(
    "score-of-queries",
    "The queries are compared with themselves: Q Qᵀ",
    "The scores are symmetric, and the keys have no influence.",
    "the second factor is the keys: Q @ K.transpose(-2, -1).",
    stage="score",
)
def _(Q: Tensor, K: Tensor) -> Tensor:
    return Q @ Q.transpose(-2, -1)


@mistake(
    "score-of-keys",
    "The keys are compared with themselves: K Kᵀ",
    "The scores are symmetric, and the queries have no influence.",
    "the first factor is the queries: Q @ K.transpose(-2, -1).",
    stage="score",
)
def _(Q: Tensor, K: Tensor) -> Tensor:
    return K @ K.transpose(-2, -1)


@mistake(
    "score-keys-ask",
    "Queries and keys are exchanged: K Qᵀ",
    "Rows are keys and columns queries, so each key shares out its attention over the queries.",
    "queries go on the rows: Q @ K.transpose(-2, -1).",
    stage="score",
)
def _(Q: Tensor, K: Tensor) -> Tensor:
    return K @ Q.transpose(-2, -1)


@mistake(
    "score-negative",
    "The scores have the wrong sign",
    "Each query looks most at the key that fits it least.",
    "a larger dot product means a better match: do not negate it.",
    stage="score",
)
def _(Q: Tensor, K: Tensor) -> Tensor:
    return -Q @ K.transpose(-2, -1)


@mistake(
    "score-cosine",
    "Queries and keys are scaled to length 1 first (cosine similarity)",
    "The weights are nearly uniform: no score is larger than 1.",
    "the score is the plain dot product; it is divided by √d_k and by nothing else.",
    stage="score",
)
def _(Q: Tensor, K: Tensor) -> Tensor:
    Q, K = (x / x.norm(dim=-1, keepdim=True) for x in (Q, K))
    return Q @ K.transpose(-2, -1)


@mistake(
    "score-not-transposed",
    "K is not transposed: Q @ K",
    "An error about shapes, unless there are as many keys as numbers in one.",
    "each query meets each key: Q @ K.transpose(-2, -1).",
    stage="score",
)
def _(Q: Tensor, K: Tensor) -> Tensor:
    return Q @ K


@mistake(
    "score-elementwise",
    "Queries and keys are multiplied number by number: Q * K",
    "Each query meets the key of its own place only, and nothing is summed.",
    "a score is a sum over the numbers: Q @ K.transpose(-2, -1).",
    stage="score",
)
def _(Q: Tensor, K: Tensor) -> Tensor:
    return Q * K


# ---------------------------------------------------------------- scale


@mistake(
    "scale-missing",
    "The scores are not divided by √d_k",
    "The weights are too peaked, more so the larger d_k is, and gradients vanish.",
    "divide the scores by math.sqrt(d_k) before the softmax.",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores


@mistake(
    "scale-by-d_k",
    "The scores are divided by d_k (the square root is missing)",
    "The weights are almost uniform.",
    "the divisor is the square root of d_k.",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores / d_k


@mistake(
    "scale-twice",
    "The scores are divided by √d_k twice",
    "The weights are almost uniform.",
    "divide once: either the queries or the scores.",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores / math.sqrt(d_k) / math.sqrt(d_k)


@mistake(
    "scale-multiplied",
    "The scores are multiplied by √d_k instead of divided",
    "The weights are nearly one-hot.",
    "the scale shrinks the scores: divide by √d_k, or multiply by d_k ** -0.5.",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores * math.sqrt(d_k)


@mistake(
    "scale-by-d_model",
    "The scores are divided by √d_model instead of √d_k",
    "The weights are too flat; right only with one head.",
    "a head compares d_k = d_model / h numbers: divide by the square root of that.",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores / math.sqrt(d_k * num_heads)


@mistake(
    "scale-by-length",
    "The scores are divided by the square root of the number of keys",
    "The weights grow flatter with the length of the sequence.",
    "the divisor is √d_k, the square root of the last axis of Q: Q.size(-1).",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores / math.sqrt(scores.size(-1))


@mistake(
    "scale-by-heads",
    "The scores are divided by the square root of the number of heads",
    "The weights depend on the number of heads in place of their size.",
    "the divisor is √d_k, the square root of the last axis of Q: Q.size(-1).",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores / math.sqrt(num_heads)


@mistake(
    "scale-8-hard-coded",
    "The scores are divided by 8, which is √64, whatever d_k is",
    "Right only for d_k = 64, the size in the paper.",
    "take d_k from the tensor: Q.size(-1).",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores / 8


@mistake(
    "scale-rounded-down",
    "√d_k is rounded to a whole number",
    "Right only where d_k is a square number.",
    "use math.sqrt(d_k), not int(...) and not //.",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores / math.isqrt(d_k)


@mistake(
    "scale-by-queries",
    "The scores are divided by the square root of the number of queries",
    "The weights grow flatter the more queries there are.",
    "the divisor is √d_k, the square root of the last axis of Q: Q.size(-1).",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores / math.sqrt(scores.size(-2))


@mistake(
    "scale-by-batch",
    "The scores are divided by the square root of the first axis of Q, the batch",
    "How peaked the weights are depends on the number of examples.",
    "the divisor is √d_k, the square root of the *last* axis of Q: Q.size(-1).",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores / math.sqrt(scores.size(0))


@mistake(
    "scale-by-twice-d_k",
    "The scores are divided by √(2·d_k)",
    "The weights are too flat.",
    "the divisor is √d_k; that two vectors are multiplied does not double it.",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores / math.sqrt(2 * d_k)


@mistake(
    "scale-square-root-of-all",
    "The root is taken of the whole: (scores / d_k) ** 0.5",
    "Negative scores become NaN.",
    "the root is of d_k alone: scores / d_k**0.5.",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return (scores / d_k) ** 0.5


@mistake(
    "scale-by-half-of-d_k",
    "The scores are divided by half of d_k: d_k ** 1/2 is (d_k ** 1) / 2",
    "Right for d_k = 4 only; the larger d_k is, the flatter the weights are.",
    "a power binds stronger than a division: d_k ** 0.5, d_k ** (1 / 2) or math.sqrt(d_k).",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores / (d_k / 2)


@mistake(
    "scale-by-d_k-and-2",
    "The scores are divided by d_k and by 2: scores / d_k ** 1/2 is scores / d_k / 2",
    "The weights are almost uniform.",
    "a power binds stronger than a division: d_k ** 0.5, d_k ** (1 / 2) or math.sqrt(d_k).",
    stage="scale",
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores / d_k / 2


@mistake(
    "scale-after-softmax",
    "The weights are divided by √d_k, after the softmax, and the scores are not",
    "Each row sums to 1/√d_k, and the weights are too peaked.",
    "divide the scores, before the softmax.",
    stage="scale",
    also={"softmax": lambda scores, d_k: torch.softmax(scores, dim=-1) / math.sqrt(d_k)},
)
def _(scores: Tensor, d_k: int, num_heads: int) -> Tensor:
    return scores


# ---------------------------------------------------------------- mask


def _as_it_comes(weights: Tensor, mask: Tensor) -> Tensor:
    return weights


@mistake(
    "mask-ignored",
    "The mask has no effect",
    "It is never used or not handed on, or masked_fill returned a new tensor that nobody kept.",
    "use it before the softmax. masked_fill returns a new tensor: assign it.",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores


def _without_diagonal(x: Tensor, mask: Tensor) -> Tensor:
    """Return what is blocked of (…, Lq, Lk), but for the diagonal."""
    return (mask == 0) & ~torch.eye(*x.shape[-2:], dtype=torch.bool)


@mistake(
    "mask-inverted",
    "The mask is read upside down: True as 'ignore'",
    "The weights are zero exactly where the mask says that a query may attend.",
    "here True means may attend: fill where mask == 0.",
    stage="mask",
    also={"guard": lambda weights, mask: weights.masked_fill(mask != 0, 0.0)},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask != 0, torch.finfo(scores.dtype).min)


@mistake(
    "mask-inverted-nan",
    "The mask is read upside down, and a query with nothing to see becomes NaN",
    "The weights are zero where the mask says may attend; a mask of all True gives NaN.",
    "here True means may attend: fill where mask == 0.",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask != 0, -math.inf)


@mistake(
    "mask-after-softmax",
    "The weights are multiplied by the mask after the softmax",
    "Masked weights are 0, but the rows no longer sum to 1.",
    "mask the scores before the softmax, so that the rest of the row shares the whole.",
    stage="mask",
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores


@mistake(
    "mask-fill-zero",
    "Masked scores are set to 0, or multiplied by it",
    "Masked keys keep weight: a score of 0 is not 'nothing', exp(0) is 1.",
    "fill with the lowest number or -inf, so that exp makes it 0.",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, 0.0)


@mistake(
    "mask-fill-tiny",
    "Masked scores are set to -1e-9 (where -1e9 was meant)",
    "Masked keys keep weight, as if their score were 0.",
    "1e-9 is nearly nothing: fill with the lowest number or -inf.",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, -1e-9)


@mistake(
    "mask-fill-plus-inf",
    "Masked scores are set to +inf (two minus signs cancel)",
    "Rows with a masked key become NaN.",
    "fill with float('-inf') or the lowest number.",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, math.inf)


@mistake(
    "mask-fill-plus-1e9",
    "Masked scores are set to +1e9 (the minus sign is missing)",
    "The queries look at nothing but what they must not see.",
    "fill with a very *negative* number.",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, 1e9)


@mistake(
    "mask-half-overflow",
    "Masked scores are set to -1e9, which float16 cannot hold",
    "Right in float32; an error or -inf in half precision.",
    "take the fill value from torch.finfo(scores.dtype).min.",
    stage="mask",
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, -1e9)


@mistake(
    "mask-empty-row-nan",
    "A query with nothing to see becomes NaN",
    "-inf alone leaves a row of nothing but -inf, and its softmax is 0 / 0.",
    "fill with the lowest finite number, and set blocked weights to 0 after the softmax.",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, -math.inf)


@mistake(
    "mask-empty-row-uniform",
    "A query with nothing to see attends evenly to what it must not see",
    "A large finite fill hides the problem: all scores of the row are equal.",
    "set blocked weights to 0 after the softmax.",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)


@mistake(
    "mask-empty-row-uniform-1e9",
    "A query with nothing to see attends evenly, and float16 cannot hold -1e9",
    "Two consequences of one fill value: a row with all keys masked is uniform, and half precision fails.",
    "take torch.finfo(scores.dtype).min, and set blocked weights to 0 after the softmax.",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, -1e9)


@mistake(
    "mask-added",
    "The mask is added to the scores as it is",
    "True adds 1 to a score; nothing is hidden.",
    "turn it into a fill: scores.masked_fill(mask == 0, lowest).",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + mask


@mistake(
    "mask-zero-times-inf",
    "-inf is multiplied by a mask of 0 and 1, and added: 0 times -inf is NaN",
    "Every query that may look anywhere becomes NaN.",
    "fill, do not multiply: scores.masked_fill(mask == 0, float('-inf')).",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + (mask == 0).to(scores.dtype) * -math.inf


@mistake(
    "mask-transposed",
    "The mask's query and key axes are exchanged",
    "With a causal mask each token sees the future and not the past.",
    "the mask is (…, Lq, Lk) like the scores: use it as it is.",
    stage="mask",
    also={"guard": lambda weights, mask: weights.masked_fill(mask.transpose(-2, -1) == 0, 0.0)},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask.transpose(-2, -1) == 0, torch.finfo(scores.dtype).min)


@mistake(
    "mask-of-first-example",
    "The first example's mask serves for the whole batch",
    "The first example is right; in the others what is hidden is what the first hides.",
    "leave the batch axis of the mask alone: no mask[0].",
    stage="mask",
    also={"guard": lambda weights, mask: weights.masked_fill(mask[:1] == 0, 0.0)},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask[:1] == 0, torch.finfo(scores.dtype).min)


@mistake(
    "mask-renormalised-nan",
    "The weights are masked after the softmax and divided by what is left",
    "Right as long as something is left; a query with nothing to see becomes 0 / 0 = NaN.",
    "mask the scores before the softmax, and set blocked weights to 0 after it.",
    stage="mask",
    also={
        "guard": lambda weights, mask: (
            weights * mask.to(weights.dtype) / (weights * mask.to(weights.dtype)).sum(dim=-1, keepdim=True)
        )
    },
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores


@mistake(
    "mask-sees-itself",
    "The diagonal is let through whatever the mask says",
    "A token that is hidden from itself, padding for instance, is seen.",
    "the mask alone says who may look at whom.",
    stage="mask",
    also={"guard": lambda weights, mask: weights.masked_fill(_without_diagonal(weights, mask), 0.0)},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(_without_diagonal(scores, mask), torch.finfo(scores.dtype).min)


@mistake(
    "mask-inverted-uniform",
    "The mask is read upside down, and a query that may see all attends evenly",
    "The weights are zero where the mask says may attend; a mask of all True gives 1/Lk.",
    "here True means may attend: fill where mask == 0.",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask != 0, torch.finfo(scores.dtype).min)


@mistake(
    "mask-inverted-1e9",
    "The mask is read upside down, and filled with -1e9, which float16 cannot hold",
    "The weights are zero where the mask says may attend; half precision raises an error.",
    "fill where mask == 0, with torch.finfo(scores.dtype).min.",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask != 0, -1e9)


@mistake(
    "mask-inverted-added",
    "-1e9 is added where a query may attend: scores + mask * -1e9",
    "The mask is read upside down: True as 'ignore', as in TensorFlow's tutorials.",
    "here True means may attend: fill where mask == 0.",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + mask * -1e9


@mistake(
    "mask-large-number-added-in-float32",
    "-1e9 is added in float32 where the mask blocks: (1 - mask.float()) * -1e9",
    "A query with nothing to see attends as if there were no mask; half precision turns into float32.",
    "fill with the lowest number of the scores' own dtype, and set blocked weights to 0.",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + (1 - mask.float()) * -1e9


@mistake(
    "mask-unsqueezed",
    "An axis is added to a mask that has all four: mask.unsqueeze(1)",
    "The result has five axes, or examples are taken for heads.",
    "use the mask as it comes: (B, 1, Lq, Lk).",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)


# ---------------------------------------------------------------- softmax


@mistake(
    "softmax-over-queries",
    "The softmax runs over the queries (dim=-2)",
    "The columns of the weights sum to 1, the rows do not.",
    "each query shares out one whole over the keys: dim=-1.",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return torch.softmax(scores, dim=-2)


@mistake(
    "softmax-over-heads",
    "The softmax runs over the heads (dim=1)",
    "For one query and key, the weights of all heads together sum to 1.",
    "each query shares out one whole over the keys: dim=-1.",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return torch.softmax(scores, dim=1)


@mistake(
    "softmax-over-batch",
    "The softmax runs over the batch (dim=0)",
    "What one example gets depends on the others.",
    "each query shares out one whole over the keys: dim=-1.",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return torch.softmax(scores, dim=0)


@mistake(
    "softmax-over-all",
    "The softmax runs over queries and keys together",
    "The whole map of a head sums to 1, each row to much less.",
    "each query shares out one whole over the keys: dim=-1.",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return torch.softmax(scores.flatten(-2), dim=-1).view_as(scores)


@mistake(
    "softmax-missing",
    "There is no softmax: the scores are used as weights",
    "Weights are negative or larger than 1, and rows sum to anything.",
    "weights = torch.softmax(scores, dim=-1).",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return scores


@mistake(
    "softmax-not-normalised",
    "exp without dividing by the sum",
    "All weights are positive, but rows do not sum to 1.",
    "divide by the sum over the keys, or call torch.softmax(scores, dim=-1).",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return scores.exp()


@mistake(
    "softmax-overflow",
    "exp of the scores without subtracting the largest first",
    "Right for small scores; large ones give inf / inf = NaN.",
    "subtract the row's largest score first, or call torch.softmax.",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    powers = scores.exp()
    return powers / powers.sum(dim=-1, keepdim=True)


@mistake(
    "softmax-log",
    "log_softmax in place of softmax",
    "The weights are negative: they are logarithms.",
    "use torch.softmax.",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return torch.log_softmax(scores, dim=-1)


@mistake(
    "softmax-sigmoid",
    "sigmoid in place of softmax",
    "Each weight lies between 0 and 1, but rows do not sum to 1.",
    "the keys share one whole: torch.softmax(scores, dim=-1).",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return torch.sigmoid(scores)


@mistake(
    "softmax-twice",
    "The softmax is applied twice",
    "The weights are nearly uniform.",
    "apply it once.",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return torch.softmax(torch.softmax(scores, dim=-1), dim=-1)


@mistake(
    "softmax-relu",
    "ReLU in place of softmax",
    "Weights are not bounded, many are 0, and rows sum to anything.",
    "the keys share one whole: torch.softmax(scores, dim=-1).",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return torch.relu(scores)


@mistake(
    "softmax-divided-by-sum",
    "The scores are divided by their sum; exp is missing",
    "Rows sum to 1, but weights can be negative or huge.",
    "exp first, then divide by the sum: torch.softmax(scores, dim=-1).",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return scores / scores.sum(dim=-1, keepdim=True)


@mistake(
    "softmax-largest-only",
    "The key with the largest score gets all the weight: argmax in place of softmax",
    "One value is copied, none are mixed, and no gradient reaches queries and keys.",
    "softmax is what its name says, a *soft* maximum: torch.softmax(scores, dim=-1).",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return torch.zeros_like(scores).scatter(-1, scores.argmax(dim=-1, keepdim=True), 1.0)


@mistake(
    "softmax-sum-over-queries",
    "exp is divided by the sum over the queries",
    "The columns of the weights sum to 1, the rows do not; large scores overflow.",
    "divide by the sum over the keys: dim=-1, or call torch.softmax.",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    powers = scores.exp()
    return powers / powers.sum(dim=-2, keepdim=True)


@mistake(
    "softmax-base-2",
    "Powers of 2 in place of powers of e",
    "The weights are too flat, as if the scores were multiplied by 0.69.",
    "softmax uses exp: torch.softmax(scores, dim=-1).",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return torch.softmax(scores * math.log(2), dim=-1)


@mistake(
    "softmax-rounded-up",
    "A small number is added to the sum before dividing: exp / (sum + 1)",
    "Rows sum to less than 1 (this is known as softmax-off-by-one).",
    "divide by the sum alone: torch.softmax(scores, dim=-1).",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return powers / (powers.sum(dim=-1, keepdim=True) + 1)


@mistake(
    "softmax-largest-of-all",
    "The largest of all scores is subtracted, not that of each row",
    "A row far below it becomes 0 / 0: max() without dim looks at the whole tensor.",
    "subtract scores.amax(dim=-1, keepdim=True), or use torch.softmax.",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    powers = (scores - scores.max()).exp()
    return powers / powers.sum(dim=-1, keepdim=True)


@mistake(
    "softmax-sum-of-all",
    "exp is divided by the sum over all numbers: sum() without dim",
    "All weights of all heads and examples add up to 1 together.",
    "each row is a whole of its own: sum(dim=-1, keepdim=True).",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    return scores.exp() / scores.exp().sum()


@mistake(
    "softmax-sum-and-largest-of-all",
    "Largest score and sum are taken over all numbers: max() and sum() without dim",
    "All weights of all heads and examples add up to 1 together.",
    "each row is a whole of its own: torch.softmax(scores, dim=-1).",
    stage="softmax",
)
def _(scores: Tensor, d_k: int) -> Tensor:
    powers = (scores - scores.max()).exp()
    return powers / powers.sum()


# ---------------------------------------------------------------- weigh and give


@mistake(
    "weigh-elementwise",
    "The weights are multiplied with V number by number",
    "Mostly an error about shapes; no mixing of values.",
    "a matrix product mixes the values: weights @ V.",
    stage="weigh",
)
def _(weights: Tensor, V: Tensor) -> Tensor:
    return weights * V


@mistake(
    "weigh-transposed",
    "The weights are transposed before they mix the values",
    "Each value is handed out by the weights of the wrong rows; an error where Lq ≠ Lk.",
    "rows of the weights belong to queries: weights @ V.",
    stage="weigh",
)
def _(weights: Tensor, V: Tensor) -> Tensor:
    return weights.transpose(-2, -1) @ V


@mistake(
    "weigh-values-as-queries",
    "In the einsum V has the letter of the queries: bhqk,bhqd->bhqd",
    "Nothing is mixed: each value is multiplied by what its row of weights sums to; an error where Lq ≠ Lk.",
    "V has the letter of the keys, over which the sum runs: bhqk,bhkd->bhqd, or weights @ V.",
    stage="weigh",
)
def _(weights: Tensor, V: Tensor) -> Tensor:
    return torch.einsum("bhqk,bhqd->bhqd", weights, V)


# Scores in another order of axes: a mask for (B, h, Lq, Lk) then meets the wrong ones.
_LAYOUTS = (
    ("queries-before-heads", "(B, Lq, h, Lk)", (0, 2, 1, 3)),
    ("heads-behind", "(B, Lq, Lk, h)", (0, 2, 3, 1)),
    ("heads-before-batch", "(h, B, Lq, Lk)", (1, 0, 2, 3)),
)


def _laid_out(id: str, shape: str, order: tuple[int, ...]) -> None:
    back = tuple(map(order.index, range(4)))

    def fill(x: Tensor, mask: Tensor, number: float) -> Tensor:
        return x.permute(order).masked_fill(mask == 0, number).permute(back)

    def give(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        return output, weights.permute(order)

    mistake(
        f"give-weights-{id}",
        f"The weights come back as {shape}",
        "The right numbers in another order: code that takes axis 1 for the heads takes another axis.",
        "return (B, h, Lq, Lk): stack heads with dim=1, or transpose.",
        stage="give",
        alone=True,
    )(give)
    mistake(
        f"mask-meets-{id}",
        f"Scores and weights are laid out as {shape}, and the mask meets the wrong axes",
        "Mostly an error about shapes: the mask is made for (B, h, Lq, Lk).",
        "lay the scores out as (B, h, Lq, Lk): einsum bhqd,bhkd->bhqk.",
        stage="mask",
        also={"guard": lambda weights, mask: fill(weights, mask, 0.0), "give": give},
        alone=True,
    )(lambda scores, mask: fill(scores, mask, torch.finfo(scores.dtype).min))


for _id, _shape, _order in _LAYOUTS:
    _laid_out(_id, _shape, _order)


@mistake(
    "give-weights-transposed",
    "The output is right, but the weights come back as (key, query)",
    "Heatmaps have their axes exchanged.",
    "return the weights as they are: queries on axis -2, keys on axis -1.",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output, weights.transpose(-2, -1)


@mistake(
    "give-exchanged",
    "Output and weights come back in the wrong order",
    "Whoever unpacks them takes one for the other.",
    "return output, weights.",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return weights, output


@mistake(
    "give-averaged",
    "The weights come back averaged over the heads",
    "One map is left of h, and no head can be told from another.",
    "return one map per head, (B, h, Lq, Lk).",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output, weights.mean(dim=1)


@mistake(
    "give-scores",
    "The scores come back in place of the weights",
    "The output is right; the heatmaps show numbers that are no weights.",
    "return what the softmax gave.",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output, scores


@mistake(
    "give-weights-from-before-the-mask",
    "The weights come back as they were before the mask",
    "The output is right; the heatmaps show weight on what no query may see.",
    "return the weights that mixed the values.",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output, torch.softmax(scores, dim=-1)


for _id, _title, _wrong in (
    ("log", "The logarithm of the weights comes back", lambda weights: weights.log()),
    ("largest-key", "The number of the key with the largest weight comes back", lambda w: w.argmax(-1)),
    ("maximum", "The largest weight of all heads comes back", lambda weights: weights.amax(1)),
    ("times-100", "The weights come back in per cent", lambda weights: weights * 100),
    ("of-first-query", "The weights of the first query only come back", lambda weights: weights[..., 0, :]),
    ("of-last-query", "The weights of the last query only come back", lambda weights: weights[..., -1, :]),
    ("summed-over-queries", "The weights come back summed over the queries", lambda weights: weights.sum(-2)),
    ("averaged-over-queries", "The weights come back averaged over the queries", lambda w: w.mean(-2)),
    (
        "averaged-kept",
        "The weights come back averaged over the heads, (B, 1, Lq, Lk)",
        lambda w: w.mean(1, True),
    ),
    (
        "squeezed",
        "Axes of size 1 are taken away from the weights: squeeze()",
        lambda weights: weights.squeeze(),
    ),
):
    mistake(
        f"give-weights-{_id}",
        _title,
        "The output is right; what comes with it is no map of who looks where.",
        "return the weights as the softmax made them, (B, h, Lq, Lk).",
        stage="give",
        alone=True,
    )(lambda output, weights, scores, f=_wrong: (output, f(weights)))


@mistake(
    "give-as-float32",
    "The result comes back in float32, whatever the inputs are",
    "Half precision does not stay half, and float64 loses digits.",
    "leave the dtype alone: no .float().",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output.float(), weights.float()


# ---------------------------------------------------------------- the function by itself
#
# What follows is looked for by itself only, not in pairs. What no layer shows, as it would be an error of the
# next stage there, replaces a stage that no layer has, by the right one.


# With four heads √d_model is 2·√d_k, and √h is half of d_k, rounded down.
_LIKE_ANOTHER_IN_A_LAYER = ("softmax-temperature-2", "scale-by-whole-half-of-d_k")
_RIGHT_IN_A_LAYER = ("scale-by-values",)  # whose values are as wide as its keys
_OF_NUMBERS = ("mask-of-numbers-added", "mask-of-numbers-added-then-hidden")  # cross-attention makes bools


def _alone(
    id: str,
    title: str,
    effect: str,
    hint: str,
    stage: str,
    wrong: Stage,
    also: dict[str, Stage] | None = None,
) -> None:
    shown_by_a_layer = stage not in ("take", "give") and id not in (
        _LIKE_ANOTHER_IN_A_LAYER + _RIGHT_IN_A_LAYER + _OF_NUMBERS
    )
    in_function = {} if shown_by_a_layer else {"attention_give": ALONE["attention_give"]}
    mistake(id, title, effect, hint, stage=stage, also=in_function | (also or {}), alone=True)(wrong)


for _id, _title, _effect, _wrong in (
    (
        "heads-mixed",
        "Each query meets the keys of all heads, added up",
        "The heads' letter differs between Q and K in the einsum: bhqd, bgkd.",
        lambda Q, K: score(Q, K.sum(1, keepdim=True)),
    ),
    (
        "examples-mixed",
        "Each query meets the keys of all examples, added up",
        "The letter of the batch differs between Q and K in the einsum: bhqd, chkd.",
        lambda Q, K: score(Q, K.sum(0, keepdim=True)),
    ),
    (
        "distance",
        "The score is the distance between query and key",
        "The query looks most at the key that is farthest from it.",
        torch.cdist,
    ),
    (
        "minus-distance",
        "The score is minus the distance between query and key",
        "The length of a key counts for another thing than in a dot product.",
        lambda Q, K: -torch.cdist(Q, K),
    ),
    (
        "minus-squared-distance",
        "The score is minus the squared distance between query and key",
        "The length of a key counts against it.",
        lambda Q, K: -(torch.cdist(Q, K) ** 2),
    ),
    (
        "absolute",
        "The sign of the scores is dropped",
        "A key that is opposite to the query counts as much as one that fits it.",
        lambda Q, K: score(Q, K).abs(),
    ),
    (
        "not-negative",
        "Negative scores are set to 0",
        "All keys that do not fit count the same.",
        lambda Q, K: score(Q, K).relu(),
    ),
    (
        "squared",
        "The scores are squared",
        "A key that is opposite to the query counts as much as one that fits it.",
        lambda Q, K: score(Q, K) ** 2,
    ),
    (
        "keys-up-to-Lq",
        "Only as many keys are looked at as there are queries; the scores of the others stay -inf",
        "The loop over the keys runs to the number of queries; right where Lq = Lk.",
        lambda Q, K: score(Q, K).index_fill(-1, torch.arange(Q.size(-2), K.size(-2)), -math.inf),
    ),
    (
        "keys-up-to-Lq-zero",
        "Only as many keys are looked at as there are queries; the scores of the others stay 0",
        "The loop over the keys runs to the number of queries; right where Lq = Lk.",
        lambda Q, K: score(Q, K).index_fill(-1, torch.arange(Q.size(-2), K.size(-2)), 0.0),
    ),
    (
        "layer-normalised",
        "Queries and keys are normalised first (LayerNorm over d_k)",
        "How long they are no longer counts.",
        lambda Q, K: score(*(F.layer_norm(x, x.shape[-1:]) for x in (Q, K))),
    ),
    (
        "rms-normalised",
        "Queries and keys are normalised first (RMSNorm over d_k)",
        "How long they are no longer counts.",
        lambda Q, K: score(*(F.rms_norm(x, x.shape[-1:]) for x in (Q, K))),
    ),
    (
        "queries-of-length-1",
        "The queries are scaled to length 1 first, the keys are not",
        "How long a query is no longer counts.",
        lambda Q, K: score(F.normalize(Q, dim=-1), K),
    ),
    (
        "keys-of-length-1",
        "The keys are scaled to length 1 first, the queries are not",
        "How long a key is no longer counts.",
        lambda Q, K: score(Q, F.normalize(K, dim=-1)),
    ),
    (
        "less-distance",
        "How far a key stands from the query is subtracted from the score",
        "Keys nearby get more weight (ALiBi); attention by itself knows no positions.",
        lambda Q, K: (
            score(Q, K)
            - Q.size(-1) ** 0.5 * (torch.arange(Q.size(-2))[:, None] - torch.arange(K.size(-2))).abs()
        ),
    ),
    (
        "keys-reversed",
        "The keys are flipped along the tokens",
        "Query and key meet in reversed order: flip(-2) is no transpose.",
        lambda Q, K: score(Q, K.flip(-2)),
    ),
    (
        "without-last-number",
        "The last number of queries and keys is left out: the loop ends one too early",
        "range(d_k) ends at d_k - 1 by itself.",
        lambda Q, K: score(Q[..., :-1], K[..., :-1]),
    ),
    (
        "first-head-only",
        "Only the first head has scores; those of the others stay 0",
        "The other heads attend evenly.",
        lambda Q, K: score(Q, K).index_fill(1, torch.arange(1, Q.size(1)), 0.0),
    ),
    (
        "first-example-only",
        "Only the first example has scores; those of the others stay 0",
        "In the other examples all attend evenly.",
        lambda Q, K: score(Q, K).index_fill(0, torch.arange(1, Q.size(0)), 0.0),
    ),
):
    _alone(
        f"score-{_id}",
        _title,
        _effect,
        "each query meets each key of its own head and example: Q @ K.transpose(-2, -1).",
        "score",
        _wrong,
    )
for _id, _title, _effect, _wrong in (
    (
        "floored",
        "The scores are divided with //, which rounds down",
        "Scores become whole numbers, and no gradient passes.",
        lambda scores, d_k, num_heads: scores // math.sqrt(d_k),
    ),
    (
        "to-zero",
        "The scores are multiplied by 1 // √d_k, which is 0",
        "All weights of a row are the same.",
        lambda scores, d_k, num_heads: scores * 0.0,
    ),
    (
        "by-whole-half-of-d_k",
        "The scores are divided by d_k // 2",
        "Right for d_k = 4 only.",
        lambda scores, d_k, num_heads: scores / (d_k // 2),
    ),
    (
        "by-square-of-d_k",
        "The scores are divided by the square of d_k, not by its root",
        "The weights are almost uniform.",
        lambda scores, d_k, num_heads: scores / d_k**2,
    ),
    (
        "times-d_k",
        "The scores are multiplied by d_k",
        "The weights are nearly one-hot.",
        lambda scores, d_k, num_heads: scores * d_k,
    ),
    (
        "by-fourth-root",
        "The scores are divided by the fourth root of d_k",
        "Only one of Q and K is scaled so; both have to be, or the scores by the square root.",
        lambda scores, d_k, num_heads: scores / d_k**0.25,
    ),
    (
        "by-logarithm",
        "The scores are divided by the logarithm of d_k",
        "The weights are too flat or too peaked.",
        lambda scores, d_k, num_heads: scores / math.log(d_k),
    ),
    (
        "64-hard-coded",
        "The scores are divided by 64, whatever d_k is",
        "64 is d_k in the paper; the divisor is its root, 8.",
        lambda scores, d_k, num_heads: scores / 64,
    ),
    (
        "512-hard-coded",
        "The scores are divided by √512, whatever d_k is",
        "512 is d_model in the paper.",
        lambda scores, d_k, num_heads: scores / math.sqrt(512),
    ),
):
    _alone(
        f"scale-{_id}",
        _title,
        _effect,
        "the divisor is √d_k, the square root of the last axis of Q: math.sqrt(Q.size(-1)).",
        "scale",
        _wrong,
    )

# ---------------------------------------------------------------- its mask


def _if_given(change: Callable[[Tensor], Tensor]) -> Stage:
    return lambda mask, Q, K: None if mask is None else change(mask)


def _causal_by_itself(from_the_end: bool) -> Stage:
    def wrong(mask: Tensor | None, Q: Tensor, K: Tensor) -> Tensor:
        if mask is not None:
            return mask
        Lq, Lk = Q.size(-2), K.size(-2)
        return torch.ones(Lq, Lk, dtype=torch.bool).tril(Lk - Lq if from_the_end else 0)

    return wrong


for _id, _end in (("", False), ("-from-the-end", True)):
    _alone(
        f"mask-causal-by-itself{_id}",
        f"Where no mask is given, a causal one is made{', counted from the end' if _end else ''}",
        "No query sees a later key, though nobody asked for that.",
        "without a mask every query may look at every key: mask only `if mask is not None`.",
        "attention_mask",
        _causal_by_itself(_end),
    )
for _id, _title, _change in (
    ("first-row-for-all", "The first query's mask serves for all queries", lambda mask: mask[..., :1, :]),
    ("last-row-for-all", "The last query's mask serves for all queries", lambda mask: mask[..., -1:, :]),
    (
        "seen-by-all",
        "A key is hidden from all queries unless all may see it",
        lambda mask: (mask != 0).all(-2, keepdim=True),
    ),
):
    _alone(
        f"mask-{_id}",
        _title,
        "Right for a mask that is the same for all queries, as a padding mask is.",
        "the mask has a row for each query: use it as it is.",
        "attention_mask",
        _if_given(_change),
    )
for _id, _title, _change in (
    (
        "squeezed",
        "The mask's axis for the heads is taken away: mask.squeeze(1)",
        lambda mask: mask.squeeze(1),
    ),
    (
        "of-examples",
        "Two axes are put into a mask that has all four: mask[:, None, None]",
        lambda mask: mask[:, None, None],
    ),
):
    _alone(
        f"mask-{_id}",
        _title,
        "Its examples meet the heads or the queries; mostly an error about shapes.",
        "use the mask as it comes: (B, 1, Lq, Lk).",
        "attention_mask",
        _if_given(_change),
    )


def _filled(number: Callable[[Tensor], float]) -> Stage:
    return lambda scores, mask: scores.masked_fill(mask == 0, number(scores))


_LOWEST = "fill with the lowest number, torch.finfo(scores.dtype).min, or with float('-inf')."
for _id, _named, _number in (
    ("minus-1", "to -1", lambda scores: -1.0),
    ("minus-10", "to -10", lambda scores: -10.0),
    ("least", "to the least of all scores", lambda scores: scores.min().item()),
):
    for _hidden in (False, True):
        _alone(
            f"mask-fill-{_id}{'-then-hidden' if _hidden else ''}",
            f"Masked scores are set {_named}{', and their weights to 0' if _hidden else ''}",
            "Where the scores that count are as low, masked keys take a share of the whole.",
            _LOWEST,
            "mask",
            _filled(_number),
            also=None if _hidden else {"guard": _as_it_comes},
        )
_alone(
    "mask-fill-zero-then-hidden",
    "Masked scores are set to 0, and their weights to 0",
    "A score of 0 is not 'nothing', exp(0) is 1: rows no longer sum to 1.",
    _LOWEST,
    "mask",
    _filled(lambda scores: 0.0),
)
_alone(
    "mask-added-then-hidden",
    "The mask is added to the scores as it is, and the weights of masked keys are set to 0",
    "Masked keys take their share first: rows no longer sum to 1.",
    _LOWEST,
    "mask",
    lambda scores, mask: scores + mask,
)
_alone(
    "mask-inverted-then-hidden",
    "The fill reads the mask upside down, the zeros after the softmax do not",
    "What may be seen has no score, what may not has no weight: nearly all weights are 0.",
    "both times it is mask == 0 that is blocked.",
    "mask",
    lambda scores, mask: scores.masked_fill(mask != 0, torch.finfo(scores.dtype).min),
)
_alone(
    "mask-of-numbers-added",
    "A mask of bools is used as it should be, one of numbers is added to the scores",
    "That is the convention of F.scaled_dot_product_attention; here 1 means may attend.",
    "take either for the same: mask == 0 is what is blocked.",
    "mask",
    lambda scores, mask: (
        scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        if mask.dtype == torch.bool
        else scores + mask
    ),
    also={"guard": lambda weights, mask: guard(weights, mask) if mask.dtype == torch.bool else weights},
)
_alone(
    "mask-of-numbers-added-then-hidden",
    "A mask of numbers is added to the scores, and the weights of masked keys are set to 0",
    "A mask of bools is used as it should be; of one of numbers rows do not sum to 1.",
    "take either for the same: mask == 0 is what is blocked.",
    "mask",
    lambda scores, mask: (
        scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        if mask.dtype == torch.bool
        else scores + mask
    ),
)


def _zero_times_inf(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + (mask == 0).to(scores.dtype) * -math.inf


for _id, _title, _guard in (
    ("then-hidden", "and the weights of masked keys are set to 0", guard),
    ("then-zero", "and the NaN that comes of it to 0", lambda weights, mask: weights.nan_to_num(0.0)),
):
    _alone(
        f"mask-zero-times-inf-{_id}",
        f"-inf is multiplied by a mask of 0 and 1, which gives NaN, {_title}",
        "0 times -inf is NaN, wherever a query may look.",
        "fill, do not multiply: scores.masked_fill(mask == 0, float('-inf')).",
        "mask",
        _zero_times_inf,
        also={"guard": _guard},
    )


def _unmasked(scores: Tensor, mask: Tensor) -> Tensor:
    return scores


def _shared_out_again(plus: float) -> Stage:
    def wrong(weights: Tensor, mask: Tensor) -> Tensor:
        left = weights * (mask != 0).to(weights.dtype)
        total = left.sum(dim=-1, keepdim=True) + plus
        return left / total.masked_fill(total == 0, 1.0)

    return wrong


for _id, _title, _plus in (
    ("", "if anything is", 0.0),
    ("-roughly", "plus a small number such as 1e-9", 1e-9),
):
    _alone(
        f"mask-renormalised{_id}",
        f"The weights are masked after the softmax and divided by what is left, {_title}",
        "Where a hidden key has by far the largest score, nothing is left of the others to be shared out.",
        "mask the scores before the softmax.",
        "mask",
        _unmasked,
        also={"guard": _shared_out_again(_plus)},
    )
for _id, _title, _guard in (
    (
        "inf",
        "-inf is filled into the weights, after the softmax",
        lambda weights, mask: weights.masked_fill(mask == 0, -math.inf),
    ),
    (
        "1e9",
        "-1e9 is filled into the weights, after the softmax",
        lambda weights, mask: weights.masked_fill(mask == 0, -1e9),
    ),
    (
        "lowest",
        "The lowest number is filled into the weights, after the softmax",
        lambda weights, mask: weights.masked_fill(mask == 0, torch.finfo(weights.dtype).min),
    ),
    (
        "softmax-again",
        "The weights are masked and sent through the softmax once more",
        lambda weights, mask: weights.masked_fill(mask == 0, -math.inf).softmax(-1),
    ),
    (
        "softmax-again-zero",
        "The weights are masked and sent through the softmax once more, and NaN is set to 0",
        lambda weights, mask: weights.masked_fill(mask == 0, -math.inf).softmax(-1).nan_to_num(0.0),
    ),
):
    _alone(
        f"mask-fill-after-softmax-{_id}",
        _title,
        "A fill is for scores; a weight that counts for nothing is 0.",
        "fill the scores before the softmax.",
        "mask",
        _unmasked,
        also={"guard": _guard},
    )


def _lowest_inf(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, -math.inf)


_alone(
    "mask-empty-row-nan-weights",
    "A query with nothing to see gets a zero output, but its weights are NaN",
    "nan_to_num is applied to the output only.",
    "set the weights to 0, before they mix the values.",
    "guard",
    _as_it_comes,
    also={"mask": _lowest_inf, "weigh": lambda weights, V: (weights @ V).nan_to_num(0.0)},
)
_alone(
    "mask-empty-row-nan-output",
    "A query with nothing to see gets zero weights, but its output is NaN",
    "nan_to_num is applied to the weights after they have mixed the values.",
    "set the weights to 0, before they mix the values.",
    "guard",
    _as_it_comes,
    also={
        "mask": _lowest_inf,
        "give": lambda output, weights, scores: (output, weights.nan_to_num(0.0)),
    },
)


def _nothing_to_see(mask: Tensor) -> Tensor:
    return (mask == 0).all(dim=-1, keepdim=True)


_alone(
    "mask-empty-row-uniform-weights",
    "A query with nothing to see gets a zero output, but its weights are even",
    "Only the output is set to 0.",
    "set the weights to 0, before they mix the values.",
    "guard",
    _as_it_comes,
    also={
        "attention_give": lambda result, mask: (
            result if mask is None else (result[0].masked_fill(_nothing_to_see(mask), 0.0), result[1])
        )
    },
)
_alone(
    "mask-empty-row-uniform-output",
    "A query with nothing to see gets zero weights, but the mean of the values as its output",
    "The weights are set to 0 after they have mixed the values.",
    "set the weights to 0, before they mix the values.",
    "guard",
    _as_it_comes,
    also={
        "attention_give": lambda result, mask: result if mask is None else (result[0], guard(result[1], mask))
    },
)

# ---------------------------------------------------------------- its softmax, its values, its result


def _weights_of(scores: Tensor) -> Tensor:
    """Return the weights of scores that are masked already: 0 where they are lowest."""
    return torch.softmax(scores, dim=-1).masked_fill(scores == torch.finfo(scores.dtype).min, 0.0)


_alone(
    "weigh-scores",
    "The scores mix the values: scores @ V",
    "The weights come back as they should be, and have no influence on the output.",
    "the weights mix the values: weights @ V.",
    "softmax",
    lambda scores, d_k: scores,
    also={
        "guard": _as_it_comes,
        "give": lambda output, weights, scores: (output, _weights_of(weights)),
    },
)


def _powers(scores: Tensor) -> Tensor:
    return (scores - scores.amax(dim=-1, keepdim=True)).exp()


def _shared_out(powers: Tensor, zero: bool) -> Tensor:
    total = powers.sum(dim=-1, keepdim=True)
    return powers / (total.masked_fill(total == 0, 1.0) if zero else total)


def _below(axes: tuple[int, ...], zero: bool) -> Stage:
    """Return a softmax that subtracts the largest score along `axes`; a row of zeros stays so if `zero`."""
    return lambda scores, d_k: _shared_out((scores - scores.amax(axes, keepdim=True)).exp(), zero)


_BY_HAND = "each row has a largest score of its own: scores.amax(dim=-1, keepdim=True), or torch.softmax."
for _id, _whose, _axes in (
    ("all", "of the whole tensor", (0, 1, 2, 3)),
    ("each-example", "of each example", (1, 2, 3)),
    ("each-head", "of each head's map", (2, 3)),
):
    for _zero, _becomes in ((False, "0 / 0"), (True, "zeros")):
        _end = "-row-of-zeros" if _zero else ""
        if _zero or _id != "all":  # that one is known of layers, too
            _alone(
                f"softmax-largest-of-{_id}{_end}",
                f"The largest score {_whose} is subtracted: a row far below becomes {_becomes}",
                "The sum of a row is that of numbers too small to be told from 0.",
                _BY_HAND,
                "softmax",
                _below(_axes, _zero),
            )
        _alone(
            f"softmax-largest-of-{_id}-unmasked{_end}",
            f"The largest score {_whose}, masked or not, is subtracted: a row far below becomes {_becomes}",
            "The sum of a row is that of numbers too small to be told from 0.",
            _BY_HAND,
            "softmax",
            _below(_axes, _zero),
            also={
                "mask": _unmasked,
                "guard": lambda weights, mask, zero=_zero: _shared_out(weights * (mask != 0), zero),
            },
        )
    _alone(
        f"softmax-largest-of-{_id}-unmasked-but-empty",
        f"The largest score {_whose}, masked or not, is subtracted; only empty rows are taken care of",
        "A row far below it becomes 0 / 0, unless it has nothing to see.",
        _BY_HAND,
        "softmax",
        _below(_axes, zero=False),
        also={
            "mask": _unmasked,
            "guard": lambda weights, mask: _shared_out(weights * (mask != 0), zero=False).masked_fill(
                _nothing_to_see(mask), 0.0
            ),
        },
    )
for _id, _title, _effect, _wrong in (
    (
        "largest-of-each-key",
        "The largest score of each key is subtracted, not that of each query",
        "It does not cancel: max has to run over the axis over which the sum runs.",
        lambda scores, d_k: (
            (powers := (scores - scores.amax(dim=-2, keepdim=True)).exp()) / powers.sum(dim=-1, keepdim=True)
        ),
    ),
    (
        "sum-over-queries-after-largest",
        "exp is divided by the sum over the queries, after the largest over the keys is subtracted",
        "Neither rows nor columns are a softmax.",
        lambda scores, d_k: _powers(scores) / _powers(scores).sum(dim=-2, keepdim=True),
    ),
    (
        "sum-without-keepdim",
        "keepdim=True is missing in the sum",
        "Rows are divided by the sums of other rows; mostly an error about shapes.",
        lambda scores, d_k: _powers(scores) / _powers(scores).sum(dim=-1),
    ),
    (
        "plain-sum-without-keepdim",
        "keepdim=True is missing in the sum, and no largest score is subtracted",
        "Rows are divided by the sums of other rows; mostly an error about shapes.",
        lambda scores, d_k: scores.exp() / scores.exp().sum(dim=-1),
    ),
    (
        "largest-without-keepdim",
        "keepdim=True is missing in the maximum",
        "Other rows' largest scores are subtracted; mostly an error about shapes.",
        lambda scores, d_k: (
            (powers := (scores - scores.amax(dim=-1)).exp()) / powers.sum(dim=-1, keepdim=True)
        ),
    ),
    (
        "overflow-plus-1e-9",
        "exp of the scores without subtracting the largest first, divided by the sum plus 1e-9",
        "Large scores give inf / inf = NaN, and where all are far below 0 the row vanishes.",
        lambda scores, d_k: scores.exp() / (scores.exp().sum(dim=-1, keepdim=True) + 1e-9),
    ),
    (
        "not-divided-after-largest",
        "The largest score is subtracted, exp is taken, and nothing is divided by the sum",
        "The largest weight of a row is 1, whatever the others are.",
        lambda scores, d_k: _powers(scores),
    ),
    (
        "divided-by-largest",
        "The weights are divided by the largest of the row, not by their sum",
        "The largest weight of a row is 1, whatever the others are.",
        lambda scores, d_k: _powers(scores) / _powers(scores).amax(dim=-1, keepdim=True),
    ),
    (
        "length-1",
        "The scores of a row are scaled to length 1; exp is missing",
        "Weights can be negative, and rows do not sum to 1.",
        lambda scores, d_k: F.normalize(scores, dim=-1),
    ),
    (
        "tanh",
        "tanh in place of softmax",
        "Weights lie between -1 and 1, and rows do not sum to 1.",
        lambda scores, d_k: torch.tanh(scores),
    ),
    (
        "absolute",
        "The softmax is taken of the scores without their sign, once they are masked",
        "What is hidden gets all the weight.",
        lambda scores, d_k: torch.softmax(scores.abs(), dim=-1),
    ),
    (
        "then-over-queries",
        "The weights are divided by their sum over the queries, after the softmax",
        "The columns of the weights sum to 1, the rows do not.",
        lambda scores, d_k: (weights := scores.softmax(-1)) / weights.sum(-2, keepdim=True),
    ),
    (
        "over-queries-then-keys",
        "The softmax runs over the queries, and its result is divided by its sum over the keys",
        "Rows sum to 1 again, but the weights are others.",
        lambda scores, d_k: (weights := scores.softmax(-2)) / weights.sum(-1, keepdim=True),
    ),
    (
        "minus",
        "The softmax is taken of minus the scores: softmin",
        "The key that fits least gets the most, and what is hidden gets all.",
        lambda scores, d_k: torch.softmax(-scores, dim=-1),
    ),
    (
        "squared",
        "The weights are squared after the softmax",
        "Rows do not sum to 1.",
        lambda scores, d_k: torch.softmax(scores, dim=-1) ** 2,
    ),
    (
        "one-less",
        "1 minus the weights: what fits least gets the most",
        "Rows do not sum to 1.",
        lambda scores, d_k: 1 - torch.softmax(scores, dim=-1),
    ),
    (
        "least",
        "The smallest score is subtracted before exp, not the largest",
        "Large scores give inf / inf = NaN: only the largest keeps exp within bounds.",
        lambda scores, d_k: (
            (powers := (scores - scores.amin(-1, keepdim=True)).exp()) / powers.sum(-1, keepdim=True)
        ),
    ),
    (
        "mean-subtracted",
        "The mean of the scores is subtracted before exp, not the largest",
        "Large scores give inf / inf = NaN: only the largest keeps exp within bounds.",
        lambda scores, d_k: (
            (powers := (scores - scores.mean(-1, keepdim=True)).exp()) / powers.sum(-1, keepdim=True)
        ),
    ),
    (
        "divided-by-count",
        "exp is divided by the number of keys, not by the sum",
        "Rows sum to anything.",
        lambda scores, d_k: scores.exp() / scores.size(-1),
    ),
    (
        "temperature-2",
        "The scores are divided by 2 besides",
        "The weights are too flat.",
        lambda scores, d_k: torch.softmax(scores / 2, dim=-1),
    ),
    (
        "over-heads-queries-and-keys",
        "The softmax runs over heads, queries and keys together",
        "All maps of an example sum to 1 together.",
        lambda scores, d_k: torch.softmax(scores.flatten(1), dim=-1).view_as(scores),
    ),
    (
        "over-heads-and-keys",
        "The softmax runs over heads and keys together",
        "Each query shares out one whole over the keys of all heads.",
        lambda scores, d_k: (
            torch.softmax(scores.transpose(1, 2).flatten(2), dim=-1)
            .unflatten(2, (scores.size(1), -1))
            .transpose(1, 2)
        ),
    ),
):
    _alone(
        f"softmax-{_id}",
        _title,
        _effect,
        "weights = torch.softmax(scores, dim=-1).",
        "softmax",
        _wrong,
    )
for _id, _title, _effect, _wrong in (
    (
        "heads-mixed",
        "The weights of each head mix the values of all heads, added up",
        "The heads' letter differs in the einsum: bhqk, bgkd.",
        lambda weights, V: weights @ V.sum(1, keepdim=True),
    ),
    (
        "weights-averaged",
        "The weights are averaged over the heads before they mix the values",
        "All heads look the same way.",
        lambda weights, V: weights.mean(1, keepdim=True) @ V,
    ),
    (
        "even",
        "The values are averaged, whatever the weights are",
        "The weights have no influence on the output.",
        lambda weights, V: V.mean(-2, keepdim=True).expand(-1, -1, weights.size(-2), -1),
    ),
    (
        "mean",
        "The weighted values are averaged instead of added up",
        "The output is too small by the number of keys; the weights sum to 1 already.",
        lambda weights, V: weights @ V / V.size(-2),
    ),
    (
        "largest",
        "Of the weighted values the largest is taken, number by number",
        "The values are not mixed.",
        lambda weights, V: (weights[..., None] * V[:, :, None]).amax(-2),
    ),
    (
        "scaled",
        "The output is divided by √d_k, besides the scores",
        "The output is too small.",
        lambda weights, V: weights @ V / math.sqrt(V.size(-1)),
    ),
    (
        "last-only",
        "Only the last value is left: assigned, not added",
        "The loop over the keys keeps nothing of what came before.",
        lambda weights, V: weights[..., -1:] * V[:, :, -1:],
    ),
    (
        "first-only",
        "Only the first value is there: the loop ends too early",
        "The return stands inside of the loop over the keys.",
        lambda weights, V: weights[..., :1] * V[:, :, :1],
    ),
    (
        "up-to-Lq",
        "Only as many values are mixed as there are queries",
        "The loop over the keys runs to the number of queries; right where Lq = Lk.",
        lambda weights, V: weights[..., : weights.size(-2)] @ V[:, :, : weights.size(-2)],
    ),
    (
        "best-only",
        "The value of the largest weight is taken, none are mixed",
        "No gradient reaches queries and keys.",
        lambda weights, V: torch.take_along_dim(V, weights.argmax(-1)[..., None], dim=2),
    ),
    (
        "not-added",
        "The weighted values are not added up: five axes come back",
        "The sum over the keys is missing.",
        lambda weights, V: weights[..., None] * V[:, :, None],
    ),
    (
        "summed-over-queries",
        "Each value is multiplied by the sum of its column of the weights",
        "The einsum sums over the queries, q, in place of the keys: bhqk,bhkd->bhkd.",
        lambda weights, V: weights.sum(-2)[..., None] * V,
    ),
    (
        "plus-values",
        "The values are added to the output",
        "A residual belongs to the block around the layer; where Lq ≠ Lk it is an error.",
        lambda weights, V: weights @ V + V,
    ),
    (
        "value-transposed",
        "V is transposed: weights @ V.transpose(-2, -1)",
        "Only K is transposed; mostly an error about shapes.",
        lambda weights, V: weights @ V.transpose(-2, -1),
    ),
    (
        "from-the-right",
        "The factors are exchanged: V @ weights",
        "Mostly an error about shapes.",
        lambda weights, V: V @ weights,
    ),
):
    _alone(
        f"weigh-{_id}",
        _title,
        _effect,
        "each query adds up the values of its own head by its weights: weights @ V.",
        "weigh",
        _wrong,
    )


def _as_wide_as_keys(fit: Callable[[Tensor, Tensor], Tensor]) -> Stage:
    """Return a stage that lets V go where only numbers of the width of Q have room, the output of zeros."""

    def wrong(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fit(torch.zeros_like(Q), Q.new_zeros(*Q.shape[:-1], V.size(-1)))
        return Q, K, V

    return wrong


for _id, _title, _wrong in (
    (
        "cut",
        "As many numbers of each value are used as a key has",
        lambda Q, K, V: (Q, K, V[..., : K.size(-1)]),
    ),
    (
        "reshaped",
        "The values are reshaped to the width of the keys",
        lambda Q, K, V: (Q, K, V.reshape(*V.shape[:-1], K.size(-1))),
    ),
    (
        "filled",
        "The room for the output is as wide as the queries",
        _as_wide_as_keys(lambda room, output: room.copy_(output)),
    ),
    (
        "added",
        "The output is added to zeros that are as wide as the queries",
        _as_wide_as_keys(lambda room, output: room + output),
    ),
):
    _alone(
        f"take-values-as-wide-as-keys-{_id}",
        _title,
        "Right where a value is as wide as a key; V is (B, h, Lk, d_v), and d_v may be another number.",
        "the output has the width of V: V.size(-1).",
        "take",
        _wrong,
    )
_alone(
    "take-values-as-keys",
    "The scores are made from Q and V; K is not used",
    "Right only where K and V are one tensor.",
    "scores are made from Q and K; the weights mix V.",
    "take",
    lambda Q, K, V: (Q, V, V),
)
_alone(
    "take-last-query",
    "Only the last query asks: output and weights have one row",
    "That is one step of generating with a cache; here all queries come at once.",
    "use the whole of Q: no Q[:, :, -1:].",
    "take",
    lambda Q, K, V: (Q[:, :, -1:], K, V),
)
_alone(
    "take-keys-up-to-Lq",
    "Keys and values are cut to the number of queries",
    "Right where Lq = Lk; otherwise the last keys are lost.",
    "K and V have a length of their own: K.size(-2).",
    "take",
    lambda Q, K, V: (Q, K[:, :, : Q.size(2)], V[:, :, : Q.size(2)]),
)
for _id, _title, _effect, _wrong in (
    (
        "three",
        "Output, weights and scores come back: three tensors",
        "Whoever unpacks two of them gets an error.",
        lambda output, weights, scores: (output, weights, scores),
    ),
    (
        "tokens-before-heads",
        "The output is (B, Lq, h, d_v): tokens before heads",
        "Joining the heads comes later.",
        lambda output, weights, scores: (output.transpose(1, 2), weights),
    ),
    (
        "output-turned",
        "The output is (B, h, d_v, Lq): its last two axes are exchanged",
        "V.mT @ weights.mT is the transpose of weights @ V.",
        lambda output, weights, scores: (output.mT, weights),
    ),
    (
        "joined",
        "The output is (B, Lq, h·d_v): the heads are joined already",
        "Joining the heads comes later.",
        lambda output, weights, scores: (output.transpose(1, 2).flatten(2), weights),
    ),
    (
        "summed-over-heads",
        "The output is summed over the heads",
        "One result is left of h.",
        lambda output, weights, scores: (output.sum(1), weights),
    ),
    (
        "averaged-over-heads",
        "The output is averaged over the heads",
        "One result is left of h.",
        lambda output, weights, scores: (output.mean(1), weights),
    ),
    (
        "weights-of-one-example",
        "The weights of the first example only come back",
        "The axis of the batch is missing.",
        lambda output, weights, scores: (output, weights[0]),
    ),
    (
        "one-example",
        "Output and weights of the first example only come back",
        "The axis of the batch is missing.",
        lambda output, weights, scores: (output[0], weights[0]),
    ),
    (
        "squeezed",
        "Axes of size 1 are taken away from output and weights: squeeze()",
        "One example, one head or one token loses its axis.",
        lambda output, weights, scores: (output.squeeze(), weights.squeeze()),
    ),
    (
        "output-as-float32",
        "The output comes back in float32, whatever the inputs are",
        "torch.zeros makes float32 unless it is told the dtype.",
        lambda output, weights, scores: (output.float(), weights),
    ),
    (
        "weights-as-float32",
        "The weights come back in float32, whatever the inputs are",
        "torch.zeros makes float32 unless it is told the dtype.",
        lambda output, weights, scores: (output, weights.float()),
    ),
    (
        "scores-unscaled",
        "The scores, not divided by √d_k, come back in place of the weights",
        "The output is right; the heatmaps show numbers that are no weights.",
        lambda output, weights, scores: (output, scores * math.sqrt(output.size(-1))),
    ),
    (
        "output-twice",
        "The output comes back twice, and no weights",
        "The second is to be the weights.",
        lambda output, weights, scores: (output, output),
    ),
):
    _alone(
        f"give-{_id}",
        _title,
        _effect,
        "return output, weights: (B, h, Lq, d_v) and (B, h, Lq, Lk).",
        "give",
        _wrong,
    )

for _id, _which, _head in (
    ("first", "first: it starts at 1", 0),
    ("last", "last: it ends one too early", -1),
):

    @mistake(
        f"softmax-without-{_id}-head",
        f"The loop over the heads leaves out the {_which}",
        "The weights of that head stay 0, and so does its part of the output.",
        "for i in range(num_heads): 0 to num_heads - 1.",
        stage="softmax",
        alone=True,
    )
    def _(scores: Tensor, d_k: int, head: int = _head) -> Tensor:
        weights = torch.softmax(scores, dim=-1)
        weights[:, head] = 0.0
        return weights


_alone(
    "scale-by-values",
    "The scores are divided by √d_v, the size of a value",
    "Right where values are as wide as keys, as they are in a layer.",
    "divide by the root of what a score sums over: Q.size(-1).",
    "scale",
    ALONE["scale"],
    also={"take": lambda Q, K, V: (Q * math.sqrt(Q.size(-1) / V.size(-1)), K, V)},
)


def _by_tokens(Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return Q.transpose(1, 2), K.transpose(1, 2), V.transpose(1, 2)


for _id, _where, _turned_back in (
    ("", "; the output is (B, h, L, d_v) again", True),
    ("-left", ", and the output is left so", False),
):
    _alone(
        f"take-heads-and-tokens-exchanged{_id}",
        f"Q, K and V are read as (B, L, h, d_k): the heads of a token attend to one another{_where}",
        "Flax, JAX and FlashAttention lay them out so, torch does not; an error where Lq ≠ Lk.",
        "here axis 1 is the heads and axis 2 the tokens: no transpose, and einsum over 'bhqd,bhkd->bhqk'.",
        "take",
        _by_tokens,
        also={
            "give": lambda output, weights, scores, back=_turned_back: (
                output.transpose(1, 2) if back else output,
                weights,
            )
        },
    )


_alone(
    "take-as-float32",
    "All is worked out in float32, and the result is left so",
    "Half precision does not stay half.",
    "give back what came: output.to(Q.dtype), weights.to(Q.dtype).",
    "cast",
    lambda Q, K, V: (Q.float(), K.float(), V.float()),
    also={"attention_give": ALONE["attention_give"]},
)
_alone(
    "mask-one-only",
    "Only 1 counts as 'may attend': mask != 1 is hidden",
    "Right for bools and for 0 and 1; any other number but 0 allows as well.",
    "hide where the mask is 0: scores.masked_fill(mask == 0, …).",
    "mask",
    lambda scores, mask: scores.masked_fill(mask != 1, torch.finfo(scores.dtype).min),
    also={
        "guard": lambda weights, mask: weights.masked_fill(mask != 1, 0.0),
        "attention_mask": ALONE["attention_mask"],
    },
)


def _masked_scores(weights: Tensor, scores: Tensor, fill: float) -> Tensor:
    """Return the scores as they were masked: a weight of 0, of a score not far below others, tells it."""
    top = scores.masked_fill(weights == 0, -math.inf).amax(dim=-1, keepdim=True)
    return scores.masked_fill((weights == 0) & (scores > top - 80), fill)


for _id, _fill in (("", "the lowest number"), ("-inf", "-inf")):
    mistake(
        f"give-scores-masked{_id}",
        f"The masked scores come back in place of the weights, what is hidden as {_fill}",
        "The output is right; the heatmaps show numbers that are no weights.",
        "return what the softmax made of them.",
        stage="give",
        alone=True,
    )(
        lambda output, weights, scores, inf=bool(_id): (
            output,
            _masked_scores(weights, scores, -math.inf if inf else torch.finfo(scores.dtype).min),
        )
    )


_alone(
    "mask-row-zero-for-any",
    "A query gets zeros if a single key is hidden from it, not only if all are",
    "~mask.all(-1) asks whether any is hidden; only queries that see everything have an output.",
    "a query has nothing to see where ~mask.any(dim=-1).",
    "guard",
    lambda weights, mask: weights.masked_fill(~(mask != 0).all(dim=-1, keepdim=True), 0.0),
)
