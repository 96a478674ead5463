"""Somebody's own architecture and objective, in files of their own (tests/own/): all commands, and no line of ours."""

import inspect
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import Called, quick_digits, stopped
from vitral import (
    Classifier,
    RecipeError,
    Run,
    Started,
    Step,
    ViT,
    WeightsError,
    attention_maps,
    evaluate,
    events,
    load_pretrained,
    train,
)
from vitral.data.batches import Batch
from vitral.files import sha256_of
from vitral.model.interface import Model
from vitral.recipe import Recipe
from vitral.training.objectives import Objective
from vitral.training.objectives.classification import Classification
from vitral.training.preparation import prepared

OWN = Path(__file__).parent / "own"
SEVEN = Path(__file__).parents[1] / "docs" / "pictures" / "seven.png"


def own(folder: Path, **settings: object) -> Recipe:
    """A Mixer that learns digits by the focal loss."""
    for name in ("mixer.py", "focal.py"):
        shutil.copy(OWN / name, folder)
    given = {
        "model.kind": f"{folder}/mixer.py:Mixer",
        "model.patch_size": 2,
        "train.objective": {"kind": f"{folder}/focal.py:focal", "gamma": 1.5},
        "train.label_smoothing": 0.0,
        "train.epochs": 1,
    }
    return quick_digits().changed(given | {name.replace("__", "."): value for name, value in settings.items()})


