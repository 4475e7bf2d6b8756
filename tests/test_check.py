"""Every mistake in the catalogue is named, alone and in pairs; every reported case is named as what it is."""

import csv
import importlib.util
import random
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

import mha
from mha import check
from mha.check import CATALOGUE, EXERCISES
from mha.check.catalogue import mistakes_of, pairs_of
from mha.check.diagnose import judge, mark
from mha.check.layers.marking import mark_layer
from mha.check.outcome import alike, run
from mha.check.result import Result
from mistakes import told_as

CASES = Path(__file__).parent / "mistakes"

# The cases that people reported (cases.tsv says where), and what each has to be named as. Where two entries
# compute the same numbers, both are named.
NAMED = {
    "01": {"scale-missing"},
    "02": {"scale-by-d_k", "scale-twice"},
    "03": {"scale-multiplied"},
    "05": {"softmax-over-queries"},
    "06": {"softmax-over-heads"},
    "07": {"softmax-overflow"},
    "08": {"score-key-reshaped"},
    "11": {"give-weights-transposed"},
    "12": {"mask-after-softmax"},
    "13": {"mask-fill-zero", "mask-fill-tiny"},
    "15": {"mask-fill-plus-inf"},
    "17": {"mask-half-overflow"},
    "18": {"mask-inverted"},
    "20": {"mask-ignored"},
    "22": {"mask-empty-row-nan"},
    "23": {"mask-empty-row-uniform"},
    "26": {"causal-excludes-self"},
    "27": {"causal-sees-next"},
    "29": {"causal-forbidden"},
    "30": {"causal-top-left"},
    "32": {"causal-additive"},
    "34": {"padding-inverted"},
    "36": {"padding-no-axes"},
    "37": {"split-view-only"},
    "38": {"split-no-transpose"},
    "39": {"split-interleaved"},
    "41": {"merge-no-transpose"},
    "42": {"merge-view-not-contiguous"},
    "44": {"merge-averaged"},
    "45": {"scale-by-d_model"},
    "47": {"layer-no-output-projection"},
    "48": {"layer-values-by-w_k"},
    "51": {"layer-not-transposed"},
    "52": {"layer-heads-share-projection"},
    "55": {"layer-keys-with-lq"},
    "58": {"layer-truncates-d_model"},
    "59": {"give-averaged"},
    "60": {"layer-no-parameters"},
    "62": {"mask-ignored"},
    "63": {"layer-dropout-in-eval"},
    "66": {"layer-dropout-missing"},
    "76": {"repeat-tiled"},
}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem, CASES / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases() -> list[dict[str, str]]:
    with (CASES / "cases.tsv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file, delimiter="\t") if row["id"] in NAMED]


def mark_any(target: str, answer: object) -> Result:
    return mark_layer(answer) if target == "MultiHeadAttention" else mark(EXERCISES[target], answer)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_a_reported_mistake_is_named_as_what_it_is(case):
    result = mark_any(case["target"], getattr(load(case["file"]), case["target"]))
    assert not result.passed
    named = {entry.id for entry in result.mistakes}
    assert named >= NAMED[case["id"]]
    if case["id"] != "06":  # there no mask can be told from another any more
        assert named == NAMED[case["id"]]


@pytest.mark.parametrize("name", EXERCISES)
def test_the_answer_key_passes(name):
    assert mark(EXERCISES[name], EXERCISES[name].reference).passed


@pytest.mark.parametrize("name", EXERCISES)
def test_the_pipeline_with_nothing_wrong_is_the_package(name):
    assert mark(EXERCISES[name], lambda *arguments: EXERCISES[name].with_mistakes()(*arguments)).passed


@pytest.mark.parametrize(
    "name", ["scaled_dot_product_attention", "split_heads", "merge_heads", "causal_mask"]
)
def test_another_persons_right_answer_passes(name):
    assert mark(EXERCISES[name], getattr(load("correct.py"), name)).passed


def test_another_persons_right_layer_passes():
    assert mark_layer(load("correct.py").MultiHeadAttention).passed
    assert mark_layer(mha.MultiHeadAttention).passed


# Exercises that no notebook hands out yet; the others' mistakes are put into the notebooks' own cells, and
# named there: test_notebook_exercises.py.
WITHOUT_A_CELL = ["kv_cache", "cached_attention", "repeat_kv", "online_attention", "head_shards"]


@pytest.mark.no_cover
@pytest.mark.parametrize("name", EXERCISES)
def test_every_entry_is_named(name):
    results = {entry.id: judge(EXERCISES[name], entry) for entry in EXERCISES[name].mistakes}
    assert results
    for id, result in results.items():
        assert CATALOGUE[id] in result.mistakes, id
        assert result.stage == result.mistakes[0].stage, id


# Two mistakes that undo each other: what comes out is right, and there is nothing to catch.
PAIRED = [name for name in EXERCISES if pairs_of(EXERCISES[name].mistakes)]
UNDONE = {
    # The batch is taken for the tokens, and the input is turned to suit.
    frozenset({"torch-batch-first-missing", "torch-input-transposed"}),
    # Divided by the frequencies of the wrong sign.
    frozenset({"rope-exponent-positive", "rope-divided-by-frequency"}),
    # Exchanged twice.
    frozenset({"take-keys-and-values-exchanged", "cross-keys-and-values-exchanged"}),
    # A mask that is made upside down, and read so; made for queries, and turned.
    frozenset({"mask-inverted", "padding-inverted"}),
    frozenset({"mask-inverted", "padding-additive"}),
    frozenset({"mask-transposed", "padding-hides-queries"}),
    # A causal mask that marks what is forbidden, and is read so; one to be added, that is added.
    *(
        frozenset({f"cached-mask-inverted-gives-{gives}", f"causal-{made}"})
        for gives in ("zeros", "mean")
        for made in ("forbidden", "additive", "additive-finite")
    ),
    frozenset({"cached-adds-mask", "causal-additive"}),
    frozenset({"cached-adds-mask", "causal-additive-finite"}),
    # A bias that is added on every rank, and divided among them.
    frozenset({"shard-output-bias-everywhere", "prune-output-bias-scaled"}),
}


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PAIRED)
def test_two_mistakes_at_once_are_caught(name):
    exercise, missed = EXERCISES[name], set()
    probes = list(reversed(exercise.probes()))
    right = [run(exercise.drive(exercise.reference), probe.arguments) for probe in probes]
    pairs = pairs_of(exercise.mistakes)
    for pair in random.Random(name).sample(
        pairs, min(500, len(pairs))
    ):  # `make mistakes` tries all there are
        wrong = exercise.with_mistakes(*pair)
        if all(alike(run(wrong, probe.arguments), one) for probe, one in zip(probes, right, strict=True)):
            missed.add(frozenset(entry.id for entry in pair))
    assert missed <= UNDONE


