"""Mu's tutorial, exactly hers: a ViT of width 192 on CIFAR-10.     vitral train mu-cifar10

All of train and no validation set, pixels from 0 to 1, no augmentation, as in the source.
"""

from vitral.model.kinds import MuConfig
from vitral.recipe import Reported
from vitral.recipes.tutorial_cifar10_a import tutorial_cifar10_a

# As the notebook shows them, epoch by epoch; the text says "approximately 60 %" after 30.
ACCURACIES = (0.442, 0.513, 0.537, 0.549, 0.552, 0.589, 0.588, 0.580, 0.599, 0.599, 0.608)
LOSSES = (1.781, 1.432, 1.292, 1.213, 1.153, 1.104, 1.058, 1.015, 0.971, 0.924, 0.873)

mu_cifar10 = tutorial_cifar10_a.model_copy(
    update={
        "model": MuConfig(image_size=32, patch_size=4, width=192, depth=6, heads=3, classes=10),
        "train": tutorial_cifar10_a.train.model_copy(update={"test_curve": True}),
        "reported": Reported(
            who="Mu's notebook",
            train_loss=tuple(enumerate(LOSSES, start=1)),
            test_accuracy=(*enumerate(ACCURACIES, start=1), (30, 0.599)),
        ),
    }
)
