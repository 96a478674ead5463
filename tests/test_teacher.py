"""A model that has learnt already teaches another one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from conftest import quick_digits, stopped, vit
from vitral import Classifier, RecipeError, Run, train
from vitral.data.augment.geometry import flips
from vitral.data.batches import in_order
from vitral.inference import outputs_of_pack
from vitral.model.cifar_resnet import CifarResNet
from vitral.recipe import Recipe
from vitral.training.objectives.classification import Classification
from vitral.training.objectives.distillation import (
    Distillation,
    FeatureDistillation,
    LogitDistillation,
    StudentOutput,
)
from vitral.training.preparation import Plan, prepared

SHAPES = {"pixels": ["batch", 1, 8, 8], "said": ["batch", 10]}  # of a teacher in ONNX


def taught(source: object, **settings: object) -> Recipe:
    given = {"teacher.source": str(source), "model.tokens": "distilled", "train.budget": "4steps"}
    return quick_digits().changed(given | {name.replace("__", "."): value for name, value in settings.items()})


def lesson_of(plan: Plan) -> Any:
    assert isinstance(plan.learner.objective, Distillation)
    return plan.learner.objective.lesson


def test_weights_teach_as_they_answer(trained: Run) -> None:
    """A teacher that is asked once about each picture says what it says when it is evaluated."""
    plan = prepared(taught(trained.folder, teacher__sees="picture"))
    lesson, weights = lesson_of(plan), trained.weights()
    assert isinstance(lesson, LogitDistillation) and lesson.teach is None
    train_pictures = plan.pack.of("train")
    expected = outputs_of_pack(weights.model, plan.pack, train_pictures, weights.preprocess).logits
    torch.testing.assert_close(lesson.table[torch.from_numpy(train_pictures)], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_the_loss_is_as_in_the_paper(trained: Run, kind: str) -> None:
    plan = prepared(
        taught(
            trained.folder,
            teacher__kind=kind,
            teacher__temperature=3.0,
            teacher__weight=0.3,
            data__augment={},
            train__label_smoothing=0.0,
        )
    )
    learner = plan.learner
    assert isinstance(lesson_of(plan), LogitDistillation)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    step, batch = next(plan.batches.starting_at(1))
    found, _ = learner.gradients(step, batch, 0.0)
    with torch.no_grad():
        first, last = learner.model.logits(learner.model.features(batch.images))
        word = lesson_of(plan).logits(batch)
        if kind == "hard":
            lesson = cross_entropy(last, word.argmax(dim=1))
        else:
            p, q = (word / 3).softmax(1), (last / 3).softmax(1)
            lesson = 9 * (p * (p.log() - q.log())).sum(dim=1).mean()
        expected = 0.7 * cross_entropy(first, batch.labels) + 0.3 * lesson
    assert float(found) == pytest.approx(float(expected), rel=1e-4)
    assert all(parameter.grad is not None for parameter in learner.model.parameters())


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_the_labels_word_and_the_teachers_each_reach_their_own_head(trained: Run, kind: str) -> None:
    """As in DeiT: with all of the weight on one side, the other head learns nothing; the answer is the mean of both."""
    for weight, learns, rests in ((0.0, "head", "head_dist"), (1.0, "head_dist", "head"), (0.5, "head", None)):
        plan = prepared(taught(trained.folder, teacher__kind=kind, teacher__weight=weight, model__pool="class"))
        step, batch = next(plan.batches.starting_at(1))
        plan.learner.gradients(step, batch, 0.0)
        slopes = {
            name: float(one.grad.abs().sum())
            for name, one in plan.learner.model.named_parameters()
            if one.grad is not None
        }
        assert slopes[f"{learns}.weight"] > 0
        assert rests is None or slopes[f"{rests}.weight"] == slopes[f"{rests}.bias"] == 0
        assert weight != 0.5 or slopes["head_dist.weight"] > 0
    model = plan.learner.model.eval()
    with torch.no_grad():
        first, last = model.logits(model.features(batch.images))
        torch.testing.assert_close(model(batch.images), (first + last) / 2)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_both_heads_learn_and_each_from_its_own_teacher(tmp_path: Path, kind: str) -> None:
    """This teacher calls every digit by the next one's name: the class token learns the labels, the other its word."""
    index = prepared(quick_digits()).pack.index
    said = 9.0 * np.eye(10)[(index.labels + 1) % 10]
    np.savez(tmp_path / "said.npz", samples=index.samples, logits=said, class_names=np.array(index.class_names))
    recipe = taught(tmp_path / "said.npz", teacher__kind=kind, model__pool="class", train__budget="80steps")
    plan, weights = prepared(recipe), train(recipe, out=tmp_path / "run").weights()
    batch = next(in_order(plan.pack, plan.pack.of("test"), weights.preprocess, 360))
    with torch.no_grad():
        first, last = weights.model.eval().logits(weights.model.features(batch.images))
    label = float((first.argmax(dim=1) == batch.labels).float().mean())
    word = float((last.argmax(dim=1) == (batch.labels + 1) % 10).float().mean())
    assert label > 0.4 and word > 0.4, (label, word)  # by chance: 0.1


