"""Stand-in: see the package's head."""

from xgrammar import __getattr__  # noqa: F401
