"""Shows the examples in docstrings as code.

For Griffe, which reads the docstrings, examples are under "Examples:"; "Example:" is a note.
"""

import re
from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Reads "Example:" as "Examples:"."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called with everything that may have a docstring."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
