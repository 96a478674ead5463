"""The one place that knows the version: the installed package."""

from importlib.metadata import version

__version__ = version("vitral")
