"""Is what `vitral train FOLDER` chose by itself as good as the best of its three ways, each given the whole time?

    python benchmarks/choice.py --out /tmp/choice [--budget 2m] [food ants-bees imagenette-mini xray]

Times become numbers of steps by seconds that were measured once (PACES), so that other work on the machine decides
nothing: the comparison, the rest of the time for what it chose, and the whole time for each way. `xray` is made here:
MNIST's digits enlarged to 224 pixels, with blur and noise, 100 of each, as grey PNG files. What is done is kept in
--out, and the same command goes on.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from PIL import Image, ImageFilter

from vitral.data.config import Data
from vitral.data.sources import open_source
from vitral.evaluation.metrics import share
from vitral.inference import outputs_of_pack
from vitral.progress import Progress, drain
from vitral.recipe import Recipe
from vitral.recipes.choose import candidates, choose
from vitral.training.budget import RESERVE, Pace
from vitral.training.comparison import TRAINING, Candidate, Stopwatch, compare
from vitral.training.config import parse_budget
from vitral.training.feature_cache import DOING as LOOKING
from vitral.training.loop import train
from vitral.training.preparation import Plan, prepared
from vitral.weights.pretrained import Pretrained

SETS = ("food", "ants-bees", "imagenette-mini", "xray")
# Seconds a picture on one core, measured beside little other work: a step of the quick model at 64 × 64, one of
# ViT-Ti/16 at 224 × 224, and ViT-Ti/16 looking at it.
NOTHING, LEARNING, LOOK = 0.0054, 0.092, 0.028
BEFORE = 5.0  # seconds from the command to the comparison


@dataclass
class FixedTimes(Stopwatch):
    """A clock that goes by what is done, and not by how long it takes."""

    seconds: float = BEFORE
    step: float = 0.0  # seconds, of the way that is being tried
    before: Progress | None = None

    def now(self) -> float:
        return self.seconds

    def seconds_a_picture(self, start: Pretrained) -> float:
        height, width = start.preprocess.image_size
        return LOOK * height * width / 224**2

    def pace(self, plan: Plan, most: float) -> Pace:
        height, width = plan.preprocess.image_size
        each = LEARNING * height * width / 224**2 if plan.start else NOTHING
        self.step = each * plan.batches.batch_size
        return Pace(plan.learner, self.step, self.step)

    def __call__(self, progress: Progress) -> None:
        same = self.before is not None and progress.doing == self.before.doing and progress.done > self.before.done
        done = progress.done - self.before.done if same and self.before else 0
        if progress.doing == LOOKING:
            self.seconds += done * LOOK
        elif progress.doing.startswith(TRAINING):
            self.seconds += done * self.step
        self.before = progress


def make_xray(folder: Path, each: int = 100) -> None:
    """Digits as an X-ray might show them: large, soft, grey, with noise."""
    index, random = open_source(Data(source="mnist")), np.random.default_rng(0)
    for label in range(10):
        (folder / str(label)).mkdir(parents=True)
        for number in np.flatnonzero(index.labels == label)[:each]:
            small = Image.fromarray(np.asarray(index.storage.read(int(number))))
            large = small.resize((224, 224), Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(4))
            levels = 60 + 0.35 * np.asarray(large, np.float32) + random.normal(0, 40, (224, 224))
            picture = Image.fromarray(levels.clip(0, 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(1))
            picture.save(folder / str(label) / f"{number:05d}.png")


def learn(recipe: Recipe, start: Pretrained | None, steps: int, folder: Path) -> tuple[int, int]:
    """Train for so many steps (0: as the recipe says); how many test pictures are right, and of how many."""
    fixed: dict[str, Any] = {"train.baseline": False, "train.precision": "float32", "train.compile": "no"}
    recipe = recipe.changed(fixed | ({"train.budget": f"{steps}steps"} if steps else {}))
    run = train(recipe, out=folder, resume=True, start=start)
    plan, weights = prepared(recipe, start=start, to_train=False), run.weights()
    test = plan.pack.of("test")
    logits = outputs_of_pack(weights.model, plan.pack, test, weights.preprocess).logits.numpy()
    return int(np.sum(logits.argmax(axis=1) == plan.pack.index.labels[test])), len(test)


def steps_in(way: Candidate, seconds: float) -> int:
    """How many fit; 0 for a head, which is done sooner."""
    if way.is_quick:
        return 0
    plan = prepared(way.recipe, start=way.start, to_train=False)
    return int(seconds / FixedTimes().pace(plan, 0.0).mean)


@click.command(help=__doc__)
@click.argument("sets", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--budget", default="2m", show_default=True)
@click.option("--way", "only", multiple=True, help="Only this one, besides the choice: probe, from nothing, gentle.")
def main(sets: tuple[str, ...], out: Path, budget: str, only: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "results.json"
    seconds, _ = parse_budget(budget)
    for name in sets or SETS:
        source = name
        if name == "xray":
            source = str(out / "xray")
            if not (out / "xray").exists():
                make_xray(out / "making")
                (out / "making").rename(out / "xray")
        results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
        mine = results.setdefault(name, {})
        settings = {"train.budget": budget}
        choice = choose(source, settings)
        watch = FixedTimes()
        ways = candidates(choice, settings, watch=watch)
        if "comparison" not in mine:
            comparison = drain(compare(ways, choice.index, seconds, 0.0, watch=watch), watch)
            mine["comparison"], mine["used"] = comparison.model_dump(), watch.seconds
            kept.write_text(json.dumps(results, indent=1))
        chosen = mine["comparison"]["chosen"]
        print(
            name, "chose", chosen, [(one["name"], one["value"], one["expected"]) for one in mine["comparison"]["ways"]]
        )
        rest = {way.name: seconds * (1 - RESERVE) - BEFORE for way in ways}
        for label, way, time in [
            ("by itself", next(way for way in ways if way.name == chosen), seconds * (1 - RESERVE) - mine["used"]),
            *((way.name, way, rest[way.name]) for way in ways),
        ]:
            if label in mine or only and label not in (*only, "by itself"):
                continue
            steps = steps_in(way, time)
            again = way.is_quick and "by itself" in mine and chosen == way.name  # the same training
            folder = out / f"{name}-{label.replace(' ', '-')}"
            mine[label] = mine["by itself"] if again else learn(way.recipe, way.start, steps, folder)
            figure = share(*mine[label])
            print(
                f"{name}, {label}: {figure.value:.1%} ({figure.low:.1%} to {figure.high:.1%}), {steps} steps",
                flush=True,
            )
            results = json.loads(kept.read_text())
            results[name] = mine
            kept.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
