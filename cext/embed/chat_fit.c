/* chat_fit.c: adapts a conversation to what a template supports: see chat.h. The rules are those of formats/template/adapt.py and
 * spoken.py, and what they ask was probed when the file was built. */
#include <stdio.h>
#include <string.h>

#include "backend.h"
#include "chat.h"
#include "template_json.h"

typedef struct {
    tpl_heap *heap;
    const tpl_template *t;
    const template_variant *variant;
} fitting;

static int asks(const fitting *f, uint32_t flag) {
    return (f->variant->flags & flag) != 0;
}

static tpl_value get(const fitting *f, tpl_value map, const char *key) {
    const tpl_value *found = tpl_get_word(f->heap, map, key);
    return found ? *found : (tpl_value){.kind = TPL_MISSING};
}

static int has(const fitting *f, tpl_value map, const char *key) {
    return tpl_get_word(f->heap, map, key) != NULL;
}

static int is_role(const fitting *f, tpl_value message, int role) {
    return tpl_is_word(get(f, message, "role"), chat_roles[role]);
}

/* A copy of a mapping, without `key` (NULL: all of it). */
static tpl_value copied(const fitting *f, tpl_value from, const char *key) {
    tpl_value made = tpl_map_new(f->heap);
    for (uint32_t i = 0; !f->heap->code && from.kind == TPL_MAP && i < from.map->n; i++)
        if (!key || !tpl_is_word(from.map->entries[i].key, key))
            tpl_set(f->heap, made.map, from.map->entries[i].key, from.map->entries[i].value);
    return made;
}

static tpl_value with(const fitting *f, tpl_value from, const char *key, tpl_value value) {
    tpl_value made = copied(f, from, NULL);
    tpl_set_word(f->heap, made, key, value);
    return made;
}

static tpl_value message_of(const fitting *f, int role, tpl_value content) {
    tpl_value made = tpl_map_new(f->heap);
    tpl_set_word(f->heap, made, "role", tpl_word(f->heap, chat_roles[role]));
    tpl_set_word(f->heap, made, "content", content);
    return made;
}

/* --- text */

/* Texts joined by what stands between; empty ones are left out where `empty` is 0. */
typedef struct {
    tpl_builder b;
    int any;
} joining;

static void join(const fitting *f, joining *j, tpl_value text, const char *between) {
    if (text.kind != TPL_STRING || f->heap->code)
        return;
    if (j->any)
        tpl_put_word(f->heap, &j->b, between);
    tpl_put(f->heap, &j->b, text.text->data, text.text->size);
    j->any = 1;
}

static void join_some(const fitting *f, joining *j, tpl_value text) {
    if (text.kind == TPL_STRING && text.text->size)
        join(f, j, text, "\n\n");
}

static tpl_value joined(const fitting *f, tpl_value one, tpl_value other) {
    joining j = {0};
    join_some(f, &j, one);
    join_some(f, &j, other);
    return tpl_built(f->heap, &j.b);
}

/* Content as one string; parts are joined by newlines. */
static tpl_value text_of(const fitting *f, tpl_value content) {
    joining j = {0};
    if (content.kind == TPL_STRING)
        return content;
    for (uint32_t i = 0; content.kind == TPL_LIST && i < content.list->n; i++)
        join(f, &j, get(f, content.list->items[i], "text"), "\n");
    return tpl_built(f->heap, &j.b);
}

/* A text in the form in which the template reads content. */
static tpl_value content_of(const fitting *f, tpl_value text) {
    tpl_value list, part;
    if (!asks(f, VARIANT_WANTS_PARTS))
        return text;
    list = tpl_list_new(f->heap, 1);
    part = tpl_map_new(f->heap);
    tpl_set_word(f->heap, part, "type", tpl_word(f->heap, "text"));
    tpl_set_word(f->heap, part, "text", text);
    tpl_add(f->heap, list, part);
    return list;
}

/* --- roles and content */

