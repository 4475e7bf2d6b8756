"""Say what is wrong with a Python that cannot make .venv. Any Python has to be able to read this file."""
# ruff: noqa: F401, UP031, UP036

import sys

HINT = "Choose another with PYTHON, as in: make lab PYTHON=python3.13"


def problem():
    """Return what keeps this Python from making .venv, or None."""
    if sys.version_info < (3, 11):
        version = ".".join(map(str, sys.version_info[:3]))
        return "This is Python %s (%s); the course needs 3.11 or newer. %s" % (version, sys.executable, HINT)
    try:
        import ensurepip
        import venv
    except ImportError:
        return "%s lacks venv; on Debian and Ubuntu: sudo apt install python3-venv. %s" % (
            sys.executable,
            HINT,
        )
    return None


if __name__ == "__main__":
    sys.exit(problem())
