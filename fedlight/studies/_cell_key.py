"""What defines a run, as the name of the file that keeps it.

Two runs with the same key have the same result: the key is a hash of the content of the arguments,
the seed, the weights at the start, the data and the version of fedlight. Names of cells are no part
of it, so a cell may be renamed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fedlight import __version__


def cell_key(parts: Mapping[str, str]) -> str:
    """Sixteen hexadecimal digits of what defines a run: content by name, in any order."""
    digest = hashlib.blake2b(__version__.encode(), digest_size=8)
    for name in sorted(parts):
        digest.update(f"\0{name}\0{parts[name]}".encode())
    return digest.hexdigest()
