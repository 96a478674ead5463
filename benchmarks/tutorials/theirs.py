"""The tutorials' own models beside ours, epoch by epoch.     python benchmarks/tutorials/theirs.py [RECIPE …]

Each tutorial's model is written anew from what it tells: its layers, their order and their first values. Both see the
same batches, an epoch of theirs and then one of ours, so that losses, scores and seconds stand side by side. A loss of
tutorial-mnist cannot be compared with ours: its softmax stands before the loss, which then cannot fall below 1.46.

Seconds are of training alone. They are kind to the tutorials: where these loop over pictures, or take a norm three
times over, these models do it once for the whole batch.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import NamedTuple

import click
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vitral.data.batches import Batch, in_order
from vitral.recipes import find_recipe
from vitral.training.learner import Learner
from vitral.training.preparation import Plan, prepared

TELL_EVERY = 10.0  # seconds


class Heads(nn.Module):
    """Attention where each head has three small layers of its own. Sliced: it sees only its share of the token."""

    def __init__(self, width: int, heads: int, *, sliced: bool) -> None:
        super().__init__()
        self.sliced, size = sliced, width // heads
        sees = size if sliced else width
        self.heads = nn.ModuleList(nn.ModuleList(nn.Linear(sees, size) for _ in "qkv") for _ in range(heads))
        # tutorial-mnist speaks of a last layer too, and its code has none.
        self.mix = nn.Identity() if sliced else nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) → (B, T, D)
        seen = x.chunk(len(self.heads), dim=-1) if self.sliced else [x] * len(self.heads)
        taken = []
        for layers, part in zip(self.heads, seen, strict=True):
            q, k, v = (layer(part) for layer in layers)  # each (B, T, D/heads)
            shares = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)  # (B, T, T)
            taken.append(shares @ v)
        return self.mix(torch.cat(taken, dim=-1))


class TorchHeads(nn.MultiheadAttention):
    """PyTorch's own attention, asked as tutorial-cifar10-a asks it: with the maps, which it then throws away."""

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) → (B, T, D)
        return super().forward(x, x, x)[0]


class Block(nn.Module):
    """The same in all three but for the attention and the kind of GELU."""

    def __init__(self, width: int, attention: nn.Module, gelu: str = "none") -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), attention
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(gelu), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:  # (B, T, D) → (B, T, D)
        tokens = tokens + self.attention(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class Theirs(nn.Module):
    """Patches of 4×4 pixels, a class token in front, positions, blocks, and a head that sees the class token.

    Where a tutorial cuts patches by hand, the convolution is the same layer: also its first values are drawn alike.
    """

    def __init__(self, channels: int, token: Tensor, positions: Tensor, blocks: list[Block], head: nn.Module) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, token.shape[-1], kernel_size=4, stride=4)
        self.token = nn.Parameter(token)  # (1, 1, D)
        self.positions = positions  # (1, T, D): a parameter, or a buffer where they are fixed
        self.blocks, self.head = nn.Sequential(*blocks), head

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) → (B, classes)
        patches = self.patches(images).flatten(2).transpose(1, 2)  # (B, N, D)
        tokens = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.positions  # (B, T, D)
        return self.head(self.blocks(tokens)[:, 0])


def mnist() -> Theirs:
    """Width 8, 2 blocks, 2 heads. PyTorch's own first values; the class token uniform in 0…1. No last norm."""
    number, column = torch.arange(50.0)[:, None], torch.arange(8)
    even = column - column % 2  # a sine and the cosine beside it have the same wave
    angles = number / 10_000 ** (even / 8)
    waves = torch.where(column == even, angles.sin(), angles.cos())[None]  # (1, T, D)
    blocks = [Block(8, Heads(8, 2, sliced=True)) for _ in range(2)]
    return Theirs(1, torch.rand(1, 1, 8), nn.Buffer(waves), blocks, nn.Sequential(nn.Linear(8, 10), nn.Softmax(-1)))


def cifar10_a() -> Theirs:
    """Width 192, 6 blocks, 3 heads. PyTorch's own first values; class token and positions zero."""
    blocks = [Block(192, TorchHeads(192, 3, batch_first=True)) for _ in range(6)]
    head = nn.Sequential(nn.LayerNorm(192), nn.Linear(192, 10))
    return Theirs(3, torch.zeros(1, 1, 192), nn.Parameter(torch.zeros(1, 65, 192)), blocks, head)


def cifar10_b() -> Theirs:
    """Width 48, 4 blocks, 4 heads, GELU by tanh. Weights N(0, 0.02²), also token and positions; biases zero.

    Depth, heads, that 0.02, and biases for q, k and v are of the tutorial that it follows. No last norm.
    """
    blocks = [Block(48, Heads(48, 4, sliced=False), gelu="tanh") for _ in range(4)]
    model = Theirs(3, torch.empty(1, 1, 48), nn.Parameter(torch.empty(1, 65, 48)), blocks, nn.Linear(48, 10))
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
    nn.init.trunc_normal_(model.token, std=0.02)
    nn.init.trunc_normal_(model.positions, std=0.02)
    return model


class Tutorial(NamedTuple):
    """A model, how it is trained, and what its author reports, by epoch."""

    model: Callable[[], Theirs]
    parameters: int
    optimizer: Callable[..., torch.optim.Optimizer]
    settings: dict[str, float]
    accuracies: dict[int, float]  # of the test pictures, in percent
    losses: dict[int, float]  # of training


