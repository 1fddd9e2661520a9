/* model.c: see model.h. What belongs to the CPU backend is called through hal.h alone. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "model.h"
#include "size.h"

enum { LINE = 64, FORMAT_I8 = 24 };

int model_code(int code) {
    return code == HAL_E_MEMORY ? SATCHEL_E_MEMORY : code ? SATCHEL_E_DEVICE : 0;
}

/* The same for a fault of the file. */
static int file_code(int code) {
    return code == HAL_E_MEMORY        ? SATCHEL_E_MEMORY
           : code == HAL_E_UNSUPPORTED ? SATCHEL_E_UNBUILT
           : code                      ? SATCHEL_E_FILE
                                       : 0;
}

/* Settles context, slots and pools. */
static int settle(satchel_model *m, const satchel_model_options *o) {
    const plan_head *h = m->plan.head;
    cache_size *c = &m->size;
    int32_t context = o->context ? o->context : (int32_t)h->context, slots = o->slots ? o->slots : (int32_t)h->slots;
    if (context < (int32_t)h->least_context || context > (int32_t)h->most_context)
        return hal_fail(SATCHEL_E_ARGUMENT, "context: expected %u to %u for this file, got %d", h->least_context,
                        h->most_context, context);
    if (slots < 1 || slots > MOST_SLOTS)
        return hal_fail(SATCHEL_E_ARGUMENT, "slots: expected 1 to %d, got %d", MOST_SLOTS, slots);
    *c = (cache_size){.context = context, .slots = slots};
    c->width = context / (int32_t)h->block + (context % (int32_t)h->block != 0);
    for (uint32_t k = 0; k < h->n_groups; k++) {
        c->pools[k] = blocks_pool(m->plan.groups[k].window, slots, c->width, (int32_t)h->block, (int32_t)h->batch);
        if (c->pools[k] < 1)
            return hal_fail(SATCHEL_E_MEMORY, "no memory for %d slots of %d tokens", slots, context);
    }
    return 0;
}

static int reserve(satchel_model *m, uint64_t size, uint32_t usage, hal_buffer **out) {
    hal_bufdesc desc = {.size = size < LINE ? LINE : size, .usage = usage};
    return model_code(m->backend->alloc(m->device, &desc, out));
}

/* The tensor of a weight, which must be as the plan says. */
static const gguf_tensor *tensor_of(const satchel_model *m, const plan_weight *w) {
    const gguf_tensor *t = gguf_find(&m->gguf, m->plan.names + w->name, w->name_size);
    if (t && t->size && t->format == w->format && t->ndim == w->ndim && !memcmp(t->shape, w->shape, sizeof t->shape))
        return t;
    hal_fail(SATCHEL_E_FILE, "tensor %.*s: expected one of the format and shape of the plan; build the file again",
             (int)(w->name_size < 64 ? w->name_size : 64), m->plan.names + w->name);
    return NULL;
}

static uint64_t packed_bytes(const satchel_model *m, const plan_weight *w) {
    const int64_t *s = w->shape;
    return m->backend->packed(m->device, w->format, w->ndim == 3 ? s[0] : 1, s[w->ndim - 2], s[w->ndim - 1]);
}

/* The tensor of ready-packed weights, NULL where there is none. */
static const gguf_tensor *find_panels(const satchel_model *m) {
    return gguf_find(&m->gguf, "satchel.panels", 14);
}

/* An error unless the packed weights fill the tensor that has them. */
static int check_panels(const satchel_model *m, uint64_t total) {
    const gguf_tensor *t = find_panels(m);
    if (!total || (t && t->format == FORMAT_I8 && t->size == total && t->offset % LINE == 0))
        return 0;
    return hal_fail(SATCHEL_E_FILE,
                    "tensor satchel.panels: expected %llu bytes of packed weights; build the file again",
                    (unsigned long long)total);
}

/* The place of each weight: in the mapped file, or in the buffer of packed ones, whose bytes it sums up. That buffer is the mapped
 * file, too, where it has them ready. */
