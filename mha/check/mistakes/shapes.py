"""What goes wrong when the shapes of the layer are told beforehand."""

from collections.abc import Callable

from mha.check.catalogue import mistake
from mha.check.exercises.shapes import SHAPES

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
_told(
    "shapes-joined-not-whole",
    "d_model / h is told as a float, and so is the width of the joined heads",
    "A size is a whole number: h * (d_model / h) is one by chance, and still a float.",
    "use //.",
    "shape_split",
    lambda B, L, d_model, h: (B, h, L, d_model / h),
    "shape_heads",
    shape_joined=lambda B, L, d_model, h: (B, L, h * (d_model / h)),
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
    ("heads-between", "(B, L, h, L)", lambda B, L, d_model, h: (B, L, h, L)),
    ("of-whole-rows", "(B, h, L, d_model)", lambda B, L, d_model, h: (B, h, L, d_model)),
    ("of-numbers-and-tokens", "(B, h, d_k, L)", lambda B, L, d_model, h: (B, h, d_model // h, L)),
    ("one-map", "(L, L)", lambda B, L, d_model, h: (L, L)),
    ("like-x", "(B, L, d_model)", lambda B, L, d_model, h: (B, L, d_model)),
    ("of-the-matrix", "(d_model, d_model)", lambda B, L, d_model, h: (d_model, d_model)),
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


for _id, _shape, _shape_of in (
    ("whole-rows", "(B, h, L, d_model)", lambda B, L, d_model, h: (B, h, L, d_model)),
    ("of-all-heads", "(B, L, d_model)", lambda B, L, d_model, h: (B, L, d_model)),
    ("of-one-head", "(B, L, d_k)", lambda B, L, d_model, h: (B, L, d_model // h)),
    ("one-row", "(B, h, d_k)", lambda B, L, d_model, h: (B, h, d_model // h)),
    ("turned", "(B, h, d_k, L)", lambda B, L, d_model, h: (B, h, d_model // h, L)),
):
    _told(
        f"shapes-results-{_id}",
        f"The heads' results are told as {_shape}",
        "Each head gives each query a row as wide as a value.",
        "(B, h, L, L) by (B, h, L, d_k) gives (B, h, L, d_k), which is joined one step later.",
        "shape_heads",
        _shape_of,
    )
for _id, _shape, _shape_of in (
    ("turned", "(B, h, d_k, L)", lambda B, L, d_model, h: (B, h, d_model // h, L)),
    ("hard-coded", "(B, h, L, 64)", lambda B, L, d_model, h: (B, h, L, 64)),
    ("per-token", "(B, h, L, d_model / L)", lambda B, L, d_model, h: (B, h, L, d_model // L)),
    ("along-tokens", "(B, h, L / h, d_model)", lambda B, L, d_model, h: (B, h, L // h, d_model)),
    ("not-at-all", "(B, L, d_model)", lambda B, L, d_model, h: (B, L, d_model)),
):
    _told(
        f"shapes-split-{_id}",
        f"Q split is told as {_shape}",
        "The heads cut the d_model numbers of a token into h pieces; the tokens stay as they are.",
        _HEADS_HINT,
        "shape_split",
        _shape_of,
    )
_told(
    "shapes-heads-hard-coded",
    "A head is told to have 64 numbers, whatever d_model and h are",
    "That is the size in the paper: 512 numbers for 8 heads.",
    _HEADS_HINT,
    "shape_split",
    lambda B, L, d_model, h: (B, h, L, 64),
    "shape_heads",
)
_told(
    "shapes-h-counts-numbers",
    "h is taken for the size of a head, and d_model / h for their number, in the weights, too",
    "d_model / h maps come of it, where h are wanted.",
    "h counts the heads; d_k = d_model // h is the size of one.",
    "shape_split",
    lambda B, L, d_model, h: (B, d_model // h, L, h),
    "shape_heads",
    shape_weights=lambda B, L, d_model, h: (B, d_model // h, L, L),
)
for _id, _shape, _shape_of in (
    ("not-at-all", "(B, h, L, d_k)", lambda B, L, d_model, h: (B, h, L, d_model // h)),
    ("tokens", "(B, h, L·d_k)", lambda B, L, d_model, h: (B, h, L * (d_model // h))),
    ("along-tokens", "(B, h·L, d_k)", lambda B, L, d_model, h: (B, h * L, d_model // h)),
    ("no-numbers", "(B, L, h)", lambda B, L, d_model, h: (B, L, h)),
    ("flat", "(B, L·d_model)", lambda B, L, d_model, h: (B, L * d_model)),
    ("turned", "(B, d_model, L)", lambda B, L, d_model, h: (B, d_model, L)),
    ("like-weights", "(B, L, L)", lambda B, L, d_model, h: (B, L, L)),
):
    _told(
        f"shapes-joined-{_id}",
        f"The joined heads are told as {_shape}",
        "Joining lays the heads' numbers side by side for each token.",
        "(B, h, L, d_k), (B, L, h, d_k), then (B, L, h·d_k) = (B, L, d_model).",
        "shape_joined",
        _shape_of,
    )
_told(
    "shapes-too-wide-until-joined",
    "Q and the joined heads are told to be h·d_model wide, and each head d_model",
    "The heads share d_model numbers among them; none has them all.",
    "Q is (B, L, d_model), a head has d_model // h of it.",
    "shape_projected",
    lambda B, L, d_model, h: (B, L, h * d_model),
    "shape_joined",
    shape_split=lambda B, L, d_model, h: (B, h, L, d_model),
    shape_heads=lambda B, L, d_model, h: (B, h, L, d_model),
)
for _id, _shape, _shape_of in (
    ("like-weights", "(B, L, L)", lambda B, L, d_model, h: (B, L, L)),
    ("still-split", "(B, h, L, d_k)", lambda B, L, d_model, h: (B, h, L, d_model // h)),
    ("turned", "(B, d_model, L)", lambda B, L, d_model, h: (B, d_model, L)),
    ("one-number", "(B, L)", lambda B, L, d_model, h: (B, L)),
    ("one-number-each-head", "(B, L, h)", lambda B, L, d_model, h: (B, L, h)),
    ("too-wide", "(B, L, h·d_model)", lambda B, L, d_model, h: (B, L, h * d_model)),
    ("of-the-matrix", "(d_model, d_model)", lambda B, L, d_model, h: (d_model, d_model)),
):
    _told(
        f"shapes-output-{_id}",
        f"The output is told as {_shape}",
        "The output goes where the input came from: into the next layer.",
        "(B, L, d_model), the shape of the input.",
        "shape_output",
        _shape_of,
    )
for _id, _shape, _shape_of in (
    ("of-the-matrix", "(d_model, d_model)", lambda B, L, d_model, h: (d_model, d_model)),
    ("split-already", "(B, h, L, d_k)", lambda B, L, d_model, h: (B, h, L, d_model // h)),
    ("too-wide", "(B, L, h·d_model)", lambda B, L, d_model, h: (B, L, h * d_model)),
    ("no-numbers", "(B, L, h)", lambda B, L, d_model, h: (B, L, h)),
    ("turned", "(B, d_model, L)", lambda B, L, d_model, h: (B, d_model, L)),
    ("like-scores", "(B, L, L)", lambda B, L, d_model, h: (B, L, L)),
):
    _told(
        f"shapes-projected-{_id}",
        f"Q is told as {_shape}",
        "A projection gives each token d_model new numbers for its d_model old ones.",
        "(B, L, d_model) @ (d_model, d_model) is (B, L, d_model).",
        "shape_projected",
        _shape_of,
    )
for _id, _shape, _shape_of in (
    ("ids", "(B, L)", lambda B, L, d_model, h: (B, L)),
    ("turned", "(B, d_model, L)", lambda B, L, d_model, h: (B, d_model, L)),
    ("split-already", "(B, h, L, d_k)", lambda B, L, d_model, h: (B, h, L, d_model // h)),
):
    _told(
        f"shapes-x-{_id}",
        f"X is told as {_shape}",
        "X has a row of d_model numbers for each token of each example.",
        "(B, L, d_model): examples, tokens, numbers.",
        "shape_x",
        _shape_of,
    )
_told(
    "shapes-one-head-after-the-other",
    "What is told is true of one head: Q, its weights and its result have no axis for the heads",
    "All heads are worked out at once, each on its own entry of an axis.",
    _HEADS_HINT,
    "shape_projected",
    lambda B, L, d_model, h: (B, L, d_model // h),
    "shape_split",
    "shape_heads",
    shape_weights=lambda B, L, d_model, h: (B, L, L),
)


def _in_other_sizes(
    id: str, title: str, effect: str, hint: str, other: Callable[[int, int, int, int], tuple[int, ...]]
) -> None:
    """Enter what is right of `other` sizes (B, L, d_model, h) than those that came."""

    def told(stage: Told) -> Told:
        return lambda *sizes: stage(*other(*sizes))

    wrong = {name: told(stage) for name, stage in SHAPES.items() if name != "shape_give"}
    mistake(id, title, effect, hint, stage="shape_x", also=wrong)(wrong["shape_x"])


_in_other_sizes(
    "shapes-batch-and-length-exchanged",
    "B and L are exchanged in every shape",
    "Tokens stand before the batch all the way, and the weights compare examples.",
    "B counts the examples and stands in front; L counts the tokens.",
    lambda B, L, d_model, h: (L, B, d_model, h),
)
_in_other_sizes(
    "shapes-of-the-example",
    "The sizes of the example are told: shapes(4, 10, 512, 8), whatever comes in",
    "Right for these four numbers only.",
    "make the tuples out of B, L, d_model and h.",
    lambda B, L, d_model, h: (4, 10, 512, 8),
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
_listed(
    "shapes-scores-too", "Eight shapes: those of scores and weights are told each", (0, 1, 2, 3, 3, 4, 5, 6)
)


def _with_step(id: str, title: str, place: int) -> None:
    """Enter eight shapes: a view of (B, L, h, d_k) told as a step of its own, before the shape at `place`."""

    def told(shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        B, h, L, d_k = shapes[2]
        return (*shapes[:place], (B, L, h, d_k), *shapes[place:])

    hint = "leave (B, L, h, d_k) away: it is half of a step."
    mistake(id, title, "Seven shapes are asked for, one after each step.", hint, stage="shape_give")(told)


_with_step("shapes-view-too", "Eight shapes: the view before the heads are transposed is told, too", 2)
_with_step("shapes-transpose-too", "Eight shapes: the heads transposed back are told, too", 5)


@mistake(
    "shapes-in-one-row",
    "All sizes come in one row, not in seven tuples",
    "It cannot be told where a shape ends.",
    "a tuple for each step: ((B, L, d_model), (B, L, d_model), …).",
    stage="shape_give",
)
def _(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return sum(shapes, ())


@mistake(
    "shapes-squeezed",
    "Axes of size 1 are left out",
    "Right as long as no size is 1; squeeze() takes away every axis of one entry.",
    "keep all axes: one example is a batch of one, and one head an axis of one.",
    stage="shape_give",
)
def _(shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(size for size in shape if size != 1) for shape in shapes)


@mistake(
    "shapes-output-only",
    "Only the shape of the output comes back",
    "Six shapes are missing.",
    "return all seven: X, Q, Q split, weights, heads' results, joined, output.",
    stage="shape_give",
)
def _(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return shapes[-1]


@mistake(
    "shapes-two-steps-exchanged",
    "The shapes of the weights and of the heads' results stand in each other's place",
    "The weights come first: the results are made with them.",
    "X, Q, Q split, weights, heads' results, joined, output.",
    stage="shape_give",
)
def _(shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    return (*shapes[:3], shapes[4], shapes[3], *shapes[5:])


_told(
    "shapes-head-of-64-joined",
    "A head is told to have 64 numbers, and the heads joined h times as many",
    "That is the size in the paper: 512 numbers for 8 heads.",
    _HEADS_HINT,
    "shape_split",
    lambda B, L, d_model, h: (B, h, L, 64),
    "shape_heads",
    shape_joined=lambda B, L, d_model, h: (B, L, 64 * h),
)
