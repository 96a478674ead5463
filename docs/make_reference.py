"""Writes docs/reference.md from the commands, the settings and the public names themselves.     make reference

What the page says of them are their own help texts, descriptions and docstrings: to change it, change those. A test
compares the page with what this makes.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import vitral
from vitral.cli import COMMANDS
from vitral.cli import vitral as command_line
from vitral.recipe import Recipe

PAGE = Path(__file__).with_name("reference.md")
WIDE = 92  # characters that a line of code has on the page

# In which order one comes across them. A public name that is missing here is put under the last heading.
SECTIONS = {
    "The model": ("ViTConfig", "ViT", "patchify", "unpatchify"),
    "Training": ("Recipe", "train", "events", "Progress", "Started", "Step", "Epoch", "Saved", "Finished"),
    "What is left behind": ("Run", "evaluate", "Evaluation"),
    "Using it": ("Classifier", "Prediction", "Preprocess", "attention_maps"),
    "Weights of others": ("load_pretrained", "Pretrained", "probe", "embed"),
    "Errors, and the rest": ("VitralError", "RecipeError", "DataError", "WeightsError", "RunError", "__version__"),
}

# What is promised of a class that has more for its own rooms.
MEMBERS = {
    "ViTConfig": ("named", "height_width", "grid", "mlp_size"),
    "ViT": ("embed", "features", "pool", "logits", "forward", "at", "initialise"),
    "Recipe": ("changed", "to_toml", "from_toml", "from_file"),
    "Run": ("load", "recipe", "record", "metrics", "evaluation", "split", "weights"),
    "Evaluation": ("pictures", "loss", "accuracy", "metrics", "confusion", "groups", "write"),
    "Classifier": ("load", "predict", "each"),
    "Preprocess": ("resized", "normalise"),
}
MADE_ELSEWHERE = ("Classifier", "Evaluation")  # by `load` and by `evaluate`, never by hand
INSTANCES = {"ViT": "model", "ViTConfig": "config"}  # what one of them is called; else as its class, in small letters

INTRODUCTION = """\
# Reference

<!-- Made by `make reference` (docs/make_reference.py). What it says stands in the code: change it there. -->

All commands, all settings of a recipe, all public names. These, and [the stored schema](schema.md), are what Vitral
promises to keep.

## Commands
"""

WORDS = """\
**What they take.** A RECIPE is a name (`vitral ls`), a TOML file, or a recipe in a Python file (`mine.py:flowers`);
settings of the form `KEY=VALUE` may follow it. A RUN is a run folder. WEIGHTS are a file or a folder of anybody's
weights, a name in `weights/` of the data directory, or `hf:org/model`. `--help` after a command shows what is
said here.

