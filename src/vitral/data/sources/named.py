"""The sets that have a name: what they are, who made them, where their files are, and where they lie here.

Plain data. Sizes and sha256 are those that others publish for these addresses: TensorFlow Datasets (MNIST,
Fashion-MNIST, CIFAR), the PyTorch tutorials (ants-bees), Hugging Face's frgfm/imagenette (Imagenette was packed anew
once: older tables have other numbers). For `food` nobody publishes a digest.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitral.data.sources.layout import is_hidden
from vitral.data.sources.pickled import PUBLISHED
from vitral.errors import DataError, RecipeError
from vitral.settings import unknown

# How a set is opened. embedded: it comes with a library; official: read by sources/official.py; pickled: the same set
# as torchvision keeps it, read by sources/pickled.py; archive: a zip or tar of pictures, read where it is; folder:
# NAME/<split>/<class>/<picture>.
Kind = Literal["embedded", "official", "pickled", "archive", "folder"]

# Where people keep what torchvision fetched for them, beside the data directory and the user's cache.
PLACES = (".", "data", "datasets", "../data", "../datasets", "~/data", "~/datasets")


@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch."""

    url: str
    path: str  # in the data directory
    size: int  # bytes; 0 where nobody publishes it: then the server's word counts
    sha256: str = ""  # as published; empty where there is none
    members: tuple[str, ...] = ()  # of a tar: what is taken out of it, into the data directory; the tar is not kept

    @property
    def leaves(self) -> tuple[str, ...]:
        """What is in the data directory when all is done."""
        return self.members or (self.path,)


@dataclass(frozen=True)
class NamedSet:
    """A set of pictures that has a name."""

    name: str
    what: str
    pictures: int
    classes: int
    licence: str
    cite: str
    kind: Kind
    files: tuple[RemoteFile, ...] = ()
    torchvision: str = ""  # the folder in which torchvision keeps it, where it does
    instead: str = ""  # a set that can be fetched, where this one cannot

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class SetLocation:
    """Where a set lies, and how it is opened."""

    kind: Kind
    path: Path  # archive: the file; embedded: the data directory, where nothing is needed; else the folder
    note: str = ""  # a sentence, where it is not where `vitral fetch` would put it


def _idx_files(name: str, base: str, published: dict[str, tuple[int, str]]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(f"{base}/{file}", f"{name}/{file}", size, sha256) for file, (size, sha256) in published.items()
    )


