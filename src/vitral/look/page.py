"""Pages for a browser: each is one file that needs no network, no script and nothing beside it."""

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any


def rendered(template: str, told: Mapping[str, Any], **filters: Callable[[Any], str]) -> str:
    """A page from a Jinja template, which escapes all that it is told. `style` in it is what all pages have in common.

    >>> rendered("<p>{{ name }}, {{ share | whole }}", {"name": "<b>", "share": 0.5}, whole="{:.0%}".format)
    '<p>&lt;b&gt;, 50%'
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page.filters |= filters
    style = files("vitral.look").joinpath("page.css").read_text(encoding="utf-8")
    return page.from_string(template).render(told, style=Markup(style))
