"""What goes wrong when queries and keys are turned by their positions, and when distance lowers scores."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import mha
from mha.check.catalogue import Stage, mistake
from mha.check.exercises.positions import alibi_row, rope_angles, rope_frequencies, rope_turn

Halves = tuple[Tensor, Tensor]

# ---------------------------------------------------------------- frequencies


def _pairs(d_k: int) -> Tensor:
    return torch.arange(d_k // 2, dtype=torch.float64)


@mistake(
    "rope-exponent-halved",
    "The exponent is i / d_k instead of 2i / d_k",
    "Pair 0 is right, the others turn too fast: exponents run to about 1/2 only.",
    "i counts pairs, so the exponent is 2i / d_k; torch.arange(0, d_k, 2) has the 2 in it already.",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return 10_000.0 ** (-_pairs(d_k) / d_k)


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


_base("rope-base-1024", 1024.0, "1024")
_base("rope-base-of-log10", math.e**4, "e⁴ (log10 stands where the natural logarithm is meant)")


@mistake(
    "rope-exponent-without-d_k",
    "The exponent is 2i: it is not divided by d_k",
    "Pair 0 is right, and all others hardly turn.",
    "pair i turns by 10000 ** (-2i / d_k).",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return 10_000.0 ** (-2 * _pairs(d_k))


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
    "rope-frequencies-as-integers",
    "The frequencies, or the angles, are rounded down to integers",
    "Pair 0 is right, all others stand still: 10000 ** (-2i / d_k) is less than 1.",
    "keep them floats: /, not //, and no .long().",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return rope_frequencies(d_k).floor()


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
    "rope-times-π",
    "The frequencies are multiplied by π",
    "Pair 0 turns by half a circle for each position: it tells even positions from odd ones only.",
    "the angle is position · 10000 ** (-2i / d_k), in radians.",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return rope_frequencies(d_k) * math.pi


@mistake(
    "rope-times-2π",
    "The frequencies are multiplied by 2π",
    "At whole positions pair 0 is back where it was: it tells nothing.",
    "the angle is position · 10000 ** (-2i / d_k), in radians.",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return rope_frequencies(d_k) * 2 * math.pi


@mistake(
    "rope-frequencies-in-twos",
    "The exponent is 2(i // 2) / d_k: the formula that counts numbers is used to count pairs",
    "Pairs 0 and 1 turn alike, then 2 and 3: half of the frequencies are missing.",
    "i counts pairs here, so that nothing is halved: the exponent is 2i / d_k.",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return 10_000.0 ** (-2 * (_pairs(d_k) // 2) / d_k)


_base(
    "rope-base-of-log2",
    math.exp(math.log2(1e4)),
    "e^13.3 (log2 stands where the natural logarithm is meant)",
)


def _exponents(id: str, title: str, effect: str, frequencies: Callable[[Tensor, int], Tensor]) -> None:
    """Enter wrong frequencies, a function of i = 0, 1, … for the pairs, and of d_k."""
    hint = "pair i turns by 10000 ** (-2i / d_k) from one position to the next."

    @mistake(id, title, effect, hint, stage="rope_frequencies")
    def _(d_k: int) -> Tensor:
        return frequencies(_pairs(d_k), d_k)


_exponents(
    "rope-exponents-odd",
    "The exponents are (2i + 1) / d_k: torch.arange(1, d_k, 2) counts the odd numbers",
    "No pair turns by a whole radian for each position; all are a little too slow.",
    lambda i, d_k: 10_000.0 ** (-(2 * i + 1) / d_k),
)
_exponents(
    "rope-exponents-from-1-down",
    "The exponents run from 1 down: 1 - 2i / d_k",
    "The first pair hardly turns, and the last is the fastest.",
    lambda i, d_k: 10_000.0 ** -(1 - 2 * i / d_k),
)
_exponents(
    "rope-exponent-without-i",
    "The exponent is the same for all pairs, 1 / d_k: the number of the pair is missing",
    "All pairs turn at the same speed, and far positions cannot be told apart.",
    lambda i, d_k: torch.full_like(i, 10_000.0 ** (-1 / d_k)),
)
_exponents(
    "rope-exponent-without-i-doubled",
    "The exponent is the same for all pairs, 2 / d_k: the number of the pair is missing",
    "All pairs turn at the same speed, and far positions cannot be told apart.",
    lambda i, d_k: torch.full_like(i, 10_000.0 ** (-2 / d_k)),
)
_exponents(
    "rope-exponential-missing",
    "exp is missing: -2i / d_k · log(10000) itself is taken for the frequency",
    "Pair 0 does not turn at all, and the others turn backwards.",
    lambda i, d_k: -2 * i / d_k * math.log(10_000.0),
)
for _d_k in (64, 128):
    _exponents(
        f"rope-frequencies-for-{_d_k}",
        f"The exponent is 2i / {_d_k}, whatever d_k is",
        f"Right for heads of {_d_k} numbers only; in narrower ones no pair is slow.",
        lambda i, d_k, _d_k=_d_k: 10_000.0 ** (-2 * i / _d_k),
    )


def _precedence(id: str, written: str, effect: str, frequency: Callable[[Tensor, int], Tensor]) -> None:
    """Enter an exponent without brackets: a function of i = 0, 1, … for the pairs, and of d_k."""

    @mistake(
        id,
        f"There are no brackets around the exponent: {written}",
        effect,
        "** binds more tightly than * and /: 10000 ** (-2 * i / d_k), with the whole exponent in brackets.",
        stage="rope_frequencies",
    )
    def _(d_k: int) -> Tensor:
        return frequency(_pairs(d_k), d_k)


_precedence(
    "rope-power-divided-below-the-line",
    "1 / (10000 ** torch.arange(0, d_k, 2) / d_k)",
    "Pair 0 turns by d_k for each position, and all others hardly at all.",
    lambda i, d_k: d_k * 10_000.0 ** (-2 * i),
)
_precedence(
    "rope-power-divided",
    "10000 ** -torch.arange(0, d_k, 2) / d_k",
    "Pair 0 turns by 1 / d_k for each position, and all others hardly at all.",
    lambda i, d_k: 10_000.0 ** (-2 * i) / d_k,
)
_precedence(
    "rope-power-of-pair-divided-below-the-line",
    "1 / (10000 ** i / d_k)",
    "Pair 0 turns by d_k for each position, and all others hardly at all.",
    lambda i, d_k: d_k * 10_000.0**-i,
)
_precedence(
    "rope-power-of-pair-divided-by-half",
    "1 / (10000 ** i / (d_k / 2))",
    "Pair 0 turns by d_k / 2 for each position, and all others hardly at all.",
    lambda i, d_k: d_k / 2 * 10_000.0**-i,
)
_precedence(
    "rope-power-of-2-times-i",
    "1 / 10000 ** 2 * i / d_k",
    "No pair turns: 10000 ** 2 stands under all of them.",
    lambda i, d_k: 10_000.0**-2 * i / d_k,
)


def _for_each_number(id: str, exponent: str, share: float) -> None:
    @mistake(
        id,
        f"Each of the d_k numbers has a frequency of its own, with the exponent {exponent}",
        "The two numbers of a pair turn by different angles, so that not even lengths are kept.",
        "there are d_k/2 frequencies, one for each pair: torch.arange(0, d_k, 2) / d_k.",
        stage="rope_frequencies",
        also={"rope_layout": lambda angles: angles},
    )
    def _(d_k: int) -> Tensor:
        return 10_000.0 ** (-share * torch.arange(d_k, dtype=torch.float64) / d_k)


_for_each_number("rope-frequency-for-each-number", "j / d_k", 1)
_for_each_number("rope-frequency-for-each-number-doubled", "2j / d_k", 2)


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
    "rope-to-degrees",
    "The angles are converted to degrees",
    "All pairs turn 57 times too fast.",
    "angles are in radians, as cos and sin take them.",
    stage="rope_angles",
)
def _(positions: Tensor, frequencies: Tensor) -> Tensor:
    return torch.rad2deg(rope_angles(positions, frequencies))


@mistake(
    "rope-positions-from-1",
    "The positions are counted from 1",
    "Distances are still right, so that it works until a cache counts from 0.",
    "use the positions as they are given.",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return positions + 1


@mistake(
    "rope-positions-ignored",
    "0, 1, 2, … is used in place of the positions that were given",
    "Right for a whole sequence; behind a cache each token believes that it is the first.",
    "use positions, not torch.arange(L).",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return torch.arange(len(positions))


@mistake(
    "rope-positions-from-first",
    "The first position is subtracted from all",
    "Right for positions from 0 on; behind a cache each step starts anew.",
    "use the positions as they are given.",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return positions - positions[0]


@mistake(
    "rope-positions-reversed",
    "The positions are taken in reverse order",
    "The first token gets the position of the last.",
    "token l is at positions[l].",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return positions.flip(0)


@mistake(
    "rope-positions-divided-by-length",
    "The positions are divided by the length",
    "The same distance gives another angle in a longer text.",
    "use the positions as they are given.",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return positions / len(positions)


@mistake(
    "rope-positions-counted-on",
    "Only the first position is used: the others are counted on from it",
    "Right for neighbouring tokens in order; wrong for positions with gaps or in another order.",
    "each token has its own: use all of positions.",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return positions[0] + torch.arange(len(positions))


def _counted_back(id: str, which: str, end: Callable[[Tensor], Tensor]) -> None:
    @mistake(
        id,
        f"Only the {which} position is used: the others are counted back from it",
        "Right for neighbouring tokens in order; wrong for positions with gaps or in another order.",
        "each token has its own: use all of positions.",
        stage="rope_positions",
    )
    def _(positions: Tensor, x: Tensor) -> Tensor:
        return end(positions) + torch.arange(1 - len(positions), 1)


_counted_back("rope-positions-counted-back", "last", lambda positions: positions[-1])
_counted_back("rope-positions-counted-back-from-largest", "largest", torch.max)


@mistake(
    "rope-position-of-first-token",
    "All tokens get the position of the first",
    "All turn by one angle, and distances no longer show.",
    "token l is at positions[l].",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return positions[:1].expand_as(positions)


@mistake(
    "rope-position-of-last-token",
    "All tokens get the position of the last",
    "All turn by one angle, and distances no longer show.",
    "token l is at positions[l].",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return positions[-1:].expand_as(positions)


@mistake(
    "rope-positions-left-out",
    "The angles are the frequencies alone, whatever the position",
    "Every token turns as if it was at position 1, and distances no longer show.",
    "the angle is position times frequency: positions[:, None] * frequencies.",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return torch.ones_like(positions)


@mistake(
    "rope-table-too-short",
    "The table of angles is made for positions below L, and looked up at positions",
    "Right for a whole sequence; behind a cache a position lies beyond its end.",
    "work the angles out from positions themselves, or make the table for the largest of them.",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return torch.arange(len(positions))[positions]


@mistake(
    "rope-angle-doubled",
    "Every angle is twice what it should be",
    "It is turned twice, or once for x cos and once more.",
    "the angle is position · 10000 ** (-2i / d_k); turn once.",
    stage="rope_angles",
)
def _(positions: Tensor, frequencies: Tensor) -> Tensor:
    return 2 * rope_angles(positions, frequencies)


@mistake(
    "rope-angle-halved",
    "Every angle is half of what it should be",
    "All pairs turn too slowly.",
    "the angle is position · 10000 ** (-2i / d_k).",
    stage="rope_angles",
)
def _(positions: Tensor, frequencies: Tensor) -> Tensor:
    return rope_angles(positions, frequencies) / 2


def _turn_as_they_are(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    """Turn the halves where cos and sin are not laid out for both."""
    return a * cos - b * sin, a * sin + b * cos


@mistake(
    "rope-positions-ignored-from-1",
    "1, 2, 3, … is used in place of the positions that were given",
    "Even a whole sequence is one too far, and behind a cache each token believes that it is the first.",
    "use positions, not torch.arange(1, L + 1).",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return torch.arange(1, len(positions) + 1)


@mistake(
    "rope-positions-of-heads",
    "0, 1, 2, … up to x.size(1) is used in place of the positions: as many as there are heads",
    "x is (B, h, L, d_k): an error, or the wrong number of angles.",
    "use positions; the tokens are x.size(-2).",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return torch.arange(x.size(1))


@mistake(
    "rope-positions-from-last",
    "The last position is subtracted from all",
    "Distances are right, but not the same for keys that a cache has kept from before.",
    "use the positions as they are given.",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return positions - positions[-1]


@mistake(
    "rope-positions-divided-by-largest",
    "The positions are divided by the largest of them",
    "The same distance gives another angle in a longer text.",
    "use the positions as they are given.",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return positions / positions.max()


@mistake(
    "rope-positions-divided-by-d_k",
    "The positions are divided by d_k",
    "All pairs turn too slowly: d_k belongs into the exponent only.",
    "use the positions as they are given.",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return positions / x.size(-1)


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
    "rope-positions-modulo-length",
    "The positions are taken modulo L",
    "Right for a whole sequence; behind a cache a token gets the position of another.",
    "use the positions as they are given.",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return positions % len(positions)


@mistake(
    "rope-positions-cut-at-length",
    "Positions from L on are taken for L - 1",
    "Right for a whole sequence; behind a cache all tokens are at one place.",
    "use the positions as they are given.",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return positions.clamp(max=len(positions) - 1)


@mistake(
    "rope-positions-sorted",
    "The positions are sorted",
    "Right where they ascend; else tokens get each other's positions.",
    "token l is at positions[l].",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return positions.sort().values


@mistake(
    "rope-table-of-heads",
    "The table of angles has x.size(1) positions, as many as there are heads, and is looked up at positions",
    "A position lies beyond its end, as soon as there is one that is no number of a head.",
    "work the angles out from positions themselves; the tokens are x.size(-2).",
    stage="rope_positions",
)
def _(positions: Tensor, x: Tensor) -> Tensor:
    return torch.arange(x.size(1))[positions]


def _by_rotate_half(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    """Turn a whole row, with cos and sin as they come."""
    turned = torch.cat([a, b], dim=-1) * cos + torch.cat([-b, a], dim=-1) * sin
    return turned[..., : a.size(-1)], turned[..., a.size(-1) :]


def _outer(id: str, title: str, effect: str, angles: Stage) -> None:
    """Enter a wrong product of positions and frequencies, for halves and for rotate_half."""
    hint = "tokens are the rows: positions[:, None] * frequencies, or torch.outer(positions, frequencies)."
    halves = {"rope_layout": lambda angles: angles, "rope_turn": _turn_as_they_are}
    mistake(id, title, effect, hint, stage="rope_angles", also=halves)(angles)
    whole = f"{title}; they are laid out twice for rotate_half"
    mistake(f"{id}-twice", whole, effect, hint, stage="rope_angles", also={"rope_turn": _by_rotate_half})(
        angles
    )


_outer(
    "rope-angles-transposed",
    "The angles are (d_k/2, L): the outer product is the wrong way round",
    "An error about shapes; where L is d_k/2, tokens and pairs change places unnoticed.",
    lambda positions, frequencies: rope_angles(positions, frequencies).T,
)
_outer(
    "rope-no-outer-product",
    "Positions and frequencies are multiplied one by one, without [:, None]",
    "An error about shapes; where L is d_k/2, every token gets the same angles.",
    lambda positions, frequencies: positions.double() * frequencies,
)


@mistake(
    "rope-angles-reshaped",
    "The angles are made as (d_k/2, L), and reshaped into (L, d_k/2) where they should be transposed",
    "The numbers are filled in row by row, so that tokens get each other's angles.",
    "torch.outer(positions, frequencies) is (L, d_k/2) at once; axes are exchanged by transpose.",
    stage="rope_angles",
)
def _(positions: Tensor, frequencies: Tensor) -> Tensor:
    right = rope_angles(positions, frequencies)
    return right.T.reshape(right.shape)


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


@mistake(
    "rope-not-laid-out",
    "cos and sin have d_k/2 columns, and are multiplied with all d_k numbers",
    "An error about shapes, as soon as there is more than one pair.",
    "with rotate_half the angles stand there twice: torch.cat([angles, angles], dim=-1).",
    stage="rope_layout",
    also={"rope_turn": _by_rotate_half},
)
def _(angles: Tensor) -> Tensor:
    return angles


@mistake(
    "rope-heads-behind-tokens",
    "cos and sin are shaped for (B, L, h, d_k): L stands where the heads are",
    "Axes are broadcast that should not meet: an error, a result of another shape, or angles by head.",
    "here tokens are the last axis but one, (B, h, L, d_k): leave the angles (L, d_k/2).",
    stage="rope_layout",
)
def _(angles: Tensor) -> Tensor:
    return torch.cat([angles, angles], dim=-1)[:, None]


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
    "rope-neighbours-with-angles-of-halves",
    "Neighbours are paired, but the angles are laid out for halves, [t0, t1, …, t0, t1, …]",
    "The two numbers of a pair turn by different angles, so that not even lengths are kept.",
    "pair halves as well: rotate_half(x) is torch.cat([-x[..., d_k // 2:], x[..., : d_k // 2]], dim=-1).",
    stage="rope_pairs",
    also={
        "rope_join": _interleave,
        "rope_turn": lambda a, b, cos, sin: (
            a * cos[..., 0::2] - b * sin[..., 0::2],
            a * sin[..., 1::2] + b * cos[..., 1::2],
        ),
    },
)
def _(x: Tensor) -> Halves:
    return _neighbours(x)


@mistake(
    "rope-halves-taken-the-wrong-way-round",
    "The second half is taken for the first: (b cos - a sin, b sin + a cos)",
    "Even at position 0 a token's halves have changed places.",
    "a is x[..., : d_k // 2], and the result (a cos - b sin, a sin + b cos).",
    stage="rope_pairs",
)
def _(x: Tensor) -> Halves:
    half = x.size(-1) // 2
    return x[..., half:], x[..., :half]


@mistake(
    "rope-halves-exchanged",
    "The halves are put back in the wrong order",
    "Even at position 0 a token's halves have changed places.",
    "torch.cat([a, b], dim=-1): the first half in front.",
    stage="rope_join",
)
def _(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return torch.cat([b, a], dim=-1)


def _partial(id: str, title: str, width: Callable[[int], int], whole: bool = False) -> None:
    """Enter a rotation of the first `width(d_k)` numbers; `whole`: with the first frequencies of all d_k."""

    def pairs(x: Tensor) -> Halves:
        half = width(x.size(-1)) // 2
        return x[..., :half], x[..., half : 2 * half]

    def join(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
        return torch.cat([a, b, x[..., width(x.size(-1)) :]], dim=-1)

    @mistake(
        id,
        title,
        "The rest of every row does not know its position (some models do this on purpose).",
        "all d_k numbers are rotated: a is x[..., : d_k // 2], b is x[..., d_k // 2:].",
        stage="rope_frequencies",
        also={"rope_pairs": pairs, "rope_join": join},
    )
    def _(d_k: int) -> Tensor:
        n = width(d_k)
        exponents = torch.arange(0, n, 2, dtype=torch.float64) / (d_k if whole else max(n, 1))
        return 10_000.0**-exponents


_FIRST_HALF = "Only the first half of a token's numbers is rotated"
_partial("rope-only-first-half", _FIRST_HALF, lambda d_k: d_k // 4 * 2)
_partial(
    "rope-only-first-half-with-frequencies-of-all",
    f"{_FIRST_HALF}, with the first frequencies of a whole row",
    lambda d_k: d_k // 4 * 2,
    whole=True,
)
_partial(
    "rope-only-first-quarter",
    "Only the first quarter of a token's numbers is rotated",
    lambda d_k: d_k // 8 * 2,
)
_partial(
    "rope-only-first-quarter-with-frequencies-of-all",
    "Only the first quarter of a token's numbers is rotated, with the first frequencies of a whole row",
    lambda d_k: d_k // 8 * 2,
    whole=True,
)
_partial(
    "rope-only-first-quarter-one-pair-at-least",
    "Only the first quarter of a token's numbers is rotated, but one pair at least",
    lambda d_k: max(2, d_k // 8 * 2),
)
_partial(
    "rope-only-first-half-one-pair-at-least",
    f"{_FIRST_HALF}, but one pair at least",
    lambda d_k: max(2, d_k // 4 * 2),
)
_partial(
    "rope-last-pair-left-out",
    "The last two numbers of a token are not rotated",
    lambda d_k: d_k - 2,
)


@mistake(
    "rope-only-second-half",
    "Only the second half of a token's numbers is rotated",
    "The rest of every row does not know its position (some models do this on purpose).",
    "all d_k numbers are rotated: a is x[..., : d_k // 2], b is x[..., d_k // 2:].",
    stage="rope_frequencies",
    also={
        "rope_pairs": lambda x: x[..., x.size(-1) - x.size(-1) // 4 * 2 :].chunk(2, dim=-1),
        "rope_join": lambda a, b, x: torch.cat([x[..., : x.size(-1) - 2 * a.size(-1)], a, b], dim=-1),
    },
)
def _(d_k: int) -> Tensor:
    n = d_k // 4 * 2
    return 10_000.0 ** (-torch.arange(0, n, 2, dtype=torch.float64) / max(n, 1))


@mistake(
    "rope-only-last-quarter",
    "Only the last quarter of a token's numbers is rotated, but one pair at least",
    "The rest of every row does not know its position (some models do this on purpose).",
    "all d_k numbers are rotated: a is x[..., : d_k // 2], b is x[..., d_k // 2:].",
    stage="rope_frequencies",
    also={
        "rope_pairs": lambda x: x[..., x.size(-1) - max(2, x.size(-1) // 8 * 2) :].chunk(2, dim=-1),
        "rope_join": lambda a, b, x: torch.cat([x[..., : x.size(-1) - 2 * a.size(-1)], a, b], dim=-1),
    },
)
def _(d_k: int) -> Tensor:
    n = max(2, d_k // 8 * 2)
    return 10_000.0 ** (-torch.arange(0, n, 2, dtype=torch.float64) / n)


@mistake(
    "rope-half-of-the-pairs-still",
    "Only the first half of the pairs turns, the others have the angle 0",
    "Half of every row does not know its position (some models do this on purpose).",
    "all d_k/2 pairs turn.",
    stage="rope_frequencies",
)
def _(d_k: int) -> Tensor:
    return rope_frequencies(d_k) * (_pairs(d_k) < d_k / 4)


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


def _turn(id: str, title: str, effect: str, turn: Stage) -> None:
    """Enter another way to mix a and b, a function of them and of the cos and sin for each."""
    hint = "(a cos - b sin, a sin + b cos); rotate_half(x) is torch.cat([-b, a], dim=-1)."

    @mistake(id, title, effect, hint, stage="rope_turn")
    def _(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
        n = a.size(-1)
        return turn(a, b, cos[..., :n], sin[..., :n], cos[..., n:], sin[..., n:])


_turn(
    "rope-both-sines-subtracted",
    "sin is subtracted in both halves: (a cos - b sin, b cos - a sin)",
    "That is no rotation: lengths are not kept.",
    lambda a, b, c, s, c2, s2: (a * c - b * s, b * c2 - a * s2),
)
_turn(
    "rope-halves-not-crossed-minus-behind",
    "Each half is multiplied with its own cos and sin: (a cos + a sin, b cos - b sin)",
    "The two numbers of a pair never meet; lengths are not kept.",
    lambda a, b, c, s, c2, s2: (a * c + a * s, b * c2 - b * s2),
)
_turn(
    "rope-x-in-place-of-rotate-half",
    "x itself stands where rotate_half(x) should: x cos + x sin",
    "The two numbers of a pair never meet; lengths are not kept.",
    lambda a, b, c, s, c2, s2: (a * c + a * s, b * c2 + b * s2),
)
_turn(
    "rope-second-like-first",
    "The second half is made like the first, with a plus: (a cos - b sin, a cos + b sin)",
    "At position 0 the first half stands there twice, and the second is lost.",
    lambda a, b, c, s, c2, s2: (a * c - b * s, a * c2 + b * s2),
)
_turn(
    "rope-first-half-twice",
    "The second half is made like the first: (a cos - b sin) stands there twice",
    "Half of the numbers are lost.",
    lambda a, b, c, s, c2, s2: (a * c - b * s, a * c2 - b * s2),
)
_turn(
    "rope-second-half-twice",
    "The first half is made like the second: (a sin + b cos) stands there twice",
    "Half of the numbers are lost.",
    lambda a, b, c, s, c2, s2: (a * s + b * c, a * s2 + b * c2),
)
_turn(
    "rope-second-half-with-itself",
    "The second half is not crossed with the first: (a cos - b sin, b sin + b cos)",
    "That is no rotation: lengths are not kept.",
    lambda a, b, c, s, c2, s2: (a * c - b * s, b * s2 + b * c2),
)
_turn(
    "rope-first-half-with-itself",
    "The first half is not crossed with the second: (a cos - a sin, a sin + b cos)",
    "That is no rotation: lengths are not kept.",
    lambda a, b, c, s, c2, s2: (a * c - a * s, a * s2 + b * c2),
)
_turn(
    "rope-cos-twice",
    "cos stands where sin should as well: (a cos - b cos, a cos + b cos)",
    "Even at position 0 the halves are mixed.",
    lambda a, b, c, s, c2, s2: (a * c - b * c, a * c2 + b * c2),
)
_turn(
    "rope-sin-twice",
    "sin stands where cos should as well: (a sin - b sin, a sin + b sin)",
    "At position 0 nothing is left of a token.",
    lambda a, b, c, s, c2, s2: (a * s - b * s, a * s2 + b * s2),
)


def _turned_row(id: str, what: str, effect: str, half_turned: Callable[[Tensor], Tensor]) -> None:
    """Enter x cos + half_turned(x) sin with something else in the place of rotate_half."""

    def turn(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
        x = torch.cat([a, b], dim=-1)
        return (x * cos + half_turned(x) * sin).chunk(2, dim=-1)

    hint = "rotate_half(x) is torch.cat([-x[..., d_k // 2:], x[..., : d_k // 2]], dim=-1)."
    mistake(id, f"In the place of rotate_half(x) stands {what}", effect, hint, stage="rope_turn")(turn)


_ANOTHER_PARTNER = "Numbers are mixed that are no pair; lengths are not kept."
_turned_row("rope-row-flipped", "x in reverse order", _ANOTHER_PARTNER, lambda x: x.flip(-1))
_turned_row(
    "rope-row-shifted-by-one", "x shifted by one number: roll(1)", _ANOTHER_PARTNER, lambda x: x.roll(1, -1)
)
_turned_row(
    "rope-row-shifted-back-by-one",
    "x shifted back by one number: roll(-1)",
    _ANOTHER_PARTNER,
    lambda x: x.roll(-1, -1),
)
_turned_row(
    "rope-row-negated",
    "-x",
    "The two numbers of a pair never meet; lengths are not kept.",
    torch.neg,
)
_turned_row(
    "rope-tokens-halved",
    "the second half of the tokens, with a minus, and then the first: chunk(2, dim=-2)",
    "Tokens are mixed with one another.",
    lambda x: torch.cat([-x.chunk(2, dim=-2)[-1], x.chunk(2, dim=-2)[0]], dim=-2),
)
_turned_row(
    "rope-neighbours-turned",
    "rotate_half of neighbours without a minus",
    _ANOTHER_PARTNER,
    lambda x: torch.stack([x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2),
)


_turn(
    "rope-only-sin",
    "The terms with cos are missing: (-b sin, a sin)",
    "At position 0 nothing is left of a token.",
    lambda a, b, c, s, c2, s2: (-b * s, a * s2),
)


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
    "rope-new-b-used-for-a",
    "The second half is overwritten before the first is worked out",
    "The first half is turned with numbers that have been turned already.",
    "keep the old b until a is done.",
    stage="rope_turn",
)
def _(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    n = a.size(-1)
    b = a * sin[..., n:] + b * cos[..., n:]
    return a * cos[..., :n] - b * sin[..., :n], b


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
    "rope-added-to-neighbours",
    "[sin, cos, sin, cos, …] is added to x instead of turning it",
    "That is how sinusoidal positions work, not rotary ones; even position 0 changes.",
    "(a cos - b sin, a sin + b cos).",
    stage="rope_turn",
)
def _(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Halves:
    n = a.size(-1)
    added = torch.stack([sin[..., :n], cos[..., :n]], dim=-1).flatten(-2)
    return (torch.cat([a, b], dim=-1) + added).chunk(2, dim=-1)


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
    "rope-scaled",
    "The result is divided by √d_k",
    "The scores are divided by √d_k later, so that this is once too often.",
    "a rotation keeps lengths: return the rotated x as it is.",
    stage="rope_join",
)
def _(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return torch.cat([a, b], dim=-1) / math.sqrt(x.size(-1))


@mistake(
    "rope-normalised",
    "Each row of the result is brought to length 1",
    "A rotation keeps lengths; these are part of what a query says.",
    "return the rotated x as it is.",
    stage="rope_join",
)
def _(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(torch.cat([a, b], dim=-1), dim=-1)


@mistake(
    "rope-stacked",
    "The halves are stacked: the result is (…, L, d_k/2, 2)",
    "There is an axis too many, and the numbers of a pair stand beside each other.",
    "torch.cat([a, b], dim=-1) makes no new axis.",
    stage="rope_join",
)
def _(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return torch.stack([a, b], dim=-1)


@mistake(
    "rope-joined-along-tokens",
    "The halves are joined along the tokens: the result is (…, 2L, d_k/2)",
    "There are twice as many tokens, with half of the numbers each.",
    "torch.cat([a, b], dim=-1).",
    stage="rope_join",
)
def _(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return torch.cat([a, b], dim=-2)


@mistake(
    "rope-one-half-returned",
    "Only the first half comes back",
    "The real part of a complex product, for instance: the result is (…, L, d_k/2).",
    "torch.cat([a, b], dim=-1), or of the real and the imaginary part.",
    stage="rope_join",
)
def _(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return a


def _some(id: str, which: str, axis: int, index: int) -> None:
    """Enter a rotation of one example, head or token, while all others stay as they were."""

    @mistake(
        id,
        f"Only the {which} is rotated",
        "All others do not know their positions.",
        "let ... stand for all axes in front: x[..., :half].",
        stage="rope_join",
    )
    def _(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
        turned = torch.arange(x.size(axis)) == index % x.size(axis)
        return torch.where(turned.view(-1, *[1] * (-1 - axis)), torch.cat([a, b], dim=-1), x)


_some("rope-only-first-example", "first example", -4, 0)
_some("rope-only-first-head", "first head", -3, 0)
_some("rope-only-first-token", "first token", -2, 0)
_some("rope-only-last-token", "last token", -2, -1)


@mistake(
    "rope-double",
    "The result comes back in float64, whatever x is",
    "cos and sin in float64 make all that they meet float64: queries and keys no longer go with the values.",
    "work the angles out in float64 if you like, then cos.to(x.dtype), sin.to(x.dtype).",
    stage="rope_round",
)
def _(table: Tensor, x: Tensor) -> Tensor:
    return table


@mistake(
    "rope-float",
    "x is turned in float32, and does not come back in its own dtype",
    "float64 loses digits; queries and keys in half precision no longer go with the values.",
    "return .to(x.dtype), of the x that came in.",
    stage="rope_join",
    also={"rope_round": lambda table, x: table.float()},
)
def _(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return torch.cat([a, b], dim=-1).float()


@mistake(
    "rope-half-becomes-float",
    "An x in half precision comes back in float32",
    "cos and sin in float32 make it float32: queries and keys no longer go with the values.",
    "cos.to(x.dtype) and sin.to(x.dtype) before they are multiplied.",
    stage="rope_round",
)
def _(table: Tensor, x: Tensor) -> Tensor:
    return table.to(torch.promote_types(x.dtype, torch.float32))


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


@mistake(
    "alibi-power-strictly-below",
    "The largest power of two *below* h is taken, also where h is one itself",
    "The right slopes for the wrong heads, where h is a power of two.",
    "h itself counts: 2 ** math.floor(math.log2(h)).",
    stage="alibi_power",
)
def _(h: int) -> int:
    return 1 << max((h - 1).bit_length() - 1, 0)


def _power(id: str, title: str, effect: str, power: Callable[[int], int]) -> None:
    mistake(id, title, effect, "2 ** math.floor(math.log2(h)).", stage="alibi_power")(power)


_power(
    "alibi-even-taken-for-power",
    "Each even h is taken for a power of two",
    "Right for powers of two and for odd numbers; 6 and 12 heads get 2^(-8i/h).",
    lambda h: h if h % 2 == 0 else 1 << (h.bit_length() - 1),
)
_power(
    "alibi-natural-logarithm",
    "The largest power of two is looked for with log, not with log2",
    "The natural logarithm is smaller: the power is too small, and heads are left without a slope.",
    lambda h: 2 ** math.floor(math.log(h)),
)
_power(
    "alibi-logarithm-for-power",
    "log2(h) itself stands where the power of two should: 2 ** is missing",
    "There are far too few slopes.",
    lambda h: max(math.floor(math.log2(h)), 1),
)
_power(
    "alibi-twice-the-power",
    "The slopes are those of the next power of two above h, also where h is one itself, cut off after h",
    "The steepest heads are kept, the flattest are lost.",
    lambda h: 2 << (h.bit_length() - 1),
)


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
    "alibi-power-of-8-times-i",
    "There are no brackets around the exponent: 2 ** -8 * i / h",
    "The slopes grow from head to head, up to 2^-8.",
    "** binds more tightly than * and /: 2 ** (-8 * i / h).",
    lambda i, n: 2.0**-8 * i / n,
)
_row(
    "alibi-power-of-8-divided",
    "There are no brackets around the exponent of the ratio: (2 ** -8 / h) ** i",
    "The slopes fall to nothing at once.",
    "** binds more tightly than /: (2 ** (-8 / h)) ** i.",
    lambda i, n: (2.0**-8 / n) ** i,
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
    "alibi-exponent-rounded-down",
    "The exponent -8i // h is rounded down",
    "Right for up to 8 heads; with more, neighbours share a slope.",
    "divide with /, not with //.",
    lambda i, n: 2.0 ** (-8 * i // n),
)
_row(
    "alibi-exponent-rounded-up",
    "The exponent -(8i // h) is rounded",
    "Right for up to 8 heads; with more, neighbours share a slope.",
    "divide with /, not with //.",
    lambda i, n: 2.0 ** -(8 * i // n),
)
_row(
    "alibi-ratio-rounded",
    "8 // h is rounded down before it is multiplied by i",
    "Right for up to 8 heads; with more, all slopes are 1.",
    "divide with /: the exponent is -8i / h.",
    lambda i, n: 2.0 ** -(8 // n * i),
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


_row(
    "alibi-exponent-by-4",
    "The exponent is -4i/h instead of -8i/h",
    "The slopes end at 1/16, where they should fall to 1/256.",
    "the last slope is 2^-8 for every power of two.",
    lambda i, n: 2.0 ** (-4 * i / n),
)
_row(
    "alibi-exponent-by-16",
    "The exponent is -16i/h instead of -8i/h",
    "The slopes end at 2^-16, where they should fall to 1/256.",
    "the last slope is 2^-8 for every power of two.",
    lambda i, n: 2.0 ** (-16 * i / n),
)
_row(
    "alibi-base-10",
    "Powers of 10 in place of powers of 2",
    "All slopes are too flat; torch.logspace has base 10 unless it is told another.",
    "the slopes are 2^(-8i/h): torch.logspace(…, base=2).",
    lambda i, n: 10.0 ** (-8 * i / n),
)
_row(
    "alibi-from-1-to-the-last",
    "The slopes run from 1 to 2^-8: the exponent is -8i / (h - 1), from i = 0",
    "Right at the end only; the first slope is 2^(-8/h).",
    "2^(-8i/h) for i from 1 to h.",
    lambda i, n: 2.0 ** (-8 * (i - 1) / max(n - 1, 1)),
)
_row(
    "alibi-exponent-by-h-plus-1",
    "The exponent is -8i / (h + 1)",
    "All slopes are too steep: the last is not 2^-8.",
    "divide by h.",
    lambda i, n: 2.0 ** (-8 * i / (n + 1)),
)
_row(
    "alibi-halved-each-time",
    "The slopes begin with 2^(-8/h), and each is half of the one before",
    "Right for 8 heads only: the ratio is 2^(-8/h) as well.",
    "head i gets the power i of 2^(-8/h).",
    lambda i, n: 2.0 ** (-8 / n - (i - 1)),
)
_row(
    "alibi-multiples",
    "The slopes are multiples of 2^(-8/h), not its powers",
    "They grow from head to head, where they should fall.",
    "head i gets the power i of 2^(-8/h): start ** i, not start * i.",
    lambda i, n: i * 2.0 ** (-8 / n),
)


def _another_row(id: str, title: str, effect: str, row: Callable[[int], list[float]]) -> None:
    hint = "2^(-8i/h) for i from 1 to h, both included: range(1, h + 1)."
    mistake(id, title, effect, hint, stage="alibi_row")(row)


_another_row(
    "alibi-last-slope-missing",
    "The last slope is missing: i ends at h - 1",
    "range(1, h) leaves h out: there are too few slopes, or other ones.",
    lambda n: alibi_row(n)[:-1],
)
_another_row(
    "alibi-slope-1-in-front",
    "There is a slope too many: i runs from 0 to h",
    "The first is 1, and all others are a head too late.",
    lambda n: [1.0, *alibi_row(n)],
)
_another_row(
    "alibi-slope-0-in-front",
    "The first head gets the slope 0, the others those of the head before",
    "The first head does not know distance, and the flattest slope is missing.",
    lambda n: [0.0, *alibi_row(n)[:-1]],
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
    "alibi-between-from-the-end",
    "Of every other slope of twice as many heads, the last ones are added",
    "The flattest where the steepest are wanted.",
    "take the first of them: [0::2][: h - power].",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return slopes + between[len(between) - (h - len(slopes)) :]


def _too_few(id: str, title: str, hint: str, part: Callable[[int], int]) -> None:
    @mistake(
        id, title, "Heads are left without a slope, where h is no power of two.", hint, stage="alibi_order"
    )
    def _(slopes: list[float], between: list[float], h: int) -> list[float]:
        return slopes + between[: part(h - len(slopes))]


_too_few(
    "alibi-between-half-of-them",
    "Only half of the slopes that are missing are added",
    "h - power of them are missing: range(1, 1 + 2 * (h - power), 2), or [0::2][: h - power].",
    lambda missing: (missing + 1) // 2,
)
_too_few(
    "alibi-between-half-rounded-down",
    "Only half of the slopes that are missing are added, rounded down",
    "h - power of them are missing: [0::2][: h - power].",
    lambda missing: missing // 2,
)


@mistake(
    "alibi-between-of-twice-h",
    "For h not a power of two, the slopes that are added are those of 2h heads",
    "Right for a power of two only.",
    "they are every other one of twice the *power*: those of 2 * power heads.",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return slopes + [2.0 ** (-4 * i / h) for i in range(1, 2 * (h - len(slopes)), 2)]


@mistake(
    "alibi-next-power-cut-in-front",
    "The slopes are the last h of those of the next power of two above h",
    "Right for a power of two only; the flattest heads are kept, the steepest are lost.",
    "start with the largest power of two *up to* h.",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return slopes if h == len(slopes) else alibi_row(2 * len(slopes))[-h:]


@mistake(
    "alibi-between-first-and-cut",
    "For h not a power of two, the slopes in between come first, then those of the power of two, cut at h",
    "Slopes of the power of two are lost, and the others are too many.",
    "first the slopes of the power of two, then those in between, as many as are missing.",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return slopes if h == len(slopes) else (between + slopes)[:h]


@mistake(
    "alibi-not-cut-at-all",
    "All the slopes in between are added, whatever h is",
    "Twice the power of two comes back, even where h is one itself.",
    "only h - power of them are missing: [: h - power].",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return slopes + between


@mistake(
    "alibi-every-other-of-twice-as-many",
    "For h not a power of two, all slopes are every other one of twice as many heads",
    "Those of the power of two are lost.",
    "first the slopes of the power of two, then every other one of twice as many.",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return slopes if h == len(slopes) else between[:h]


@mistake(
    "alibi-sorted-ascending",
    "The slopes are sorted from the flattest to the steepest",
    "The right slopes for the wrong heads.",
    "leave them as they are: the power of two from the steepest on, then those in between.",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return sorted((slopes + between)[:h])


@mistake(
    "alibi-not-cut",
    "All the slopes in between are added, more than there are heads",
    "Twice the power of two comes back, where h is no power of two.",
    "only h - power of them are missing: [: h - power].",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return slopes if h == len(slopes) else slopes + between


@mistake(
    "alibi-between-alone",
    "For h not a power of two, only the slopes in between come back",
    "Those of the power of two are lost, and heads are left without a slope.",
    "join the two: slopes + between, in a list, or torch.cat.",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return slopes if h == len(slopes) else between[: h - len(slopes)]


@mistake(
    "alibi-parts-added-up",
    "The slopes and those in between are added up, where they should be joined",
    "`+` joins lists, but adds tensors number by number: an error, or too few slopes.",
    "torch.cat([slopes, between]) for tensors.",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    missing = torch.tensor(between[: h - len(slopes)])
    return slopes if h == len(slopes) else (torch.tensor(slopes) + missing).tolist()


def _rest(id: str, title: str, hint: str, slope: Callable[[int, int], float]) -> None:
    """Enter wrong slopes for the heads beyond the largest power of two up to h, counted from 0."""

    @mistake(id, title, "Right for a power of two only.", hint, stage="alibi_order")
    def _(slopes: list[float], between: list[float], h: int) -> list[float]:
        power = len(slopes)
        return slopes + [slope(i, power) for i in range(h - power)]


_rest(
    "alibi-row-continued",
    "The row of the power of two is continued beyond 2^-8",
    "the other heads get slopes between those that are there: every other one of twice as many.",
    lambda i, power: 2.0 ** (-8 * (power + i + 1) / power),
)
_rest(
    "alibi-between-from-0",
    "The exponents of the slopes in between start at 0: the first is 1",
    "they are the odd ones of twice as many: 2^(-4i/power) for odd i.",
    lambda i, power: 2.0 ** (-8 * i / power),
)
_rest(
    "alibi-between-by-power",
    "The slopes in between are odd powers of 2^(-8/power), not of its square root",
    "they belong to twice as many heads: 2^(-4i/power) for odd i.",
    lambda i, power: 2.0 ** (-8 * (2 * i + 1) / power),
)
_rest(
    "alibi-rest-zero",
    "All heads beyond the power of two get the slope 0",
    "they get slopes between those that are there: every other one of twice as many.",
    lambda i, power: 0.0,
)
_rest(
    "alibi-rest-all-flat",
    "All heads beyond the power of two get its last slope",
    "they get slopes between those that are there: every other one of twice as many.",
    lambda i, power: 2.0**-8,
)


@mistake(
    "alibi-rest-by-itself",
    "The heads beyond the power of two get the slopes of that many heads",
    "Right for a power of two only: 6 heads get those of 4 and those of 2.",
    "they get every other slope of twice as many heads as the power of two.",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return slopes if h == len(slopes) else slopes + mha.alibi_slopes(h - len(slopes)).tolist()


@mistake(
    "alibi-halved-for-every-h",
    "The slopes are 1/2, 1/4, 1/8, … for every h, each half of the one before",
    "Right for 8 heads only: for h heads the ratio is 2^(-8/h).",
    "2^(-8i/h) for a power of two; for another h, every other slope of twice as many in addition.",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return [2.0 ** -(i + 1) for i in range(h)]


@mistake(
    "alibi-whole-powers-in-front",
    "The slopes of the power of two are 1/2, 1/4, 1/8, … whatever h is",
    "Right for 8 heads, and for the slopes in between.",
    "the exponent is -8i / power.",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return [2.0 ** -(i + 1) for i in range(len(slopes))] + between[: h - len(slopes)]


@mistake(
    "alibi-from-0-in-front",
    "The exponents of the power of two start at 0, those in between do not",
    "The first slope is 1, and the flattest is missing.",
    "count from 1: 2^(-8i / power) for i from 1 to power.",
    stage="alibi_order",
)
def _(slopes: list[float], between: list[float], h: int) -> list[float]:
    return [2.0 ** (-8 * i / len(slopes)) for i in range(len(slopes))] + between[: h - len(slopes)]


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
    "alibi-one-too-many",
    "There are h + 1 slopes: i runs from 0 to h",
    "The first is 1, and there is no head for the last.",
    "2^(-8i/h) for i from 1 to h: range(1, h + 1).",
    stage="alibi_give",
)
def _(slopes: list[float]) -> Any:
    return torch.tensor([1.0, *slopes])


@mistake(
    "alibi-one-too-few",
    "There are h - 1 slopes: i ends at h - 1",
    "range(1, h) leaves h out: the last head has no slope.",
    "2^(-8i/h) for i from 1 to h: range(1, h + 1).",
    stage="alibi_give",
)
def _(slopes: list[float]) -> Any:
    return torch.tensor(slopes[:-1])


@mistake(
    "alibi-nothing-for-others",
    "Nothing comes back where h is no power of two",
    "The function ends without a return: None.",
    "for another h: the largest power of two below it, then every other slope of twice as many.",
    stage="alibi_give",
)
def _(slopes: list[float]) -> Any:
    return None if len(slopes) & (len(slopes) - 1) else torch.tensor(slopes)


@mistake(
    "alibi-integers",
    "2 is raised to integers: all slopes are 0",
    "A power of integers is an integer again, and 1/2 becomes 0.",
    "a float somewhere: 2.0 ** …, or torch.arange(…).float().",
    stage="alibi_give",
)
def _(slopes: list[float]) -> Any:
    return torch.tensor(slopes).long()


@mistake(
    "alibi-sum-1",
    "The slopes are divided by their sum",
    "They are no weights; with more heads all become flatter.",
    "return the powers of 2 as they are.",
    stage="alibi_give",
)
def _(slopes: list[float]) -> Any:
    return torch.tensor(slopes) / sum(slopes)


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
