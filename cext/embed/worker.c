/* worker.c: see worker.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "process.h"
#include "worker.h"
#include "wire.h"

/* The calls; runtime/app_worker/calls.py has the same. */
enum { CALL_OPEN = 1, CALL_GENERATE, CALL_NEXT, CALL_END, CALL_EMBED, CALL_GRAMMAR, CALL_RENDER };
enum { PART = 1 << 20, REASON = 320, MOST_REASON = 1 << 16, MOST_CONTEXT = 1 << 28 };
/* Milliseconds that a worker may need until it is heard first, which a slow disk may take to start it; the most that it may ask for. */
enum { START_MS = 600000, MOST_MS = 1 << 30 };

struct worker {
    process process;
    int32_t vocabulary, context;
    int patience;        /* milliseconds of silence after which it is given up; 0: never */
    uint8_t *answer;     /* bytes of the last one */
    char reason[REASON]; /* why it is gone; empty: it is there */
};

/* Gives the worker up. */
static int lose(worker *w, const char *what) {
    char how[64] = "";
    process_end(&w->process, 0, how, sizeof how);
    snprintf(w->reason, sizeof w->reason, "the worker process %s%s%s: open the model again", what,
             how[0] ? "; it ended with " : "", how);
    return hal_fail(SATCHEL_E_WORKER, "%s", w->reason);
}

static int lied(worker *w) {
    return lose(w, "sent what is no answer to the call");
}

/* What becomes of a worker whose transfer ended so. */
static int broken(worker *w, int how) {
    char ended[64] = "";
    if (how != PROCESS_SILENT)
        return lose(w, "is gone");
    process_end(&w->process, 1, ended, sizeof ended);
    snprintf(w->reason, sizeof w->reason,
             "the worker process gave no sign of life for %g s and was ended: open the model again", w->patience / 1e3);
    return hal_fail(SATCHEL_E_WORKER, "%s", w->reason);
}

/* Receives the values of an answer into memory that grows as they come. */
static int receive(worker *w, uint64_t size) {
    uint8_t *all = NULL;
    int how;
    for (uint64_t have = 0; have < size || !all;) {
        uint64_t part = size - have < PART ? size - have : PART;
        uint8_t *grown = realloc(all, (size_t)(have + part + 1));
        if (!grown) {
            free(all);
            return lose(w, "sent more than there is memory for");
        }
        all = grown;
        if ((how = process_receive(&w->process, all + have, (size_t)part, w->patience))) {
            free(all);
            return broken(w, how);
        }
        have += part;
    }
    all[size] = 0;
    w->answer = all;
    return 0;
}

/* The error that an answer tells. */
static int told(worker *w, int32_t code, wire_reader *in) {
    gguf_bytes text = wire_take_bytes(in);
    if (code < SATCHEL_E_LACKS || !wire_ended(in) || text.size > MOST_REASON)
        return lied(w);
    return hal_fail(code, "%.*s", (int)text.size, (const char *)text.data);
}

/* Receives the head of an answer, past all signs of life before it. */
static int receive_head(worker *w, wire_head *head) {
    int64_t patience;
    int how;
    while (!(how = process_receive(&w->process, head, sizeof *head, w->patience))) {
        if (head->magic != WIRE_ANSWER || head->kind != WIRE_ALIVE)
            return head->magic != WIRE_ANSWER || head->size > WIRE_MOST || head->kind > 0 ? lied(w) : 0;
        if (head->size != sizeof patience)
            return lied(w);
        if ((how = process_receive(&w->process, &patience, sizeof patience, w->patience)))
            break;
        if (patience < 0 || patience > MOST_MS)
            return lied(w);
        w->patience = (int)patience;
    }
    return broken(w, how);
}

