"""Sandbox of the worker process: it keeps what computing needs, and gives up files, network and programs.

Landlock limits which files any thread can open; the process enters it before the first import that starts a
thread. A seccomp filter limits the system calls; all threads get it once the model is loaded. enter.py
applies both inside the process; policy.py decides outside of it what a model needs.

Invariant: enter.py and its imports use the standard library alone, so nothing else runs before the sandbox.
"""
