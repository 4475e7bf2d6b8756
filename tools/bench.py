"""Measure the layer beside PyTorch's own, and say whether each ratio meets its target: `make bench`.

Each ratio is ours to theirs, the two measured in turn, in one run, on two threads, with the same weights and
no biases. "forward" is evaluation mode without gradients; "and backward" is training mode.

- Time: the two are called in turn, and the ratio is that of their median times.
- Memory: how far the first call raises the peak of the resident memory, each in a process of its own.
- `import mha` beside `import torch`: whole processes in turn, and the median of their ratios.
- Notebooks: whole processes too, from the start of Python to the last output; the better of two runs.

The exit status is 1 if any target is missed. Nothing else should run meanwhile.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha import MultiHeadAttention
from mha.check import CATALOGUE, EXERCISES, Exercise, Mistake, mark_layer
from mha.check.diagnose import judge
from project import ROOT, notebooks

THREADS = 2
SHAPES = [(8, 128, 512, 8), (4, 512, 512, 8), (1, 2048, 512, 8)]  # B, L, d_model, h
TARGETS = {"with weights / nn.MultiheadAttention": 1.0, "without weights / fused by hand": 1.05}
LEAST_CALLS, SECONDS_A_ROW = 15, 6.0  # of each of the two, and for both together
IMPORTS = 11
IMPORT_TARGET = 1.05
# Seconds for a notebook as a whole process, by its number; 10 and 11 train and measure.
NOTEBOOK_TARGETS = dict.fromkeys(["01", "02", "03", "04", "05", "06", "07", "08", "09", "12"], 6.0) | {
    "10": 30.0,
    "11": 30.0,
}
BUSY = 1.0  # programs that wanted a processor, on average of the last minute
PROCESS_STATUS = Path("/proc/self/status")

EXECUTE = """\
import sys, nbformat, refresh
from pathlib import Path
refresh.execute(nbformat.read(sys.argv[1], as_version=4), Path(sys.argv[1]).parent)
"""


class FusedAttention(nn.Module):
    """What one writes by hand around the fused kernel, with nothing checked."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, Q: Tensor, K: Tensor, V: Tensor) -> tuple[Tensor, None]:
        B, L, d_model = Q.shape
        Q = self.W_q(Q).view(B, L, self.num_heads, -1).transpose(1, 2)
        K = self.W_k(K).view(B, L, self.num_heads, -1).transpose(1, 2)
        V = self.W_v(V).view(B, L, self.num_heads, -1).transpose(1, 2)
        heads = F.scaled_dot_product_attention(Q, K, V)
        return self.W_o(heads.transpose(1, 2).reshape(B, L, d_model)), None


@dataclass(frozen=True)
class Contestant:
    """A layer and how it is called."""

    layer: nn.Module
    options: dict[str, bool] = field(default_factory=dict)

    def run(self, x: Tensor, *, backward: bool) -> Tensor:
        self.layer.train(backward)
        with torch.set_grad_enabled(backward):
            output = self.layer(x, x, x, **self.options)[0]
        if backward:
            self.layer.zero_grad()
            x.grad = None
            output.backward(x.detach())  # any gradient of that shape will do
        return output


def contestants(what: str, d_model: int, num_heads: int) -> tuple[Contestant, Contestant]:
    """Return ours and theirs, with the same weights."""
    if what == "with weights / nn.MultiheadAttention":
        theirs = nn.MultiheadAttention(d_model, num_heads, bias=False, batch_first=True)
        ours = MultiHeadAttention.from_torch(theirs)
        return Contestant(ours), Contestant(theirs, {"average_attn_weights": False})
    theirs = FusedAttention(d_model, num_heads)
    ours = MultiHeadAttention(d_model, num_heads)
    ours.load_state_dict(theirs.state_dict())
    return Contestant(ours, {"need_weights": False}), Contestant(theirs)


def set_up(what: str, shape: tuple[int, ...], *, backward: bool) -> tuple[Tensor, Contestant, Contestant]:
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    B, L, d_model, num_heads = shape
    return torch.randn(B, L, d_model, requires_grad=backward), *contestants(what, d_model, num_heads)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def time_ratio(what: str, shape: tuple[int, ...], *, backward: bool) -> float:
    """Return our median time over theirs, the two called in turn."""
    x, *both = set_up(what, shape, backward=backward)
    torch.testing.assert_close(*(side.run(x, backward=backward) for side in both), rtol=0, atol=1e-5)
    times: list[list[float]] = [[], []]
    start = time.perf_counter()
    while len(times[0]) < LEAST_CALLS or time.perf_counter() - start < SECONDS_A_ROW:
        for side, spent in zip(both, times):
            before = time.perf_counter()
            side.run(x, backward=backward)
            spent.append(time.perf_counter() - before)
    ours, theirs = map(statistics.median, times)
    return ours / theirs


