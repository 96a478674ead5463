"""Embed pictures: write the features that a model has of each as vectors.

    embeddings.npz   samples, labels, class_names, splits, vectors: all in one, for other programs
    pictures.csv     sample, split, and a column for what is known of each picture (one a target), in the same order
    vectors.npy      the vectors by themselves, (pictures, F) of float32, which can be memory-mapped
    embedding.json   the identity of weights and pictures, and how many rows are done
    map.png          the vectors on a plane, with the pictures on it
    patches.npz      where it is asked for: samples, grid (down, across), tokens (pictures, patches, D) of float16

Vectors are written batch by batch, and none is kept in memory. After an interruption it goes on from the last shard.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.config import Data
from vitral.data.decode import Picture
from vitral.data.pack import Pack, packing
from vitral.data.preprocess import Preprocess
from vitral.data.sources import Index, open_source
from vitral.data.sources.named import data_directory
from vitral.data.threads import cores, one_core_each
from vitral.errors import RunError
from vitral.files import as_csv, write_whole
from vitral.inference import Source, load_calibrated
from vitral.look.embedding_map import draw_map
from vitral.plugin import Code
from vitral.processes import Processes
from vitral.progress import Progress, Tell, drain, silent
from vitral.rounds import Rounds, Rows
from vitral.settings import FORMAT
from vitral.targets import columns, require_one_class
from vitral.weights.own import Weights, identity

BATCH = 32  # pictures per core
SHARD = BATCH * max(16, 4 * cores())  # pictures, after which embedding.json is written, and all wait for the last one
MOST_ON_MAP = 5_000  # pictures: t-SNE takes a minute for these
FEW = 5  # pictures, below which there is no map
BLOCK = 65_536  # vectors that are compared at once

LOOKING = "looking at pictures"
ALL, TABLE, VECTORS, STATE, MAP = "embeddings.npz", "pictures.csv", "vectors.npy", "embedding.json", "map.png"
PATCHES = "patches.npz"

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Neighbour(NamedTuple):
    """A picture that is like another one."""

    number: int  # its row
    sample: str
    label: str
    similarity: float  # the cosine: 1 is the same direction


@dataclass(frozen=True)
class Embeddings:
    """Vectors of all pictures of a source that can be read; row i of each belongs together."""

    weights: Weights
    pack: Pack
    numbers: Ints  # (n,) of the pictures in the pack
    vectors: Floats  # (n, F), memory-mapped
    folder: Path

    @property
    def samples(self) -> list[str]:
        """The names of the pictures."""
        return [self.pack.index.samples[number] for number in self.numbers]

    @property
    def labels(self) -> NDArray[Any]:
        """(n,) indices into class_names; of other targets than one class (n, outputs), what each output should be."""
        return self.pack.index.labels[self.numbers]

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.pack.index.class_names

    @property
    def splits(self) -> NDArray[np.str_]:
        """(n,) train, validation or test."""
        return self.pack.index.splits[self.numbers]

    def images(self, rows: Ints) -> NDArray[np.uint8]:
        """Some of the pictures as the model sees them: (rows, C, H, W)."""
        return self.weights.preprocess.centre(self.pack.images[self.numbers[rows]])

    def nearest(self, picture: Picture, count: int = 8) -> list[Neighbour]:
        """The `count` pictures whose vectors have the highest cosine with that of `picture`, the nearest first."""
        images = self.weights.preprocess(picture)[None]  # (1, C, H, W)
        direction = _directions(feature_extractor(self.weights)(images).numpy())[0]  # (F,)
        starts = range(0, len(self.vectors), BLOCK)
        cosines = np.concatenate([_directions(self.vectors[at : at + BLOCK]) @ direction for at in starts])
        index = self.pack.index
        neighbours = []
        for row in np.argsort(-cosines, kind="stable")[:count]:
            number = self.numbers[row]
            name = index.label_of(int(number))
            neighbours.append(Neighbour(int(row), index.samples[number], name, float(cosines[row])))
        return neighbours


def embed(
    weights: Source,
    source: str | Path | Data,
    out: str | Path,
    *,
    tell: Tell = silent,
    patches: bool = False,
    code: Code = (),
    processes: Processes | None = None,
) -> Embeddings:
    """Write what a model sees in each picture of a source as vectors into the folder `out`, and draw a map of them.

    `weights` is a run, what `load_pretrained` takes, or Weights; `source` what `vitral check` takes, or pictures that
    nobody has sorted into classes. The vector of a picture is what the model's head sees. The same call goes on where
    one was interrupted, and where all is done only reads it. `tell` hears how far it is. Of several `processes` each
    looks at a share of the pictures, and the first one writes; only who sees its folder has the vectors then. With
    `patches` the tokens of all patches are written too, after the last block and its norm: by the first process, whole
    or not at all.

    >>> embeddings = embed("runs/flowers", "other-flowers", "embeddings/flowers")  # doctest: +SKIP
    >>> embeddings.nearest("rose.jpg", 3)[0].label  # doctest: +SKIP
    'rose'
    """
    folder, processes = Path(out), processes or Processes()
    pretrained, packed = load_and_pack(weights, source, tell, code=code, unsorted=True)
    processes.agree({"weights": identity(pretrained), "pictures": packed.sha256})
    numbers = readable(packed)
    with _alone(folder) if processes.first else nullcontext():
        vectors = _write_vectors(pretrained, packed, numbers, folder, Rounds(processes, tell))
        embeddings = Embeddings(pretrained, packed, numbers, vectors, folder)
        if not processes.first:
            return embeddings
        if not (folder / ALL).exists():
            _write_all(embeddings, folder / ALL)
        if not (folder / TABLE).exists():
            _write_table(embeddings, folder / TABLE)
        if not (folder / MAP).exists() and len(numbers) >= FEW:
            _draw(embeddings, tell)
        if patches and not (folder / PATCHES).exists():
            _write_patches(embeddings, folder / PATCHES, tell)
    return embeddings


# What probe shares


def load_and_pack(
    weights: Source,
    source: str | Path | Data | Index,
    tell: Tell,
    of_one_class: str = "",
    code: Code = (),
    unsorted: bool = False,
) -> tuple[Weights, Pack]:
    """A model, and pictures prepared as it wants them. `of_one_class` names what needs one class a picture, and is
    refused for others."""
    data = source if isinstance(source, Data) else Data() if isinstance(source, Index) else Data(source=str(source))
    pretrained, _ = load_calibrated(weights, code)
    index = source if isinstance(source, Index) else open_source(data, unsorted, tell)
    if of_one_class:
        require_one_class(index.targets, index.source, of_one_class)
    work = packing(index, pretrained.preprocess, data_directory(data.directory))
    return pretrained, drain(work, tell)


def readable(packed: Pack) -> Ints:
    """The numbers of all pictures that can be read."""
    numbers = np.arange(len(packed.index.samples))
    return numbers[~np.isin(numbers, list(packed.left_out))] if packed.left_out else numbers


def map_pictures(
    encode: Callable[[Tensor], Tensor], packed: Pack, numbers: Ints, preprocess: Preprocess
) -> Iterator[Floats]:  # each (b, F)
    """The features by `encode`, (B, C, H, W) → (B, F), of these pictures, in order: a batch per core, and few ahead."""

    def one(samples: Ints) -> Floats:
        return encode(preprocess.normalise(torch.from_numpy(preprocess.centre(packed.images[samples])))).numpy()

    with one_core_each() as pool:
        ahead: deque[Future[Floats]] = deque()
        for start in range(0, len(numbers), BATCH):
            ahead.append(pool.submit(one, numbers[start : start + BATCH]))
            if len(ahead) > cores():
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def feature_extractor(weights: Weights) -> Callable[[Tensor], Tensor]:
    """A function from images to the input of the model's head: (B, C, H, W) → (B, F)."""
    model = weights.model

    @torch.inference_mode()
    def extract(images: Tensor) -> Tensor:
        return model.pool(model.head_tokens(images))

    return extract