/* Sends a call and its values, which it frees, and waits for the answer's. */
static int call(worker *w, int32_t kind, wire_writer *out, wire_reader *in) {
    wire_head head = {WIRE_REQUEST, kind, out->n - sizeof head};
    int code = 0, failed = out->failed, how;
    free(w->answer);
    w->answer = NULL;
    if (!failed)
        memcpy(out->data, &head, sizeof head);
    if (failed)
        code = hal_fail(SATCHEL_E_MEMORY, "no memory for a call of the worker process, or over 256 MB");
    else if (w->reason[0])
        code = hal_fail(SATCHEL_E_WORKER, "%s", w->reason);
    else if (!process_is_ours(&w->process))
        code = hal_fail(SATCHEL_E_WORKER, "the worker process belongs to the process that this one is a copy of");
    else if ((how = process_send(&w->process, out->data, (size_t)out->n, w->patience)))
        code = broken(w, how);
    wire_free(out);
    if (code || (code = receive_head(w, &head)) || (code = receive(w, head.size)))
        return code;
    *in = (wire_reader){w->answer, w->answer + head.size, 0};
    return head.kind ? told(w, head.kind, in) : 0;
}

static int32_t take_int(wire_reader *in, int64_t least, int64_t most) {
    int64_t value = wire_take_number(in);
    in->wrong |= value < least || value > most;
    return in->wrong ? 0 : (int32_t)value;
}

static int open_model(worker *w, const satchel_model_options *o, const char *path, worker_facts *f) {
    wire_writer out;
    wire_reader in;
    int code;
    wire_begin(&out);
    wire_text(&out, path);
    wire_number(&out, o->context);
    wire_number(&out, o->slots);
    wire_number(&out, o->threads);
    wire_number(&out, o->threads_decode);
    if ((code = call(w, CALL_OPEN, &out, &in)))
        return code;
    f->context = take_int(&in, 1, MOST_CONTEXT);
    f->slots = take_int(&in, 1, 64);
    f->vocabulary = take_int(&in, 1, 1 << 28);
    f->embedding = take_int(&in, 0, 1 << 24);
    f->kernels = wire_take_bytes(&in);
    f->tokenizer = wire_take_bytes(&in);
    f->chat = wire_take_bytes(&in);
    w->vocabulary = f->vocabulary;
    w->context = f->context;
    return wire_ended(&in) ? 0 : lied(w);
}

int worker_open(const satchel_model_options *o, const char *path, worker **out, worker_facts *facts) {
    worker *made = calloc(1, sizeof *made);
    int code;
    *facts = (worker_facts){0};
    if (!made)
        return hal_fail(SATCHEL_E_MEMORY, "no memory for a worker process");
    if ((code = process_start(o->worker, &made->process))) {
        free(made);
        return code;
    }
    made->patience = START_MS;
    if ((code = open_model(made, o, path, facts))) {
        worker_close(made);
        return code;
    }
    *out = made;
    return 0;
}

void worker_close(worker *w) {
    char how[64];
    if (!w)
        return;
    process_end(&w->process, 0, how, sizeof how);
    free(w->answer);
    free(w);
}

static void write_sampling(wire_writer *out, const satchel_generate_options *o) {
    const double numbers[] = {o->temperature,
                              o->top_k,
                              o->top_p,
                              o->min_p,
                              o->typical_p,
                              o->top_n_sigma,
                              o->xtc_probability,
                              o->xtc_threshold,
                              o->dynatemp_range,
                              o->dynatemp_exponent,
                              o->repeat_penalty,
                              o->presence_penalty,
                              o->frequency_penalty,
                              o->repeat_last_n,
                              o->mirostat,
                              o->mirostat_tau,
                              o->mirostat_eta,
                              o->dry_multiplier,
                              o->dry_base,
                              o->dry_allowed_length,
                              o->dry_last_n,
                              o->min_tokens};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        wire_real(out, numbers[i]);
    wire_text(out, o->samplers ? o->samplers : "edskypmxt");
    wire_bytes(out, o->biases, (uint64_t)o->n_biases * sizeof *o->biases);
    wire_bytes(out, o->allowed, (uint64_t)o->n_allowed * sizeof *o->allowed);
    wire_bytes(out, o->bad_words, (uint64_t)o->n_bad_words * sizeof *o->bad_words);
    wire_number(out, o->dry_breakers ? o->n_dry_breakers : -1); /* -1: the usual ones */
    for (int32_t i = 0; o->dry_breakers && i < o->n_dry_breakers; i++)
        wire_text(out, o->dry_breakers[i]);
}

