"""How the pages are built: `make docs`, or python -m sphinx -W -b html docs docs/_build."""

from importlib.metadata import version as version_of

project = "Vitral"
author = "The Vitral developers"
copyright = author
version = release = version_of("vitral")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
default_role = "literal"  # docstrings write `name`, as Markdown does
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"Vitral {version}"
html_show_sphinx = False
html_theme_options = {"light_css_variables": {"code-font-size": "75%"}}  # 99 characters a line

# Docstrings are plain sentences with their types in the signature: no napoleon.
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autoclass_content = "class"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
