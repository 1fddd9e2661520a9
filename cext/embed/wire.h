/* wire.h: messages between a program and its worker process, as runtime/app_worker/wire.py has them: a head, then values. A value
 * is eight bytes, or a size of eight bytes and as many bytes behind it. All numbers are little-endian.
 *
 * Whoever reads trusts nothing: a value that is not there marks the reader, and is 0 or empty. */
#ifndef SATCHEL_EMBED_WIRE_H
#define SATCHEL_EMBED_WIRE_H

#include "gguf.h"

enum { WIRE_REQUEST = 0x32515753, WIRE_ANSWER = 0x32415753 }; /* "SWQ2" and "SWA2": the direction, and the version */
/* Kind of an answer that is none yet: the worker is alive and works. Its value: after how many milliseconds of silence it is not
 * (0: it may be silent for ever). */
enum { WIRE_ALIVE = 1 };
#define WIRE_MOST ((uint64_t)1 << 28) /* most bytes of a message's values */

typedef struct {
    uint32_t magic;
    int32_t kind; /* of a request: the call; of an answer: 0, or a SATCHEL_E_ code, whose text is the only value */
    uint64_t size;
} wire_head;

/* Values to send, with room for the head before them. failed: there was no memory, or they are too long. */
typedef struct {
    uint8_t *data;
    uint64_t n, room;
    int failed;
} wire_writer;
void wire_begin(wire_writer *);
void wire_number(wire_writer *, int64_t);
void wire_real(wire_writer *, double);
void wire_bytes(wire_writer *, const void *, uint64_t size);
void wire_text(wire_writer *, const char *); /* which ends with a zero byte */
void wire_free(wire_writer *);

/* Values that came. wrong: one was asked for that is not there. */
typedef struct {
    const uint8_t *at, *end;
    int wrong;
} wire_reader;
int64_t wire_take_number(wire_reader *);
gguf_bytes wire_take_bytes(wire_reader *);
/* Whether all values were there and no more of them. */
int wire_ended(const wire_reader *);

#endif
