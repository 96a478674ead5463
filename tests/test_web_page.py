"""A model becomes a page, which in a real browser, from a file and without a network, gives the model's answers."""

import base64
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from numpy.typing import NDArray
from PIL import Image, ImageCms

from conftest import Called, vit
from test_export import CONFIGS, RUNS, weights_of
from vitral import Classifier, Preprocess, Run, Weights
from vitral.data.config import AsItIs, Interpolation, Pad, Resize, Scale
from vitral.data.decode import decode
from vitral.data.sources.named import data_directory
from vitral.deploy.export import Export, export
from vitral.deploy.web import page as pages
from vitral.deploy.web import runtime
from vitral.deploy.web.chromium import find_chromium
from vitral.deploy.web.page import plan_of, served
from vitral.deploy.web.trial import _is_for_browsers
from vitral.errors import DataError, VitralError, WeightsError
from vitral.look.readings import class_token_map
from vitral.predictions import LabelsPrediction, NumberPrediction, TasksPrediction

FILTERS: tuple[Interpolation, ...] = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")


# Without a browser


def test_a_page_is_refused_before_anything_is_done(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "empty"))
    bands = Preprocess(image_size=(32, 32), channels=5, mean=(0.5,) * 5, std=(0.25,) * 5)
    with pytest.raises(WeightsError, match="takes 5 channels: there can be no page of it. Export it as .onnx"):
        pages.check_page(bands)
    for out in ("page.html", "page"):
        with pytest.raises(WeightsError, match="not here. Get it once: vitral fetch onnxruntime-web"):
            export(weights_of(CONFIGS["grey"]), tmp_path / out, folder=folder)
    assert list(tmp_path.iterdir()) == []


