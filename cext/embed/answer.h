/* answer.h: the text of an answer as its tokens come: whole characters, ended by stop strings, with thinking separate from text. The
 * result depends on the tokens alone, not on when it is asked for. */
#ifndef SATCHEL_EMBED_ANSWER_H
#define SATCHEL_EMBED_ANSWER_H

#include "utf8.h"
#include "words.h"

/* Bytes in growing memory. */
typedef struct {
    char *data;
    size_t n, room;
} byte_list;

/* Follows a text for the end of a pattern: how much of it the text ends with. next: for each number of bytes that match, how many
 * still do where the next byte does not. */
typedef struct {
    char *text;
    size_t size, matched, *next;
} matcher;

/* A marker's token in the text: which says of which markers, `size` is 0 where its text is not shown. */
typedef struct {
    uint64_t at;
    size_t size;
    int which;
} answer_mark;

/* A piece of the answer, in `out`, with a zero byte behind it. */
typedef struct {
    size_t at, size;
    int kind;
} answer_piece;

enum { ANSWER_TEXT = 1, ANSWER_THINKING = 2 };         /* kinds, as in satchel.h */
enum { ANSWER_BEGINS, ANSWER_THINKS, ANSWER_PAST_IT }; /* where the prompt left the answer, as in satchel.h */
enum { READS_BEGIN, READS_THOUGHT, READS_TEXT };

typedef struct {
    const words *words;
    int strip, include_stop, apart; /* apart: thinking is separate from text */
    utf8_stream stream;
    matcher *stops, open, close;
    int32_t n_stops, stopped; /* stopped: number of the stop string that ended the answer; -1: none yet */
    int32_t open_token, close_token;
    byte_list held;           /* text that is not released, from byte `released` of the answer on */
    uint64_t released, total; /* bytes of the answer's text */
    answer_mark *marks;
    size_t n_marks, first_mark, room_marks;
    int state, kind,
        fresh; /* of the reader; kind of the last text; fresh: white space before the next one is dropped */
    byte_list begin, space; /* space, then what may be the opening marker; white space that may be dropped */
    byte_list out;
    answer_piece *pieces;
    size_t n_pieces, taken, room_pieces;
} answer;

typedef struct {
    const char *const *stops;
    int32_t n_stops, include_stop;
    const char *open, *close; /* markers; NULL: thinking is text */
    int32_t begins;
} answer_options;

/* Copies the options. On failure nothing is kept. answer_free() ends it. */
int answer_begin(answer *, const words *, const answer_options *);
void answer_free(answer *);
/* Adds a token, unless the answer has stopped. Pieces that were not taken are dropped. */
int answer_add(answer *, int32_t token);
/* No token follows: releases what was held back. */
int answer_end(answer *);
/* The next piece that is released, until the next token; NULL: none. */
const answer_piece *answer_take(answer *);

#endif
