"""Files that are damaged at random: each is read, or refused with a sentence that is short and printable.

    python tests/fuzz.py CASES [FIRST] [TARGET…]      (make fuzz N=20000)

A case is a target and a number, which decides all that is done: `python tests/fuzz.py 1 4711 picture` repeats one.
Nothing but a VitralError may come out, no warning, nothing that takes long or much memory.
"""

import gzip
import io
import json
import lzma
import os
import random
import re
import resource
import socket
import struct
import sys
import tarfile
import tempfile
import threading
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # as in conftest.py

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitral import Classifier, Preprocess, Recipe, Run, VitralError, load_pretrained
from vitral.data.config import Data
from vitral.data.decode import decode_with_facts
from vitral.data.sources import open_source
from vitral.errors import LONGEST
from vitral.look.glass.server import Glass
from vitral.recipes import digits
from vitral.weights.calibration import Calibration, head_of
from vitral.weights.own import read_weights

HERE = Path(__file__).parent
RUN, FIXTURES = HERE / "runs" / "format-1", HERE / "fixtures"
SECONDS = 10  # of this process's time, which no case may take
MEMORY = 8 * 2**30  # bytes of address space

Files = dict[str, bytes]
Change = Callable[[bytes, random.Random], bytes]

# Changes: bytes become other bytes

EXTREMES = (0, 1, 2, 255, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)
BITING = (b"\x1b]0;title\x07", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"[" * 5_000, b"9" * 5_000, b"../../x", b"1e999")
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1e308, float("nan"), float("inf"), 10**30, "", "\x1b[31m", "x" * 10_000, "\ud800"),
    *([], {}, [[]], {"kind": "x"}, [1] * 2_000, "mine.py:Mixer", "../../etc/passwd"),
)


def flip_bits(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def swap_chunks(content: bytes, chance: random.Random) -> bytes:
    a, b, c, d = sorted(chance.randrange(len(content) + 1) for _ in range(4))
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def repeat_chunk(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content))
    end = min(len(content), start + chance.randint(1, 200))
    return content[:start] + content[start:end] * chance.choice((0, 2, 20)) + content[end:]


