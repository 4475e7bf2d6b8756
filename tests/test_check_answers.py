"""Wrong answers in other words than the catalogue's are caught, and named as what they are."""

import pytest

from answers import FOLDER, answers
from mha.check import CATALOGUE, EXERCISES

NAMES = (*EXERCISES, "multi_head_attention")


@pytest.mark.no_cover
@pytest.mark.parametrize("name", NAMES)
def test_answers_in_other_words_are_named_as_what_they_are(name):
    for answer in [*answers(name)][::16]:  # `make mistakes` marks them all
        result = answer.mark()
        named = {entry.id for entry in result.mistakes}
        assert not result.passed, answer.title
        assert not answer.named or answer.named & named, (answer.title, named)


def test_the_files_are_those_of_the_exercises_and_every_section_is_read():
    assert sorted(path.stem for path in FOLDER.glob("*.md")) == sorted(NAMES)
    for name in NAMES:
        text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
        found = list(answers(name))
        assert len(found) == text.count("\n## ") > 0
        assert len({answer.title for answer in found}) == len(found)
        assert {id for answer in found for id in answer.named} <= set(CATALOGUE)


def test_at_least_95_of_100_have_a_name():
    every = [answer for name in NAMES for answer in answers(name)]
    assert sum(bool(answer.named) for answer in every) >= 0.95 * len(every)
