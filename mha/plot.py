"""Attention weights as heatmaps, one panel per head, and the same in words.

Every panel has the queries on its rows and the keys on its columns, on a scale fixed at 0 to 1. The functions
return a figure and leave matplotlib's global state alone: no pyplot figure is opened, no setting is changed.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mha._validate import check_size

Weights: TypeAlias = Tensor | ArrayLike
Tokens: TypeAlias = Sequence[str]

_COLOURS = "Blues"  # one hue, light to dark: safe for colour-blind readers, and it prints in grey
_MOST_LABELLED = 8  # with more tokens than this, values in the cells are too small to read
_LABEL_INCHES = 0.15  # height of one tick label
_LETTER_INCHES = 0.08  # width of one of its letters


def heads(
    weights: Weights,
    tokens: Tokens | Sequence[Tokens] | None = None,
    key_tokens: Tokens | Sequence[Tokens] | None = None,
    *,
    titles: Sequence[str] | None = None,
    columns: int | None = None,
) -> Figure:
    """Draw one heatmap per head.

    Args:
        weights: (h, Lq, Lk), or (B, h, Lq, Lk) with each example on rows of its own.
        tokens: the Lq query tokens, for all examples or one list per example; positions are shown without.
        key_tokens: the Lk key tokens likewise; `tokens` again where Lq = Lk.
        titles: what the h heads are called; "Head 0", "Head 1" … unless given.
        columns: panels in a row, at most 4 unless given.

    Returns:
        the figure, with one colour bar for all panels.

    Raises:
        TypeError, ValueError: if the weights have another number of axes or are not probabilities over the
            keys, or if the tokens or titles do not match their lengths.
    """
    if columns is not None:
        check_size("columns", columns)
    blocks = [
        [_Panel(name, head, queries, keys) for name, head in named]
        for queries, keys, named in _examples(weights, tokens, key_tokens, titles)
    ]
    return _draw(_wrap(blocks, columns or min(4, len(blocks[0]))))


def layers(
    weights: Weights | Sequence[Tensor], tokens: Tokens | None = None, key_tokens: Tokens | None = None
) -> Figure:
    """Draw every head of a whole model: one row per layer, one column per head.

    Args:
        weights: (layers, h, Lq, Lk), or a sequence of one (h, Lq, Lk) per layer.
        tokens, key_tokens: as for `heads`.

    Raises:
        TypeError, ValueError: as for `heads`.
    """
    if isinstance(weights, list | tuple):
        weights = np.stack([_as_array(layer) for layer in weights])
    model = _as_array(weights)
    _check_axes(model, ("layers", "h", "Lq", "Lk"))
    _check_probabilities(model)
    ((queries, keys),) = _label_batch((1, *model.shape[1:]), tokens, key_tokens)
    rows = [
        [_Panel(f"Layer {n}, head {i}", head, queries, keys) for i, head in enumerate(layer)]
        for n, layer in enumerate(model)
    ]
    return _draw(rows, inches=1.3)


def compare(
    wrong: Weights,
    right: Weights,
    tokens: Tokens | None = None,
    key_tokens: Tokens | None = None,
    *,
    titles: Sequence[str] | None = None,
    sides: tuple[str, str] = ("wrong", "right"),
) -> Figure:
    """Draw what a mistake gives beside what is right, one row per head.

    Args:
        wrong: (h, Lq, Lk) or (1, h, Lq, Lk), any numbers at all: NaN is drawn grey, and a value outside
            0 to 1 gets the colour of the nearer end.
        right: of the same shape, probabilities over the keys.
        tokens, key_tokens, titles: as for `heads`.
        sides: what the left and the right column are called.

    Raises:
        TypeError, ValueError: as for `heads`; also if the two shapes differ.
    """
    left, shape = _as_batch(wrong), _as_batch(right).shape
    if left.shape != shape or shape[0] != 1:
        raise ValueError(
            f"wrong has shape {left.shape} and right {shape}; both have to be one and the same (h, Lq, Lk)"
        )
    ((queries, keys, named),) = _examples(right, tokens, key_tokens, titles)
    rows = []
    for wrong_head, (name, right_head) in zip(left[0], named, strict=True):
        pair = zip(sides, (wrong_head, right_head), strict=True)
        rows.append([_Panel(f"{name}, {side}", head, queries, keys) for side, head in pair])
    return _draw(rows)


def summary(
    weights: Weights,
    tokens: Tokens | Sequence[Tokens] | None = None,
    key_tokens: Tokens | Sequence[Tokens] | None = None,
    *,
    titles: Sequence[str] | None = None,
) -> str:
    """Say in words what `heads` draws: for each head and query, the key it looks at most, and how much.

    Args and errors are those of `heads`. A query with all its keys masked looks at nothing.
    """
    lines = []
    for queries, keys, named in _examples(weights, tokens, key_tokens, titles):
        for name, head in named:
            lines += [name, *_say_rows(head, queries, keys)]
    return "\n".join(lines)


def _say_rows(head: NDArray[np.float64], queries: Tokens, keys: Tokens) -> Iterator[str]:
    width = max(map(len, queries), default=0)
    key_width = max(map(len, keys), default=0)
    for query, row in zip(queries, head, strict=True):
        if not row.any():
            yield f"  {query:<{width}} → nothing (all keys masked)"
        else:
            most = int(row.argmax())
            yield f"  {query:<{width}} → {keys[most]:<{key_width}} {row[most]:.2f}"


# ---------------------------------------------------------------- what may be drawn


def _as_array(weights: Any) -> NDArray[np.float64]:
    if isinstance(weights, Tensor):
        weights = weights.detach().to("cpu", torch.float64).numpy()  # NumPy knows no bfloat16
    try:
        return np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"weights is a {type(weights).__name__} that is no array of numbers: {error}"
        ) from error


def _as_batch(weights: Weights) -> NDArray[np.float64]:
    array = _as_array(weights)
    if array.ndim == 3:
        array = array[None]
    _check_axes(array, ("B", "h", "Lq", "Lk"), also=" or (h, Lq, Lk)")
    return array


def _check_axes(array: NDArray[np.float64], axes: tuple[str, ...], also: str = "") -> None:
    if array.ndim != len(axes) or 0 in array.shape:
        hint = ". A single head: weights[None]" if array.ndim == 2 else ""
        raise ValueError(
            f"weights has shape {array.shape}; it has to be ({', '.join(axes)}){also}, no axis empty{hint}"
        )


def _check_probabilities(weights: NDArray[np.float64]) -> None:
    wrong = ~((weights >= 0) & (weights <= 1.001))  # NaN is wrong too; half precision may round past 1
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        raise ValueError(
            f"weights{list(at)} is {weights[at]:.4g}; attention weights lie between 0 and 1. Scores before "
            "the softmax, or weights under dropout (call .eval() on the layer)?"
        )
    sums = weights.sum(-1)
    wrong = ~(np.isclose(sums, 1, atol=0.02) | (sums == 0))  # the slack is what bfloat16 needs
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        raise ValueError(
            f"weights{list(at)} sums to {sums[at]:.4g} over the keys; every query's weights sum to 1, or to "
            "0 where all its keys are masked. A softmax over another axis, or weights under dropout (call "
            ".eval() on the layer)?"
        )


def _examples(
    weights: Weights,
    tokens: Tokens | Sequence[Tokens] | None,
    key_tokens: Tokens | Sequence[Tokens] | None,
    titles: Sequence[str] | None,
) -> Iterator[tuple[Tokens, Tokens, list[tuple[str, NDArray[np.float64]]]]]:
    """Yield each example's query tokens, key tokens and named heads, all of them checked first."""
    batch = _as_batch(weights)
    _check_probabilities(batch)
    if titles is not None and (isinstance(titles, str) or len(titles) != batch.shape[1]):
        raise ValueError(f"titles is {titles!r}; it has to be a list of {batch.shape[1]}, one per head")
    labels = _label_batch(batch.shape, tokens, key_tokens)
    for b, ((queries, keys), example) in enumerate(zip(labels, batch, strict=True)):
        names = titles or [f"Head {i}" for i in range(len(example))]
        if len(batch) > 1:
            names = [f"Example {b}, {name[0].lower()}{name[1:]}" for name in names]
        yield queries, keys, list(zip(names, example, strict=True))


