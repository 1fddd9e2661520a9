/* template_machine.c: see template_machine.h. A stack machine without recursion: calls of macros are frames in the heap. Whatever
 * the code does, it stays within its stack, its slots and its limits; a step costs one of the heap's steps. */
#include <math.h>
#include <string.h>

#include "backend.h"
#include "template_functions.h"
#include "template_machine.h"

enum { MOST_STACK = 1024, MOST_FRAMES = 41, MOST_CAPTURES = 128 };

typedef struct {
    tpl_value *slots;
    uint32_t n_slots, back;   /* back: the instruction after the call */
    uint32_t stack, captures; /* heights below which the frame does not reach */
} frame;

typedef struct {
    const tpl_template *t;
    tpl_context context;
    tpl_heap *heap;
    tpl_value variables;
    tpl_value stack[MOST_STACK];
    uint32_t n, at; /* values on the stack; the next instruction */
    frame frames[MOST_FRAMES];
    uint32_t n_frames;
    tpl_builder captures[MOST_CAPTURES]; /* the first one: what is written in all */
    uint32_t n_captures;
    int over;
} machine;

static const tpl_value nothing = {.kind = TPL_UNDEFINED};

static int damaged(machine *m) {
    return tpl_fail(m->heap, HAL_E_INVALID, "the code is damaged; build the file again");
}

static frame *top_frame(machine *m) {
    return m->frames + m->n_frames - 1;
}

static void push(machine *m, tpl_value v) {
    if (m->n >= MOST_STACK)
        tpl_fail(m->heap, HAL_E_INVALID, "blocks or expressions nest too deeply");
    else
        m->stack[m->n++] = v;
}

/* Whether the frame has so many values. */
static int has(machine *m, uint32_t count) {
    if (m->n - top_frame(m)->stack >= count)
        return 1;
    damaged(m);
    return 0;
}

static tpl_value pop(machine *m) {
    return has(m, 1) ? m->stack[--m->n] : nothing;
}

static tpl_builder *output(machine *m) {
    return m->captures + m->n_captures - 1;
}

/* --- calls */

static tpl_arguments arguments_of(machine *m, const template_code *c) {
    const tpl_value *names = c->b == TEMPLATE_NO_NAMES ? NULL : m->t->values + c->b;
    uint32_t named = names ? names->list->n : 0;
    return (tpl_arguments){m->stack + m->n - c->count, c->count, named, names ? names->list->items : NULL};
}

/* Begins a frame whose slots are undefined. */
static frame *enter(machine *m, uint32_t n_slots, uint32_t entry) {
    frame *f = m->frames + m->n_frames;
    if (m->n_frames >= MOST_FRAMES) {
        tpl_fail(m->heap, HAL_E_INVALID, "nested more than %d calls; does a macro call itself for ever?",
                 MOST_FRAMES - 1);
        return NULL;
    }
    *f = (frame){tpl_alloc(m->heap, (uint64_t)n_slots * sizeof *f->slots), n_slots, m->at, m->n, m->n_captures};
    if (m->heap->code)
        return NULL;
    m->n_frames++;
    m->at = entry;
    return f;
}

static void capture(machine *m) {
    if (m->n_captures >= MOST_CAPTURES)
        tpl_fail(m->heap, HAL_E_INVALID, "blocks or expressions nest too deeply");
    else
        m->captures[m->n_captures++] = (tpl_builder){0};
}