static tpl_value fit_content(const fitting *f, tpl_value message) {
    tpl_value content = get(f, message, "content");
    int calls = has(f, message, "tool_calls"), role = 0;
    if (is_role(f, message, ROLE_DEVELOPER) && !asks(f, VARIANT_NAMES_DEVELOPER))
        message = with(f, message, "role", tpl_word(f->heap, "system"));
    while (role < ROLE_TOOL && !is_role(f, message, role))
        role++;
    if (content.kind == TPL_LIST && !asks(f, (uint32_t)VARIANT_READS_PARTS << role))
        content = text_of(f, content);
    else if (content.kind == TPL_NONE && !calls)
        content = tpl_word(f->heap, "");
    if (content.kind == TPL_STRING && (content.text->size || !calls))
        content = content_of(f, content);
    return with(f, message, "content", content);
}

static tpl_value all_messages(const fitting *f, tpl_value from, tpl_value (*each)(const fitting *, tpl_value)) {
    tpl_value made = tpl_list_new(f->heap, 0);
    for (uint32_t i = 0; !f->heap->code && i < from.list->n; i++)
        tpl_add(f->heap, made, each(f, from.list->items[i]));
    return made;
}

/* --- tools */

static int is_system(const fitting *f, tpl_value message) {
    return is_role(f, message, ROLE_SYSTEM) || is_role(f, message, ROLE_DEVELOPER);
}

/* The messages, behind a first one, and without their own first one where `skip` is 1. */
static tpl_value after(const fitting *f, tpl_value first, tpl_value messages, uint32_t skip) {
    tpl_value made = tpl_list_new(f->heap, 0);
    tpl_add(f->heap, made, first);
    for (uint32_t i = skip; !f->heap->code && i < messages.list->n; i++)
        tpl_add(f->heap, made, messages.list->items[i]);
    return made;
}

/* The messages, with an empty system message added where there is none. */
static tpl_value opened(const fitting *f, tpl_value messages) {
    if (f->heap->code || is_system(f, messages.list->items[0]))
        return messages;
    return after(f, message_of(f, ROLE_SYSTEM, content_of(f, tpl_word(f->heap, ""))), messages, 0);
}

/* The functions of tools as JSON text. */
static tpl_value listed(const fitting *f, tpl_value tools, int indented) {
    tpl_value made = tpl_list_new(f->heap, 0);
    for (uint32_t i = 0; !f->heap->code && i < tools.list->n; i++) {
        tpl_value tool = tools.list->items[i], function = get(f, tool, "function");
        tpl_add(f->heap, made, function.kind == TPL_MISSING ? tool : function);
    }
    return tpl_json_text(f->heap, made, indented);
}

static tpl_value with_tools(const fitting *f, tpl_value messages, tpl_value tools) {
    messages = opened(f, messages);
    if (f->heap->code)
        return messages;
    return after(f, with(f, messages.list->items[0], "tools", listed(f, tools, 0)), messages, 1);
}

/* System text that lists the tools, and the format of calls unless the template has its own. */
static tpl_value spoken_tools(const fitting *f, tpl_value messages, tpl_value tools) {
    tpl_value list = listed(f, tools, 1), text, first;
    tpl_builder b = {0};
    if (f->heap->code)
        return messages;
    tpl_put_word(f->heap, &b, "You can call these tools:\n");
    tpl_put(f->heap, &b, list.text->data, list.text->size);
    if (f->variant->call_content == CONTENT_UNKNOWN)
        tpl_put_word(f->heap, &b,
                     "\n\nTo call tools, answer with nothing but JSON of this form:\n"
                     "{\"tool_calls\": [{\"name\": \"...\", \"arguments\": {...}}]}");
    text = tpl_built(f->heap, &b);
    if (f->heap->code)
        return messages;
    first = messages.list->items[0];
    if (!is_system(f, first))
        return after(f, message_of(f, ROLE_SYSTEM, content_of(f, text)), messages, 0);
    text = joined(f, text_of(f, get(f, first, "content")), text);
    return after(f, with(f, first, "content", content_of(f, text)), messages, 1);
}

