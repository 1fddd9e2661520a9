/* json.c: see json.h. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "utf8.h"

static char peek(json *j) {
    while (j->at < j->end && strchr(" \t\r\n", *j->at) && *j->at)
        j->at++;
    return !j->failed && j->at < j->end ? *j->at : 0;
}

static int fault(json *j) {
    j->failed = 1;
    return 0;
}

static int take(json *j, char c) {
    if (peek(j) != c || !c)
        return fault(j);
    j->at++;
    return 1;
}

char json_kind(json *j) {
    char c = peek(j);
    return c == '-' || (c >= '0' && c <= '9') ? '0' : c && strchr("{[\"tfn", c) ? c : 0;
}

/* Begins, goes on with or ends an object or array; 1 where another member follows. */
static int member(json *j, int *n, char open, char close) {
    if (!*n) {
        if (j->depth >= JSON_DEPTH || !take(j, open))
            return fault(j);
        j->depth++;
    }
    if (peek(j) == close) {
        j->at++;
        j->depth--;
        return 0;
    }
    if (*n && !take(j, ','))
        return 0;
    ++*n;
    return !j->failed;
}

int json_key(json *j, int *n, char *key, size_t room) {
    if (!member(j, n, '{', '}'))
        return 0;
    json_string(j, key, room);
    return take(j, ':');
}

int json_item(json *j, int *n) {
    return member(j, n, '[', ']');
}

static int hex4(json *j) {
    int value = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        char c = j->at < j->end ? *j->at : 0;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return fault(j);
        value = value * 16 + digit;
    }
    return value;
}

/* The code point behind \u; half a pair becomes U+FFFD. */
static uint32_t code_point(json *j) {
    uint32_t high = (uint32_t)hex4(j), low;
    if (high < 0xD800 || high > 0xDFFF)
        return high;
    if (high > 0xDBFF || j->end - j->at < 6 || j->at[0] != '\\' || j->at[1] != 'u')
        return 0xFFFD;
    j->at += 2;
    low = (uint32_t)hex4(j);
    return low < 0xDC00 || low > 0xDFFF ? 0xFFFD : 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

static size_t encode(uint32_t c, char *to) {
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        to[0] = (char)(0xC0 | c >> 6);
        to[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        to[0] = (char)(0xE0 | c >> 12);
        to[1] = (char)(0x80 | (c >> 6 & 63));
        to[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    to[0] = (char)(0xF0 | c >> 18);
    to[1] = (char)(0x80 | (c >> 12 & 63));
    to[2] = (char)(0x80 | (c >> 6 & 63));
    to[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* The bytes of the next character of a string, with escapes read; 0 after a fault. */
static size_t character(json *j, char *to) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *found;
    char c = *j->at++;
    if ((unsigned char)c < 0x20)
        return (size_t)fault(j);
    if (c != '\\') {
        to[0] = c;
        return 1;
    }
    c = j->at < j->end ? *j->at++ : 0;
    if (c == 'u')
        return encode(code_point(j), to);
    if (!c || !(found = strchr(names, c)))
        return (size_t)fault(j);
    to[0] = values[found - names];
    return 1;
}

size_t json_string(json *j, char *out, size_t room) {
    size_t size = 0;
    if (!take(j, '"'))
        return 0;
    while (!j->failed && j->at < j->end && *j->at != '"') {
        char bytes[4];
        size_t n = character(j, bytes);
        for (size_t i = 0; i < n; i++, size++)
            if (size + 1 < room)
                out[size] = bytes[i];
    }
    if (j->at >= j->end)
        fault(j);
    j->at += !j->failed;
    if (room)
        out[size < room ? size : room - 1] = 0;
    return size < room ? size : room ? room - 1 : 0;
}

double json_number(json *j) {
    char digits[64];
    size_t n = 0;
    char *end;
    double value;
    if (json_kind(j) != '0')
        return fault(j);
    while (j->at < j->end && n + 1 < sizeof digits && *j->at && strchr("+-.0123456789eE", *j->at))
        digits[n++] = *j->at++;
    digits[n] = 0;
    value = strtod(digits, &end);
    return *end || !isfinite(value) ? fault(j) : value;
}

static void word(json *j, const char *expected) {
    size_t n = strlen(expected);
    if ((size_t)(j->end - j->at) < n || memcmp(j->at, expected, n))
        fault(j);
    else
        j->at += n;
}

int json_true(json *j) {
    char kind = json_kind(j);
    if (kind != 't' && kind != 'f')
        return fault(j);
    word(j, kind == 't' ? "true" : "false");
    return kind == 't' && !j->failed;
}

void json_skip(json *j) {
    char kind = json_kind(j), key[2];
    int n = 0;
    if (kind == '{')
        while (json_key(j, &n, key, sizeof key))
            json_skip(j); /* as deep as JSON_DEPTH at most */
    else if (kind == '[')
        while (json_item(j, &n))
            json_skip(j);
    else if (kind == '"')
        json_string(j, NULL, 0);
    else if (kind == '0')
        json_number(j);
    else if (kind == 'n')
        word(j, "null");
    else
        json_true(j);
}

int json_over(json *j) {
    return !peek(j) && j->at == j->end && !j->failed;
}

size_t json_escape(const char *text, size_t size, char *out) {
    static const char hex[] = "0123456789abcdef";
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            out[n++] = '\\', out[n++] = (char)c;
        else if (c < 0x20) {
            memcpy(out + n, "\\u00", 4);
            out[n + 4] = hex[c >> 4];
            out[n + 5] = hex[c & 15];
            n += 6;
        } else
            out[n++] = (char)c;
    }
    return n;
}

/* Bytes of the character that a text begins with; 0: it begins with none. */
static size_t first_size(const char *text, size_t size) {
    for (size_t n = 1; n <= size && n <= 4; n++)
        if (utf8_points(text, (int64_t)n, NULL) >= 0)
            return n;
    return 0;
}

size_t json_escape_within(const char *text, size_t size, char *out, size_t room) {
    char one[6];
    size_t n = 0;
    while (size) {
        size_t taken = first_size(text, size);
        size_t made = taken ? json_escape(text, taken, one) : json_escape("\xEF\xBF\xBD", 3, one);
        if (n + made >= room)
            break;
        memcpy(out + n, one, made);
        n += made;
        taken = taken ? taken : 1;
        text += taken;
        size -= taken;
    }
    out[n] = 0;
    return n;
}
