"""The glass in a real browser: what it shows when one drops, points, drags and types is what Python computes."""

import base64
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from numpy.typing import NDArray

from test_glass import CONFIG, NAMES, breaks_after_one_block, images_of, lively, noise, served, weights_file
from vitral import Preprocess
from vitral.look.figures import BRIGHTEST
from vitral.look.glass.server import Glass
from vitral.look.maps import attention_maps
from vitral.look.readings import class_attention, class_token_map, rollout
from vitral.model.config import Head, Pool, Tokens
from vitral.weights.own import Weights, write_weights

pytestmark = pytest.mark.slow

DOWN, ACROSS, EXTRA = 4, 5, 3  # of CONFIG: patches, and the class token with two registers


@pytest.fixture(scope="module")
def glass(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Glass]:
    yield from served(weights_file(tmp_path_factory.mktemp("insects")))


# Keeps the addresses whose answers the page has taken: what follows from one is done before the next task begins.
TAKEN = """
window.taken = [];
const real = window.fetch;
window.fetch = async (...asked) => {
    const answer = await real(...asked);
    for (const form of ["json", "arrayBuffer"]) {
        const read = answer[form].bind(answer);
        answer[form] = async () => {
            const content = await read();
            setTimeout(() => window.taken.push(answer.url));
            return content;
        };
    }
    return answer;
};
"""


