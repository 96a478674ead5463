"""Pulfer's tutorial, exactly his: a tiny ViT with sine/cosine positions on MNIST.     vitral train pulfer-mnist

All of train and no validation set, pixels from 0 to 1, no augmentation, as in the source. The softmax before the loss
is the objective's, so that `vitral predict` applies one only.
"""

from vitral.model.kinds import PulferConfig
from vitral.recipe import Reported
from vitral.recipes.tutorial_mnist import tutorial_mnist
from vitral.training.config import ClassificationSettings

pulfer_mnist = tutorial_mnist.model_copy(
    update={
        "model": PulferConfig(image_size=28, patch_size=4, channels=1, width=8, depth=2, heads=2, classes=10),
        "train": tutorial_mnist.train.model_copy(
            update={"objective": ClassificationSettings(kind="double-softmax"), "test_curve": True}
        ),
        "reported": Reported(
            who="Pulfer's guide",
            train_loss=((1, 2.11), (2, 1.84), (3, 1.76), (4, 1.70), (5, 1.68)),
            test_loss=((5, 1.67),),
            test_accuracy=((5, 0.7885),),
        ),
    }
)
