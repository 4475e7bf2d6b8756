"""The verdict on an answer, as text and, where there are attention weights, as a picture."""

import base64
import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mha.check.catalogue import Mistake

if TYPE_CHECKING:
    from mha.plot import NotebookFigure  # drawing is loaded when first asked for


class NotPassedError(Exception):
    """An answer that is not right; the message is the verdict."""


@dataclass(frozen=True)
class Result:
    """The verdict on one answer."""

    exercise: str
    passed: bool
    message: str
    stage: str | None = None
    mistakes: tuple[Mistake, ...] = ()
    attempted: bool = True
    given: Any = field(default=None, compare=False)  # on the first probe on which it is wrong
    wanted: Any = field(default=None, compare=False)

    def raise_if_failed(self) -> None:
        """Raise `NotPassedError` with the verdict unless the answer is right."""
        if not self.passed:
            raise NotPassedError(self.message)

    def picture(self) -> "NotebookFigure | None":
        """Draw the answer's weights beside the right ones; None where there are no weights of one shape."""
        wrong, right = (_weights_in(value) for value in (self.given, self.wanted))
        if wrong is None or right is None or wrong.shape != right.shape:
            return None
        from mha import plot

        example = _first_difference(wrong, right)
        return plot.compare(wrong[example], right[example], sides=("yours", "right"))

    def _repr_html_(self) -> str:
        verdict = f"<pre>{html.escape(self.message)}</pre>"
        figure = self.picture()
        if figure is None:
            return verdict
        png = base64.b64encode(figure._repr_png_()).decode()
        alt = "attention weights per head, the answer's beside the right ones"
        return f'{verdict}<img alt="{alt}" src="data:image/png;base64,{png}">'

    def __repr__(self) -> str:
        named = ", ".join(entry.id for entry in self.mistakes)
        return f"<{self.exercise}: {'passed' if self.passed else named or self.stage or 'not attempted'}>"


def named(exercise: str, entry: Mistake, evidence: str = "", stage: str | None = None) -> Result:
    """Return the verdict that names one mistake, at its own stage unless another is given."""
    lines = [f"{exercise}: {entry.title}", f"  {entry.effect}", *([f"  {evidence}"] if evidence else [])]
    return Result(exercise, False, "\n".join(lines), stage or entry.stage, (entry,))


def _weights_in(value: Any) -> Tensor | None:
    """Return the weights (B, h, Lq, Lk) that stand behind an output, if any do."""
    weights = value[1] if isinstance(value, tuple) and len(value) == 2 else None
    return weights if isinstance(weights, Tensor) and weights.ndim == 4 and weights.numel() else None


def _first_difference(wrong: Tensor, right: Tensor) -> int:
    """Return the first example whose weights differ, (B, h, Lq, Lk) → index into B."""
    differs = ~wrong.float().isclose(right.float(), atol=1e-4, equal_nan=True).flatten(1).all(dim=1)
    return int(differs.int().argmax())