def _label_batch(
    shape: tuple[int, ...],
    tokens: Tokens | Sequence[Tokens] | None,
    key_tokens: Tokens | Sequence[Tokens] | None,
) -> list[tuple[Tokens, Tokens]]:
    B, _, Lq, Lk = shape
    if key_tokens is None and Lq == Lk:
        key_tokens = tokens
    queries = _labels("tokens", tokens, B, Lq)
    return list(zip(queries, _labels("key_tokens", key_tokens, B, Lk), strict=True))


def _labels(name: str, tokens: Tokens | Sequence[Tokens] | None, B: int, L: int) -> list[Tokens]:
    if tokens is None:
        return [[str(i) for i in range(L)]] * B
    if isinstance(tokens, str):
        raise TypeError(f"{name}={tokens!r} is one string; it has to be a list of {L} tokens")
    shared = all(isinstance(token, str) for token in tokens)
    per_example = [list(tokens)] * B if shared else [list(row) for row in tokens]
    if len(per_example) != B:
        raise ValueError(f"{name} holds {len(per_example)} lists; the weights hold {B} examples")
    for row in per_example:
        if len(row) != L:
            raise ValueError(f"{name} has {len(row)} tokens, {row}; the weights have {L} on that axis")
    return [[token.replace("\n", "\\n") for token in row] for row in per_example]


