"""Marks a plain file: `python -m mha.check my_attention.py`.

Every function and class in it that has the name of an exercise is marked. It runs in a process of its own,
with a time limit, and is left as it is. The exit status is 0 if all that it defines passes, 1 if something
does not, 2 if the file cannot be used.
"""

import argparse
import contextlib
import importlib.util
import io
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mha import check
from mha.check.record import nearest, steps

SECONDS = 60
CLASSES = {"KVCache": "kv_cache", "MultiHeadAttention": "multi_head_attention"}  # by what a class is called
_NOW = "\x1e"  # starts a line that says what is being marked, in case it never comes to an end


class UnusableError(Exception):
    """A file that cannot be marked; the message says why."""


def mark_file(path: Path, hint: bool = False) -> bool:
    """Mark all that the file at `path` defines, show the verdicts, and return whether all pass.

    Args:
        hint: show as well how to mend what is wrong.
    """
    module = _load(path)
    found = _answers(module)
    if not found:
        names = [*check.EXERCISES, *CLASSES]
        raise UnusableError(f"{path} defines none of {', '.join(names)}")
    for own, meant in _misspelt(module):
        print(f"{own} is not marked: an exercise is called {meant}")
    passed = []
    for name, answer in found.items():
        print(f"{_NOW}{name}", flush=True)
        result = getattr(check, name)(answer)
        passed.append(result.passed)
        if hint and not result.passed and result.attempted:
            print(f"  {steps(result)[-1]}")
        sys.stdout.flush()
    return all(passed)


def _answers(module: ModuleType) -> dict[str, Any]:
    """Return what a file defines that can be asked for, by exercise; what it imports of mha is no answer."""
    names = {name: name for name in check.EXERCISES} | CLASSES
    return {
        exercise: vars(module)[name]
        for name, exercise in names.items()
        if name in vars(module) and not _is_ours(vars(module)[name])
    }


def _misspelt(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield what a file itself defines under nearly the name of an exercise, and that name."""
    names = (*check.EXERCISES, *CLASSES)
    for name, value in vars(module).items():
        own = getattr(value, "__module__", None) == module.__name__ and callable(value)
        meant = nearest(name, names, cutoff=0.9) if own and name not in names else None
        if meant is not None and meant not in vars(module):
            yield name, meant


def _is_ours(answer: object) -> bool:
    return (getattr(answer, "__module__", None) or "").split(".")[0] == "mha"


def _load(path: Path) -> ModuleType:
    name = f"the file {path.stem}"  # which is no module's, not even if the file is called mha.py
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnusableError(f"{path} is no Python file: its name has to end in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look for it there
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UnusableError(
            f"{path}, line {error.lineno}: {error.msg}: {(error.text or '').strip()}"
        ) from error
    except (Exception, SystemExit) as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
        where = f", line {own[-1].lineno}: {own[-1].line}" if own else ""
        raise UnusableError(f"{path} raises {type(error).__name__}: {error}{where}") from error
    return module


def _in_a_process_of_its_own(path: Path, hint: bool) -> int:
    command = [sys.executable, "-m", "mha.check", "--here", *(["--hint"] if hint else []), str(path)]
    now = f"loading {path.name}"
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as child:
        timer = threading.Timer(SECONDS, child.kill)
        timer.start()
        for line in child.stdout or ():
            if line.startswith(_NOW):
                now = line.removeprefix(_NOW).strip()
            else:
                print(line, end="")
        child.wait()
        ended = timer.is_alive()
        timer.cancel()
    if ended:
        return child.returncode
    print(f"{now}: it does not come to an end: stopped after {SECONDS} seconds. Is there an endless loop?")
    return 1


def main() -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m mha.check", description=__doc__.split("\n\n")[1])
    parser.add_argument("file", type=Path, help="a Python file with what you wrote")
    parser.add_argument("--hint", action="store_true", help="show how to mend what is wrong, too")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    path = arguments.file.resolve()
    if not path.is_file():
        print(f"there is no file {arguments.file}", file=sys.stderr)
        return 2
    if not arguments.here:
        return _in_a_process_of_its_own(path, arguments.hint)
    try:
        sys.stdout.reconfigure(encoding="utf-8")
        return 0 if mark_file(path, arguments.hint) else 1
    except UnusableError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
