/* answer.c: see answer.h. Three stages. The decoder makes whole characters of tokens' bytes. The stop strings hold back what may begin
 * one. What they release goes to the reader, which finds the markers of thinking, as tokens or as text, and drops white space beside
 * them. Each byte passes each stage once. */
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "error.h"

enum { IS_OPEN = 1, IS_CLOSE = 2, MOST_STOPS = 1024 };

static int no_memory(void) {
    return hal_fail(HAL_E_MEMORY, "no memory for the text of an answer");
}

static int add_bytes(byte_list *list, const char *bytes, size_t size) {
    if (list->n + size > list->room) {
        size_t room = 2 * list->room + size + 64;
        char *grown = realloc(list->data, room);
        if (!grown)
            return no_memory();
        list->data = grown;
        list->room = room;
    }
    if (size)
        memcpy(list->data + list->n, bytes, size);
    list->n += size;
    return 0;
}

static void drop_bytes(byte_list *list, size_t size) {
    list->n -= size;
    if (list->n)
        memmove(list->data, list->data + size, list->n);
}

static int is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* --- patterns */

static void matcher_free(matcher *m) {
    free(m->text);
    free(m->next);
    *m = (matcher){0};
}

static int matcher_begin(matcher *m, const char *text) {
    size_t size = strlen(text);
    *m = (matcher){.size = size, .text = malloc(size + 1), .next = calloc(size + 2, sizeof *m->next)};
    if (!m->text || !m->next) {
        matcher_free(m);
        return no_memory();
    }
    memcpy(m->text, text, size + 1);
    for (size_t i = 1, k = 0; i < size; i++) {
        while (k && text[i] != text[k])
            k = m->next[k];
        k += text[i] == text[k];
        m->next[i + 1] = k;
    }
    return 0;
}

/* Takes a byte; whether the text now ends with the pattern, which is not empty. */
static int match_byte(matcher *m, char byte) {
    if (m->matched == m->size)
        m->matched = m->next[m->size];
    while (m->matched && m->text[m->matched] != byte)
        m->matched = m->next[m->matched];
    m->matched += m->text[m->matched] == byte;
    return m->matched == m->size;
}

/* --- released pieces */

static int put(answer *a, int kind, const char *bytes, size_t size) {
    answer_piece *last = a->n_pieces > a->taken ? a->pieces + a->n_pieces - 1 : NULL;
    int code;
    if (!size)
        return 0;
    if (last && last->kind == kind) {
        a->out.n--; /* its zero byte */
    } else {
        if (a->n_pieces == a->room_pieces) {
            size_t room = 2 * a->room_pieces + 4;
            answer_piece *grown = realloc(a->pieces, room * sizeof *grown);
            if (!grown)
                return no_memory();
            a->pieces = grown;
            a->room_pieces = room;
        }
        last = a->pieces + a->n_pieces++;
        *last = (answer_piece){.at = a->out.n, .kind = kind};
    }
    if ((code = add_bytes(&a->out, bytes, size)) || (code = add_bytes(&a->out, "", 1)))
        return code;
    last->size += size;
    return 0;
}

const answer_piece *answer_take(answer *a) {
    return a->taken < a->n_pieces ? a->pieces + a->taken++ : NULL;
}

/* --- thinking */

/* Text of a kind, without white space where the kind changes: an empty text changes it, too. */
static int say(answer *a, int kind, const char *bytes, size_t size) {
    size_t end;
    int code;
    if (!a->apart)
        return put(a, kind, bytes, size);
    if (kind != a->kind) {
        a->fresh = a->fresh || a->kind || !size;
        a->kind = kind;
        a->space.n = 0;
    }
    for (; a->fresh && size && is_space(*bytes); size--)
        bytes++;
    a->fresh = a->fresh && !size;
    for (end = size; end && is_space(bytes[end - 1]);)
        end--;
    if (end) {
        if ((code = put(a, kind, a->space.data, a->space.n)) || (code = put(a, kind, bytes, end)))
            return code;
        a->space.n = 0;
    }
    return add_bytes(&a->space, bytes + end, size - end);
}

static int begin_thought(answer *a) {
    a->state = READS_THOUGHT;
    a->close.matched = 0;
    return say(a, ANSWER_THINKING, "", 0);
}

static int end_thought(answer *a) {
    a->state = READS_TEXT;
    return say(a, ANSWER_TEXT, "", 0);
}

/* Gives up on an opening marker: what was read is text. */
static int no_thought(answer *a) {
    size_t spaces = 0, n = a->begin.n;
    int code;
    a->state = READS_TEXT;
    a->begin.n = 0;
    while (spaces < n && is_space(a->begin.data[spaces]))
        spaces++;
    if (spaces && (code = say(a, ANSWER_TEXT, a->begin.data, spaces)))
        return code;
    return n > spaces ? say(a, ANSWER_TEXT, a->begin.data + spaces, n - spaces) : 0;
}

