"""CIFAR-10 within minutes, with a Swin in place of the ViT.     vitral train cifar10-swin

Two stages of two blocks, windows of 4 × 4, patches of 2 × 2 by one matrix; trained as `cifar10`, of which nothing was
tuned for it. A step takes 1.02 of one of `cifar10` (python benchmarks/kinds.py).
Accuracy: 65.3 % of the test pictures after 1,470 steps (95 % interval 64.4 to 66.3 %; seed 0, bfloat16, torch 2.13.0),
the work of 1,500 steps of `cifar10`: ten minutes of two slow cores. After 476 steps 59.8 %, where `cifar10`
has 74.4 % after 400, and 61.4 % without its convolutions. More: docs/limits.md.
"""

from vitral.recipes.cifar10 import cifar10
from vitral.recipes.quick import quick_swin, quick_train

cifar10_swin = cifar10.model_copy(
    update={
        "model": quick_swin(image_size=32, patch_size=4, channels=3, classes=10),
        "train": quick_train(budget="10m", kind="swin"),
    }
)
