"""The catalogue as pictures: what each mistake looks like, its symptoms, and where it first shows.

Nothing here is written by hand: `index` and `page` ask `mha.check.symptoms`, which puts each entry in and
looks.
"""

import functools
import html
import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from numpy.typing import NDArray
from PIL import Image  # matplotlib's own
from torch import Tensor

import mha
from mha.check.catalogue import CATALOGUE, Mistake
from mha.check.exercises import EXERCISES
from mha.check.outcome import run
from mha.check.symptoms import (
    LAYER_EXERCISE,
    SILENT,
    SYMPTOMS,
    UNSEEN,
    Scene,
    Trial,
    home,
    one_thread,
    place,
    sights,
    symptoms,
    symptoms_of,
    trial_of,
)
from mha.plot import NotebookFigure

TOKENS = ("I", "see", "you", "now")
# The chapters of what no stage of a pipeline is to blame for.
RESULT = "result"  # how a result stands to the right one
ERROR = "error"  # what an error means
BEHAVIOUR = "behaviour"  # what one call does not show

Map = NDArray[np.float64]  # (Lq, Lk), or (n,) for a row of numbers


# ---------------------------------------------------------------- the book and its chapters


def chapter_of(entry: Mistake) -> str:
    """Return the chapter of an entry: a stage of the layer, else the exercise in which it can be made."""
    exercise = home(entry)
    if exercise is None:
        return ERROR if entry.stage == ERROR else BEHAVIOUR if UNSEEN in symptoms_of(entry) else RESULT
    return entry.stage if exercise is LAYER_EXERCISE else exercise.name


def chapters() -> dict[str, list[Mistake]]:
    """Return the whole catalogue by chapters: the layer's stages, the exercises, then what is of neither."""
    order = [*LAYER_EXERCISE.stages, *EXERCISES, RESULT, ERROR, BEHAVIOUR]
    found: dict[str, list[Mistake]] = {}
    for entry in sorted(CATALOGUE.values(), key=lambda entry: order.index(chapter_of(entry))):
        found.setdefault(chapter_of(entry), []).append(entry)
    return found