/* Reads the begin of the answer; gives the number of bytes that belong to what is decided, in *took. */
static int read_begin(answer *a, const char *bytes, size_t size, size_t *took) {
    const matcher *m = &a->open;
    for (*took = 0; *took < size; ++*took) {
        char c = bytes[*took];
        int code;
        if (!a->open.matched && is_space(c)) {
            if ((code = add_bytes(&a->begin, &c, 1)))
                return code;
            continue;
        }
        if (a->open_token >= 0 || m->text[m->matched] != c)
            return no_thought(a);
        if (++a->open.matched == m->size) {
            a->begin.n = 0;
            ++*took;
            return begin_thought(a);
        }
        if ((code = add_bytes(&a->begin, &c, 1)))
            return code;
    }
    return 0;
}

/* Reads thinking, of which the end that may begin the closing marker is held back. */
static int read_thought(answer *a, const char *bytes, size_t size, size_t *took) {
    matcher *m = &a->close;
    size_t before = m->matched, given;
    int found = 0, code;
    if (a->close_token >= 0) {
        *took = size;
        return say(a, ANSWER_THINKING, bytes, size);
    }
    for (*took = 0; *took < size && !found; ++*took)
        found = match_byte(m, bytes[*took]);
    given = before + *took - m->matched;
    if ((code = before && given ? say(a, ANSWER_THINKING, m->text, before < given ? before : given) : 0))
        return code;
    if (given > before && (code = say(a, ANSWER_THINKING, bytes, given - before)))
        return code;
    return found ? end_thought(a) : 0;
}

static int read_text(answer *a, const char *bytes, size_t size) {
    size_t took = 0;
    int code = 0;
    for (; size && !code; bytes += took, size -= took) {
        if (a->state == READS_BEGIN)
            code = read_begin(a, bytes, size, &took);
        else if (a->state == READS_THOUGHT)
            code = read_thought(a, bytes, size, &took);
        else
            code = say(a, ANSWER_TEXT, bytes, took = size);
    }
    return code;
}

/* What may have begun the closing marker did not: a token came, or the end. */
static int read_rest(answer *a) {
    size_t held = a->close.matched;
    a->close.matched = 0;
    return a->state == READS_THOUGHT && a->close_token < 0 && held ? say(a, ANSWER_THINKING, a->close.text, held) : 0;
}

static int read_mark(answer *a, const answer_mark *m, const char *bytes) {
    int code;
    if (a->state == READS_BEGIN && m->which & IS_OPEN && !a->open.matched) {
        a->begin.n = 0;
        return begin_thought(a);
    }
    if (a->state == READS_BEGIN && (code = no_thought(a)))
        return code;
    if ((code = read_rest(a)))
        return code;
    if (a->state == READS_THOUGHT && m->which & IS_CLOSE)
        return end_thought(a);
    if (a->state == READS_TEXT && m->which & IS_OPEN)
        return begin_thought(a);
    return m->size ? say(a, a->state == READS_THOUGHT ? ANSWER_THINKING : ANSWER_TEXT, bytes, m->size) : 0;
}

static int read_end(answer *a) {
    int code = a->state == READS_BEGIN ? no_thought(a) : read_rest(a);
    if (!code && a->state == READS_THOUGHT) /* it ends with the answer: white space at its end is dropped */
        code = end_thought(a);
    if (!code && a->space.n)
        code = put(a, a->kind, a->space.data, a->space.n);
    a->space.n = 0;
    return code;
}

/* --- release */

/* Gives the reader the text up to a byte of the answer, and the markers that end there. */
static int release(answer *a, uint64_t end) {
    uint64_t begin = a->released;
    int code = 0;
    for (;;) {
        const answer_mark *m = a->first_mark < a->n_marks ? a->marks + a->first_mark : NULL;
        const char *bytes = a->held.data + (a->released - begin);
        if (m && m->at == a->released) {
            if (m->at + m->size > end)
                break;
            code = read_mark(a, m, bytes);
            a->released += m->size;
            a->first_mark++;
        } else if (a->released < end) {
            uint64_t until = m && m->at < end ? m->at : end;
            code = read_text(a, bytes, (size_t)(until - a->released));
            a->released = until;
        } else {
            break;
        }
        if (code)
            return code;
    }
    drop_bytes(&a->held, (size_t)(a->released - begin));
    if (a->first_mark == a->n_marks)
        a->first_mark = a->n_marks = 0;
    return 0;
}

static int add_mark(answer *a, int which, uint64_t at, size_t size) {
    if (a->n_marks == a->room_marks) {
        size_t room = 2 * a->room_marks + 4;
        answer_mark *grown = realloc(a->marks, room * sizeof *grown);
        if (!grown)
            return no_memory();
        a->marks = grown;
        a->room_marks = room;
    }
    a->marks[a->n_marks++] = (answer_mark){at, size, which};
    return 0;
}

/* Ends the answer at `end`; a marker that it cuts is text. */
static int finish(answer *a, uint64_t end) {
    int code = release(a, end);
    if (!code && a->released < end)
        code = read_text(a, a->held.data, (size_t)(end - a->released));
    a->held.n = a->n_marks = a->first_mark = 0;
    return code ? code : read_end(a);
}

