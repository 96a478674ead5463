"""Embed pictures: write the features that a model has of each as vectors.

    embeddings.npz   samples, labels, class_names, splits, vectors: all in one, for other programs
    vectors.npy      the vectors by themselves, (pictures, F) of float32, which can be memory-mapped
    embedding.json   the identity of weights and pictures, and how many rows are done
    map.png          the vectors on a plane, with the pictures on it

Vectors are written batch by batch, and none is kept in memory. After an interruption it goes on from the last shard.
"""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor

from vitral.data.config import Data
from vitral.data.decode import Picture
from vitral.data.pack import Pack, packing
from vitral.data.preprocess import Preprocess
from vitral.data.sources import open_source
from vitral.data.sources.named import data_directory
from vitral.data.threads import cores, one_core_each
from vitral.errors import RunError
from vitral.files import write_whole
from vitral.inference import Source, load_calibrated
from vitral.look.embedding_map import draw_map
from vitral.plugin import Code
from vitral.progress import Progress, Tell, drain, silent
from vitral.settings import FORMAT
from vitral.weights.own import Weights

BATCH = 32  # pictures per core
SHARD = 16 * BATCH  # pictures, after which embedding.json is written
MOST_ON_MAP = 5_000  # pictures: t-SNE takes a minute for these
FEW = 5  # pictures, below which there is no map
BLOCK = 65_536  # vectors that are compared at once

LOOKING = "looking at pictures"
ALL, VECTORS, STATE, MAP = "embeddings.npz", "vectors.npy", "embedding.json", "map.png"

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
    def labels(self) -> Ints:
        """(n,) indices into class_names."""
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
            name = index.class_names[index.labels[number]]
            neighbours.append(Neighbour(int(row), index.samples[number], name, float(cosines[row])))
        return neighbours


def embed(
    weights: Source, source: str | Path | Data, out: str | Path, *, tell: Tell = silent, code: Code = ()
) -> Embeddings:
    """Write what a model sees in each picture of a source as vectors into the folder `out`, and draw a map of them.

    `weights` is a run, what `load_pretrained` takes, or Weights; `source` what `vitral check` takes, or pictures that
    nobody has sorted into classes. The vector of a picture is what the model's head sees. The same call goes on where
    one was interrupted, and where all is done only reads it. `tell` hears how far it is.

    >>> embeddings = embed("runs/flowers", "other-flowers", "embeddings/flowers")  # doctest: +SKIP
    >>> embeddings.nearest("rose.jpg", 3)[0].label  # doctest: +SKIP
    'rose'
    """
    folder = Path(out)
    pretrained, packed = load_and_pack(weights, source, tell, code, unsorted=True)
    numbers = readable(packed)
    with _alone(folder):
        vectors = _write_vectors(pretrained, packed, numbers, folder, tell)
        embeddings = Embeddings(pretrained, packed, numbers, vectors, folder)
        if not (folder / ALL).exists():
            _write_all(embeddings, folder / ALL)
        if not (folder / MAP).exists() and len(numbers) >= FEW:
            _draw(embeddings, tell)
    return embeddings


# What probe shares


def load_and_pack(
    weights: Source, source: str | Path | Data, tell: Tell, code: Code = (), unsorted: bool = False
) -> tuple[Weights, Pack]:
    """A model, and pictures prepared as it wants them."""
    data = source if isinstance(source, Data) else Data(source=str(source))
    pretrained, _ = load_calibrated(weights, code)
    work = packing(open_source(data, unsorted), pretrained.preprocess, data_directory(data.directory))
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


def identity(weights: Weights) -> str:
    """A sha256 of config, preprocessing and weights: the same for the same numbers, whatever file they come from."""
    digest = hashlib.sha256(json.dumps([weights.model.config.write(), weights.preprocess.write()]).encode())
    for name, tensor in weights.model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


# In files


@dataclass(frozen=True)
class State:
    """The content of embedding.json."""

    format: int
    weights: str  # sha256
    pictures: str  # sha256
    shape: tuple[int, int]
    done: int = 0  # rows


def _write_vectors(pretrained: Weights, packed: Pack, numbers: Ints, folder: Path, tell: Tell) -> Floats:
    """Write the vectors of all pictures, but those that are there already; returns all, memory-mapped."""
    config = pretrained.model.config
    extract = feature_extractor(pretrained)
    one = extract(torch.zeros(1, config.channels, *pretrained.preprocess.image_size))  # (1, F)
    shape = (len(numbers), one.shape[1])
    state = State(FORMAT, identity(pretrained), packed.sha256, shape)
    path, done = folder / VECTORS, _rows_done(folder, state)
    if not done:
        for name in (STATE, ALL, MAP, "nearest.png"):  # so that nothing old is taken for new
            (folder / name).unlink(missing_ok=True)
        np.lib.format.open_memmap(path, "w+", np.float32, shape).flush()
    vectors: Floats = np.load(path, mmap_mode="r")
    assert isinstance(vectors, np.memmap)
    tell(Progress(done, len(numbers), LOOKING))
    # Not through the memory map: on a full disk that would end the process without a word.
    with path.open("r+b") as file:
        file.seek(vectors.offset + done * vectors.strides[0])
        for batch in map_pictures(extract, packed, numbers[done:], pretrained.preprocess):
            file.write(np.ascontiguousarray(batch, np.float32).data)
            done += len(batch)
            if done % SHARD == 0 or done == len(numbers):
                file.flush()
                os.fsync(file.fileno())
                write_whole(folder / STATE, json.dumps({**asdict(state), "done": done}) + "\n")
            tell(Progress(done, len(numbers), LOOKING))
    return vectors


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
    labels, names = embeddings.labels[rows], embeddings.class_names
    draw_map(embeddings.folder / MAP, places, labels, names, lambda part: embeddings.images(rows[part]), count)
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
