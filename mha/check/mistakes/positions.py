"""What goes wrong when queries and keys are turned by their positions, and when distance lowers scores."""

import math
from typing import Any

import torch
from torch import Tensor

from mha.check.catalogue import mistake
from mha.check.exercises.positions import alibi_row, rope_angles, rope_frequencies, rope_turn

Halves = tuple[Tensor, Tensor]

# ---------------------------------------------------------------- frequencies


def _pairs(d_k: int) -> Tensor:
    return torch.arange(d_k // 2, dtype=torch.float64)


def _base(id: str, base: float, written: str) -> None:
    @mistake(
        id,
        f"The base of the frequencies is {written} instead of 10000",
        "Pair 0 is right and all others turn at another speed; weights made with 10000 do not fit.",
        "pair i turns by 10000 ** (-2i / d_k) from one position to the next.",
        stage="rope_frequencies",
    )
    def _(d_k: int) -> Tensor:
        return base ** (-2 * _pairs(d_k) / d_k)


_base("rope-base-1000", 1e3, "1000")
_base("rope-base-100", 1e2, "100")
_base("rope-base-100000", 1e5, "100000")
_base("rope-base-500000", 5e5, "500000")
_base("rope-base-1000000", 1e6, "1000000")
_base("rope-base-e", math.e, "e")
_base("rope-base-2", 2.0, "2")


@mistake(
    "rope-exponent-halved",
    "The exponent is i / d_k instead of 2i / d_k",
    "Pair 0 is right, the others turn too fast: exponents run to about 1/2 only.",
    "i counts pairs, so the exponent is 2i / d_k; torch.arange(0, d_k, 2) has the 2 in it already.",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return 10_000.0 ** (-_pairs(d_k) / d_k)


@mistake(
    "rope-exponent-doubled",
    "The exponent is 4i / d_k: the 2 is counted twice",
    "Pair 0 is right, the others turn too slowly.",
    "2 * torch.arange(0, d_k, 2) doubles what is doubled already: the exponent is 2i / d_k.",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return 10_000.0 ** (-4 * _pairs(d_k) / d_k)


@mistake(
    "rope-exponent-positive",
    "The minus sign of the exponent is missing",
    "Pair 0 is right, the others turn wildly from one position to the next.",
    "the exponent is -2i / d_k, or divide 1 by the power.",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return 10_000.0 ** (2 * _pairs(d_k) / d_k)


@mistake(
    "rope-pairs-from-1",
    "The pairs are counted from 1",
    "No pair turns by a whole radian for each position; even pair 0 is too slow.",
    "i starts at 0, so that pair 0 turns by 1 for each position.",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return 10_000.0 ** (-2 * (_pairs(d_k) + 1) / d_k)


@mistake(
    "rope-last-exponent-1",
    "The exponents run from 0 to 1, the last included: i / (d_k/2 - 1)",
    "Pair 0 is right, the others turn a little too slowly.",
    "divide by d_k/2, not by one less: the exponent is 2i / d_k.",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return 10_000.0 ** -torch.linspace(0, 1, d_k // 2, dtype=torch.float64)


@mistake(
    "rope-one-frequency",
    "All pairs turn at the same speed",
    "Far positions cannot be told apart: after 2π all pairs are back where they were.",
    "pair i turns by 10000 ** (-2i / d_k); // in the exponent would round it to 0.",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return torch.ones(d_k // 2, dtype=torch.float64)


@mistake(
    "rope-frequencies-rounded-down",
    "-2i // d_k is rounded down: the exponent is 0 for pair 0 and -1 for all others",
    "All but pair 0 hardly turn.",
    "divide with /, not with //.",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return 10_000.0 ** (-2 * _pairs(d_k) // d_k)


@mistake(
    "rope-frequencies-reversed",
    "The frequencies come in reverse order",
    "The last pair turns fastest instead of the first.",
    "pair 0 turns fastest.",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return rope_frequencies(d_k).flip(0)


@mistake(
    "rope-frequencies-linear",
    "Pair i turns by 1 / (i + 1) instead of by a power of 10000",
    "Pair 0 is right, the slow pairs are missing.",
    "pair i turns by 10000 ** (-2i / d_k).",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return 1 / (_pairs(d_k) + 1)


@mistake(
    "rope-times-2π",
    "The frequencies are multiplied by 2π",
    "At whole positions pair 0 is back where it was: it tells nothing.",
    "the angle is position · 10000 ** (-2i / d_k), in radians.",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return rope_frequencies(d_k) * 2 * math.pi


# ---------------------------------------------------------------- angles


@mistake(
    "rope-degrees",
    "The angles are converted as if they were degrees",
    "All pairs turn 57 times too slowly: neighbours can hardly be told apart.",
    "angles are in radians, as cos and sin take them.",
    stage="rope_angles",
)
def _(positions: Tensor, frequencies: Tensor) -> Tensor:
    return torch.deg2rad(rope_angles(positions, frequencies))


@mistake(
    "rope-positions-from-1",
    "The positions are counted from 1",
    "Distances are still right, so that it works until a cache counts from 0.",
    "use the positions as they are given.",
    stage="rope_positions",
)
def _(positions: Tensor) -> Tensor:
    return positions + 1


@mistake(
    "rope-positions-ignored",
    "0, 1, 2, … is used in place of the positions that were given",
    "Right for a whole sequence; behind a cache each token believes that it is the first.",
    "use positions, not torch.arange(L).",
    stage="rope_positions",
)
def _(positions: Tensor) -> Tensor:
    return torch.arange(len(positions))


@mistake(
    "rope-positions-from-first",
    "The first position is subtracted from all",
    "Right for positions from 0 on; behind a cache each step starts anew.",
    "use the positions as they are given.",
    stage="rope_positions",
)
def _(positions: Tensor) -> Tensor:
    return positions - positions[0]


@mistake(
    "rope-positions-reversed",
    "The positions are taken in reverse order",
    "The first token gets the position of the last.",
    "token l is at positions[l].",
    stage="rope_positions",
)
def _(positions: Tensor) -> Tensor:
    return positions.flip(0)


@mistake(
    "rope-positions-divided-by-length",
    "The positions are divided by the length",
    "The same distance gives another angle in a longer text.",
    "use the positions as they are given.",
    stage="rope_positions",
)
def _(positions: Tensor) -> Tensor:
    return positions / len(positions)


@mistake(
    "rope-divided-by-frequency",
    "The positions are divided by the frequencies",
    "Pair 0 is right, the others turn wildly.",
    "multiply by 10000 ** (-2i / d_k), or divide by 10000 ** (2i / d_k).",
    stage="rope_angles",
)
def _(positions: Tensor, frequencies: Tensor) -> Tensor:
    return positions.double()[:, None] / frequencies


@mistake(
    "rope-angles-added",
    "Positions and frequencies are added instead of multiplied",
    "All pairs turn by about the position, at the same speed.",
    "positions[:, None] * frequencies, an outer product.",
    stage="rope_angles",
)
def _(positions: Tensor, frequencies: Tensor) -> Tensor:
    return positions.double()[:, None] + frequencies


@mistake(
    "rope-low-precision",
    "The angles are worked out in half precision",
    "Right near the start; far positions are rounded to their neighbours.",
    "work out the angles in float32 at least, and round cos and sin.",
    stage="rope_angles",
)
def _(positions: Tensor, frequencies: Tensor) -> Tensor:
    return positions.to(torch.bfloat16)[:, None] * frequencies.to(torch.bfloat16)


# ---------------------------------------------------------------- layout and pairs


@mistake(
    "rope-mixed-conventions",
    "Each angle stands twice in a row, [t0, t0, t1, t1, …], while the pairs are the two halves",
    "The two numbers of a pair turn by different angles, so that not even lengths are kept.",
    "with halves, lay the angles out as [t0, t1, …, t0, t1, …]: torch.cat([angles, angles], dim=-1).",
    stage="rope_layout",
)
def _(angles: Tensor) -> Tensor:
    return angles.repeat_interleave(2, dim=-1)


@mistake(
    "rope-second-half-mirrored",
    "The angles of the second half come in reverse order",
    "The two numbers of a pair turn by different angles, so that not even lengths are kept.",
    "both numbers of a pair turn by one angle: torch.cat([angles, angles], dim=-1).",
    stage="rope_layout",
)
def _(angles: Tensor) -> Tensor:
    return torch.cat([angles, angles.flip(-1)], dim=-1)


def _interleave(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return torch.stack([a, b], dim=-1).flatten(-2)


def _neighbours(x: Tensor) -> Halves:
    return x[..., 0::2], x[..., 1::2]


@mistake(
    "rope-neighbours-paired",
    "Neighbours (2i, 2i + 1) are paired instead of (i, i + d_k/2)",
    "As good as the other for a new model; weights trained with halves turn into noise with distance.",
    "split the row into halves: x[..., :d_k // 2] and x[..., d_k // 2:].",
    stage="rope_pairs",
    also={"rope_join": _interleave},
)
def _(x: Tensor) -> Halves:
    return _neighbours(x)


@mistake(
    "rope-neighbours-not-put-back",
    "Neighbours are paired, and put back as halves",
    "The numbers of a token are in another order than before, even at position 0.",
    "split into halves and join them with torch.cat.",
    stage="rope_pairs",
)
def _(x: Tensor) -> Halves:
    return _neighbours(x)


@mistake(
    "rope-halves-put-back-as-neighbours",
    "Halves are paired, and put back as neighbours",
    "The numbers of a token are in another order than before, even at position 0.",
    "join the halves with torch.cat([a, b], dim=-1).",
    stage="rope_join",
)
def _(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return _interleave(a, b, x)


@mistake(
    "rope-halves-exchanged",
    "The halves are put back in the wrong order",
    "Even at position 0 a token's halves have changed places.",
    "torch.cat([a, b], dim=-1): the first half in front.",
    stage="rope_join",
)
def _(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return torch.cat([b, a], dim=-1)


@mistake(
    "rope-only-first-half",
    "Only the first half of a token's numbers is rotated",
    "Half of every row does not know its position (some models do this on purpose).",
    "all d_k numbers are rotated: d_k/2 pairs.",
    stage="rope_frequencies",
    also={
        "rope_pairs": lambda x: (x[..., : x.size(-1) // 4], x[..., x.size(-1) // 4 : x.size(-1) // 2]),
        "rope_join": lambda a, b, x: torch.cat([a, b, x[..., x.size(-1) // 2 :]], dim=-1),
    },
)
def _(d_k: int) -> Tensor:
    return rope_frequencies(d_k // 2)


@mistake(
    "rope-paired-with-last",
    "Number i is paired with the i-th from the end",
    "The pairs are other ones; weights trained with i and i + d_k/2 do not fit.",
    "number i goes with number i + d_k/2: do not flip the second half.",
    stage="rope_pairs",
    also={"rope_join": lambda a, b, x: torch.cat([a, b.flip(-1)], dim=-1)},
)
def _(x: Tensor) -> Halves:
    half = x.size(-1) // 2
    return x[..., :half], x[..., half:].flip(-1)


# ---------------------------------------------------------------- turn


@mistake(
    "rope-backwards",
    "The rotation goes the other way: the sign of sin is wrong",
    "Distances still count, but weights trained the right way round do not fit.",
    "(a cos - b sin, a sin + b cos): the minus belongs to the first.",
    stage="rope_turn",
)
def _(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    return rope_turn(a, b, cos, -sin)


@mistake(
    "rope-cos-and-sin-exchanged",
    "cos and sin are exchanged",
    "At position 0 the halves change places instead of staying.",
    "(a cos - b sin, a sin + b cos).",
    stage="rope_turn",
)
def _(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    return rope_turn(a, b, sin, cos)


@mistake(
    "rope-no-minus",
    "The minus is missing: (a cos + b sin, a sin + b cos)",
    "That is no rotation: lengths are not kept.",
    "(a cos - b sin, a sin + b cos).",
    stage="rope_turn",
)
def _(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    n = a.size(-1)
    return a * cos[..., :n] + b * sin[..., :n], a * sin[..., n:] + b * cos[..., n:]


@mistake(
    "rope-two-minuses",
    "Both signs are minus: (a cos - b sin, a sin - b cos)",
    "That is a reflection: at position 0 the second half changes its sign.",
    "(a cos - b sin, a sin + b cos).",
    stage="rope_turn",
)
def _(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    n = a.size(-1)
    return a * cos[..., :n] - b * sin[..., :n], a * sin[..., n:] - b * cos[..., n:]


@mistake(
    "rope-halves-not-crossed",
    "Each half is multiplied with its own cos and sin: (a cos - a sin, b sin + b cos)",
    "The two numbers of a pair never meet; lengths are not kept.",
    "sin goes with the *other* number of the pair: (a cos - b sin, a sin + b cos).",
    stage="rope_turn",
)
def _(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    n = a.size(-1)
    return a * cos[..., :n] - a * sin[..., :n], b * sin[..., n:] + b * cos[..., n:]


@mistake(
    "rope-only-cos",
    "The terms with sin are missing: (a cos, b cos)",
    "Numbers shrink and change sign with position; lengths are not kept.",
    "(a cos - b sin, a sin + b cos).",
    stage="rope_turn",
)
def _(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    n = a.size(-1)
    return a * cos[..., :n], b * cos[..., n:]


@mistake(
    "rope-cos-to-one-half-sin-to-the-other",
    "The first half is multiplied by cos and the second by sin",
    "At position 0 the second half becomes zero.",
    "(a cos - b sin, a sin + b cos).",
    stage="rope_turn",
)
def _(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    n = a.size(-1)
    return a * cos[..., :n], b * sin[..., n:]


@mistake(
    "rope-new-a-used-for-b",
    "The first half is overwritten before the second is worked out",
    "The second half is turned with numbers that have been turned already.",
    "keep the old a until b is done.",
    stage="rope_turn",
)
def _(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    n = a.size(-1)
    a = a * cos[..., :n] - b * sin[..., :n]
    return a, a * sin[..., n:] + b * cos[..., n:]


@mistake(
    "rope-second-half-not-turned",
    "Only the first number of each pair is worked out anew",
    "The second half stays as it was; lengths are not kept.",
    "the second half is a sin + b cos.",
    stage="rope_turn",
)
def _(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    return rope_turn(a, b, cos, sin)[0], b


@mistake(
    "rope-nothing-turned",
    "x comes back as it was",
    "Attention does not know the order of the tokens.",
    "return torch.cat([a cos - b sin, a sin + b cos], dim=-1).",
    stage="rope_turn",
)
def _(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    return a, b


@mistake(
    "rope-added",
    "sin and cos are added to x instead of turning it",
    "That is how sinusoidal positions work, not rotary ones; even position 0 changes.",
    "(a cos - b sin, a sin + b cos).",
    stage="rope_turn",
)
def _(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    n = a.size(-1)
    return a + sin[..., :n], b + cos[..., n:]


@mistake(
    "rope-x-added",
    "x is added to the rotated x",
    "At position 0 all numbers are doubled.",
    "return the rotated x alone.",
    stage="rope_join",
)
def _(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return x + torch.cat([a, b], dim=-1)


@mistake(
    "rope-double",
    "The result comes back in float64, whatever x is",
    "Queries and keys no longer have the dtype of the values.",
    "work the angles out in float64 if you like, and return .to(x.dtype).",
    stage="rope_join",
)
def _(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return torch.cat([a, b], dim=-1).double()


# ---------------------------------------------------------------- ALiBi


@mistake(
    "alibi-no-interpolation",
    "2^(-8i / h) for every h",
    "Right for a power of two only.",
    "take the slopes of the largest power of two below h, then every other one of twice as many.",
    stage="alibi_power",
)
def _(h: int) -> int:
    return h


@mistake(
    "alibi-next-power",
    "The slopes are those of the next power of two *above* h, cut off after h",
    "Right for a power of two only; the steepest heads are kept, the flattest are lost.",
    "start with the largest power of two *up to* h.",
    stage="alibi_power",
)
def _(h: int) -> int:
    return 1 << (h - 1).bit_length()


@mistake(
    "alibi-power-rounded",
    "log2(h) is rounded to the nearest instead of down",
    "Wrong where h lies just below a power of two.",
    "take math.floor(math.log2(h)).",
    stage="alibi_power",
)
def _(h: int) -> int:
    return 2 ** round(math.log2(h))


def _row(id: str, title: str, effect: str, hint: str, slope: Any) -> None:
    @mistake(id, title, effect, hint, stage="alibi_row")
    def _(n: int) -> list[float]:
        return [slope(i, n) for i in range(1, n + 1)]


_row(
    "alibi-exponent-from-0",
    "The exponents start at 0: the first slope is 1",
    "All slopes are too steep by one step.",
    "count from 1: the first slope is 2^(-8/h), the last 2^-8.",
    lambda i, n: 2.0 ** (-8 * (i - 1) / n),
)
_row(
    "alibi-same-slope",
    "All heads get the slope 2^(-8/h)",
    "No head looks further than another.",
    "that is the first slope and the ratio: head i gets its power, 2^(-8i/h).",
    lambda i, n: 2.0 ** (-8 / n),
)
_row(
    "alibi-whole-powers",
    "The slopes are 1/2, 1/4, 1/8, … whatever h is",
    "Right for 8 heads only.",
    "the exponent is -8i/h.",
    lambda i, n: 2.0**-i,
)
_row(
    "alibi-base-e",
    "exp in place of a power of 2",
    "All slopes are too flat.",
    "the slopes are 2^(-8i/h).",
    lambda i, n: math.exp(-8 * i / n),
)
_row(
    "alibi-exponent-positive",
    "The minus of the exponent is missing",
    "Slopes run from 2^(8/h) to 256: no head sees beyond its neighbours.",
    "the exponent is -8i/h.",
    lambda i, n: 2.0 ** (8 * i / n),
)
_row(
    "alibi-exponent-upside-down",
    "The exponent is -i·h/8 instead of -8i/h",
    "Right for 8 heads only.",
    "the last slope is 2^-8 for every power of two.",
    lambda i, n: 2.0 ** (-i * n / 8),
)
_row(
    "alibi-exponent-by-1",
    "The 8 is missing: 2^(-i/h)",
    "All slopes lie between 1/2 and 1, where they should fall to 1/256.",
    "the exponent is -8i/h.",
    lambda i, n: 2.0 ** (-i / n),
)
_row(
    "alibi-negative",
    "The slopes are negative",
    "With the minus of the bias, distant tokens are preferred.",
    "slopes are positive; the bias is minus slope times distance.",
    lambda i, n: -(2.0 ** (-8 * i / n)),
)
_row(
    "alibi-evenly-spaced",
    "The slopes are evenly spaced from 2^(-8/h) to 2^-8",
    "Right at both ends; they should fall by the same factor, not by the same step.",
    "a geometric row: 2^(-8i/h).",
    lambda i, n: 2.0 ** (-8 / n) + (2.0**-8 - 2.0 ** (-8 / n)) * (i - 1) / max(n - 1, 1),
)
_row(
    "alibi-from-one-half",
    "The slopes run from 1/2 to 2^-8 whatever h is",
    "Right for 8 heads; for others the first slope is 2^(-8/h).",
    "2^(-8i/h) for i from 1 to h.",
    lambda i, n: 2.0 ** (-1 - 7 * (i - 1) / max(n - 1, 1)),
)
_row(
    "alibi-one-over-i",
    "The slopes are 1, 1/2, 1/3, …",
    "They fall too slowly, and no head looks far.",
    "a geometric row: 2^(-8i/h).",
    lambda i, n: 1 / i,
)


@mistake(
    "alibi-row-reversed",
    "The slopes come in reverse order",
    "Head 0 is the flattest; weights made elsewhere do not fit.",
    "head 0 is the steepest: 2^(-8/h) first.",
    stage="alibi_row",
)
def _(n: int) -> list[float]:
    return alibi_row(n)[::-1]


@mistake(
    "alibi-between-the-other-ones",
    "Of twice as many heads, the slopes with even numbers are added",
    "These are the ones that are there already: slopes appear twice.",
    "take the first, third, fifth … of twice as many: [0::2].",
    stage="alibi_between",
)
def _(row: list[float]) -> list[float]:
    return row[1::2]


@mistake(
    "alibi-between-consecutive",
    "Of twice as many heads, all slopes from the first on are added",
    "Every second one of these is there already.",
    "take every other one: [0::2].",
    stage="alibi_between",
)
def _(row: list[float]) -> list[float]:
    return row


@mistake(
    "alibi-between-none",
    "For h not a power of two, only as many slopes as the power of two come back",
    "Heads are left without a slope.",
    "add every other slope of twice as many heads.",
    stage="alibi_between",
)
def _(row: list[float]) -> list[float]:
    return []


@mistake(
    "alibi-sorted",
    "The slopes in between are sorted in among the others",
    "The right slopes for the wrong heads, where h is no power of two.",
    "they come behind the slopes of the power of two.",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return sorted((slopes + between)[:h], reverse=True)


@mistake(
    "alibi-between-first",
    "The slopes in between come first",
    "The right slopes for the wrong heads, where h is no power of two.",
    "they come behind the slopes of the power of two.",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return between[: h - len(slopes)] + slopes


@mistake(
    "alibi-with-axes",
    "The slopes come as (h, 1, 1)",
    "Ready to be multiplied with distances, but not the shape asked for.",
    "return (h,); add the axes where they are needed.",
    stage="alibi_give",
)
def _(slopes: list[float]) -> Any:
    return torch.tensor(slopes)[:, None, None]


@mistake(
    "alibi-list",
    "The slopes come as a list",
    "It cannot be moved to a device or multiplied with distances.",
    "return torch.tensor(slopes).",
    stage="alibi_give",
)
def _(slopes: list[float]) -> Any:
    return slopes


@mistake(
    "alibi-double",
    "The slopes come in float64",
    "Scores that they are added to become float64 as well.",
    "return float32.",
    stage="alibi_give",
)
def _(slopes: list[float]) -> Any:
    return torch.tensor(slopes, dtype=torch.float64)


@mistake(
    "alibi-logarithms",
    "The exponents come back, not the powers",
    "They are negative, and larger in size for flatter heads.",
    "raise 2 to them.",
    stage="alibi_give",
)
def _(slopes: list[float]) -> Any:
    return torch.tensor(slopes).log2()


@mistake(
    "alibi-two-axes",
    "The slopes come as (1, h)",
    "Not the shape asked for.",
    "return (h,); add axes where they are needed.",
    stage="alibi_give",
)
def _(slopes: list[float]) -> Any:
    return torch.tensor(slopes)[None]


@mistake(
    "alibi-half",
    "The slopes come in float16",
    "Most of them lose digits.",
    "return float32, as torch.tensor does by default.",
    stage="alibi_give",
)
def _(slopes: list[float]) -> Any:
    return torch.tensor(slopes, dtype=torch.float16)