def test_python_logits_files_and_weights_say_the_same(trained: Run, tmp_path: Path) -> None:
    plan = prepared(quick_digits())
    weights, numbers = trained.weights(), plan.pack.of("train")
    logits = outputs_of_pack(weights.model, plan.pack, numbers, weights.preprocess).logits.numpy()
    names = np.array([plan.pack.index.samples[number] for number in numbers])
    order = np.random.default_rng(0).permutation(len(names))
    turned = list(reversed(range(10)))
    np.savez(
        tmp_path / "said.npz",
        samples=names[order],
        logits=logits[order][:, turned],
        class_names=np.array([str(n) for n in turned]),
    )
    (tmp_path / "mine.py").write_text(
        "from vitral import Run\n"
        f"weights = Run.load({str(trained.folder)!r}).weights()\n"
        "def teach(images):\n"
        "    return weights.model.eval()(weights.preprocess.normalise(images * 255))\n"
    )
    said = []
    for source in (trained.folder, tmp_path / "said.npz", f"{tmp_path / 'mine.py'}:teach"):
        lesson = lesson_of(prepared(taught(source, teacher__sees="picture")))
        assert isinstance(lesson, LogitDistillation)
        said.append(lesson.table[torch.from_numpy(numbers)])
    torch.testing.assert_close(said[0], said[1], rtol=0, atol=1e-4)
    torch.testing.assert_close(said[0], said[2], rtol=0, atol=1e-4)