/* Adds text to what is held, and releases what no stop string can begin in. */
static int add_text(answer *a, const char *bytes, size_t size) {
    size_t kept = 0;
    int code = add_bytes(&a->held, bytes, size);
    for (size_t i = 0; i < size && !code; i++) {
        size_t longest = 0;
        for (int32_t k = 0; k < a->n_stops; k++)
            if (a->stops[k].size && match_byte(a->stops + k, bytes[i]) && a->stops[k].size > longest) {
                longest = a->stops[k].size;
                a->stopped = k;
            }
        if (longest) {
            uint64_t end = a->total + i + 1;
            return finish(a, a->include_stop ? end : end - longest);
        }
    }
    a->total += size;
    for (int32_t k = 0; k < a->n_stops; k++)
        kept = kept > a->stops[k].matched ? kept : a->stops[k].matched;
    return code ? code : release(a, a->total - kept);
}

static void forget_pieces(answer *a) {
    a->out.n = a->n_pieces = a->taken = 0;
}

int answer_add(answer *a, int32_t token) {
    gguf_bytes bytes = words_shown(a->words, token, 0, &a->strip);
    int which = a->apart ? (token == a->open_token ? IS_OPEN : 0) | (token == a->close_token ? IS_CLOSE : 0) : 0;
    char *text;
    size_t size;
    int code = 0;
    forget_pieces(a);
    if (a->stopped >= 0)
        return 0;
    if (!(text = malloc(UTF8_GROWTH * (bytes.size + 1))))
        return no_memory();
    size = utf8_feed(&a->stream, bytes.data, bytes.size, text);
    if (which) { /* what stands before its text is of tokens before it */
        size_t own = bytes.size < size ? bytes.size : size;
        code = add_mark(a, which, a->total + size - own, own);
    }
    if (!code)
        code = add_text(a, text, size);
    free(text);
    return code;
}

int answer_end(answer *a) {
    char text[UTF8_GROWTH];
    int code;
    forget_pieces(a);
    if (a->stopped >= 0)
        return 0;
    code = add_text(a, text, utf8_flush(&a->stream, text));
    return code || a->stopped >= 0 ? code : finish(a, a->total);
}

void answer_free(answer *a) {
    for (int32_t i = 0; i < a->n_stops; i++)
        matcher_free(a->stops + i);
    free(a->stops);
    matcher_free(&a->open);
    matcher_free(&a->close);
    free(a->held.data);
    free(a->marks);
    free(a->begin.data);
    free(a->space.data);
    free(a->out.data);
    free(a->pieces);
    *a = (answer){0};
}

static int check_text(const char *what, const char *text) {
    if (!text || utf8_points(text, (int64_t)strlen(text), NULL) < 0)
        return hal_fail(HAL_E_INVALID, "%s: expected a text in UTF-8, got %s", what, text ? "other bytes" : "NULL");
    return 0;
}

static int check(const answer_options *o) {
    int code = 0;
    if (o->n_stops < 0 || o->n_stops > MOST_STOPS || (o->n_stops && !o->stops))
        return hal_fail(HAL_E_INVALID, "stop: expected 0 to %d texts, got %d", MOST_STOPS, o->n_stops);
    for (int32_t i = 0; i < o->n_stops && !code; i++)
        code = check_text("stop", o->stops[i]);
    if (code || (!o->open && !o->close))
        return code;
    if ((code = check_text("thinking_open", o->open)) || (code = check_text("thinking_close", o->close)))
        return code;
    if (!*o->open || !*o->close || o->begins < ANSWER_BEGINS || o->begins > ANSWER_PAST_IT)
        return hal_fail(HAL_E_INVALID, "thinking: expected two markers, and a begin from 0 to 2, got %d", o->begins);
    return 0;
}

int answer_begin(answer *a, const words *w, const answer_options *o) {
    int code = check(o);
    *a = (answer){.words = w, .include_stop = o->include_stop, .stopped = -1, .open_token = -1, .close_token = -1};
    if (code)
        return code;
    if (o->n_stops && !(a->stops = calloc((size_t)o->n_stops, sizeof *a->stops)))
        return no_memory();
    for (int32_t i = 0; i < o->n_stops && !code; i++, a->n_stops++)
        code = matcher_begin(a->stops + i, o->stops[i]);
    a->apart = o->open != NULL;
    a->state = READS_TEXT;
    a->strip = w->head->flags & TOKENIZER_SPACE_PREFIX && !(a->apart && o->begins);
    if (a->apart && !code && !(code = matcher_begin(&a->open, o->open)) &&
        !(code = matcher_begin(&a->close, o->close))) {
        a->open_token = words_special(w, o->open, a->open.size);
        a->close_token = words_special(w, o->close, a->close.size);
        a->state = o->begins == ANSWER_BEGINS ? READS_BEGIN : READS_TEXT;
        if (o->begins == ANSWER_THINKS)
            code = begin_thought(a);
    }
    if (code)
        answer_free(a);
    return code;
}
