"""CIFAR-10 within minutes, with a ResNet in place of the ViT.     vitral train cifar10-resnet

Three stages of one block, as BiT's, behind a 3×3 convolution; trained as `cifar10`, of which nothing was tuned for it.
A step takes 0.80 of one of `cifar10` (python benchmarks/kinds.py).
Accuracy: 77.6 % of the test pictures after 1,875 steps (95 % interval 76.8 to 78.4 %; seed 0, bfloat16, torch 2.13.0),
the work of 1,500 steps of `cifar10`: ten minutes of two slow cores. After 526 steps 65.2 %, where `cifar10` has 74.4 %
after 400. More: docs/limits.md.
"""

from vitral.recipes.cifar10 import cifar10
from vitral.recipes.quick import quick_resnet, quick_train

cifar10_resnet = cifar10.model_copy(
    update={
        "model": quick_resnet(image_size=32, patch_size=4, channels=3, classes=10),
        "train": quick_train(budget="10m", kind="resnet"),
    }
)
