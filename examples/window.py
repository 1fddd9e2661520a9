"""A desktop program with the library inside: python examples/window.py [MODEL]

The window never waits for the model: a thread reads the answer, a queue carries its pieces, and the window
polls the queue. Stop ends the answer within a token; closing the window frees everything.
"""

from __future__ import annotations

import queue
import sys
import threading
import tkinter as tk
from tkinter import ttk

from satchel import Model, SatchelError
from satchel.runtime.api.reply import Reply

EVERY = 30  # milliseconds between two polls of the queue


class Window(tk.Tk):
    """A conversation with a text area above and an input field below."""

    def __init__(self, path: str | None) -> None:
        super().__init__()
        self.title("Satchel")
        self.geometry("640x480")
        self.said = tk.Text(self, wrap="word", state="disabled", padx=12, pady=12, font=("TkDefaultFont", 11))
        self.said.tag_configure("user", foreground="#3060a0")
        self.said.tag_configure("note", foreground="#808080")
        self.entry = ttk.Entry(self)
        self.button = ttk.Button(self, text="Stop", command=self.stop, state="disabled")
        self.said.pack(fill="both", expand=True)
        self.button.pack(side="right", padx=8, pady=8)
        self.entry.pack(side="left", fill="x", expand=True, padx=8, pady=8)
        self.entry.bind("<Return>", lambda _: self.send())
        self.protocol("WM_DELETE_WINDOW", self.leave)
        self.coming: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.messages: list[dict[str, str]] = []
        self.model: Model | None = None
        self.reply: Reply | None = None
        self.thread = threading.Thread(target=self.load, args=(path,), daemon=True)
        self.thread.start()
        self.take()

    def load(self, path: str | None) -> None:
        try:
            self.model = Model.load(path)
            self.coming.put(("note", f"{self.model.path.name} is ready.\n"))
        except SatchelError as error:
            self.coming.put(("note", f"{error}\n"))

    def send(self) -> None:
        text = self.entry.get().strip()
        if not text or self.model is None or self.thread.is_alive():
            return
        self.entry.delete(0, "end")
        self.show(f"\n{text}\n", "user")
        self.messages.append({"role": "user", "content": text})
        self.button.config(state="normal")
        self.thread = threading.Thread(target=self.answer, args=(self.model,), daemon=True)
        self.thread.start()

    def answer(self, model: Model) -> None:
        try:
            self.reply = model.chat(self.messages, max_tokens=300, on_overflow="truncate-middle")
            for piece in self.reply:
                self.coming.put(("", piece))
            self.messages.append({"role": "assistant", "content": self.reply.text})
            self.coming.put(("note", f"\n{self.reply.stats.decode_rate:.0f} tokens a second\n"))
        except SatchelError as error:
            self.coming.put(("note", f"\n{error}\n"))
        self.coming.put(("end", ""))

    def take(self) -> None:
        while not self.coming.empty():
            kind, text = self.coming.get()
            if kind == "end":
                self.button.config(state="disabled")
            self.show(text, kind)
        self.after(EVERY, self.take)

    def show(self, text: str, tag: str) -> None:
        self.said.config(state="normal")
        self.said.insert("end", text, tag)
        self.said.config(state="disabled")
        self.said.see("end")

    def stop(self) -> None:
        if self.reply is not None:
            self.reply.cancel()

    def leave(self) -> None:
        self.stop()
        self.thread.join(10)
        if self.model is not None:
            self.model.close()
        self.destroy()


if __name__ == "__main__":
    Window(sys.argv[1] if len(sys.argv) > 1 else None).mainloop()
