"""vitral doctor"""

import json
import os
import platform
import re
import shutil
import time
from dataclasses import asdict
from importlib.metadata import requires, version
from typing import Any

import click

from vitral.cli.terminal import console, print_table, table

LIBRARIES = ("numpy", "pillow", "safetensors", "pydantic", "scikit-learn", "matplotlib")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def command(as_json: bool) -> None:
    """Show what Vitral runs on here, and whether it works: for yourself, and for a report of a bug."""
    facts = {**_machine(), **_torch(), **_training()}
    if as_json:
        click.echo(json.dumps(facts, default=asdict))
        return
    listing = table("what", "found")
    for name, value in facts.items():
        listing.add_row(name, str(value))
    print_table(listing)
    console.print("\nA small ViT has learnt a step here: all is well.")
    if facts["torch"].partition("+")[0] != facts["tested with torch"]:
        console.print(
            f"This is torch {facts['torch']}; the tests are run with {facts['tested with torch']} "
            "(pip install 'vitral[tested]'). Newer ones are expected to work: tell us if one does not."
        )


def _machine() -> dict[str, Any]:
    """Versions, cores, disk and terminal, by name."""
    return {
        "vitral": version("vitral"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "free disk here": f"{shutil.disk_usage('.').free / 1e9:.1f} GB",
        "terminal": "yes" if console.is_terminal else "no: plain lines",
        "torch": version("torch"),
        "tested with torch": tested_torch(),
        **{name: version(name) for name in LIBRARIES},
    }


def tested_torch() -> str:
    """The torch that the tests are run with: the package knows it, from the extra `tested` of pyproject.toml."""
    requirements = " ".join(requires("vitral") or ())
    pin = re.search(r"torch==([\w.]+) ?; ?extra == .tested", requirements)
    return pin[1] if pin else "unknown"


def _torch() -> dict[str, Any]:
    """The device and its speed, by name; a small ViT learns a step, so that what does not work fails here."""
    import torch

    from vitral.inference import choose_device
    from vitral.model.config import ViTConfig
    from vitral.model.vit import ViT

    device = choose_device("auto")
    side = 1024
    a = torch.randn(side, side, device=device)
    _ = a @ a  # the first product also sets things up
    started_at = time.perf_counter()
    products = 5
    for _ in range(products):
        a = (a @ a).tanh()
    float(a.sum())  # waits for the device
    speed = 2 * side**3 * products / (time.perf_counter() - started_at)
    model = ViT(ViTConfig(image_size=8, patch_size=2, channels=1, width=32, depth=2, heads=2, classes=10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(4, 1, 8, 8, device=device)).logsumexp(dim=1).sum().backward()
    optimizer.step()
    return {
        "device": device.type + ("" if device.type == "cpu" else " (written for, not tested by us)"),
        "threads": torch.get_num_threads(),
        "matrix products": f"{speed / 1e9:.0f} GFLOP/s in float32",
    }


def _training() -> dict[str, Any]:
    """How fast the quick model learns here in each kind of numbers, and how near that comes to the machine's limit."""
    from vitral.cli.step_speed import measure_step, precisions
    from vitral.inference import choose_device

    device = choose_device("auto")
    return {f"training in {one}": measure_step(device, one) for one in precisions(device)}
