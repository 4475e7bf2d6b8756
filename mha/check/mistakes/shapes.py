"""What goes wrong when the shapes of the layer are told beforehand."""

from collections.abc import Callable

from mha.check.catalogue import mistake

Told = Callable[[int, int, int, int], tuple[int, ...]]


def _told(
    id: str, title: str, effect: str, hint: str, stage: str, told: Told, *also: str, **others: Told
) -> None:
    """Enter what is told at a stage and `also` at some; `others` tell something else at theirs."""
    mistake(id, title, effect, hint, stage=stage, also=dict.fromkeys(also, told) | others)(told)


_HEADS_HINT = "heads stand before tokens, and each has d_model // h numbers: (B, h, L, d_k)."
_told(
    "shapes-heads-after-tokens",
    "The heads are told as (B, L, h, d_k)",
    "That is the shape after view and before transpose.",
    _HEADS_HINT,
    "shape_split",
    lambda B, L, d_model, h: (B, L, h, d_model // h),
    "shape_heads",
)
_told(
    "shapes-split-not-transposed",
    "Q split is told as (B, L, h, d_k), the heads' results are not",
    "That is the shape after view and before transpose.",
    _HEADS_HINT,
    "shape_split",
    lambda B, L, d_model, h: (B, L, h, d_model // h),
)
_told(
    "shapes-results-after-tokens",
    "The heads' results are told as (B, L, h, d_k)",
    "They are transposed back one step later, when they are joined.",
    _HEADS_HINT,
    "shape_heads",
    lambda B, L, d_model, h: (B, L, h, d_model // h),
)
_told(
    "shapes-whole-rows-in-each-head",
    "Each head is told to get all d_model numbers",
    "The heads share the numbers of a token among them.",
    _HEADS_HINT,
    "shape_split",
    lambda B, L, d_model, h: (B, h, L, d_model),
    "shape_heads",
)
_told(
    "shapes-head-size-is-h",
    "h is taken for the size of a head: (B, d_model / h, L, h)",
    "h counts the heads.",
    _HEADS_HINT,
    "shape_split",
    lambda B, L, d_model, h: (B, d_model // h, L, h),
    "shape_heads",
)
_told(
    "shapes-no-head-axis",
    "There is no axis for the heads: (B, L, d_k)",
    "All heads are worked out at once, each on its own entry of an axis.",
    _HEADS_HINT,
    "shape_split",
    lambda B, L, d_model, h: (B, L, d_model // h),
    "shape_heads",
)
_told(
    "shapes-head-size-not-whole",
    "d_model / h is told as a float",
    "A size is a whole number.",
    "use //.",
    "shape_split",
    lambda B, L, d_model, h: (B, h, L, d_model / h),
    "shape_heads",
)
_WEIGHTS_HINT = "one map of queries by keys for each head: (B, h, L, L)."
for _id, _shape, _shape_of in (
    ("no-heads", "(B, L, L)", lambda B, L, d_model, h: (B, L, L)),
    ("of-numbers", "(B, h, d_k, d_k)", lambda B, L, d_model, h: (B, h, d_model // h, d_model // h)),
    ("of-heads", "(B, L, h, h)", lambda B, L, d_model, h: (B, L, h, h)),
    ("like-queries", "(B, h, L, d_k)", lambda B, L, d_model, h: (B, h, L, d_model // h)),
    ("one-row", "(B, h, L)", lambda B, L, d_model, h: (B, h, L)),
    ("no-batch", "(h, L, L)", lambda B, L, d_model, h: (h, L, L)),
    ("heads-last", "(B, L, L, h)", lambda B, L, d_model, h: (B, L, L, h)),
):
    _told(
        f"shapes-weights-{_id}",
        f"The weights are told as {_shape}",
        "Each head has a row for each query, with a number for each key.",
        _WEIGHTS_HINT,
        "shape_weights",
        _shape_of,
    )
_told(
    "shapes-projected-to-a-head",
    "Q is told to be as wide as one head: (B, L, d_k)",
    "One projection makes the queries of all heads at once.",
    "(B, L, d_model); it is cut afterwards.",
    "shape_projected",
    lambda B, L, d_model, h: (B, L, d_model // h),
)
_told(
    "shapes-projected-for-all-three",
    "Q is told to be 3·d_model wide",
    "That holds for Q, K and V made at once.",
    "Q alone is (B, L, d_model).",
    "shape_projected",
    lambda B, L, d_model, h: (B, L, 3 * d_model),
)
_told(
    "shapes-joined-to-a-head",
    "The joined heads are told to be as wide as one: (B, L, d_k)",
    "They are laid side by side, not added.",
    "h times d_k is d_model.",
    "shape_joined",
    lambda B, L, d_model, h: (B, L, d_model // h),
)
_told(
    "shapes-joined-four-axes",
    "The joined heads are told as (B, L, h, d_k)",
    "Joining makes the last two axes one.",
    "(B, L, d_model).",
    "shape_joined",
    lambda B, L, d_model, h: (B, L, h, d_model // h),
)
_told(
    "shapes-joined-too-wide",
    "The joined heads are told to be h·d_model wide",
    "A head is d_k wide, not d_model.",
    "h times d_k is d_model.",
    "shape_joined",
    lambda B, L, d_model, h: (B, L, h * d_model),
)
_told(
    "shapes-output-one-head",
    "The output is told to be as wide as one head",
    "W_o mixes the heads and keeps the width.",
    "(B, L, d_model), the shape of the input.",
    "shape_output",
    lambda B, L, d_model, h: (B, L, d_model // h),
)
_told(
    "shapes-output-one-row",
    "The output is told as (B, d_model): one row for all tokens",
    "Every token gets a row of its own.",
    "(B, L, d_model), the shape of the input.",
    "shape_output",
    lambda B, L, d_model, h: (B, d_model),
)
_told(
    "shapes-tokens-first",
    "Tokens stand before the batch: (L, B, d_model)",
    "An older convention, that of nn.MultiheadAttention without batch_first.",
    "the batch stays in front.",
    "shape_x",
    lambda B, L, d_model, h: (L, B, d_model),
    "shape_projected",
    "shape_joined",
    "shape_output",
)
_told(
    "shapes-no-batch",
    "There is no axis for the batch",
    "What is told is true of one example.",
    "B stands in front of every shape.",
    "shape_x",
    lambda B, L, d_model, h: (L, d_model),
    "shape_projected",
    "shape_joined",
    "shape_output",
    shape_split=lambda B, L, d_model, h: (h, L, d_model // h),
    shape_heads=lambda B, L, d_model, h: (h, L, d_model // h),
    shape_weights=lambda B, L, d_model, h: (h, L, L),
)
_told(
    "shapes-heads-first",
    "The heads stand before the batch: (h, B, L, d_k)",
    "Each head holds all examples; here each example holds all heads.",
    _HEADS_HINT,
    "shape_split",
    lambda B, L, d_model, h: (h, B, L, d_model // h),
    "shape_heads",
    shape_weights=lambda B, L, d_model, h: (h, B, L, L),
)
_told(
    "shapes-batch-and-heads-in-one",
    "Batch and heads share an axis: (B·h, L, d_k)",
    "That is how torch.bmm wants them, with three axes.",
    _HEADS_HINT,
    "shape_split",
    lambda B, L, d_model, h: (B * h, L, d_model // h),
    "shape_heads",
    shape_weights=lambda B, L, d_model, h: (B * h, L, L),
)
_told(
    "shapes-results-like-weights",
    "The heads' results are told to be of the shape of the weights: (B, h, L, L)",
    "The weights mix the values: what comes of it is as wide as a value.",
    _HEADS_HINT,
    "shape_heads",
    lambda B, L, d_model, h: (B, h, L, L),
)


def _listed(id: str, title: str, places: tuple[int, ...]) -> None:
    mistake(
        id,
        title,
        "Seven shapes are asked for: X, Q, Q split, weights, heads' results, joined, output.",
        "K and V are of the shape of Q: tell it once, and every step once.",
        stage="shape_give",
    )(lambda shapes: tuple(shapes[place] for place in places))


_listed("shapes-first-left-out", "Six shapes: X or Q is left out", (0, 2, 3, 4, 5, 6))
_listed(
    "shapes-last-left-out",
    "Six shapes: that of the joined heads or of the output is left out",
    (0, 1, 2, 3, 4, 5),
)
_listed("shapes-results-left-out", "Six shapes: that of the heads' results is left out", (0, 1, 2, 3, 5, 6))
_listed("shapes-q-k-and-v", "Nine shapes: Q, K and V are told each", (0, 1, 1, 1, 2, 3, 4, 5, 6))
_listed(
    "shapes-q-k-and-v-split",
    "Eleven shapes: Q, K and V and their splits are told each",
    (0, 1, 1, 1, 2, 2, 2, 3, 4, 5, 6),
)
