/* satchel.c: the functions of satchel.h. Structs of callers are read and written for as many bytes as the caller knows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bundle.h"
#include "embed.h"
#include "error.h"
#include "reply.h"
#include "sampling.h"

#if !defined(SATCHEL_VERSION) /* compiled by itself, beside no project that has one */
#define SATCHEL_VERSION "0"
#endif

uint32_t satchel_level(void) {
    return SATCHEL_LEVEL;
}

const char *satchel_version(void) {
    return SATCHEL_VERSION;
}

/* Names and texts of a file may have line ends and escapes of terminals, and get into an error. */
const char *satchel_error(void) {
    static _Thread_local char line[512];
    snprintf(line, sizeof line, "%s", hal_last_error());
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = ' ';
    return line;
}

static int argument(const char *what) {
    return hal_fail(SATCHEL_E_ARGUMENT, "%s", what);
}

/* Copies a caller's struct, which may be shorter or longer, over defaults. */
static int take_options(void *to, const void *from, size_t known) {
    uint32_t size = 0;
    memcpy(&size, from, sizeof size);
    if (size < sizeof size)
        return argument("options: expected a struct that its _init function filled, got a size of 0");
    memcpy(to, from, size < known ? size : known);
    return 0;
}

static void give(void *to, const void *from, size_t known) {
    uint32_t size = 0;
    memcpy(&size, to, sizeof size);
    memcpy((char *)to + sizeof size, (const char *)from + sizeof size,
           size < sizeof size ? 0 : (size < known ? size : known) - sizeof size);
}

static int64_t text_size(const char *text, int64_t length) {
    return length < 0 ? (int64_t)strlen(text) : length;
}

/* --- models */

void satchel_model_options_init(satchel_model_options *o, uint32_t size) {
    memset(o, 0, size);
    memcpy(o, &size, sizeof size);
}

/* The caller's options, checked. */
static int read_options(const satchel_model_options *options, satchel_model_options *o) {
    int code = 0;
    *o = (satchel_model_options){.size = sizeof *o};
    if (options && (code = take_options(o, options, sizeof *o)))
        return code;
    if (o->engine < SATCHEL_ENGINE_LIBRARY || o->engine > SATCHEL_ENGINE_EITHER)
        return hal_fail(SATCHEL_E_ARGUMENT, "engine: expected one of SATCHEL_ENGINE_, got %d", o->engine);
    o->worker = o->worker ? o->worker : "satchel";
    return 0;
}

/* Opens a model over a map, which the model ends, also where this fails; NULL: in a worker process. name: of the file. */
static int open_as(const char *name, file_map *map, const satchel_model_options *o, satchel_model **model) {
    satchel_model *made = malloc(sizeof *made);
    int code;
    if (!made) {
        if (map)
            file_map_close(map);
        return hal_fail(SATCHEL_E_MEMORY, "no memory for a model");
    }
    code = map ? model_open(name, map, o, made) : model_open_in_worker(name, o, made);
    if (code) {
        free(made);
        return code;
    }
    *model = made;
    return 0;
}

int32_t satchel_open(const char *path, const satchel_model_options *options, satchel_model **model) {
    satchel_model_options o;
    file_map map;
    int code;
    if (!path || !model)
        return argument("satchel_open: expected a path and a place for the model, got NULL");
    if ((code = read_options(options, &o)))
        return code;
    if (o.engine == SATCHEL_ENGINE_WORKER)
        return open_as(path, NULL, &o, model);
    if ((code = file_map_open(path, 0, FILE_MAP_REST, &map)))
        return code;
    code = open_as(path, &map, &o, model);
    return code == SATCHEL_E_UNBUILT && o.engine == SATCHEL_ENGINE_EITHER ? open_as(path, NULL, &o, model) : code;
}

/* The options of a model that is no file of its own, which a worker process cannot open. */
static int own_options(const satchel_model_options *options, satchel_model_options *o) {
    int code = read_options(options, o);
    if (!code && o->engine == SATCHEL_ENGINE_WORKER)
        return hal_fail(SATCHEL_E_LACKS, "engine: a worker process opens whole files alone: call satchel_open");
    return code;
}