@pytest.mark.no_cover
@pytest.mark.parametrize("name", PAIRED)
def test_two_mistakes_at_once_are_named_both_or_the_one_that_hides_the_other(name):
    exercise = EXERCISES[name]
    pairs = [pair for pair in pairs_of(exercise.mistakes) if {entry.id for entry in pair} not in UNDONE]
    for pair in random.Random(name).sample(pairs, 2):  # `make mistakes` draws more
        assert told_as(exercise, pair, judge(exercise, *pair)), [entry.id for entry in pair]


def test_every_entry_says_what_it_is():
    for entry in CATALOGUE.values():
        assert entry.title and entry.effect.endswith(".") and entry.hint.endswith("."), entry.id
    assert len({entry.title for entry in CATALOGUE.values()}) == len(CATALOGUE)


def test_an_id_can_be_taken_once_only():
    with pytest.raises(ValueError, match="id='scale-missing' is in the catalogue already"):
        check.catalogue.mistake("scale-missing", "t", "e", "h", stage="scale")(lambda: None)


def test_an_entry_belongs_to_each_exercise_that_has_its_stages():
    assert CATALOGUE["scale-missing"] in EXERCISES["scaled_dot_product_attention"].mistakes
    assert CATALOGUE["scale-missing"] not in mistakes_of({"split": None})


def test_what_is_not_written_yet_is_no_mistake(capsys):
    def split_heads(x, num_heads):
        """(B, L, d_model) → (B, h, L, d_k)."""
        ...

    result = check.split_heads(split_heads)
    assert (result.passed, result.attempted, result.mistakes) == (False, False, ())
    assert capsys.readouterr().out == "split_heads: not attempted yet\n"


def test_the_verdict_names_the_mistake_in_its_first_line_and_its_effect_below(capsys):
    result = check.split_heads(lambda x, h: x.view(x.size(0), h, x.size(1), -1))
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "split_heads: x is viewed as (B, h, L, d_k) at once, without a transpose"
    assert second.strip().startswith("The right shape and no error")
    assert re.fullmatch(
        r"  On three tokens, two heads: result\[0, 0, 1, 0\] is .*, wanted .* "
        r"\(16 of 24 numbers differ, by [\d.]+ at most\)\.",
        third,
    )
    with pytest.raises(check.NotPassedError, match="without a transpose"):
        result.raise_if_failed()


def test_what_nothing_explains_is_shown_on_the_smallest_input(capsys):
    result = check.merge_heads(lambda x: x.transpose(1, 2).flatten(2).sin())
    said = capsys.readouterr().out
    assert result.stage == "merge" and result.mistakes == ()
    assert "first goes wrong at the stage 'merge' or after it, on one token, two heads" in said
    assert "given:  shape (1, 1, 8), float64" in said and "wanted: shape (1, 1, 8), float64" in said


def test_an_error_is_shown_with_the_answers_own_line():
    def merge_heads(x):
        return x.transpose(1, 2).reshape(x.missing)

    result = mark(EXERCISES["merge_heads"], merge_heads)
    assert "AttributeError" in result.message
    assert "return x.transpose(1, 2).reshape(x.missing)" in result.message


def test_a_wrong_number_of_arguments_is_explained():
    result = mark(EXERCISES["split_heads"], lambda x: x)
    assert result.stage == "signature"
    assert "it has to be a function split_heads(x, num_heads)" in result.message


def test_what_is_no_function_is_explained():
    assert "the answer is a int" in mark(EXERCISES["split_heads"], 3).message


def test_an_input_that_is_changed_is_noticed():
    def merge_heads(x):
        result = mha.merge_heads(x.clone())
        x.zero_()
        return result

    result = mark(EXERCISES["merge_heads"], merge_heads)
    assert not result.passed and "It changes its input x" in result.message


def test_what_an_answer_does_to_its_surroundings_is_undone(capsys):
    def merge_heads(x):
        torch.manual_seed(1)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        print("here")
        return mha.merge_heads(x)

    torch.manual_seed(0)
    state = torch.get_rng_state()
    result = mark(EXERCISES["merge_heads"], merge_heads)
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert capsys.readouterr().out == ""
    assert "the default dtype, the gradient mode, the random state" in result.message


def test_an_answer_that_returns_the_output_only_passes_with_a_remark():
    result = mark(
        EXERCISES["scaled_dot_product_attention"],
        lambda Q, K, V, mask=None: mha.scaled_dot_product_attention(Q, K, V, mask)[0],
    )
    assert result.passed and "returns the output only" in result.message


def test_exit_is_only_an_error():
    def merge_heads(x):
        raise SystemExit(3)

    assert "SystemExit" in mark(EXERCISES["merge_heads"], merge_heads).message
