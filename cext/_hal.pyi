"""What build_ffi.py generates from include/hal.h and search/search.h when the package is built."""

from typing import Any

ffi: Any
ABI_HASH: int
SEARCH_HASH: int
OPS: tuple[str, ...]