/* Puts the arguments of a macro into its slots. */
static void bind(machine *m, frame *f, const template_macro *macro, const tpl_arguments *a) {
    const tpl_list *names = m->t->values[macro->arguments].list;
    uint32_t positional = a->n - a->n_named, next = names->n;
    uint32_t caller = macro->flags & MACRO_CALLER ? next++ : 0, varargs = macro->flags & MACRO_VARARGS ? next++ : 0;
    uint32_t kwargs = macro->flags & MACRO_KWARGS ? next++ : 0;
    for (uint32_t i = 0; i < names->n; i++)
        f->slots[i] = i < positional ? a->values[i] : (tpl_value){.kind = TPL_MISSING};
    if (macro->flags & MACRO_VARARGS)
        f->slots[varargs] = tpl_tuple_new(m->heap, 0);
    if (macro->flags & MACRO_KWARGS)
        f->slots[kwargs] = tpl_map_new(m->heap);
    for (uint32_t i = names->n; i < positional; i++) {
        if (!(macro->flags & MACRO_VARARGS)) {
            tpl_fail(m->heap, HAL_E_INVALID, "a macro takes not more than %u argument(s)", names->n);
            return;
        }
        tpl_add(m->heap, f->slots[varargs], a->values[i]);
    }
    for (uint32_t i = 0; i < a->n_named && !m->heap->code; i++) {
        const tpl_text *name = a->names[i].text;
        tpl_value v = a->values[positional + i];
        uint32_t k = 0;
        while (k < names->n && !tpl_same_text(names->items[k].text, name))
            k++;
        if (k < names->n && f->slots[k].kind == TPL_MISSING)
            f->slots[k] = v;
        else if (k == names->n && macro->flags & MACRO_CALLER && tpl_is_word(a->names[i], "caller"))
            f->slots[caller] = v;
        else if (k == names->n && macro->flags & MACRO_KWARGS)
            tpl_set(m->heap, f->slots[kwargs].map, a->names[i], v);
        else
            tpl_fail(m->heap, HAL_E_INVALID, "a macro takes no keyword argument '%.*s'",
                     (int)(name->size < 40 ? name->size : 40), name->data);
    }
}

static void call_macro(machine *m, uint32_t number, const template_code *c) {
    const template_macro *macro = m->t->macros + number;
    tpl_arguments a = arguments_of(m, c);
    frame *f;
    m->n -= c->count + 1u;
    if (!(f = enter(m, macro->n_slots, macro->entry)))
        return;
    /* The arguments lie above the stack, and are read before anything is pushed. */
    bind(m, f, macro, &a);
    capture(m);
}

/* Calls the value below the arguments. */
static void call(machine *m, const template_code *c) {
    tpl_value callee = m->stack[m->n - c->count - 1], made = nothing;
    tpl_arguments a = arguments_of(m, c);
    if (callee.kind == TPL_MACRO) {
        call_macro(m, (uint32_t)callee.number, c);
        return;
    }
    if (callee.kind == TPL_FUNCTION)
        made = tpl_function(&m->context, (uint32_t)callee.number, &a);
    else if (callee.kind == TPL_METHOD)
        made = tpl_call_method(&m->context, callee.method->of, callee.method->name, &a);
    else if (!tpl_refuse_undefined(&m->context, callee))
        tpl_fail(m->heap, HAL_E_INVALID, "'%s' can't be called in a chat template", tpl_kind_name(callee));
    m->n -= c->count + 1u;
    push(m, made);
}

static void call_method(machine *m, const template_code *c) {
    const tpl_text *name = m->t->values[c->a].text;
    tpl_value *of = m->stack + m->n - c->count - 1;
    if (tpl_has_method(*of, name)) {
        tpl_arguments a = arguments_of(m, c);
        tpl_value made = tpl_call_method(&m->context, *of, name, &a);
        m->n -= c->count + 1u;
        push(m, made);
        return;
    }
    *of = tpl_attribute(&m->context, *of, name);
    if (!m->heap->code)
        call(m, c);
}

static void apply(machine *m, const template_code *c) {
    tpl_arguments a = arguments_of(m, c);
    tpl_value v = m->stack[m->n - c->count - 1];
    v = c->op == TEMPLATE_FILTER ? tpl_filter(&m->context, c->a, v, &a) : tpl_bool(tpl_test(&m->context, c->a, v, &a));
    m->n -= c->count + 1u;
    push(m, v);
}

static void end_macro(machine *m) {
    frame *f = top_frame(m);
    tpl_value made;
    if (m->n_frames < 2 || m->n_captures != f->captures + 1 || m->n != f->stack) {
        damaged(m);
        return;
    }
    made = tpl_built(m->heap, output(m));
    m->n_captures--;
    m->at = f->back;
    m->n_frames--;
    push(m, made);
}

/* --- names */

static tpl_value name_of(machine *m, const tpl_text *name) {
    const tpl_value *found = tpl_get(m->heap, m->variables.map, (tpl_value){.kind = TPL_STRING, .text = name});
    int number = found ? -1 : tpl_find_function(name);
    return found         ? *found
           : number >= 0 ? (tpl_value){.kind = TPL_FUNCTION, .number = number}
                         : tpl_undefined(m->heap, name);
}

static void load(machine *m, const frame *f, uint32_t slot) {
    if (slot >= f->n_slots)
        damaged(m);
    else
        push(m, f->slots[slot].kind == TPL_MISSING ? nothing : f->slots[slot]);
}

