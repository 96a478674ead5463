"""A run is asked about the pictures that it has never seen."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitral.data.pack import Pack, pack
from vitral.data.sources import Index, open_source
from vitral.data.sources.named import data_directory
from vitral.errors import DataError, RecipeError
from vitral.evaluation.answers import Answers, answers
from vitral.evaluation.baseline import Beside, beside
from vitral.recipe import Recipe
from vitral.run import Run
from vitral.settings import FORMAT
from vitral.weights.own import Weights


@dataclass(frozen=True)
class Evaluation:
    """The figures, and what they were made from."""

    run: Run
    weights: Weights
    pack: Pack
    numbers: NDArray[np.int64]  # (n,) of the test pictures in the pack
    answers: Answers

    @property
    def pictures(self) -> int:
        """How many pictures."""
        return len(self.numbers)

    def images(self, chosen: NDArray[np.int64] | list[int]) -> NDArray[np.uint8]:
        """Some of the test pictures as the model sees them: (chosen, C, H, W)."""
        return self.weights.preprocess.centre(self.pack.images[self.numbers[chosen]])

    @property
    def loss(self) -> float:
        """Mean cross-entropy on the test pictures."""
        return self.answers.loss

    @property
    def accuracy(self) -> float:
        """Share of right answers on the test pictures."""
        return self.answers.accuracy

    @property
    def accuracy_interval(self) -> tuple[float, float]:
        """Where the true accuracy lies with 95 % confidence, given so few pictures (Wilson)."""
        from scipy.stats import binomtest

        right = int(np.sum(self.answers.predicted == self.answers.labels.numpy()))
        interval = binomtest(right, self.pictures).proportion_ci(confidence_level=0.95, method="wilson")
        return float(interval.low), float(interval.high)

    @property
    def beside(self) -> Beside | None:
        """The model beside the simple methods that were tried first, if they were."""
        if (told := self.run.baseline) is None:
            return None
        right = self.answers.predicted == self.answers.labels.numpy()
        return beside(told, [self.pack.index.samples[number] for number in self.numbers], right)

    @property
    def confusion(self) -> NDArray[np.int64]:
        """(classes, classes): rows are labels, columns are predictions."""
        from sklearn.metrics import confusion_matrix

        classes = range(len(self.weights.class_names))
        return confusion_matrix(self.answers.labels.numpy(), self.answers.predicted, labels=list(classes))

    def write(self) -> dict[str, Any]:
        """As evaluation.json has it."""
        names, confusion = self.weights.class_names, self.confusion
        labels, predicted = self.answers.labels.numpy(), self.answers.predicted
        return {
            "format": FORMAT,
            "split": "test",
            "pictures": self.pictures,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "accuracy_interval": list(self.accuracy_interval),
            "class_names": list(names),
            "per_class": [
                {"name": name, "pictures": int(row.sum()), "right": int(row[i])}
                for i, (name, row) in enumerate(zip(names, confusion, strict=True))
            ],
            "confusion": confusion.tolist(),
            **({"baseline": self.beside.write()} if self.beside else {}),
            "predictions": [
                {
                    "sample": sample,
                    "label": names[labels[i]],
                    "predicted": names[predicted[i]],
                    "probability": float(self.answers.probabilities[i, predicted[i]]),
                }
                for i, sample in enumerate(self.pack.index.samples[number] for number in self.numbers)
            ],
        }


def _opened(recipe: Recipe, run: Run) -> Index:
    try:
        return open_source(recipe.data)
    except RecipeError as error:
        raise DataError(
            f"The pictures of {run.folder} cannot be found: it was trained with data.source={recipe.data.source}, "
            f"which is looked for from where you stand. {error}"
        ) from None


def evaluate(run: Run | str | Path) -> Evaluation:
    """Measure a run on its test pictures, write evaluation.json and draw the figures into its folder."""
    from vitral.evaluation.figures import draw

    run = run if isinstance(run, Run) else Run.load(run)
    weights, recipe, record = run.weights(), run.recipe, run.record
    packed = pack(_opened(recipe, run), weights.preprocess, data_directory(recipe.data.directory))
    if packed.sha256 != record.data.sha256:
        raise DataError(
            f"The pictures of {recipe.data.source} are not those that {run.folder} was trained with: "
            "they, their labels or their split have changed, so its test pictures may no longer be unseen."
        )
    numbers = packed.of("test")
    if not len(numbers):
        raise DataError(f"{recipe.data.source} has no test pictures to measure {run.folder} on.")
    evaluation = Evaluation(run, weights, packed, numbers, answers(weights.model, packed, numbers, weights.preprocess))
    run.write_evaluation(evaluation.write())
    draw(evaluation)
    return evaluation
