"""PyInstaller's hook for programs that quantize: the searches are compiled by numba."""

hiddenimports = ["numba", "satchel.quant.jit.simd.compiled"]