def peak_rise(what: str, shape: tuple[int, ...], side: int, *, backward: bool) -> float:
    """Return how many MiB the first call adds to the peak of this process, which has to be a new one."""
    x, *both = set_up(what, shape, backward=backward)
    both[side].run(
        x[:1, :8].detach().requires_grad_(backward), backward=backward
    )  # wakes threads and kernels
    before = peak_memory()
    both[side].run(x, backward=backward)
    return peak_memory() - before


def peak_memory() -> float:
    """Return the most memory, in MiB, that this program has held so far."""
    # Not getrusage: there the peak of the process that started this one counts too.
    (line,) = (line for line in PROCESS_STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 2**10


def memory(what: str, shape: tuple[int, ...], *, backward: bool) -> str:
    """Return our peak and theirs, each taken in a process made for it."""
    if not PROCESS_STATUS.exists():
        return "peak memory is read on Linux alone"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        peaks = [processes.submit(peak_rise, what, shape, side, backward=backward) for side in (0, 1)]
        return "peak {:.0f} / {:.0f} MiB".format(*(peak.result() for peak in peaks))


def python_seconds(*arguments: str, cwd: Path = ROOT) -> float:
    """Return how long a Python of its own takes from start to end."""
    command = [sys.executable, *arguments]
    return seconds(lambda: subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL))


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    what: str
    figure: float
    unit: str
    target: float
    beside: str = ""

    @property
    def ok(self) -> bool:
        return round(self.figure, 2) <= self.target

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "over"
        figures = f"{self.figure:5.2f}{self.unit}   at most {self.target:.2f}{self.unit}"
        return f"{self.what:<78} {figures}   {verdict:<4}   {self.beside}".rstrip()


def layer_rows() -> Iterator[Row]:
    for what, target in TARGETS.items():
        for shape in SHAPES:
            for backward in (False, True):
                name = f"{what}, {shape}, {'forward and backward' if backward else 'forward'}"
                ratio = time_ratio(what, shape, backward=backward)
                yield Row(name, ratio, "×", target, memory(what, shape, backward=backward))


def import_row() -> Row:
    ratios = []
    for _ in range(IMPORTS):
        theirs, ours = (python_seconds("-c", f"import {module}") for module in ("torch", "mha"))
        ratios.append(ours / theirs)
    return Row("import mha / import torch, whole processes", statistics.median(ratios), "×", IMPORT_TARGET)


def notebook_rows() -> Iterator[Row]:
    for path in notebooks():
        target = NOTEBOOK_TARGETS.get(path.name[:2])
        if path.parent.name == "notebooks" and target is not None:
            best = min(python_seconds("-c", EXECUTE, str(path), cwd=ROOT / "tools") for _ in range(2))
            yield Row(f"{path.name}, the whole process", best, "s", target)


def judging_seconds(exercise: Exercise, *made: Mistake) -> float:
    """How long it takes to name mistakes when nobody has asked for them before."""
    exercise.outcomes.clear()
    return seconds(lambda: judge(exercise, *made))


def check_rows() -> Iterator[Row]:
    """The verdicts of `mha.check` on one thread, warm: the slowest of a few."""
    torch.set_num_threads(1)
    attention = EXERCISES["scaled_dot_product_attention"]
    one = [entry for entry in attention.mistakes if entry.stage in ("scale", "softmax")]
    pairs = [
        (one[0], CATALOGUE["mask-inverted"]),
        (CATALOGUE["softmax-over-queries"], CATALOGUE["mask-added"]),
    ]
    mark_layer(MultiHeadAttention)
    right = max(seconds(lambda: mark_layer(MultiHeadAttention)) for _ in range(5))
    named = max(judging_seconds(attention, entry) for entry in one)
    both = max(judging_seconds(attention, *pair) for pair in pairs)
    torch.set_num_threads(THREADS)
    yield Row("check: a right layer is marked", right, "s", 0.05)
    yield Row("check: a mistake is named", named, "s", 0.5)
    yield Row("check: two mistakes are named", both, "s", 3.0)
    imports = [
        python_seconds("-c", "import mha.check") - python_seconds("-c", "import mha") for _ in range(IMPORTS)
    ]
    yield Row("import mha.check after import mha", statistics.median(imports), "s", 0.2)


def rows() -> Iterator[Row]:
    yield from layer_rows()
    yield import_row()
    yield from check_rows()
    yield from notebook_rows()


def main() -> int:
    print(
        f"torch {torch.__version__}, {THREADS} threads; shapes are (B, L, d_model, h); ours / theirs",
        flush=True,
    )
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY:  # Windows does not tell
        print("The machine is busy with something else: the ratios will be off.", flush=True)
    missed = 0
    for row in rows():
        print(row, flush=True)
        missed += not row.ok
    print(f"{missed} over" if missed else "every target is met")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
