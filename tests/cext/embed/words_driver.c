/* words_driver.c: the text side of the C library alone, of files that hold a tokenizer and no model: lines of commands from standard
 * input, each answered with one line, as driver.c. A line that fails is answered by "error CODE TEXT".
 *
 *   open PATH       tokenize FLAGS HEX       detokenize FLAGS ID...
 *   answer BEGINS INCLUDE OPEN CLOSE COUNT STOP... ID...      markers and stop strings in hexadecimal digits, - for none
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "error.h"
#include "hex.h"

enum { MOST_IDS = 1 << 20 };
static uint8_t *file;
static gguf_file gguf;
static words vocabulary;
static int32_t ids[MOST_IDS];

static int read_ids(void) {
    int n = 0;
    for (char *word = strtok(NULL, " "); word && n < MOST_IDS; word = strtok(NULL, " "))
        ids[n++] = atoi(word);
    return n;
}

static uint32_t number(void) {
    char *word = strtok(NULL, " ");
    return word ? (uint32_t)atoi(word) : 0;
}

static int failed(int code) {
    if (code < 0)
        printf("error %d %s", code, hal_last_error());
    return code < 0;
}

static void end(void) {
    words_free(&vocabulary);
    gguf_free(&gguf);
    free(file);
    file = NULL;
}

static void open_file(void) {
    FILE *opened = fopen(strtok(NULL, " "), "rb");
    size_t size;
    end();
    fseek(opened, 0, SEEK_END);
    size = (size_t)ftell(opened);
    rewind(opened);
    file = malloc(size + 1);
    size = fread(file, 1, size, opened);
    fclose(opened);
    if (!failed(gguf_read(file, size, &gguf)) && !failed(words_read(&gguf, 1 << 22, &vocabulary)))
        printf("%u", vocabulary.head->n_tokens);
}

static void tokenize(void) {
    uint32_t flags = number();
    size_t size;
    char *text = read_hex(strtok(NULL, " "), &size);
    token_list list = {0};
    if (!failed(words_encode(&vocabulary, text, (int64_t)size, flags, &list)))
        for (int64_t i = 0; i < list.n; i++)
            printf("%d ", list.ids[i]);
    free(list.ids);
    free(text);
}

static void detokenize(void) {
    uint32_t flags = number();
    int count = read_ids(), strip = (vocabulary.head->flags & TOKENIZER_SPACE_PREFIX) != 0;
    utf8_stream stream = {0};
    for (int i = 0; i <= count; i++) {
        gguf_bytes bytes = {NULL, 0};
        char *text;
        if (i < count)
            bytes = words_shown(&vocabulary, ids[i], (int)(flags & 1), &strip);
        text = malloc(UTF8_GROWTH * (bytes.size + 1));
        print_hex(text, i < count ? utf8_feed(&stream, bytes.data, bytes.size, text) : utf8_flush(&stream, text));
        free(text);
    }
}

static void print_pieces(answer *a) {
    for (const answer_piece *p; (p = answer_take(a));) {
        printf("%d:", p->kind);
        print_hex(a->out.data + p->at, p->size);
        printf(" ");
    }
}

/* The pieces of an answer of these tokens, "|" behind those of each token. */
static void run_answer(void) {
    enum { MOST_STOPS = 16 };
    char *stops[MOST_STOPS], *open, *close;
    answer_options o = {.stops = (const char *const *)stops};
    answer a;
    size_t size;
    int count;
    o.begins = (int32_t)number();
    o.include_stop = (int32_t)number();
    open = read_hex(strtok(NULL, " "), &size);
    o.open = size ? open : NULL;
    close = read_hex(strtok(NULL, " "), &size);
    o.close = size ? close : NULL;
    o.n_stops = (int32_t)number();
    for (int32_t i = 0; i < o.n_stops; i++)
        stops[i] = read_hex(strtok(NULL, " "), &size);
    count = read_ids();
    if (!failed(answer_begin(&a, &vocabulary, &o))) {
        for (int i = 0; i < count && a.stopped < 0; i++) {
            if (failed(answer_add(&a, ids[i])))
                break;
            print_pieces(&a);
            printf("| ");
        }
        if (!failed(answer_end(&a)))
            print_pieces(&a);
        printf("stopped:%d", a.stopped);
        answer_free(&a);
    }
    for (int32_t i = 0; i < o.n_stops; i++)
        free(stops[i]);
    free(open);
    free(close);
}

int main(void) {
    static char line[1 << 23];
    while (fgets(line, sizeof line, stdin)) {
        char *word;
        line[strcspn(line, "\n")] = 0;
        word = strtok(line, " ");
        if (!strcmp(word, "open"))
            open_file();
        else if (!strcmp(word, "tokenize"))
            tokenize();
        else if (!strcmp(word, "detokenize"))
            detokenize();
        else if (!strcmp(word, "answer"))
            run_answer();
        printf("\n");
        fflush(stdout);
    }
    end();
    return 0;
}
