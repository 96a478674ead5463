"""Shards of a million pictures are opened in little memory, and an epoch leaves it as it was."""

import hashlib
import subprocess
import sys
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitral.data.sources.shard_index import Columns, write_index

MEASURE = """
import sys
from pathlib import Path

import numpy as np
from vitral import Preprocess
from vitral.data.batches import Batches
from vitral.data.config import Augment, Data
from vitral.data.pack import pack
from vitral.data.sources import open_source


def resident(kind):
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith(kind))


seen = Preprocess(image_size=(8, 8), channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
index = open_source(Data(source=f"shards:{sys.argv[1]}"))
batches = Batches(pack(index, seen, Path()), seen, Augment(flip="random"), 500, 0)
epoch, most = [], int(sys.argv[2])
for step, batch in batches.starting_at(1):
    epoch.append(batch.samples)
    if step == 20:
        before = resident("RssAnon")
    if step == most:
        break
assert len(np.unique(np.concatenate(epoch))) == 500 * most
# Not getrusage: its most is also that of the process which started this one.
print(len(index.samples), resident("RssAnon") - before, resident("VmHWM"))
"""


def write_by_hand(folder: Path, shards: int, each: int) -> None:
    """Shards of one small picture again and again, fast: what is around the pictures in a tar, nobody reads."""
    file = BytesIO()
    Image.new("RGB", (8, 8), (200, 100, 0)).save(file, "PNG")
    picture = file.getvalue()
    block = picture.ljust(-(-len(picture) // 512) * 512, b"\0")
    content = block * each
    described, rows = [], []
    for shard in range(shards):
        name = f"train-{shard:06}.tar"
        (folder / name).write_bytes(content)
        facts = {"name": name, "size": len(content), "sha256": hashlib.sha256(name.encode()).hexdigest()}
        described.append({**facts, "pictures": each})
        offsets = np.arange(each, dtype=np.uint64) * np.uint64(len(block))
        numbers = np.arange(shard * each, (shard + 1) * each)
        rows.append(
            Columns(
                offsets,
                np.full(each, len(picture), np.uint32),
                np.full(each, zlib.crc32(picture), np.uint32),
                (numbers % 1000).astype(np.int32),
                np.zeros(each, np.uint8),
                [f"n{number % 1000:08}/n{number:08}.JPEG" for number in numbers],
            )
        )
    classes = [f"n{number:08}" for number in range(1000)]
    targets = [{"name": "label", "kind": "class", "names": classes}]
    write_index(folder, rows, {"format": 1, "shards": described, "targets": targets, "channels": 3})


@pytest.mark.slow
@pytest.mark.parametrize("shards, each, steps, most", [(100, 10_000, 40, 1024), (20, 5_000, 200, 1024)])
def test_memory_does_not_grow_with_the_pictures(tmp_path: Path, shards: int, each: int, steps: int, most: int) -> None:
    """1,000,000 pictures are indexed in under 1 GiB, torch and all; an epoch of 100,000 leaves the memory as it was."""
    write_by_hand(tmp_path, shards, each)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, tmp_path, str(steps)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    count, grown, peak = map(float, done.stdout.split())
    assert count == shards * each
    assert grown < 64 and peak < most  # MiB
    print(f"{count:,.0f} pictures: grown by {grown:.0f} MiB, at most {peak:.0f}")
