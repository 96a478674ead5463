"""Mu's tutorial, exactly hers: a ViT of width 192 on CIFAR-10.     vitral train mu-cifar10

All of train and no validation set, pixels from 0 to 1, no augmentation, as in the source.
"""

from vitral.model.kinds import MuConfig
from vitral.recipes.tutorial_cifar10_a import tutorial_cifar10_a

mu_cifar10 = tutorial_cifar10_a.model_copy(
    update={"model": MuConfig(image_size=32, patch_size=4, width=192, depth=6, heads=3, classes=10)}
)