def test_what_npm_gives_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: Any) -> None:
    (tmp_path / "bin").mkdir()
    npm = tmp_path / "bin" / "npm"
    npm.write_text(f'#!/bin/sh\nfor last; do :; done\necho another > "$last/{runtime.PACKAGE.path}"\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("VITRAL_DATA", str(tmp_path / "data"))
    done: Called = called("fetch", "onnxruntime-web")
    assert done.returncode == 1 and "these are not the bytes that were meant" in done.stderr
    assert "MIT, copyright (c) Microsoft Corporation" in done.stdout
    assert not runtime.is_here(tmp_path / "data")


def test_where_the_runtime_is_fetched_from_is_pinned() -> None:
    for file in (*runtime.FILES, runtime.PACKAGE):
        assert len(file.sha256) == 64 and file.size > 0 and (runtime.VERSION in file.url)
    assert [file.path for file in runtime.FILES] == list(runtime.PACKAGE.members)


def test_names_cannot_end_the_script_that_they_stand_in() -> None:
    assert "</script" not in pages._json({"names": ["</script><script>alert(1)</script>"]})


def test_a_server_of_a_page_ends_also_with_an_error(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(WeightsError), served(tmp_path / "index.html"):
        [server] = set(threading.enumerate()) - before
        raise WeightsError("The page failed.")
    server.join(60)
    assert not server.is_alive()


def test_what_pillow_does_not_know_is_nothing_for_browsers(tmp_path: Path) -> None:
    np.save(tmp_path / "bands.npy", np.zeros((4, 4, 3), np.uint8))
    Image.new("RGB", (4, 4)).save(tmp_path / "picture.png")
    assert [_is_for_browsers(tmp_path / name) for name in ("bands.npy", "picture.png")] == [False, True]


# In a real browser


@pytest.fixture(scope="module")
def onnxruntime_web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What pages are made with: from the data directory, else by npm."""
    if runtime.is_here(data_directory()):
        yield
        return
    if shutil.which("npm") is None:
        pytest.skip("onnxruntime-web is not in the data directory (vitral fetch onnxruntime-web), and npm is not here")
    directory = tmp_path_factory.mktemp("data")
    try:
        runtime.fetch_runtime(directory, progress=lambda *_: None, tell=lambda _: None)
    except VitralError as error:
        pytest.skip(f"onnxruntime-web cannot be fetched: {error}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAL_DATA", str(directory))
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The real one, with a camera that is none; without it these tests skip, and say so."""
    from playwright.sync_api import sync_playwright

    chromium = find_chromium()
    if chromium is None:
        pytest.skip("there is no chromium (apt-get install chromium)")
    arguments = ["--headless", "--no-sandbox", "--disable-gpu"]
    arguments += ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of several sizes and formats."""
    folder, chance = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number, ending in enumerate(["png", "jpg", "webp"] * 3):
        picture(chance, 60 + 17 * number, 90 - 6 * number).save(folder / f"{number}.{ending}")
    return folder


def picture(chance: np.random.Generator, width: int, height: int) -> Image.Image:
    blocks = chance.integers(0, 256, (6, 7, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.BICUBIC)


Made = tuple[Weights, Export]


@pytest.fixture(scope="module")
def made(onnxruntime_web: None, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Weights of chance that see the middle of a picture, and their page."""
    torch.manual_seed(0)
    weights = weights_of(CONFIGS["registers"])
    preprocess = weights.preprocess.model_copy(update={"resize": Scale(kind="shortest", share=0.875), "jpeg": "scaled"})
    weights = Weights(weights.model, preprocess, ("ant", "bee", "cat </script>", "dog", "eel"))
    return weights, export(weights, tmp_path_factory.mktemp("page") / "page.html", folder=folder)


class Window:
    """A page that is open, and what its browser complained of."""

    def __init__(self, browser: Any, url: str, width: int = 1280, theme: str = "light", **others: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, **others)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)
        self.wait("empty")

    def wait(self, state: str) -> None:
        self.page.wait_for_selector(f"#page[data-state={state}]", timeout=60_000)

    def answer_to(self, do: Callable[[], Any]) -> dict[str, Any]:
        """What the page says once this is done."""
        script = """self.coming = new Promise((done) => document.addEventListener("answer", ({ detail }) =>
            done({ ...detail, attention: detail.attention && [...detail.attention.values] }), { once: true })); null"""
        self.page.evaluate(script)
        do()
        answer: dict[str, Any] = self.page.evaluate("self.coming")
        return answer

    def choose(self, content: bytes, name: str = "picture.png") -> dict[str, Any]:
        file = {"name": name, "mimeType": "", "buffer": content}
        return self.answer_to(lambda: self.page.set_input_files("#file", file))

    def hand(self, kind: str, content: bytes | None, name: str = "picture.png") -> None:
        """Drop or paste a file, or something that is none."""
        script = """([kind, text, name]) => {
            const moved = new DataTransfer();
            if (text === null) moved.items.add("an address", "text/plain");
            else moved.items.add(new File([Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0))], name));
            const how = { bubbles: true, cancelable: true };
            if (kind === "paste") document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: moved, ...how }));
            else for (const each of ["dragenter", "dragover", "drop"]) {
                document.body.dispatchEvent(new DragEvent(each, { dataTransfer: moved, ...how }));
            }
        }"""
        text = None if content is None else base64.b64encode(content).decode()
        self.page.evaluate(script, [kind, text, name])

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector)).replace("\u00a0", " ").strip()

    def trouble(self) -> str:
        self.page.wait_for_selector("#trouble:not([hidden])")
        return self.text("#trouble")


@pytest.fixture
def window(browser: Any, made: Made) -> Iterator[Window]:
    opened = Window(browser, made[1].path.as_uri())
    opened.context.set_offline(True)
    yield opened
    opened.context.close()
    assert opened.complaints == []
    assert {url.split(":")[0] for url in opened.asked} <= {"file", "data", "blob"}


def png(seed: int = 0, size: tuple[int, int] = (90, 60)) -> bytes:
    return encoded(picture(np.random.default_rng(seed), *size), "PNG")


