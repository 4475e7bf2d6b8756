"""Run the notebooks as other processors would run them: `make portable`.

A number printed at four decimals can fall on either side of a rounding edge, depending on how many threads
add it up and how wide the processor's vectors are. Here nbval compares every stored output with what older
processors would compute. Where a cell moves, mend the cell; never the comparison.
"""

import os
import platform
import subprocess
import sys

from numpy._core._multiarray_umath import __cpu_dispatch__

from project import ROOT, notebooks

# The caps of torch's own kernels, oneDNN, MKL, and numpy with its OpenBLAS: only x86 has any.
PROCESSORS = {
    "one thread, no AVX": {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",  # the one path that MKL takes on every processor alike
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": " ".join(__cpu_dispatch__),
    },
}
if platform.machine().lower() not in ("x86_64", "amd64"):
    PROCESSORS = {"one thread": {"OMP_NUM_THREADS": "1"}}

SHOW = """\
import torch
capability = torch.backends.cpu.get_cpu_capability()
print(f"torch {torch.__version__}, vector instructions: {capability}, threads: {torch.get_num_threads()}")
"""


def compare(caps: dict[str, str], arguments: list[str]) -> int:
    """Run nbval under `caps` and return pytest's exit code."""
    environment = os.environ | caps
    subprocess.run([sys.executable, "-c", SHOW], env=environment, cwd=ROOT, check=True)
    pytest = [sys.executable, "-m", "pytest", "--quiet", "-n2", "--dist=loadfile", *arguments]
    return subprocess.run(pytest, env=environment, cwd=ROOT, check=False).returncode


def longest_first() -> list[str]:
    """Return the notebooks, those that store most first: so no worker is left alone with a long one."""
    return [str(path) for path in sorted(notebooks(), key=lambda path: -path.stat().st_size)]


def main() -> int:
    failed = []
    for name, caps in PROCESSORS.items():
        print(f"\nThe notebooks with {name}:", flush=True)
        if compare(caps, sys.argv[1:] or longest_first()):
            failed.append(name)
    if failed:
        print(f"\nA stored output does not hold with {' nor with '.join(failed)}.", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