int worker_generate(worker *w, const satchel_generate_options *o, int64_t seed, int64_t most, const int32_t *ids,
                    int64_t count, int64_t *number) {
    const satchel_grammar *g = o->grammar;
    wire_writer out;
    wire_reader in;
    int code;
    wire_begin(&out);
    wire_bytes(&out, ids, (uint64_t)count * sizeof *ids);
    wire_number(&out, most);
    wire_number(&out, o->flags);
    wire_number(&out, seed);
    wire_number(&out, g ? g->kind : 0);
    wire_bytes(&out, g ? g->text : NULL, g ? g->size : 0);
    write_sampling(&out, o);
    if ((code = call(w, CALL_GENERATE, &out, &in)))
        return code;
    *number = wire_take_number(&in);
    return wire_ended(&in) ? 0 : lied(w);
}

/* A call whose only value is the number of an answer. */
static int call_number(worker *w, int32_t kind, int64_t number, wire_reader *in) {
    wire_writer out;
    wire_begin(&out);
    wire_number(&out, number);
    return call(w, kind, &out, in);
}

int worker_next(worker *w, int64_t number, int32_t *token, int64_t *cached, int *reason) {
    wire_reader in;
    int code = call_number(w, CALL_NEXT, number, &in);
    if (code)
        return code;
    *token = take_int(&in, -1, w->vocabulary - 1);
    *cached = take_int(&in, 0, w->context);
    *reason = take_int(&in, 0, SATCHEL_LENGTH);
    return wire_ended(&in) && (*token < 0) == (*reason != 0) ? 0 : lied(w);
}

void worker_end(worker *w, int64_t number) {
    wire_reader in;
    if (!w->reason[0])
        call_number(w, CALL_END, number, &in); /* where it fails, the next call says so */
}

int worker_embed(worker *w, const int32_t *ids, int64_t count, float *row, int32_t width) {
    wire_writer out;
    wire_reader in;
    gguf_bytes found;
    int code;
    wire_begin(&out);
    wire_bytes(&out, ids, (uint64_t)count * sizeof *ids);
    if ((code = call(w, CALL_EMBED, &out, &in)))
        return code;
    found = wire_take_bytes(&in);
    if (!wire_ended(&in) || found.size != (uint64_t)width * sizeof *row)
        return lied(w);
    memcpy(row, found.data, found.size);
    return 0;
}

int worker_check_grammar(worker *w, const char *text, uint64_t size) {
    wire_writer out;
    wire_reader in;
    int code;
    wire_begin(&out);
    wire_bytes(&out, text, size);
    if ((code = call(w, CALL_GRAMMAR, &out, &in)))
        return code;
    return wire_ended(&in) ? 0 : lied(w);
}

int worker_render(worker *w, const char *request, uint64_t size, worker_prompt *p) {
    wire_writer out;
    wire_reader in;
    int32_t id;
    int code;
    wire_begin(&out);
    wire_bytes(&out, request, size);
    if ((code = call(w, CALL_RENDER, &out, &in)))
        return code;
    p->text = wire_take_bytes(&in);
    p->ids = wire_take_bytes(&in);
    p->thinks = take_int(&in, 0, 1);
    if (!wire_ended(&in) || p->ids.size % sizeof id)
        return lied(w);
    for (uint64_t at = 0; at < p->ids.size; at += sizeof id) {
        memcpy(&id, p->ids.data + at, sizeof id);
        if (id < 0 || id >= w->vocabulary)
            return lied(w);
    }
    return 0;
}
