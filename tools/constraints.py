"""Write the versions of what the project needs, as they are in this environment, into constraints.txt.

`make constraints` does it after a change of dependencies, or after upgrading something in .venv. The names on
the command line are packages that are installed beside the project's own dependencies.
"""

import sys
from collections.abc import Iterable
from importlib.metadata import distribution

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from project import ROOT, requirements, settings

OLDEST = (3, 11)  # a version that runs there has files for newer Pythons too, seldom the other way round

HEADER = """\
# The versions that the stored outputs were made with; `make` installs by them. Written by `make constraints`.
# On Linux, torch from PyPI is a CUDA build of several GB; `make help` says how to choose another.
"""

# A package that only Linux needs is left out: those are the parts of a CUDA build.
ELSEWHERE = (
    {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix", "platform_machine": "arm64"},
    {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt", "platform_machine": "AMD64"},
)


def needed(marker: Marker | None, extra: str) -> bool:
    """Return whether a requirement with `marker` counts here and on another system too."""
    if marker is None:
        return True
    here = marker.evaluate({"extra": extra})
    return here and any(marker.evaluate({"extra": extra} | system) for system in ELSEWHERE)


def closure(roots: Iterable[str]) -> dict[str, str]:
    """Return name and installed version of the packages that `roots` name, and of all that those need."""
    waiting, seen, versions = [Requirement(root) for root in roots], set(), {}
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        found = distribution(name)
        versions[name] = Version(found.version).public  # without a local part such as +cpu
        for extra in {"", *wanted.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                requirements = map(Requirement, found.requires or ())
                waiting += [each for each in requirements if needed(each.marker, extra)]
    return versions


def main() -> int:
    if sys.version_info[:2] != OLDEST:
        print(
            "constraints.txt has to hold on Python 3.11 too, so .venv has to be made with it", file=sys.stderr
        )
        return 1
    versions = closure(requirements(settings()))
    versions |= {name: distribution(name).version for name in sys.argv[1:]}
    lines = [f"{name}=={version}\n" for name, version in sorted(versions.items())]
    (ROOT / "constraints.txt").write_text(HEADER + "".join(lines), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