int32_t satchel_open_part(const char *path, uint64_t offset, uint64_t size, const satchel_model_options *options,
                          satchel_model **model) {
    satchel_model_options o;
    file_map map;
    int code;
    if (!path || !model)
        return argument("satchel_open_part: expected a path and a place for the model, got NULL");
    if ((code = own_options(options, &o)) || (code = file_map_open(path, offset, size, &map)))
        return code;
    return open_as(path, &map, &o, model);
}

int32_t satchel_open_memory(const void *data, uint64_t size, const satchel_model_options *options,
                            satchel_model **model) {
    satchel_model_options o;
    file_map map;
    int code;
    if (!data || !model)
        return argument("satchel_open_memory: expected data and a place for the model, got NULL");
    if ((code = own_options(options, &o)) || (code = file_map_memory(data, size, &map)))
        return code;
    return open_as("memory", &map, &o, model);
}

int32_t satchel_open_self(const satchel_model_options *options, satchel_model **model) {
    bundle found;
    int code = bundle_find(&found);
    return code ? code : satchel_open_part(found.path, found.offset, found.size, options, model);
}

void satchel_close(satchel_model *m) {
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    model_close(m);
    free(m);
}

int32_t satchel_facts(const satchel_model *m, satchel_model_facts *facts) {
    satchel_model_facts f = {0};
    if (!m || !facts)
        return argument("satchel_facts: expected a model and a place for its facts, got NULL");
    f.context = m->size.context;
    f.slots = m->size.slots;
    f.vocabulary = m->vocabulary;
    f.embedding = m->embedding;
    f.worker = m->worker != NULL;
    memcpy(f.kernels, m->kernels, sizeof f.kernels);
    give(facts, &f, sizeof f);
    return 0;
}

/* --- text and tokens */

/* Tokens of a text, with those that the file asks for around it. */
static int tokenize(const satchel_model *m, const char *text, int64_t length, uint32_t flags, token_list *out) {
    int code;
    if (!m || (!text && length) || flags > (SATCHEL_SPECIAL | SATCHEL_NO_BOS | SATCHEL_CONTINUES))
        return argument(
            "satchel_tokenize: expected a model, a text, and flags of SATCHEL_SPECIAL, NO_BOS and CONTINUES");
    code = words_encode(&m->words, text, text ? text_size(text, length) : 0, flags, out);
    return code == HAL_E_INVALID ? SATCHEL_E_ARGUMENT : model_code(code);
}

int64_t satchel_tokenize(const satchel_model *m, const char *text, int64_t length, uint32_t flags, int32_t *ids,
                         int64_t room) {
    token_list list = {0};
    int64_t found = tokenize(m, text, length, flags, &list);
    if (!found) {
        found = list.n;
        if (room > 0 && ids)
            memcpy(ids, list.ids, sizeof *ids * (size_t)(list.n < room ? list.n : room));
    }
    free(list.ids);
    return found;
}

int64_t satchel_detokenize(const satchel_model *m, const int32_t *ids, int64_t count, uint32_t flags, char *text,
                           int64_t room) {
    utf8_stream stream = {0};
    int64_t made = 0;
    int strip;
    if (!m || (count > 0 && !ids) || (room > 0 && !text))
        return argument("satchel_detokenize: expected a model, tokens and a place for the text, got NULL");
    strip = (m->words.head->flags & TOKENIZER_SPACE_PREFIX) != 0;
    for (int64_t i = 0; i <= count; i++) {
        gguf_bytes bytes = {NULL, 0};
        char *piece;
        size_t n;
        if (i < count && (ids[i] < 0 || ids[i] >= m->vocabulary))
            return hal_fail(SATCHEL_E_ARGUMENT, "token id: expected 0 to %d, got %d", m->vocabulary - 1, ids[i]);
        if (i < count)
            bytes = words_shown(&m->words, ids[i], flags & SATCHEL_SPECIAL, &strip);
        if (!(piece = malloc(UTF8_GROWTH * (bytes.size + 1))))
            return hal_fail(SATCHEL_E_MEMORY, "no memory for a token of %llu bytes", (unsigned long long)bytes.size);
        n = i < count ? utf8_feed(&stream, bytes.data, bytes.size, piece) : utf8_flush(&stream, piece);
        for (size_t k = 0; k < n; k++, made++)
            if (made < room)
                text[made] = piece[k];
        free(piece);
    }
    if (made < room)
        text[made] = 0;
    return made;
}

