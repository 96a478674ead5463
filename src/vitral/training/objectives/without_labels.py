"""What the objectives share that learn without labels: what the model sees is watched, and a collapse ends it."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

from torch import Tensor

from vitral.data.batches import Batch
from vitral.errors import RecipeError
from vitral.model.config import ModelConfig
from vitral.model.interface import Model
from vitral.recipe import Recipe
from vitral.training.objectives import Objective
from vitral.training.objectives.watch import alarm, watch

EARLY = 100  # steps: before them a new head may say nearly the same of all pictures, and DINO's centre is on its way
LEAST_GRID = 4  # patches a side, so that a view of half the side has something to show


class WithoutLabels(Objective):
    """An objective that looks at pictures alone."""

    needs_labels = False
    remedy: ClassVar[str] = "Lower train.optimizer.learning_rate, or raise train.batch_size."
    watched: ClassVar[tuple[str, ...]] = ("rank", "spread", "knn_accuracy", "linear_accuracy")

    @classmethod
    def check(cls, recipe: Recipe, config: ModelConfig) -> None:
        train, augment = recipe.train, recipe.data.augment
        if train.label_smoothing or train.class_weights != "none":
            raise RecipeError(
                f"train.objective {train.objective.kind} asks for no labels: set train.label_smoothing=0 and "
                "train.class_weights=none."
            )
        if augment.mixup or augment.cutmix:
            raise RecipeError(
                f"data.augment.mixup and cutmix mix labels too, and train.objective {train.objective.kind} has none: "
                "set both to 0."
            )

    def watch(self, model: Model, batches: Iterable[Batch]) -> dict[str, float]:
        return watch(model, batches)

    def alarm(self, figures: Mapping[str, float], step: int) -> str:
        words = alarm(figures) if step >= EARLY else ""
        return f"{words}. It has collapsed, and would learn nothing more. {self.remedy}" if words else ""


class ComparesViews(WithoutLabels):
    """An objective to which several views of a picture are to look alike: two large ones, and four of half the side,
    each of a smaller part of the picture."""

    views = (1.0, 1.0, 0.5, 0.5, 0.5, 0.5)
    watched = ("rank", "spread", "output_spread", "knn_accuracy", "linear_accuracy")

    @abstractmethod
    def outputs(self, features: Tensor) -> Tensor:  # (B, F) → (B, …)
        """What is compared: a collapse begins there, and may leave the features alone."""

    def watch(self, model: Model, batches: Iterable[Batch]) -> dict[str, float]:
        return watch(model, batches, self.outputs)

    @classmethod
    def check(cls, recipe: Recipe, config: ModelConfig) -> None:
        super().check(recipe, config)
        kind = recipe.train.objective.kind
        if not recipe.data.augment.crop:
            raise RecipeError(
                f"train.objective {kind} compares parts of a picture, and with data.augment.crop=0 all of it is seen: "
                "set data.augment.crop=0.4."
            )
        height, width = config.height_width
        if min(height, width) < LEAST_GRID * config.cell:
            raise RecipeError(
                f"Pictures of {height}×{width} pixels are smaller than the parts that train.objective {kind} compares: "
                f"of patches of {config.cell} pixels there should be {LEAST_GRID} a side. Set model.patch_size="
                f"{max(1, min(height, width) // LEAST_GRID)}, or a larger model.image_size."
            )
