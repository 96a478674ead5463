"""What a person sees who opens the address of a server: its models, how to ask them, and all addresses."""

from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files

from vitral.deploy.serve.facts import ModelFacts
from vitral.deploy.serve.openapi import STATUSES, about, openapi
from vitral.look.page import render

NAMES = 12  # classes that are named

OWN_STYLE = """
main, header, footer { max-width: 860px; }
h2 { font-size: 20px; line-height: 1.3; margin: 40px 0 8px; }
h3 { font-size: 17px; margin: 0; }
code, pre { font: 13.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { background: var(--raised); border: 1px solid var(--line); border-radius: 6px; padding: 12px 14px; margin: 10px 0;
  white-space: pre-wrap; }
.model { border: 1px solid var(--line); border-radius: 8px; padding: 16px 20px; margin: 14px 0; }
details { border-bottom: 1px solid var(--line); padding: 9px 0; }
summary { cursor: pointer; } summary code { font-weight: 600; }
summary:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.method { display: inline-block; min-width: 3.6em; color: var(--soft); }
table { border-collapse: collapse; margin: 8px 0; } td { padding: 3px 18px 3px 0; vertical-align: top; }
td:first-child { white-space: nowrap; }
"""
STYLE = files("vitral.look").joinpath("page.css").read_text(encoding="utf-8") + OWN_STYLE
TEMPLATE = files("vitral.deploy.serve").joinpath("page.html").read_text(encoding="utf-8")


def page(models: Mapping[str, ModelFacts], place: str, has_tokens: bool, has_glass: bool = True) -> str:
    """The page of a server that is asked at `place`, as host:port."""
    addresses = [
        (
            method.upper(),
            path,
            operation["summary"],
            [(one["name"], one.get("description", "")) for one in operation.get("parameters", [])],
            list(operation.get("requestBody", {}).get("content", {})),
        )
        for path, methods in openapi(models)["paths"].items()
        for method, operation in methods.items()
    ]
    values = {
        "models": [(one, about(one), *_names(one)) for one in models.values()],
        "place": place,
        "has_tokens": has_tokens,
        "has_glass": has_glass,
        "addresses": addresses,
        "statuses": STATUSES,
        "version": version("vitral"),
    }
    return render(TEMPLATE, values)


def _names(facts: ModelFacts) -> tuple[list[str], int]:
    """The first names of what it tells, and how many more there are."""
    names = [name for target in facts.targets for name in target.names]
    return names[:NAMES], max(0, len(names) - NAMES)
