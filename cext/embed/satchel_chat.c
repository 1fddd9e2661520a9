/* satchel_chat.c: the functions of satchel.h for chats. A prompt is one block of memory of its own. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "chat.h"
#include "error.h"
#include "model.h"

struct satchel_chat_prompt {
    char *text;
    int32_t *ids;
    int64_t size, count;
    int32_t thinks;
};

static int argument(const char *what) {
    return hal_fail(SATCHEL_E_ARGUMENT, "%s", what);
}

/* The text of a constant, which ends with a zero byte in the section. */
static const char *constant_text(const tpl_template *t, uint32_t constant) {
    return t->values[constant].text->data;
}

int32_t satchel_chat_facts(const satchel_model *m, satchel_chat_format *format) {
    const tpl_template *t = m ? &m->chat : NULL;
    satchel_chat_format f = {0, 0, "", "", "", "", ""};
    uint32_t size = 0;
    if (!m || !format)
        return argument("satchel_chat_facts: expected a model and a place for its format, got NULL");
    memcpy(&size, format, sizeof size);
    if (t->head) {
        f.flags = (t->head->n_variants || m->worker ? SATCHEL_CHAT_TEMPLATE : 0) | (t->head->flags & 31) << 1;
        f.thinking_begin = constant_text(t, t->head->thinking_begin);
        f.thinking_end = constant_text(t, t->head->thinking_end);
        f.tool_calls = constant_text(t, t->head->calls_format);
        f.tool_calls_begin = constant_text(t, t->head->calls_begin);
        f.thinking_switches = constant_text(t, t->head->switches);
    }
    if (size > sizeof size)
        memcpy((char *)format + sizeof size, (const char *)&f + sizeof size,
               (size < sizeof f ? size : sizeof f) - sizeof size);
    return 0;
}

static int code_of(int code) {
    return code == HAL_E_MEMORY        ? SATCHEL_E_MEMORY
           : code == HAL_E_UNSUPPORTED ? SATCHEL_E_UNBUILT
           : code == HAL_E_INVALID     ? SATCHEL_E_ARGUMENT
                                       : code;
}

/* Copies a rendering out of its heap. */
static int keep(tpl_heap *h, const tpl_template *t, tpl_value prompt, token_list *ids, satchel_chat_prompt **out) {
    satchel_chat_prompt *made = calloc(1, sizeof *made);
    tpl_builder plain = {0};
    tpl_put_unescaped(h, &t->escape, &plain, prompt.text->data, prompt.text->size);
    if (made && !h->code && (made->text = malloc((size_t)plain.size + 1))) {
        if (plain.size)
            memcpy(made->text, plain.data, (size_t)plain.size);
        made->text[plain.size] = 0;
        made->size = (int64_t)plain.size;
        made->ids = ids->ids;
        made->count = ids->n;
        made->thinks = chat_thinks(t, prompt);
        *ids = (token_list){0};
        *out = made;
        return 0;
    }
    free(made);
    return h->code ? h->code : tpl_fail(h, HAL_E_MEMORY, "no memory for a prompt");
}

static int render(const satchel_model *m, tpl_heap *h, const char *request, uint64_t size, const struct tm *now,
                  satchel_chat_prompt **out) {
    tpl_value prompt = chat_render(h, &m->chat, request, size, 1, now);
    token_list ids = {0};
    int code = h->code;
    if (!code)
        code = chat_tokenize(h, &m->chat, &m->words, prompt, &ids);
    if (!code)
        code = keep(h, &m->chat, prompt, &ids, out);
    free(ids.ids);
    if (h->code)
        hal_fail(code_of(h->code), "%s", h->reason);
    return code_of(code);
}

/* The same by a worker process, for a template that this library does not run. */
static int render_in_worker(const satchel_model *m, const char *request, uint64_t size, satchel_chat_prompt **out) {
    satchel_model *locked = (satchel_model *)(uintptr_t)m;
    satchel_chat_prompt *made = calloc(1, sizeof *made);
    worker_prompt p;
    int code;
    if (!made)
        return hal_fail(SATCHEL_E_MEMORY, "no memory for a prompt");
    pthread_mutex_lock(&locked->lock);
    if (!(code = worker_render(m->worker, request, size, &p))) {
        made->text = malloc(p.text.size + 1);
        made->ids = malloc(p.ids.size + 1);
        if (made->text && made->ids) {
            memcpy(made->text, p.text.data, p.text.size);
            made->text[p.text.size] = 0;
            memcpy(made->ids, p.ids.data, p.ids.size);
            made->size = (int64_t)p.text.size;
            made->count = (int64_t)(p.ids.size / sizeof *made->ids);
            made->thinks = p.thinks;
        } else {
            code = hal_fail(SATCHEL_E_MEMORY, "no memory for a prompt");
        }
    }
    pthread_mutex_unlock(&locked->lock);
    if (code)
        satchel_chat_prompt_free(made);
    else
        *out = made;
    return code;
}

static struct tm local_now(void) {
    time_t seconds = time(NULL);
    struct tm now = {0};
#if defined(_WIN32)
    localtime_s(&now, &seconds);
#else
    localtime_r(&seconds, &now);
#endif
    return now;
}

int32_t satchel_chat_render(const satchel_model *m, const char *request, int64_t length, satchel_chat_prompt **prompt) {
    struct tm now = local_now();
    tpl_heap heap;
    uint64_t size;
    int code;
    if (!m || !request || !prompt)
        return argument("satchel_chat_render: expected a model, a request and a place for the prompt, got NULL");
    if (!m->chat.head)
        return hal_fail(SATCHEL_E_UNBUILT,
                        "the file was built without a chat template: build it again with `satchel build`");
    size = length < 0 ? strlen(request) : (uint64_t)length;
    if (size > UINT32_MAX / 4)
        return argument("satchel_chat_render: expected a request of at most 1 GB");
    if (m->worker && !m->chat.head->n_variants)
        return render_in_worker(m, request, size, prompt);
    chat_begin(&heap, size);
    code = render(m, &heap, request, size, &now, prompt);
    tpl_end(&heap);
    return code;
}

const char *satchel_chat_prompt_text(const satchel_chat_prompt *p, int64_t *length) {
    if (length)
        *length = p ? p->size : 0;
    return p ? p->text : "";
}

const int32_t *satchel_chat_prompt_ids(const satchel_chat_prompt *p, int64_t *count) {
    if (count)
        *count = p ? p->count : 0;
    return p ? p->ids : NULL;
}

int32_t satchel_chat_prompt_thinks(const satchel_chat_prompt *p) {
    return p && p->thinks;
}

void satchel_chat_prompt_free(satchel_chat_prompt *p) {
    if (!p)
        return;
    free(p->text);
    free(p->ids);
    free(p);
}