**What they give.** Commands with `--json` print JSON for programs. Exit codes are 0, 1 where it failed, 2 where it was
called wrongly and 130 after Ctrl-C ([more](engineer.md#from-other-languages)). Colour and bars appear on a terminal
only; `NO_COLOR=1` turns colour off.

**Completion.** To have commands, recipes and settings completed by the Tab key, put this into `~/.bashrc` (zsh and
fish: `zsh_source`, `fish_source`):

```bash
eval "$(_VITRAL_COMPLETE=bash_source vitral)"
```
"""

SETTINGS = """\
## Settings

What `KEY=VALUE` can be on the command line, a line of a recipe's TOML file, and what `recipe.changed({"KEY": VALUE})`
takes in Python. `vitral show RECIPE` prints them with the values of a recipe. A part such as `model.mlp` is a word, or
a table with `kind` and settings of its own, which stand below it; where they depend on the word, each word is
named with its default. [The schema](schema.md#recipe-toml) says more of each.
"""

PYTHON = """\
## Python

All of it is imported from `vitral` itself, which loads torch when a name needs it, not before. The named recipes are in
`vitral.recipes`.
"""


def reference() -> str:
    """The whole page."""
    parts = [INTRODUCTION, _overview(), WORDS, *map(_command, COMMANDS)]
    parts += [SETTINGS, *(_settings(name, field) for name, field in Recipe.model_fields.items())]
    parts += [PYTHON, *(_section(title, names) for title, names in _sections().items())]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _overview() -> str:
    rows = [f"| [`{name}`](#vitral-{name}) | {what} |" for name, what in COMMANDS.items()]
    return "\n".join(["| command | what it does |", "|:---|:---|", *rows])


def _command(name: str) -> str:
    command = command_line.get_command(click.Context(command_line), name)
    assert command is not None
    context = click.Context(command, info_name=f"vitral {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"### vitral {name}", "", "```text", f"vitral {name} {usage}", "```", ""]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        shown = paragraph.removeprefix("\b\n")
        as_typed = ["```text", textwrap.dedent(shown), "```"]
        lines += [*as_typed, ""] if shown != paragraph else [_escaped(paragraph), ""]
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    if rows := [_option(option, context) for option in options]:
        lines += ["| option | what it does |", "|:---|:---|", *rows]
    return "\n".join(lines)


def _option(option: click.Option, context: click.Context) -> str:
    """As click tells it, without its words for what a range is: `30.0; x>=0`."""
    name, what = option.get_help_record(context) or ("", "")
    what = re.sub(r"; [^\]]*<?=[^\]]*\]", "]", what)
    what = re.sub(r"\s*\[[^\]]*x[<>]?=[^\]]*\]", "", re.sub(r"\[default: ([^\]]*)\]", r"(default: \1)", what))
    return f"| `{_cell(name.replace(' RANGE', ''))}` | {_cell(what)} |"


def tables_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The tables of settings in an annotation: `Muon | AdamW` has two, `int` has none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from tables_in(part)


def _settings(name: str, field: FieldInfo) -> str:
    """A table of the recipe: a row for each setting, those of a part below it."""
    table, *_ = tables_in(field.annotation)  # of a model the first: the others are of somebody's own
    rows = [f"| `{key}` | {default} | {_cell(what)} |" for key, default, what in _rows(table, f"{name}.")]
    return "\n".join([f"### [{name}]", "", "| setting | default | what it is |", "|:---|:---|:---|", *rows])


def _rows(table: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in table.model_fields.items():
        parts = list(tables_in(field.annotation))
        grouped = bool(parts) and "kind" not in parts[0].model_fields  # a table that is no part: [data.augment]
        if not grouped:
            yield prefix + name, _value(field), _words(field)
        if grouped:
            yield from _rows(parts[0], f"{prefix}{name}.")
        else:
            yield from _rows_of_part(parts, f"{prefix}{name}.")


def _rows_of_part(parts: list[type[BaseModel]], prefix: str) -> Iterator[tuple[str, str, str]]:
    """The settings that its words have, each once; which word has which default, if they differ."""
    found: dict[str, list[tuple[str, FieldInfo]]] = {}
    for part in parts:
        for name, field in part.model_fields.items():
            if name != "kind":
                found.setdefault(name, []).append((str(part.model_fields["kind"].default), field))
    for name, fields in found.items():
        values = {_value(field) for _, field in fields}
        each = ", ".join(f"{kind} {_value(field)}" for kind, field in fields)
        what = next(filter(None, (_words(field) for _, field in fields)), "")
        if len(values) == 1 and len(fields) == len(parts):
            yield prefix + name, values.pop(), what
        else:
            yield prefix + name, "", "; ".join(filter(None, [each, what]))


def _value(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.default
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, tuple):
        value = list(value)
    return f"`{value}`"


def _words(field: FieldInfo) -> str:
    """What it is; before it, the other words that it may be."""
    others = [word for word in get_args(field.annotation) if isinstance(word, str) and word != field.default]
    said = [f"or {', '.join(f'`{word}`' for word in others)}"] if others else []
    return "; ".join([*said, *filter(None, [field.description])])


def _sections() -> dict[str, tuple[str, ...]]:
    sections = dict(SECTIONS)
    *_, last = sections
    known = {name for names in sections.values() for name in names}
    sections[last] += tuple(sorted(set(vitral.__all__) - known))
    return sections


def _section(title: str, names: tuple[str, ...]) -> str:
    return "\n".join([f"### {title}", "", *(_public(name) for name in names)])


def _public(name: str) -> str:
    """A public name: how it is called, what it says of itself, what it holds."""
    thing = getattr(vitral, name)
    head = f"#### `{name}`\n"
    if isinstance(thing, str):
        return f"{head}\nThe version, as text.\n"
    node = ast.parse("\n".join(_source(thing))).body[0]
    if isinstance(node, ast.FunctionDef):
        return "\n".join([head, _code(_signature(node, thing)), "", _docstring(node)])
    assert isinstance(node, ast.ClassDef)
    if issubclass(thing, Exception):
        parents = ", ".join(f"`{ast.unparse(base)}`" for base in node.bases)
        return "\n".join([head, f"{_docstring(node).strip()} Its parent is {parents}.", ""])
    methods = {m.name: m for m in node.body if isinstance(m, ast.FunctionDef) and not _has(m, "overload")}
    inherited = _inherited(thing)
    lines = [head]
    if name not in MADE_ELSEWHERE and "__init__" in methods:
        lines += [_code(_signature(methods["__init__"], thing, name)), ""]
    elif name not in MADE_ELSEWHERE:
        lines += [_code("\n".join([f"class {name}:", *(f"    {field}" for field in _fields(thing))])), ""]
    lines += [_docstring(node)]
    shown = MEMBERS.get(name, tuple(member for member in methods if not member.startswith("_")))
    each = [(methods[member], _source(thing)) if member in methods else inherited[member] for member in shown]
    if rows := [_member(name, *one) for one in each]:
        lines += ["| it has | what it is |", "|:---|:---|", *rows, ""]
    return "\n".join(lines)


def _inherited(thing: Any) -> dict[str, tuple[ast.FunctionDef, list[str]]]:
    """The methods of its bases here, each with the source that it stands in."""
    methods: dict[str, tuple[ast.FunctionDef, list[str]]] = {}
    for base in reversed([one for one in thing.__mro__[1:] if one.__module__.startswith("vitral.")]):
        source = _source(base)
        (node,) = ast.parse("\n".join(source)).body
        assert isinstance(node, ast.ClassDef)
        methods |= {one.name: (one, source) for one in node.body if isinstance(one, ast.FunctionDef)}
    return methods


def _member(owner: str, node: ast.FunctionDef, source: list[str]) -> str:
    """A row for a property or method: how it is called, without types; its shapes and first paragraph."""
    called = owner if _has(node, "classmethod", "staticmethod") else INSTANCES.get(owner, owner.lower())
    called += "" if node.name == "forward" else f".{node.name}"
    if not _has(node, "property", "cached_property"):
        called += f"({', '.join(_arguments(node, types=False))})"
    words = [f"`{_shapes(node, source)}`"] if _shapes(node, source) else []
    words += [" ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())]
    return f"| `{_cell(called)}` | {_cell(_escaped('<br>'.join(filter(None, words))))} |"


def _signature(node: ast.FunctionDef, thing: Any, name: str = "") -> str:
    """As it is called: without self, on one line or an argument a line, with the shapes that stand behind it."""
    values = {one.name: one.default for one in inspect.signature(thing).parameters.values()}
    said = _arguments(node, values=values)
    gives = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    shapes = _shapes(node, _source(thing))
    comment = f"  # {shapes}" if shapes else ""
    head = f"{name or node.name}({', '.join(said)}){gives}"
    if len(head) > WIDE:
        inner = "".join(f"    {argument},\n" for argument in said)
        return f"{name or node.name}(\n{inner}){gives}{comment}"
    return head + comment if len(head + comment) <= WIDE else f"{comment.strip()}\n{head}"


def _arguments(node: ast.FunctionDef, types: bool = True, values: dict[str, Any] | None = None) -> list[str]:
    """All but self and cls. A default that is a name is told by its value, where that is a number."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    pairs = [*zip(positional, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    said = []
    for argument, default in pairs:
        if argument.arg in ("self", "cls"):
            continue
        if arguments.kwonlyargs and argument is arguments.kwonlyargs[0]:
            said.append("*")
        typed = argument.annotation if types else None
        value = (values or {}).get(argument.arg)
        given = repr(value) if isinstance(value, int | float) else ast.unparse(default) if default else ""
        equals = (" = " if typed else "=") + given.replace("'", '"') if given else ""
        said.append(argument.arg + (f": {_type(typed)}" if typed else "") + equals)
    return said


def _shapes(node: ast.FunctionDef, source: list[str]) -> str:
    """The comment behind a signature that says what shapes go in and come out."""
    comment = re.search(r"  # (.*→.*)$", "\n".join(source[node.lineno - 1 : node.body[0].lineno - 1]), re.M)
    return comment[1] if comment else ""


def _fields(thing: Any) -> Iterator[str]:
    """`width: int = 768  # D: the size of a token`, for each field of a dataclass or a table of settings."""
    fields: dict[str, str] = {}  # what a class declares anew stands where its base has it
    for owner in reversed([one for one in thing.__mro__ if one.__module__.startswith("vitral.")]):
        source = _source(owner)
        (node,) = ast.parse("\n".join(source)).body
        assert isinstance(node, ast.ClassDef)
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                name = field.target.id
                if not issubclass(thing, BaseModel) or name in thing.model_fields:  # else it belongs to the class
                    fields[name] = _field(field, name, thing, source)
    yield from fields.values()


def _field(field: ast.AnnAssign, name: str, thing: Any, source: list[str]) -> str:
    said, comment = f"{name}: {_type(field.annotation)}", source[field.lineno - 1].partition("  # ")[2]
    default = ast.unparse(field.value) if field.value else ""
    if issubclass(thing, BaseModel):
        info = thing.model_fields[name]
        value = info.default.model_dump(mode="json") if isinstance(info.default, BaseModel) else info.default
        default = "" if info.is_required() or isinstance(value, dict) else repr(value)
        comment = info.description or comment
    said += f" = {default}".replace("'", '"') if default else ""
    return said + (f"  # {comment}" if comment else "")


def _type(node: ast.expr) -> str:
    return re.sub(r"Strict(\w+)", lambda strict: strict[1].lower(), ast.unparse(node)).replace("'", '"')


def _source(thing: Any) -> list[str]:
    return textwrap.dedent(inspect.getsource(thing)).splitlines()


def _has(node: ast.FunctionDef, *decorators: str) -> bool:
    return any(ast.unparse(decorator) in decorators for decorator in node.decorator_list)


def _docstring(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Paragraphs as they are, examples as code."""
    lines = []
    for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
        example = paragraph.startswith(">>>")
        lines += [_code(paragraph.replace("  # doctest: +SKIP", "")) if example else _escaped(paragraph), ""]
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _escaped(text: str) -> str:
    return re.sub(r"(?<!`)\*\*?(?!`)", lambda stars: stars[0].replace("*", r"\*"), text) if "*" in text else text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(reference())
