/* chat_request.c: reads a request of a chat: see chat.h. What it says of messages is what formats/template/messages.py says. */
#include <stdio.h>
#include <string.h>

#include "backend.h"
#include "chat.h"
#include "template_functions.h"
#include "template_json.h"

enum { MOST_DEPTH = 66, STEPS_A_VALUE = 5000 };

const char *const chat_roles[N_ROLES] = {"system", "developer", "user", "assistant", "tool"};

static int wrong(tpl_heap *h, const char *where, const char *expected) {
    return tpl_fail(h, HAL_E_INVALID, "%s: expected %s", where, expected);
}

static tpl_value get(tpl_heap *h, tpl_value map, const char *key) {
    const tpl_value *found = tpl_get_word(h, map, key);
    return found ? *found : (tpl_value){.kind = TPL_MISSING};
}

static int is_none(tpl_value v) {
    return v.kind == TPL_NONE || v.kind == TPL_MISSING;
}

/* --- messages */

static void read_call(tpl_heap *h, tpl_value call, const char *where) {
    tpl_value function = get(h, call, "function"), arguments = get(h, function, "arguments");
    if (get(h, function, "name").kind != TPL_STRING)
        wrong(h, where, "an object with a function that has a name");
    else if (arguments.kind == TPL_MISSING)
        tpl_set_word(h, function, "arguments", tpl_map_new(h));
    else if (arguments.kind != TPL_STRING && arguments.kind != TPL_MAP)
        wrong(h, where, "function.arguments to be an object or its JSON text");
    if (get(h, call, "type").kind == TPL_MISSING)
        tpl_set_word(h, call, "type", tpl_word(h, "function"));
}

static void read_calls(tpl_heap *h, tpl_value calls, int role, const char *where) {
    char place[96];
    if (role != ROLE_ASSISTANT || calls.kind != TPL_LIST) {
        snprintf(place, sizeof place, "%s.tool_calls", where);
        wrong(h, place, role == ROLE_ASSISTANT ? "a list" : "them in an assistant message alone");
        return;
    }
    for (uint32_t i = 0; i < calls.list->n && !h->code; i++) {
        snprintf(place, sizeof place, "%s.tool_calls[%u]", where, i);
        read_call(h, calls.list->items[i], place);
    }
}

static void read_content(tpl_heap *h, tpl_value message, int role, const char *where) {
    tpl_value content = get(h, message, "content");
    char place[96];
    if (content.kind == TPL_LIST) {
        for (uint32_t i = 0; i < content.list->n && !h->code; i++) {
            tpl_value part = content.list->items[i];
            snprintf(place, sizeof place, "%s.content[%u]", where, i);
            if (!tpl_is_word(get(h, part, "type"), "text") || get(h, part, "text").kind != TPL_STRING)
                wrong(h, place, "an object with \"type\": \"text\" and a text, which is all that this model reads");
        }
    } else if (is_none(content)) {
        if (role != ROLE_ASSISTANT)
            tpl_fail(h, HAL_E_INVALID, "%s.content: missing; a %s message needs text", where, chat_roles[role]);
        tpl_set_word(h, message, "content", tpl_none());
    } else if (content.kind != TPL_STRING) {
        snprintf(place, sizeof place, "%s.content", where);
        wrong(h, place, "text or a list of text parts");
    }
}

/* A new mapping: entries of `from`, but not `key`. */
static tpl_value without(tpl_heap *h, tpl_value from, const char *key) {
    tpl_value made = tpl_map_new(h);
    for (uint32_t i = 0; !h->code && i < from.map->n; i++)
        if (!tpl_is_word(from.map->entries[i].key, key))
            tpl_set(h, made.map, from.map->entries[i].key, from.map->entries[i].value);
    return made;
}

/* Copies the reasoning, whatever its name in the request, to every name that templates read. */
static tpl_value with_reasoning(tpl_heap *h, tpl_value message, const char *where) {
    static const char *const given[] = {"reasoning_content", "thinking", "reasoning"}, *const read[] = {"thinking",
                                                                                                        "reasoning",
                                                                                                        "thought"};
    tpl_value found = tpl_none(), made;
    for (int i = 0; i < 3 && is_none(found); i++)
        found = get(h, message, given[i]);
    if (is_none(found) || h->code)
        return message;
    if (found.kind != TPL_STRING) {
        tpl_fail(h, HAL_E_INVALID, "%s.reasoning_content: expected text", where);
        return message;
    }
    made = tpl_map_new(h);
    for (int i = 0; i < 3; i++)
        tpl_set_word(h, made, read[i], found);
    for (uint32_t i = 0; !h->code && i < message.map->n; i++)
        tpl_set(h, made.map, message.map->entries[i].key, message.map->entries[i].value);
    tpl_set_word(h, made, "reasoning_content", found);
    return made;
}