def _inside(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


_SETS = (
    NamedSet(
        name="digits",
        what="handwritten digits, 8×8 grey; comes with scikit-learn",
        pictures=1_797,
        classes=10,
        licence="CC BY 4.0 (UCI)",
        cite="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository 1998",
        kind="embedded",
    ),
    NamedSet(
        name="mnist",
        what="handwritten digits, 28×28 grey",
        pictures=70_000,
        classes=10,
        licence="usually stated as CC BY-SA 3.0",
        cite="LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, 1998",
        kind="official",
        torchvision="MNIST/raw",
        files=_idx_files(
            "mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
            {
                "train-images-idx3-ubyte.gz": (
                    9_912_422,
                    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                ),
                "train-labels-idx1-ubyte.gz": (
                    28_881,
                    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                ),
                "t10k-images-idx3-ubyte.gz": (
                    1_648_877,
                    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                ),
                "t10k-labels-idx1-ubyte.gz": (
                    4_542,
                    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                ),
            },
        ),
    ),
    NamedSet(
        name="fashion-mnist",
        what="clothes, 28×28 grey",
        pictures=70_000,
        classes=10,
        licence="MIT",
        cite="Xiao, Rasul and Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017",
        kind="official",
        torchvision="FashionMNIST/raw",
        files=_idx_files(
            "fashion-mnist",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",  # the authors' address; it has no https
            {
                "train-images-idx3-ubyte.gz": (
                    26_421_880,
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                ),
                "train-labels-idx1-ubyte.gz": (
                    29_515,
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                ),
                "t10k-images-idx3-ubyte.gz": (
                    4_422_102,
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                ),
                "t10k-labels-idx1-ubyte.gz": (
                    5_148,
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                ),
            },
        ),
    ),
    NamedSet(
        name="cifar10",
        what="animals and vehicles, 32×32 colour",
        pictures=60_000,
        classes=10,
        licence="no licence stated; research use",
        cite="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, technical report, 2009",
        kind="official",
        torchvision="cifar-10-batches-py",
        files=(
            RemoteFile(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "cifar-10-binary.tar.gz",
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                _inside(
                    "cifar-10-batches-bin",
                    "data_batch_1.bin",
                    "data_batch_2.bin",
                    "data_batch_3.bin",
                    "data_batch_4.bin",
                    "data_batch_5.bin",
                    "test_batch.bin",
                    "batches.meta.txt",
                ),
            ),
        ),
    ),
    NamedSet(
        name="cifar100",
        what="a hundred kinds of things, 32×32 colour",
        pictures=60_000,
        classes=100,
        licence="no licence stated; research use",
        cite="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, technical report, 2009",
        kind="official",
        torchvision="cifar-100-python",
        files=(
            RemoteFile(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "cifar-100-binary.tar.gz",
                168_513_733,
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                _inside("cifar-100-binary", "train.bin", "test.bin", "fine_label_names.txt"),
            ),
        ),
    ),
    NamedSet(
        name="food",
        what="pizza, steak, sushi: photographs, a part of Food-101",
        pictures=300,
        classes=3,
        licence="no licence stated for the photographs; research use",
        cite="Bossard, Guillaumin and Van Gool, Food-101, ECCV 2014; chosen by Bourke, Zero to Mastery PyTorch",
        kind="archive",
        files=(
            RemoteFile(
                "https://github.com/mrdbourke/pytorch-deep-learning/raw/main/data/pizza_steak_sushi.zip",
                "pizza_steak_sushi.zip",
                15_737_296,
            ),
        ),
    ),
    NamedSet(
        name="ants-bees",
        what="ants and bees: photographs, a part of ImageNet",
        pictures=398,
        classes=2,
        licence="no licence stated; research use",
        cite="Chilamkurthy, Transfer Learning for Computer Vision, PyTorch tutorials; pictures from ImageNet",
        kind="archive",
        files=(
            RemoteFile(
                "https://download.pytorch.org/tutorial/hymenoptera_data.zip",
                "hymenoptera_data.zip",
                47_286_322,
                "fbc41b31d544714d18dd1230b1e2b455e1557766e13e67f9f5a7a23af7c02209",
            ),
        ),
    ),
    NamedSet(
        name="imagenette",
        what="ten easy classes of ImageNet, short side 160",
        pictures=13_394,
        classes=10,
        licence="Apache-2.0 for the selection; the pictures under ImageNet's terms, research use",
        cite="Howard, Imagenette, https://github.com/fastai/imagenette, 2019",
        kind="archive",
        files=(
            RemoteFile(
                "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz",
                "imagenette2-160.tgz",
                99_003_388,
                "64d0c4859f35a461889e0147755a999a48b49bf38a7e0f9bd27003f10db02fe5",
            ),
        ),
    ),
    NamedSet(
        name="imagenette-mini",
        what="800 pictures of Imagenette, 224×224; cannot be fetched",
        pictures=800,
        classes=10,
        licence="as imagenette",
        cite="Howard, Imagenette, https://github.com/fastai/imagenette, 2019",
        kind="folder",
        instead="imagenette",
    ),
)
NAMED = {dataset.name: dataset for dataset in _SETS}


def named(name: str) -> NamedSet:
    """The set of this name."""
    if name not in NAMED:
        raise RecipeError(unknown(name, list(NAMED), "named set"))
    return NAMED[name]


def data_directory(directory: str = "auto") -> Path:
    """Where named sets lie: this directory, or for "auto" $VITRAL_DATA, or the user's cache."""
    if directory != "auto":
        return Path(directory).expanduser()
    if place := os.environ.get("VITRAL_DATA"):
        return Path(place).expanduser()
    return _cache() / "vitral"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()


def find(dataset: NamedSet, directory: str = "auto") -> SetLocation | None:
    """Where the set lies: in the data directory; and where nobody names one, where torchvision may have put it."""
    if found := locate(dataset, data_directory(directory)):
        return found
    places = (*(Path(place).expanduser() for place in PLACES), _cache()) if directory == "auto" else ()
    return next((found for place in places if (found := _kept_by_torchvision(dataset, place))), None)


def locate(dataset: NamedSet, directory: Path) -> SetLocation | None:
    """Where the set lies in one directory, if it is there whole: its official files, torchvision's, a folder, or its
    archive."""
    if dataset.kind == "embedded":
        return SetLocation("embedded", directory)
    complete = bool(dataset.files) and not missing_files(dataset, directory)
    if complete and dataset.kind == "official":
        return SetLocation("official", (directory / dataset.files[0].leaves[0]).parent)
    if kept := _kept_by_torchvision(dataset, directory):
        return kept
    folder = directory / dataset.name
    if folder.is_dir() and any(path.is_dir() and not is_hidden(path.name) for path in folder.iterdir()):
        return SetLocation("folder", folder)
    if complete and dataset.kind == "archive":
        return SetLocation("archive", directory / dataset.files[0].path)
    return None


def _kept_by_torchvision(dataset: NamedSet, directory: Path) -> SetLocation | None:
    folder = directory / dataset.torchvision
    kind: Kind = "pickled" if dataset.name in PUBLISHED else "official"
    names = PUBLISHED.get(dataset.name) or [Path(file.path).name for file in dataset.files]
    if not dataset.torchvision or not all(_is_here(folder / name) for name in names):
        return None
    return SetLocation(kind, folder, f"{dataset.name} was found in {folder}, as torchvision keeps it.")


def missing_files(dataset: NamedSet, directory: Path) -> list[RemoteFile]:
    """Those of its files that are not in the data directory; unpacked idx files count as well."""
    return [file for file in dataset.files if not all(_is_here(directory / leaf) for leaf in file.leaves)]


def _is_here(path: Path) -> bool:
    # Not path.is_file(): it raises an error where the user may not look.
    return os.path.isfile(path) or (path.name.endswith("-ubyte.gz") and os.path.isfile(path.with_suffix("")))


def not_here(dataset: NamedSet, directory: Path) -> DataError:
    """The sentence for a set that is not found."""
    if not dataset.files:
        other = f" Or take all of {dataset.instead}: vitral fetch {dataset.instead}, and data.source={dataset.instead}."
        return DataError(
            f"{dataset.name} is not in the data directory {directory}, and there is no address to fetch it from. "
            f"Put it there as a folder: {dataset.name}/<split>/<class>/<picture>.{other if dataset.instead else ''}"
        )
    leaves = [leaf for file in dataset.files for leaf in file.leaves]
    lacking = [leaf for leaf in leaves if not _is_here(directory / leaf)]
    some = f"complete ({', '.join(lacking)} missing)" if len(lacking) < len(leaves) else "here"
    kept = f" (torchvision's {dataset.torchvision} will do)" if dataset.torchvision else ""
    return DataError(
        f"{dataset.name} is not {some} in the data directory {directory}. Fetch it ({dataset.size / 1e6:.0f} MB): "
        f"VITRAL_DATA={directory} vitral fetch {dataset.name}. "
        f"Or say where it is{kept}: data.directory=… or VITRAL_DATA."
    )
