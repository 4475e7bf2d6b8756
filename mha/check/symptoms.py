"""What a mistake is known by, measured: each entry of the catalogue is put in, run and looked at.

A symptom is a name and a question to a `Trial`, which holds a wrong pipeline against the right one of the
same exercise. Nothing is noted beside an entry, so one that is added tomorrow has its symptoms at once.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import mha
from mha.check.catalogue import Mistake, Stage
from mha.check.exercise import Exercise, Probe
from mha.check.exercises import EXERCISES
from mha.check.exercises.attention import ATTENTION, attention
from mha.check.exercises.inputs import random_tensors
from mha.check.exercises.layer import LAYER
from mha.check.exercises.layer import layer as run_layer
from mha.check.exercises.torch_api import torch_layer_of
from mha.check.outcome import Outcome, attempt, run, same
from mha.check.weights import Projections

BATCH, HEADS, LENGTHS, DIFFER = "B > 1", "more than one head", "Lq ≠ Lk", "Q, K and V differ"
MASK, EMPTY, HALF, LARGE = "a mask", "a fully masked row", "half precision", "large scores"
CONDITIONS = (BATCH, HEADS, LENGTHS, DIFFER, MASK, EMPTY, HALF, LARGE)
_IMPLIED = {LENGTHS: DIFFER, EMPTY: MASK}  # where Lq ≠ Lk, queries and keys are not one sequence

How = Callable[[Callable[..., Any], dict[str, Any]], Outcome]  # run or attempt
_LEAK = 1e-3  # where nothing leaks, exactly nothing moves


# ---------------------------------------------------------------- inputs made for the symptoms


class _Weights(Projections):
    """Weights that no pipeline changes, so that a run need not copy them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Weights":
        return self

    __eq__, __hash__ = object.__eq__, object.__hash__


def projections(d_model: int, num_heads: int) -> Projections:
    """Return random matrices under which queries, keys and values keep a variance of about 1."""
    drawn = random_tensors(*[(d_model, d_model)] * 4, seed=7)
    return _Weights(num_heads, *(W / d_model**0.5 for W in drawn))