class Table:
    """Rows that a notebook shows as a table, and `print` as plain text."""

    def __init__(self, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
        self.heads, self.rows = heads, rows

    def _repr_markdown_(self) -> str:
        lines = [self.heads, (":--",) * len(self.heads), *self.rows]
        return "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )

    def __str__(self) -> str:
        return "\n".join(" · ".join(row) for row in self.rows)

    def __repr__(self) -> str:
        return f"<a table of {len(self.rows)} mistakes>"


class Index:
    """Each symptom with the mistakes that show it; in a notebook, a list to unfold."""

    def __init__(self, by_symptom: dict[str, list[Mistake]]) -> None:
        self.by_symptom = by_symptom

    def _repr_html_(self) -> str:
        blocks = []
        for symptom, entries in self.by_symptom.items():
            items = "".join(
                f"<li><code>{entry.id}</code> {html.escape(entry.title)}</li>" for entry in entries
            )
            summary = f"<summary><b>{html.escape(symptom)}</b> ({len(entries)})</summary>"
            blocks.append(f"<details>{summary}<ul>{items}</ul></details>")
        return "\n".join(blocks)

    def __repr__(self) -> str:
        return "\n".join(f"{len(entries):4}  {symptom}" for symptom, entries in self.by_symptom.items())


def index() -> Index:
    """Return the catalogue by symptom."""
    names = (*SYMPTOMS, SILENT, UNSEEN)
    found = {name: [entry for entry in CATALOGUE.values() if name in symptoms_of(entry)] for name in names}
    return Index({name: entries for name, entries in found.items() if entries})


def look_up(*names: str) -> Table:
    """Return the mistakes that show all of these symptoms.

    Raises:
        ValueError: if there is no such symptom.
    """
    known = index().by_symptom
    for name in names:
        if name not in known:
            raise ValueError(f"symptom={name!r} is not known; there are {', '.join(known)}")
    return _table([entry for entry in CATALOGUE.values() if set(names) <= set(symptoms_of(entry))])


def examine(name: str, answer: Callable[..., Any]) -> tuple[str, ...]:
    """Return the symptoms of a function of your own, measured as those of the catalogue are.

    Args:
        name: the exercise that it answers, such as "scaled_dot_product_attention".
        answer: the function, with that exercise's signature.

    Returns:
        the names of its symptoms; none if it is right on all inputs that were tried.

    Raises:
        ValueError: if there is no such exercise.
    """
    if name not in EXERCISES:
        raise ValueError(f"name={name!r} is no exercise; there are {', '.join(EXERCISES)}")
    return symptoms(Trial(place(name), EXERCISES[name].drive(answer), run))


def page(*names: str) -> list[Any]:
    """Return what to `display` of these chapters: a picture for each exercise, and the table.

    Raises:
        ValueError: if there is no such chapter.
    """
    book = chapters()
    for name in names:
        if name not in book:
            raise ValueError(f"chapter={name!r} is not in the atlas; there are {', '.join(book)}")
    entries = [entry for name in names for entry in book[name]]
    pictures = (picture(list(some)) for _, some in itertools.groupby(entries, _exercise_of))
    return [*filter(None, pictures), _table(entries)]


def _exercise_of(entry: Mistake) -> str:
    exercise = home(entry)
    return "" if exercise is None else exercise.name


def _table(entries: list[Mistake]) -> Table:
    rows = [
        (f"`{entry.id}`", entry.title, "; ".join(symptoms_of(entry)), _first(entry), entry.effect)
        for entry in entries
    ]
    return Table(("id", "what was done", "symptoms", "first shows on", "how to recognise it"), rows)


def _first(entry: Mistake) -> str:
    trial = trial_of(entry)
    if trial is not None:
        return trial.first
    return "several calls, or training" if UNSEEN in symptoms_of(entry) else "any input"


# ---------------------------------------------------------------- what there is to draw


@dataclass(frozen=True, eq=False)
class Look:
    """The maps of one mistake beside the right ones, on one input."""

    entry: Mistake
    sight: str
    wrong: list[Map]  # of at most two heads
    right: list[Map]


@functools.cache
@one_thread()
def looks_of(entry: Mistake) -> dict[str, Look]:
    """Return how a mistake looks on each input on which it can be told from the right code."""
    trial, found = trial_of(entry), {}
    for sight, wrongs, rights in () if trial is None else _views(trial):
        for wrong, right in zip(map(_heads, wrongs), map(_heads, rights), strict=False):
            if sight not in found and _can_be_told(wrong, right):
                found[sight] = Look(entry, sight, *_each_once(wrong, right))
    return found


def _views(trial: Trial) -> Iterator[tuple[str, list[Tensor], list[Tensor]]]:
    """Yield each input by name, and what can be drawn of the results of the wrong and of the right code.

    Where values are mixed, that is what was taken of one-hot ones; else what comes of its own inputs.
    """
    if any(form.keys() & {"V", "v"} for form in trial.place.forms):
        for sight, given in sights().items():
            calls = trial.place.seen(given)
            for (arguments, _), (wrong, right) in zip(calls, trial.seen(given), strict=True):
                settings = [f"{name}=True" for name, value in arguments.items() if value is True]
                yield ", ".join([sight, *settings]), _taken(wrong, given), _taken(right, given)
        return
    for case, given in trial.failures:
        if case.conditions is None:
            wrong, right = given.value, case.right.value
            if "positions" in case.arguments:
                # What is rotated is drawn as ones, so that the picture shows the angles and nothing else.
                ones = case.arguments | {"x": torch.ones_like(case.arguments["x"])}
                wrong, right = (run(code, ones).value for code in (trial.wrong, trial.place.right))
            start = 1 if _has_weights(right) else 0
            yield case.shows, _tensors(wrong)[start:], _tensors(right)[start:]


def _has_weights(value: Any) -> bool:
    return (
        isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Tensor) and value[1].ndim == 4
    )


def _tensors(value: Any) -> list[Tensor]:
    parts = value if isinstance(value, tuple | list) else [value]
    return [x for x in parts if isinstance(x, Tensor) and x.numel() > 1]


def _taken(value: Any, given: Scene) -> list[Tensor]:
    """Return what each query took of each one-hot value, which is the output by heads, then the weights."""
    tensors, h = _tensors(value), given.w.num_heads
    if tensors and tensors[0].ndim == 3 and tensors[0].size(-1) % h == 0:
        tensors[0] = mha.split_heads(tensors[0], h)
    return tensors


def _heads(x: Tensor) -> list[Map]:
    """Return what there is room for: of the first example, two heads."""
    array = x.double().numpy()
    if array.ndim == 1:
        return [array]
    array = array.squeeze()
    while array.ndim > 3:
        array = array[0]
    return list(array[:2]) if array.ndim == 3 else [np.atleast_2d(array)]


