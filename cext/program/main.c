/* main.c: the program of `satchel bundle`: chats in a terminal, or serves, with the model in its own file.
 *
 *     chat [--serve | --chat] [--port N] [--context N] [--slots N] [--threads N] [--seed N] [--greedy] [--model FILE] [--prompt TEXT] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(_WIN32)
#include <windows.h>
/* It needs the types of windows.h. */
#include <shellapi.h>
#endif

#include "backend.h"
#include "bundle.h"
#include "conversation.h"
#include "serve.h"

/* By this `satchel bundle` knows a program, and whether it runs the plans of its version. */
static const struct {
    char mark[16];
    uint64_t hal;
} identity = {"SATCHEL PROGRAM", HAL_ABI_HASH};

enum { LINE = 16 << 10, TURNS = 512, NAME = 1024, PORT = 8080, SERVE_SLOTS = 4 };

typedef struct {
    const char *model, *prompt; /* NULL: the model of the own file; a conversation */
    int serves, port, context, slots, threads, greedy;
    long long seed;
} options;

static const char usage[] =
    "expected: [--serve | --chat] [--port N] [--context N] [--slots N] [--threads N] [--seed N] [--greedy]\n"
    "          [--model FILE] [--prompt TEXT]\n";

static int number(const char *text, long long most, long long *to) {
    char *end;
    *to = strtoll(text, &end, 10);
    return *text && !*end && *to >= 0 && *to <= most;
}

static int take_number(const char *word, const char *value, options *o) {
    static const char *const names[] = {"--port", "--context", "--slots", "--threads", "--seed"};
    static const long long most[] = {65535, 1 << 30, 64, 1024, 0x7FFFFFFFFFFFFFFF};
    int *const places[] = {&o->port, &o->context, &o->slots, &o->threads};
    for (int i = 0; i < 5; i++) {
        long long n;
        if (strcmp(word, names[i]))
            continue;
        if (!number(value, most[i], &n))
            return 0;
        if (i < 4)
            *places[i] = (int)n;
        else
            o->seed = n;
        return 1;
    }
    return 0;
}

/* The identity is read at run time too, so that no compiler leaves it out. */
static int is_sound(void) {
    const volatile char *mark = identity.mark;
    return mark[0] == 'S' && *(const volatile uint64_t *)&identity.hal == HAL_ABI_HASH;
}

static int read_words(int argc, char **argv, options *o) {
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(word, "--serve"))
            o->serves = 1;
        else if (!strcmp(word, "--chat"))
            o->serves = 0;
        else if (!strcmp(word, "--greedy"))
            o->greedy = 1;
        else if (value && !strcmp(word, "--model"))
            o->model = value, i++;
        else if (value && !strcmp(word, "--prompt"))
            o->prompt = value, i++;
        else if (value && take_number(word, value, o))
            i++;
        else
            return fprintf(stderr, "%s: %s", word, usage), 0;
    }
    return 1;
}

/* The messages of a conversation, whose texts it owns. */
typedef struct {
    message turns[TURNS];
    int count;
} history;

static int remember(history *h, const char *role, const char *text, size_t size) {
    char *kept = malloc(size + 1);
    if (!kept || h->count == TURNS) {
        free(kept);
        return 0;
    }
    memcpy(kept, text, size);
    kept[size] = 0;
    h->turns[h->count++] = (message){role, kept, (int64_t)size};
    return 1;
}

static void forget(history *h, int count) {
    for (int i = 0; i < count; i++)
        free((char *)(uintptr_t)h->turns[i].text);
    memmove(h->turns, h->turns + count, (size_t)(h->count - count) * sizeof *h->turns);
    h->count -= count;
}