# ---------------------------------------------------------------- drawing


class NotebookFigure(Figure):
    """A figure that a notebook shows although pyplot, which would see to it, has never heard of it."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self.savefig(png, format="png")
        return png.getvalue()


@dataclass(frozen=True)
class _Panel:
    title: str
    weights: NDArray[np.float64]  # (Lq, Lk)
    queries: Tokens
    keys: Tokens


def _wrap(blocks: list[list[_Panel]], columns: int) -> list[list[_Panel]]:
    return [block[i : i + columns] for block in blocks for i in range(0, len(block), columns)]


def _draw(rows: list[list[_Panel]], inches: float | None = None) -> Figure:
    """Draw the panels, in inches from the edges: matplotlib's own layout takes as long as all the rest."""
    columns = max(map(len, rows))
    Lq, Lk = rows[0][0].weights.shape
    size = inches or _panel_inches(max(Lq, Lk))
    width, height = size * Lk / max(Lq, Lk), size * Lq / max(Lq, Lk)
    small = max(width, height) < 2
    left, between = _left_of_panels(rows, small), 0.06 if small else 0.3
    named = [[_names_keys(rows, r, c) for c in range(len(row))] for r, row in enumerate(rows)]
    above = 0.2 if small else 0.35
    below = [_below_row(row, names, width, small) for row, names in zip(rows, named, strict=True)]
    right = left + columns * width + (columns - 1) * between
    figure = NotebookFigure(figsize=(right + 1.15, 0.05 + sum(above + height + space for space in below)))
    top = figure.get_figheight() - 0.05
    for r, row in enumerate(rows):
        top -= above + height
        for c, panel in enumerate(row):
            ax = _axes_at(figure, left + c * (width + between), top, width, height)
            _draw_panel(ax, panel, width, height, name_queries=c == 0, name_keys=named[r][c])
        top -= below[r]
    _add_colour_bar(figure, right + 0.2, below[-1])
    return figure


def _axes_at(figure: Figure, x: float, y: float, width: float, height: float) -> Axes:
    W, H = figure.get_size_inches()
    return figure.add_axes((x / W, y / H, width / W, height / H))


