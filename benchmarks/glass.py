"""How long the glass takes to answer: a hover, a patch that is switched off, a new picture. In a real browser.

    python benchmarks/glass.py [--times 40]

It needs Debian's chromium and playwright, as the tests do. Weights are random: time does not depend on them. The
picture is scikit-learn's flower. Each time is taken in the page, from the event to the frame after the one in which
all maps or the new probabilities were drawn, so that nobody waits longer. A hover goes to another patch each time, and
draws the stage, all heads of a block and all blocks; an occlusion switches off one more patch, and asks the model. A
picture is ready when all maps of all blocks are in the page.

Measured (40 times, a picture 5 times; median and 95th percentile in ms; torch 2.13.0, 2 cores with other work on them:
the load average was 9 to 11, so that on a quiet machine all but the hover is faster):

                     tokens    maps, MB        hover    occlusion      picture
    Ti/4 at 32 px        65         0.3     30    99      48    82     153   160
    Ti/16 at 224 px     197         2.8     30    49     103   133     165   373
    S/14 at 224 px      257         9.5     30    36     176   300     487   667

A hover takes two frames, of 16 ms each, whatever the model. What helped occlusions: one thread that computes for all
connections (with a thread each, torch starts helpers in each); one core for models of less than 4 GFLOP an image (under
load Ti/4 took 260 ms on two, and up to 2.4 s); and answers that do not wait for Nagle's algorithm (40 ms).
"""

import argparse
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitral.data.preprocess import Preprocess
from vitral.look.glass.server import Glass
from vitral.model.config import ViTConfig
from vitral.model.vit import ViT
from vitral.weights.own import Weights, write_weights

MODELS = {
    "Ti/4 at 32 px": ViTConfig(image_size=32, patch_size=4, width=192, depth=12, heads=3, classes=10),
    "Ti/16 at 224 px": ViTConfig(image_size=224, patch_size=16, width=192, depth=12, heads=3, classes=1000),
    "S/14 at 224 px": ViTConfig(image_size=224, patch_size=14, width=384, depth=12, heads=6, classes=1000),
}
ENOUGH = 300  # ms

# In the page. Each returns milliseconds.
PREPARE = """() => {
    const stage = document.getElementById("stage");
    const glass = document.getElementById("glass");
    const frame = () => new Promise((drawn) => requestAnimationFrame(drawn));
    const shown = async (started) => {
        await frame();
        await frame();
        return performance.now() - started;
    };
    const event = (kind, patch, across, down) => {
        const box = stage.querySelector("canvas").getBoundingClientRect();
        const [x, y] = [(patch % across) + 0.5, Math.floor(patch / across) + 0.5];
        const at = { clientX: box.left + (x * box.width) / across, clientY: box.top + (y * box.height) / down };
        stage.dispatchEvent(new PointerEvent(kind, { ...at, bubbles: true, pointerId: 1, pointerType: "mouse" }));
    };
    const until = (isSo) => new Promise((done) => {
        const watch = new MutationObserver(() => isSo() && (watch.disconnect(), done()));
        watch.observe(glass, { attributes: true });
    });
    stage.setPointerCapture = () => {}; // these pointers are made up
    window.measured = {
        async hover(patch, across, down) {
            const started = performance.now();
            event("pointermove", patch, across, down);
            return shown(started);
        },
        async occlusion(patch, across, down) {
            const started = performance.now();
            const answered = until(() => Number(glass.dataset.answered) === patch + 1);
            event("pointerdown", patch, across, down);
            event("pointerup", patch, across, down);
            await answered;
            return shown(started);
        },
        async picture(number) {
            const started = performance.now();
            const ready = until(() => glass.dataset.state === "ready");
            document.querySelectorAll("#examples .tile")[number].click();
            await ready;
            return shown(started);
        },
    };
}"""


def weights(folder: Path, config: ViTConfig) -> Path:
    torch.manual_seed(0)
    model = ViT(config)
    torch.nn.init.normal_(model.head.weight, std=0.02)  # it starts at zero, and all answers would be alike
    preprocess = Preprocess(image_size=config.height_width, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    names = tuple(f"class {number}" for number in range(config.classes))
    write_weights(folder / "model.safetensors", Weights(model, preprocess, names))
    return folder / "model.safetensors"


def measure(browser: Any, url: str, config: ViTConfig, times: int) -> dict[str, list[float]]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(url)
    page.wait_for_selector('#glass[data-readings="0"]')
    page.evaluate(PREPARE)
    down, across = config.grid
    count = down * across
    took: dict[str, list[float]] = {"hover": [], "occlusion": [], "picture": []}
    for time in range(max(3, times // 8)):
        took["picture"].append(page.evaluate("(number) => measured.picture(number)", (time + 1) % 2))
        page.wait_for_selector(f'#glass[data-readings="{(time + 1) % 2}"]')
        page.wait_for_timeout(300)  # its readings are on the way
    for time in range(times):
        where = [time * 7 % count, across, down]
        took["hover"].append(page.evaluate("(where) => measured.hover(...where)", where))
    page.click("#brush")
    for time in range(min(times, count - 1)):
        took["occlusion"].append(page.evaluate("(where) => measured.occlusion(...where)", [time, across, down]))
    page.close()
    return took


def told(took: list[float]) -> str:
    median, late = np.percentile(took, [50, 95])
    return f"{median:6.0f} {late:5.0f}"


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=40)
    asked = parser.parse_args()
    if (chromium := shutil.which("chromium")) is None:
        sys.exit("There is no chromium: apt-get install chromium, and try again.")
    load = os.getloadavg()[0]
    print(f"{'':19}{'tokens':>8}{'maps, MB':>12}{'hover':>13}{'occlusion':>13}{'picture':>13}")
    late = []
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        arguments = ["--headless", "--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        for name, config in MODELS.items():
            with Glass.open(weights(Path(place), config)) as server:
                threading.Thread(target=server.serve_forever, daemon=True).start()
                took = measure(browser, server.url, config, asked.times)
                server.shutdown()
                size = server.inspected.maps_bytes / 1e6
                cells = "  ".join(told(took[what]) for what in ("hover", "occlusion", "picture"))
                print(f"{name:19}{server.inspected.tokens:8}{size:12.1f} {cells}")
            late += [f"{name}: {what}" for what in ("hover", "occlusion") if np.percentile(took[what], 95) > ENOUGH]
        browser.close()
    print(
        f"\ntorch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores, load average "
        f"{load:.1f} before and {os.getloadavg()[0]:.1f} after; medians and 95th percentiles in ms"
    )
    print(f"Longer than {ENOUGH} ms: {', '.join(late) or 'none'}.")


if __name__ == "__main__":
    main()
