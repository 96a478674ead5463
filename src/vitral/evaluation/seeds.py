"""One recipe trained with several seeds: how good it is, and how much of that is luck."""

from collections.abc import Iterable
from dataclasses import dataclass

from vitral.evaluation.compare import mean_sd
from vitral.evaluation.evaluate import Evaluation
from vitral.evaluation.metrics import METRICS, Metric
from vitral.evaluation.target_metrics import METRICS_OF
from vitral.predictions import number_words
from vitral.targets import is_one_class


@dataclass(frozen=True)
class SeedSpread:
    """The main figure of a target, by default the test accuracy, of two runs or more that differ in `train.seed`.

    >>> print(SeedSpread((0.9, 0.92), (100, 100)))
    Test accuracy 91.00% ± 1.41% (mean ± sd of 2 seeds: 90.00%, 92.00%)
    """

    values: tuple[float, ...]
    steps: tuple[int, ...]
    metric: Metric = METRICS[0]
    target: str = ""  # its name, where a picture has not one class

    @property
    def note(self) -> str:
        """A sentence to know before believing the spread; "": none."""
        if len(set(self.steps)) < 2:
            return ""
        counts = ", ".join(f"{count:,}" for count in self.steps)
        return f"They took {counts} steps, so not all of the spread comes from the seed."

    def __str__(self) -> str:
        mean, sd = (self._text(value) for value in mean_sd(self.values))
        each = ", ".join(map(self._text, self.values))
        title = f"test {self.metric.title.lower()}"
        title = f"{self.target}: {title}" if self.target else title.capitalize()
        return f"{title} {mean} ± {sd} (mean ± sd of {len(self.values)} seeds: {each})"

    def _text(self, value: float | None) -> str:
        if value is None:  # one seed has no sd
            return "–"
        return number_words(value) if self.metric.in_unit else f"{value:.2%}"


def spread_over_seeds(evaluations: Iterable[Evaluation]) -> tuple[SeedSpread, ...]:
    """The spread of runs that were measured on their own test pictures: of the main figure of each target."""
    runs = list(evaluations)
    steps = tuple(evaluation.run.record.steps for evaluation in runs)
    spreads = []
    for target in runs[0].targets:
        metric = METRICS_OF[target.kind][0]
        values = tuple(one.by_target[target.name].figures[metric.name].value for one in runs)
        spreads.append(SeedSpread(values, steps, metric, "" if is_one_class(runs[0].targets) else target.name))
    return tuple(spreads)