# What is reported for the epochs 1, 2, 3, …
MNIST_LOSSES = (2.11, 1.84, 1.76, 1.70, 1.68)
CIFAR10_A = (44.2, 51.3, 53.7, 54.9, 55.2, 58.9, 58.8, 58.0, 59.9, 59.9, 60.8)  # as its notebook shows them
CIFAR10_A_LOSSES = (1.781, 1.432, 1.292, 1.213, 1.153, 1.104, 1.058, 1.015, 0.971, 0.924, 0.873)

ADAM, ADAMW = torch.optim.Adam, torch.optim.AdamW
TUTORIALS = {
    "tutorial-mnist": Tutorial(mnist, 1_642, ADAM, {"lr": 5e-3}, {5: 78.85}, dict(enumerate(MNIST_LOSSES, 1))),
    "tutorial-cifar10-a": Tutorial(
        cifar10_a,
        2_693_578,
        ADAM,
        {"lr": 3e-4},
        dict(enumerate(CIFAR10_A, 1)) | {30: 59.9},
        dict(enumerate(CIFAR10_A_LOSSES, 1)),
    ),
    "tutorial-cifar10-b": Tutorial(  # 50 epochs by its first lines, 100 by its last
        cifar10_b, 119_098, ADAMW, {"lr": 1e-2, "weight_decay": 1e-2}, {50: 64.0, 100: 64.0}, {}
    ),
}


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def build(name: str, seed: int) -> Theirs:
    """The tutorial's model, with exactly as many parameters as the tutorial's own."""
    torch.manual_seed(seed)
    model = TUTORIALS[name].model()
    assert size(model) == TUTORIALS[name].parameters
    return model


def their_step(model: Theirs, optimizer: torch.optim.Optimizer, step: int, batch: Batch) -> Tensor:
    device = model.token.device
    optimizer.zero_grad()
    loss = cross_entropy(model(batch.images.to(device)), batch.labels.to(device))
    loss.backward()
    optimizer.step()
    return loss.detach()


def our_step(learner: Learner, step: int, batch: Batch) -> Tensor:
    loss, _ = learner.gradients(step, batch, progress=0.0)
    learner.update(step, share=1.0)  # no warm-up and no schedule, as in the tutorials
    return loss


def train_epoch(take: partial[Tensor], plan: Plan, epoch: int, steps: int, who: str) -> tuple[float, float]:
    """Mean loss and seconds of an epoch, counted from 1."""
    losses = []
    started_at = told_at = time.perf_counter()
    first = (epoch - 1) * plan.batches.steps_per_epoch + 1
    for step, batch in islice(plan.batches.starting_at(first), steps):
        losses.append(take(step, batch))
        if time.perf_counter() - told_at > TELL_EVERY:
            told_at = time.perf_counter()
            click.echo(f"  {who}, epoch {epoch}: step {len(losses)} of {steps}, loss {losses[-1]:.3f}", err=True)
    return float(torch.stack(losses).mean()), time.perf_counter() - started_at


@torch.no_grad()
def accuracy(model: nn.Module, plan: Plan, batches: int | None) -> float:
    """In percent, of all test pictures or of the first batches of them."""
    model.eval()
    tested = islice(in_order(plan.pack, plan.pack.of("test"), plan.preprocess), batches)
    right = [model(batch.images.to(plan.learner.device)).argmax(dim=1).cpu() == batch.labels for batch in tested]
    model.train()
    return 100 * float(torch.cat(right).float().mean())


def compare(name: str, epochs: int, seed: int, steps: int | None) -> None:
    told, plan = TUTORIALS[name], prepared(find_recipe(name).changed({"train.seed": seed}))
    theirs, ours = build(name, seed).to(plan.learner.device), plan.learner.model
    optimizer = told.optimizer(theirs.parameters(), **told.settings)
    takes = partial(their_step, theirs, optimizer), partial(our_step, plan.learner)
    both = list(zip(("theirs", "ours"), (theirs, ours), takes, strict=True))
    taken = min(steps or plan.batches.steps_per_epoch, plan.batches.steps_per_epoch)
    click.echo(f"{name}, seed {seed}: {size(theirs):,} parameters theirs, {size(ours):,} ours")
    click.echo("             reported                  theirs                    ours      seconds")
    click.echo("epoch    loss  test %    loss  test % seconds    loss  test % seconds  ours/theirs")
    for epoch in range(1, epochs + 1):
        line = f"{epoch:5}  {told.losses.get(epoch, '–'):>6}  {told.accuracies.get(epoch, '–'):>6}"
        seconds = []
        for who, model, take in both:
            loss, spent = train_epoch(take, plan, epoch, taken, who)
            seconds.append(spent)
            line += f"  {loss:6.3f}  {accuracy(model, plan, steps):6.2f} {spent:7.1f}"
        click.echo(f"{line}  {seconds[1] / seconds[0]:11.2f}")


@click.command(help=__doc__)
@click.argument("recipes", nargs=-1, type=click.Choice(list(TUTORIALS)), metavar="[RECIPE …]")
@click.option("--epochs", default=2, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option("--steps", type=click.IntRange(min=1), help="To try it out: so many steps an epoch, and test batches.")
def main(recipes: tuple[str, ...], epochs: int, seed: int, steps: int | None) -> None:
    for name in recipes or TUTORIALS:
        compare(name, epochs, seed, steps)


if __name__ == "__main__":
    main()
