/* http.c: see http.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "http.h"
#include "json.h"

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c + 'a' - 'A') : c;
}

/* The value of a header line of this name; NULL where the line is another's. */
static const char *value_of(const char *line, const char *name) {
    while (*name && lower(*line) == *name)
        line++, name++;
    if (*name || *line != ':')
        return NULL;
    for (line++; *line == ' ' || *line == '\t'; line++)
        continue;
    return line;
}

static void copy(char *to, size_t room, const char *text) {
    size_t n = strlen(text);
    n = n < room - 1 ? n : room - 1;
    memcpy(to, text, n);
    to[n] = 0;
}

/* A number of bytes in decimal; -1 for anything else. */
static long long size_of(const char *text) {
    long long n = 0;
    if (!*text)
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || n > HTTP_BODY)
            return *text < '0' || *text > '9' ? -1 : n;
        n = n * 10 + (*text - '0');
    }
    return n;
}

/* Takes the head apart: lines that end with a zero byte each. */
static int parse_head(char *head, http_request *r, long long *size, int *expects) {
    char *line = head, *next = strstr(head, "\r\n"), *space, *query;
    *next = 0;
    if (!(space = strchr(line, ' ')) || (size_t)(space - line) >= sizeof r->method)
        return 400;
    *space++ = 0;
    copy(r->method, sizeof r->method, line);
    if (!(query = strchr(space, ' ')) || strncmp(query, " HTTP/1.", 8))
        return 400;
    *query = 0;
    space[strcspn(space, "?")] = 0;
    copy(r->path, sizeof r->path, strlen(space) < sizeof r->path ? space : "");
    for (line = next + 2; (next = strstr(line, "\r\n")) && next != line; line = next + 2) {
        const char *value;
        *next = 0;
        if ((value = value_of(line, "content-length"))) {
            if (*size >= 0 || (*size = size_of(value)) < 0)
                return 400;
        } else if (value_of(line, "transfer-encoding"))
            return 411;
        else if ((value = value_of(line, "expect")))
            *expects = 1;
        else if ((value = value_of(line, "host")))
            copy(r->host, sizeof r->host, value);
        else if ((value = value_of(line, "content-type")))
            copy(r->type, sizeof r->type, value);
    }
    return 0;
}

/* Receives until the head is whole; its size, and of what came with it. */
static int read_head(net_socket s, char *head, size_t *have, time_t until) {
    *have = 0;
    for (;;) {
        char *end;
        long n = (long)recv(s, head + *have, (int)(HTTP_HEAD - *have), 0);
        if (n <= 0 || time(NULL) > until)
            return -1;
        *have += (size_t)n;
        head[*have] = 0;
        if (memchr(head, 0, *have))
            return 400;
        if ((end = strstr(head, "\r\n\r\n")))
            return 0;
        if (*have == HTTP_HEAD)
            return 431;
    }
}

int http_read(net_socket s, http_request *r) {
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    char *head = malloc(HTTP_HEAD + 1), *rest;
    size_t have, left;
    long long size = -1;
    int expects = 0, status;
    time_t until = time(NULL) + HTTP_SECONDS;
    *r = (http_request){.socket = s};
    net_limit(s, SO_RCVTIMEO, HTTP_SECONDS);
    net_limit(s, SO_SNDTIMEO, HTTP_SECONDS);
    if (!head)
        return -1;
    if ((status = read_head(s, head, &have, until))) {
        free(head);
        return status;
    }
    rest = strstr(head, "\r\n\r\n") + 4;
    left = have - (size_t)(rest - head);
    status = parse_head(head, r, &size, &expects);
    if (!status && size > HTTP_BODY)
        status = 413;
    size = size < 0 ? 0 : size;
    if (!status && !(r->body = malloc((size_t)size + 1)))
        status = 503;
    if (!status) {
        r->size = left < (size_t)size ? left : (size_t)size;
        memcpy(r->body, rest, r->size);
        if (expects && r->size < (size_t)size)
            http_send(s, go_on, strlen(go_on));
    }
    free(head);
    while (!status && r->size < (size_t)size) {
        long n = (long)recv(s, r->body + r->size, (int)((size_t)size - r->size), 0);
        if (n <= 0 || time(NULL) > until)
            status = -1;
        r->size += n > 0 ? (size_t)n : 0;
    }
    if (!status)
        r->body[r->size] = 0;
    return status;
}

void http_free(http_request *r) {
    free(r->body);
    r->body = NULL;
}

int http_send(net_socket s, const char *data, size_t size) {
    while (size) {
        long n = (long)send(s, data, (int)size, MSG_NOSIGNAL);
        if (n <= 0)
            return -1;
        data += n;
        size -= (size_t)n;
    }
    return 0;
}

static const char *reason(int status) {
    switch (status) {
    case 200:
        return "OK";
    case 400:
        return "Bad Request";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 411:
        return "Length Required";
    case 413:
        return "Content Too Large";
    case 415:
        return "Unsupported Media Type";
    case 431:
        return "Request Header Fields Too Large";
    case 503:
        return "Service Unavailable";
    default:
        return "Internal Server Error";
    }
}

int http_head(net_socket s, int status, const char *type, long long size) {
    char head[512], length[48] = "";
    if (size >= 0)
        snprintf(length, sizeof length, "Content-Length: %lld\r\n", size);
    snprintf(head, sizeof head,
             "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n%sConnection: close\r\nCache-Control: no-store\r\n"
             "X-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; connect-src 'self'; "
             "script-src 'unsafe-inline'; style-src 'unsafe-inline'; frame-ancestors 'none'\r\n\r\n",
             status, reason(status), type, length);
    return http_send(s, head, strlen(head));
}

int http_reply(net_socket s, int status, const char *type, const char *body) {
    size_t size = strlen(body);
    return http_head(s, status, type, (long long)size) ? -1 : http_send(s, body, size);
}

int http_error(net_socket s, int status, const char *text) {
    char words[1024], body[sizeof words + 128];
    json_escape_within(text, strlen(text), words, sizeof words);
    snprintf(body, sizeof body, "{\"error\": {\"message\": \"%s\", \"type\": \"%s\", \"code\": %d}}\n", words,
             status < 500 ? "invalid_request_error" : "server_error", status);
    return http_reply(s, status, "application/json", body);
}

void http_close(net_socket s) {
    char spare[4096];
    size_t most = 2 * HTTP_BODY;
    time_t until = time(NULL) + 2;
    shutdown(s, NET_WRITES);
    net_limit(s, SO_RCVTIMEO, 1);
    while (most && time(NULL) <= until) {
        long n = (long)recv(s, spare, sizeof spare, 0);
        if (n <= 0)
            break;
        most -= (size_t)n < most ? (size_t)n : most;
    }
    net_close(s);
}
