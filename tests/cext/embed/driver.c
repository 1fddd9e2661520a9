/* driver.c: runs the C library by lines of commands from standard input, and answers each with one line; what the tests in Python
 * speak with. A line that fails is answered by "error CODE TEXT".
 *
 *   open PATH CONTEXT SLOTS THREADS [ENGINE PROGRAM]     close
 *   begin N NAME=VALUE... : ID...       next N COUNT     report N     end N
 *     lists: biases=ID/AMOUNT,...  allowed=ID,...  bad_words=ID,ID,-1,...  dry_breakers=HEX,...
 *   grammar NAME (json, value, compact: JSON of any shape): for options grammar=NAME from then on
 *   grammar_text HEX: the same of a text
 *   save N PATH     load PATH     (save_bytes, load_bytes: by memory)
 *   tokenize FLAGS HEX                  detokenize FLAGS ID...          embed FLAGS HEX
 *   chat HEX: whether the prompt ends in reasoning, its text as hex (- for none), its tokens
 *   format: flags and texts of satchel_chat_facts(), as hex
 *   and those of templates.c
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hex.h"
#include "satchel.h"

enum { REPLIES = 64, MOST_IDS = 1 << 16 };
static satchel_model *model;
static satchel_reply *replies[REPLIES];
static satchel_grammar *grammar;
static int32_t ids[MOST_IDS];

static int read_ids(void) {
    int n = 0;
    for (char *word = strtok(NULL, " "); word && n < MOST_IDS; word = strtok(NULL, " "))
        ids[n++] = atoi(word);
    return n;
}

static int number(void) {
    char *word = strtok(NULL, " ");
    return word ? atoi(word) : 0;
}

/* Windows' atof() knows no infinity. */
static double real(const char *word) {
    return strcmp(word, "-inf") ? atof(word) : -INFINITY;
}

static int tell(int64_t code) {
    if (code < 0)
        printf("error %d %s", (int)code, satchel_error());
    return code < 0;
}

static void open_model(void) {
    satchel_model_options o;
    const char *path = strtok(NULL, " ");
    satchel_model_options_init(&o, sizeof o);
    o.context = number();
    o.slots = number();
    o.threads = number();
    o.engine = number();
    o.worker = strtok(NULL, "");
    if (!tell(satchel_open(path, &o, &model))) {
        satchel_model_facts f = {.size = sizeof f};
        satchel_facts(model, &f);
        printf("%d %d %d %s%s", f.context, f.slots, f.vocabulary, f.kernels, f.worker ? " worker" : "");
    }
}

static void close_model(void) {
    satchel_grammar_free(grammar);
    satchel_close(model);
    grammar = NULL;
    model = NULL;
}

#define FIELDS(INTEGER, REAL, DOUBLE)                                                                                  \
    INTEGER(flags)                                                                                                     \
    INTEGER(seed)                                                                                                      \
    INTEGER(max_tokens)                                                                                                \
    INTEGER(top_k)                                                                                                     \
    INTEGER(repeat_last_n)                                                                                             \
    INTEGER(mirostat)                                                                                                  \
    INTEGER(include_stop)                                                                                              \
    INTEGER(thinking_begin)                                                                                            \
    REAL(temperature)                                                                                                  \
    REAL(top_p)                                                                                                        \
    REAL(min_p)                                                                                                        \
    REAL(typical_p)                                                                                                    \
    REAL(top_n_sigma)                                                                                                  \
    REAL(xtc_probability)                                                                                              \
    REAL(xtc_threshold)                                                                                                \
    REAL(dynatemp_range)                                                                                               \
    REAL(dynatemp_exponent)                                                                                            \
    REAL(repeat_penalty)                                                                                               \
    REAL(presence_penalty)                                                                                             \
    REAL(frequency_penalty)                                                                                            \
    REAL(mirostat_tau)                                                                                                 \
    INTEGER(dry_allowed_length)                                                                                        \
    INTEGER(dry_last_n)                                                                                                \
    INTEGER(min_tokens)                                                                                                \
    DOUBLE(mirostat_eta)                                                                                               \
    DOUBLE(dry_multiplier)                                                                                             \
    DOUBLE(dry_base)

/* Lists of options; each is read before satchel_generate() copies it. */
static satchel_bias biases[1 << 12];
static int32_t lists[2][1 << 12];
static char breakers[64][64];
static const char *breaker_texts[64];

/* The next word of a list behind a comma, or NULL. */
static char *next_of(char **rest) {
    char *word = *rest, *comma = word ? strchr(word, ',') : NULL;
    if (comma)
        *comma = 0;
    *rest = comma ? comma + 1 : NULL;
    return word;
}

