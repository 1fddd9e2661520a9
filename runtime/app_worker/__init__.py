"""The full engine behind satchel.h: `satchel worker` answers the calls of a C program, whose libsatchel started
it (cext/embed/worker.c). It has nothing of runtime/worker, which carries the engine of a Python program.
"""