static int place_weights(satchel_model *m, uint64_t *at, uint64_t *total) {
    uint32_t how = PACKED_NOT;
    const gguf_tensor *panels = find_panels(m);
    *total = 0;
    for (uint32_t i = 0; i < m->plan.head->n_weights; i++) {
        const plan_weight *w = m->plan.weights + i;
        const gguf_tensor *t = w->packed == PACKED_IN_FILE ? panels : tensor_of(m, w);
        uint64_t bytes;
        if (!t && w->packed == PACKED_IN_FILE)
            return check_panels(m, 1);
        if (!t)
            return SATCHEL_E_FILE;
        at[i] = w->packed == PACKED_AT_OPEN ? *total : w->packed ? t->offset + *total : t->offset;
        if (!w->packed)
            continue;
        if (how != PACKED_NOT && how != w->packed)
            return hal_fail(SATCHEL_E_FILE,
                            "satchel.plan: some packed weights alone are in satchel.panels; build again");
        how = w->packed;
        if (w->ndim < 2 || w->ndim > 3 || !(bytes = packed_bytes(m, w)))
            return hal_fail(SATCHEL_E_FILE, "tensor %.*s: this library does not pack it; build the file again",
                            (int)(w->name_size < 64 ? w->name_size : 64), m->plan.names + w->name);
        *total = size_line_up(size_add(*total, bytes), LINE);
    }
    m->has_panels = how == PACKED_IN_FILE;
    return m->has_panels ? check_panels(m, *total) : 0;
}

static int load_weights(satchel_model *m, const uint64_t *at, uint64_t total) {
    int code = m->has_panels ? 0 : reserve(m, total, HAL_WEIGHT, &m->packed);
    for (uint32_t i = 0; !code && i < m->plan.head->n_weights; i++) {
        const plan_weight *w = m->plan.weights + i;
        const int64_t *s = w->shape;
        const gguf_tensor *t;
        if (w->packed != PACKED_AT_OPEN)
            continue;
        t = tensor_of(m, w);
        code = model_code(m->backend->pack(m->packed, at[i], w->format, w->ndim == 3 ? s[0] : 1, s[w->ndim - 2],
                                           s[w->ndim - 1], m->map.data + t->offset));
        file_map_forget(&m->map, t->offset, t->size); /* nothing reads them again */
    }
    return code;
}

/* Compiles a plan into the next program. */
static int add_program(satchel_model *m, const plan_tables *p, const uint64_t *states, const uint64_t *weights,
                       const uint64_t *sizes) {
    const plan_entry *e = p->entry;
    program *made = m->programs + m->n_programs;
    hal_view *views = calloc((size_t)e->n_views + 1, sizeof *views);
    hal_bufdesc descs[N_BUFFERS] = {{0, HAL_STEP, 0},
                                    {e->arena, HAL_ARENA, 0},
                                    {sizes[0], HAL_STATE, 0},
                                    {0, HAL_CONST, 0},
                                    {e->out, HAL_OUT, 0},
                                    {m->map.size, HAL_WEIGHT, 0},
                                    {m->has_panels ? m->map.size : sizes[1], HAL_WEIGHT, 0}};
    hal_plan plan = {.n_steps = e->n_steps,
                     .n_views = e->n_views,
                     .n_buffers = N_BUFFERS,
                     .n_ops = e->n_ops,
                     .n_args = e->n_args,
                     .step_buffer = BUFFER_STEP,
                     .steps = p->steps,
                     .views = views,
                     .buffers = descs,
                     .ops = p->ops,
                     .args = p->args};
    int code = file_code(plan_block(&m->plan, p, &m->size, &made->layout));
    if (!views)
        code = hal_fail(SATCHEL_E_MEMORY, "no memory for a plan of %u views", e->n_views);
    *made =
        (program){.tokens = e->tokens, .rows = e->rows, .what = e->what, .output = e->output, .layout = made->layout};
    m->n_programs++;
    if (!code && !(made->block = calloc(1, made->layout.size)))
        code = hal_fail(SATCHEL_E_MEMORY, "no memory for a step block of %llu bytes",
                        (unsigned long long)made->layout.size);
    if (!code && !(code = reserve(m, made->layout.size, HAL_STEP, &made->step)) &&
        !(code = reserve(m, e->n_consts, HAL_CONST, &made->consts)) && e->n_consts)
        code = model_code(m->backend->write(made->consts, 0, p->consts, e->n_consts));
    if (!code) {
        hal_buffer *buffers[N_BUFFERS] = {made->step, m->arena, m->state, made->consts, m->out, m->mapped, m->packed};
        if (m->has_panels)
            buffers[BUFFER_PACKED] = m->mapped;
        descs[BUFFER_STEP].size = made->layout.size;
        descs[BUFFER_CONST].size = e->n_consts;
        plan_views(&m->plan, p, &m->size, states, weights, views);
        code = model_code(m->backend->compile(m->device, &plan, buffers, &made->exec));
    }
    free(views);
    return code;
}