def code(folder: Path) -> list[Path]:
    return [folder / "mixer.py", folder / "focal.py"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("own")
    return train(own(folder), out=folder / "run")


def test_files_of_ones_own_are_small() -> None:
    counts = {name: len((OWN / name).read_text().splitlines()) for name in ("mixer.py", "focal.py")}
    assert counts["mixer.py"] <= 60 and counts["focal.py"] <= 20, counts


def test_the_run_remembers_the_files_and_its_settings(mixed: Run) -> None:
    folder, record = mixed.folder.parent, mixed.record
    assert record.state == "finished" and len(record.code or {}) == 2
    assert mixed.recipe.plugins == tuple(record.code or {})
    assert mixed.recipe.train.objective.write() == {"kind": f"{folder}/focal.py:focal", "gamma": 1.5}
    assert {"train_loss", "validation_accuracy"} <= mixed.metrics[-1].keys()


def test_the_loss_is_the_one_in_the_file(tmp_path: Path) -> None:
    plan = prepared(own(tmp_path, data__augment={}))
    step, batch = next(plan.batches.starting_at(1))
    with torch.no_grad():
        p = plan.learner.model(batch.images).softmax(1)[torch.arange(len(batch.labels)), batch.labels]
        expected = -((1 - p) ** 1.5 * p.log()).mean()
    loss, figures = plan.learner.gradients(step, batch, 0.0)
    assert float(loss) == pytest.approx(float(expected), rel=1e-4) and figures.keys() == {"accuracy"}


def test_evaluate_predict_and_probe_take_the_file_by_name(mixed: Run) -> None:
    files = code(mixed.folder.parent)
    evaluation = evaluate(mixed, code=files)
    predictions = Classifier.load(mixed, code=files).predict([SEVEN])
    assert evaluation.pictures == 360 and predictions[0].label in evaluation.weights.class_names
    assert not (mixed.folder / "attention.png").exists()
    assert "Where it looked" not in (mixed.folder / "report.html").read_text()
    other = load_pretrained(mixed.folder / "model.safetensors", code=files[0], classes=("cat", "dog"))
    assert other.model(torch.zeros(1, 1, 8, 8)).shape == (1, 2)


def test_a_run_opened_without_its_file_runs_nothing(
    mixed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the file lies at hand: this one would leave a trace."""
    shutil.copytree(mixed.folder, tmp_path / "run")
    monkeypatch.chdir(mixed.folder.parent)
    copied, trace = Run.load(tmp_path / "run"), tmp_path / "trace"
    with (mixed.folder.parent / "mixer.py").open("a") as file:
        file.write(f"\nopen({str(trace)!r}, 'w')\n")
    try:
        for door in (copied.weights, lambda: Classifier.load(copied), lambda: evaluate(copied)):
            with pytest.raises(RecipeError, match="a file of Python is not run by itself. If you trust it: --code"):
                door()
        with pytest.raises(RecipeError, match="it has changed since"):
            Classifier.load(copied, code=mixed.folder.parent / "mixer.py")
        with pytest.raises(RecipeError, match="There is no file nowhere.py"):
            Classifier.load(copied, code="nowhere.py")
        assert not trace.exists()
    finally:
        shutil.copy(OWN / "mixer.py", mixed.folder.parent)


def test_it_resumes_to_the_bit_and_only_with_the_same_files(tmp_path: Path) -> None:
    recipe = own(tmp_path, train__optimizer="muon", train__ema=0.9)
    whole = train(recipe, out=tmp_path / "whole")
    half = stopped(recipe, tmp_path / "half", after=7)
    with pytest.raises(RecipeError, match="is not run by itself"):
        train(out=half, resume=True)
    (tmp_path / "focal.py").write_text((OWN / "focal.py").read_text() + "# changed\n")
    with pytest.raises(RecipeError, match="it has changed since"):
        train(out=half, resume=True, code=code(tmp_path))
    with pytest.raises(RecipeError, match="it has changed since"):
        train(recipe, out=half, resume=True)
    shutil.copy(OWN / "focal.py", tmp_path)
    again = train(out=half, resume=True, code=code(tmp_path))
    assert again.record.weights == whole.record.weights


def test_commands_that_need_no_model_read_such_a_run_without_the_file(
    called: Callable[..., Called], mixed: Run, tmp_path: Path
) -> None:
    shutil.copytree(mixed.folder, tmp_path / "runs" / "mixed")
    shown = called("show", "runs/mixed", cwd=tmp_path)
    assert shown.returncode == 0 and "mixer.py:Mixer" in shown.stdout and "gamma = 1.5" in shown.stdout
    assert "mixed" in called("ls", cwd=tmp_path).stdout
    shutil.copytree(mixed.folder, tmp_path / "runs" / "again")
    assert called("compare", "runs/mixed", "runs/again", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["look", "RUN", SEVEN], "has no attention to look at"),
        (["glass", "RUN", "--no-browser"], "has no attention to look at"),
        (["convert", "RUN", "--to", "hf", "--out", "out"], "is known to no other library"),
    ],
)
def test_what_it_cannot_do_is_answered_with_a_sentence(
    called: Callable[..., Called], mixed: Run, words: list[object], answer: str, tmp_path: Path
) -> None:
    words = [mixed.folder if word == "RUN" else word for word in words]
    files = [word for file in code(mixed.folder.parent) for word in ("--code", file)]
    done = called(*words, *files, cwd=tmp_path)
    assert done.returncode in (1, 2) and answer in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_shapes_and_dry_run_show_it(called: Callable[..., Called], mixed: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(own(tmp_path).to_toml())
    dry = called("train", "mine.toml", "--dry-run", cwd=tmp_path)
    assert dry.returncode == 0 and "blocks.1" in dry.stdout and "Nothing was trained." in dry.stdout
    shapes = called("shapes", "mine.toml", "--json", cwd=tmp_path)
    assert shapes.returncode == 0, shapes.stderr
    assert json.loads(shapes.stdout)["parameters"] == (mixed.record.weights or pytest.fail("no weights")).parameters


def test_what_a_recipe_leaves_open_is_as_the_file_says(tmp_path: Path) -> None:
    shutil.copy(OWN / "mixer.py", tmp_path)
    (tmp_path / "mine.toml").write_text(
        f'[model]\nkind = "{tmp_path}/mixer.py:Mixer"\nchannels = 0\nclasses = 0\n[data]\nsource = "digits"\n'
    )
    recipe = Recipe.from_file(tmp_path / "mine.toml")
    assert "image_size" not in recipe.write()["model"]
    assert prepared(recipe).learner.model.config.image_size == 32


KILL = """
import os, signal, sys
from vitral import Recipe, Step, train

def kill(event):
    if isinstance(event, Step) and event.step == 25:
        os.kill(os.getpid(), signal.SIGKILL)

train(Recipe.from_file("mine.toml"), out="run", listeners=[kill], save_every=0)
"""


def test_it_goes_on_to_the_bit_after_a_kill(tmp_path: Path) -> None:
    """Of the process, by the system, between two checkpoints."""
    recipe = own(tmp_path, train__epochs=2)
    (tmp_path / "mine.toml").write_text(recipe.to_toml())
    done = subprocess.run([sys.executable, "-c", KILL], cwd=tmp_path, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    again = train(out=tmp_path / "run", resume=True, code=code(tmp_path))
    assert again.record.weights == train(recipe, out=tmp_path / "whole").record.weights


class Interrupt(Exception):
    """What a person's Ctrl-C is, at a place of its own."""


def test_a_stop_in_the_middle_of_a_step_is_as_if_the_step_had_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stem whose BatchNorms remember each batch that they see."""
    recipe = quick_digits().changed({"model.stem": "whitened", "train.epochs": 1})
    whole = train(recipe, out=tmp_path / "whole")
    loss = Classification.loss

    def stopped_at_9(self: Classification, model: Model, batch: Batch, step: int, progress: float) -> Any:
        answer = loss(self, model, batch, step, progress)
        if step == 9 and (tmp_path / "half" / "run.json").exists():
            raise Interrupt
        return answer

    with monkeypatch.context() as patched, pytest.raises(Interrupt):
        patched.setattr(Classification, "loss", stopped_at_9)
        train(recipe, out=tmp_path / "half")
    assert train(out=tmp_path / "half", resume=True).record.weights == whole.record.weights


def test_a_vit_may_be_extended_and_ours_stays_ours(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from vitral import ViT, ViTConfig\n\n\nclass Wider(ViT):\n    config: ViTConfig\n\n\n"
        "class Other(ViT):\n    config: ViTConfig\n"
    )
    settings = {"model.kind": f"{tmp_path}/mine.py:Wider", "model.patch_size": 2, "model.width": 32, "model.heads": 2}
    recipe = quick_digits().changed({**settings, "model.depth": 1})
    model = prepared(recipe).learner.model
    assert type(model).__name__ == "Wider" and model.config.block_count == 1
    assert type(prepared(quick_digits()).learner.model) is ViT
    run = train(recipe.changed({"train.epochs": 1}), out=tmp_path / "run")
    assert attention_maps(run.weights(tmp_path / "mine.py").model, torch.zeros(1, 1, 8, 8)).shares.shape[-1] == 17


def test_whole_numbers_and_shared_tensors_of_a_model_come_back(tmp_path: Path) -> None:
    text = (
        (OWN / "mixer.py")
        .read_text()
        .replace(
            "        self.norm, self.head",
            "        import torch\n        self.register_buffer('place', torch.arange(16).flip(0))\n"
            "        self.register_buffer('fixed', torch.ones(1), persistent=False)\n"
            "        self.again = self.embed\n        self.norm, self.head",
        )
        .replace("self.embed(images).flatten(2)", "(self.embed(images) * self.fixed).flatten(2)[:, :, self.place]")
    )
    recipe = own(tmp_path)
    (tmp_path / "mixer.py").write_text(text)
    run = train(recipe, out=tmp_path / "run")
    weights = run.weights(tmp_path / "mixer.py")
    assert weights.model.get_buffer("place").dtype == torch.int64
    assert evaluate(run, code=tmp_path / "mixer.py").loss == pytest.approx(run.metrics[-1]["validation_loss"], rel=0.5)


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"model__kind": "nowhere.py:Mixer"}, "There is no file nowhere.py"),
        ({"model__kind": "{}/mixer.py:Mixr"}, "has no Mixr. It has: .*Mixer"),
        ({"model__kind": "{}/mixer.py:Block"}, "is not a class of vitral.model.interface.Model"),
        ({"model__wdth": 3}, "There is no setting model.wdth. Did you mean model.width?"),
        ({"model__patch_size": "x"}, "model.patch_size is"),
        ({"train__patches": "rising"}, "cannot leave patches out"),
        ({"train__image_size": "rising"}, "takes one size only"),
        ({"train__objective": "{}/focal.py:Tensor"}, "is neither a function of logits and targets nor a class"),
        ({"train__label_smoothing": 0.1}, "set train.label_smoothing=0"),
        (
            {"model__kind": "mixer:Mixer"},
            "model.kind is mixer:Mixer, and should be vit, mu, .*, swin, or a class in a Python file",
        ),
        (
            {"train__objective": "focal"},
            "should be classification, double-softmax, mae, lejepa, dino, or a function or class in a Python file",
        ),
        ({"train__objective": {"kind": "{}/focal.py:focal", "gama": 1}}, "unexpected keyword argument 'gama'"),
        ({"data__augment__own": "brighter"}, "data.augment.own is brighter, and should be none, or a function"),
        ({"model__patch_size": 3}, "its stride, 3, does not divide model.image_size 8×8"),
    ],
)
def test_what_is_wrong_with_it_is_a_sentence(settings: dict[str, object], answer: str, tmp_path: Path) -> None:
    own(tmp_path)
    with pytest.raises(RecipeError, match=answer):
        prepared(own(tmp_path, **json.loads(json.dumps(settings).replace("{}", str(tmp_path)))))


@pytest.mark.parametrize(
    ("line", "instead", "answer"),
    [
        ("def features(self, images", "def fetures(self, images", "cannot be built: TypeError: Can't instantiate"),
        ("regularise: Regularise | None = None) -> None:", ") -> None:", "cannot be built: TypeError"),
        ("        self.config = config\n", "", "cannot be built: .*mixer.py, line|should keep its settings"),
        (
            "self.norm(self.blocks(",
            "sum(self.blocks(",
            "features gives .* tokens, .2, T, D., are expected|fails on two",
        ),
        ("self.head = nn.LayerNorm(config.width), ", "self.top = nn.LayerNorm(config.width), ", "no attribute `head`"),
        ("    config: MixerConfig\n", "", "does not say what its settings are"),
        ("config.width, config.classes)", "config.width, 3)", "for two images and 10 classes"),
    ],
)
def test_a_model_that_does_not_keep_the_contract_is_a_sentence(
    line: str, instead: str, answer: str, tmp_path: Path
) -> None:
    recipe, text = own(tmp_path), (OWN / "mixer.py").read_text()
    assert line in text
    (tmp_path / "mixer.py").write_text(text.replace(line, instead, 1))
    with pytest.raises(RecipeError, match=answer):
        prepared(recipe)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("return logits", "should give a loss that is one number"),
        ("return 1.0", "should give a loss that is one number"),
        ("return logits.sum().detach()", "should give a loss that is one number and has a gradient"),
        ("raise ValueError('oops')", "focal.py, line 2: ValueError: oops"),
        ("return logits @ targets.float()", "focal.py, line 2: RuntimeError"),
    ],
)
def test_a_loss_that_does_not_keep_the_contract_is_a_sentence(body: str, answer: str, tmp_path: Path) -> None:
    recipe = own(tmp_path, train__objective=f"{tmp_path}/focal.py:focal")
    (tmp_path / "focal.py").write_text(f"def focal(logits, targets):\n    {body}\n")
    with pytest.raises(RecipeError, match=answer):
        train(recipe, out=tmp_path / "run")


@pytest.mark.slow
def test_a_run_without_labels_has_no_answers_and_can_be_gone_on_from(tmp_path: Path) -> None:
    source = inspect.getsource(Reconstruction)
    (tmp_path / "mine.py").write_text(HEADER + source)
    recipe = own(tmp_path, train__objective=f"{tmp_path}/mine.py:Reconstruction")
    run = train(recipe, out=tmp_path / "run")
    for door in (lambda: Classifier.load(run, code=code(tmp_path)), lambda: evaluate(run, code=code(tmp_path))):
        with pytest.raises(WeightsError, match="learnt without labels, so its head has learnt nothing"):
            door()
    goes_on = own(tmp_path, init__weights=str(run.folder), model__image_size=8)
    assert evaluate(train(goes_on, out=tmp_path / "after", code=code(tmp_path)), code=code(tmp_path)).pictures == 360


HEADER = """
import torch
from torch import Tensor, nn
from vitral.data.batches import Batch
from vitral.files import sha256_of
from vitral.model.interface import Model
from vitral.training.objectives import Objective

"""


class Reconstruction(Objective):
    """Without labels, with a layer of its own: how bright another view of a picture is, from the first one."""

    figures = ("gap",)
    needs_labels = False
    views = (1.0, 0.5)

    def __init__(self, model: Model, size: int = 4) -> None:
        super().__init__()
        self.guess = nn.Sequential(nn.Linear(32, size), nn.Linear(size, 1))
        self.register_buffer("steps", torch.zeros(()))

    def loss(self, model: Model, batch: Batch, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        other = batch.more_views[0] if batch.more_views else batch.images
        noise = torch.rand(()) * 0.01  # follows from seed and step
        noise = noise + self.get_buffer("steps") / 100  # so that a resume which forgets them is noticed
        gap = self.guess(model.pool(model.features(batch.images)))[:, 0] - other.mean(dim=(1, 2, 3)) + noise
        return gap.square().mean(), {"gap": gap.abs().mean()}

    def after_step(self, model: Model, step: int) -> None:
        self.get_buffer("steps").add_(1)


def test_an_objective_may_have_layers_views_and_no_labels(tmp_path: Path) -> None:
    """They learn, are checkpointed, and are no part of the weights."""
    (tmp_path / "mine.py").write_text(HEADER + inspect.getsource(Reconstruction))
    recipe = own(tmp_path, train__objective={"kind": f"{tmp_path}/mine.py:Reconstruction", "size": 3})
    happening = events(recipe, out=tmp_path / "half")
    sizes: set[torch.Size] = set()
    for event in happening:
        if isinstance(event, Started):
            _, batch = next(event.plan.batches.starting_at(1))
            sizes = {view.shape[2:] for view in (batch.images, *batch.more_views)}
        if isinstance(event, Step) and event.step == 5:
            assert event.figures.keys() == {"gap"}
            break
    happening.close()
    assert sizes == {(8, 8), (4, 4)}
    files = [*code(tmp_path), tmp_path / "mine.py"]
    whole, again = train(recipe, out=tmp_path / "whole"), train(out=tmp_path / "half", resume=True, code=files)
    assert again.record.weights == whole.record.weights
    assert "validation_gap" in whole.metrics[-1] and "validation_accuracy" not in whole.metrics[-1]
    figures = [[line.get("validation_gap") for line in run.metrics] for run in (whole, again)]
    assert figures[0] == figures[1]
    assert not any("guess" in name for name in whole.weights(files).model.state_dict())


@pytest.mark.parametrize("setting", ["teacher.source", "data.augment.own"])
@pytest.mark.parametrize("words", [["evaluate", "run", "--suspects"], ["train", "--out", "run", "--resume"]])
def test_a_strangers_run_runs_nothing(
    called: Callable[..., Called], words: list[str], setting: str, tmp_path: Path
) -> None:
    """Its recipe names a file that lies at hand, and run.json names it too."""
    recipe = quick_digits().changed({"train.epochs": 1})
    run = stopped(recipe, tmp_path / "run", after=3)
    (run / "recipe.toml").write_text(recipe.changed({setting: "evil.py:x"}).to_toml())
    record = json.loads((run / "run.json").read_text())
    (tmp_path / "evil.py").write_text("open('trace', 'w')\nx = abs\n")
    digest = sha256_of(tmp_path / "evil.py")
    record |= {"teacher": digest} if setting == "teacher.source" else {"code": {"evil.py:x": digest}}
    (run / "run.json").write_text(json.dumps(record))
    done = called(*words, cwd=tmp_path)
    assert done.returncode and "a file of Python is not run by itself" in done.stderr
    assert not (tmp_path / "trace").exists()