static void store(machine *m, uint32_t slot) {
    frame *f = top_frame(m);
    if (slot >= f->n_slots)
        damaged(m);
    else
        f->slots[slot] = pop(m);
}

static void set_attribute(machine *m, const tpl_text *name) {
    tpl_value of = pop(m), v = pop(m);
    if (m->heap->code)
        return;
    if (of.kind != TPL_NAMESPACE)
        tpl_fail(m->heap, HAL_E_INVALID, "cannot assign attribute on non-namespace object");
    else if (!name->size || name->data[0] == '_')
        tpl_fail(m->heap, HAL_E_INVALID, "a namespace can't hold '%.*s'", (int)(name->size < 40 ? name->size : 40),
                 name->data);
    else
        tpl_set(m->heap, of.map, (tpl_value){.kind = TPL_STRING, .text = name}, v);
}

/* --- loops */

static void begin_loop(machine *m) {
    tpl_loop *made = tpl_alloc(m->heap, sizeof *made);
    tpl_value v = pop(m);
    if (!made)
        return;
    made->items = tpl_items_of(m->heap, v);
    made->changed = (tpl_value){.kind = TPL_MISSING};
    if (!m->heap->code)
        push(m, (tpl_value){.kind = TPL_LOOP, .loop = made});
}

static tpl_loop *loop_of(machine *m) {
    if (has(m, 1) && m->stack[m->n - 1].kind == TPL_LOOP)
        return m->stack[m->n - 1].loop;
    damaged(m);
    return NULL;
}

static void next_item(machine *m, uint32_t out) {
    tpl_loop *l = loop_of(m);
    if (!l)
        return;
    if (l->at < l->items.list->n)
        push(m, l->items.list->items[l->at++]);
    else
        m->at = out;
}

static void keep_item(machine *m) {
    tpl_loop *l = loop_of(m);
    if (l && l->at && l->at <= l->items.list->n)
        tpl_add(m->heap, (tpl_value){.kind = TPL_LIST, .list = &l->kept}, l->items.list->items[l->at - 1]);
    else
        damaged(m);
}

static void end_filter(machine *m) {
    tpl_loop *l = loop_of(m);
    if (l)
        m->stack[m->n - 1] = (tpl_value){.kind = TPL_LIST, .list = &l->kept};
}

static void end_loop(machine *m, uint32_t out) {
    tpl_loop *l = loop_of(m);
    if (!l)
        return;
    m->n--;
    if (l->at)
        m->at = out;
}

static void unpack(machine *m, uint32_t count) {
    tpl_value v = tpl_items_of(m->heap, pop(m));
    if (m->heap->code)
        return;
    if (v.list->n != count) {
        tpl_fail(m->heap, HAL_E_INVALID, "%s values to unpack (expected %u)",
                 v.list->n > count ? "too many" : "not enough", count);
        return;
    }
    for (uint32_t i = count; i-- > 0;)
        push(m, v.list->items[i]);
}

/* --- values */

static void collect(machine *m, const template_code *c) {
    tpl_value made = nothing;
    uint64_t count = c->op == TEMPLATE_MAP ? (uint64_t)c->a * 2 : c->a;
    if (count > MOST_STACK || !has(m, (uint32_t)count)) {
        damaged(m);
        return;
    }
    m->n -= (uint32_t)count;
    made = c->op == TEMPLATE_MAP     ? tpl_map_new(m->heap)
           : c->op == TEMPLATE_TUPLE ? tpl_tuple_new(m->heap, count)
                                     : tpl_list_new(m->heap, count);
    for (uint32_t i = 0; i < count && !m->heap->code; i++) {
        if (c->op != TEMPLATE_MAP) {
            tpl_add(m->heap, made, m->stack[m->n + i]);
        } else {
            tpl_set(m->heap, made.map, m->stack[m->n + i], m->stack[m->n + i + 1]);
            i++;
        }
    }
    push(m, made);
}

static void concat(machine *m, uint32_t count) {
    tpl_builder b = {0};
    if (count > MOST_STACK || !has(m, count)) {
        damaged(m);
        return;
    }
    m->n -= count;
    for (uint32_t i = 0; i < count && !m->heap->code; i++)
        tpl_print(m->heap, m->context.printing, &b, m->stack[m->n + i]);
    push(m, tpl_built(m->heap, &b));
}