static void set_list(satchel_generate_options *o, const char *name, char *rest) {
    int64_t n = 0;
    int which = !strcmp(name, "bad_words");
    for (char *word = next_of(&rest); word; word = next_of(&rest), n++) {
        char *slash = strchr(word, '/');
        if (slash)
            biases[n] = (satchel_bias){atoi(word), (float)real(slash + 1)};
        else if (!strcmp(name, "dry_breakers")) {
            size_t size;
            char *text = read_hex(word, &size);
            breaker_texts[n] = memcpy(breakers[n], text, size + 1);
            free(text);
        } else
            lists[which][n] = atoi(word);
    }
    if (!strcmp(name, "biases"))
        o->biases = biases, o->n_biases = n;
    if (!strcmp(name, "allowed"))
        o->allowed = lists[0], o->n_allowed = n;
    if (!strcmp(name, "bad_words"))
        o->bad_words = lists[1], o->n_bad_words = n;
    if (!strcmp(name, "dry_breakers"))
        o->dry_breakers = breaker_texts, o->n_dry_breakers = (int32_t)n;
}

enum { MOST_TEXTS = 16 };
static char *texts[MOST_TEXTS]; /* of the last begin */
static int n_texts;

/* The options that are texts, in hexadecimal digits; `stop` may come several times, before the markers. */
static void set_text(satchel_generate_options *o, const char *name, const char *value) {
    if (n_texts == MOST_TEXTS || (strcmp(name, "stop") && strncmp(name, "thinking_", 9)))
        return;
    size_t size;
    texts[n_texts] = read_hex(value, &size);
    if (!strcmp(name, "stop")) {
        o->stop = (const char *const *)texts;
        o->n_stop = n_texts + 1;
    } else if (!strcmp(name, "thinking_open")) {
        o->thinking_open = texts[n_texts];
    } else {
        o->thinking_close = texts[n_texts];
    }
    n_texts++;
}

