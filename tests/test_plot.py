"""The heatmaps, by what their axes hold rather than by pixels."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from mha import plot

TOKENS = ["I", "see", "you"]


def probabilities(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.softmax(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def panels(figure: Figure) -> list:
    return [ax for ax in figure.axes if ax.axison and ax.get_label() != "<colorbar>"]


def grid(shown: list) -> tuple[int, int]:
    """Rows and columns, by where the panels stand."""
    places = [ax.get_position() for ax in shown]
    return len({round(place.y0, 4) for place in places}), len({round(place.x0, 4) for place in places})


def drawn(ax) -> np.ndarray:
    return np.asarray(ax.collections[0].get_array())


def ticks(axis) -> list[str]:
    return [text.get_text() for text in axis.get_ticklabels()]


def test_a_panel_per_head_holds_that_heads_weights():
    weights = probabilities(2, 3, 3)
    shown = panels(plot.heads(weights, TOKENS))
    assert [ax.get_title() for ax in shown] == ["Head 0", "Head 1"]
    for ax, head in zip(shown, weights.numpy(), strict=True):
        np.testing.assert_allclose(drawn(ax), head, rtol=1e-6)


def test_queries_are_rows_from_the_top_and_keys_are_columns():
    weights = torch.tensor([[[0.0, 1.0, 0.0], [0.25, 0.25, 0.5]]])  # (h=1, Lq=2, Lk=3)
    (ax,) = panels(plot.heads(weights, ["q0", "q1"], ["k0", "k1", "k2"]))
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("query", "key")
    assert (ticks(ax.yaxis), ticks(ax.xaxis)) == (["q0", "q1"], ["k0", "k1", "k2"])
    assert drawn(ax).shape == (2, 3)
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # row 0 on top


def test_the_scale_is_fixed_and_there_is_one_colour_bar():
    figure = plot.heads(torch.full((3, 2, 2), 0.5))
    assert {ax.collections[0].get_clim() for ax in panels(figure)} == {(0, 1)}
    bars = [ax for ax in figure.axes if ax.get_label() == "<colorbar>"]
    assert [bar.get_ylabel() for bar in bars] == ["attention weight"]


def test_the_colours_darken_steadily_so_that_they_print_in_grey():
    colours = panels(plot.heads(probabilities(1, 3, 3)))[0].collections[0].get_cmap()
    grey = [np.dot(to_rgb(colours(x)), (0.299, 0.587, 0.114)) for x in np.linspace(0, 1, 33)]
    assert np.all(np.diff(grey) < 0)
    assert grey[0] - grey[-1] > 0.6


def test_few_tokens_have_their_values_written_and_many_have_not():
    few = panels(plot.heads(torch.tensor([[[0.25, 0.75], [1.0, 0.0]]])))[0]
    assert [text.get_text() for text in few.texts] == ["0.25", "0.75", "1.00", "0.00"]
    assert not panels(plot.heads(probabilities(1, 9, 9)))[0].texts


def test_512_tokens_have_no_values_and_thinned_ticks():
    figure = plot.heads(probabilities(2, 512, 512), [f"t{i}" for i in range(512)])
    first = panels(figure)[0]
    assert not first.texts
    shown = ticks(first.xaxis)
    assert 10 < len(shown) < 60
    assert shown[1] == f"t{int(first.get_xticks()[1])}"  # thinned labels stand at their own token
    figure.draw_without_rendering()  # lets the layout settle
    inches = first.get_position().width * figure.get_figwidth()
    assert inches * figure.dpi > 512  # a pixel a token at least


@pytest.mark.parametrize("h, rows, columns", [(1, 1, 1), (4, 1, 4), (6, 2, 4), (12, 3, 4)])
def test_many_heads_are_laid_out_in_a_grid(h, rows, columns):
    shown = panels(plot.heads(probabilities(h, 3, 3)))
    assert (len(shown), *grid(shown)) == (h, rows, columns)


def test_columns_can_be_chosen():
    assert grid(panels(plot.heads(probabilities(12, 3, 3), columns=6))) == (2, 6)


def test_each_example_of_a_batch_has_its_own_rows_and_tokens():
    weights = probabilities(2, 2, 3, 3)
    shown = panels(plot.heads(weights, [["a", "b", "c"], ["d", "e", "f"]]))
    titles = [ax.get_title() for ax in shown]
    assert titles == ["Example 0, head 0", "Example 0, head 1", "Example 1, head 0", "Example 1, head 1"]
    np.testing.assert_allclose(drawn(shown[2]), weights[1, 0], rtol=1e-6)
    assert ticks(shown[0].yaxis) == ["a", "b", "c"]
    assert ticks(shown[2].yaxis) == ["d", "e", "f"]


def test_heads_can_be_called_by_name():
    weights = torch.eye(2).repeat(2, 2, 1, 1)
    titles = ["Layer 3, head 1", "Layer 5, head 11"]
    shown = panels(plot.heads(weights[0], titles=titles))
    assert [ax.get_title() for ax in shown] == titles
    assert panels(plot.heads(weights, titles=titles))[3].get_title() == "Example 1, layer 5, head 11"
    assert plot.summary(weights[0], titles=titles).splitlines()[3] == "Layer 5, head 11"


@pytest.mark.parametrize("titles", [["one"], "ab"])
def test_titles_that_do_not_fit_are_refused(titles):
    with pytest.raises(ValueError, match="titles is .*; it has to be a list of 2, one per head"):
        plot.heads(torch.eye(2).repeat(2, 1, 1), titles=titles)


@pytest.mark.parametrize("columns, error", [(0, ValueError), (1.5, TypeError)])
def test_columns_that_are_no_number_of_columns_are_refused(columns, error):
    with pytest.raises(error, match=f"columns={columns}"):
        plot.heads(torch.eye(2)[None], columns=columns)


def test_layers_have_a_row_each_and_heads_a_column():
    weights = probabilities(2, 3, 4, 4)
    for given in (weights, list(weights)):
        shown = panels(plot.layers(given, list("abcd")))
        assert grid(shown) == (2, 3)
        assert shown[4].get_title() == "Layer 1, head 1"
        np.testing.assert_allclose(drawn(shown[4]), weights[1, 1], rtol=1e-6)


def test_wrong_stands_beside_right_head_by_head():
    right = probabilities(2, 3, 3)
    wrong = right.transpose(-1, -2) * 1.5
    shown = panels(plot.compare(wrong, right, TOKENS))
    titles = [ax.get_title() for ax in shown]
    assert titles == ["Head 0, wrong", "Head 0, right", "Head 1, wrong", "Head 1, right"]
    np.testing.assert_allclose(drawn(shown[2]), wrong[1], rtol=1e-6)
    np.testing.assert_allclose(drawn(shown[3]), right[1], rtol=1e-6)


def test_both_sides_and_the_heads_can_be_called_by_name():
    right = probabilities(1, 3, 3)
    shown = panels(plot.compare(right, right, titles=["Layer 0, head 2"], sides=("no scale", "scaled")))
    assert [ax.get_title() for ax in shown] == ["Layer 0, head 2, no scale", "Layer 0, head 2, scaled"]


def test_a_nan_in_the_wrong_one_is_written_out():
    right = torch.full((1, 2, 2), 0.5)
    wrong = torch.tensor([[[0.5, 0.5], [torch.nan, torch.nan]]])
    texts = [text.get_text() for text in panels(plot.compare(wrong, right))[0].texts]
    assert sorted(texts) == ["0.50", "0.50", "NaN", "NaN"]


def test_the_summary_names_the_most_looked_at_key():
    weights = torch.tensor([[[0.2, 0.7, 0.1], [0.0, 0.0, 0.0], [0.5, 0.25, 0.25]]])
    assert plot.summary(weights, TOKENS).splitlines() == [
        "Head 0",
        "  I   → see 0.70",
        "  see → nothing (all keys masked)",
        "  you → I   0.50",
    ]


def test_the_summary_tells_examples_apart():
    said = plot.summary(torch.eye(2).repeat(2, 1, 1, 1), [["a", "b"], ["c", "d"]]).splitlines()
    assert said == ["Example 0, head 0", "  a → a 1.00", "  b → b 1.00"] + [
        "Example 1, head 0",
        "  c → c 1.00",
        "  d → d 1.00",
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_is_drawn_also_with_gradients(dtype):
    scores = torch.randn(2, 5, 200, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    figure = plot.heads(torch.softmax(scores, -1))
    assert drawn(panels(figure)[0]).shape == (5, 200)


def test_numpy_arrays_and_nested_lists_are_drawn_too():
    for weights in (np.full((1, 2, 2), 0.5), [[[0.5, 0.5], [0.5, 0.5]]]):
        np.testing.assert_array_equal(drawn(panels(plot.heads(weights))[0]), np.full((2, 2), 0.5))


def test_the_weights_are_left_as_they_were():
    weights = probabilities(2, 3, 3)
    before = weights.clone()
    plot.heads(weights)
    plot.compare(weights, weights)
    assert torch.equal(weights, before)


def test_dollars_in_a_token_are_no_formula():
    (ax,) = panels(plot.heads(torch.full((1, 2, 2), 0.5), ["$x$", "$\\frac"]))
    ax.figure.canvas.draw()
    ax.figure.draw_without_rendering()  # a formula that does not parse would raise here
    assert ticks(ax.xaxis) == ["$x$", "$\\frac"]


def test_no_global_state_of_matplotlib_is_touched():
    code = (
        "import matplotlib, torch; before = dict(matplotlib.rcParams);"
        "from mha import plot; w = torch.full((1, 2, 2), 0.5);"
        "plot.heads(w); plot.layers(w[None]); plot.compare(w, w);"
        "import matplotlib.pyplot as plt; print(plt.get_fignums(), before == dict(matplotlib.rcParams))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[] True"


def test_a_notebook_shows_the_figure_without_pyplot():
    png = plot.heads(probabilities(1, 3, 3))._repr_png_()
    assert png.startswith(b"\x89PNG")
    width, height = (int.from_bytes(png[i : i + 4], "big") for i in (16, 20))
    assert width > height > 200


@pytest.mark.parametrize(
    "weights, message",
    [
        (torch.ones(3, 3) / 3, r"weights has shape \(3, 3\).* or \(h, Lq, Lk\).*weights\[None\]"),
        (torch.ones(1, 1, 1, 3, 3) / 3, r"weights has shape \(1, 1, 1, 3, 3\)"),
        (torch.ones(2, 0, 3), r"weights has shape .*no axis empty"),
        (torch.tensor([[[0.5, 0.7]]]), r"weights\[0, 0, 0\] sums to 1.2 over the keys"),
        (torch.tensor([[[0.25, 0.25]]]), r"weights\[0, 0, 0\] sums to 0.5 over the keys"),
        (torch.tensor([[[1.5, -0.5]]]), r"weights\[0, 0, 0, 0\] is 1.5; .* between 0 and 1"),
        (torch.tensor([[[0.5, 0.5], [torch.nan, 1.0]]]), r"weights\[0, 0, 1, 0\] is nan"),
    ],
)
@pytest.mark.parametrize("draw", [plot.heads, plot.summary])
def test_weights_that_are_no_attention_weights_are_refused(draw, weights, message):
    with pytest.raises(ValueError, match=message):
        draw(weights)


def test_what_is_no_array_is_refused():
    with pytest.raises(TypeError, match="weights is a str that is no array of numbers"):
        plot.heads("attention")


@pytest.mark.parametrize(
    "tokens, error, message",
    [
        (["I", "see"], ValueError, r"tokens has 2 tokens, .*; the weights have 3 on that axis"),
        ("see", TypeError, r"tokens='see' is one string; it has to be a list of 3 tokens"),
        ([["I", "see", "you"]] * 3, ValueError, r"tokens holds 3 lists; the weights hold 1 examples"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(tokens, error, message):
    with pytest.raises(error, match=message):
        plot.heads(probabilities(1, 3, 3), tokens)


def test_key_tokens_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="key_tokens has 3 tokens, .*; the weights have 4"):
        plot.heads(probabilities(1, 3, 4), TOKENS, TOKENS)


def test_wrong_and_right_of_two_shapes_are_refused():
    with pytest.raises(ValueError, match=r"wrong has shape \(1, 2, 3, 3\) and right \(1, 1, 3, 3\)"):
        plot.compare(probabilities(2, 3, 3), probabilities(1, 3, 3))


def test_the_right_one_has_to_be_right():
    with pytest.raises(ValueError, match="sums to 2 over the keys"):
        plot.compare(torch.ones(1, 2, 2) / 2, torch.ones(1, 2, 2))


def test_examples_with_keys_of_their_own_are_labelled_each():
    weights = torch.full((2, 1, 2, 2), 0.5)
    below = [
        [label.get_text() for label in ax.get_xticklabels()]
        for ax in plot.heads(weights, [["a", "b"], ["c", "d"]]).axes[:2]
    ]
    assert below == [["a", "b"], ["c", "d"]]
    below = [len(ax.get_xticklabels()) for ax in plot.heads(weights, ["a", "b"]).axes[:2]]
    assert below == [0, 2]


LONG = ["[CLS]", "incomprehensibilities", "WWWWWWWW", "i"]


@pytest.mark.parametrize(
    "figure",
    [
        lambda: plot.heads(probabilities(2, 3, 3), TOKENS),
        lambda: plot.heads(probabilities(1, 2, 4), ["q0", "q1"], LONG),
        lambda: plot.heads(probabilities(5, 4, 4), LONG),
        lambda: plot.heads(probabilities(2, 2, 4, 4), [LONG, list("abcd")]),
        lambda: plot.heads(probabilities(3, 64, 64)),
        lambda: plot.layers(probabilities(3, 6, 4, 4), LONG),
        lambda: plot.compare(probabilities(3, 3, 5), probabilities(3, 3, 5)),
        lambda: plot.compare(probabilities(1, 1, 1), probabilities(1, 1, 1)),
    ],
)
def test_nothing_lies_over_another_or_beyond_the_edge(figure):
    figure = figure()
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [ax.get_tightbbox(renderer) for ax in figure.axes]
    for n, box in enumerate(boxes):
        assert box.x0 >= 0 and box.y0 >= 0
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
        for other in boxes[:n]:
            apart = box.x0 >= other.x1 or other.x0 >= box.x1 or box.y0 >= other.y1 or other.y0 >= box.y1
            assert apart, (box, other)
