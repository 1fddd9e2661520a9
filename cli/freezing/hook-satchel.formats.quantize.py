"""PyInstaller's hook for programs that quantize: the C library of searches, or numba where there is none."""

from satchel.quant.native.library import search_file

path = search_file()
binaries = [] if path is None else [(str(path), "satchel/cext")]
hiddenimports = ["numba"] if path is None else []