static void place_tools(const fitting *f, chat_request *r) {
    const template_variant *v = f->variant;
    tpl_value tools = r->tools;
    if (tools.kind != TPL_LIST || asks(f, VARIANT_SHOWS_TOOLS))
        return;
    r->tools = v->tools_place == PLACE_BESIDE ? tools : tpl_none();
    if (v->tools_place == PLACE_SYSTEM)
        r->messages = with_tools(f, r->messages, tools);
    else if (v->tools_place == PLACE_BESIDE)
        r->messages = opened(f, r->messages);
    else if (v->tools_place == PLACE_VARIABLE && r->variables.kind == TPL_MAP)
        tpl_set(f->heap, r->variables.map, f->t->values[v->tools_name], tools);
    else
        r->messages = spoken_tools(f, r->messages, tools);
}

/* --- ids of calls that carry the tool's name */

static tpl_value named_id(const fitting *f, tpl_value given, tpl_value name, uint32_t number) {
    tpl_builder mark = {0}, made = {0};
    tpl_value sought;
    char text[16];
    tpl_put_word(f->heap, &mark, ".");
    tpl_put(f->heap, &mark, name.text->data, name.text->size);
    tpl_put_word(f->heap, &mark, ":");
    sought = tpl_built(f->heap, &mark);
    if (f->heap->code || tpl_find(f->heap, given.text, sought.text, 0) >= 0)
        return given;
    snprintf(text, sizeof text, ":%u", number);
    tpl_put_word(f->heap, &made, "functions.");
    tpl_put(f->heap, &made, name.text->data, name.text->size);
    tpl_put_word(f->heap, &made, text);
    return tpl_built(f->heap, &made);
}

static tpl_value id_of(const fitting *f, tpl_value call) {
    tpl_value id = get(f, call, "id");
    return id.kind == TPL_MISSING ? tpl_word(f->heap, "") : tpl_printed(f->heap, &f->t->printing, id);
}

static tpl_value name_calls(const fitting *f, tpl_value calls, tpl_value made, uint32_t *count) {
    tpl_value named = tpl_list_new(f->heap, 0);
    for (uint32_t i = 0; !f->heap->code && i < calls.list->n; i++, ++*count) {
        tpl_value id = id_of(f, calls.list->items[i]), name = get(f, get(f, calls.list->items[i], "function"), "name");
        if (!f->heap->code)
            tpl_set(f->heap, made.map, id, named_id(f, id, name, *count));
    }
    for (uint32_t i = 0; !f->heap->code && i < calls.list->n; i++) {
        const tpl_value *id = tpl_get(f->heap, made.map, id_of(f, calls.list->items[i]));
        tpl_add(f->heap, named, with(f, calls.list->items[i], "id", id ? *id : tpl_none()));
    }
    return named;
}

static tpl_value named_ids(const fitting *f, tpl_value messages) {
    tpl_value named = tpl_list_new(f->heap, 0), made = tpl_map_new(f->heap);
    uint32_t count = 0;
    for (uint32_t i = 0; !f->heap->code && i < messages.list->n; i++) {
        tpl_value message = messages.list->items[i];
        if (has(f, message, "tool_calls")) {
            made = tpl_map_new(f->heap);
            if (!f->heap->code)
                message = with(f, message, "tool_calls", name_calls(f, get(f, message, "tool_calls"), made, &count));
        } else if (is_role(f, message, ROLE_TOOL)) {
            tpl_value answered = get(f, message, "tool_call_id");
            const tpl_value *id = answered.kind == TPL_STRING ? tpl_get(f->heap, made.map, answered) : NULL;
            answered = answered.kind == TPL_MISSING ? tpl_none() : answered;
            message = with(f, message, "tool_call_id", id ? *id : answered);
        }
        tpl_add(f->heap, named, message);
    }
    return named;
}

/* --- results and system messages that the template does not show */