static void compare(machine *m, const template_code *c) {
    int found = 1;
    if (!has(m, c->count + 1u))
        return;
    m->n -= c->count + 1u;
    for (uint32_t i = 0; i < c->count && found; i++)
        found =
            tpl_compare(&m->context, c->a >> 4 * i & 15, m->stack[m->n + i], m->stack[m->n + i + 1]) && !m->heap->code;
    push(m, tpl_bool(found));
}

static tpl_value too_large(machine *m) {
    tpl_fail(m->heap, HAL_E_INVALID, "computes an integer of more than 64 bits");
    return nothing;
}

static tpl_value power(machine *m, int64_t base, int64_t exponent) {
    int64_t made = 1;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1 && __builtin_mul_overflow(made, base, &made))
            return too_large(m);
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
            return too_large(m);
    }
    return tpl_int(made);
}

static tpl_value integers(machine *m, int op, int64_t a, int64_t b) {
    int64_t made = 0;
    int divides = op == TEMPLATE_DIV || op == TEMPLATE_FLOORDIV || op == TEMPLATE_MOD;
    if (divides && !b) {
        tpl_fail(m->heap, HAL_E_INVALID, "division by zero");
        return nothing;
    }
    if (op == TEMPLATE_DIV)
        return tpl_float((double)a / (double)b);
    if (divides && b == -1)
        return op == TEMPLATE_MOD ? tpl_int(0) : a == INT64_MIN ? too_large(m) : tpl_int(-a);
    if (op == TEMPLATE_FLOORDIV)
        return tpl_int(a / b - (a % b && (a < 0) != (b < 0)));
    if (op == TEMPLATE_MOD)
        return tpl_int(a % b + (a % b && (a < 0) != (b < 0) ? b : 0));
    if (op == TEMPLATE_POW && b >= 0)
        return power(m, a, b);
    if (op == TEMPLATE_POW)
        return tpl_float(pow((double)a, (double)b));
    if (op == TEMPLATE_SUB ? __builtin_sub_overflow(a, b, &made) : __builtin_mul_overflow(a, b, &made))
        return too_large(m);
    return tpl_int(made);
}

static tpl_value reals(machine *m, int op, double a, double b) {
    double rest;
    if ((op == TEMPLATE_DIV || op == TEMPLATE_FLOORDIV || op == TEMPLATE_MOD) && b == 0) {
        tpl_fail(m->heap, HAL_E_INVALID, "float division by zero");
        return nothing;
    }
    rest = b != 0 ? fmod(a, b) : 0;
    rest += rest != 0 && (rest < 0) != (b < 0) ? b : 0;
    return tpl_float(op == TEMPLATE_SUB        ? a - b
                     : op == TEMPLATE_MUL      ? a * b
                     : op == TEMPLATE_DIV      ? a / b
                     : op == TEMPLATE_FLOORDIV ? floor((a - rest) / b + 0.5)
                     : op == TEMPLATE_MOD      ? rest
                                               : pow(a, b));
}

/* text * number, list * number. */
static tpl_value repeated(machine *m, tpl_value v, int64_t times) {
    tpl_builder b = {0};
    tpl_value made;
    if (v.kind == TPL_STRING) {
        for (int64_t i = 0; i < times && v.text->size && !m->heap->code && !tpl_pay(m->heap, 1); i++)
            tpl_put(m->heap, &b, v.text->data, v.text->size);
        return tpl_built(m->heap, &b);
    }
    made = v.kind == TPL_TUPLE ? tpl_tuple_new(m->heap, 0) : tpl_list_new(m->heap, 0);
    for (int64_t i = 0; i < times && v.list->n && !m->heap->code; i++)
        for (uint32_t k = 0; k < v.list->n && !tpl_pay(m->heap, 1); k++)
            tpl_add(m->heap, made, v.list->items[k]);
    return made;
}

