"""Chats: chat.py MODEL [WORKER] reads a message a line. WORKER: the program for files without a plan."""

import sys

from satchel_ctypes import EITHER, LIBRARY, Model

path, worker = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
with Model(path, engine=EITHER if worker else LIBRARY, worker=worker) as model:
    messages = []
    for line in sys.stdin:
        messages.append({"role": "user", "content": line.strip()})
        answer = ""
        for piece in model.chat(messages, temperature=0, max_tokens=64):
            print(piece, end="", flush=True)
            answer += piece
        print()
        messages.append({"role": "assistant", "content": answer})