/* The JSON text of a tool's result. */
static tpl_value spoken_result(const fitting *f, tpl_value message) {
    static const char *const names[] = {"name", "tool_call_id"};
    tpl_value fields = tpl_map_new(f->heap), made = tpl_map_new(f->heap);
    for (int i = 0; i < 2; i++) {
        tpl_value value = get(f, message, names[i]);
        if (value.kind != TPL_NONE && value.kind != TPL_MISSING)
            tpl_set_word(f->heap, fields, names[i], value);
    }
    tpl_set_word(f->heap, fields, "content", text_of(f, get(f, message, "content")));
    tpl_set_word(f->heap, made, "tool_response", fields);
    return tpl_json_text(f->heap, made, 0);
}

/* Writes tool results as user messages, all results of a turn as one. */
static tpl_value merge_results(const fitting *f, tpl_value messages) {
    tpl_value merged = tpl_list_new(f->heap, 0);
    int open = 0;
    for (uint32_t i = 0; !f->heap->code && i < messages.list->n; i++) {
        tpl_value message = messages.list->items[i];
        if (is_role(f, message, ROLE_TOOL)) {
            joining j = {0};
            if (open) {
                join(f, &j, text_of(f, get(f, merged.list->items[merged.list->n - 1], "content")), "\n");
                merged.list->n--;
            }
            join(f, &j, spoken_result(f, message), "\n");
            message = message_of(f, ROLE_USER, content_of(f, tpl_built(f->heap, &j.b)));
            open = 1;
        } else {
            open = 0;
        }
        tpl_add(f->heap, merged, message);
    }
    return merged;
}

/* Puts system messages that the template does not show before the next user message. */
static tpl_value merge_system(const fitting *f, tpl_value messages) {
    tpl_value merged = tpl_list_new(f->heap, 0);
    joining waiting = {0};
    int waits = 0;
    for (uint32_t i = 0; !f->heap->code && i < messages.list->n; i++) {
        tpl_value message = messages.list->items[i];
        int shift = (is_role(f, message, ROLE_DEVELOPER) ? 2 : 0) + (i ? 1 : 0);
        if (is_system(f, message) && !asks(f, (uint32_t)VARIANT_SHOWS_ROLE << shift)) {
            join_some(f, &waiting, text_of(f, get(f, message, "content")));
            waits = 1;
            continue;
        }
        if (is_role(f, message, ROLE_USER) && waits) {
            join_some(f, &waiting, text_of(f, get(f, message, "content")));
            message = with(f, message, "content", content_of(f, tpl_built(f->heap, &waiting.b)));
            waiting = (joining){0};
            waits = 0;
        }
        tpl_add(f->heap, merged, message);
    }
    if (waits)
        tpl_add(f->heap, merged, message_of(f, ROLE_USER, content_of(f, tpl_built(f->heap, &waiting.b))));
    return merged;
}

/* --- calls */

/* JSON text as a value; kind TPL_MISSING: it is none. */
static tpl_value parsed(const fitting *f, const tpl_text *text) {
    tpl_json_size seen = {0};
    tpl_value made = tpl_json_read(f->heap, text->data, text->size, TPL_DEPTH - 8, &seen);
    if (f->heap->code == HAL_E_INVALID && f->heap->steps) {
        f->heap->code = 0;
        made.kind = TPL_MISSING;
    }
    return made;
}

/* An assistant message with its calls written into its text. */
static tpl_value spoken_calls(const fitting *f, tpl_value message) {
    tpl_value calls = get(f, message, "tool_calls"), list = tpl_list_new(f->heap, 0), whole = tpl_map_new(f->heap),
              text;
    for (uint32_t i = 0; !f->heap->code && i < calls.list->n; i++) {
        tpl_value call = calls.list->items[i], said = tpl_map_new(f->heap), function = get(f, call, "function");
        for (uint32_t k = 0; !f->heap->code && k < function.map->n; k++) {
            tpl_value key = function.map->entries[k].key, value = function.map->entries[k].value;
            if (tpl_is_word(key, "arguments") && value.kind == TPL_STRING) {
                tpl_value read = parsed(f, value.text);
                value = read.kind == TPL_MISSING ? value : read;
            }
            if (tpl_is_word(key, "id"))
                value = get(f, call, "id");
            if (!f->heap->code && value.kind != TPL_NONE && value.kind != TPL_MISSING)
                tpl_set(f->heap, said.map, key, value);
        }
        text = get(f, call, "id");
        if (text.kind != TPL_NONE && text.kind != TPL_MISSING)
            tpl_set_word(f->heap, said, "id", text);
        tpl_add(f->heap, list, said);
    }
    tpl_set_word(f->heap, whole, "tool_calls", list);
    text = joined(f, text_of(f, get(f, message, "content")), tpl_json_text(f->heap, whole, 0));
    return with(f, copied(f, message, "tool_calls"), "content", content_of(f, text));
}

