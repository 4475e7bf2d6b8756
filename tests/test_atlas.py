"""The atlas: what each mistake is known by, against what is known of it, and what the pictures hold."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import mha
from mha import check
from mha.check import atlas, symptoms
from mha.check.catalogue import CATALOGUE, Mistake
from mha.check.symptoms import SILENT, SYMPTOMS, UNSEEN

# What follows from the code of each mistake, as a reader would say it.
KNOWN = {
    "scale-missing": {"weights nearly one-hot", "trains, but slowly"},
    "scale-multiplied": {"weights nearly one-hot", "trains, but slowly"},
    "scale-by-d_k": {"weights nearly uniform", "trains, but slowly"},
    "score-cosine": {"weights nearly uniform", "trains, but slowly"},
    "scale-by-d_model": {"fails only with more than one head"},
    "softmax-over-queries": {"rows do not sum to one", "a masked token leaks", "the future leaks"},
    "softmax-over-heads": {"rows do not sum to one"},
    "softmax-over-batch": {"rows do not sum to one", "another example of the batch leaks"},
    "softmax-overflow": {"NaN", "fails only for large scores"},
    "mask-empty-row-nan": {"NaN", "fails only for a fully masked row"},
    "mask-empty-row-uniform": {"a masked token leaks", "fails only for a fully masked row"},
    "mask-after-softmax": {
        "rows do not sum to one",
        "a masked token leaks",
        "the future leaks",
        "fails only with a mask",
    },
    "mask-half-overflow": {"raises an error", "fails only with a mask", "fails only in half precision"},
    "causal-sees-next": {"the future leaks", "right on the easiest input"},
    "causal-all-true": {"the future leaks", "right on the easiest input"},
    "causal-top-left": {"fails only for Lq ≠ Lk", "right on the easiest input"},
    "padding-no-axes": {"the shape is wrong"},
    "layer-keys-with-lq": {"raises an error", "fails only for Lq ≠ Lk"},
    "layer-values-from-K": {"fails only where Q, K and V differ"},
    "layer-no-output-projection": {"only the numbers are wrong"},
    "split-view-only": {"a masked token leaks", "the future leaks", "fails only with more than one head"},
    "merge-averaged": {"raises an error", "fails only with more than one head"},
    "give-in-a-list": {"the type is wrong"},
    "give-averaged": {"the shape is wrong"},
    "repeat-tiled": {"fails only with more than one head", "right on the easiest input"},
    "cached-start-at-zero": {"fails only for Lq ≠ Lk", "right on the easiest input"},
    "tile-never-divided": {"rows do not sum to one"},
    "sdpa-scale-1": {"weights nearly one-hot", "trains, but slowly"},
    "torch-masks-ignored": {
        "a masked token leaks",
        "the future leaks",
        "fails only with a mask",
        "right on the easiest input",
    },
    "layer-dropout-in-eval": {"no single call shows it"},
    "error-product-of-shapes": {"raises an error"},
    "result-of-another-shape": {"the shape is wrong"},
    "result-of-another-dtype": {"the type is wrong"},
    "result-reversed": {"only the numbers are wrong"},
    "scale-other": {"only the numbers are wrong"},
}


@pytest.mark.parametrize("id", KNOWN)
def test_symptoms_are_those_that_follow_from_the_code(id):
    assert set(atlas.symptoms_of(CATALOGUE[id])) == KNOWN[id]


def test_every_entry_is_in_one_chapter_and_has_a_symptom_and_a_first_input():
    book = atlas.chapters()
    assert sorted(entry.id for entries in book.values() for entry in entries) == sorted(CATALOGUE)
    for entry in [*CATALOGUE.values()][::4]:  # notebook 19 looks at all of them
        found = atlas.symptoms_of(entry)
        assert found and set(found) <= {*SYMPTOMS, SILENT, UNSEEN}, entry.id
        assert not entry.replaces or UNSEEN not in found
        assert not entry.replaces or symptoms.trial_of(entry).first, entry.id


@pytest.mark.parametrize("name", [symptoms.LAYER_EXERCISE.name, *check.EXERCISES])
def test_right_code_has_no_symptom(name):
    place = symptoms.place(name)
    trial = symptoms.Trial(place, place.right)
    assert symptoms.symptoms(trial) == ()
    assert not any(
        shows(trial) for symptom, shows in SYMPTOMS.items() if symptom != "right on the easiest input"
    )


def test_an_entry_that_is_new_appears_with_no_further_line(monkeypatch):
    def softmax_of_half(scores, d_k):
        return torch.softmax(scores, dim=-1) / 2

    new = Mistake("softmax-half", "softmax", "Half of it", "Half is lost.", "…", {"softmax": softmax_of_half})
    monkeypatch.setitem(CATALOGUE, new.id, new)
    assert new in atlas.chapters()["softmax"]
    assert new in atlas.index().by_symptom["rows do not sum to one"]
    (row,) = [row for row in atlas.page("softmax")[1].rows if row[0] == "`softmax-half`"]
    assert row[1:] == ("Half of it", "rows do not sum to one", "any input", "Half is lost.")
    (look,) = [look for sight, look in atlas.looks_of(new).items() if sight == "without a mask"]
    for wrong, right in zip(look.wrong, look.right, strict=True):
        np.testing.assert_allclose(wrong, right / 2, atol=1e-12)


def test_the_index_counts_and_lists_what_shows_a_symptom():
    index = atlas.index()
    leaking = index.by_symptom["the future leaks"]
    assert CATALOGUE["causal-sees-next"] in leaking and CATALOGUE["scale-missing"] not in leaking
    assert f"{len(leaking):4}  the future leaks" in repr(index).splitlines()
    html = index._repr_html_()
    assert f"<b>the future leaks</b> ({len(leaking)})" in html
    assert "<code>causal-sees-next</code> A token may see the next one" in html
    assert html.count("<details>") == html.count("</details>") == len(index.by_symptom)


def test_two_symptoms_narrow_it_down():
    table = atlas.look_up("rows do not sum to one", "another example of the batch leaks")
    assert "`softmax-over-batch`" in [row[0] for row in table.rows]
    assert "`softmax-over-heads`" not in [row[0] for row in table.rows]
    assert str(table).startswith("`")
    assert repr(table) == f"<a table of {len(table.rows)} mistakes>"


def test_a_table_keeps_its_columns_whatever_is_in_a_cell():
    lines = atlas.Table(("a", "b"), [("x | y", "z")])._repr_markdown_().splitlines()
    assert lines == ["| a | b |", "| :-- | :-- |", "| x \\| y | z |"]


@pytest.mark.parametrize(
    "ask, message",
    [
        (
            lambda: atlas.look_up("rows sum to two"),
            "symptom='rows sum to two' is not known; there are raises",
        ),
        (lambda: atlas.page("softmin"), "chapter='softmin' is not in the atlas; there are "),
        (lambda: atlas.examine("softmin", print), "name='softmin' is no exercise; there are shapes, "),
    ],
)
def test_what_is_not_there_is_named(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()


def test_code_of_ones_own_is_measured_in_the_same_way():
    def forgets_the_mask(Q, K, V, mask=None):
        return mha.scaled_dot_product_attention(Q, K, V)

    assert atlas.examine("scaled_dot_product_attention", mha.scaled_dot_product_attention) == ()
    assert set(atlas.examine("scaled_dot_product_attention", forgets_the_mask)) == {
        "a masked token leaks",
        "the future leaks",
        "fails only with a mask",
        "right on the easiest input",
    }


def test_measuring_leaves_the_threads_and_the_random_state_as_they_were():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    atlas.examine("scaled_dot_product_attention", mha.scaled_dot_product_attention)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


# ---------------------------------------------------------------- pictures


def test_what_a_query_takes_of_one_hot_values_is_its_weights():
    scene = symptoms.sights()["under a causal mask"]
    layer = mha.MultiHeadAttention(8, 2).requires_grad_(False).double()
    layer.load_state_dict({f"W_{role}.weight": getattr(scene.w, f"W_{role}") for role in "qkvo"})
    values = torch.eye(4, dtype=torch.float64).repeat(1, 1, 2)  # (B, L, h·L)
    _, weights = layer(scene.X, scene.X, values, mha.causal_mask(4))
    look = atlas.looks_of(CATALOGUE["mask-ignored"])["under a causal mask"]
    np.testing.assert_allclose(np.stack(look.right), weights[0].numpy(), atol=1e-12)
    assert np.stack(look.wrong)[:, 0, 3].min() > 0.01  # token 0 sees the last


def cells(figure) -> tuple[list, np.ndarray]:
    """Return the corners and the numbers of all cells that a sheet shows."""
    collection = figure.axes[0].collections[0]
    return [path.vertices for path in collection.get_paths()], np.ma.filled(collection.get_array(), np.nan)


def test_a_sheet_shows_the_right_maps_first_and_then_each_mistake():
    entries = [CATALOGUE[id] for id in ("scale-missing", "scale-by-d_k", "softmax-over-queries")]
    figure = atlas.picture(entries)
    ax = figure.axes[0]
    where, shown = cells(figure)
    looks = [atlas.looks_of(entry)["without a mask"] for entry in entries]
    wanted = [*looks[0].right, *(array for look in looks for array in look.wrong)]
    np.testing.assert_allclose(shown, np.concatenate([array.ravel() for array in wanted]))
    assert where[1][0][0] > where[0][0][0] and where[4][0][1] > where[0][0][1]  # keys go right, queries down
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert ax.collections[0].get_clim() == (0, 1)
    assert [len(ax.collections[i].get_paths()) for i in (2, 3)] == [6, 2]  # frames of the wrong, of the right
    texts = [text.get_text() for text in ax.texts]
    assert texts[0] == "without a mask"
    assert [text for text in texts if "\n" in text] == [
        "right\nhead 0, head 1",
        *(
            f"{entry.id}\n{entry.title if len(entry.title) < 38 else entry.title[:36] + '…'}"
            for entry in entries
        ),
    ]
    assert {"query", "key", *atlas.TOKENS} <= set(texts)
    assert [bar.get_title() for bar in figure.axes[1:]] == ["weight"]


def test_each_exercise_has_a_picture_and_a_scale_of_its_own():
    turned, slopes, table = atlas.page("apply_rope", "alibi_slopes")
    assert turned.axes[0].collections[0].get_clim()[0] < 0
    assert slopes.axes[0].collections[1].get_paths() and not slopes.axes[0].collections[0].get_paths()
    assert {row[0].split("-")[0] for row in table.rows} == {"`rope", "`alibi"}


def test_nan_is_told_from_every_number():
    (figure, _) = atlas.page("mask")
    colours = figure.axes[0].collections[0].get_cmap()
    assert np.isnan(cells(figure)[1]).any()
    assert colours(np.ma.masked) == (0.75, 0.75, 0.75, 1.0)


def test_slopes_are_bars_and_rotations_have_two_signs():
    slopes = atlas.picture([CATALOGUE["alibi-exponent-positive"]])
    assert len(slopes.axes) == 1 and not slopes.axes[0].collections[0].get_paths()
    bars = [path.vertices[:, 1] for path in slopes.axes[0].collections[1].get_paths()]
    heights = [np.ptp(bar) / atlas._MAP for bar in bars]
    np.testing.assert_allclose(heights[:8], [2.0**-i for i in range(1, 9)])  # 8 heads, as in the paper
    assert heights[8:] == pytest.approx([1] * 8)  # the wrong slopes are larger: cut off
    turned = atlas.picture([CATALOGUE["rope-backwards"]])
    low, high = turned.axes[0].collections[0].get_clim()
    assert low == -high < 0
    assert [bar.get_title() for bar in turned.axes[1:]] == ["value"]


def test_what_looks_right_or_has_no_picture_is_in_the_table_only():
    entries = [CATALOGUE["layer-no-output-projection"], CATALOGUE["give-nothing"], CATALOGUE["cache-stacked"]]
    assert atlas.picture(entries) is None
    assert len(atlas.page("kv_cache")) == 1


def test_a_sheet_is_a_png_of_few_colours():
    png = atlas.picture([CATALOGUE["scale-missing"]])._repr_png_()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert png[25] == 3  # colours by palette


def test_the_exercises_do_not_load_what_draws():
    code = "import sys, mha.check; print('matplotlib' in sys.modules, 'mha.check.atlas' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]