static void end_programs(satchel_model *m) {
    for (; m->n_programs; m->n_programs--) {
        program *p = m->programs + m->n_programs - 1;
        if (p->exec)
            m->backend->release(p->exec);
        if (p->step)
            m->backend->free(p->step);
        if (p->consts)
            m->backend->free(p->consts);
        free(p->block);
        *p = (program){0};
    }
}

/* Compiles the plans of the first variant that this machine's kernels take. */
static int compile_plans(satchel_model *m, const uint64_t *states, const uint64_t *weights, const uint64_t *sizes) {
    int code = SATCHEL_E_FILE;
    for (uint32_t variant = 0; variant < m->plan.head->n_variants; variant++) {
        code = SATCHEL_E_FILE;
        for (uint32_t i = 0; i < m->plan.head->n_plans; i++)
            if (m->plan.plans[i].entry->variant == variant &&
                (code = add_program(m, m->plan.plans + i, states, weights, sizes)))
                break;
        if (!code)
            return 0;
        end_programs(m);
    }
    return code;
}

static int compile_all(satchel_model *m) {
    const plan_head *h = m->plan.head;
    uint64_t *states = calloc((size_t)h->n_states + h->n_weights + 1, sizeof *states), *weights = states + h->n_states;
    uint64_t sizes[2] = {0}, arena = 0, out = 0; /* sizes: of the states, and of packed weights */
    int code = states ? 0 : hal_fail(SATCHEL_E_MEMORY, "no memory for a list of weights");
    for (uint32_t i = 0; i < h->n_plans; i++) {
        arena = arena > m->plan.plans[i].entry->arena ? arena : m->plan.plans[i].entry->arena;
        out = out > m->plan.plans[i].entry->out ? out : m->plan.plans[i].entry->out;
    }
    if (!code && !(code = place_weights(m, weights, sizes + 1))) {
        sizes[0] = plan_states(&m->plan, &m->size, states);
        if (!(code = load_weights(m, weights, sizes[1])) && !(code = reserve(m, sizes[0], HAL_STATE, &m->state)) &&
            !(code = reserve(m, arena, HAL_ARENA, &m->arena)) && !(code = reserve(m, out, HAL_OUT, &m->out)))
            code = compile_plans(m, states, weights, sizes);
    }
    free(states);
    return code;
}

static int open_device(satchel_model *m, const satchel_model_options *o) {
    hal_options options = {.threads = o->threads, .threads_decode = o->threads_decode, .flags = HAL_DETERMINISTIC};
    hal_info info;
    int code;
    m->backend = hal_backend_entry();
    if (m->backend->hash != HAL_ABI_HASH || !m->backend->wrap || !m->backend->packed || !m->backend->pack)
        return hal_fail(SATCHEL_E_DEVICE, "the kernels are of another version than the library");
    if ((code = m->backend->open(0, &options, &m->device)))
        return code == HAL_E_INVALID ? SATCHEL_E_ARGUMENT : model_code(code);
    m->backend->info(m->device, &info);
    memcpy(m->kernels, info.variant, sizeof m->kernels);
    return 0;
}

