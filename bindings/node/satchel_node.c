/* satchel_node.c: libsatchel as a Node-API addon: open, generate, chat, next, free. Tokens are computed in Node's pool of threads, so
 * the event loop never waits. satchel.mjs makes classes of these functions.
 *
 * A model is counted: by its handle in JavaScript, and by each reply. So it is closed after its replies, in whatever order the
 * collector takes them. */
#define NAPI_VERSION 3
#include <node_api.h>
#include <stdlib.h>
#include <string.h>

#include "satchel.h"

typedef struct {
    satchel_model *model;
    int count; /* changed in the main thread alone */
} model_box;

typedef struct {
    model_box *owner;
    satchel_reply *reply; /* NULL: freed */
    int busy, ended;      /* a token is being computed; free was asked for meanwhile */
} reply_box;

typedef struct {
    napi_async_work work;
    napi_deferred deferred;
    napi_ref keep; /* of the reply's handle, while a token is computed */
    reply_box *box;
    int32_t code;
    char *text;
    int64_t length;
} token_work;

static napi_value fail(napi_env env, const char *text) {
    napi_throw_error(env, NULL, text);
    return NULL;
}

static void drop_model(model_box *box) {
    if (--box->count)
        return;
    satchel_close(box->model);
    free(box);
}

static void end_reply(reply_box *box) {
    satchel_reply_free(box->reply);
    if (box->reply)
        drop_model(box->owner);
    box->reply = NULL;
}

static void model_gone(napi_env env, void *data, void *hint) {
    (void)env, (void)hint;
    drop_model(data);
}

static void reply_gone(napi_env env, void *data, void *hint) {
    (void)env, (void)hint;
    end_reply(data);
    free(data);
}

/* A property's number; `otherwise` where the object has none. */
static double number_of(napi_env env, napi_value object, const char *name, double otherwise) {
    napi_value value;
    napi_valuetype kind;
    double found;
    if (napi_typeof(env, object, &kind) != napi_ok || kind != napi_object ||
        napi_get_named_property(env, object, name, &value) != napi_ok ||
        napi_get_value_double(env, value, &found) != napi_ok)
        return otherwise;
    return found;
}

/* The bytes of a string, for free(). */
static char *text_of(napi_env env, napi_value value, size_t *length) {
    char *text;
    if (napi_get_value_string_utf8(env, value, NULL, 0, length) != napi_ok || !(text = malloc(*length + 1)))
        return NULL;
    napi_get_value_string_utf8(env, value, text, *length + 1, length);
    return text;
}

static void *handle_of(napi_env env, napi_value value) {
    napi_valuetype kind;
    void *found = NULL;
    if (napi_typeof(env, value, &kind) != napi_ok || kind != napi_external)
        return NULL;
    napi_get_value_external(env, value, &found);
    return found;
}

/* A property that is a string, for free(); NULL where the object has none. */
static char *property_text(napi_env env, napi_value object, const char *name) {
    napi_value value;
    napi_valuetype kind;
    size_t length;
    if (napi_typeof(env, object, &kind) != napi_ok || kind != napi_object ||
        napi_get_named_property(env, object, name, &value) != napi_ok)
        return NULL;
    return text_of(env, value, &length);
}

/* open(path, {context, slots, threads, engine, worker}) */
static napi_value open_model(napi_env env, napi_callback_info info) {
    napi_value args[2], made;
    size_t n = 2, length;
    satchel_model_options options;
    model_box *box = calloc(1, sizeof *box);
    char *path, *worker;
    int32_t code;
    napi_get_cb_info(env, info, &n, args, NULL, NULL);
    path = box ? text_of(env, args[0], &length) : NULL;
    if (!path) {
        free(box);
        return fail(env, "open: expected a path");
    }
    satchel_model_options_init(&options, sizeof options);
    options.context = (int32_t)number_of(env, args[1], "context", 0);
    options.slots = (int32_t)number_of(env, args[1], "slots", 0);
    options.threads = (int32_t)number_of(env, args[1], "threads", 0);
    options.engine = (int32_t)number_of(env, args[1], "engine", SATCHEL_ENGINE_LIBRARY);
    options.worker = worker = property_text(env, args[1], "worker");
    code = satchel_open(path, &options, &box->model);
    free(path);
    free(worker);
    if (code < 0) {
        free(box);
        return fail(env, satchel_error());
    }
    box->count = 1;
    napi_create_external(env, box, model_gone, NULL, &made);
    return made;
}

/* Begins an answer to a conversation, whose request satchel_chat_render() takes. */
static int32_t begin_chat(satchel_model *model, const char *request, size_t length, const satchel_generate_options *o,
                          satchel_reply **reply) {
    satchel_chat_prompt *prompt = NULL;
    int64_t count;
    int32_t code = satchel_chat_render(model, request, (int64_t)length, &prompt);
    if (code >= 0) {
        const int32_t *ids = satchel_chat_prompt_ids(prompt, &count);
        code = satchel_generate(model, ids, count, o, reply);
    }
    satchel_chat_prompt_free(prompt);
    return code;
}

