/* template_section.h: the section satchel.template, checked: programs of the template machine and the markers of a model's answers. */
#ifndef SATCHEL_EMBED_TEMPLATE_SECTION_H
#define SATCHEL_EMBED_TEMPLATE_SECTION_H

#include "gguf.h"
#include "sections.h"
#include "template_value.h"

/* The section. It owns an aligned copy of the bytes, into which the others point. head NULL: the file has no such section. */
typedef struct {
    uint8_t *copy;
    const template_head *head;
    const template_variant *variants;
    template_code *code; /* a of FILTER and TEST: a number of the tables of template_functions.h */
    const template_macro *macros;
    const template_constant *constants;
    const uint32_t *members;
    const template_variable *variables;
    const uint32_t *markers;
    const template_case *cases;
    const char *bytes;
    tpl_heap heap;     /* of the values */
    tpl_value *values; /* the constants; names of arguments are tuples of strings */
    tpl_escape escape;
    tpl_printing printing;
} tpl_template;

/* Reads and checks the section; on failure nothing is kept. template_section_free() ends it. */
int template_section_read(gguf_bytes section, tpl_template *out);
void template_section_free(tpl_template *);

#endif