/* --- embeddings */

int64_t satchel_embed(satchel_model *m, const char *text, int64_t length, uint32_t flags, float *row, int64_t room) {
    token_list list = {0};
    int64_t width = m ? m->embedding : 0;
    float *whole = NULL;
    int code;
    if (!m || (room > 0 && !row))
        return argument("satchel_embed: expected a model, and a place for the vector, got NULL");
    if (!m->embedding)
        return argument("satchel_embed: the model generates text: call satchel_generate");
    if (!(code = tokenize(m, text, length, flags, &list)) && !(whole = malloc((size_t)width * sizeof *whole)))
        code = hal_fail(SATCHEL_E_MEMORY, "no memory for a vector of %lld numbers", (long long)width);
    if (!code) {
        pthread_mutex_lock(&m->lock);
        code = m->worker ? worker_embed(m->worker, list.ids, list.n, whole, m->embedding)
                         : embed_tokens(m, list.ids, list.n, whole);
        pthread_mutex_unlock(&m->lock);
    }
    if (!code && room > 0)
        memcpy(row, whole, (size_t)(room < width ? room : width) * sizeof *row);
    free(list.ids);
    free(whole);
    return code ? code : width;
}

/* --- answers */

void satchel_generate_options_init(satchel_generate_options *o, uint32_t size) {
    satchel_generate_options defaults = sampling_defaults();
    memset(o, 0, size);
    memcpy(o, &defaults, size < sizeof defaults ? size : sizeof defaults);
    memcpy(o, &size, sizeof size);
}

/* A seed that no earlier one tells: of the clock and the handle's place. */
static int64_t draw_seed(const void *at) {
    struct timespec now;
    uint64_t x;
    clock_gettime(CLOCK_REALTIME, &now);
    x = (uint64_t)now.tv_sec * 1000000007u ^ (uint64_t)now.tv_nsec << 20 ^ (uint64_t)(uintptr_t)at;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (int64_t)((x ^ x >> 31) >> 1);
}

