"""`import mha` loads torch and nothing heavier; what draws or reads weights is loaded when first used."""

import subprocess
import sys

import pytest

import mha


def run(code: str) -> list[str]:
    """Return the words that `code`, run by a Python of its own, prints."""
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()


def test_import_loads_torch_and_nothing_else_that_has_to_be_installed() -> None:
    loaded = run("""if True:
        import sys, torch
        before = set(sys.modules)
        import mha
        print(*{name.partition(".")[0] for name in set(sys.modules) - before})
    """)
    assert set(loaded) - set(sys.stdlib_module_names) == {"mha"}


@pytest.mark.parametrize(("name", "needs"), [("plot", "matplotlib"), ("pretrained", "safetensors")])
def test_module_is_loaded_when_first_used(name: str, needs: str) -> None:
    shown = run(f"""if True:
        import sys, mha
        print({name!r} in dir(mha), "mha.{name}" in sys.modules, {needs!r} in sys.modules)
        print(mha.{name}.__name__)
        print("mha.{name}" in sys.modules)
    """)
    assert shown == ["True", "False", "False", f"mha.{name}", "True"]


def test_every_public_name_is_there() -> None:
    for name in mha.__all__:
        assert getattr(mha, name).__name__ in (name, f"mha.{name}")


def test_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="module 'mha' has no attribute 'heatmap'"):
        mha.heatmap  # noqa: B018