static void set(satchel_generate_options *o, char *word) {
    char *value = strchr(word, '=');
    *value++ = 0;
#define INTEGER(name)                                                                                                  \
    if (!strcmp(word, #name))                                                                                          \
        o->name = atoll(value);
#define REAL(name)                                                                                                     \
    if (!strcmp(word, #name))                                                                                          \
        o->name = (float)real(value);
#define DOUBLE(name)                                                                                                   \
    if (!strcmp(word, #name))                                                                                          \
        o->name = real(value);
    FIELDS(INTEGER, REAL, DOUBLE)
    if (!strcmp(word, "grammar"))
        o->grammar = grammar;
    if (!strcmp(word, "samplers"))
        o->samplers = value;
    if (strstr("biases allowed bad_words dry_breakers", word))
        set_list(o, word, value);
    if (strcmp(word, "thinking_begin"))
        set_text(o, word, value);
}

static void begin(void) {
    satchel_generate_options o;
    int n = number();
    satchel_generate_options_init(&o, sizeof o);
    for (char *word = strtok(NULL, " "); word && strcmp(word, ":"); word = strtok(NULL, " "))
        set(&o, word);
    int count = read_ids();
    if (!tell(satchel_generate(model, ids, count, &o, &replies[n])))
        printf("ok");
    while (n_texts) /* the library has copied them */
        free(texts[--n_texts]);
}

static void next(void) {
    int n = number(), count = number();
    satchel_piece p = {.size = sizeof p};
    int32_t code = 1;
    for (int i = 0; i < count && (code = satchel_reply_next(replies[n], &p)) > 0; i++) {
        printf("%d:", p.token);
        for (int64_t k = 0; k < p.length; k++)
            printf("%02x", (unsigned char)p.text[k]);
        printf(":%d ", p.kind);
    }
    if (!tell(code) && !code)
        printf("over");
}

static void report(void) {
    satchel_reply_report r = {.size = sizeof r};
    satchel_report(replies[number()], &r);
    printf("%d %lld %lld %lld %d", r.reason, (long long)r.prompt_tokens, (long long)r.cached_tokens,
           (long long)r.tokens, r.stop);
}

static void read_grammar(void) {
    const char *name = strtok(NULL, " ");
    satchel_grammar *made = NULL;
    int json = !strcmp(name, "json") || !strcmp(name, "value") || !strcmp(name, "compact");
    uint32_t flags = *name == 'v' ? SATCHEL_JSON_VALUE : *name == 'c' ? SATCHEL_JSON_COMPACT : 0;
    if (tell(json ? satchel_grammar_json(model, flags, &made) : satchel_grammar_named(model, name, &made)))
        return;
    satchel_grammar_free(grammar);
    grammar = made;
    printf("ok");
}

static void read_grammar_text(void) {
    size_t size;
    char *text = read_hex(strtok(NULL, " "), &size);
    satchel_grammar *made = NULL;
    if (!tell(satchel_grammar_text(model, text, (int64_t)size, &made))) {
        satchel_grammar_free(grammar);
        grammar = made;
        printf("ok");
    }
    free(text);
}

static void save(int by_memory) {
    satchel_reply *r = replies[number()];
    const char *path = strtok(NULL, " ");
    int64_t size = by_memory ? satchel_save(r, NULL, 0) : satchel_save_file(r, path);
    if (tell(size))
        return;
    printf("%lld", (long long)size);
    if (!by_memory)
        return;
    char *bytes = malloc((size_t)size);
    FILE *f = fopen(path, "wb");
    if (satchel_save(r, bytes, size) != size || fwrite(bytes, 1, (size_t)size, f) != (size_t)size)
        printf(" differs");
    fclose(f);
    free(bytes);
}

static void load(int by_memory) {
    const char *path = strtok(NULL, " ");
    int64_t n;
    if (!by_memory) {
        n = satchel_load_file(model, path, ids, MOST_IDS);
    } else {
        static char bytes[1 << 22];
        FILE *f = fopen(path, "rb");
        size_t size = fread(bytes, 1, sizeof bytes, f);
        char *exact = malloc(size ? size : 1); /* so that a sanitizer sees reads beyond it */
        memcpy(exact, bytes, size);
        fclose(f);
        n = satchel_load(model, exact, (int64_t)size, ids, MOST_IDS);
        free(exact);
    }
    if (!tell(n))
        for (int64_t i = 0; i < n; i++)
            printf("%d ", ids[i]);
}

static void tokenize(void) {
    uint32_t flags = (uint32_t)number();
    size_t size;
    char *text = read_hex(strtok(NULL, " "), &size);
    int64_t n;
    n = satchel_tokenize(model, text, (int64_t)size, flags, ids, MOST_IDS);
    if (!tell(n))
        for (int64_t i = 0; i < n; i++)
            printf("%d ", ids[i]);
    free(text);
}

/* The vector's floats, the bytes of each in hexadecimal digits. */
static void embed(void) {
    enum { MOST_FLOATS = 4096 };
    static float row[MOST_FLOATS];
    uint32_t flags = (uint32_t)number();
    size_t size;
    char *text = read_hex(strtok(NULL, " "), &size);
    int64_t n;
    n = satchel_embed(model, text, (int64_t)size, flags, row, MOST_FLOATS);
    if (!tell(n))
        print_hex(row, sizeof *row * (size_t)n);
    free(text);
}

static void detokenize(void) {
    uint32_t flags = (uint32_t)number();
    int n = read_ids();
    int64_t size = satchel_detokenize(model, ids, n, flags, NULL, 0);
    char *text;
    if (tell(size))
        return;
    text = malloc((size_t)size + 1);
    satchel_detokenize(model, ids, n, flags, text, size + 1);
    print_hex(text, (size_t)size);
    free(text);
}

static void print_word(const char *text, size_t size) {
    print_hex(text, size);
    printf(size ? " " : "- ");
}

static void chat(void) {
    size_t length;
    char *request = read_hex(strtok(NULL, " "), &length);
    satchel_chat_prompt *prompt;
    if (!tell(satchel_chat_render(model, request, -1, &prompt))) {
        int64_t size, count;
        const char *text = satchel_chat_prompt_text(prompt, &size);
        const int32_t *found = satchel_chat_prompt_ids(prompt, &count);
        printf("%d ", satchel_chat_prompt_thinks(prompt));
        print_word(text, (size_t)size);
        for (int64_t i = 0; i < count; i++)
            printf("%d ", found[i]);
        satchel_chat_prompt_free(prompt);
    }
    free(request);
}

static void format(void) {
    satchel_chat_format f = {.size = sizeof f};
    if (tell(satchel_chat_facts(model, &f)))
        return;
    printf("%u ", f.flags);
    print_word(f.thinking_begin, strlen(f.thinking_begin));
    print_word(f.thinking_end, strlen(f.thinking_end));
    print_word(f.tool_calls, strlen(f.tool_calls));
    print_word(f.tool_calls_begin, strlen(f.tool_calls_begin));
    print_word(f.thinking_switches, strlen(f.thinking_switches));
}

#if defined(PUBLIC_FUNCTIONS) /* linked with the library as programs are, which hides what templates.c calls */
static int template_command(const char *word) {
    (void)word;
    return 0;
}
#else
int template_command(const char *word);
#endif

int main(void) {
    static char line[1 << 21];
    while (fgets(line, sizeof line, stdin)) {
        char *word;
        line[strcspn(line, "\n")] = 0;
        word = strtok(line, " ");
        if (!strcmp(word, "open"))
            open_model();
        else if (!strcmp(word, "close"))
            close_model();
        else if (!strcmp(word, "begin"))
            begin();
        else if (!strcmp(word, "next"))
            next();
        else if (!strcmp(word, "report"))
            report();
        else if (!strcmp(word, "end")) {
            int n = number();
            satchel_reply_free(replies[n]);
            replies[n] = NULL;
        } else if (!strcmp(word, "grammar"))
            read_grammar();
        else if (!strcmp(word, "grammar_text"))
            read_grammar_text();
        else if (!strncmp(word, "save", 4))
            save(word[4] != 0);
        else if (!strncmp(word, "load", 4))
            load(word[4] != 0);
        else if (!strcmp(word, "tokenize"))
            tokenize();
        else if (!strcmp(word, "detokenize"))
            detokenize();
        else if (!strcmp(word, "embed"))
            embed();
        else if (!strcmp(word, "chat"))
            chat();
        else if (!strcmp(word, "format"))
            format();
        else
            template_command(word);
        printf("\n");
        fflush(stdout);
    }
    template_command("end_section");
    close_model();
    return 0;
}