def test_an_onnx_file_says_what_its_layer_says(tmp_path: Path) -> None:
    """One layer over all pixels, as ONNX has it."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    layer, make = torch.nn.Linear(64, 10), onnx.helper
    nodes = [
        make.make_node("Flatten", ["pixels"], ["flat"]),
        make.make_node("Gemm", ["flat", "w", "b"], ["said"], transB=1),
    ]
    shapes = [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in SHAPES.items()]
    numbers = [("w", layer.weight), ("b", layer.bias)]
    held = [onnx.numpy_helper.from_array(tensor.detach().numpy(), name) for name, tensor in numbers]
    model = make.make_model(
        make.make_graph(nodes, "teacher", shapes[:1], shapes[1:], held),
        ir_version=10,
        opset_imports=[make.make_opsetid("", 21)],
    )
    onnx.save(model, tmp_path / "teacher.onnx")
    plan = prepared(taught(tmp_path / "teacher.onnx", teacher__sees="batch"))
    lesson, (_, batch) = lesson_of(plan), next(plan.batches.starting_at(1))
    assert isinstance(lesson, LogitDistillation)
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (plan.preprocess.mean, plan.preprocess.std))
    expected = layer((batch.images * std + mean).flatten(1))
    torch.testing.assert_close(lesson.logits(batch), expected.detach(), rtol=0, atol=1e-5)


def test_a_taught_run_trains_resumes_and_is_used(trained: Run, tmp_path: Path) -> None:
    recipe = taught(trained.folder, teacher__sees="picture")
    whole = train(recipe, out=tmp_path / "whole")
    again = train(out=stopped(recipe, tmp_path / "stopped", after=2), resume=True)
    for name, tensor in whole.weights().model.state_dict().items():
        assert torch.equal(tensor, again.weights().model.state_dict()[name])
    assert Classifier.load(whole).predict(np.zeros((8, 8), np.uint8)).label in "0123456789"
    batch = next(in_order(prepared(recipe).pack, np.arange(4), whole.weights().preprocess))
    assert len(whole.weights().model.logits(whole.weights().model.features(batch.images))) == 2


@pytest.mark.parametrize(
    ("source", "settings", "told"),
    [
        ("nowhere", {}, "There is no run and no file of weights nowhere"),
        ("nowhere.npz", {}, "there is no file nowhere.npz"),
        ("nowhere.onnx", {}, "there is no file nowhere.onnx"),
        ("nowhere.py:teach", {}, "There is no file nowhere.py"),
        ("x", {"teacher.sees": "picture", "data.augment.mixup": 0.5}, "knows nothing of mixed pictures"),
    ],
)
def test_a_teacher_that_is_not_there_is_told(source: str, settings: dict[str, object], told: str) -> None:
    with pytest.raises(Exception, match=told) as found:
        prepared(taught(source).changed(settings))
    assert isinstance(found.value, RecipeError) or "weights" in told


WRONG = """
import torch
def wide(images): return torch.zeros(len(images), 1000)
def listed(images): return [0.0] * len(images)
def failing(images): return images @ images[:, :, :3]
number = 3
"""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mine.py:wide", "answers 64 pictures with 64×1000, and a logit for each of the 10 classes was expected"),
        ("mine.py:listed", "answers 64 pictures with list"),
        ("mine.py:failing", r"failing fails on 64 pictures \(RuntimeError: "),
        ("mine.py:number", "has no function number. It has: wide, listed, failing"),
        ("broken.py:teach", "broken.py, line 2: ZeroDivisionError"),
        ("cut.npz", "should hold samples, logits and class_names"),
        ("shape.npz", r"has logits of shape \(3, 4\) for 3 samples and 10 class_names"),
    ],
)
def test_what_is_wrong_with_a_teacher_is_told(name: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WRONG)
    (tmp_path / "broken.py").write_text("teach = len\n1 / 0\n")
    np.savez(tmp_path / "shape.npz", samples=list("abc"), logits=np.zeros((3, 4)), class_names=list("0123456789"))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "shape.npz").read_bytes()[:-30])
    plan = prepared(taught("none"))
    with pytest.raises(RecipeError, match=told):
        lesson = lesson_of(prepared(taught(tmp_path / name)))
        assert isinstance(lesson, LogitDistillation)
        lesson.logits(next(plan.batches.starting_at(1))[1])


def test_another_teacher_in_between_is_noticed_and_none_is_run_by_itself(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text("def teach(images): return images.flatten(1)[:, :10]\n")
    run = stopped(taught(f"{source}:teach"), tmp_path / "run", after=2)
    with pytest.raises(RecipeError, match="a file of Python is not run by itself"):
        train(out=run, resume=True)
    source.write_text("def teach(images): return images.flatten(1)[:, 10:20]\n")
    with pytest.raises(RecipeError, match="it has changed since"):
        train(out=run, resume=True, code=source)


# ---- what a CNN sees at each place


@pytest.fixture
def cnn(tmp_path: Path) -> Path:
    """One that has learnt nothing, with two classes, beside a folder of pictures in colour."""
    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), np.uint8)
        folder = tmp_path / "pictures" / ("train" if number < 16 else "test") / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (tmp_path / "cnn").mkdir()
    save_file(CifarResNet(1, 2, (0.5,) * 3, (0.25,) * 3).state_dict(), tmp_path / "cnn" / "model.safetensors")
    (tmp_path / "cnn" / "about.json").write_text('{"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}')
    return tmp_path / "cnn"


def shown(cnn: Path, **settings: object) -> Recipe:
    given = {
        "model": {"image_size": 16, "patch_size": 4, "width": 64, "depth": 1, "heads": 2, "channels": 3, "classes": 0},
        "data": {"source": str(cnn.parent / "pictures"), "directory": str(cnn.parent / "data")},
        "teacher": {"source": str(cnn), "kind": "map", "sees": "picture", "weight": 0.3},
        "train": {"budget": "6steps", "batch_size": 8, "precision": "float32", "compile": "no"},
    }
    return Recipe.read(given).changed({name.replace("__", "."): value for name, value in settings.items()})


def test_a_map_that_was_made_once_is_moved_with_its_picture(cnn: Path) -> None:
    """Where a picture is not mirrored it is the map that is made of the batch, to half precision."""
    maps = {}
    for sees in ("picture", "batch"):
        plan = prepared(shown(cnn, teacher__sees=sees, data__augment={"flip": "random"}))
        _, batch = next(plan.batches.starting_at(1))
        assert isinstance(lesson_of(plan), FeatureDistillation) and batch.draws is not None
        maps[sees] = lesson_of(plan).maps(batch.rows(slice(2, 8)))
        assert maps[sees].shape == (6, 64, 4, 4)
        as_it_is = in_order(plan.pack, batch.samples[2:8], plan.preprocess)
        seen = lesson_of(plan).standardise(next(as_it_is).images)
        mirrored = torch.from_numpy(flips(plan.batches.augment, batch.draws)[2:8])
    assert 0 < int(mirrored.sum()) < 6
    torch.testing.assert_close(maps["picture"][~mirrored], maps["batch"][~mirrored], rtol=0, atol=1e-2)
    torch.testing.assert_close(maps["picture"][mirrored], seen[mirrored].flip(3), rtol=0, atol=1e-2)


def test_the_first_numbers_of_each_token_are_to_be_what_the_teacher_sees(cnn: Path) -> None:
    plan = prepared(shown(cnn, train__patches="rising", train__label_smoothing=0.0))
    learner, lesson = plan.learner, lesson_of(plan)
    assert isinstance(lesson, FeatureDistillation)
    step, batch = next(plan.batches.starting_at(1))
    found, _ = learner.gradients(step, batch, 0.0)
    keep = learner._sample_patches(batch.images, batch.samples, step, 0.0)
    assert keep is not None and keep.shape == (8, 8)  # half of the 16 patches
    with torch.no_grad():
        tokens = learner.model.features(batch.images, keep)
        wanted = lesson.maps(batch).flatten(2)  # (B, F, N)
        apart = [(tokens[i, 1 + k] - wanted[i, :, keep[i, k]]).square().mean() for i in range(8) for k in range(8)]
        expected = (
            0.7 * cross_entropy(vit(learner.model).head(tokens[:, 0]), batch.labels) + 0.3 * torch.stack(apart).mean()
        )
    assert float(found) == pytest.approx(float(expected), rel=1e-4)
    coarse = StudentOutput(torch.empty(0), tokens[:, 1:5], None, (2, 2))
    assert float(lesson.loss(batch, coarse)) > 0  # a grid of another size


def test_a_run_that_is_shown_maps_resumes_to_the_bit(cnn: Path, tmp_path: Path) -> None:
    augment = {"flip": "alternating", "pad": 2, "outside": "mirror"}
    recipe = shown(cnn, train__patches="rising", data__augment=augment)
    whole = train(recipe, out=tmp_path / "whole")
    again = train(out=stopped(recipe, tmp_path / "stopped", after=3), resume=True)
    assert whole.record.weights == again.record.weights


def test_who_cannot_show_maps_or_hold_them_is_told(cnn: Path, trained: Run) -> None:
    with pytest.raises(RecipeError, match="teacher.kind map needs a CNN, which .* is not"):
        prepared(taught(trained.folder, teacher__kind="map"))
    with pytest.raises(RecipeError, match="sees 64 numbers at each place, and model.width is 32"):
        prepared(shown(cnn, model__width=32))


@pytest.mark.slow
def test_the_cnn_recognises_cifar10_as_it_is_known_to(large_data: Callable[[str], Path]) -> None:
    """Golden, from the data's own README: 93.39 % of the 10,000 test pictures."""
    from vitral.data.sources.official import cifar10
    from vitral.model.cifar_resnet import cifar_resnet_of
    from vitral.weights.pretrained import raw_weights_of

    stored = raw_weights_of(large_data("weights") / "cifar10_resnet56")
    model = cifar_resnet_of(stored.tensors, tuple(stored.about["mean"]), tuple(stored.about["std"]))
    found = cifar10(large_data("cifar-10-batches-bin"))
    test = found.splits == "test"
    images = torch.from_numpy(found.images[test]).permute(0, 3, 1, 2)
    with torch.inference_mode():
        said = torch.cat([model(some.float() / 255).argmax(dim=1) for some in images.split(500)])
    assert float((said.numpy() == found.labels[test]).mean()) == pytest.approx(0.9339, abs=1e-4)


def test_a_plan_that_is_not_to_be_trained_asks_no_teacher(trained: Run) -> None:
    """`--dry-run` is a matter of seconds."""
    recipe = taught(trained.folder, teacher__sees="picture")
    assert isinstance(prepared(recipe, to_train=False).learner.objective, Classification)
    assert isinstance(prepared(recipe).learner.objective, Distillation)
