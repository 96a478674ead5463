"""One recipe trained with several seeds: how good it is, and how much of that is luck."""

from collections.abc import Iterable
from dataclasses import dataclass

from vitral.evaluation.compare import mean_sd
from vitral.evaluation.evaluate import Evaluation


@dataclass(frozen=True)
class SeedSpread:
    """The test accuracy of two runs or more that differ in `train.seed`.

    >>> print(SeedSpread((0.9, 0.92), (100, 100)))
    Test accuracy 91.00% ± 1.41% (mean ± sd of 2 seeds: 90.00%, 92.00%)
    """

    accuracies: tuple[float, ...]
    steps: tuple[int, ...]

    @property
    def note(self) -> str:
        """A sentence to know before believing the spread; "": none."""
        if len(set(self.steps)) < 2:
            return ""
        counts = ", ".join(f"{count:,}" for count in self.steps)
        return f"They took {counts} steps, so not all of the spread comes from the seed."

    def __str__(self) -> str:
        mean, sd = mean_sd(self.accuracies)
        each = ", ".join(f"{accuracy:.2%}" for accuracy in self.accuracies)
        return f"Test accuracy {mean:.2%} ± {sd:.2%} (mean ± sd of {len(self.accuracies)} seeds: {each})"


def spread_over_seeds(evaluations: Iterable[Evaluation]) -> SeedSpread:
    """The spread of the accuracies of runs that were measured on their own test pictures."""
    runs = [(evaluation.accuracy, evaluation.run.record.steps) for evaluation in evaluations]
    accuracies, steps = zip(*runs, strict=True)
    return SeedSpread(accuracies, steps)
