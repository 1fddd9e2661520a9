/* driver.c: runs the C library by lines of commands from standard input, and answers each with one line; what the tests in Python
 * speak with. A line that fails is answered by "error CODE TEXT".
 *
 *   open PATH CONTEXT SLOTS THREADS     close
 *   begin N NAME=VALUE... : ID...       next N COUNT     report N     end N
 *   tokenize FLAGS HEX                  detokenize FLAGS ID...
 *   chat HEX: whether the prompt ends in reasoning, its text as hex (- for none), its tokens
 *   format: flags and texts of satchel_chat_facts(), as hex
 *   and those of templates.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "satchel.h"

enum { REPLIES = 64, MOST_IDS = 1 << 16 };
static satchel_model *model;
static satchel_reply *replies[REPLIES];
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
    if (!tell(satchel_open(path, &o, &model))) {
        satchel_model_facts f = {.size = sizeof f};
        satchel_facts(model, &f);
        printf("%d %d %d %s", f.context, f.slots, f.vocabulary, f.kernels);
    }
}

#define FIELDS(INTEGER, REAL)                                                                                          \
    INTEGER(flags)                                                                                                     \
    INTEGER(seed)                                                                                                      \
    INTEGER(max_tokens)                                                                                                \
    INTEGER(top_k)                                                                                                     \
    INTEGER(repeat_last_n)                                                                                             \
    INTEGER(mirostat)                                                                                                  \
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
    REAL(mirostat_tau)

static void set(satchel_generate_options *o, char *word) {
    char *value = strchr(word, '=');
    *value++ = 0;
#define INTEGER(name)                                                                                                  \
    if (!strcmp(word, #name))                                                                                          \
        o->name = atoll(value);
#define REAL(name)                                                                                                     \
    if (!strcmp(word, #name))                                                                                          \
        o->name = (float)atof(value);
    FIELDS(INTEGER, REAL)
    if (!strcmp(word, "samplers"))
        o->samplers = value;
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
}

static void next(void) {
    int n = number(), count = number();
    satchel_piece p = {.size = sizeof p};
    int32_t code = 1;
    for (int i = 0; i < count && (code = satchel_reply_next(replies[n], &p)) > 0; i++) {
        printf("%d:", p.token);
        for (int64_t k = 0; k < p.length; k++)
            printf("%02x", (unsigned char)p.text[k]);
        printf(" ");
    }
    if (!tell(code) && !code)
        printf("over");
}

static void report(void) {
    satchel_reply_report r = {.size = sizeof r};
    satchel_report(replies[number()], &r);
    printf("%d %lld %lld %lld", r.reason, (long long)r.prompt_tokens, (long long)r.cached_tokens, (long long)r.tokens);
}

static void tokenize(void) {
    uint32_t flags = (uint32_t)number();
    char *hex = strtok(NULL, " ");
    size_t size = hex ? strlen(hex) / 2 : 0;
    char *text = malloc(size + 1);
    int64_t n;
    for (size_t i = 0; i < size; i++) {
        unsigned byte;
        sscanf(hex + 2 * i, "%2x", &byte);
        text[i] = (char)byte;
    }
    n = satchel_tokenize(model, text, (int64_t)size, flags, ids, MOST_IDS);
    if (!tell(n))
        for (int64_t i = 0; i < n; i++)
            printf("%d ", ids[i]);
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
    for (int64_t i = 0; i < size; i++)
        printf("%02x", (unsigned char)text[i]);
    free(text);
}

static char *read_hex(void) {
    char *hex = strtok(NULL, " ");
    size_t size = hex ? strlen(hex) / 2 : 0;
    char *text = calloc(size + 1, 1);
    for (size_t i = 0; i < size; i++) {
        unsigned byte;
        sscanf(hex + 2 * i, "%2x", &byte);
        text[i] = (char)byte;
    }
    return text;
}

static void print_hex(const char *text, int64_t size) {
    for (int64_t i = 0; i < size; i++)
        printf("%02x", (unsigned char)text[i]);
    printf(size ? " " : "- ");
}

static void chat(void) {
    char *request = read_hex();
    satchel_chat_prompt *prompt;
    if (!tell(satchel_chat_render(model, request, -1, &prompt))) {
        int64_t size, count;
        const char *text = satchel_chat_prompt_text(prompt, &size);
        const int32_t *found = satchel_chat_prompt_ids(prompt, &count);
        printf("%d ", satchel_chat_prompt_thinks(prompt));
        print_hex(text, size);
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
    print_hex(f.thinking_begin, (int64_t)strlen(f.thinking_begin));
    print_hex(f.thinking_end, (int64_t)strlen(f.thinking_end));
    print_hex(f.tool_calls, (int64_t)strlen(f.tool_calls));
    print_hex(f.tool_calls_begin, (int64_t)strlen(f.tool_calls_begin));
    print_hex(f.thinking_switches, (int64_t)strlen(f.thinking_switches));
}

int template_command(const char *word);

int main(void) {
    static char line[1 << 21];
    while (fgets(line, sizeof line, stdin)) {
        char *word;
        line[strcspn(line, "\n")] = 0;
        word = strtok(line, " ");
        if (!strcmp(word, "open"))
            open_model();
        else if (!strcmp(word, "close"))
            satchel_close(model), model = NULL;
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
        } else if (!strcmp(word, "tokenize"))
            tokenize();
        else if (!strcmp(word, "detokenize"))
            detokenize();
        else if (!strcmp(word, "chat"))
            chat();
        else if (!strcmp(word, "format"))
            format();
        else
            template_command(word);
        printf("\n");
        fflush(stdout);
    }
    template_command("unload");
    satchel_close(model);
    return 0;
}