def encoded(image: Image.Image, kind: str, **how: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def in_full(weights: Weights) -> Weights:
    """As a browser decodes."""
    return Weights(weights.model, weights.preprocess.model_copy(update={"jpeg": "full"}), weights.class_names)


@pytest.mark.slow
def test_an_export_tells_how_the_page_was_tried(made: Made) -> None:
    weights, exported = made
    page = exported.page
    assert page is not None and page.path == exported.path and page.trial.is_same
    assert page.trial.pictures == 9 and page.trial.difference < 1e-3 and page.trial.near_ties == 0
    first, scaling, last = str(page).splitlines()
    assert "on 9 given pictures: probabilities differ by at most" in first and "9 of 9 answers are the same" in first
    assert scaling.startswith("The model reads large JPEGs") and "is not known, as none of the 9" in scaling
    assert last.endswith("one file, which needs no server and no network")
    assert list(exported.path.parent.iterdir()) == [exported.path]
    written = exported.path.read_text(encoding="utf-8")
    assert "cat </script>" not in written and runtime.LICENCE in written


@pytest.mark.slow
def test_a_page_in_float16_is_smaller_and_gives_the_models_answers(made: Made, browser: Any, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    for seed in range(4):
        (tmp_path / "pictures" / f"{seed}.png").write_bytes(png(seed))
    large = picture(np.random.default_rng(4), 900, 600)
    (tmp_path / "pictures" / "large.jpg").write_bytes(encoded(large, "JPEG"))
    exported = export(made[0], tmp_path / "half.html", precision="float16", folder=tmp_path / "pictures")
    assert exported.parity.cost is not None and exported.parity.cost.other == 0
    assert exported.page is not None and exported.page.trial.is_same and exported.page.trial.pictures == 5
    assert made[1].page is not None and exported.page.size < made[1].page.size
    assert "of 5 answers change" in exported.page.scaling


@pytest.mark.slow
def test_a_picture_that_is_chosen_dropped_or_pasted_is_answered(window: Window, made: Made) -> None:
    weights, _ = made
    model = Classifier(in_full(weights))
    for seed, way in enumerate(("choose", "drop", "paste")):
        content = png(seed, (90 + 70 * seed, 60))
        answer = window.choose(content) if way == "choose" else window.answer_to(lambda: window.hand(way, content))  # noqa: B023
        expected = model.predict(content)
        shown = dict(zip(weights.class_names, answer["values"], strict=True))
        assert shown == pytest.approx(dict(expected.probabilities), abs=1e-4)
        images = model.preprocess(content)[None]
        np.testing.assert_allclose(
            answer["attention"], class_token_map(vit(weights.model), images).flatten(), atol=1e-5
        )
        assert window.text(".label") == expected.label
        assert window.text(".headline .share") == f"{expected.probability:.1%}".replace("%", " %")
        assert window.page.locator(".row").count() == 5
        assert str(window.page.text_content("#said")).startswith(f"{expected.label}, ")
        assert window.page.is_visible("#map") and window.page.is_visible("#cut")
        window.wait("ready")


@pytest.mark.slow
def test_pictures_are_resampled_as_pillow_does_to_the_level(window: Window) -> None:
    chance = np.random.default_rng(1)
    script = """async ([cases, text]) => {
        const { resample } = await import("vitral/resample");
        const all = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
        return cases.map(({ at, height, width, bands, size, filter, box, downFirst }) => {
            const read = (top, rows) => all.subarray(at + top * width * bands, at + (top + rows) * width * bands);
            const out = resample({ read, height, width, bands }, size, filter, downFirst, box ?? undefined);
            let text = "";
            for (const level of out) text += String.fromCharCode(level);
            return btoa(text);
        });
    }"""
    cases, contents, expected, at = [], b"", [], 0
    for number in range(360):
        filter, bands = FILTERS[number % 6], (1, 3)[number % 2]
        height, width = (int(side) for side in chance.integers(1, 700 if number % 12 == 0 else 120, 2))
        tall, wide = (int(side) for side in chance.integers(1, 100, 2))
        pixels = chance.integers(0, 256, (height, width, bands), dtype=np.uint8)
        pixels = np.where(pixels > 127, 255, 0).astype(np.uint8) if number % 3 == 0 else pixels  # what overshoots
        box = None
        if number % 4 == 0:
            left, top = chance.uniform(0, width / 3), chance.uniform(0, height / 3)
            right, bottom = chance.uniform(width / 2, width), chance.uniform(height / 2, height)
            box = (left, top, right, bottom)
        image = Image.fromarray(pixels[:, :, 0] if bands == 1 else pixels)
        expected.append(np.asarray(image.resize((wide, tall), Image.Resampling[filter.upper()], box=box)).tobytes())
        case = {"at": at, "height": height, "width": width, "bands": bands, "size": [tall, wide], "filter": filter}
        named = box and dict(zip(("left", "top", "right", "bottom"), box, strict=True))
        cases.append(case | {"box": named, "downFirst": pages.scales_down_first()})
        contents += pixels.tobytes()
        at += pixels.size
    actual = window.page.evaluate(script, [cases, base64.b64encode(contents).decode()])
    for case, one, other in zip(cases, expected, actual, strict=True):
        assert one == base64.b64decode(other), case


def pixels_in(window: Window, plan: dict[str, Any], content: bytes) -> NDArray[np.uint8]:
    """What the page makes of a file for a model of this plan: (channels, height, width)."""
    script = """async ([plan, text]) => {
        const { decoded, sourceOf } = await import("vitral/picture");
        const { pixelsOf } = await import("vitral/prepare");
        const file = new File([Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0))], "it");
        try {
            return [...pixelsOf(sourceOf(await decoded(file, plan), plan), plan)];
        } catch (error) {
            return error.message;
        }
    }"""
    pixels = window.page.evaluate(script, [json.loads(json.dumps(plan)), base64.b64encode(content).decode()])
    if isinstance(pixels, str):
        raise DataError(pixels)
    return np.array(pixels, np.uint8).reshape(plan["channels"], *plan["size"])


@pytest.mark.slow
def test_every_way_of_preparing_pictures_is_the_same_in_the_page(window: Window) -> None:
    ways: list[Any] = [Resize(), Resize(share=0.875), Pad(), Scale(), Scale(share=0.7, rounding="even")]
    ways += [Scale(kind="shortest"), Scale(kind="shortest", share=0.875), Scale(kind="shortest", rounding="even")]
    ways += [Scale(kind="shortest", share=1.3), Scale(share=1.25, rounding="even")]
    chance = np.random.default_rng(2)
    for number, way in enumerate(ways * 4):
        channels = (1, 3)[number // len(ways) % 2]
        height, width = (int(side) for side in chance.integers(4, 60, 2))
        preprocess = Preprocess(
            image_size=(height, width),
            channels=channels,
            resize=way,
            interpolation=FILTERS[number % 6],
            background=int(chance.integers(0, 256)),
            mean=(0.5,) * channels,
            std=(0.25,) * channels,
        )
        content = png(number, (int(chance.integers(5, 150)), int(chance.integers(5, 150))))
        pixels = pixels_in(window, plan_of(preprocess), content)
        np.testing.assert_array_equal(pixels, preprocess.resized(content), err_msg=str(preprocess))


@pytest.mark.slow
def test_what_is_not_resized_must_have_the_size(window: Window) -> None:
    as_it_is = Preprocess(image_size=(60, 90), channels=3, resize=AsItIs(), mean=(0.5,) * 3, std=(0.2,) * 3)
    np.testing.assert_array_equal(pixels_in(window, plan_of(as_it_is), png()), as_it_is.resized(png()))
    with pytest.raises(DataError, match="has 60 × 91 pixels, and the model takes 60 × 90"):
        pixels_in(window, plan_of(as_it_is), png(0, (91, 60)))


def stored_otherwise() -> dict[str, tuple[bytes, int]]:
    """Pictures as one finds them, each with how many levels the browser may be off."""
    chance = np.random.default_rng(3)
    image = picture(chance, 64, 48)
    blended = image.copy()
    blended.putalpha(Image.fromarray(chance.integers(0, 256, (48, 64), dtype=np.uint8)))
    one_colour = image.quantize(16)
    one_colour.info["transparency"] = 3
    sixteen = Image.fromarray((np.arange(48 * 64).reshape(48, 64) * 21).astype(np.uint16))
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    found = {
        "png": (encoded(image, "PNG"), 0),
        "png, grey": (encoded(image.convert("L"), "PNG"), 0),
        "png, one bit": (encoded(image.convert("1"), "PNG"), 0),
        "png, palette": (encoded(image.quantize(32), "PNG"), 0),
        "png, a transparent colour": (encoded(one_colour, "PNG", transparency=3), 0),
        "png, half transparent": (encoded(blended, "PNG"), 2),
        "png, 16 bits": (encoded(sixteen, "PNG"), 1),
        "png, with a profile": (encoded(image, "PNG", icc_profile=profile), 0),
        "bmp": (encoded(image, "BMP"), 0),
        "gif": (encoded(image, "GIF"), 0),
        "webp": (encoded(image, "WEBP", lossless=True), 0),
        "webp, half transparent": (encoded(blended, "WEBP", lossless=True), 2),
        "jpeg": (encoded(image, "JPEG"), 0),
        "jpeg, colour at half the size": (encoded(image, "JPEG", subsampling=2), 0),
        "jpeg, grey": (encoded(image.convert("L"), "JPEG"), 0),
        "avif": (encoded(image, "AVIF", quality=90), 2),
        "jpeg, cmyk": (encoded(image.convert("CMYK"), "JPEG"), 2),
        "jpeg, progressive": (encoded(image, "JPEG", progressive=True), 0),
    }
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        found[f"jpeg, turned {orientation}"] = (encoded(image, "JPEG", exif=exif), 0)
        found[f"png, turned {orientation}"] = (encoded(image, "PNG", exif=exif), 0)
    return found


@pytest.mark.slow
def test_pictures_are_decoded_as_python_does(window: Window) -> None:
    wrong = {}
    for name, (content, off) in stored_otherwise().items():
        upright = decode(content)
        assert isinstance(upright, Image.Image)
        for channels in (1, 3):
            preprocess = Preprocess(
                image_size=(upright.height, upright.width),
                channels=channels,
                background=90,
                mean=(0.5,) * channels,
                std=(0.25,) * channels,
            )
            pixels = pixels_in(window, plan_of(preprocess), content)
            difference = np.abs(pixels.astype(int) - preprocess.resized(content).astype(int)).max()
            if difference > off:
                wrong[name, channels] = int(difference)
    assert wrong == {}


@pytest.mark.slow
def test_what_cannot_be_read_is_told_and_what_was_there_stays(window: Window, tmp_path: Path) -> None:
    assert "values" in window.choose(png())
    label = window.text(".label")
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)
    for content, name, sentence in (
        (b"Dear Sir or Madam,\n", "letter.txt", "letter.txt is not a picture that a browser reads (JPEG, PNG,"),
        (b"", "nothing.png", "nothing.png is empty."),
        (
            png()[:60],
            "cut.png",
            "cut.png is a PNG that this browser cannot decode: it is broken, cut off, or too large.",
        ),
        (heic, "IMG_1.HEIC", "IMG_1.HEIC is a HEIC picture, as telephones take them, which this browser does"),
        (encoded(picture(np.random.default_rng(), 9, 9), "TIFF"), "scan.tif", "scan.tif is a TIFF, which this browser"),
        (encoded(Image.new("1", (20_000, 20_000)), "PNG"), "bomb.png", "bomb.png"),
    ):
        answer = window.choose(content, name)
        assert answer["error"].startswith(sentence) and window.trouble() == answer["error"]
        window.wait("ready")
        assert window.text(".label") == label
    window.hand("paste", None)
    assert window.trouble() == "There is no picture in what was pasted: copy a picture, not its address."
    window.hand("drop", None)
    window.page.wait_for_selector("#trouble:has-text('What was dropped is no file')")
    assert "values" in window.choose(png()) and not window.page.is_visible("#trouble")


@pytest.mark.slow
def test_the_camera_takes_a_picture(window: Window) -> None:
    window.page.click("#camera")
    window.page.wait_for_selector("#take:focus")
    assert window.page.is_visible("#video") and not window.page.is_visible("#sources")
    window.page.click("#stop")
    assert window.page.is_visible("#waiting") and window.page.is_visible("#sources")
    window.page.click("#camera")
    window.page.wait_for_selector("#take:focus")
    answer = window.answer_to(lambda: window.page.keyboard.press("Enter"))
    assert sum(answer["values"]) == pytest.approx(1)
    assert window.page.is_visible("#picture") and not window.page.is_visible("#video")
    assert window.page.evaluate("document.querySelector('video').srcObject") is None  # it is off


@pytest.mark.slow
def test_every_control_is_reached_by_tab(window: Window) -> None:
    reached = []
    for _ in range(3):
        window.page.keyboard.press("Tab")
        reached.append(window.page.evaluate("document.activeElement.id"))
    assert reached[:2] == ["file", "camera"]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")])
def test_axe_finds_nothing_and_nothing_sticks_out(browser: Any, made: Made, width: int, theme: str) -> None:
    opened = Window(browser, made[1].path.as_uri(), width, theme)
    for content in (None, png()):
        if content is not None:
            opened.choose(content)
        assert opened.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        assert [(one["id"], one["nodes"][0]["html"]) for one in Axe().run(opened.page).response["violations"]] == []
    assert opened.complaints == []
    opened.context.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["labels", "number", "tasks"])
def test_labels_numbers_and_tasks_are_shown(
    kind: str, browser: Any, onnxruntime_web: None, folder: Path, tmp_path: Path
) -> None:
    run = RUNS / f"format-1-{kind}"
    exported = export(run, tmp_path / "page.html", folder=folder)
    opened, model = Window(browser, exported.path.as_uri()), Classifier.load(run)
    for path in (folder / "0.png", folder / "3.png"):
        expected = model.predict(path)
        answer = opened.choose(path.read_bytes())
        assert answer["distance"] == pytest.approx(expected.distance, rel=1e-3)
        assert opened.page.is_visible("#unknown") == expected.unknown
        parts = list(expected.tasks.values()) if isinstance(expected, TasksPrediction) else [expected]
        shown = opened.page.locator(".answer .label").all_inner_texts()
        assert shown == [one.label for one in parts]
        if isinstance(expected, TasksPrediction):
            assert opened.page.locator(".answer h3").all_inner_texts() == list(expected.tasks)
        for one in parts:
            if isinstance(one, NumberPrediction) and one.low is not None:
                words = one.words(1)[1].strip()
                assert words in opened.page.locator(".answer").all_inner_texts()[parts.index(one)]
            if isinstance(one, LabelsPrediction):
                assert opened.page.locator(".row.said").count() == len(one.labels)
    assert opened.complaints == []
    opened.context.close()


@pytest.mark.slow
def test_a_folder_is_for_a_web_server(
    browser: Any, onnxruntime_web: None, trained: Run, tmp_path: Path, called: Any
) -> None:
    done: Called = called("export", trained.folder, tmp_path / "page")
    assert done.returncode == 0, done.stderr
    assert (
        "on 100 test pictures: probabilities differ by" in done.stdout and "a folder, for a web server" in done.stdout
    )
    names = {path.name for path in (tmp_path / "page").iterdir()}
    assert {"index.html", "page.css", "page.js", "model.onnx", runtime.SCRIPT, runtime.WASM} <= names
    with served(tmp_path / "page" / "index.html") as url:
        opened = Window(browser, url)
        answer = opened.choose(png())
        expected = Classifier.load(trained.folder).predict(png())
        assert answer["values"] == pytest.approx([share for _, share in sorted(expected.probabilities)], abs=1e-4)
        assert opened.page.is_visible("#unknown") == expected.unknown
        assert opened.complaints == [] and all(asked.startswith(url[:20]) for asked in opened.asked if asked[0] == "h")
        opened.context.close()
    context = browser.new_context()
    page = context.new_page()
    page.goto((tmp_path / "page" / "index.html").as_uri())
    assert "put the folder on one" in page.inner_text("#trouble")
    context.close()


@pytest.mark.slow
def test_a_page_that_answers_otherwise_is_not_kept(
    onnxruntime_web: None, trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = pages.plan_of

    def inverted(preprocess: Preprocess) -> dict[str, Any]:
        """As of a model that sees another part of the picture."""
        return planned(preprocess.model_copy(update={"resize": Scale(share=0.5)}))

    monkeypatch.setattr(pages, "plan_of", inverted)
    with pytest.raises(WeightsError, match=r"was not kept: the page does not answer as .* answers changed"):
        export(trained, tmp_path / "page.html", pictures=20)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_without_chromium_it_is_said_that_the_page_was_not_tried(
    onnxruntime_web: None, trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "find_chromium", lambda: None)
    exported = export(trained, tmp_path / "page.html", pictures=5)
    assert exported.parity.is_same and exported.page is not None
    assert str(exported.page).startswith("The page itself was not tried in a browser: there is no Chromium")