def _names_keys(rows: list[list[_Panel]], r: int, c: int) -> bool:
    """Whether key tokens stand below: under a column, and where the rows below are of another example."""
    lowest = r + 1 == len(rows) or c >= len(rows[r + 1])
    return lowest or rows[r][c].keys != rows[r + 1][c].keys


def _left_of_panels(rows: list[list[_Panel]], small: bool) -> float:
    longest = max(len(token) for row in rows for token in row[0].queries)
    return (0.25 if small else 0.4) + longest * _LETTER_INCHES


def _below_row(row: list[_Panel], named: list[bool], width: float, small: bool) -> float:
    space = 0.04 if small else 0.22
    names = [_longest(panel.keys) for panel, is_named in zip(row, named, strict=True) if is_named]
    if not names:
        return space
    is_upright = any(_stands_upright(panel.keys, width) for panel in row)
    return max(space, 0.2) + 0.2 + (max(names) if is_upright else 0.05)


def _longest(labels: Tokens) -> float:
    """Return the width of the longest label in inches."""
    return max(map(len, labels)) * _LETTER_INCHES


def _stands_upright(keys: Tokens, width: float) -> bool:
    return _longest(keys) > width / len(keys)


def _add_colour_bar(figure: Figure, x: float, below: float) -> None:
    height = figure.get_figheight()
    low, high = below, height - 0.35
    shrunk = 0.8 * (high - low) if high - low > 3 else high - low
    bar_axes = _axes_at(figure, x, (low + high - shrunk) / 2, 0.13, shrunk)
    bar_axes.set_label("<colorbar>")  # as matplotlib calls it
    bar = figure.colorbar(figure.axes[0].collections[0], cax=bar_axes)
    bar.set_label("attention weight")


def _panel_inches(L: int) -> float:
    # Few tokens need room for the numbers in their cells, hundreds of them need a pixel each.
    return max(2.2, 0.5 * L) if L <= _MOST_LABELLED else min(max(2.6, 0.012 * L), 6.0)


def _draw_panel(
    ax: Axes, panel: _Panel, width: float, height: float, *, name_queries: bool, name_keys: bool
) -> None:
    small = max(width, height) < 2
    labelled = max(panel.weights.shape) <= _MOST_LABELLED and not small
    sns.heatmap(
        panel.weights, ax=ax, vmin=0, vmax=1, cmap=_COLOURS, cbar=False, square=True, rasterized=True,
        annot=labelled, fmt=".2f", annot_kws={"size": 9}, xticklabels=False, yticklabels=False,
    )  # fmt: skip
    _mark_nan(ax, panel.weights, labelled)
    ax.set_title(panel.title, fontsize=7 if small else 11)
    if name_queries or not small:
        ax.set_ylabel("query", fontsize=7 if small else 9)
    if name_keys or not small:
        ax.set_xlabel("key", fontsize=7 if small else 9)
    if name_queries:
        _name_ticks(ax.yaxis, panel.queries, height, rotation=0)
    if name_keys:
        _name_ticks(ax.xaxis, panel.keys, width, rotation=90 if _stands_upright(panel.keys, width) else 0)
    for spine in ax.spines.values():
        spine.set(visible=True, color="0.6")


def _name_ticks(axis: Axis, labels: Tokens, inches: float, rotation: int) -> None:
    step = max(1, int(np.ceil(len(labels) * _LABEL_INCHES / inches)))
    at = np.arange(0, len(labels), step)
    axis.set_ticks(at + 0.5, [labels[i] for i in at], fontsize=8, rotation=rotation)
    for text in axis.get_ticklabels():
        text.set_parse_math(False)  # a token is no formula: "$x$" stays as it is


def _mark_nan(ax: Axes, weights: NDArray[np.float64], labelled: bool) -> None:
    ax.set_facecolor("0.8")
    if labelled:
        for query, key in np.argwhere(np.isnan(weights)):
            ax.text(key + 0.5, query + 0.5, "NaN", ha="center", va="center", size=9)
