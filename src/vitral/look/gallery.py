"""The explanations of many pictures on one page: `index.html`, which needs nothing but itself.

The figures, which show more of each picture, lie beside it; the page links to them, and does without them.
"""

from base64 import b64encode
from collections.abc import Sequence
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image

from vitral.files import write_whole
from vitral.look.explain import MEANINGS, Explanation
from vitral.look.grading import RANDOM
from vitral.look.overlay import overlay_map
from vitral.look.page import render
from vitral.look.sheets import as_picture
from vitral.predictions import NumberPrediction

GALLERY = "index.html"
MOST = 500  # pictures on a page: each takes about 40 kB
LARGE = 256  # pixels per side, at most
SMALL = 96  # below which the pixels are shown as squares

Card = dict[str, Any]  # the values of the template for one picture


def card(explanation: Explanation, figure: str) -> Card:
    """The values of the page for an explanation; `figure` is the name of the file beside the page."""
    picture = as_picture(explanation.picture)
    grade = explanation.grade
    return {
        "name": plain(Path(explanation.name).name),
        "says": plain(explanation.prediction.label) if explanation.prediction else "",
        "explained": plain(explanation.explained),
        "probability": explanation.prediction.probability if explanation.prediction else None,
        "is_number": isinstance(explanation.prediction, NumberPrediction),
        "unlike": explanation.unlike,
        "picture": picture_uri(picture),
        "pixelated": max(picture.size) < SMALL,
        "map": picture_uri(overlay_map(explanation.picture, explanation.map)),
        "width": picture.width,
        "height": picture.height,
        "href": quote(figure),
        "grade": grade
        and {
            "better": grade.better,
            "verdict": grade.verdict,
            "deletion": grade.deletion,
            "random": grade.random_deletion,
            "untrained": grade.untrained,
        },
    }


def write_gallery(path: Path, cards: Sequence[Card], unread: Sequence[str], model: str, method: str) -> None:
    """Write the page. `unread` has a sentence for each picture that could not be read."""
    template = files("vitral.look").joinpath("gallery.html").read_text(encoding="utf-8")
    values = {
        "model": plain(model),
        "method": method,
        "meaning": MEANINGS[method],
        "cards": cards[:MOST],
        "left_out": max(0, len(cards) - MOST),
        "unread": [plain(sentence) for sentence in unread],
        "summary": _summary(cards),
        "random": RANDOM,
    }
    page = render(template, values, share=lambda value: f"{value:.1%}", whole=lambda value: f"{value:.0%}")
    write_whole(path, page)


def _summary(cards: Sequence[Card]) -> dict[str, Any] | None:
    """How far to believe the maps, over all pictures; None: they have no grades."""
    grades = [one["grade"] for one in cards if one["grade"]]
    if not grades:
        return None
    count = len(grades)
    means = {name: sum(one[name] for one in grades) / count for name in ("deletion", "random", "untrained")}
    better, by_luck = sum(one["better"] for one in grades), count / (RANDOM + 1)
    # Twice what luck gives and more is much; what luck gives or less is nothing.
    kind = "good" if better >= 2 * by_luck and better >= count / 2 else "doubtful" if better > by_luck else "bad"
    return {"pictures": count, "better": better, "by_luck": by_luck, "kind": kind, **means}


def plain(text: str) -> str:
    """The text with a dot for each letter that cannot be seen, or would change the direction of what follows."""
    return "".join(sign if sign.isprintable() else "·" for sign in text)


def picture_uri(picture: Image.Image) -> str:
    """A picture as a data URI: small ones as PNG, large ones as a JPEG of at most LARGE pixels per side."""
    content = BytesIO()
    if max(picture.size) < SMALL:
        picture.save(content, "PNG", optimize=True)
        return as_uri(content.getvalue(), "png")
    picture = picture.copy()
    picture.thumbnail((LARGE, LARGE))
    picture.save(content, "JPEG", quality=85)
    return as_uri(content.getvalue(), "jpeg")


def as_uri(content: bytes, kind: str) -> str:
    """The bytes of an image file as a data URI."""
    return f"data:image/{kind};base64,{b64encode(content).decode('ascii')}"
