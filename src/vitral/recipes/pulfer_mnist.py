"""Pulfer's tutorial, exactly his: a tiny ViT with sine/cosine positions on MNIST.     vitral train pulfer-mnist

All of train and no validation set, pixels from 0 to 1, no augmentation, as in the source. The softmax before the loss
is the objective's, so that `vitral predict` applies one only.
"""

from vitral.model.kinds import PulferConfig
from vitral.recipes.tutorial_mnist import tutorial_mnist
from vitral.training.config import ClassificationSettings

pulfer_mnist = tutorial_mnist.model_copy(
    update={
        "model": PulferConfig(image_size=28, patch_size=4, channels=1, width=8, depth=2, heads=2, classes=10),
        "train": tutorial_mnist.train.model_copy(update={"objective": ClassificationSettings(kind="double-softmax")}),
    }
)
