"""What Vitral says when it cannot go on. Each message is a sentence: what was given, what is accepted, what to do next.

VitralError
├── RecipeError      what was asked: a setting, a model that cannot be
├── DataError        the pictures
├── WeightsError     a file of weights
└── RunError         a run folder
"""

LONGEST = 1_000  # characters of a message: what it quotes comes from files, and a file may hold a name of a million


class VitralError(Exception):
    """All of ours: `except VitralError` catches every mistake that is not a bug. Its message is safe to print."""

    def __init__(self, message: str = "") -> None:
        super().__init__(_shorten(printable(_shorten(message))))


def printable(text: str, keep: str = "") -> str:
    r"""A text with newlines, control characters and bytes that are no text spelt out, but for those to `keep`: names
    come from files, and must not steer a terminal or hide what they are.

    >>> printable("new\nline \x1b]0;title")
    'new\\nline \\x1b]0;title'
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in keep else repr(sign)[1:-1] for sign in text)


def _shorten(text: str) -> str:
    """The beginning, which says what is wrong, and the end, which says what to do."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST * 2 // 3]} … {text[-LONGEST // 4 :]}"


class RecipeError(VitralError):
    """A setting that does not exist, or a value that cannot be."""


class DataError(VitralError):
    """A picture or a set of pictures that cannot be used."""


class WeightsError(VitralError):
    """A file of weights that is damaged, altered, or not what it says it is."""


class RunError(VitralError):
    """A run folder that is missing, incomplete, or in the way."""