# In files


@dataclass(frozen=True)
class State:
    """The content of embedding.json."""

    format: int
    weights: str  # sha256
    pictures: str  # sha256
    shape: tuple[int, int]
    done: int = 0  # rows


def _write_vectors(pretrained: Weights, packed: Pack, numbers: Ints, folder: Path, rounds: Rounds) -> Floats:
    """Write the vectors of all pictures, but those that are there already; returns all, memory-mapped."""
    config = pretrained.model.config
    extract = feature_extractor(pretrained)
    one = extract(torch.zeros(1, config.channels, *pretrained.preprocess.image_size))  # (1, F)
    shape = (len(numbers), one.shape[1])
    state = State(FORMAT, identity(pretrained), packed.sha256, shape)
    path, done = folder / VECTORS, rounds.processes.decide(lambda: _begin_vectors(folder, state))

    def look(rows: range) -> Rows:
        parts, place = [], rows.start
        for batch in map_pictures(extract, packed, numbers[rows.start : rows.stop], pretrained.preprocess):
            parts.append(batch)
            rounds.tell(Progress(place := place + len(batch), len(numbers), LOOKING))
        return {"vectors": np.concatenate(parts)}

    each = rounds.processes.tell(SHARD)  # their machines may have more cores or fewer
    shards = rounds.of(len(numbers), each, look, LOOKING, done)
    if not rounds.processes.first:
        for _ in shards:
            pass
        return np.load(path, mmap_mode="r") if path.exists() else np.empty((0, shape[1]), np.float32)
    vectors: Floats = np.load(path, mmap_mode="r")
    assert isinstance(vectors, np.memmap)
    # Not through the memory map: on a full disk that would end the process without a word.
    with path.open("r+b") as file:
        file.seek(vectors.offset + done * vectors.strides[0])
        for shard in shards:
            file.write(np.ascontiguousarray(shard["vectors"], np.float32).data)
            done += len(shard["vectors"])
            file.flush()
            os.fsync(file.fileno())
            write_whole(folder / STATE, json.dumps({**asdict(state), "done": done}) + "\n")
    return vectors


