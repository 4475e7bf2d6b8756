"""What goes wrong between the scores and the output of a head."""

import math

import torch
from torch import Tensor

from mha.check.catalogue import mistake

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
    "The result is the same with and without a mask.",
    "use it before the softmax. masked_fill returns a new tensor: assign it.",
    stage="mask",
    also={"guard": _as_it_comes},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores


def _without_diagonal(mask: Tensor) -> Tensor:
    """Return what is blocked, (…, Lq, Lk), but for the diagonal."""
    return (mask == 0) & ~torch.eye(*mask.shape[-2:], dtype=torch.bool)


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
    also={"guard": lambda weights, mask: weights.masked_fill(_without_diagonal(mask), 0.0)},
)
def _(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(_without_diagonal(mask), torch.finfo(scores.dtype).min)


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


@mistake(
    "give-as-float32",
    "The result comes back in float32, whatever the inputs are",
    "Half precision does not stay half, and float64 loses digits.",
    "leave the dtype alone: no .float().",
    stage="give",
)
def _(output: Tensor, weights: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return output.float(), weights.float()
