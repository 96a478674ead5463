"""`vitral look`: figure, page and JSON show what the Python functions say, and bad input gets a sentence."""

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from PIL import Image

from conftest import FIXTURES, TINY, quick_digits, vit
from test_report import Page
from vitral import Classifier, Run, ViT, ViTConfig, evaluate, load_pretrained, train
from vitral.cli import main, vitral
from vitral.cli.look import _examples
from vitral.data.config import Data, Resize
from vitral.data.preprocess import Preprocess
from vitral.data.sources import open_source
from vitral.errors import VitralError
from vitral.evaluation.report.pictures import MOST_MAPS
from vitral.look.explain import DEFAULT, Explainer, sharp
from vitral.look.gallery import card, write_gallery
from vitral.look.grading import RANDOM, curves
from vitral.look.inspected_model import InspectedModel
from vitral.look.overlay import outline, overlay_map
from vitral.look.readings import METHODS, class_attention
from vitral.weights.own import Weights

NASTY = '"><img src=x onerror=alert(1)>.png'


def look(*args: object) -> Result:
    return CliRunner().invoke(vitral, ["look", *map(str, args)])


@pytest.fixture
def picture(tmp_path: Path, seven: NDArray[np.uint8]) -> Path:
    Image.fromarray(seven).save(tmp_path / "seven.png")
    return tmp_path / "seven.png"


def test_the_json_says_what_python_says_and_the_figure_is_there(trained: Run, picture: Path, tmp_path: Path) -> None:
    done = look(trained.folder, picture, "--out", tmp_path / "out", "--json", "--blocks", "all")
    assert done.exit_code == 0, done.output
    (told,) = json.loads(done.stdout)
    expected = Classifier.load(trained).predict(picture)
    assert (told["label"], told["probability"]) == (expected.label, pytest.approx(expected.probability, abs=1e-6))
    weights = trained.weights()
    images, label = weights.preprocess(picture)[None], weights.class_names.index(expected.label)
    map = class_attention(vit(weights.model), images, torch.tensor([label]))
    np.testing.assert_allclose(told["map"], map[0].numpy(), atol=1e-6)
    temperature = float(InspectedModel.load(trained.folder).calibration.temperature)  # type: ignore[union-attr]
    found = curves(vit(weights.model), images, map, torch.tensor([label]), temperature=temperature)
    assert told["grade"]["deletion"] == pytest.approx(found.deletion_scores.item(), abs=1e-5)
    assert len(told["grade"]["random"]) == RANDOM and 0 <= told["grade"]["untrained_deletion"] <= 1
    assert told["grade"]["better_than_chance"] == (told["grade"]["deletion"] < min(told["grade"]["random"]))
    with Image.open(told["figure"]) as drawn:
        assert drawn.format == "PNG" and drawn.width == 1_860
    assert not (tmp_path / "out" / "index.html").exists()  # one picture needs no page


