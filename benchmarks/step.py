"""A training step of Vitral beside one of Hugging Face transformers: the same architecture, the same pictures.

    python benchmarks/step.py [--rounds 12] [--steps 3]

It needs `pip install transformers`, which is no dependency of Vitral: with `pip install --target DIR` and
PYTHONPATH=DIR it stays out of the environment.

Ours is what `vitral train` does between two batches: `Learner.gradients`, then `Learner.move`. Theirs is
`ViTForImageClassification` as it comes (attention by sdpa), with the same AdamW from torch on the same two groups of
parameters. Every round has some steps of each, who goes first taking turns, and some products of two large matrices,
which tell what the machine can give at that time. Ratios and shares are taken within a round, since machines are
shared; what is printed is their spread over all rounds.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitral.data.batches import Batch
from vitral.model.config import ViTConfig
from vitral.model.vit import ViT
from vitral.training.config import AdamW, Train
from vitral.training.learner import Learner

CONFIG = ViTConfig(image_size=32, patch_size=4, width=192, depth=6, heads=3, classes=10)  # MLP 768, class token
ADAMW = AdamW(learning_rate=1e-3, weight_decay=0.05)
BATCH = 128
SIDE = 2048  # of the matrices
PRODUCTS = 5  # of them in a round
WARM = 2  # steps, or products, that are not timed

Run = Callable[[int], None]  # does so many steps, or products


def ours(images: Tensor, labels: Tensor) -> tuple[Run, int]:
    """Also the number of parameters."""
    learner = Learner(ViT(CONFIG).train(), Train(optimizer=ADAMW, batch_size=BATCH))
    batch = Batch(images, labels, np.arange(BATCH), targets=labels)

    def run(steps: int) -> None:
        for step in range(1, steps + 1):
            learner.gradients(step, batch, progress=0.0)
            learner.update(step, share=1.0)

    return run, sum(parameter.numel() for parameter in learner.model.parameters())


def theirs(images: Tensor, labels: Tensor) -> tuple[Run, int]:
    """Likewise."""
    import transformers  # type: ignore[import-not-found]

    config = transformers.ViTConfig(
        image_size=CONFIG.image_size,
        patch_size=CONFIG.patch_size,
        hidden_size=CONFIG.width,
        num_hidden_layers=CONFIG.depth,
        num_attention_heads=CONFIG.heads,
        intermediate_size=CONFIG.mlp_size,
        layer_norm_eps=CONFIG.blocks.norm_eps,
        num_labels=CONFIG.classes,
    )
    model = transformers.ViTForImageClassification(config).train()
    weights = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d)]
    ids = {id(weight) for weight in weights}
    others = [parameter for parameter in model.parameters() if id(parameter) not in ids]
    groups = [{"params": weights, "weight_decay": ADAMW.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=ADAMW.learning_rate, betas=ADAMW.betas, fused=True)

    def run(steps: int) -> None:
        for _ in range(steps):
            cross_entropy(model(pixel_values=images).logits, labels).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    print(f"transformers {transformers.__version__}, attention: {model.config._attn_implementation}")
    return run, sum(parameter.numel() for parameter in model.parameters())


def products() -> Run:
    left, right, out = (torch.randn(SIDE, SIDE) for _ in range(3))

    def run(count: int) -> None:
        for _ in range(count):
            torch.mm(left, right, out=out)

    return run


def flops_an_image() -> float:
    """Of a training step, from the architecture alone: the same for both, even if one of them leaves out some of it.

    With N patches of P pixels a side, T = N + 1 tokens, width D, MLP M, depth L, in multiplications with addition:

        patches   N · 3P² · D
        a block   T · D · 3D    queries, keys and values
                  2 · T · T · D    q kᵀ, and A v
                  T · D · D    the heads mixed
                  2 · T · D · M    MLP
        head      D · classes

    Each is 2 FLOPs. The way back is twice the way there (towards the inputs, and towards the weights), so a step is 3
    times that. What is no matrix product (norms, softmax, GELU, optimizer) is not counted.
    """
    P, D, M, L = CONFIG.patch_size, CONFIG.width, CONFIG.mlp_size, CONFIG.depth
    N = CONFIG.grid[0] * CONFIG.grid[1]
    T = N + 1
    block = T * D * 3 * D + 2 * T * T * D + T * D * D + 2 * T * D * M
    return 3 * 2 * (N * 3 * P * P * D + L * block + D * CONFIG.classes)


def seconds(run: Run, count: int) -> float:
    started_at = time.perf_counter()
    run(count)
    return time.perf_counter() - started_at


def measure(runs: dict[str, Run], counts: dict[str, int], rounds: int) -> dict[str, np.ndarray]:
    """Seconds of each run in each round."""
    for run in runs.values():
        run(WARM)
    took: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in list(runs) if number % 2 == 0 else reversed(runs):  # the products stay in the middle
            took[name].append(seconds(runs[name], counts[name]))
        print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {name: np.array(times) for name, times in took.items()}


def line(what: str, values: np.ndarray, form: str) -> str:
    numbers = np.percentile(values, [50, 25, 75, 0, 100])
    return f"{what:34}" + "".join(f"{number:12{form}}" for number in numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=3, help="of each in a round")
    asked = parser.parse_args()
    torch.manual_seed(0)
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(CONFIG.classes, (BATCH,))
    try:
        their_run, their_parameters = theirs(images, labels)
    except ImportError as error:
        sys.exit(f"transformers cannot be imported ({error}): pip install transformers, and try again.")
    our_run, our_parameters = ours(images, labels)
    print(f"{our_parameters:,} parameters in ours, {their_parameters:,} in theirs; batch {BATCH}")
    assert our_parameters == their_parameters

    load = os.getloadavg()[0]
    runs = {"Vitral": our_run, "product": products(), "transformers": their_run}
    took = measure(runs, {"Vitral": asked.steps, "product": PRODUCTS, "transformers": asked.steps}, asked.rounds)
    print(f"{asked.rounds} rounds, {asked.steps} steps of each in a round; {flops_an_image() / 1e9:.3f} GFLOP an image")
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores, "
        f"load average {load:.1f} before and {os.getloadavg()[0]:.1f} after\n"
    )

    limit = PRODUCTS * 2 * SIDE**3 / took["product"]
    rates = {name: asked.steps * BATCH / took[name] for name in ("Vitral", "transformers")}
    print(f"{'':34}" + "".join(f"{word:>12}" for word in ("median", "quarter", "3 quarters", "least", "most")))
    for name, rate in rates.items():
        print(line(f"{name}, images/s", rate, ".1f"))
    print(line("Vitral / transformers", rates["Vitral"] / rates["transformers"], ".3f"))
    print(line(f"product of {SIDE}³, GFLOP/s", limit / 1e9, ".1f"))
    for name, rate in rates.items():
        print(line(f"{name}, share of that", rate * flops_an_image() / limit, ".1%"))


if __name__ == "__main__":
    main()
