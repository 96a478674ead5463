"""The report: one page that needs nothing else, says what evaluation.json says, and reads well in a browser."""

import csv
import json
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from PIL import Image

from conftest import FIXTURES
from vitral import Evaluation, Run, ViTConfig, evaluate, train
from vitral.data.config import Data
from vitral.evaluation.report import write_report
from vitral.recipe import Recipe
from vitral.recipes.choose import choose
from vitral.training.config import Train
from vitral.weights.calibration import TemperatureFit

SCRIPT = "<script>alert(1)</script>"
EMPTY = {"meta", "img", "source", "br"}  # tags that are not closed


class Page(HTMLParser):
    """Tags with their attributes, the text, and whether all that was window was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text, self.open = "", list[str]()
        self.feed(text)
        self.text = " ".join(self.text.replace("\u00a0", " ").split())
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


Counts = dict[str, tuple[int, int, int]]  # class → pictures to train, validate and test with


def made(
    folder: Path,
    counts: Counts,
    *,
    epochs: int = 1,
    first: str = "0/test-0.png",
    group_by: str = "none",
    size: tuple[int, int] = (8, 8),
) -> Evaluation:
    """A tiny model, really trained on made-up pictures for 8×8; `first` is what the first test picture is called."""
    random, rows = np.random.default_rng(0), []
    for label, (name, numbers) in enumerate(counts.items()):
        base = random.integers(0, 256, (*size, 3))
        for split, count in zip(("train", "validation", "test"), numbers, strict=True):
            for number in range(count):
                place = f"{label}/{split}-{number}.png"
                place = first if place == "0/test-0.png" else place
                (folder / place).parent.mkdir(parents=True, exist_ok=True)
                pixels = np.clip(base + random.normal(0, 40, base.shape), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / place, "PNG")
                rows.append((place, name, split))
    with (folder / "table.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    validation: Any = "auto" if any(validate for _, validate, _ in counts.values()) else 0.0
    data = Data(
        source=str(folder / "table.csv"), directory=str(folder / "packs"), validation=validation, group_by=group_by
    )
    recipe = Recipe(
        model=ViTConfig(image_size=8, patch_size=4, channels=0, width=16, depth=1, heads=2, classes=0),
        data=data,
        train=Train(epochs=epochs, batch_size=8),
    )
    return evaluate(train(recipe, out=folder / "run"))


def page(evaluation: Evaluation) -> Page:
    return Page(write_report(evaluation).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def evaluation(trained: Run) -> Evaluation:
    return evaluate(trained)


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    folder = tmp_path_factory.mktemp("hundred")
    return made(folder, {f"species {number:02}": (3, 1, 2) for number in range(100)})


@pytest.mark.slow
def test_an_oblong_picture_is_shown_as_it_is_and_as_the_model_sees_it(tmp_path: Path, hundred: Evaluation) -> None:
    oblong = made(tmp_path, {"ash": (4, 0, 3), "oak": (4, 0, 3)}, size=(12, 30))
    shown = page(oblong)
    assert "What the model sees" in shown.text and "30 × 12, seen in 8 × 8" in shown.text
    assert "All of a picture is scaled to 8 × 8 pixels, whatever its shape was." in shown.text
    assert [one["alt"] for one in shown.all("img")].count("What the model sees of it") == 1  # all have one shape
    (tmp_path / "0" / "test-0.png").unlink()  # what is gone by now is passed over
    assert "What the model sees" in page(oblong).text
    assert "What the model sees" not in page(hundred).text  # they have the model's size


@pytest.mark.slow
def test_it_says_whose_weights_it_began_with(tmp_path: Path, pictures: Path, hundred: Evaluation) -> None:
    given = {"init.weights": str(FIXTURES / "timm_vit"), "train.epochs": 1, "train.baseline": False}
    recipe = choose(str(pictures), {**given, "init.mode": "lora"}).recipe
    shown = page(evaluate(train(recipe, out=tmp_path / "run"))).text
    assert "timm_vit; the head learnt, and thin matrices beside those of the blocks" in shown
    assert "Began with" in shown and "Began with" not in page(hundred).text


def test_it_needs_nothing_else(evaluation: Evaluation) -> None:
    path = write_report(evaluation)
    assert path == evaluation.run.folder / "report.html"
    text = path.read_text(encoding="utf-8")
    found = Page(text)
    assert "http://" not in text and "https://" not in text and "@import" not in text and "url(" not in text
    assert not {"link", "script", "iframe", "object", "embed"} & {tag for tag, _ in found.tags}
    for tag, attributes in found.tags:
        for name in ("src", "srcset", "href"):
            if name in attributes:
                assert attributes[name].startswith("#" if tag == "a" else "data:image/")
    anchors = {attributes["href"] for attributes in found.all("a")}
    assert anchors == {f"#{attributes['id']}" for attributes in found.all("h2")}
    assert all(attributes["alt"] for attributes in found.all("img"))


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    counts = {SCRIPT: (3, 2, 4), '" onload="alert(1)': (3, 2, 4), "new\nline \u202e$x$": (3, 2, 4)}
    evaluation = made(tmp_path, counts, first=f"{SCRIPT}.png")
    found = page(evaluation)
    assert not found.all("script") and not any("onload" in attributes for _, attributes in found.tags)
    assert SCRIPT in found.text and f"{SCRIPT}.png" in found.text
    assert "new\\nline \\u202e$x$" in found.text


def test_the_key_figures_are_those_of_evaluation_json(evaluation: Evaluation) -> None:
    written = json.loads((evaluation.run.folder / "evaluation.json").read_text(encoding="utf-8"))
    found = page(evaluation)
    shown = {one["id"].removeprefix("figure-"): float(one["value"]) for one in found.all("data")}
    assert shown == {name: figure["value"] for name, figure in written["figures"].items()}
    for name, figure in written["figures"].items():
        as_text = "{:.3f}" if name == "loss" else "{:.1%}"
        low, high = as_text.format(figure["low"]), as_text.format(figure["high"])
        assert f"{as_text.format(figure['value'])}{low} to {high}" in found.text
    assert f"{written['uncalibrated']['calibration_error']['value']:.1%} on average before" in found.text
    assert f"a temperature of {written['temperature']:.2f}" in found.text
    assert f"Before the temperature it was {written['uncalibrated']['loss']['value']:.3f}." in found.text


@pytest.mark.parametrize(
    ("fit", "page_says", "terminal_says"),
    [
        (
            TemperatureFit(0.7, 0.52, 0.47, 0.02, 300),
            "It was kept since it helped",
            "before the temperature, 0.70, kept: ",
        ),
        (TemperatureFit(1.2, 0.52, 0.51, 0.02, 60), "so it was left at 1: ", "left at 1, for 1.20 is no clear gain: "),
    ],
)
def test_it_says_whether_the_temperature_was_kept_and_why(
    evaluation: Evaluation, fit: TemperatureFit, page_says: str, terminal_says: str
) -> None:
    from vitral.cli.evaluate import _more

    assert evaluation.calibration is not None
    temperature = torch.tensor(fit.fitted if fit.kept else 1.0)
    calibration = replace(evaluation.calibration, temperature=temperature, fit=fit)
    other = replace(evaluation, calibration=calibration)
    assert other.write()["temperature_fit"] == asdict(fit) | {"kept": fit.kept}
    text = page(other).text
    assert page_says in text and str(fit) in text
    assert any(terminal_says + str(fit) in sentence for sentence in _more(other))


@pytest.mark.slow
def test_it_warns_of_few_test_pictures_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    found = page(made(tmp_path, {"cat": (4, 0, 2), "dog": (4, 0, 1), "owl": (4, 0, 0)}))
    assert "3 test pictures are few: take these numbers as a first sign, no more." in found.text
    assert "No test picture shows owl: nothing is known about that." in found.text
    assert "There were no validation pictures, so no temperature could be found" in found.text
    assert "no test pictures" in found.text and "too few pictures" in found.text
    assert "The classes are uneven" not in found.text


@pytest.mark.slow
def test_it_warns_of_uneven_classes_and_tells_what_check_found(tmp_path: Path) -> None:
    evaluation = made(tmp_path, {"cat": (4, 1, 31), "dog": (4, 1, 10)})
    finding = {"serious": True, "what": f"2 pictures are {SCRIPT}.", "advice": "Look at them."}
    (evaluation.run.folder / "check.json").write_text(json.dumps({"format": 1, "findings": [finding]}))
    found = page(evaluation)
    assert "The classes are uneven: 31 test pictures show cat and 10 dog." in found.text
    assert f"balanced accuracy, {evaluation.metrics.figures['balanced_accuracy'].value:.1%}" in found.text
    assert f"2 pictures are {SCRIPT}.Look at them." in found.text
    assert "are few" not in found.text and "have not been looked at" not in found.text


@pytest.mark.slow
def test_the_pictures_are_looked_at_for_it(tmp_path: Path) -> None:
    evaluation = made(tmp_path, {"cat": (4, 1, 2), "dog": (4, 1, 2)})
    looked = json.loads((evaluation.run.folder / "check.json").read_text())
    assert looked["pictures"] == 14 and looked["findings"]
    found = page(evaluation)
    assert all(one["what"] in found.text and one["advice"] in found.text for one in looked["findings"])
    (evaluation.run.folder / "check.json").unlink()  # as with more pictures than are looked at unasked
    found = page(evaluation)
    assert "have not been looked at" in found.text and "--json > run/check.json" in found.text


@pytest.mark.slow
def test_a_hundred_classes_stay_small_and_come_worst_first(hundred: Evaluation) -> None:
    path = write_report(hundred)
    assert path.stat().st_size < 5_000_000
    found = Page(path.read_text(encoding="utf-8"))
    rows = [one for one in found.all("th") if one.get("scope") == "row"]
    assert len(rows) == 100 + len(hundred.write()["figures"])
    assert "The least recognised come first." in found.text
    with Image.open(hundred.run.folder / "confusion.png") as drawn:
        assert 1_500 < min(drawn.size) and max(drawn.size) < 3_000


@pytest.mark.slow
def test_when_all_is_right_nothing_speaks_of_mistakes(tmp_path: Path) -> None:
    evaluation = made(tmp_path, {"cat": (8, 2, 3), "dog": (8, 2, 3)}, epochs=40)
    assert evaluation.accuracy == 1
    found = page(evaluation)
    assert "Nothing: all test pictures are right." in found.text and "perhaps the label is wrong" not in found.text


@pytest.mark.slow
def test_a_page_on_other_pictures_says_on_which(tmp_path: Path) -> None:
    run = made(tmp_path / "own", {"cat": (8, 2, 3), "dog": (8, 2, 3)}).run
    (tmp_path / "other" / "cat").mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (8, 8), (60 * number, 99, 7)).save(tmp_path / "other" / "cat" / f"{number}.png")
    evaluation = evaluate(run, tmp_path / "other", mirrored=True)
    found = page(evaluation)
    assert (run.folder / "evaluations" / "other-mirrored" / "report.html").is_file()
    assert "Measured here on other. For each picture it was also asked about the mirror image" in found.text
    assert "test pictures" not in found.text and "had never seen" not in found.text
    assert all(note in found.text for note in evaluation.notes)
    assert not (evaluation.folder / "curves.png").exists()


@pytest.mark.slow
def test_groups_are_told_by_themselves(tmp_path: Path) -> None:
    evaluation = made(tmp_path, {"cat": (8, 2, 3), "dog": (8, 2, 3)}, group_by="([0-9]/[a-z]+)")
    found = page(evaluation)
    assert set(evaluation.groups) == {"0/test", "1/test"} and "Group by group" in found.text
    for name, figure in evaluation.groups.items():
        assert f"{name}{figure.value:.1%}" in found.text


@pytest.mark.slow
@pytest.mark.parametrize("which", ["evaluation", "hundred"])
def test_in_a_browser_nothing_sticks_out(window: Any, which: str, request: pytest.FixtureRequest) -> None:
    window.goto(write_report(request.getfixturevalue(which)).resolve().as_uri())
    assert window.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert window.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert window.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("which", ["evaluation", "hundred"])
def test_axe_finds_nothing_serious(window: Any, which: str, request: pytest.FixtureRequest) -> None:
    window.goto(write_report(request.getfixturevalue(which)).resolve().as_uri())
    window.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    violations = Axe().run(window).response["violations"]
    assert [one["id"] for one in violations if one["impact"] in ("serious", "critical")] == []
