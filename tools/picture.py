"""Draw the README's picture: four heads of a real model, each with a job that notebook 13 measures."""

from pathlib import Path

import torch

from mha import plot, pretrained

PICTURE = Path(__file__).resolve().parents[1] / "notebooks" / "images" / "heads.png"
SENTENCE = "The animal didn't cross the street because it was too tired."
JOBS = {  # (layer, head): what it does
    (0, 2): "the previous token",
    (1, 8): "the next token",
    (4, 5): "resting on [CLS]",
    (3, 1): "from 'it' to 'animal'",
}


def main() -> None:
    reading = pretrained.load().read(SENTENCE)
    weights = torch.stack([reading.weights[at] for at in JOBS])  # (4, L, L)
    titles = [f"Layer {layer}, head {head}:\n{job}" for (layer, head), job in JOBS.items()]
    plot.heads(weights, reading.tokens, titles=titles).savefig(PICTURE)


if __name__ == "__main__":
    main()