@dataclass(frozen=True, eq=False)
class Scene:
    """One input, in every form in which an exercise may ask for it: `named` gives the argument of a name."""

    X: Tensor  # (B, Lk, d_model): the sequence
    w: Projections
    Lq: int  # its last Lq tokens ask
    K: Tensor | None = None  # keys and values of their own, like X
    V: Tensor | None = None
    one_hot: float = 0.0  # where it is not 0, V holds this number times e_i for token i, in each head
    allowed: Tensor | None = None  # (B, Lq, Lk), True where a query may look
    dtype: torch.dtype | None = None  # that of the exercise unless given

    def named(self, name: str, like: Any) -> Any:
        """Return the argument `name`, with as many axes as `like`.

        Raises:
            KeyError: if the scene holds no such argument, or cannot give it that form.
        """
        if like is None:
            return None
        made = self._makers[name](like)
        if isinstance(made, Tensor) and made.is_floating_point():
            return made.to(self.dtype or like.dtype)
        return made

    @functools.cached_property
    def _makers(self) -> dict[str, Callable[[Any], Any]]:
        B, Lk, _ = self.X.shape
        h, Lq, new = self.w.num_heads, self.Lq, slice(Lk - self.Lq, None)
        K, V = (self.X if x is None else x for x in (self.K, self.V))
        if self.one_hot:
            V = self.one_hot * torch.eye(Lk, dtype=torch.float64).repeat(B, 1, h)  # (B, Lk, h·Lk)
        allowed = torch.ones(B, Lq, Lk, dtype=torch.bool) if self.allowed is None else self.allowed
        queries = self.X if Lq == Lk else self.X[:, new]
        lengths = (allowed.any(dim=1) * torch.arange(1, Lk + 1)).amax(dim=-1)  # up to the last key in use

        def rows_or_heads(x: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda like: x if {3: True, 4: False}[_axes(like)] else mha.split_heads(x, h)

        def constant(value: Any) -> Callable[[Any], Any]:
            return lambda like: value

        def mask(like: Any) -> Tensor:
            # With two axes, (B, Lk), it can but hide a key from all queries.
            return {2: allowed.any(dim=1), 3: allowed, 4: allowed[:, None]}[_axes(like)]

        def cache(like: Any) -> mha.KVCache:
            kept = mha.KVCache()
            if Lq < Lk:
                k, v = (mha.split_heads(x[:, : Lk - Lq], h).to(self.dtype) for x in (K, V))
                kept.append(mha.apply_rope(k, torch.arange(Lk - Lq)), v)
            return kept

        sizes = {
            "Lq": Lq,
            "Lk": Lk,
            "max_len": Lk,
            "num_heads": h,
            "block": Lk // 3 + 2,
            "lengths": lengths,
            "w": self.w,
        }
        matrices = {f"W_{role}": getattr(self.w, f"W_{role}") for role in "qkvo"}
        sequences = {"Q": queries, "K": K, "V": V, "x": queries, "memory": K, "q": queries}
        sequences |= {"k": K[:, new], "v": V[:, new]}
        return {
            **{name: constant(value) for name, value in (sizes | matrices).items()},
            **{name: rows_or_heads(x) for name, x in sequences.items()},
            "mask": mask,
            "keep": mask,
            "cache": cache,
            "mha": lambda like: self._torch_layer(),
        }

    @functools.cached_property
    def telling(self) -> "Scene":
        """The same with one-hot values: what a query takes home of them *is* its weights."""
        return self if self.one_hot == 1 else replace(self, one_hot=1.0)

    @functools.cached_property
    def doubled(self) -> "Scene":
        """The same with one-hot values twice as large."""
        return replace(self, one_hot=2.0)

    def _torch_layer(self) -> torch.nn.MultiheadAttention:
        layer = torch_layer_of(self.X.size(-1), self.w.num_heads, seed=0)
        layer.in_proj_weight.copy_(torch.cat([self.w.W_q, self.w.W_k, self.w.W_v]))
        layer.out_proj.weight.copy_(self.w.W_o)
        return layer


def _axes(like: Any) -> int | None:
    return like.ndim if isinstance(like, Tensor) else None


def scene(conditions: frozenset[str]) -> Scene:
    """Return the input on which just these conditions hold."""
    B, h = 1 + (BATCH in conditions), 3 if HEADS in conditions else 1
    Lq, Lk, d_model = 4, 7 if LENGTHS in conditions else 4, 18
    X, K, V = random_tensors(*[(B, Lk, d_model)] * 3, seed=5)
    allowed = torch.ones(B, Lq, Lk, dtype=torch.bool)
    if MASK in conditions:
        allowed = torch.rand(B, Lq, Lk, generator=torch.Generator().manual_seed(6)) < 0.5
        allowed[:, :, 0] = True
        for b in range(B):
            allowed[b, :, -1 - b :] = False
    if EMPTY in conditions:
        allowed[0] = False
    if LARGE in conditions:
        X, K, V = X * 40, K * 40, V * 40  # exp overflows in float64, too
    return Scene(
        X,
        projections(d_model, h),
        Lq,
        K=K if DIFFER in conditions else None,
        V=V if DIFFER in conditions else None,
        allowed=allowed if conditions & {MASK, EMPTY} else None,
        dtype=torch.float16 if HALF in conditions else None,
    )


def _combinations() -> list[frozenset[str]]:
    """No condition, each by itself, those that meet in one mistake, and nearly all at once."""
    singles = [{one} for one in CONDITIONS]
    pairs = [{MASK, one} for one in (BATCH, HEADS, LENGTHS, HALF, LARGE)] + [{BATCH, HEADS}]
    return [frozenset(some) for some in ([], *singles, *pairs, set(CONDITIONS) - {HALF, LARGE})]


COMBINATIONS = _combinations()


def _causal(B: int, L: int) -> Tensor:
    return torch.ones(L, L, dtype=torch.bool).tril().expand(B, L, L)


def _hiding_last_and_a_row(B: int, L: int) -> Tensor:
    allowed = torch.ones(B, L, L, dtype=torch.bool)
    allowed[..., -1] = allowed[0, 1] = False
    return allowed


@functools.cache
def sights() -> dict[str, Scene]:
    """Return the inputs on which weights are looked at: four tokens, two heads, one-hot values."""
    L, h = 4, 2
    (X,) = random_tensors((1, L, h * L), seed=3)
    one = torch.eye(h * L, dtype=torch.float64)
    w = replace(projections(h * L, h), W_v=one, W_o=one)
    plain = Scene(X * 1.5, w, L, dtype=torch.float64, one_hot=1.0)
    return {
        "without a mask": plain,
        "under a causal mask": replace(plain, allowed=_causal(1, L)),
        "under a padding mask, one query with nothing to see": replace(
            plain, allowed=_hiding_last_and_a_row(1, L)
        ),
        "two new queries, four keys": replace(plain, Lq=2),
    }


@functools.cache
def _wide() -> Scene:
    """Return heads of the size in the paper, d_k = 64."""
    L, h = 64, 2
    X, K = random_tensors(*[(1, L, h * L)] * 2, seed=4)
    return Scene(X, projections(h * L, h), L, K=K)


@dataclass(frozen=True, eq=False)
class Change:
    """Two scenes that differ in one place, and the place where nothing of it may arrive."""

    scenes: tuple[Scene, Scene]
    look: tuple[Any, ...]  # index into (B, L, …)
    needs_mask: bool = False  # there is something to get through only where a mask is given


def _change(allowed: Tensor | None, at: Any, look: Any, needs_mask: bool = False) -> Change:
    X, new = random_tensors((2, 4, 18), (2, 4, 18), seed=8)
    other = X.clone()
    other[at] = new[at] * 3
    before = Scene(X, projections(18, 3), 4, allowed=allowed)
    return Change((before, replace(before, X=other)), look, needs_mask)


@functools.cache
def _changes() -> dict[str, Change]:
    last, before_it = (slice(None), 3), (slice(None), slice(0, 3))
    return {
        "mask": _change(_hiding_last_and_a_row(2, 4), last, before_it, needs_mask=True),
        "future": _change(_causal(2, 4), last, before_it),
        "batch": _change(None, (1,), (0,)),
    }


# ---------------------------------------------------------------- where a mistake is tried


def _layer(
    s: Mapping[str, Stage], w: Projections, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None
) -> Any:
    return run_layer(s, w, Q, K, V, mask)


def _layer_probes() -> list[Probe]:
    given = scene(frozenset())
    plain = {"w": given.w, "Q": given.X, "K": given.X, "V": given.X}
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    w = scene(frozenset({HEADS})).w
    roles = ("b_q", "b_k", "b_v", "b_o")
    biases = dict(zip(roles, random_tensors(*[(len(w.W_q),)] * len(roles), seed=9), strict=True))
    return [
        Probe("self-attention", "project", plain),
        Probe("a mask", "mask", {**plain, "mask": mask}),
        Probe("projections with biases", "project", {**plain, "w": replace(w, **biases)}),
    ]


LAYER_EXERCISE = Exercise(
    "multi_head_attention",
    "(Q, K, V, mask=None)",
    mha.MultiHeadAttention,
    LAYER,
    _layer,
    _layer_probes,
)


@functools.cache
def home(entry: Mistake) -> Exercise | None:
    """Return where a mistake is tried: in the layer if it has the stages, else in the first that has them.

    None where it replaces no stage: it is a way to behave, which one call does not show.
    """
    if not entry.replaces:
        return None
    places = (LAYER_EXERCISE, *EXERCISES.values())
    return next((place for place in places if entry.replaces.keys() <= place.stages.keys()), None)


@dataclass(frozen=True, eq=False)
class Case:
    """One input of an exercise, and what the right code makes of it."""

    shows: str
    conditions: frozenset[str] | None  # None for an input of the exercise's own
    arguments: dict[str, Any]
    right: Outcome


class Place:
    """An exercise with what its right code comes to, worked out once for all of its mistakes."""

    def __init__(self, exercise: Exercise) -> None:
        self.exercise, self.right = exercise, exercise.with_mistakes()
        self.probes = exercise.probes()
        self.forms = [form for form in _forms(self.probes) if _filled(form, scene(frozenset())) is not None]
        self._seen: dict[Scene, list[tuple[dict[str, Any], Any]]] = {}
        self._tight: dict[Change, list[list[dict[str, Any]]]] = {}

    def fill(self, given: Scene) -> list[dict[str, Any]]:
        """Return the scene's arguments for each form of call that takes them, with a mask if it has one."""
        masked = [form for form in self.forms if _has_mask(form)]
        plain = [form for form in self.forms if not _has_mask(form)] or self.forms
        forms = plain if given.allowed is None else masked
        return [arguments for form in forms if (arguments := _filled(form, given)) is not None]

    def seen(self, given: Scene) -> list[tuple[dict[str, Any], Any]]:
        """Return what the right code makes of a scene, in each form of call that it does not refuse."""
        if given not in self._seen:
            calls = self.fill(given)
            results = [self.result(self.right, arguments, given) for arguments in calls]
            pairs = zip(calls, results, strict=True)
            self._seen[given] = [(arguments, right) for arguments, right in pairs if right is not None]
        return self._seen[given]

    def result(
        self, code: Callable[..., Any], arguments: dict[str, Any], given: Scene, how: How = attempt
    ) -> Any:
        """Return what `code` makes of a scene; of a mask that it makes, what attention comes to under it.

        None where it raises.
        """
        value = how(code, arguments).value
        if not self.makes_masks or value is None:
            return value
        q, k, v = (given.named(name, torch.zeros(1, 1, 1, 1, dtype=torch.float64)) for name in "QKV")
        return run(lambda: attention(ATTENTION, q, k, v, value), {}).value

    @functools.cached_property
    def makes_masks(self) -> bool:
        """Whether a mask is what is asked for."""
        value = attempt(self.right, self.probes[0].arguments).value
        return isinstance(value, Tensor) and value.dtype == torch.bool

    def tight(self, change: "Change") -> list[list[dict[str, Any]]]:
        """Return the calls before and after a change, of those forms in which nothing of it gets through."""
        if change not in self._tight:
            forms = [form for form in self.forms if _has_mask(form)] if change.needs_mask else self.forms
            calls = [[_filled(form, given) for given in change.scenes] for form in forms]
            self._tight[change] = [pair for pair in calls if None not in pair and self._holds(pair, change)]
        return self._tight[change]

    def _holds(self, calls: list[dict[str, Any]], change: "Change") -> bool:
        pairs = zip(calls, change.scenes, strict=True)
        results = [self.result(self.right, arguments, given) for arguments, given in pairs]
        return None not in map(_output_in, results) and not _moves(*results, change.look)

    @functools.cached_property
    def cases(self) -> list[Case]:
        """The scenes, as far as the exercise can tell them apart, and its own inputs."""
        cases = []
        told = self._told()
        for conditions in dict.fromkeys(some & told for some in COMBINATIONS):
            shows = ", ".join(one for one in CONDITIONS if one in conditions) or "any input"
            for arguments in self.fill(scene(conditions)):
                cases.append(Case(shows, conditions, arguments, attempt(self.right, arguments)))
        # Of the layer's own inputs the scenes lack only that of three heads with biases.
        is_layer = self.exercise is LAYER_EXERCISE
        own, conditions = (self.probes[-1:], frozenset({HEADS})) if is_layer else (self.probes, None)
        cases += [Case(p.shows, conditions, p.arguments, attempt(self.right, p.arguments)) for p in own]
        return [case for case in cases if case.right.error is None]

    def _told(self) -> frozenset[str]:
        """Return the conditions that make a difference to what the exercise is given."""
        names = {name for form in self.forms for name in form}
        asks = {
            LENGTHS: {"K", "Lk", "cache", "memory"},
            DIFFER: {"V", "memory"},
            MASK: {"mask", "keep", "lengths"},
            EMPTY: {"mask", "keep", "lengths"},
        }
        return frozenset(one for one in CONDITIONS if one not in asks or names & asks[one])


def _forms(probes: list[Probe]) -> list[dict[str, Any]]:
    """Return the arguments of one probe for each form of call: which there are, and of how many axes."""
    forms: dict[str, dict[str, Any]] = {}
    for probe in probes:
        kinds = {
            name: x.ndim if isinstance(x, Tensor) else x if isinstance(x, bool | None) else type(x).__name__
            for name, x in probe.arguments.items()
        }
        forms.setdefault(str(kinds), probe.arguments)
    return list(forms.values())


def _has_mask(form: dict[str, Any]) -> bool:
    return any(isinstance(form.get(name), Tensor) for name in ("mask", "keep", "lengths"))


def _filled(form: dict[str, Any], given: Scene) -> dict[str, Any] | None:
    """Return the arguments with those of the scene in their place; None where it lacks one that counts."""
    arguments = {}
    for name, like in form.items():
        try:
            arguments[name] = given.named(name, like)
        except KeyError:
            if not isinstance(like, int):  # a setting, such as causal=True, stays as it is
                return None
            arguments[name] = like
    replaced = {name for name in form if arguments[name] is not form[name]}
    return arguments if replaced - {"num_heads", "block"} else None


@functools.cache
def place(name: str) -> Place:
    """Return the exercise of this name, ready for its mistakes."""
    return Place(LAYER_EXERCISE if name == LAYER_EXERCISE.name else EXERCISES[name])


# ---------------------------------------------------------------- a mistake that is made


class Trial:
    """A wrong pipeline beside the right one: what both come to, run when first asked for."""

    def __init__(self, place: Place, wrong: Callable[..., Any], how: How = attempt) -> None:
        self.place, self.wrong = place, wrong
        self.how = how  # it is run: code of our own without the precautions
        self._seen: dict[Scene, list[tuple[Any, Any]]] = {}

    @functools.cached_property
    def failures(self) -> list[tuple[Case, Outcome]]:
        """The cases on which it is not right, and what it comes to there."""
        given = [(case, self.how(self.wrong, case.arguments)) for case in self.place.cases]
        return [
            (case, outcome)
            for case, outcome in given
            if outcome.error is not None or not same(outcome.value, case.right.value)
        ]

    @property
    def first(self) -> str:
        """The easiest input that shows it: of the exercise's own, where it has any."""
        own = [case.shows for case, _ in self.failures if case.conditions is None]
        return next(iter(own or (case.shows for case, _ in self.failures)), "")

    def seen(self, given: Scene) -> list[tuple[Any, Any]]:
        """Return what the wrong and the right code make of a scene, in each form of call."""
        if given not in self._seen:
            self._seen[given] = [
                (self.place.result(self.wrong, arguments, given, self.how), right)
                for arguments, right in self.place.seen(given)
            ]
        return self._seen[given]

    def weights(self, given: Scene) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield both weights (B, h, Lq, Lk): those that come back, else what one-hot values tell of them."""
        for wrong, right in self.seen(given):
            pair = _weights_in(wrong), _weights_in(right)
            if None not in pair and pair[0].shape == pair[1].shape:
                yield pair[0].double(), pair[1].double()
        yield from self._told_by_values(given)

    @functools.cached_property
    def wide(self) -> tuple[Tensor, Tensor] | None:
        """Both weights of heads of the paper's size; None where the wrong rows sum to another whole."""
        pairs = self.weights(_wide())
        sums = ((pair, *(x.sum(dim=-1) for x in pair)) for pair in pairs)
        return next((pair for pair, wrong, right in sums if torch.allclose(wrong, right, atol=1e-3)), None)

    def _told_by_values(self, given: Scene) -> Iterator[tuple[Tensor, Tensor]]:
        if not any(_is_map(right) for _, right in self.place.seen(given.telling)):
            return
        once, twice = self.seen(given.telling), self.seen(given.doubled)
        for (wrong, right), (doubled, _) in zip(once, twice, strict=True):
            # Only where values are nothing but mixed does twice as much come of values twice as large.
            if _is_map(right) and _is_map(wrong) and same(doubled, 2 * wrong) and wrong.shape == right.shape:
                yield wrong.double(), right.double()

    def leaks(self, change: Change) -> bool:
        """Whether the change arrives where nothing of it arrives in the right code."""
        for calls in self.place.tight(change):
            pairs = zip(calls, change.scenes, strict=True)
            results = [
                self.place.result(self.wrong, arguments, given, self.how) for arguments, given in pairs
            ]
            if _moves(*results, change.look):
                return True
        return False


def _is_map(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 4


def _weights_in(value: Any) -> Tensor | None:
    """Return the weights that come back beside an output."""
    if isinstance(value, tuple | list) and len(value) == 2 and _is_map(value[1]):
        return value[1]
    return None


def _output_in(value: Any) -> Tensor | None:
    """Return the output by tokens, (B, L, …)."""
    found = value[0] if isinstance(value, tuple | list) and value else value
    if not isinstance(found, Tensor) or found.ndim not in (3, 4):
        return None
    return found.transpose(1, 2) if found.ndim == 4 else found


def _moves(before: Any, after: Any, look: tuple[Any, ...]) -> bool:
    a, b = _output_in(before), _output_in(after)
    if a is None or b is None or a.shape != b.shape or a.size(0) < 2 or a.size(1) < 4:
        return False
    return bool(((a[look] - b[look]).abs() > _LEAK).any())  # False for NaN, which is a symptom of its own


# ---------------------------------------------------------------- symptoms


def _raises(trial: Trial) -> bool:
    return any(given.error is not None for _, given in trial.failures)


def _other_form(wrong: Any, right: Any) -> Iterator[str]:
    """Yield "type" or "shape" for each part of a result in which that is not the right one."""
    if type(wrong) is not type(right):
        yield "type"
    elif isinstance(right, Tensor):
        yield from ["shape"] * (wrong.shape != right.shape) + ["type"] * (wrong.dtype != right.dtype)
    elif isinstance(right, tuple | list | dict):
        keys = [x.keys() if isinstance(x, dict) else range(len(x)) for x in (wrong, right)]
        if keys[0] != keys[1]:
            yield "shape"
        else:
            for key in keys[1]:
                yield from _other_form(wrong[key], right[key])


def _has_another(what: str) -> Callable[[Trial], bool]:
    return lambda trial: any(
        what in _other_form(given.value, case.right.value)
        for case, given in trial.failures
        if given.error is None
    )


def _is_nan(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_is_nan, value))
    return isinstance(value, Tensor) and bool(value.isnan().any())


def _gives_nan(trial: Trial) -> bool:
    pairs = [(given.value, case.right.value) for case, given in trial.failures]
    pairs += [pair for sight in sights().values() for pair in trial.seen(sight)]
    return any(_is_nan(wrong) and not _is_nan(right) for wrong, right in pairs)


def _sums_wrong(trial: Trial) -> bool:
    for wrong, right in (pair for sight in sights().values() for pair in trial.weights(sight)):
        is_whole = (right.sum(dim=-1) - 1).abs() < 1e-3
        is_off = (wrong.sum(dim=-1) - 1).abs() > 0.01  # False for NaN
        if (is_whole & is_off).any():
            return True
    return False


def _leaks(of: str) -> Callable[[Trial], bool]:
    return lambda trial: trial.leaks(_changes()[of])


def _fails_only(condition: str) -> Callable[[Trial], bool]:
    def fails(trial: Trial) -> bool:
        wrong = [case.conditions for case, _ in trial.failures if case.conditions is not None]
        if not any(len(conditions) < 3 for conditions in wrong):
            return False  # with so much at once, it cannot be said which of it matters
        implied = [
            conditions | {_IMPLIED[one] for one in conditions & _IMPLIED.keys()} for conditions in wrong
        ]
        always = frozenset.intersection(*implied)
        return condition in always - {_IMPLIED[one] for one in always & _IMPLIED.keys()}

    return fails


def _is_right_at_first(trial: Trial) -> bool:
    own = [case for case in trial.place.cases if case.conditions is None]
    return bool(own) and all(case is not own[0] for case, _ in trial.failures)


def _on_wide_heads(trial: Trial, measure: Callable[[Tensor], Tensor], share: float) -> bool:
    """Whether a measure of the weights falls below a share of what is right, while rows still sum to one."""
    if trial.wide is None:
        return False
    wrong, right = trial.wide
    return bool(measure(wrong) < share * measure(right))


def _is_nearly_one_hot(trial: Trial) -> bool:
    # Σ w · (1 - w) over a row: how much its weights answer to the scores, and so what gradient comes through.
    return _on_wide_heads(trial, lambda w: (w * (1 - w)).sum(dim=-1).mean(), 0.5)


def _is_nearly_uniform(trial: Trial) -> bool:
    return _on_wide_heads(trial, torch.std, 0.25)


def _trains_slowly(trial: Trial) -> bool:
    return (_is_nearly_one_hot(trial) or _is_nearly_uniform(trial)) and not _raises(trial)


SYMPTOMS: dict[str, Callable[[Trial], bool]] = {
    "raises an error": _raises,
    "the shape is wrong": _has_another("shape"),
    "the type is wrong": _has_another("type"),
    "NaN": _gives_nan,
    "rows do not sum to one": _sums_wrong,
    "a masked token leaks": _leaks("mask"),
    "the future leaks": _leaks("future"),
    "another example of the batch leaks": _leaks("batch"),
    "fails only for Lq ≠ Lk": _fails_only(LENGTHS),
    "fails only with more than one head": _fails_only(HEADS),
    "fails only for B > 1": _fails_only(BATCH),
    "fails only where Q, K and V differ": _fails_only(DIFFER),
    "fails only with a mask": _fails_only(MASK),
    "fails only for a fully masked row": _fails_only(EMPTY),
    "fails only in half precision": _fails_only(HALF),
    "fails only for large scores": _fails_only(LARGE),
    "right on the easiest input": _is_right_at_first,
    "weights nearly one-hot": _is_nearly_one_hot,
    "weights nearly uniform": _is_nearly_uniform,
    "trains, but slowly": _trains_slowly,
}
SILENT = "only the numbers are wrong"
UNSEEN = "no single call shows it"


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread: with tensors this small, a second one only keeps the first waiting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def trial_of(entry: Mistake) -> Trial | None:
    """Return the trial of a mistake, in its exercise; None where there is nothing to put in."""
    exercise = home(entry)
    return exercise and Trial(place(exercise.name), exercise.with_mistakes(entry))


# What an entry without a pipeline is known by: how a result stands to the right one, what an error means.
_WITHOUT_A_PIPELINE = {
    "result-of-another-kind": "the type is wrong",
    "result-of-another-dtype": "the type is wrong",
    "behaviour-nothing-returned": "the type is wrong",
    "result-of-another-shape": "the shape is wrong",
    "scale-other": SILENT,
}


@functools.cache
def symptoms_of(entry: Mistake) -> tuple[str, ...]:
    """Return the names of what a mistake is known by, at least one."""
    trial = trial_of(entry)
    if trial is not None:
        return symptoms(trial) or (SILENT,)
    if entry.stage == "error":
        return ("raises an error",)
    return (_WITHOUT_A_PIPELINE.get(entry.id, SILENT if entry.stage == "result" else UNSEEN),)


@one_thread()
def symptoms(trial: Trial) -> tuple[str, ...]:
    """Return which of the symptoms a pipeline has; the right one has none."""
    if not trial.failures:
        return ()
    return tuple(name for name, shows in SYMPTOMS.items() if shows(trial)) or (SILENT,)
