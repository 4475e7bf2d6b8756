"""The command line, hints, solutions and progress."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import mha
from mha import check
from mha.check import __main__ as command
from mha.check.record import RECORD

CASES = Path(__file__).parent / "mistakes"


@pytest.fixture(autouse=True)
def nothing_tried():
    RECORD.results.clear()
    RECORD.hints.clear()
    RECORD.started = None


def marked(path: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "mha.check", str(path)], capture_output=True, encoding="utf-8", check=False
    )


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my_attention.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_of_right_answers_passes():
    result = marked(CASES / "correct.py")
    lines = result.stdout.splitlines()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "split_heads: passed." in lines and "multi_head_attention: passed." in lines
    assert all("passed" in line for line in lines)


def test_a_mistake_in_a_file_is_named_and_the_file_is_left_as_it_was(tmp_path):
    path = write(tmp_path, "print('hi')\ndef merge_heads(x):\n    return x.mean(dim=1)\n")
    before = path.read_bytes()
    result = marked(path)
    assert result.returncode == 1
    assert result.stdout.splitlines()[0] == "merge_heads: The heads are averaged instead of laid side by side"
    assert path.read_bytes() == before


def test_a_file_may_be_called_as_the_package_is_and_hold_dataclasses(tmp_path, capsys):
    path = tmp_path / "mha.py"
    code = """
    from __future__ import annotations
    from dataclasses import dataclass

    @dataclass
    class Config:
        heads: int = 2

    def merge_heads(x):
        return x.transpose(1, 2).flatten(2)
    """
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    assert command.mark_file(path)
    assert "merge_heads: passed.\n" in capsys.readouterr().out


def test_a_class_goes_by_its_own_name_and_what_is_imported_is_no_answer(tmp_path, capsys):
    code = """
    import torch
    from mha import MultiHeadAttention, split_heads

    class KVCache:
        def __init__(self):
            self.reset()

        def reset(self):
            self.k = self.v = None

        def __len__(self):
            return 0 if self.k is None else self.k.size(2)

        def append(self, k, v):
            self.k = k if self.k is None else torch.cat([self.k, k], dim=2)
            self.v = v if self.v is None else torch.cat([self.v, v], dim=2)
            return self.k, self.v
    """
    assert command.mark_file(write(tmp_path, textwrap.dedent(code)))
    verdicts = [line for line in capsys.readouterr().out.split("\n") if line and not line.startswith("\x1e")]
    assert verdicts == ["kv_cache: passed."]


@pytest.mark.parametrize(
    "text, message",
    [
        ("def f(:\n", "line 1: invalid syntax: def f(:"),
        ("x = 1 / 0\n", "raises ZeroDivisionError: division by zero, line 1: x = 1 / 0"),
        ("import sys\nsys.exit(0)\n", "raises SystemExit: 0, line 2: sys.exit(0)"),
        ("x = 1\n", "defines none of shapes, linear_projection"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path, text, message):
    with pytest.raises(command.UnusableError, match=None) as error:
        command.mark_file(write(tmp_path, text))
    assert message in str(error.value)


def test_what_is_no_python_file_says_so(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("", encoding="utf-8")
    with pytest.raises(command.UnusableError, match=r"its name has to end in \.py"):
        command.mark_file(path)


def test_an_endless_loop_gets_a_verdict_too(tmp_path, monkeypatch, capsys):
    path = write(tmp_path, "import time\ndef merge_heads(x):\n    while True:\n        time.sleep(0.1)\n")
    monkeypatch.setattr(command, "SECONDS", 6)
    monkeypatch.setattr(sys, "argv", ["mha.check", str(path)])
    assert command.main() == 1
    assert "merge_heads: it does not come to an end: stopped after 6 seconds" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text, status",
    [
        ("def merge_heads(x):\n    return x.transpose(1, 2).flatten(2)\n", 0),
        ("def merge_heads(x):\n    return x\n", 1),
        ("", 2),
    ],
)
def test_the_exit_status_says_how_it_went(tmp_path, monkeypatch, text, status):
    monkeypatch.setattr(sys, "argv", ["mha.check", "--here", str(write(tmp_path, text))])
    monkeypatch.setattr(sys.stdout, "reconfigure", lambda **_: None, raising=False)
    assert command.main() == status


def test_a_file_that_is_not_there_is_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mha.check", "nowhere.py"])
    assert command.main() == 2
    assert "there is no file nowhere.py" in capsys.readouterr().err


def test_hints_go_from_where_to_what_to_how(capsys):
    check.hint("merge_heads")
    check.merge_heads(lambda x: x.mean(dim=1))
    for _ in range(4):
        check.hint("merge_heads")
    lines = capsys.readouterr().out.splitlines()
    assert "write it and run check.merge_heads(merge_heads) first" in lines[0]
    hints = [line for line in lines if ", hint " in line]
    assert hints[0] == "merge_heads, hint 1 of 3: where: look at the stage 'merge'"
    assert "what: The heads are averaged" in hints[1]
    assert "how: concatenate" in hints[2] and hints[3] == hints[2]


def test_another_verdict_starts_the_hints_anew(capsys):
    for answer in (lambda x: x.mean(dim=1), lambda x: x.amax(dim=1)):
        check.merge_heads(answer)
        check.hint("merge_heads")
    assert capsys.readouterr().out.count("hint 1 of 3") == 2


def test_an_unknown_mistake_gets_hints_too_and_a_right_answer_none(capsys):
    check.merge_heads(lambda x: mha.merge_heads(x).sin())
    for _ in range(3):
        check.hint("merge_heads")
    check.merge_heads(mha.merge_heads)
    check.hint("merge_heads")
    said = capsys.readouterr().out
    assert "how: compare with check.solution('merge_heads')" in said
    assert "merge_heads: passed, there is nothing to hint at" in said


def test_the_solution_is_the_packages_own_code(capsys):
    check.solution("merge_heads")
    check.solution("multi_head_attention")
    said = capsys.readouterr().out
    assert "return x.transpose(1, 2).reshape(B, L, h * d_k)" in said
    assert "class MultiHeadAttention(nn.Module):" in said


def test_progress_says_how_each_exercise_stands(capsys):
    check.merge_heads(mha.merge_heads)
    check.split_heads(lambda x, h: x.view(x.size(0), h, x.size(1), -1))
    check.multi_head_attention(mha.MultiHeadAttention)
    capsys.readouterr()
    check.progress()
    state = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert state["merge_heads"] == "passed" == state["multi_head_attention"]
    assert state["split_heads"].startswith("x is viewed as (B, h, L, d_k) at once")
    assert state["causal_mask"] == "not attempted yet"


def test_the_clock_is_shown_only_once_it_runs(monkeypatch, capsys):
    check.progress()
    assert "clock" not in capsys.readouterr().out
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    check.start_clock()
    monkeypatch.setattr("time.monotonic", lambda: 225.9)
    check.progress()
    assert capsys.readouterr().out.splitlines()[-1] == "2 min 05 s since the clock was started"


@pytest.mark.parametrize("function", [check.hint, check.solution])
def test_a_name_that_is_no_exercise_is_refused(function):
    with pytest.raises(ValueError, match="name='nothing' is no exercise; there are shapes, "):
        function("nothing")


def test_the_answers_weights_are_drawn_beside_the_right_ones():
    def wrong(Q, K, V, mask=None):
        scores = Q @ K.transpose(-2, -1)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1)
        weights = weights if mask is None else weights.masked_fill(mask == 0, 0.0)
        return weights @ V, weights

    result = check.scaled_dot_product_attention(wrong)
    assert [entry.id for entry in result.mistakes] == ["scale-missing"]
    titles = [ax.get_title() for ax in result.picture().axes if ax.get_title()]
    assert titles[:2] == ["Head 0, yours", "Head 0, right"]
    assert len(titles) == 6  # the first input on which several heads differ
    page = result._repr_html_()
    assert page.startswith("<pre>scaled_dot_product_attention: The scores are not divided by √d_k")
    assert 'src="data:image/png;base64,' in page and 'alt="attention weights per head' in page


def test_a_verdict_without_weights_has_no_picture():
    result = check.merge_heads(lambda x: x.mean(dim=1))
    assert result.picture() is None
    assert "<img" not in result._repr_html_()
    assert repr(result) == "<merge_heads: merge-averaged>"


def test_what_is_nearly_called_like_an_exercise_is_spoken_of(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def splitHeads(x, h): ...\ndef merge_heads(x):\n    return x.transpose(1, 2).flatten(2)\n"
    )
    said = subprocess.run(
        [sys.executable, "-m", "mha.check", str(path)], capture_output=True, text=True, check=False
    ).stdout
    assert "splitHeads is not marked: an exercise is called split_heads\n" in said
    assert "merge_heads: passed." in said and said.count("not marked") == 1


@pytest.mark.parametrize(
    "name, meant", [("MultiHeadAttention", "multi_head_attention"), ("spilt_heads", "split_heads")]
)
def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(name, meant):
    with pytest.raises(ValueError, match=f"do you mean '{meant}'"):
        check.hint(name)