class Window:
    """A page that is open, and what its browser complained of."""

    def __init__(self, browser: Any, url: str, width: int = 1280, theme: str = "light", touch: bool = False) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, has_touch=touch
        )
        self.context.add_init_script(TAKEN)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self._complained(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)

    def _complained(self, text: str) -> None:
        if "willReadFrequently" not in text:  # it is these tests that read canvases
            self.complaints.append(text)

    def wait(self, **values: object) -> None:
        """Until the page says so of itself."""
        wanted = "".join(f'[data-{name}="{value}"]' for name, value in values.items())
        self.page.wait_for_selector(f"#glass{wanted}", timeout=20_000)

    def drawn(self) -> None:
        """It draws at most once a frame: after two, everything is."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def take(self, held: list[Any], end: str) -> None:
        """Let the first of these requests go on, until the page has done whatever it does with the answer."""
        while not held:
            self.page.evaluate("null")  # the browser tells of requests while it is asked something
        count = f"window.taken.filter((url) => url.endsWith({end!r})).length"
        before = self.page.evaluate(count)
        held[0].continue_()
        while self.page.evaluate(count) == before:  # not wait_for_function, which the page's own rules forbid
            pass
        self.drawn()

    def drop(self, content: bytes, name: str = "noise.png") -> None:
        script = """([text, name]) => {
            const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
            const moved = new DataTransfer();
            moved.items.add(new File([bytes], name));
            for (const kind of ["dragenter", "dragover", "drop"]) {
                const how = { dataTransfer: moved, bubbles: true, cancelable: true };
                document.body.dispatchEvent(new DragEvent(kind, how));
            }
        }"""
        self.page.evaluate(script, [base64.b64encode(content).decode(), name])

    def dropped(self, content: bytes) -> None:
        before = self.page.get_attribute("#glass", "data-readings")
        self.drop(content)
        self.page.wait_for_selector(f'#glass[data-state=ready]:not([data-readings="{before}"])')

    def place(self, patch: int) -> tuple[float, float]:
        """The middle of a patch on the screen."""
        self.page.locator("#stage").scroll_into_view_if_needed()
        box = self.page.locator("#stage canvas").bounding_box()
        row, column = divmod(patch, ACROSS)
        return box["x"] + (column + 0.5) * box["width"] / ACROSS, box["y"] + (row + 0.5) * box["height"] / DOWN

    def point(self, patch: int) -> None:
        self.page.mouse.move(*self.place(patch))
        self.wait(asks=EXTRA + patch)

    def tile(self, strip: str, number: int) -> NDArray[np.uint8]:
        """The pixels of a small map, (down, across, 3)."""
        script = """(canvas) => [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]"""
        data = self.page.locator(f"#{strip} canvas").nth(number).evaluate(script)
        return np.array(data, np.uint8).reshape(DOWN, ACROSS, 4)[:, :, :3]

    def rows(self) -> dict[str, float]:
        script = "(all) => all.map((row) => [row.querySelector('.told').textContent, Number(row.dataset.now)])"
        return {name: share for name, share in self.page.locator("#rows .row").evaluate_all(script)}

    def text(self, selector: str) -> str:
        return str(self.page.text_content(selector)).replace("\u00a0", " ").strip()


@pytest.fixture
def window(browser: Any, glass: Glass) -> Iterator[Window]:
    opened = Window(browser, glass.url)
    opened.wait(state="ready", readings=0)
    yield opened
    opened.context.close()
    assert opened.complaints == []
    assert all(url.startswith(glass.url) for url in opened.asked)  # no network


def colours(values: Any) -> NDArray[np.uint8]:  # (down, across) → (down, across, 3)
    """As matplotlib has them, on the scale of the figures."""
    values = np.asarray(values, np.float64)
    shares = np.clip(values / np.quantile(values, 1 - BRIGHTEST), 0, 1)
    return matplotlib.colormaps["cividis"](shares, bytes=True)[:, :, :3]


def same(shown: NDArray[np.uint8], values: Any) -> None:
    """The colours of these values; 16 bits may put one into the next of the 256."""
    assert np.abs(shown.astype(int) - colours(values).astype(int)).max() <= 4
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) > 8  # there is something to see


def shares(seed: int) -> torch.Tensor:  # (blocks, heads, T, T)
    return attention_maps(lively(CONFIG), images_of(noise(seed)), blocks="all", queries="all").shares[0]


def over_patches(row: torch.Tensor) -> NDArray[np.float32]:
    return row[EXTRA:].reshape(DOWN, ACROSS).numpy()


def answers(seed: int, off: set[int]) -> dict[str, float]:
    keep = torch.tensor([sorted(set(range(DOWN * ACROSS)) - off)])
    with torch.no_grad():
        found = lively(CONFIG)(images_of(noise(seed)), keep).softmax(dim=1)[0]
    return dict(zip(NAMES, found.tolist(), strict=True))


def assert_answered(window: Window, seed: int, off: set[int]) -> None:
    window.wait(answered=len(off))
    expected, shown = answers(seed, off), window.rows()
    assert len(shown) >= 5 and all(share == pytest.approx(expected[name], abs=1e-5) for name, share in shown.items())
    first = max(expected, key=lambda name: expected[name])
    assert next(iter(shown)) == first == window.text("#headline .label")
    assert window.text("#headline .share") == f"{expected[first]:.1%}".replace("%", " %")
    assert first in window.text("#predicted")


def test_a_picture_that_is_dropped_is_answered(window: Window) -> None:
    window.dropped(noise(1))
    assert_answered(window, 1, set())
    assert window.text("#title") == "What the class token takes"
    assert window.text("#off-told") == "All 20 patches are on."


def test_a_picture_can_be_chosen(window: Window) -> None:
    window.page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": noise(2)})
    window.page.wait_for_selector("#glass[data-state=ready]:not([data-readings='0'])")
    assert_answered(window, 2, set())
    window.page.click("#examples .tile:nth-child(2)")
    window.wait(readings=1, state="ready")
    assert window.page.get_attribute("#examples .tile:nth-child(2)", "aria-checked") == "true"


def test_pointing_at_a_patch_shows_what_it_attends_to(window: Window) -> None:
    window.dropped(noise(3))
    expected = shares(3)
    for patch in (7, 12):
        window.point(patch)
        token = EXTRA + patch
        same(window.tile("heads", 0), over_patches(expected[2, :, token].mean(dim=0)))
        for head in (0, 1):
            same(window.tile("heads", head + 1), over_patches(expected[2, head, token]))
        for block in range(3):
            same(window.tile("blocks", block), over_patches(expected[block, :, token].mean(dim=0)))
        row, column = divmod(patch, ACROSS)
        assert window.text("#title") == f"What patch {row}, {column} takes"
        best = expected[2, :, token].mean(dim=0).max().item()
        told = re.search(r"\(([\d.]+) %\)", window.text("#readout"))
        assert told and float(told[1]) == pytest.approx(100 * best, abs=0.06)
    window.page.mouse.move(5, 5)
    window.wait(asks=0)  # the class token, as before
    same(window.tile("heads", 1), over_patches(expected[2, 0, 0]))


def test_the_stage_shows_the_map_that_was_chosen(window: Window) -> None:
    window.dropped(noise(4))
    window.page.locator("#strength").fill("100")
    window.page.locator("#block").fill("1")
    window.page.click("#heads .tile:nth-child(3)")
    window.wait(block=1, head=1, shows="attention")
    expected = colours(over_patches(shares(4)[1, 1, 0]))
    script = """(canvas, [down, across]) => Array.from({ length: down * across }, (_, i) => {
        const [x, y] = [(i % across) + 0.4, Math.floor(i / across) + 0.4];
        const at = [Math.floor((x * canvas.width) / across), Math.floor((y * canvas.height) / down), 1, 1];
        return [...canvas.getContext("2d").getImageData(...at).data].slice(0, 3);
    })"""
    window.drawn()
    shown = np.array(window.page.locator("#stage canvas").evaluate(script, [DOWN, ACROSS])).reshape(DOWN, ACROSS, 3)
    assert np.abs(shown - expected.astype(int)).max() <= 4
    assert window.text("#subtitle") == "from each patch, in block 1, head 1"
    end = np.quantile(over_patches(shares(4)[1, 1, 0]), 1 - BRIGHTEST)
    assert window.text("#most") == f"≥ {100 * end:.1f} %"  # and the brightest patch has more


def test_a_click_holds_a_patch_through_blocks_and_registers_ask_too(window: Window) -> None:
    window.dropped(noise(5))
    window.page.mouse.click(*window.place(8))
    window.page.locator("#block").fill("0")
    window.wait(asks=EXTRA + 8, block=0)
    same(window.tile("heads", 2), over_patches(shares(5)[0, 1, EXTRA + 8]))
    window.page.click("#asks button:has-text('register 2')")
    window.wait(asks=2)
    same(window.tile("heads", 2), over_patches(shares(5)[0, 1, 2]))


def test_clicks_and_drags_switch_patches_off_and_the_prediction_follows(window: Window) -> None:
    window.dropped(noise(6))
    window.page.click("#brush")
    window.page.mouse.click(*window.place(0))
    assert_answered(window, 6, {0})
    window.page.mouse.move(*window.place(11))
    window.page.mouse.down()
    window.page.mouse.move(*window.place(14), steps=12)
    window.page.mouse.up()
    assert_answered(window, 6, {0, 11, 12, 13, 14})
    assert window.text("#off-told").startswith("5 of 20 patches are off.")
    window.page.mouse.click(*window.place(12))
    assert_answered(window, 6, {0, 11, 13, 14})
    window.page.click("#back")
    assert_answered(window, 6, set())


def test_everything_can_be_done_by_keyboard(window: Window) -> None:
    window.dropped(noise(7))
    window.page.focus("#stage")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowLeft"):
        window.page.keyboard.press(key)  # the first one goes to patch 0, 0
    window.wait(asks=EXTRA + 1)
    assert window.text("#said").startswith("patch 0, 1. Most from ")
    window.page.keyboard.press("ArrowUp")  # there is a border
    window.page.keyboard.press("Space")
    window.page.keyboard.press("ArrowRight")
    window.page.keyboard.press("Space")
    assert_answered(window, 7, {1, 2})
    assert "patch 0, 2, off." in window.text("#said") and "without 2 of 20 patches" in window.text("#predicted")
    window.page.keyboard.press("Space")
    assert_answered(window, 7, {1})
    window.page.keyboard.press("PageDown")
    window.wait(block=1, asks=EXTRA + 2)
    window.page.keyboard.press("Escape")
    window.wait(asks=0)
    window.page.focus("#heads [tabindex='0']")
    window.page.keyboard.press("ArrowRight")
    window.wait(head=0)
    same(window.tile("blocks", 2), over_patches(shares(7)[2, 0, 0]))


def test_every_control_is_reached_by_tab(window: Window) -> None:
    window.page.keyboard.press("Tab")
    reached = []
    for _ in range(30):
        script = "() => document.activeElement.id || document.activeElement.parentElement.id"
        reached.append(window.page.evaluate(script))
        window.page.keyboard.press("Tab")
    for name in (
        "file",
        "examples",
        "asks",
        "look",
        "brush",
        "stage",
        "strength",
        "rows",
        "heads",
        "readings",
        "block",
    ):
        assert name in reached, name
    assert reached.count("heads") == 1  # one stop for a strip: arrows go on from there


def test_rollout_and_the_maps_of_classes_are_pythons(window: Window) -> None:
    window.dropped(noise(8))
    same(window.tile("readings", 0), rollout(lively(CONFIG), images_of(noise(8)))[0])
    same(window.tile("readings", 1), class_attention(lively(CONFIG), images_of(noise(8)))[0])
    window.page.click("#readings .tile:nth-child(1)")
    window.wait(shows="rollout")
    assert window.text("#title") == "Rollout"
    window.point(4)  # who points at a patch sees what it attends to, and the rollout again when it is over
    assert (window.text("#title"), window.text("#hint")[:5]) == ("What patch 0, 4 takes", "Point")
    window.page.mouse.move(5, 5)
    window.wait(shows="rollout")
    name = list(window.rows())[2]
    window.page.click("#rows .row:nth-child(3)")
    window.wait(shows="class-attention", label=NAMES.index(name))
    expected = class_attention(lively(CONFIG), images_of(noise(8)), torch.tensor([NAMES.index(name)]))[0]
    same(window.tile("readings", 1), expected)
    assert window.text("#title") == f"Class attention for {name}"


def test_what_is_wrong_is_told_on_the_page_and_what_was_there_stays(window: Window) -> None:
    window.dropped(noise(9))
    window.drop(noise(9))
    window.drop(b"Dear Sir or Madam,\n", "letter.txt")  # while the other is still on its way
    window.page.wait_for_selector("#trouble:not([hidden])")
    assert "is not a picture that Vitral reads" in window.text("#trouble")
    window.wait(state="ready")
    assert_answered(window, 9, set())
    window.page.click("#brush")
    for patch in range(DOWN * ACROSS):
        window.page.mouse.click(*window.place(patch))
    window.page.wait_for_selector("#trouble:has-text('nothing left to look at')")
    window.page.mouse.click(*window.place(3))
    window.page.wait_for_selector("#trouble", state="hidden")
    assert_answered(window, 9, set(range(DOWN * ACROSS)) - {3})
    window.complaints = [one for one in window.complaints if "400 (Bad Request)" not in one]


def test_an_address_with_a_block_that_is_not_there_is_told(browser: Any, glass: Glass) -> None:
    for end, sentence in (
        ("block=99", "There is no block 99: the model has 3, numbered 0 to 2."),
        ("block=1&head=x", "There is no head x: the model has 2, numbered 0 to 1."),
    ):
        opened = Window(browser, f"{glass.url}#{end}")
        opened.wait(state="ready")
        assert opened.text("#trouble") == sentence
        opened.context.close()
    opened = Window(browser, f"{glass.url}#picture=99999")
    opened.wait(state="ready", readings=0)
    opened.page.wait_for_selector("#trouble:has-text('There is no picture 99999 any more.')")
    opened.context.close()


def test_after_a_reload_everything_is_as_it_was(browser: Any, glass: Glass) -> None:
    opened = Window(browser, f"{glass.url}#picture=1&block=1&head=0")
    opened.wait(state="ready", block=1, head=0, readings=1)
    opened.dropped(noise(2))
    opened.page.locator("#block").fill("2")
    opened.wait(block=2)
    opened.page.reload()
    opened.wait(state="ready", block=2, head=0)
    assert_answered(opened, 2, set())
    assert opened.complaints == []
    opened.context.close()


def test_a_server_that_has_gone_is_told(browser: Any, glass: Glass) -> None:
    opened = Window(browser, glass.url)
    opened.wait(state="ready", readings=0)
    opened.context.set_offline(True)
    opened.page.click("#examples .tile:nth-child(2)")
    opened.page.wait_for_selector("#trouble:has-text('does not answer any more')")
    opened.wait(state="ready")  # what was there can still be looked at
    opened.point(5)
    opened.context.close()


def test_a_server_that_breaks_off_in_the_middle_of_the_maps_is_told(
    browser: Any, glass: Glass, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glass.inspected, "maps", breaks_after_one_block(glass))
    opened = Window(browser, glass.url)
    opened.page.wait_for_selector("#trouble:has-text('does not answer any more')")
    opened.wait(state="ready")
    opened.context.close()


def test_maps_that_end_too_soon_are_noticed(browser: Any, glass: Glass) -> None:
    opened = Window(browser, glass.url)
    opened.wait(state="ready", readings=0)
    opened.page.route("**/1/maps", lambda route: route.fulfill(body=bytes(100)))  # a length that is true, and short
    opened.page.click("#examples .tile:nth-child(2)")
    opened.page.wait_for_selector("#trouble:has-text('does not answer any more')")
    opened.context.close()


def test_an_answer_that_comes_after_the_picture_was_put_under_again_is_dropped(window: Window) -> None:
    whole = window.rows()
    held: list[Any] = []
    window.page.route("**/answer", lambda route: held.append(route))
    window.page.click("#brush")
    window.page.mouse.click(*window.place(3))
    window.page.wait_for_selector("#off-told:has-text('1 of 20')")
    window.page.click("#examples .tile:nth-child(1)")
    window.page.wait_for_selector("#off-told:has-text('All 20')")
    window.take(held, "/answer")
    assert (window.page.get_attribute("#glass", "data-answered"), window.rows()) == ("0", whole)


def test_the_map_of_a_class_that_comes_after_another_picture_is_dropped(window: Window) -> None:
    held: list[Any] = []
    window.page.click("#examples .tile:nth-child(2)")
    window.wait(readings=1, state="ready")
    name = next(iter(window.rows()))
    end = f"/0/readings/class-attention?class={NAMES.index(name)}"
    window.page.route(f"**{end}", lambda route: held.append(route))
    window.page.click("#examples .tile:nth-child(1)")
    window.wait(readings=0, state="ready")
    window.page.click(f"#rows .row:has-text('{name}')")
    window.page.wait_for_selector(f"#title:has-text('for {name}')")
    window.page.click("#examples .tile:nth-child(2)")
    window.wait(readings=1, state="ready")
    window.page.click(f"#rows .row:has-text('{name}')")
    window.wait(label=NAMES.index(name))
    right = window.tile("readings", 1)
    window.take(held, end)
    assert window.tile("readings", 1).tolist() == right.tolist()


@pytest.mark.parametrize(
    ("tokens", "chips"),
    [
        (Tokens(kind="none", registers=2), ["register 1", "register 2"]),
        (Tokens(), ["class token"]),  # there, and nothing reads it
        (Tokens(kind="none"), []),
    ],
    ids=["registers", "unread class token", "patches alone"],
)
def test_where_the_mean_of_the_patches_is_read_they_ask(
    browser: Any, tmp_path: Path, tokens: Tokens, chips: list[str]
) -> None:
    config = CONFIG.model_copy(update={"tokens": tokens, "pool": Pool(kind="mean")})
    for server in served(weights_file(tmp_path, config)):
        opened = Window(browser, server.url)
        opened.wait(state="ready", readings=0, asks=-1)
        opened.dropped(noise(3))
        assert opened.text("#title") == "What all patches take"
        assert opened.page.locator("#asks button").all_text_contents() == [
            "all patches (mean)",
            *chips,
            "point at a patch",
        ]
        assert opened.page.get_attribute("#asks button:first-child", "aria-pressed") == "true"
        same(opened.tile("heads", 0), class_token_map(lively(config), images_of(noise(3)))[0].detach())
        for chip in chips[:1]:
            opened.page.click(f"#asks button:has-text('{chip}')")
            opened.wait(asks=0)
        opened.page.focus("#stage")
        opened.page.keyboard.press("Escape")
        opened.wait(asks=-1)
        assert opened.complaints == []
        opened.context.close()


def test_weights_without_classes_are_shown_without_a_prediction(browser: Any, tmp_path: Path) -> None:
    backbone = CONFIG.model_copy(update={"classes": 0, "head": Head(kind="none")})
    for server in served(weights_file(tmp_path, backbone)):
        opened = Window(browser, server.url)
        opened.wait(state="ready", readings=0)
        assert opened.text("#headline") == "No classes" and opened.page.locator("#readings .tile").count() == 1
        assert opened.complaints == []
        opened.context.close()


def test_where_there_are_no_examples_it_waits_for_a_picture(browser: Any, tmp_path: Path) -> None:
    bands = Preprocess(image_size=(32, 40), channels=5, mean=(0.5,) * 5, std=(0.25,) * 5)
    config = CONFIG.model_copy(update={"channels": 5})
    write_weights(tmp_path / "model.safetensors", Weights(lively(config), bands, NAMES))
    for server in served(tmp_path / "model.safetensors"):
        opened = Window(browser, server.url)
        opened.wait(state="empty")
        assert opened.text("#waiting") == "Choose a picture, or drop one here." and opened.text("#headline") == ""
        opened.point(3)  # nothing happens, and nothing breaks
        opened.page.click("#brush")
        opened.page.mouse.click(*opened.place(3))
        opened.drop(noise())
        opened.page.wait_for_selector("#trouble:has-text('3 channels, and the model takes 5')")
        file = BytesIO()
        np.save(file, np.random.default_rng(0).integers(0, 256, (32, 40, 5), np.uint8))
        opened.drop(file.getvalue())
        opened.wait(state="ready", readings=0)
        assert len(opened.rows()) == 5
        opened.context.close()


def test_a_finger_looks_and_switches_off(browser: Any, glass: Glass) -> None:
    opened = Window(browser, glass.url, width=390, touch=True)
    opened.wait(state="ready", readings=0)
    opened.dropped(noise(1))
    opened.page.touchscreen.tap(*opened.place(6))
    opened.wait(asks=EXTRA + 6)
    opened.page.click("#brush")
    opened.page.touchscreen.tap(*opened.place(6))
    assert_answered(opened, 1, {6})
    opened.context.close()


@pytest.mark.parametrize(("width", "theme"), [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")])
def test_axe_finds_nothing_and_nothing_sticks_out(browser: Any, glass: Glass, width: int, theme: str) -> None:
    opened = Window(browser, glass.url, width, theme)
    opened.wait(state="ready", readings=0)
    opened.page.click("#brush")
    opened.page.mouse.click(*opened.place(3))
    opened.wait(answered=1)
    opened.page.click("#readings .tile:nth-child(2)")
    assert opened.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert opened.complaints == []
    violations = Axe().run(opened.page).response["violations"]
    assert [
        (one["id"], one["nodes"][0]["html"]) for one in violations if one["impact"] in ("serious", "critical")
    ] == []
    opened.context.close()
