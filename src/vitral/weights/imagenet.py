"""The thousand classes of ImageNet, in the order in which everybody's heads have them."""

from functools import cache
from importlib.resources import files


@cache
def imagenet_classes() -> dict[str, str]:
    """WordNet's number of each class, and a name for people.

    >>> imagenet_classes()["n01440764"], list(imagenet_classes().values())[574]
    ('tench', 'golf ball')
    """
    lines = (files("vitral.weights") / "imagenet.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines)