/* Reads the tables of the tokenizer and of the chat template. */
static int read_texts(satchel_model *m) {
    int code = file_code(words_read(&m->gguf, (uint32_t)m->vocabulary, &m->words));
    return code ? code : file_code(template_section_read(m->gguf.chat, &m->chat));
}

static int read_file(satchel_model *m, const char *path) {
    int code;
    /* From here on a file that is cut short is an error of a step, no signal. */
    if ((code = model_code(m->backend->wrap(m->device, m->map.data, m->map.size, &m->mapped))))
        return code;
    if ((code = file_code(gguf_read(m->map.data, m->map.size, &m->gguf))))
        return code;
    if (!m->gguf.plan.data)
        return hal_fail(SATCHEL_E_UNBUILT, "%s: holds no plan: run `satchel build %s -o NEW.gguf` first", path, path);
    if ((code = file_code(plan_section_read(&m->gguf, &m->plan))))
        return code;
    m->vocabulary = (int32_t)m->plan.head->vocabulary;
    m->embedding = m->plan.head->pooling ? (int32_t)m->plan.head->width : 0;
    return read_texts(m);
}

static int open_slots(satchel_model *m) {
    int code = model_code(blocks_open(&m->plan, &m->size, &m->blocks));
    for (int i = 0; !code && i < m->size.slots; i++)
        if (!(m->tokens[i] = calloc((size_t)m->size.context + 1, sizeof *m->tokens[i])))
            code = hal_fail(SATCHEL_E_MEMORY, "no memory for the tokens of %d slots", m->size.slots);
    return code;
}

int model_open(const char *path, const file_map *map, const satchel_model_options *o, satchel_model *m) {
    int code;
    *m = (satchel_model){.map = *map};
    if ((code = open_device(m, o)) || (code = read_file(m, path)) || (code = settle(m, o)) || (code = compile_all(m)) ||
        (code = open_slots(m))) {
        model_close(m);
        return code;
    }
    pthread_mutex_init(&m->lock, NULL);
    return 0;
}

int model_open_in_worker(const char *path, const satchel_model_options *o, satchel_model *m) {
    worker_facts f;
    int code;
    *m = (satchel_model){0};
    if ((code = worker_open(o, path, &m->worker, &f)))
        return code;
    m->size = (cache_size){.context = f.context, .slots = f.slots};
    m->vocabulary = f.vocabulary;
    m->embedding = f.embedding;
    memcpy(m->kernels, f.kernels.data, f.kernels.size < sizeof m->kernels ? f.kernels.size : sizeof m->kernels - 1);
    m->gguf.tokenizer = f.tokenizer;
    m->gguf.chat = f.chat;
    if ((code = read_texts(m))) {
        model_close(m);
        return code;
    }
    m->gguf.tokenizer = m->gguf.chat =
        (gguf_bytes){NULL, 0}; /* they are copied, and the worker's next answer takes their place */
    pthread_mutex_init(&m->lock, NULL);
    return 0;
}

void model_close(satchel_model *m) {
    hal_buffer *buffers[] = {m->packed, m->state, m->arena, m->out, m->mapped};
    end_programs(m);
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (buffers[i])
            m->backend->free(buffers[i]);
    if (m->device)
        m->backend->close(m->device);
    for (int i = 0; i < MOST_SLOTS; i++)
        free(m->tokens[i]);
    blocks_free(&m->blocks);
    trie_free(m->trie);
    words_free(&m->words);
    template_section_free(&m->chat);
    plan_section_free(&m->plan);
    gguf_free(&m->gguf);
    worker_close(m->worker);
    file_map_close(&m->map);
    *m = (satchel_model){0};
}