static tpl_value arithmetic(machine *m, int op, tpl_value a, tpl_value b) {
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "**"};
    double one, other;
    if (op == TEMPLATE_ADD)
        return tpl_add_values(&m->context, a, b);
    if (tpl_refuse_undefined(&m->context, a) || tpl_refuse_undefined(&m->context, b))
        return nothing;
    if (op == TEMPLATE_MOD && a.kind == TPL_STRING && !(a.flags & TPL_SAFE))
        return tpl_printf(&m->context, a.text, b);
    for (int i = 0; op == TEMPLATE_MUL && i < 2; i++) {
        tpl_value v = i ? b : a, times = i ? a : b;
        if ((times.kind == TPL_INT || times.kind == TPL_BOOL) && !(v.flags & (TPL_VIEW | TPL_SAFE)) &&
            (v.kind == TPL_STRING || tpl_is_sequence(v)))
            return repeated(m, v, times.number);
    }
    if (!tpl_real(a, &one) || !tpl_real(b, &other)) {
        tpl_fail(m->heap, HAL_E_INVALID, "unsupported operand type(s) for %s: '%s' and '%s'", signs[op - TEMPLATE_ADD],
                 tpl_kind_name(a), tpl_kind_name(b));
        return nothing;
    }
    if (a.kind == TPL_FLOAT || b.kind == TPL_FLOAT)
        return reals(m, op, one, other);
    return integers(m, op, a.number, b.number);
}

static tpl_value negative(machine *m, tpl_value v) {
    if (v.kind == TPL_FLOAT)
        return tpl_float(-v.real);
    if ((v.kind == TPL_INT || v.kind == TPL_BOOL) && v.number != INT64_MIN)
        return tpl_int(-v.number);
    if (!tpl_refuse_undefined(&m->context, v))
        tpl_fail(m->heap, HAL_E_INVALID, "bad operand type for unary -: '%s'", tpl_kind_name(v));
    return nothing;
}

static void write_output(machine *m) {
    tpl_value v = pop(m);
    if (!m->heap->code)
        tpl_print(m->heap, m->context.printing, output(m), v);
}

/* A jump that looks at the value on top. */
static void jump_if(machine *m, const template_code *c) {
    int truth = has(m, 1) && tpl_truth(m->stack[m->n - 1]), keeps = c->op != TEMPLATE_JUMP_FALSE;
    int jumps = c->op == TEMPLATE_JUMP_TRUE_KEEP ? truth : !truth;
    if (m->heap->code)
        return;
    if (!keeps || !jumps)
        m->n--;
    if (jumps)
        m->at = c->a;
}

static void end_capture(machine *m) {
    if (m->n_captures < top_frame(m)->captures + (m->n_frames > 1 ? 2 : 1)) {
        damaged(m);
        return;
    }
    m->n_captures--;
    push(m, tpl_built(m->heap, m->captures + m->n_captures));
}

static void values_step(machine *m, const template_code *c) {
    tpl_value a, b;
    switch (c->op) {
    case TEMPLATE_NOT:
        push(m, tpl_bool(!tpl_truth(pop(m))));
        return;
    case TEMPLATE_NEG:
        push(m, negative(m, pop(m)));
        return;
    case TEMPLATE_POS:
        a = negative(m, pop(m));
        push(m, m->heap->code ? nothing : negative(m, a));
        return;
    case TEMPLATE_CONCAT:
        concat(m, c->a);
        return;
    case TEMPLATE_COMPARE:
        compare(m, c);
        return;
    case TEMPLATE_ATTRIBUTE:
        push(m, tpl_attribute(&m->context, pop(m), m->t->values[c->a].text));
        return;
    case TEMPLATE_ITEM:
        b = pop(m);
        a = pop(m);
        push(m, tpl_item(&m->context, a, b));
        return;
    case TEMPLATE_SLICE:
        if (has(m, 4)) {
            m->n -= 4;
            push(m, tpl_slice(&m->context, m->stack[m->n], m->stack[m->n + 1], m->stack[m->n + 2], m->stack[m->n + 3]));
        }
        return;
    case TEMPLATE_LIST:
    case TEMPLATE_TUPLE:
    case TEMPLATE_MAP:
        collect(m, c);
        return;
    default:
        b = pop(m);
        a = pop(m);
        push(m, arithmetic(m, c->op, a, b));
    }
}

static void calls_step(machine *m, const template_code *c) {
    if (!has(m, c->count + 1u))
        return;
    if (c->op == TEMPLATE_METHOD)
        call_method(m, c);
    else if (c->op == TEMPLATE_CALL)
        call(m, c);
    else
        apply(m, c);
}

