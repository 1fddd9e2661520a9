"""The full engine behind satchel.h: `satchel worker` answers the calls of a C program, whose libsatchel
started it (cext/embed/worker.c). runtime/worker is another thing: the engine of a Python program.
"""
