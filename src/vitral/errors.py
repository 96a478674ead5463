"""What Vitral says when it cannot go on. Each message is a sentence: what was given, what is accepted, what to do next.

VitralError
├── RecipeError      what was asked: a setting, a model that cannot be
├── DataError        the pictures
├── WeightsError     a file of weights
└── RunError         a run folder
"""


class VitralError(Exception):
    """All of ours: `except VitralError` catches every mistake that is not a bug."""


class RecipeError(VitralError):
    """A setting that does not exist, or a value that cannot be."""


class DataError(VitralError):
    """A picture or a set of pictures that cannot be used."""


class WeightsError(VitralError):
    """A file of weights that is damaged, altered, or not what it says it is."""


class RunError(VitralError):
    """A run folder that is missing, incomplete, or in the way."""
