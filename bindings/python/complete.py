"""Continues a text: complete.py MODEL TEXT, where `satchel build` made the model file."""

import sys

from satchel_ctypes import Model

with Model(sys.argv[1]) as model:
    for piece in model.generate(sys.argv[2], temperature=0, max_tokens=64):
        print(piece, end="", flush=True)