def _can_be_told(wrong: list[Map], right: list[Map]) -> bool:
    if [x.shape for x in wrong] != [x.shape for x in right]:
        return False
    return any(
        not np.allclose(a, b, rtol=0, atol=0.01, equal_nan=True) for a, b in zip(wrong, right, strict=True)
    )


def _each_once(wrong: list[Map], right: list[Map]) -> tuple[list[Map], list[Map]]:
    """Leave one head away where both are alike."""
    alike = all(len(x) == 2 and np.allclose(*x, equal_nan=True) for x in (wrong, right))
    return (wrong[:1], right[:1]) if alike else (wrong, right)


def _on_few_inputs(entries: list[Mistake]) -> dict[str, list[Look]]:
    """Group the entries by input: each under the one that shows most of them.

    Of the inputs made for the atlas it is the simplest that shows nearly as many.
    """
    looks = [found for found in map(looks_of, entries) if found]
    shown = Counter(sight for found in looks for sight in found)
    groups: dict[str, list[Look]] = {}
    for found in looks:
        enough = (0.75 if all(map(_is_ours, found)) else 1) * max(map(shown.__getitem__, found))
        sight = next(sight for sight in found if shown[sight] >= enough)
        groups.setdefault(sight, []).append(found[sight])
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def _is_ours(sight: str) -> bool:
    """Whether this is an input of `TOKENS`, not one of an exercise."""
    return sight.startswith(tuple(sights()))


# ---------------------------------------------------------------- drawing, in inches

_COLUMNS = 5
_MAP = 0.92  # the longer side of a map
_PANEL = 2 * _MAP + 0.38  # two maps, and what lies between panels
_TITLE = 0.36  # above each row of maps: the id, and the title in one line
_HEADER = 0.3  # above each group: on which input
_LEFT, _BELOW = 0.4, 0.26  # room for the tokens
_RIGHT = 0.5  # room for the colour bar

Corners = list[tuple[float, float]]


class AtlasFigure(NotebookFigure):
    """A figure of few colours, which a palette stores in a third of the space."""

    def _repr_png_(self) -> bytes:
        canvas, png = FigureCanvasAgg(self), io.BytesIO()
        with rc_context({"text.hinting": "no_hinting"}):  # there is much to write, and this is the quickest
            canvas.draw()
        image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        image.quantize(64, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(png, "png")
        return png.getvalue()


class _Canvas:
    """Maps at places of one sheet: few large artists, which draw many times faster than an axes for each."""

    def __init__(self) -> None:
        self.cells: list[Corners] = []
        self.values: list[float] = []
        self.bars: list[Corners] = []
        self.frames: dict[bool, list[Corners]] = {True: [], False: []}

    def add(self, array: Map, x: float, y: float, is_right: bool, as_bars: bool) -> None:
        rows, columns = np.atleast_2d(array).shape
        step = _MAP / max(rows, columns)
        if as_bars:
            tops = y + _MAP * (1 - np.clip(np.nan_to_num(array), 0, 1))
            edges = [x + step * i for i in range(columns)]
            self.bars += [
                _corners(left, top, 0.8 * step, y + _MAP - top) for left, top in zip(edges, tops, strict=True)
            ]
            self.frames[is_right].append(_corners(x, y, _MAP, _MAP))
            return
        for row, column in np.ndindex(rows, columns):
            self.cells.append(_corners(x + column * step, y + row * step, step, step))
        self.values += np.atleast_2d(array).ravel().tolist()
        self.frames[is_right].append(_corners(x, y, columns * step, rows * step))

    def put_on(self, ax: Axes, colours: ScalarMappable) -> None:
        cells = PolyCollection(self.cells, cmap=colours.get_cmap(), norm=colours.norm, edgecolors="none")
        # Beyond the scale all look alike, and numbers near float64's largest would overflow in drawing.
        cells.set_array(np.ma.masked_invalid(self.values).clip(colours.norm.vmin, colours.norm.vmax))
        ax.add_collection(cells, autolim=False)
        ax.add_collection(PolyCollection(self.bars, facecolors="C0"), autolim=False)
        for is_right, edge in (
            (False, {"edgecolors": "0.6"}),
            (True, {"edgecolors": "black", "linewidths": 2}),
        ):
            ax.add_collection(PolyCollection(self.frames[is_right], facecolors="none", **edge), autolim=False)


def _corners(x: float, y: float, width: float, height: float) -> Corners:
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]