def _begin_vectors(folder: Path, state: State) -> int:
    """How many rows are done; where none is, the file for all."""
    done = _rows_done(folder, state)
    if not done:
        for name in (STATE, ALL, TABLE, MAP, PATCHES, "nearest.png"):  # so that nothing old is taken for new
            (folder / name).unlink(missing_ok=True)
        np.lib.format.open_memmap(folder / VECTORS, "w+", np.float32, state.shape).flush()
    return done


def _rows_done(folder: Path, state: State) -> int:
    """How many rows the folder has of the same weights and pictures."""
    try:
        previous = json.loads((folder / STATE).read_text(encoding="utf-8"))
        done = int(previous.pop("done"))
        same = previous == json.loads(json.dumps({k: v for k, v in asdict(state).items() if k != "done"}))
        there = np.load(folder / VECTORS, mmap_mode="r").shape == state.shape
        return done if same and there else 0
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0


def _write_all(embeddings: Embeddings, path: Path) -> None:
    """Write embeddings.npz, whole or not at all; not by bytes, since a million vectors are close to a gigabyte."""
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        np.savez(
            file,
            samples=np.array(embeddings.samples),
            labels=embeddings.labels,
            class_names=np.array(embeddings.class_names),
            splits=embeddings.splits,
            vectors=embeddings.vectors,
        )
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _write_patches(embeddings: Embeddings, path: Path, tell: Tell) -> None:
    """Write the tokens of all patches. They pass through a file: of ViT-B/16 those of 1,000 pictures are 300 MB."""
    model, preprocess, numbers = embeddings.weights.model, embeddings.weights.preprocess, embeddings.numbers

    @torch.inference_mode()
    def extract(images: Tensor) -> Tensor:  # (B, C, H, W) → (B, N, D)
        return model.patch_tokens(model.features(images)).half()

    nothing = torch.zeros(1, model.config.channels, *preprocess.image_size)
    shape, done = (len(numbers), *extract(nothing).shape[1:]), 0
    grid, parts = np.array(model.grid_of(nothing)), [path.with_name(f".patches.{kind}.part") for kind in ("npy", "npz")]
    tokens = np.lib.format.open_memmap(parts[0], "w+", np.float16, shape)
    for batch in map_pictures(extract, embeddings.pack, numbers, preprocess):
        tokens[done : done + len(batch)] = batch
        tell(Progress(done := done + len(batch), len(numbers), "looking at patches"))
    with parts[1].open("wb") as file:
        np.savez(file, samples=np.array(embeddings.samples), grid=grid, tokens=tokens)
        file.flush()
        os.fsync(file.fileno())
    parts[1].replace(path)
    parts[0].unlink()


def _write_table(embeddings: Embeddings, path: Path) -> None:
    """Write pictures.csv: the same rows for a spreadsheet."""
    index = embeddings.pack.index
    rows = (
        (index.samples[number], str(index.splits[number]), *index.words_of(int(number)))
        for number in embeddings.numbers
    )
    write_whole(path, as_csv(("sample", "split", *(target.name for target in index.targets)), rows))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that one process at a time writes embeddings there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(f"Another process is writing to {folder}. Wait for it, or choose another place.") from None
    except OSError as error:
        raise RunError(f"{folder} cannot be written ({error.strerror}). Choose another place.") from None
    try:
        yield
    except OSError as error:
        raise RunError(f"{folder} cannot be written ({error.strerror or error}). What was done is kept.") from None
    finally:
        lock.release()


# On a plane


def _draw(embeddings: Embeddings, tell: Tell) -> None:
    count = len(embeddings.numbers)
    rows = np.sort(np.random.default_rng(0).permutation(count)[:MOST_ON_MAP])
    tell(Progress(0, 1, "making a map"))
    places = on_a_plane(_directions(embeddings.vectors[rows]))
    targets, labels = embeddings.pack.index.targets, embeddings.labels[rows]
    # Of several targets the first: a frame has one colour.
    outputs = labels[:, None] == np.arange(targets[0].outputs) if labels.ndim == 1 else labels[:, columns(targets)[0]]
    draw_map(embeddings.folder / MAP, places, targets[0], outputs, lambda part: embeddings.images(rows[part]), count)
    tell(Progress(1, 1, "making a map"))


def on_a_plane(vectors: Floats) -> Floats:  # (n, F) → (n, 2)
    """The vectors on a plane by t-SNE: what is near stays near; how far apart distant ones lie, and how large a group
    is, means nothing."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    few = PCA(min(50, *vectors.shape), random_state=0).fit_transform(vectors)
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(few)


def _directions(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