static int check_prompt(const satchel_model *m, const int32_t *ids, int64_t count) {
    if (m->embedding)
        return argument("the model makes embeddings, not text: call satchel_embed");
    if (count < 1)
        return argument("prompt: expected one token or more, got none");
    if (count > m->size.context)
        return hal_fail(SATCHEL_E_LONG, "prompt: expected at most %d tokens, the context, got %lld", m->size.context,
                        (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= m->vocabulary)
            return hal_fail(SATCHEL_E_ARGUMENT, "token id: expected 0 to %d, got %d", m->vocabulary - 1, ids[i]);
    return 0;
}

static void end_reply(satchel_reply *r) {
    choices_free(r->choices);
    free(r->prompt);
    answer_free(&r->answer);
    free(r);
}

static int begin_text(const satchel_model *m, const satchel_generate_options *o, answer *out) {
    answer_options text = {.stops = o->stop,
                           .n_stops = o->n_stop,
                           .include_stop = o->include_stop,
                           .open = o->thinking_open,
                           .close = o->thinking_close,
                           .begins = o->thinking_begin};
    int code = answer_begin(out, &m->words, &text);
    return code == HAL_E_INVALID ? SATCHEL_E_ARGUMENT : model_code(code);
}

int32_t satchel_generate(satchel_model *m, const int32_t *ids, int64_t count, const satchel_generate_options *options,
                         satchel_reply **reply) {
    satchel_generate_options o = sampling_defaults();
    satchel_reply *r;
    int code;
    if (!m || !ids || !reply)
        return argument("satchel_generate: expected a model, tokens and a place for the reply, got NULL");
    if ((options && (code = take_options(&o, options, sizeof o))) || (code = check_prompt(m, ids, count)))
        return code;
    r = calloc(1, sizeof *r);
    if (!r || !(r->prompt = malloc((size_t)count * sizeof *ids))) {
        free(r);
        return hal_fail(SATCHEL_E_MEMORY, "no memory for a reply");
    }
    memcpy(r->prompt, ids, (size_t)count * sizeof *ids);
    r->model = m;
    r->slot = -1;
    r->n_prompt = count;
    r->most = o.max_tokens;
    r->ignore_end = (o.flags & SATCHEL_IGNORE_END) != 0;
    if (!(code = sampling_record(&o, &r->sampling)) && o.seed < 0)
        r->sampling.seed = (uint64_t)draw_seed(r);
    r->reason = r->most == 0 ? SATCHEL_LENGTH : 0;
    if (!code)
        code = begin_text(m, &o, &r->answer);
    if (!code)
        code = m->worker ? choices_check(m, &o) : choices_open(m, &o, ids, count, &r->choices);
    if (!code) {
        pthread_mutex_lock(&m->lock);
        code = reply_begin(r, &o);
        pthread_mutex_unlock(&m->lock);
    }
    if (code)
        end_reply(r);
    else
        *reply = r;
    return code;
}

int32_t satchel_generate_text(satchel_model *m, const char *text, int64_t length, uint32_t flags,
                              const satchel_generate_options *options, satchel_reply **reply) {
    token_list list = {0};
    int code =
        m ? tokenize(m, text, length, flags, &list) : argument("satchel_generate_text: expected a model, got NULL");
    if (!code && !list.n)
        code = argument("prompt: expected a text with one token or more, got none");
    if (!code)
        code = satchel_generate(m, list.ids, list.n, options, reply);
    free(list.ids);
    return code;
}

/* The next token, with the text that it released; 0: there is none, and what was held back is released. The lock is held. */
static int next_token(satchel_reply *r, int32_t *token) {
    int code = r->reason == SATCHEL_STOPPED ? 0 : reply_advance(r);
    if (code)
        return code;
    if (r->reason != SATCHEL_STOPPED && reply_take(r, token)) {
        code = model_code(answer_add(&r->answer, *token));
        r->reason = r->answer.stopped >= 0 ? SATCHEL_STOPPED : r->reason;
        return code ? code : 1;
    }
    if (!r->flushed) {
        r->flushed = 1;
        code = model_code(answer_end(&r->answer));
        r->reason = r->answer.stopped >= 0 ? SATCHEL_STOPPED : r->reason;
    }
    return code;
}

int32_t satchel_reply_next(satchel_reply *r, satchel_piece *piece) {
    satchel_piece p = {.token = -1, .text = ""};
    const answer_piece *said;
    int has = 0;
    if (!r || !piece)
        return argument("satchel_reply_next: expected a reply and a piece, got NULL");
    if (!(said = answer_take(&r->answer))) {
        pthread_mutex_lock(&r->model->lock);
        has = next_token(r, &p.token);
        pthread_mutex_unlock(&r->model->lock);
        if (has < 0)
            return has;
        said = answer_take(&r->answer);
    }
    if (!said && !has)
        return 0;
    if (said) {
        p.text = r->answer.out.data + said->at;
        p.length = (int64_t)said->size;
        p.kind = said->kind;
    }
    give(piece, &p, sizeof p);
    return 1;
}

int32_t satchel_report(const satchel_reply *r, satchel_reply_report *report) {
    satchel_reply_report told = {0};
    if (!r || !report)
        return argument("satchel_report: expected a reply and a place for its report, got NULL");
    told.reason = r->reason;
    told.prompt_tokens = r->n_prompt;
    told.cached_tokens = r->cached;
    told.tokens = r->made;
    told.seed = (int64_t)r->sampling.seed;
    told.stop = r->answer.stopped;
    give(report, &told, sizeof told);
    return 0;
}

void satchel_reply_free(satchel_reply *r) {
    if (!r)
        return;
    pthread_mutex_lock(&r->model->lock);
    reply_end(r);
    pthread_mutex_unlock(&r->model->lock);
    end_reply(r);
}
