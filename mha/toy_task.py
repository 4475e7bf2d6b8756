"""A toy task for two heads: name both neighbours of every token; and a measure of who does which job.

Every position has to say which token stands before it and which stands behind it, in a ring: the first
token's previous one is the last. Each *job*, previous or next, needs one key, and it is known which. So the
attention weights of a trained model can be held against what they ought to be.
"""

from collections.abc import Callable
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mha._validate import check_size, check_tensor
from mha.attention import MultiHeadAttention

JOBS = ("previous", "next")
LENGTH = 8  # tokens in a sequence
VOCABULARY = 8  # tokens are 0 … 7
D_MODEL = 32
# With a rate of 0.02 one seed in ten stays where both heads share both jobs.
LEARNING_RATE = 0.01
BATCH_SIZE = 32


class NeighbourModel(nn.Module):
    """Embeddings of tokens and positions, one attention layer, one linear read-out; nothing else.

    It has the same number of parameters whatever `num_heads` is.

    Args:
        num_heads: h of its `attention`, a `mha.MultiHeadAttention`.

    Raises:
        TypeError, ValueError: for a num_heads that is no integer or does not divide 32, its d_model.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, D_MODEL)
        self.position = nn.Embedding(LENGTH, D_MODEL)
        self.attention = MultiHeadAttention(D_MODEL, num_heads)
        self.read_out = nn.Linear(D_MODEL, len(JOBS) * VOCABULARY)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Answer both jobs at every position.

        Args:
            tokens: (B, 8), integers from 0 to 7.

        Returns:
            logits (B, jobs, L, vocabulary) and the attention weights (B, h, L, L).

        Raises:
            TypeError, ValueError: if tokens is not a 2-D tensor of integers, 8 to a row.
        """
        check_tensor("tokens", tokens, axes=("B", "L"), floating=False)
        if tokens.size(1) != LENGTH:
            raise ValueError(f"tokens has shape {tuple(tokens.shape)}; the model takes sequences of {LENGTH}")
        x = self.token(tokens) + self.position.weight  # (B, L, d_model)
        y, weights = self.attention(x, x, x)
        logits = self.read_out(y).unflatten(-1, (len(JOBS), VOCABULARY))  # (B, L, jobs, vocabulary)
        return logits.transpose(1, 2), weights


def right_keys(length: int = LENGTH) -> Tensor:
    """Return, for each job and query, the position of the one key it needs: (jobs, L).

    Raises:
        TypeError, ValueError: for a length that is not a positive integer.
    """
    check_size("length", length)
    query = torch.arange(length)
    return torch.stack([query - 1, query + 1]) % length


def answers(tokens: Tensor) -> Tensor:
    """Return what each job has to say at each position: tokens (B, L) → (B, jobs, L).

    Raises:
        TypeError, ValueError: if tokens is not a 2-D tensor of integers.
    """
    check_tensor("tokens", tokens, axes=("B", "L"), floating=False)
    return tokens[:, right_keys(tokens.size(1)).to(tokens.device)]