/* An answer to a text, or to a conversation as JSON. */
static napi_value begin(napi_env env, napi_callback_info info, int chat) {
    napi_value args[3], made;
    size_t n = 3, length;
    satchel_generate_options o;
    model_box *owner;
    reply_box *box;
    char *text;
    int32_t code;
    napi_get_cb_info(env, info, &n, args, NULL, NULL);
    if (!(owner = handle_of(env, args[0])) || !(text = text_of(env, args[1], &length)))
        return fail(env, chat ? "chat: expected a model and a request" : "generate: expected a model and a text");
    if (!(box = calloc(1, sizeof *box))) {
        free(text);
        return fail(env, "no memory for a reply");
    }
    satchel_generate_options_init(&o, sizeof o);
    o.temperature = (float)number_of(env, args[2], "temperature", o.temperature);
    o.max_tokens = (int64_t)number_of(env, args[2], "max_tokens", (double)o.max_tokens);
    o.seed = (int64_t)number_of(env, args[2], "seed", (double)o.seed);
    o.top_k = (int32_t)number_of(env, args[2], "top_k", o.top_k);
    o.top_p = (float)number_of(env, args[2], "top_p", o.top_p);
    o.min_p = (float)number_of(env, args[2], "min_p", o.min_p);
    code = chat ? begin_chat(owner->model, text, length, &o, &box->reply)
                : satchel_generate_text(owner->model, text, (int64_t)length, 0, &o, &box->reply);
    free(text);
    if (code < 0) {
        free(box);
        return fail(env, satchel_error());
    }
    box->owner = owner;
    owner->count++;
    napi_create_external(env, box, reply_gone, NULL, &made);
    return made;
}

/* generate(model, text, {temperature, max_tokens, seed, top_k, top_p, min_p}) */
static napi_value generate(napi_env env, napi_callback_info info) {
    return begin(env, info, 0);
}

/* chat(model, request, the same options) */
static napi_value chat(napi_env env, napi_callback_info info) {
    return begin(env, info, 1);
}

/* In a thread of the pool. The text of an error belongs to this thread, so it is copied here. */
static void compute(napi_env env, void *data) {
    token_work *w = data;
    satchel_piece piece = {.size = sizeof piece};
    const char *text;
    (void)env;
    w->code = satchel_reply_next(w->box->reply, &piece);
    text = w->code < 0 ? satchel_error() : piece.text;
    w->length = w->code < 0 ? (int64_t)strlen(text) : w->code ? piece.length : 0;
    if ((w->text = malloc((size_t)w->length + 1)))
        memcpy(w->text, w->length ? text : "", (size_t)w->length);
    else
        w->code = SATCHEL_E_MEMORY, w->length = 0;
}

static void computed(napi_env env, napi_status status, void *data) {
    token_work *w = data;
    napi_value value, error;
    w->box->busy = 0;
    if (w->box->ended)
        end_reply(w->box);
    if (status != napi_ok || w->code < 0) {
        napi_create_string_utf8(env, w->text ? w->text : "", (size_t)w->length, &value);
        napi_create_error(env, NULL, value, &error);
        napi_reject_deferred(env, w->deferred, error);
    } else {
        if (w->code)
            napi_create_string_utf8(env, w->text, (size_t)w->length, &value);
        else
            napi_get_null(env, &value);
        napi_resolve_deferred(env, w->deferred, value);
    }
    napi_delete_reference(env, w->keep);
    napi_delete_async_work(env, w->work);
    free(w->text);
    free(w);
}

/* next(reply): a promise of the next text, of null where the answer is over. */
static napi_value next(napi_env env, napi_callback_info info) {
    napi_value arg, promise, name;
    size_t n = 1;
    reply_box *box;
    token_work *w;
    napi_get_cb_info(env, info, &n, &arg, NULL, NULL);
    box = handle_of(env, arg);
    if (!box || !box->reply || box->ended)
        return fail(env, "next: expected a reply that was not freed");
    if (box->busy)
        return fail(env, "next: the token before is still being computed: await it first");
    if (!(w = calloc(1, sizeof *w)))
        return fail(env, "no memory for a token");
    w->box = box;
    box->busy = 1;
    napi_create_promise(env, &w->deferred, &promise);
    napi_create_reference(env, arg, 1, &w->keep);
    napi_create_string_utf8(env, "satchel", NAPI_AUTO_LENGTH, &name);
    napi_create_async_work(env, NULL, name, compute, computed, w, &w->work);
    napi_queue_async_work(env, w->work);
    return promise;
}

/* free(reply): ends the answer and frees its slot, after the token that is being computed. */
static napi_value free_reply(napi_env env, napi_callback_info info) {
    napi_value arg;
    size_t n = 1;
    reply_box *box;
    napi_get_cb_info(env, info, &n, &arg, NULL, NULL);
    if (!(box = handle_of(env, arg)))
        return fail(env, "free: expected a reply");
    box->ended = 1;
    if (!box->busy)
        end_reply(box);
    return NULL;
}

NAPI_MODULE_INIT() {
    static const struct {
        const char *name;
        napi_callback call;
    } functions[] = {
        {"open", open_model}, {"generate", generate}, {"chat", chat}, {"next", next}, {"free", free_reply}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        napi_value made;
        napi_create_function(env, functions[i].name, NAPI_AUTO_LENGTH, functions[i].call, NULL, &made);
        napi_set_named_property(env, exports, functions[i].name, made);
    }
    return exports;
}