/* Writes an answer as it is computed, and remembers it. The oldest turns go where the context has no room for them. */
static int reply(satchel_model *m, history *h, const satchel_generate_options *o) {
    satchel_reply *a;
    const char *text;
    size_t size, all = 0;
    char *whole = NULL;
    int code;
    while ((code = answer_open(m, h->turns, h->count, o, &a)) == SATCHEL_E_LONG && h->count > 2)
        forget(h, 2);
    while (!code && (code = answer_next(a, &text, &size)) > 0) {
        char *grown = realloc(whole, all + size + 1);
        fwrite(text, 1, size, stdout);
        fflush(stdout);
        code = 0;
        if (!grown)
            break;
        memcpy(grown + all, text, size);
        whole = grown;
        all += size;
    }
    satchel_reply_free(a);
    putchar('\n');
    if (h->count >= TURNS - 2)
        forget(h, 2);
    if (!code)
        remember(h, "assistant", whole ? whole : "", all);
    free(whole);
    if (code < 0)
        fprintf(stderr, "%s\n", satchel_error());
    return code;
}

static int chat(satchel_model *m, const options *given) {
    static history h;
    static char line[LINE];
    satchel_generate_options o;
    satchel_generate_options_init(&o, sizeof o);
    o.seed = given->seed;
    if (given->greedy)
        o.temperature = 0;
    if (given->prompt)
        return !remember(&h, "user", given->prompt, strlen(given->prompt)) || reply(m, &h, &o) < 0;
    while (fputs("> ", stdout), fflush(stdout), fgets(line, sizeof line, stdin)) {
        size_t size = strcspn(line, "\r\n");
        if (size && remember(&h, "user", line, size) && reply(m, &h, &o) == SATCHEL_E_DEVICE)
            return 1;
    }
    putchar('\n');
    forget(&h, h.count);
    return 0;
}

#if defined(_WIN32)
static const char separators[] = "/\\";
#else
static const char separators[] = "/";
#endif

/* The file's name without its folder and ending. No system has names of NAME bytes. */
static void name_of(const char *path, char *to, size_t room) {
    const char *at = path;
    for (const char *c = path; *c; c++)
        if (strchr(separators, *c))
            at = c + 1;
    snprintf(to, room, "%.*s", (int)(strrchr(at, '.') > at ? strrchr(at, '.') - at : (long)strlen(at)), at);
}

static int run(int argc, char **argv) {
    static bundle found;
    options o = {.port = PORT, .seed = -1};
    satchel_model_options how;
    satchel_model *model;
    char name[NAME];
    int code, bundled = bundle_find(&found);
    o.serves = !bundled && found.flags & BUNDLE_SERVE;
    if (!is_sound() || !read_words(argc, argv, &o))
        return 2;
    satchel_model_options_init(&how, sizeof how);
    how.context = o.context;
    how.slots = o.slots ? o.slots : o.serves ? SERVE_SLOTS : 1;
    how.threads = o.threads;
    code = o.model ? satchel_open(o.model, &how, &model) : satchel_open_self(&how, &model);
    if (code < 0) {
        fprintf(stderr, "%s\n", satchel_error());
        return 1;
    }
    name_of(o.model ? o.model : found.path, name, sizeof name);
    code = o.serves ? serve_model(model, name, o.port) : chat(model, &o);
    satchel_close(model);
    return code;
}

#if defined(_WIN32)
/* A word of the command line as UTF-8, which stays until the process ends. */
static char *utf8_of(const wchar_t *word) {
    int size = WideCharToMultiByte(CP_UTF8, 0, word, -1, NULL, 0, NULL, NULL);
    char *text = size > 0 ? malloc((size_t)size) : NULL;
    if (text)
        WideCharToMultiByte(CP_UTF8, 0, word, -1, text, size, NULL, NULL);
    return text;
}

/* The words that main() gets are in the system's code page, which lacks most characters: those of the command line are UTF-16. */
int main(void) {
    int count = 0;
    wchar_t **words = CommandLineToArgvW(GetCommandLineW(), &count);
    char **texts = words ? calloc((size_t)count + 1, sizeof *texts) : NULL;
    for (int i = 0; texts && i < count; i++)
        if (!(texts[i] = utf8_of(words[i])))
            texts = NULL;
    if (!texts) {
        fprintf(stderr, "no memory for the command line\n");
        return 1;
    }
    SetConsoleOutputCP(CP_UTF8);
    SetConsoleCP(CP_UTF8);
    return run(count, texts);
}
#else
int main(int argc, char **argv) {
    return run(argc, argv);
}
#endif