def insert(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + chance.choice(BITING) + content[place:]


def extreme_number(content: bytes, chance: random.Random) -> bytes:
    """Two, four or eight bytes, most often near the beginning, where the sizes stand."""
    size, order = chance.choice((2, 4, 8)), chance.choice("<>")
    number = struct.pack(f"{order}Q", chance.choice(EXTREMES))
    number = number[:size] if order == "<" else number[-size:]
    place = chance.randrange(max(1, min(len(content), chance.choice((64, 256, len(content))))))
    return content[:place] + number + content[place + size :]


def another_number(content: bytes, chance: random.Random) -> bytes:
    """A number in a text."""
    places = list(re.finditer(rb"-?\d+(\.\d+)?", content[:100_000]))
    if not places:
        return content
    match = chance.choice(places)
    number = chance.choice((b"0", b"-1", b"1e400", b"99999999999", b"0.5", b"true", b'"x"', b"9" * 4_400, b"nan"))
    return content[: match.start()] + number + content[match.end() :]


def other_values(values: Any, chance: random.Random) -> Any:
    """JSON with a value, a name or a table changed somewhere in it."""
    if isinstance(values, dict) and values and chance.random() < 0.9:
        name = chance.choice(list(values))
        match chance.randrange(8):
            case 0:
                return {key: value for key, value in values.items() if key != name}
            case 1:
                return {**values, chance.choice(("x", "\x1b[2J", "y" * 5_000, "model", "kind")): values[name]}
            case _:
                return {**values, name: other_values(values[name], chance)}
    if isinstance(values, list) and values and chance.random() < 0.7:
        place = chance.randrange(len(values))
        return [*values[:place], other_values(values[place], chance), *values[place + 1 :]]
    return [values, {"x": values}, *VALUES][chance.randrange(2 + len(VALUES))]


def change_json(content: bytes, chance: random.Random) -> bytes:
    """Valid JSON still, with other values; of several lines, one."""
    lines = content.split(b"\n")
    place = chance.randrange(len(lines)) if content.startswith(b'{"event"') else 0
    text = lines[place] if place else content
    return content.replace(text, json.dumps(other_values(json.loads(text), chance)).encode(), 1)


def change_header(content: bytes, chance: random.Random) -> bytes:
    """The header of a safetensors file, valid JSON still: dtype, shape, offsets, names, metadata."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    name = chance.choice(list(header))
    if name == "__metadata__" and "vitral" in header[name]:
        ours = other_values(json.loads(header[name]["vitral"]), chance)
        header[name]["vitral"] = json.dumps(ours)
    elif name != "__metadata__" and chance.random() < 0.8:
        match chance.randrange(5):
            case 0:
                header[name]["dtype"] = chance.choice(("F16", "BF16", "F64", "I64", "U8", "BOOL", "F8_E5M2", "X"))
            case 1:
                header[name]["shape"] = chance.choice(([], [0], [1], header[name]["shape"][::-1], [2**62, 4], [-1]))
            case 2:
                header[name]["data_offsets"][chance.randrange(2)] = chance.choice(EXTREMES)
            case 3:
                header[chance.choice((name + "x", "\x1b[2J", "blocks.99999.norm1.weight", ""))] = header.pop(name)
            case _:
                del header[name]
    else:
        header = other_values(header, chance)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def change_entries(content: bytes, chance: random.Random) -> bytes:
    """A zip's flags, methods, sizes: in the directory, before the entry, or both."""
    changed = bytearray(content)
    for mark, start in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        places = [match.start() for match in re.finditer(re.escape(mark), content)]
        if places and chance.random() < 0.8:
            place, offset = chance.choice(places) + start, chance.choice((0, 2, 8, 12, 16, 20, 22))
            changed[place + offset : place + offset + 2] = struct.pack(
                "<H", chance.choice((0, 1, 9, 12, 14, 97, 65_535))
            )
    return bytes(changed)


ANY = (flip_bits, cut, swap_chunks, repeat_chunk, insert, extreme_number)
TEXT = (*ANY, another_number, change_json, change_json, change_json)
BY_ENDING: dict[str, tuple[Change, ...]] = {
    ".safetensors": (*ANY, *[change_header] * 6),
    ".npz": (*ANY, *[change_entries] * 4),
    ".zip": (*ANY, *[change_entries] * 4),
    **dict.fromkeys((".json", ".jsonl", ".csv", ".toml", ".http"), TEXT),
}


# Targets: files that are good, and how they are read

PICTURE = np.add.outer(np.arange(0, 160, 10), np.arange(0, 80, 5)).astype(np.uint8)  # 16 × 16


@dataclass(frozen=True)
class Target:
    """Files that can be damaged, and a reader of all of them."""

    name: str
    files: Callable[[], Files]
    read: Callable[[Path], object]
    spared: tuple[str, ...] = ()  # files that stay as they are
    single: bool = False  # each case has one of the files alone


def contents(folder: Path, *names: str) -> Files:
    return {name: (folder / name).read_bytes() for name in names}


@cache
def calibrated() -> Files:
    model = read_weights(RUN / "model.safetensors").model
    width = model.config.width  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as place:
        means, metric = torch.randn(model.config.classes, width), torch.eye(width)
        made = Calibration(head_of(model), torch.tensor(1.0), means, metric, torch.tensor(2.0))
        return {**contents(RUN, "model.safetensors"), "calibration.safetensors": made.write(Path(place)).read_bytes()}


@cache
def pictures() -> Files:
    import pillow_heif

    pillow_heif.register_heif_opener()  # which also lets Pillow write
    made: Files = {}
    colour = np.stack([PICTURE, PICTURE.T, 255 - PICTURE], axis=2)
    ways: list[tuple[str, str, dict[str, Any]]] = [
        ("grey.jpg", "JPEG", {}),
        ("progressive.jpg", "JPEG", {"progressive": True}),
        ("plain.png", "PNG", {}),
        ("lossy.webp", "WEBP", {}),
        ("lossless.webp", "WEBP", {"lossless": True}),
        ("plain.bmp", "BMP", {}),
        ("film.gif", "GIF", {"save_all": True, "append_images": [Image.fromarray(PICTURE.T)]}),
        ("plain.avif", "AVIF", {"speed": 10}),
        ("plain.heic", "HEIF", {"quality": 50}),
        ("film.webp", "WEBP", {"save_all": True, "append_images": [Image.fromarray(colour[::-1])]}),
        ("film.png", "PNG", {"save_all": True, "append_images": [Image.fromarray(colour[::-1])]}),
        *(
            (f"{way}.tif", "TIFF", {"compression": way})
            for way in ("raw", "tiff_lzw", "tiff_deflate", "packbits", "jpeg")
        ),
    ]
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a picture"
    with_exif = ("JPEG", "PNG", "WEBP", "TIFF", "AVIF", "HEIF")
    for name, kind, options in ways:
        file = io.BytesIO()
        image = Image.fromarray(PICTURE if name in ("grey.jpg", "film.gif") else colour)
        image.save(file, kind, **options, **({"exif": exif} if kind in with_exif else {}))
        made[name] = file.getvalue()
    import tifffile

    arrays: dict[str, NDArray[Any]] = {"bands": np.dstack([colour, PICTURE, PICTURE]), "deep": colour.astype(np.uint16)}
    for name, values in arrays.items():
        file = io.BytesIO()
        tifffile.imwrite(file, values, photometric="minisblack", planarconfig="contig", compression="deflate")
        made[f"{name}.tif"] = file.getvalue()
        file = io.BytesIO()
        np.save(file, values)
        made[f"{name}.npy"] = file.getvalue()
    return made


@cache
def archives() -> Files:
    inside = {f"{label}/{n}.png": pictures()["plain.png"] for label in "ab" for n in range(3)}
    made: Files = {}
    for name, method in {"stored": 0, "deflated": 8, "bzip2": 12, "lzma": 14}.items():
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as archive:
            for path, content in inside.items():
                archive.writestr(path, content)
        made[f"{name}.zip"] = file.getvalue()
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for path, content in inside.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    plain = file.getvalue()
    return {**made, "plain.tar": plain, "packed.tar.gz": gzip.compress(plain), "packed.tar.xz": lzma.compress(plain)}


def tables() -> Files:
    rows = [(f"{label}{n}.png", label, split) for label in "ab" for n, split in enumerate(("train", "val", "test"))]
    lines = [{"path": path, "label": label, "split": split} for path, label, split in rows]
    return {
        "table.csv": "\n".join(["path,label,split", *(",".join(row) for row in rows)]).encode(),
        "table.tsv": "\n".join(["path\tlabel", *("\t".join(row[:2]) for row in rows)]).encode(),
        "table.jsonl": "\n".join(map(json.dumps, lines)).encode(),
        **{path: pictures()["plain.png"] for path, _, _ in rows},
    }


REQUESTS = {
    "model": "GET /api/model HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "page": "GET / HTTP/1.1\r\nHost: localhost:80\r\nSec-Fetch-Site: none\r\n\r\n",
    "picture": "GET /api/pictures/0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "png": "GET /api/pictures/0.png HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "maps": "GET /api/pictures/0/maps HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "reading": "GET /api/pictures/0/readings/rollout?class=3 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "answer": 'POST /api/pictures/0/answer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 14\r\n\r\n{"off": [3,4]}',
}


def requests() -> Files:
    upload = f"POST /api/pictures HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(pictures()['plain.png'])}\r\n\r\n"
    upload_request = upload.encode() + pictures()["plain.png"]
    return {**{f"{name}.http": text.encode() for name, text in REQUESTS.items()}, "upload.http": upload_request}


def read_weights_file(folder: Path) -> None:
    """The model answers, too, if it was read."""
    pretrained = load_pretrained(folder)
    config = pretrained.model.config
    with torch.no_grad():
        pretrained.model(torch.zeros(1, config.channels, *config.height_width))


def read_calibration(folder: Path) -> None:
    Classifier.load(folder / "model.safetensors").predict(PICTURE[:8, :8])


def read_run(folder: Path) -> None:
    run = Run.load(folder)
    for name in ("record", "recipe", "metrics", "evaluation", "baseline", "checked", "split"):
        try:
            getattr(run, name)
        except VitralError as error:
            check_sentence(error)
    Classifier.load(run).predict(PICTURE[:8, :8])


def read_picture(folder: Path) -> None:
    [path] = folder.iterdir()
    seen = Preprocess(image_size=(8, 8), channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    decode_with_facts(path)
    seen(path)


def read_source(folder: Path) -> None:
    [path] = [path for path in folder.iterdir() if not path.name.endswith(".png")]
    index = open_source(Data(source=str(path), directory=str(folder / "cache")))
    for number in range(len(index.samples)):
        try:
            decode_with_facts(index.storage.read(number), name=index.samples[number])
        except VitralError as error:
            check_sentence(error)


def read_recipe(folder: Path) -> None:
    recipe = Recipe.from_file(folder / "recipe.toml")
    assert Recipe.from_toml(recipe.to_toml()) == recipe


@cache
def glass() -> Glass:
    server = Glass.open(RUN)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def read_request(folder: Path) -> None:
    """What comes back is an answer of HTTP, or nothing; what it says is a sentence; and the next one is answered."""
    [path] = folder.iterdir()
    answer = talk(path.read_bytes())
    if answer.startswith(b"HTTP/1.1 5") and not answer.startswith((b"HTTP/1.1 501", b"HTTP/1.1 505")):
        raise AssertionError(answer[:500])
    assert b"vitral" in talk(REQUESTS["page"].encode()).lower()


def talk(request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", glass().server_address[1]), timeout=5) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)  # nothing more comes: the server need not wait for the rest
        answer = b""
        try:
            while block := connection.recv(65_536):
                answer += block
        except ConnectionResetError:
            pass
    return answer


TARGETS = {
    target.name: target
    for target in (
        Target("own weights", lambda: contents(RUN, "model.safetensors"), read_weights_file),
        Target(
            "weights of others",
            lambda: contents(FIXTURES / "hf_vit", "model.safetensors", "config.json", "preprocessor_config.json"),
            read_weights_file,
        ),
        Target("npz", lambda: contents(FIXTURES / "google_npz", "model.npz", "about.json"), read_weights_file),
        Target("calibration", calibrated, read_calibration, spared=("model.safetensors",)),
        Target(
            "run",
            lambda: contents(
                RUN, "run.json", "recipe.toml", "metrics.jsonl", "evaluation.json", "split.csv", "model.safetensors"
            ),
            read_run,
        ),
        Target("picture", pictures, read_picture, single=True),
        Target("table", tables, read_source, single=True),
        Target("archive", archives, read_source, single=True),
        Target("recipe", lambda: {"recipe.toml": digits.to_toml().encode()}, read_recipe),
        Target("request", requests, read_request, single=True),
    )
}


# Cases


@dataclass
class Tally:
    """What became of the cases of a target."""

    read: int = 0
    refused: int = 0
    slowest: float = 0.0  # seconds of this process
    slowest_case: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return self.read + self.refused + len(self.failures)


def check_sentence(error: VitralError) -> None:
    sentence = str(error)
    assert sentence.isprintable() and 0 < len(sentence) <= LONGEST, f"no sentence: {sentence[:300]!r}"


def changed(content: bytes, change: Change, chance: random.Random) -> bytes:
    try:
        return change(content, chance) if content else content
    except (ValueError, TypeError, LookupError, AttributeError):  # it is not what it was any more
        return flip_bits(content, chance)


def damaged(target: Target, number: int) -> Files:
    """The files of a case."""
    chance = random.Random(f"{target.name} {number}")
    files = target.files()
    whole = [name for name in files if name not in target.spared and not (target.name == "table" and ".png" in name)]
    name = chance.choice(whole)
    if target.single:
        files = {one: content for one, content in files.items() if one == name or one not in whole}
    changes = next((rows for ending, rows in BY_ENDING.items() if name.endswith(ending)), ANY)
    content = files[name]
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        content = changed(content, chance.choice(changes), chance)
    return {**files, name: content}


def try_case(target: Target, number: int, tally: Tally) -> None:
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for name, content in damaged(target, number).items():
            (Path(place) / name).write_bytes(content)
        started_at, said = time.process_time(), io.StringIO()
        try:
            with redirect_stderr(said):
                target.read(Path(place))
            tally.read += 1
        except VitralError as error:
            try:
                check_sentence(error)
                tally.refused += 1
            except AssertionError as wrong:
                tally.failures.append(f"case {number}: {wrong}")
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {str(error)[:200]} ({Path(last.filename).name}:{last.lineno})"
            tally.failures.append(f"case {number}: {text}")
        seconds = time.process_time() - started_at
        if seconds > tally.slowest:
            tally.slowest, tally.slowest_case = seconds, number
        if seconds > SECONDS:
            tally.failures.append(f"case {number}: took {seconds:.1f} s")
        for warning in told:
            if f"{os.sep}PIL{os.sep}" in warning.filename:
                continue  # the commands do not show those
            tally.failures.append(f"case {number}: {warning.category.__name__}: {str(warning.message)[:200]}")
        if said.getvalue():
            tally.failures.append(f"case {number}: printed {said.getvalue()[-300:]!r}")


def fuzz(target: str, cases: int, first: int = 0) -> Tally:
    """Cases `first` to `first + cases` of a target."""
    tally = Tally()
    for number in range(first, first + cases):
        try_case(TARGETS[target], number, tally)
    return tally


@contextmanager
def little_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def main() -> None:
    cases, first = (int(word) for word in (*sys.argv[1:3], "0", "0")[:2])
    names = sys.argv[3:] or list(TARGETS)
    failures = 0
    print(f"{'target':18} {'cases':>7} {'read':>7} {'refused':>8} {'failures':>9} {'slowest':>9}   peak memory")
    with little_memory():
        for name in names:
            tally = fuzz(name, -(-cases // len(names)), first)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
            kinds = Counter(re.sub(r"^case \d+: ", "", one)[:90] for one in tally.failures)
            print(
                f"{name:18} {tally.cases:7,} {tally.read:7,} {tally.refused:8,} {len(tally.failures):9,} "
                f"{tally.slowest:7.2f} s   {peak:,.0f} MiB (slowest: case {tally.slowest_case})",
                flush=True,
            )
            for kind, count in kinds.most_common(12):
                example = next(one for one in tally.failures if kind in one)
                print(f"    {count:5} × {example}", flush=True)
            failures += len(tally.failures)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
