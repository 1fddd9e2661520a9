"""A chat bot: python examples/chat.py [MODEL]. It streams answers and remembers the conversation; Ctrl-C
ends an answer, Ctrl-D the program.
"""

import sys

from satchel import Model

SYSTEM = {"role": "system", "content": "You are a friendly assistant. Answer in one or two sentences."}


def main() -> None:
    with Model.load(sys.argv[1] if len(sys.argv) > 1 else None) as model:
        messages = [SYSTEM]
        for line in sys.stdin:
            if not line.strip():
                continue
            messages.append({"role": "user", "content": line.strip()})
            reply = model.chat(messages, max_tokens=200, on_overflow="truncate-middle")
            try:
                for piece in reply:
                    print(piece, end="", flush=True)
            except KeyboardInterrupt:
                reply.close()
            print(f"\n[{reply.stats.generated} tokens, {reply.stats.cached} of {reply.stats.prompt} known]")
            messages.append({"role": "assistant", "content": reply.text})


if __name__ == "__main__":
    main()
