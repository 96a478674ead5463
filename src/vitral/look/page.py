"""Pages for a browser: each is one file that needs no network, no script and nothing beside it."""

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any


def render(template: str, values: Mapping[str, Any], **filters: Callable[[Any], str]) -> str:
    """A page from a Jinja template, which escapes all `values`. `style` in it is the CSS that all pages share.

    >>> render("<p>{{ name }}, {{ share | whole }}", {"name": "<b>", "share": 0.5}, whole="{:.0%}".format)
    '<p>&lt;b&gt;, 50%'
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= filters
    style = files("vitral.look").joinpath("page.css").read_text(encoding="utf-8")
    return environment.from_string(template).render(values, style=Markup(style))
