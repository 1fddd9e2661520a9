"""The worker process in a sandbox: it keeps what computing needs, and gives up files, network and programs.

Two parts. Landlock, entered before the first import that starts a thread, limits which files can be opened,
in every thread. A seccomp filter, installed in all threads once the model is loaded, limits the system calls.
enter.py applies both inside the process, policy.py says outside of it what one model needs.
Invariant: enter.py and what it imports are the standard library alone, so nothing runs before the sandbox.
"""
