"""The command line: one module per command in commands/, found by file name. The library does
not import it.
"""
