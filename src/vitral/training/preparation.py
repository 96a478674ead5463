"""From a recipe to all that the loop needs: pictures opened, model built, everything chosen before the first step."""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import torch

from vitral.data.batches import Batches, Pack, mean_and_std, pack
from vitral.data.preprocess import Preprocess
from vitral.data.sources import SPLITS, Index, open_source
from vitral.errors import RecipeError
from vitral.model.config import ViTConfig
from vitral.model.vit import ViT
from vitral.recipe import Recipe
from vitral.run import Choices, DataIdentity, Machine, Record
from vitral.training.averages import Average
from vitral.training.optimizers import Optimizers, make_optimizers
from vitral.training.schedules import learning_rate_share
from vitral.version import __version__


@dataclass(frozen=True)
class Plan:
    """What is going to happen, ready to run."""

    index: Index
    preprocess: Preprocess
    batches: Batches
    validation: Pack
    device: torch.device
    model: ViT
    average: Average
    optimizers: Optimizers
    share: Callable[[int], float]  # step → share of the full learning rate
    steps: int

    def record(self, started_at: datetime) -> Record:
        """What run.json says at the start."""
        return Record(
            version=__version__,
            state="running",
            started_at=started_at.isoformat(timespec="seconds"),
            machine=Machine(
                system=platform.system(),
                processor=platform.machine(),
                cores=os.cpu_count() or 1,
                python=platform.python_version(),
                torch=torch.__version__,
            ),
            choices=Choices(
                device=self.device.type,
                precision=str(next(self.model.parameters()).dtype).removeprefix("torch."),
                threads=torch.get_num_threads(),
            ),
            data=DataIdentity(
                source=self.index.source,
                sha256=self.index.sha256(),
                pictures={split: len(self.index.of(split)) for split in SPLITS},
            ),
        )


def prepare(recipe: Recipe) -> Plan:
    """Open the pictures, build the model. Nothing is written yet: a mistake is told before anything is there."""
    device = choose_device(recipe.train.device)
    index = open_source(recipe.data.source)
    config = complete(recipe.model, index)
    unmeasured = Preprocess(
        image_size=config.height_width,
        channels=config.channels,
        background=recipe.data.background,
        resize=recipe.data.resize,
        interpolation=recipe.data.interpolation,
        mean=(0.0,) * config.channels,
        std=(1.0,) * config.channels,
    )
    training = pack(index, "train", unmeasured)
    mean, std = mean_and_std(training.images)
    preprocess = unmeasured.model_copy(update={"mean": mean, "std": std})
    # The caller's random numbers stay as they were.
    with torch.random.fork_rng():
        torch.manual_seed(recipe.train.seed)
        model = ViT(config).to(device)
    batches = Batches(training, preprocess, recipe.data.augment, recipe.train.batch_size, recipe.train.seed)
    steps = recipe.train.epochs * batches.steps_per_epoch
    return Plan(
        index=index,
        preprocess=preprocess,
        batches=batches,
        validation=pack(index, "validation", preprocess),
        device=device,
        model=model,
        average=Average(model, recipe.train.ema),
        optimizers=make_optimizers(model, recipe.train),
        share=learning_rate_share(recipe.train, steps),
        steps=steps,
    )


def complete(config: ViTConfig, index: Index) -> ViTConfig:
    """The model with what the recipe left to the data; what it did not leave must fit."""
    classes = len(index.class_names)
    if config.classes not in (0, classes):
        raise RecipeError(
            f"model.classes is {config.classes}, and {index.source} has {classes} classes. "
            f"Set model.classes={classes}, or 0 to take what the data has."
        )
    if config.head.kind == "none":
        raise RecipeError("model.head none gives no logits to learn by: set model.head=linear or mlp.")
    channels = config.channels or index.channels
    return ViTConfig.read({**config.write(), "classes": classes, "channels": channels}, "model.")


def choose_device(asked: str) -> torch.device:
    """The device that was asked for, or the best that is there. CUDA and MPS are written for, and not tested."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        return torch.device(next(name for name, found in there.items() if found))
    if not there[asked]:
        raise RecipeError(f"train.device is {asked}, and torch finds none here. Set train.device=auto or cpu.")
    return torch.device(asked)