/* Splits the reasoning off an answer that was sent back as it was written. */
static tpl_value with_parts(tpl_heap *h, const tpl_template *t, tpl_value message) {
    const tpl_text *open = t->values[t->head->thinking_begin].text, *close = t->values[t->head->thinking_end].text;
    tpl_context c = {.heap = h, .escape = &(tpl_escape){0}, .printing = &t->printing};
    tpl_value content = get(h, message, "content"), line = tpl_word(h, "\n"), begun, thought, said;
    int64_t end;
    if (!tpl_is_word(get(h, message, "role"), "assistant") || tpl_truth(get(h, message, "reasoning_content")) ||
        content.kind != TPL_STRING || !open->size)
        return message;
    begun = tpl_strip(&c, content.text, tpl_none(), STRIP_LEFT);
    if (h->code || begun.text->size < open->size || memcmp(begun.text->data, open->data, open->size))
        return message;
    begun = tpl_part(h, begun.text, open->size, begun.text->size);
    if (h->code)
        return message;
    end = tpl_find(h, begun.text, close, 0);
    thought = tpl_part(h, begun.text, 0, end < 0 ? begun.text->size : (uint32_t)end);
    said = end < 0 ? tpl_word(h, "") : tpl_part(h, begun.text, (uint32_t)end + close->size, begun.text->size);
    if (h->code)
        return message;
    thought = tpl_strip(&c, thought.text, line, STRIP_LEFT | STRIP_RIGHT);
    tpl_set_word(h, message, "thinking", thought);
    tpl_set_word(h, message, "reasoning_content", thought);
    tpl_set_word(h, message, "content", tpl_strip(&c, said.text, line, STRIP_LEFT));
    return with_reasoning(h, message, "messages");
}

static tpl_value read_message(tpl_heap *h, const tpl_template *t, tpl_value message, uint32_t number) {
    char where[40];
    int role = 0;
    tpl_value calls;
    snprintf(where, sizeof where, "messages[%u]", number);
    if (message.kind != TPL_MAP) {
        wrong(h, where, "an object with role and content");
        return message;
    }
    while (role < N_ROLES && !tpl_is_word(get(h, message, "role"), chat_roles[role]))
        role++;
    if (role == N_ROLES) {
        tpl_fail(h, HAL_E_INVALID, "%s.role: expected one of system, developer, user, assistant, tool", where);
        return message;
    }
    calls = get(h, message, "tool_calls");
    if (tpl_truth(calls))
        read_calls(h, calls, role, where);
    else if (calls.kind != TPL_MISSING)
        message = without(h, message, "tool_calls");
    if (!h->code)
        read_content(h, message, role, where);
    if (!h->code)
        message = with_reasoning(h, message, where);
    return h->code || !(t->head->flags & TEMPLATE_THINKS) ? message : with_parts(h, t, message);
}

static void read_messages(tpl_heap *h, const tpl_template *t, tpl_value given, chat_request *r) {
    if (given.kind != TPL_LIST || !given.list->n) {
        tpl_fail(h, HAL_E_INVALID,
                 "messages: expected a list of messages, such as [{\"role\": \"user\", \"content\": \"Hello!\"}]");
        return;
    }
    r->messages = tpl_list_new(h, given.list->n);
    for (uint32_t i = 0; i < given.list->n && !h->code; i++)
        tpl_add(h, r->messages, read_message(h, t, given.list->items[i], i));
}

/* --- the others */

static void read_tools(tpl_heap *h, tpl_value given, chat_request *r) {
    r->tools = tpl_none();
    if (!tpl_truth(given))
        return;
    if (given.kind != TPL_LIST) {
        wrong(h, "tools", "a list of functions");
        return;
    }
    for (uint32_t i = 0; i < given.list->n && !h->code; i++) {
        tpl_value tool = given.list->items[i], function = get(h, tool, "function");
        function = function.kind == TPL_MISSING ? tool : function;
        if (get(h, function, "name").kind != TPL_STRING)
            tpl_fail(h, HAL_E_INVALID, "tools[%u]: expected an object with a function that has a name", i);
    }
    r->tools = given;
}