@pytest.mark.slow
def test_a_folder_gives_a_page_that_needs_nothing_else(trained: Run, picture: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    (folder / "below").mkdir(parents=True)
    shutil.copy(picture, folder / NASTY)
    shutil.copy(picture, folder / "below" / NASTY)
    (folder / "broken.png").write_text("no picture")
    done = look(trained.folder, folder, "--out", tmp_path / "out")
    assert done.exit_code == 0 and "not looked at: " in done.output and "index.html" in done.output
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert not any(word in text for word in ("http://", "https://", "@import", "url(", "<script"))
    page = Page(text)
    assert "1 file could not be read" in page.text and "broken.png is not a picture" in page.text
    assert page.text.count(NASTY) == 2 and not any("onerror" in attributes for _, attributes in page.tags)
    images, links = page.all("img"), page.all("a")
    assert len(images) == 4 and all(one["src"].startswith("data:image/") and one["alt"] for one in images)
    figures = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert len(links) == len(figures) == 2  # both have the same name, and neither took the other's place
    assert sorted(unquote(one["href"]) for one in links) == figures


@pytest.mark.slow
def test_a_figure_never_takes_the_place_of_a_picture(trained: Run, picture: Path) -> None:
    before = picture.read_bytes()
    done = look(trained.folder, picture, "--out", picture.parent)
    assert done.exit_code == 0 and picture.read_bytes() == before
    assert (picture.parent / "seven-2.png").is_file() and "seven-2.png" in done.output


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["note.txt"], 1, "note.txt is not a picture that Vitral reads"),
        (["huge.png"], 1, "has 50,000 × 50,000 pixels"),
        (["nothing.png"], 1, "nothing.png is not there"),
        (["seven.png", "--blocks", "99"], 2, "There is no block 99: the model has one, number 0."),
        (["seven.png", "--blocks", "first"], 2, "--blocks first: it takes numbers with commas between them"),
        (["seven.png", "--method", "rolout"], 2, "There is no method rolout. Did you mean rollout?"),
        ([], 2, "Name a picture or a folder to look at; or --model draws the model itself."),
    ],
)
def test_bad_input_is_answered_with_a_sentence(
    args: list[str],
    code: int,
    sentence: str,
    trained: Run,
    picture: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(picture.parent)
    Path("note.txt").write_text("no picture")
    head = b"IHDR" + struct.pack(">IIBBBBB", 50_000, 50_000, 8, 0, 0, 0, 0)  # what a file says of itself is enough
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    Path("huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT" + bytes(4))
    with pytest.raises(SystemExit) as ended:
        main(["look", str(trained.folder), *args])
    assert ended.value.code == code
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not list(Path().glob("looks/**/*.png"))


@pytest.mark.slow
def test_without_classes_there_are_maps_and_no_prediction(picture: Path, tmp_path: Path) -> None:
    done = look(FIXTURES / "dino_reference", picture, "--out", tmp_path / "out", "--json")
    (told,) = json.loads(done.stdout)
    assert "label" not in told and "grade" not in told and told["method"] == "attention"
    assert told["ungraded"] == "The model has no classes, so there is no answer to grade the map by."
    assert np.shape(told["map"]) == vit(load_pretrained(FIXTURES / "dino_reference").model).config.grid
    assert Path(told["figure"]).is_file()
    with pytest.raises(VitralError, match="has no classes for class-attention to speak for"):
        Explainer.load(FIXTURES / "dino_reference", DEFAULT)


def test_with_relative_positions_the_map_is_there_and_not_graded() -> None:
    model = ViT(ViTConfig.read({**TINY.write(), "positions": {"kind": "relative"}}))
    seen = Preprocess(image_size=(32, 32), channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    names = tuple("abcdefghij")
    found = Explainer(InspectedModel("relative", Weights(model, seen, names))).explain(np.zeros((40, 40, 3), np.uint8))
    assert found.grade is None and "no patch can be left out" in found.verdict and found.map.shape == (4, 4)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_can_be_asked_for(method: str, trained: Run, seven: NDArray[np.uint8]) -> None:
    found = Explainer.load(trained.folder, method).explain(seven)
    expected = METHODS[method](vit(trained.weights().model), trained.weights().preprocess(seven)[None])[0]
    np.testing.assert_allclose(found.map, expected.numpy(), atol=1e-6)
    assert set(found.maps) == set(METHODS) and list(found.heads) == [0]


@pytest.mark.slow
def test_test_pictures_of_a_run_make_a_gallery(trained: Run, tmp_path: Path) -> None:
    done = look(trained.folder, "--examples", "12", "--method", "mean-attention", "--out", tmp_path, "--json")
    told = json.loads(done.stdout)
    index = open_source(Data(source="digits"))
    assert len(told) == 12 and {Path(one["path"]).name.partition("-")[0] for one in told} == set(index.class_names)
    assert all(one["method"] == "mean-attention" and len(one["grade"]["random"]) == RANDOM for one in told)
    page = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert len(page.all("img")) == 24 and "the mean of all blocks and heads" in page.text


def test_examples_of_the_same_name_are_each_looked_at(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    for name in ("train/a/0.png", "train/b/0.png", "test/a/0.png", "test/a/0.bmp", "test/b/0.png"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "set" / name)
    recipe = quick_digits().changed({"data.source": str(tmp_path / "set"), "train.budget": "1steps"})
    run = train(recipe.changed({"data.directory": str(tmp_path / "cache"), "data.validation": 0}), out=tmp_path / "run")
    names = [path.name for path in _examples(str(run.folder), 9)]
    assert len(names) == 3 and names[:2] == ["a-0", "b-0"] and names[2].startswith("a-0-")


def test_a_table_of_sines_needs_no_model(tmp_path: Path) -> None:
    done = look("--sine", "20x30", "--out", tmp_path)
    assert done.exit_code == 0 and f"Look at {tmp_path / 'sine.png'}" in done.output
    with Image.open(tmp_path / "sine.png") as drawn:
        assert drawn.format == "PNG"
    told = json.loads(look("--sine", "20x30", "--out", tmp_path, "--json").stdout)
    assert told == {"figures": [str(tmp_path / "sine.png")], "notes": []}


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--sine", "20"], "--sine 20: it takes positions and width, as in 100x300, up to 4096."),
        (["--sine", "99999x99998"], "--sine 99999x99998: it takes positions and width"),
        (["runs/x", "--sine", "20x30"], "--sine draws a table of no model"),
        (["--model", "--sine", "20x30"], "--sine draws a table of no model"),
        ([], "Name a run or weights to look into, and a picture."),
        ([FIXTURES / "dino_reference", "--examples", "3"], "--examples takes the test pictures of a run"),
    ],
)
def test_what_goes_with_what_is_said(args: list[object], sentence: str) -> None:
    done = look(*args)
    assert done.exit_code == 2 and sentence in " ".join(done.output.split())


@pytest.mark.slow
def test_the_model_itself_is_drawn(trained: Run, tmp_path: Path) -> None:
    done = look(trained.folder, "--model", "--out", tmp_path, "--json")
    told = json.loads(done.stdout)
    names = {Path(path).name for path in told["figures"]}
    assert {"patches.png", "filters.png", "positions.png", "resampling.png", "distances.png"} <= names and told[
        "notes"
    ] == []
    for path in told["figures"]:
        with Image.open(path) as drawn:
            assert drawn.format == "PNG"


def test_the_picture_of_a_figure_is_sharper_and_shows_the_same() -> None:
    random = np.random.default_rng(0)
    photo = Image.fromarray(random.integers(0, 256, (20, 30, 3), np.uint8)).resize((900, 600), Image.Resampling.BICUBIC)
    for resize in (Resize(), Resize(share=0.875)):
        seen = Preprocess(image_size=(224, 224), channels=3, mean=(0.5,) * 3, std=(0.5,) * 3, resize=resize)
        shown = sharp(photo, seen)
        assert shown.shape == (3, 448, 448)
        halved = Image.fromarray(shown.transpose(1, 2, 0)).resize((224, 224), Image.Resampling.BOX)
        assert np.abs(np.asarray(halved, int) - seen.resized(photo).transpose(1, 2, 0)).mean() < 2
    small = Preprocess(image_size=(8, 8), channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert sharp(Image.new("RGB", (12, 12)), small).shape == (3, 8, 8)


def test_what_is_marked_is_bright_and_outlined() -> None:
    map = np.zeros((4, 4), np.float32)
    map[1, 2] = 1
    shown = np.asarray(
        overlay_map(np.full((3, 64, 64), 128, np.uint8), map).resize((4, 4), Image.Resampling.BOX), int
    ).sum(2)
    assert np.unravel_index(shown.argmax(), (4, 4)) == (1, 2)
    edges = {frozenset(edge) for edge in outline(map)}
    assert edges == {
        frozenset(edge) for edge in (((2, 1), (3, 1)), ((2, 2), (3, 2)), ((2, 1), (2, 2)), ((3, 1), (3, 2)))
    }
    assert len(outline(np.ones((4, 4), np.float32), 1.0)) == 16  # all of it: the border


@pytest.mark.slow
def test_the_report_shows_where_it_looked_when_right_and_when_wrong(trained: Run) -> None:
    evaluation = evaluate(trained)
    page = Page((trained.folder / "report.html").read_text(encoding="utf-8"))
    wrong = min(MOST_MAPS, int((~evaluation.right).sum()))
    assert wrong and "When it was wrong" in page.text and "When it was right" in page.text
    assert sum(one["alt"] == "Where it looked" for one in page.all("img")) == wrong + MOST_MAPS
    assert f"of these {wrong + MOST_MAPS} pictures; by luck" in page.text


@pytest.fixture(scope="module")
def gallery(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with pictures of which some maps are good and some not, and one that could not be read."""
    index, explainer = open_source(Data(source="digits")), Explainer.load(trained.folder)
    found = [explainer.explain(index.storage.read(int(number)), f"{number}.png") for number in index.of("test")[:12]]
    path = tmp_path_factory.mktemp("gallery") / "index.html"
    write_gallery(path, [card(one, one.name) for one in found], ["a.png is empty."], "digits", explainer.method)
    return path


def test_the_page_counts_what_the_grades_say(gallery: Path) -> None:
    page = Page(gallery.read_text(encoding="utf-8"))
    better = page.text.count("Better than chance this map")
    assert f"On {better} of 12 pictures the map is better than chance" in page.text
    assert better + page.text.count("better than chance this map") == 12


@pytest.mark.slow
def test_in_a_browser_the_page_fits_and_axe_finds_nothing_serious(window: Any, gallery: Path) -> None:
    window.goto(gallery.resolve().as_uri())
    assert window.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert window.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert window.complaints == []
    violations = Axe().run(window).response["violations"]
    assert [one["id"] for one in violations if one["impact"] in ("serious", "critical")] == []


@pytest.mark.slow
def test_on_photographs_the_default_explains_better_than_chance_and_than_random_weights(
    large_data: Callable[[str], Path],
) -> None:
    pictures = sorted((large_data("imagenette-mini") / "val").rglob("*.JPEG"))[::10]
    explainer = Explainer.load(large_data("weights/vit_tiny_patch16_224"))
    grades = [found.grade for found in map(explainer.explain, pictures) if found.grade]
    assert len(grades) == len(pictures) >= 20
    assert sum(one.better for one in grades) >= 0.8 * len(grades)  # 99 % of 200: docs/decisions/0012-which-map.md
    deletion, chance, untrained = (
        np.mean([getattr(one, name) for one in grades]) for name in ("deletion", "random_deletion", "untrained")
    )
    assert deletion < 0.6 * min(chance, untrained)