/* Loops, and what is written. */
static void blocks_step(machine *m, const template_code *c) {
    switch (c->op) {
    case TEMPLATE_LOOP:
        begin_loop(m);
        return;
    case TEMPLATE_NEXT:
        next_item(m, c->a);
        return;
    case TEMPLATE_KEEP:
        keep_item(m);
        return;
    case TEMPLATE_KEPT:
        end_filter(m);
        return;
    case TEMPLATE_LOOP_END:
        end_loop(m, c->a);
        return;
    case TEMPLATE_UNPACK:
        unpack(m, c->a);
        return;
    case TEMPLATE_SET_ATTRIBUTE:
        set_attribute(m, m->t->values[c->a].text);
        return;
    case TEMPLATE_TEXT:
        tpl_put(m->heap, output(m), m->t->values[c->a].text->data, m->t->values[c->a].text->size);
        return;
    case TEMPLATE_OUTPUT:
        write_output(m);
        return;
    case TEMPLATE_CAPTURE:
        capture(m);
        return;
    case TEMPLATE_CAPTURED:
        end_capture(m);
        return;
    case TEMPLATE_MACRO:
        push(m, (tpl_value){.kind = TPL_MACRO, .number = c->a});
        return;
    case TEMPLATE_RETURN:
        end_macro(m);
        return;
    default:
        values_step(m, c);
    }
}

static void step(machine *m, const template_code *c) {
    frame *f = top_frame(m);
    switch (c->op) {
    case TEMPLATE_CONST:
        push(m, m->t->values[c->a]);
        return;
    case TEMPLATE_LOCAL:
        load(m, f, c->a);
        return;
    case TEMPLATE_STORE:
        store(m, c->a);
        return;
    case TEMPLATE_ROOT:
        load(m, m->frames, c->a);
        return;
    case TEMPLATE_NAME:
        push(m, name_of(m, m->t->values[c->a].text));
        return;
    case TEMPLATE_POP:
        pop(m);
        return;
    case TEMPLATE_DUP:
        if (has(m, 1))
            push(m, m->stack[m->n - 1]);
        return;
    case TEMPLATE_JUMP:
        m->at = c->a;
        return;
    case TEMPLATE_JUMP_FALSE:
    case TEMPLATE_JUMP_FALSE_KEEP:
    case TEMPLATE_JUMP_TRUE_KEEP:
        jump_if(m, c);
        return;
    case TEMPLATE_JUMP_GIVEN:
        if (c->b >= f->n_slots)
            damaged(m);
        else if (f->slots[c->b].kind != TPL_MISSING)
            m->at = c->a;
        return;
    case TEMPLATE_FILTER:
    case TEMPLATE_TEST:
    case TEMPLATE_CALL:
    case TEMPLATE_METHOD:
        calls_step(m, c);
        return;
    case TEMPLATE_END:
        if (m->n_frames != 1 || m->n_captures != 1)
            damaged(m);
        m->over = 1;
        return;
    default:
        blocks_step(m, c);
    }
}

/* Puts the line before the reason. */
static void name_line(machine *m, int line) {
    char reason[sizeof m->heap->reason];
    int code = m->heap->code;
    memcpy(reason, m->heap->reason, sizeof reason);
    m->heap->code = 0;
    tpl_fail(m->heap, code, "chat template line %d: %s", line, reason);
}

static const tpl_value *own_strings(tpl_heap *h, const tpl_template *t, uint32_t *count) {
    tpl_value *made = tpl_alloc(h, (uint64_t)t->head->n_constants * sizeof *made);
    *count = 0;
    for (uint32_t i = 0; made && i < t->head->n_constants; i++)
        if (t->constants[i].kind == CONSTANT_OWN)
            made[(*count)++] = t->values[i];
    return made;
}

tpl_value template_run(tpl_heap *h, const tpl_template *t, const template_variant *v, tpl_value variables,
                       const tpl_escape *escape, const struct tm *now) {
    machine *m = tpl_alloc(h, sizeof *m);
    tpl_printing printing = t->printing;
    if (!m || variables.kind != TPL_MAP)
        return nothing;
    printing.private_use = escape->n != 0;
    m->t = t;
    m->heap = h;
    m->variables = variables;
    m->context = (tpl_context){.heap = h,
                               .escape = escape,
                               .printing = &printing,
                               .now = *now,
                               .n_cases = t->head->n_cases,
                               .cases = t->cases};
    m->context.own = own_strings(h, t, &m->context.n_own);
    m->n_captures = 1;
    enter(m, v->n_slots, v->entry);
    while (!h->code && !m->over) {
        const template_code *c = t->code + m->at;
        if (m->at >= t->head->n_code) {
            damaged(m);
            break;
        }
        m->at++;
        if (!tpl_pay(h, 1))
            step(m, c);
        if (h->code)
            name_line(m, c->line);
    }
    return h->code ? nothing : tpl_built(h, m->captures);
}
