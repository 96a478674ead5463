"""Which token hears of which, within one layer: a recurrent one, a convolution, attention.

    python benchmarks/reach.py --out docs/limits/reach.png

Each layer with the values that torch starts it with, random tokens. Row i: by how much token i of what comes out
changes when token j of what goes in does, as a share of the row. That is the length of a gradient, of a random
direction, averaged over sequences. Nothing is trained: it is what a layer can do before it has learnt anything.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitral.look.figures import figure, theme
from vitral.model.config import Regularise, ViTConfig
from vitral.model.vit import Attention

T, D, SEQUENCES = 16, 64, 256
Layer = Callable[[Tensor], Tensor]  # (B, T, D) → (B, T, D)


def layers() -> dict[str, Layer]:
    recurrent = nn.RNN(D, D, batch_first=True)
    convolution = nn.Conv1d(D, D, 3, padding=1)
    attention = Attention(ViTConfig(width=D, heads=4), Regularise())
    return {
        "Recurrent: the past, fading": lambda x: recurrent(x)[0],
        "Convolution: the neighbours": lambda x: convolution(x.transpose(1, 2)).transpose(1, 2),
        "Attention: everybody": attention,
    }


def reach(layer: Layer) -> NDArray[np.float32]:  # (T, T), rows sum to 1
    x = torch.randn(SEQUENCES, T, D, requires_grad=True)
    out, direction = layer(x), torch.randn(D)
    rows = [torch.autograd.grad((out[:, i] @ direction).sum(), x, retain_graph=True)[0] for i in range(T)]
    lengths = torch.stack(rows).norm(dim=-1).mean(dim=1)  # (T, B, T, D) → (T, T)
    return (lengths / lengths.sum(dim=1, keepdim=True)).numpy()


def draw(found: dict[str, NDArray[np.float32]], path: Path) -> None:
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    shares = LinearSegmentedColormap.from_list("shares", theme(dark=False).shares)
    with figure(path, 9.6, 3.5, "", "") as canvas:
        places = canvas.subplots(1, 3, sharey=True)
        for axes, (title, rows) in zip(places, found.items(), strict=True):
            shown = axes.imshow(rows, cmap=shares, norm=PowerNorm(0.5, 0, 0.5))  # √: small shares show
            axes.set(title=title, xlabel="hears of token")
            axes.set_xticks(range(0, T, 5))
            axes.set_yticks(range(0, T, 5))
        places[0].set_ylabel("token")
        bar = canvas.colorbar(shown, ax=places, shrink=0.8, ticks=[0, 0.05, 0.2, 0.5], label="share")
        bar.ax.set_yticklabels(["0", "5 %", "20 %", "50 %"])
        bar.outline.set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a PNG file")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = {title: reach(layer) for title, layer in layers().items()}
    draw(found, asked.out)
    for title, rows in found.items():
        own, fifth, first = rows[-1, -1], rows[-1, -6], rows[-1, 0]
        print(f"{title}. The last token: {own:.1%} itself, {fifth:.1%} the fifth before it, {first:.4%} the first")


if __name__ == "__main__":
    main()
