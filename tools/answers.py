"""Wrong answers in other words than the catalogue's, written without having seen it: `tests/answers/*.md`.

A section of such a file is one answer: what is wrong with it in a sentence, the ids of which one has to be
named (none if nothing in the catalogue says it yet), and its code.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mha.check import EXERCISES, Result, mark, mark_layer
from mha.check.__main__ import CLASSES
from project import ROOT

FOLDER = ROOT / "tests" / "answers"
SECTION = re.compile(
    r"^## (?P<title>[^\n]+)\n\n(?P<mistake>[^\n]+)\n\nNamed: (?P<named>[^\n]*)\n\n"
    r"```python\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_CALLED = {exercise: name for name, exercise in CLASSES.items()}  # what a class is called in an answer


@dataclass(frozen=True)
class Answer:
    """One wrong answer."""

    exercise: str
    title: str
    mistake: str
    named: frozenset[str]
    code: str

    def mark(self) -> Result:
        """Return the verdict on it."""
        names: dict[str, Any] = {"__name__": "answer"}
        exec(compile(self.code, f"<{self.title}>", "exec"), names)
        answer: Callable[..., Any] = names[_CALLED.get(self.exercise, self.exercise)]
        return mark(EXERCISES[self.exercise], answer) if self.exercise in EXERCISES else mark_layer(answer)


def answers(exercise: str) -> Iterator[Answer]:
    """Yield the wrong answers to an exercise."""
    for found in SECTION.finditer((FOLDER / f"{exercise}.md").read_text(encoding="utf-8")):
        ids = frozenset(re.findall(r"`([\w-]+)`", found["named"]))
        yield Answer(exercise, found["title"], found["mistake"], ids, found["code"])