def picture(entries: list[Mistake]) -> NotebookFigure | None:
    """Draw those entries that look other than the right code, by inputs, the right maps first and framed.

    Args:
        entries: mistakes of one exercise, since they share the right maps and the scale.

    Returns:
        the figure; None if there is nothing to draw.
    """
    groups = _on_few_inputs(entries)
    if not groups:
        return None
    rows = {sight: -(-(len(looks) + 1) // _COLUMNS) for sight, looks in groups.items()}
    steps = {sight: _TITLE + _BELOW + max(map(_height, looks[0].right)) for sight, looks in groups.items()}
    width = _LEFT + _COLUMNS * _PANEL + _RIGHT
    height = max(2.4, sum(_HEADER + rows[sight] * steps[sight] for sight in groups))
    figure = AtlasFigure(figsize=(width, height), dpi=80)
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    canvas, top = _Canvas(), 0.0
    colours = _colours([look for looks in groups.values() for look in looks])
    for sight, looks in groups.items():
        ax.text(0.05, top + 0.2, sight, fontsize=9, weight="bold")
        _place_group(canvas, ax, looks, top + _HEADER, steps[sight], as_bars=colours.norm.vmin == 0)
        top += _HEADER + rows[sight] * steps[sight]
    canvas.put_on(ax, colours)
    if canvas.cells:
        _add_colour_bar(figure, colours, "weight" if colours.norm.vmin == 0 else "value")
    return figure


def _height(array: Map) -> float:
    return _MAP * array.shape[0] / max(array.shape) if array.ndim == 2 else _MAP


def _place_group(
    canvas: _Canvas, ax: Axes, looks: list[Look], top: float, step: float, as_bars: bool
) -> None:
    on_tokens = _is_ours(looks[0].sight)
    panels = [("right", "head 0, head 1" if on_tokens else "", looks[0].right)]
    panels += [(look.entry.id, look.entry.title, look.wrong) for look in looks]
    for i, (name, title, maps) in enumerate(panels):
        x, y = _LEFT + i % _COLUMNS * _PANEL, top + i // _COLUMNS * step + _TITLE
        text = f"{name}\n{title if len(title) < 38 else title[:36] + '…'}"
        ax.text(x, y - 0.04, text, fontsize=7, va="bottom", parse_math=False)
        for head, array in enumerate(maps):
            canvas.add(array, x + head * (_MAP + 0.06), y, i == 0, as_bars and array.ndim == 1)
    if on_tokens:
        _name_tokens(ax, len(looks[0].right[0]), _LEFT, top + _TITLE)


def _name_tokens(ax: Axes, Lq: int, x: float, y: float) -> None:
    """Write the tokens beside the right map of a group: queries on its left, keys below."""
    step, small = _MAP / len(TOKENS), {"fontsize": 7}
    ax.text(x - 0.04, y - 0.06, "query", ha="right", style="italic", **small)
    for i, token in enumerate(TOKENS[-Lq:]):
        ax.text(x - 0.04, y + (i + 0.5) * step, token, ha="right", va="center", **small)
    for i, token in enumerate(TOKENS):
        ax.text(x + (i + 0.5) * step, y + Lq * step + 0.03, token, ha="center", va="top", **small)
    ax.text(x + _MAP + 0.06, y + Lq * step + 0.03, "key", va="top", style="italic", **small)


def _colours(looks: list[Look]) -> ScalarMappable:
    """Return the scale: 0 to 1 for weights and masks, else as far both ways as the right numbers reach."""
    right = np.concatenate([array.ravel() for look in looks for array in look.right])
    reach = float(abs(right).max())
    one_sided = right.min() > -0.01 and reach < 1.01
    colours = ScalarMappable(
        *((Normalize(0, 1), "Blues") if one_sided else (Normalize(-reach, reach), "RdBu"))
    )
    colours.set_cmap(colours.get_cmap().with_extremes(bad="0.75"))  # NaN is grey
    return colours


def _add_colour_bar(figure: NotebookFigure, colours: ScalarMappable, name: str) -> None:
    width, height = figure.get_size_inches()
    bar = figure.add_axes((1 - 0.5 / width, 1 - 2.1 / height, 0.1 / width, 1.7 / height))
    figure.colorbar(colours, cax=bar).ax.tick_params(labelsize=7)
    bar.set_title(name, fontsize=7)
