"""How the pages are built: `make docs`, or python -m sphinx -W -b html docs docs/_build."""

from importlib.metadata import version as version_of

project = "Vitral"
author = "The Vitral developers"
copyright = author
version = release = version_of("vitral")

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"Vitral {version}"
html_show_sphinx = False
html_theme_options = {"light_css_variables": {"code-font-size": "75%"}}  # 99 characters a line
html_static_path = ["_static"]
html_css_files = ["pages.css"]