def make_batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw random sequences: tokens (B, L) and the right answers (B, jobs, L).

    Raises:
        TypeError, ValueError: for a size that is not a positive integer.
    """
    check_size("size", size)
    tokens = torch.randint(VOCABULARY, (size, LENGTH), generator=generator, device=generator.device)
    return tokens, answers(tokens)


def train(
    num_heads: int,
    seed: int,
    *,
    steps: int = 100,
    on_step: Callable[[int, NeighbourModel], None] | None = None,
) -> NeighbourModel:
    """Make a model and train it, on the CPU, with Adam; the same arguments give the same model.

    The random state is left as it is: all that is drawn comes from `seed`. The tensors are too small for a
    second thread, and on a busy machine waiting for it can take a hundred times as long as the work:
    `torch.set_num_threads(1)` beforehand.

    Args:
        num_heads: h of the attention layer.
        seed: of the initial parameters and of the training sequences.
        steps: how many batches of 32 sequences to learn from.
        on_step: called as on_step(done, model) before training, done = 0, and after each step.

    Returns:
        the model, its parameters no longer asking for gradients.

    Raises:
        TypeError, ValueError: for a num_heads that `NeighbourModel` refuses, or steps that are not a
            positive integer.
    """
    check_size("steps", steps)
    # Only the CPU's random state is forked, so only that one may be seeded; torch.manual_seed does them all.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        model = NeighbourModel(num_heads)
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    _report(on_step, 0, model)
    for done in range(1, steps + 1):
        tokens, targets = make_batch(BATCH_SIZE, generator)
        with torch.enable_grad():
            logits, _ = model(tokens)
            F.cross_entropy(logits.flatten(0, 2), targets.flatten()).backward()
        optimiser.step()
        optimiser.zero_grad()
        _report(on_step, done, model)
    return model.requires_grad_(False)


@torch.no_grad()
def _report(on_step: Callable[[int, NeighbourModel], None] | None, done: int, model: NeighbourModel) -> None:
    if on_step is not None:
        on_step(done, model)


def accuracy(logits: Tensor, targets: Tensor) -> float:
    """Return the share of right answers: logits (B, jobs, L, vocabulary), targets (B, jobs, L).

    Raises:
        TypeError, ValueError: if the two are no such tensors or do not fit together.
    """
    check_tensor("logits", logits, axes=("B", "jobs", "L", "vocabulary"), floating=True)
    check_tensor("targets", targets, axes=("B", "jobs", "L"), floating=False)
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits has shape {tuple(logits.shape)} and targets {tuple(targets.shape)}; "
            "all but the last axis of logits have to agree"
        )
    return (logits.argmax(dim=-1) == targets).double().mean().item()


def attention_mass(weights: Tensor, right_keys: Tensor) -> Tensor:
    """Return how much of its attention each head gives to the right key of each job.

    Args:
        weights: attention weights, (B, h, Lq, Lk).
        right_keys: for each job and query the index of the key that it needs, (jobs, Lq).

    Returns:
        (jobs, h): the mean over all examples and queries, from 0 to 1.

    Raises:
        TypeError, ValueError: if the two are no such tensors, do not fit together or are empty.
    """
    check_tensor("weights", weights, axes=("B", "h", "Lq", "Lk"), floating=True)
    check_tensor("right_keys", right_keys, axes=("jobs", "Lq"), floating=False)
    Lq, Lk = weights.shape[-2:]
    if right_keys.size(1) != Lq or 0 in (*weights.shape, *right_keys.shape):
        raise ValueError(
            f"weights has shape {tuple(weights.shape)} and right_keys {tuple(right_keys.shape)}; they have "
            "to be (B, h, Lq, Lk) and (jobs, Lq), with one Lq and no axis empty"
        )
    if right_keys.device != weights.device:
        raise ValueError(f"right_keys is on {right_keys.device} and weights on {weights.device}")
    if right_keys.min() < 0 or right_keys.max() >= Lk:
        raise ValueError(f"right_keys={right_keys.tolist()}: each has to be a key, from 0 to {Lk - 1}")
    queries = torch.arange(Lq, device=weights.device)
    on_right_key = weights[:, :, queries, right_keys]  # (B, h, jobs, Lq)
    return on_right_key.mean(dim=(0, 3)).T  # (jobs, h)


def specialisation(weights: Tensor, right_keys: Tensor) -> tuple[float, tuple[int, ...]]:
    """Say how well the heads share out the jobs, and which head does which.

    Each job is given a head of its own, so that the heads' attention on the right keys is the most it can
    be. Every such assignment is tried, h! / (h - jobs)! of them: enough for a handful of heads.

    Args:
        weights, right_keys: as for `attention_mass`; there may not be more jobs than heads.

    Returns:
        the score, which is the mean attention mass on the right key under the best assignment, from 0 to 1;
        and the head of each job, (jobs,), the first such assignment if several are equally good.

    Raises:
        TypeError, ValueError: as `attention_mass`; also if there are more jobs than heads.
    """
    mass = attention_mass(weights, right_keys).tolist()  # (jobs, h)
    jobs, num_heads = len(mass), len(mass[0])
    if jobs > num_heads:
        raise ValueError(f"right_keys has {jobs} jobs and weights {num_heads} heads; each job needs its own")

    def score(heads: tuple[int, ...]) -> float:
        return sum(mass[job][head] for job, head in enumerate(heads)) / jobs

    best = max(permutations(range(num_heads), jobs), key=score)
    return score(best), best
