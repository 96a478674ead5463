"""One's own loop comes back: a model in memory is measured, looked into and written like a run's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from conftest import quick_digits
from vitral import (
    Classifier,
    DataError,
    Preprocess,
    Run,
    RunError,
    ViT,
    ViTConfig,
    Weights,
    WeightsError,
    attention_maps,
    embed,
    evaluate,
    load_pretrained,
    probe,
    train,
    write_weights,
)
from vitral.cli import main
from vitral.data.config import Data
from vitral.data.pack import pack
from vitral.data.sources.python import open_python
from vitral.look.explain import Explainer
from vitral.progress import Progress

TINY = ViTConfig(image_size=8, patch_size=4, channels=1, width=16, depth=2, heads=2, classes=2)
PREPROCESS = Preprocess(image_size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
NAMES = ("bright", "dark")


def picture(number: int) -> NDArray[np.uint8]:
    noise = np.random.default_rng(number).integers(0, 128, (8, 8), np.uint8)
    return noise if number % 2 else noise + np.uint8(127)


class Squares:
    classes = NAMES

    def __len__(self) -> int:
        return 60

    def __getitem__(self, number: int) -> tuple[NDArray[np.uint8], int]:
        return picture(number), number % 2


@pytest.fixture(scope="module")
def weights() -> Weights:
    """Of a loop without anything of Vitral but the model."""
    torch.manual_seed(0)
    model, images = ViT(TINY), torch.stack([PREPROCESS(picture(number)) for number in range(60)])
    optimizer, labels = torch.optim.AdamW(model.parameters(), 3e-3), torch.arange(60) % 2
    for _ in range(20):
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return Weights(model, PREPROCESS, NAMES)


class Theirs(nn.Module):
    """A ViT of another library: timm's names, and nothing of ours around them."""

    def __init__(self, model: ViT) -> None:
        super().__init__()
        self._modules.update(model._modules)
        self._parameters.update(model._parameters)
        self._ours = [model]  # in a list: no module of this one
        self.num_heads = model.config.heads

    def forward(self, images: Tensor) -> Any:
        return self._ours[0](images)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Its pictures, as files."""
    from PIL import Image

    for number in range(30):
        path = tmp_path / "squares" / NAMES[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(number)).save(path)
    return tmp_path / "squares"


def test_a_model_in_memory_is_measured_and_left_as_it_was(weights: Weights) -> None:
    weights.model.train()
    evaluation = evaluate(weights, source=Squares())
    assert weights.model.training
    with torch.inference_mode():
        images = torch.stack([PREPROCESS(picture(number)) for number in range(60)])
        answers = weights.model.eval()(images).argmax(dim=1)
    assert evaluation.accuracy == (answers == torch.arange(60) % 2).float().mean().item() > 0.9
    assert (evaluation.pictures, evaluation.results, evaluation.origin) == (60, None, None)


def test_pictures_of_another_source_are_packed_within_hearing(weights: Weights, folder: Path) -> None:
    works: list[Progress] = []
    evaluate(weights, folder, tell=works.append)
    assert list(dict.fromkeys(work.doing for work in works)) == ["packing pictures, once", "asking about pictures"]


def test_results_never_take_the_place_of_those_of_a_run(weights: Weights, tmp_path: Path) -> None:
    run = train(quick_digits().changed({"train.budget": "1steps"}), out=tmp_path / "run")
    with pytest.raises(RunError, match="is a run, and has an evaluation of its own"):
        evaluate(weights, source=Squares(), out=run.folder)


def test_a_pack_made_for_another_model_is_made_anew(weights: Weights, tmp_path: Path) -> None:
    """Its pictures are of another size: the middle of them would be something else."""
    larger = Preprocess(image_size=(16, 16), channels=1, mean=(0.5,), std=(0.5,))
    packed = pack(open_python(Squares(), Data()), larger, tmp_path)
    assert evaluate(weights, source=packed).loss == evaluate(weights, source=Squares()).loss


@pytest.mark.parametrize("command", ["predict", "evaluate", "look", "convert"])
def test_what_is_written_is_taken_by_every_command(
    command: str, weights: Weights, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_weights("mine", weights)
    arguments = {
        "predict": ["squares/dark/1.png"],
        "evaluate": ["squares"],
        "look": ["squares/dark/1.png"],
        "convert": ["--to", "timm"],
    }
    main([command, "mine", *arguments[command]])
    written = {
        "evaluate": "evaluations/mine/squares/evaluation.json",
        "look": "looks/mine/1.png",
        "convert": "mine-timm",
    }
    assert Path(written.get(command, "mine/model.safetensors")).exists()


def test_a_module_of_another_library_is_taken_as_it_is(weights: Weights, folder: Path, tmp_path: Path) -> None:
    assert isinstance(weights.model, ViT)
    theirs = Theirs(weights.model)
    images = PREPROCESS(picture(1))[None]
    ours, maps = attention_maps(weights, images).shares, attention_maps(theirs, images).shares
    torch.testing.assert_close(maps, ours)
    vectors = embed(theirs, folder, tmp_path / "vectors").vectors
    assert vectors.shape == (30, 16)
    assert probe(theirs, folder).weights == "Theirs"
    assert Explainer.load(theirs).explain(picture(1)).answers[0][0] == "class 1"
    named = Weights(load_pretrained(theirs).model, PREPROCESS, NAMES)
    assert evaluate(named, folder).accuracy == evaluate(weights, folder).accuracy
    assert Classifier.load(named).predict(picture(1)).label == "dark"


def test_what_a_model_by_itself_does_not_know_is_asked_for(weights: Weights) -> None:
    with pytest.raises(WeightsError, match="A ViT by itself does not know how pictures are prepared"):
        evaluate(weights.model, source=Squares())
    with pytest.raises(WeightsError, match="A Linear is no model of Vitral. load_pretrained makes one"):
        Weights(nn.Linear(2, 2), PREPROCESS, NAMES)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="ViT is no run, so it has no test pictures of its own"):
        evaluate(weights)


def test_a_model_that_was_wrapped_is_the_model_and_numbers_that_nobody_could_load_are_not_written(
    trained: Run, tmp_path: Path
) -> None:
    weights = trained.weights()
    wrapped = Weights(torch.nn.Sequential(weights.model), weights.preprocess, weights.class_names)  # type: ignore[arg-type]
    assert wrapped.model is weights.model
    with torch.no_grad():
        next(weights.model.parameters()).view(-1)[0] = torch.nan
    with pytest.raises(WeightsError, match="holds numbers that are not finite"):
        write_weights(tmp_path / "mine", weights)
    assert not (tmp_path / "mine").exists()


def test_weights_without_pictures_are_asked_for_some(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="so it has no pictures of its own. Name some: vitral evaluate .* FOLDER"):
        evaluate(tmp_path)