static void read_documents(tpl_heap *h, tpl_value given, chat_request *r) {
    r->documents = tpl_none();
    if (is_none(given))
        return;
    if (given.kind != TPL_LIST)
        wrong(h, "documents", "a list of objects (such as title and text)");
    for (uint32_t i = 0; !h->code && i < given.list->n; i++)
        if (given.list->items[i].kind != TPL_MAP)
            wrong(h, "documents", "a list of objects (such as title and text)");
    r->documents = given;
}

static int is_identifier(const tpl_text *t) {
    for (uint32_t i = 0; i < t->size; i++) {
        char c = t->data[i];
        if (!((c | 32) >= 'a' && (c | 32) <= 'z') && !(i && c >= '0' && c <= '9') && !(i && c == '_'))
            return 0;
    }
    return t->size > 0;
}

/* Names that a template has from elsewhere. */
static const char *const reserved[] = {"messages",
                                       "tools",
                                       "documents",
                                       "add_generation_prompt",
                                       "bos_token",
                                       "eos_token",
                                       "chat_template",
                                       "tokenize",
                                       "continue_final_message",
                                       "raise_exception",
                                       "strftime_now",
                                       "namespace",
                                       "range",
                                       "dict",
                                       "cycler",
                                       "joiner",
                                       "lipsum",
                                       "loop",
                                       "self",
                                       "super",
                                       "caller",
                                       "varargs",
                                       "kwargs",
                                       "context",
                                       "environment",
                                       "true",
                                       "false",
                                       "none",
                                       "True",
                                       "False",
                                       "None"};

static void read_variables(tpl_heap *h, const tpl_template *t, tpl_value given, chat_request *r) {
    r->variables = tpl_map_new(h);
    if (is_none(given))
        return;
    if (given.kind != TPL_MAP) {
        wrong(h, "chat_template_kwargs", "an object");
        return;
    }
    for (uint32_t i = 0; i < given.map->n && !h->code; i++) {
        const tpl_text *name = given.map->entries[i].key.text;
        int taken = 0;
        for (size_t k = 0; k < sizeof reserved / sizeof *reserved; k++)
            taken |= tpl_is_word(given.map->entries[i].key, reserved[k]);
        for (uint32_t k = 0; k < t->head->n_variables; k++)
            taken |= tpl_same_text(name, t->values[t->variables[k].name].text);
        if (taken || !is_identifier(name))
            tpl_fail(h, HAL_E_INVALID, "chat_template_kwargs: '%.*s' %s", (int)(name->size < 40 ? name->size : 40),
                     name->data,
                     taken ? "is set by the program and can't be given" : "is no name that a template can read");
    }
    r->variables = given;
}

/* Fails for a key that no request has. */
static void check_keys(tpl_heap *h, tpl_value given) {
    static const char *const known[] = {"messages", "tools", "documents", "add_generation_prompt",
                                        "chat_template_kwargs"};
    for (uint32_t i = 0; i < given.map->n && !h->code; i++) {
        size_t k = 0;
        while (k < sizeof known / sizeof *known && !tpl_is_word(given.map->entries[i].key, known[k]))
            k++;
        if (k == sizeof known / sizeof *known)
            tpl_fail(h, HAL_E_INVALID,
                     "'%.*s': expected messages, tools, documents, add_generation_prompt or chat_template_kwargs",
                     (int)(given.map->entries[i].key.text->size < 40 ? given.map->entries[i].key.text->size : 40),
                     given.map->entries[i].key.text->data);
    }
}

int chat_read(tpl_heap *h, const tpl_template *t, const char *json, uint64_t size, chat_request *r) {
    tpl_json_size seen = {0};
    tpl_value given = tpl_json_read(h, json, size, MOST_DEPTH, &seen), prompt;
    if (!h->code && given.kind != TPL_MAP)
        tpl_fail(h, HAL_E_INVALID, "expected an object with messages, such as {\"messages\": [...]}");
    if (h->code)
        return h->code;
    h->steps += seen.values * STEPS_A_VALUE;
    check_keys(h, given);
    prompt = get(h, given, "add_generation_prompt");
    if (!is_none(prompt) && prompt.kind != TPL_BOOL)
        wrong(h, "add_generation_prompt", "true or false");
    r->add_generation_prompt = is_none(prompt) || tpl_truth(prompt);
    if (!h->code)
        read_messages(h, t, get(h, given, "messages"), r);
    if (!h->code)
        read_tools(h, get(h, given, "tools"), r);
    if (!h->code)
        read_documents(h, get(h, given, "documents"), r);
    if (!h->code)
        read_variables(h, t, get(h, given, "chat_template_kwargs"), r);
    return h->code;
}
