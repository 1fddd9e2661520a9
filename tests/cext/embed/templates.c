/* templates.c: commands of the driver that run a section of chat templates without a model; what test_templates.py speaks with.
 *
 *   read_section PATH           a section from a file; end_section ends it
 *   render ESCAPED NOW HEX      the prompt of a request as hex, with its escape undone; NOW: seconds, in UTC
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat.h"
#include "error.h"
#include "hex.h"
#include "satchel.h"

int template_command(const char *word);

static tpl_template loaded;

static void load(const char *path) {
    FILE *file = fopen(path, "rb");
    static uint8_t data[1 << 22];
    size_t size = file ? fread(data, 1, sizeof data, file) : 0;
    uint8_t *own = malloc(size + 1); /* of its size, so that ASan sees what is read behind it */
    int code;
    memcpy(own, data, size);
    template_section_free(&loaded);
    code = template_section_read((gguf_bytes){own, size}, &loaded);
    printf(code ? "error %d %s" : "ok", code, satchel_error());
    free(own);
    if (file)
        fclose(file);
}

static void render(int escaped, long long seconds, const char *hex) {
    size_t size;
    char *text = read_hex(hex, &size);
    time_t now = (time_t)seconds;
    struct tm fields;
    tpl_builder plain = {0};
    tpl_heap heap;
    tpl_value made;
    fields = *gmtime(&now); /* Windows lacks gmtime_r() */
    chat_begin(&heap, size);
    made = chat_render(&heap, &loaded, text, size, escaped, &fields);
    if (!heap.code)
        tpl_put_unescaped(&heap, escaped ? &loaded.escape : &(tpl_escape){0}, &plain, made.text->data, made.text->size);
    if (heap.code) {
        hal_fail(heap.code, "%s", heap.reason);
        printf("error %d %s", heap.code, satchel_error());
    } else {
        print_hex(plain.data, plain.size);
    }
    tpl_end(&heap);
    free(text);
}

/* Runs a command whose first word was read by strtok(); 0: it is none of these. */
int template_command(const char *word) {
    char *rest = strcmp(word, "end_section") ? strtok(NULL, " ") : NULL;
    if (!strcmp(word, "read_section")) {
        load(rest);
    } else if (!strcmp(word, "render")) {
        int escaped = atoi(rest);
        long long now = atoll(strtok(NULL, " "));
        render(escaped, now, strtok(NULL, " "));
    } else if (!strcmp(word, "end_section")) {
        template_section_free(&loaded);
    } else {
        return 0;
    }
    return 1;
}