static tpl_value fit_call(const fitting *f, tpl_value call, uint32_t message, uint32_t number) {
    tpl_value function = get(f, call, "function"), arguments = get(f, function, "arguments");
    static const tpl_text none = {2, 2, "{}"};
    if (f->variant->call_arguments == CALL_OBJECT && arguments.kind == TPL_STRING) {
        arguments = parsed(f, arguments.text->size ? arguments.text : &none);
        if (arguments.kind != TPL_MAP)
            tpl_fail(f->heap, HAL_E_INVALID, "messages[%u].tool_calls[%u].function.arguments: expected a JSON object",
                     message, number);
    } else if (f->variant->call_arguments == CALL_TEXT && arguments.kind == TPL_MAP) {
        arguments = tpl_json_text(f->heap, arguments, 0);
    }
    return with(f, call, "function", with(f, function, "arguments", arguments));
}

static void fit_calls(const fitting *f, tpl_value message, uint32_t number, tpl_value made) {
    tpl_value given = get(f, message, "tool_calls"), calls = tpl_list_new(f->heap, 0),
              text = get(f, message, "content"), said;
    uint32_t content = f->variant->call_content;
    tpl_value bare = content == CONTENT_EMPTY ? tpl_word(f->heap, "") : tpl_none();
    if (given.kind != TPL_LIST || content == CONTENT_UNKNOWN) {
        tpl_add(f->heap, made, given.kind == TPL_LIST ? spoken_calls(f, message) : message);
        return;
    }
    for (uint32_t i = 0; !f->heap->code && i < given.list->n; i++)
        tpl_add(f->heap, calls, fit_call(f, given.list->items[i], number, i));
    if (tpl_truth(text) && !asks(f, VARIANT_CALL_BESIDE_TEXT)) {
        tpl_add(f->heap, made, copied(f, message, "tool_calls"));
        said = message_of(f, ROLE_ASSISTANT, bare);
        tpl_set_word(f->heap, said, "tool_calls", calls);
    } else {
        said = with(f, message, "content", tpl_truth(text) || content == CONTENT_ANY ? text : bare);
        tpl_set_word(f->heap, said, "tool_calls", calls);
    }
    tpl_add(f->heap, made, said);
}

static int any(const fitting *f, tpl_value messages, int calls) {
    for (uint32_t i = 0; !f->heap->code && i < messages.list->n; i++)
        if (calls ? has(f, messages.list->items[i], "tool_calls") : is_role(f, messages.list->items[i], ROLE_TOOL))
            return 1;
    return 0;
}

int chat_fit(tpl_heap *h, const tpl_template *t, const template_variant *variant, chat_request *r) {
    const fitting f = {h, t, variant};
    tpl_value made;
    r->messages = all_messages(&f, r->messages, fit_content);
    if (!h->code)
        place_tools(&f, r);
    if (asks(&f, VARIANT_NAMES_BY_ID) && any(&f, r->messages, 1))
        r->messages = named_ids(&f, r->messages);
    if (!asks(&f, VARIANT_SHOWS_RESULTS) && any(&f, r->messages, 0))
        r->messages = merge_results(&f, r->messages);
    if (!h->code)
        r->messages = merge_system(&f, r->messages);
    made = tpl_list_new(h, 0);
    for (uint32_t i = 0; !h->code && i < r->messages.list->n; i++)
        fit_calls(&f, r->messages.list->items[i], i, made);
    r->messages = made;
    return h->code;
}
