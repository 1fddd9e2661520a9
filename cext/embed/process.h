/* process.h: a program that runs beside this one, and the socket that is its standard input and output. It gets no signal of this
 * one's terminal, and ends when the socket is closed. */
#ifndef SATCHEL_EMBED_PROCESS_H
#define SATCHEL_EMBED_PROCESS_H

#include <stddef.h>

typedef struct {
    int socket;     /* -1: none */
    long id, owner; /* of the process, and of the one that started it */
} process;

/* Starts `program worker`; a name without a slash is sought in PATH. On failure nothing is kept, and the code is one of satchel.h. */
int process_start(const char *program, process *out);
/* How a transfer ended. */
enum { PROCESS_DONE, PROCESS_GONE, PROCESS_SILENT };
/* Sends all bytes. PROCESS_GONE: the other side is gone; PROCESS_SILENT: it took none for `patience` milliseconds (0: for ever).
 * What stops this program or the machine for a while counts as little. */
int process_send(const process *, const void *bytes, size_t size, int patience);
/* Receives as many bytes; PROCESS_SILENT: none came for so long. */
int process_receive(const process *, void *bytes, size_t size, int patience);
/* Closes the socket, and waits for the end for some seconds, then kills; where `at_once`, without waiting. how: filled with how it
 * ended, such as "status 1". */
void process_end(process *, int at_once, char *how, size_t room);
/* Whether the calling process is the one that started it, not a copy made by fork(). */
int process_is_ours(const process *);

#endif
