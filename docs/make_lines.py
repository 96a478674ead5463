"""Writes the line numbers of the pages' links into the code.     make reference

A link such as [`Block.forward`](../src/vitral/model/vit.py#L99) vit.py:99 names what it leads to. The numbers are
looked up here, in the file as it is; a test compares.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
LINK = re.compile(r"\[`(?P<name>[\w.]+)`\]\((?P<path>\.\./src/[^)#]+\.py)#L\d+\)( \w+\.py:\d+)?")


def with_lines(page: str) -> str:
    """The page with the numbers as they are now. A name that its file has not is an error: something was moved."""

    def link(found: re.Match[str]) -> str:
        name, path = found["name"], found["path"]
        lines = dict(_names(ast.parse((DOCS / path).read_text())))
        if name not in lines:
            raise ValueError(f"{path} has no {name}.")
        return f"[`{name}`]({path}#L{lines[name]}) {Path(path).name}:{lines[name]}"

    return LINK.sub(link, page)


def _names(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, int]]:
    """(name, line) of each class, function and value; what is in a class has its name in front."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield prefix + node.name, node.lineno
        if isinstance(node, ast.ClassDef):
            yield from _names(node, f"{prefix}{node.name}.")
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((prefix + target.id, node.lineno) for target in targets if isinstance(target, ast.Name))


if __name__ == "__main__":
    for page in DOCS.glob("*.md"):
        page.write_text(with_lines(page.read_text()))
