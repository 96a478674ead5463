"""A tutorial's recipe with the test accuracy of every epoch.     python benchmarks/tutorials/ours.py RECIPE OUT

The tutorials tell theirs epoch by epoch, so ours are measured the same way; nothing is chosen by it. Stopped and called
again it goes on where it was.
"""

import sys
from pathlib import Path

from vitral import Epoch, Started, events
from vitral.inference import outputs_of_pack
from vitral.recipes import find_recipe
from vitral.training.preparation import Plan


def main(name: str, out: Path) -> None:
    plan: Plan | None = None
    for event in events(find_recipe(name), out=out, resume=True):
        if isinstance(event, Started):
            plan = event.plan
        if isinstance(event, Epoch):
            assert plan is not None
            learner = plan.learner
            tested = outputs_of_pack(learner.average.model, plan.pack, plan.pack.of("test"), plan.preprocess)
            learner.model.train()
            line = f"{event.epoch}\t{event.train_loss:.4f}\t{tested.accuracy:.4f}\t{event.seconds:.0f}"
            with (out.parent / f"{out.name}.tsv").open("a") as file:
                file.write(line + "\n")
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
