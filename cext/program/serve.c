/* serve.c: see serve.h. A thread for each connection, SERVE_THREADS at most; a request beyond the model's slots is refused, not queued.
 *
 * It listens on 127.0.0.1 alone. A page of another site cannot use it: a POST must be JSON, for which a browser asks first and gets
 * no consent, and Host must be a name of this machine, so a foreign name that leads here does not pass. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conversation.h"
#include "http.h"
#include "json.h"
#include "page.h"
#include "serve.h"

enum { SERVE_THREADS = 32, MESSAGES = 1024, NAME = 128 };

typedef struct {
    satchel_model *model;
    char name[NAME]; /* as the inside of a JSON string */
    pthread_mutex_t lock;
    int threads;              /* under the lock */
    unsigned long long count; /* of requests, under the lock */
} server;

typedef struct {
    server *of;
    net_socket socket;
} connection;

/* What a body asks for. Texts of messages lie in `texts`, which has the body's size. */
typedef struct {
    message messages[MESSAGES];
    char *texts;
    size_t used, room;
    int count, stream;
    char refused[NAME]; /* why the body is not answered; "": it is */
    satchel_generate_options options;
} chat_request;

static void refuse(chat_request *c, const char *what) {
    if (!*c->refused)
        snprintf(c->refused, sizeof c->refused, "%s", what);
}

static void add_text(json *j, chat_request *c, message *m) {
    size_t n = json_string(j, c->texts + c->used, c->room - c->used);
    m->size += (int64_t)n;
    c->used += n;
}

/* A content: a string, or a list of parts of type text. */
static void read_content(json *j, chat_request *c, message *m) {
    char key[16], kind = json_kind(j);
    m->text = c->texts + c->used;
    m->size = 0;
    if (kind == '"') {
        add_text(j, c, m);
    } else if (kind == '[') {
        for (int n = 0; json_item(j, &n);)
            for (int k = 0; json_key(j, &k, key, sizeof key);) {
                if (!strcmp(key, "text"))
                    add_text(j, c, m);
                else
                    json_skip(j);
            }
    } else {
        refuse(c, "messages: expected a content that is a text");
        json_skip(j);
    }
}

static const char *role_of(const char *name) {
    static const char *const roles[] = {"system", "user", "assistant"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(roles[i], name))
            return roles[i];
    return !strcmp(name, "developer") ? roles[0] : NULL;
}

static void read_messages(json *j, chat_request *c) {
    char key[16], role[16];
    for (int n = 0; json_item(j, &n);) {
        message m = {NULL, "", 0};
        for (int k = 0; json_key(j, &k, key, sizeof key);) {
            if (!strcmp(key, "role")) {
                json_string(j, role, sizeof role);
                m.role = role_of(role);
            } else if (!strcmp(key, "content"))
                read_content(j, c, &m);
            else
                json_skip(j);
        }
        if (!m.role)
            refuse(c, "messages: expected a role of system, user or assistant");
        else if (c->count == MESSAGES)
            refuse(c, "messages: expected 1024 at most");
        else
            c->messages[c->count++] = m;
    }
}

static double number_within(json *j, chat_request *c, const char *name, double least, double most) {
    double value;
    if (json_kind(j) == 'n') {
        json_skip(j);
        return -1;
    }
    value = json_number(j);
    if (!j->failed && !(value >= least && value <= most)) {
        char why[NAME];
        snprintf(why, sizeof why, "%s: expected %g to %g, got %g", name, least, most, value);
        refuse(c, why);
        return -1;
    }
    return value;
}

/* Fields that would change the answer, and which this server does not know: they are refused, not passed over. */
static int unknown(const char *key) {
    static const char *const names[] = {"tools", "functions", "response_format", "stop", "logprobs", "logit_bias", "n"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], key))
            return 1;
    return 0;
}

static void read_field(json *j, chat_request *c, const char *key) {
    double value;
    if (!strcmp(key, "messages"))
        read_messages(j, c);
    else if (!strcmp(key, "stream"))
        c->stream = json_true(j);
    else if (!strcmp(key, "max_tokens") || !strcmp(key, "max_completion_tokens")) {
        if ((value = number_within(j, c, key, 0, 1e9)) >= 0)
            c->options.max_tokens = (int64_t)value;
    } else if (!strcmp(key, "temperature")) {
        if ((value = number_within(j, c, key, 0, 2)) >= 0)
            c->options.temperature = (float)value;
    } else if (!strcmp(key, "top_p")) {
        if ((value = number_within(j, c, key, 0, 1)) >= 0)
            c->options.top_p = (float)value;
    } else if (!strcmp(key, "seed")) {
        if ((value = number_within(j, c, key, 0, 9e15)) >= 0)
            c->options.seed = (int64_t)value;
    } else if (unknown(key) && json_kind(j) != 'n' &&
               !(!strcmp(key, "n") && json_kind(j) == '0' && json_number(j) == 1)) {
        char why[NAME];
        snprintf(why, sizeof why, "%s: this server does not know it; leave it out", key);
        refuse(c, why);
        if (strcmp(key, "n"))
            json_skip(j);
    } else if (strcmp(key, "n") || json_kind(j) == 'n')
        json_skip(j);
}

/* Reads the body of a chat; 0, or a status, with the reason in `refused`. */
static int read_chat(const http_request *r, chat_request *c) {
    json j = {r->body, r->body + r->size, 0, 0};
    char key[32];
    satchel_generate_options_init(&c->options, sizeof c->options);
    c->room = r->size + 1;
    if (!(c->texts = malloc(c->room))) {
        refuse(c, "no memory for the messages");
        return 503;
    }
    for (int n = 0; json_key(&j, &n, key, sizeof key);)
        read_field(&j, c, key);
    if (!json_over(&j))
        snprintf(c->refused, sizeof c->refused, "the body: expected a JSON object, got something else at byte %lld",
                 (long long)(j.at - r->body));
    else if (!c->count)
        refuse(c, "messages: expected one or more");
    return *c->refused ? 400 : 0;
}

/* Growing text of a response. */
typedef struct {
    char *data;
    size_t size, room;
} text_buffer;

static int put(text_buffer *b, const char *data, size_t size) {
    if (b->size + size + 1 > b->room) {
        char *grown = realloc(b->data, 2 * (b->size + size + 1));
        if (!grown)
            return -1;
        b->data = grown;
        b->room = 2 * (b->size + size + 1);
    }
    memcpy(b->data + b->size, data, size);
    b->size += size;
    b->data[b->size] = 0;
    return 0;
}

static int put_escaped(text_buffer *b, const char *text, size_t size) {
    char *escaped = malloc(6 * size + 1);
    int failed = !escaped || put(b, escaped, json_escape(text, size, escaped));
    free(escaped);
    return failed ? -1 : 0;
}

/* An event of a stream: content, or where `reason` is given, the end. */
static int send_event(const http_request *r, const server *s, const char *id, const char *text, size_t size,
                      const char *reason) {
    static const char more[] = "\"}, \"finish_reason\": null}]}\n\n";
    char head[512];
    text_buffer b = {0};
    int failed;
    snprintf(head, sizeof head,
             "data: {\"id\": \"%s\", \"object\": \"chat.completion.chunk\", \"created\": %lld, \"model\": \"%s\", "
             "\"choices\": "
             "[{\"index\": 0, \"delta\": {%s",
             id, (long long)time(NULL), s->name, reason ? "" : "\"role\": \"assistant\", \"content\": \"");
    failed = put(&b, head, strlen(head));
    if (!reason)
        failed = failed || put_escaped(&b, text, size) || put(&b, more, strlen(more));
    else {
        snprintf(head, sizeof head, "}, \"finish_reason\": \"%s\"}]}\n\ndata: [DONE]\n\n", reason);
        failed = failed || put(&b, head, strlen(head));
    }
    failed = failed || http_send(r->socket, b.data, b.size);
    free(b.data);
    return failed ? -1 : 0;
}

static const char *finish(const satchel_reply *a, satchel_reply_report *report) {
    report->size = sizeof *report;
    satchel_report(a, report);
    return report->reason == SATCHEL_LENGTH ? "length" : "stop";
}

static void stream_answer(const http_request *r, const server *s, satchel_reply *a, const char *id) {
    static const char fault[] = "data: {\"error\": {\"message\": \"the step failed\"}}\n\n";
    satchel_reply_report report = {0};
    const char *text;
    size_t size;
    int more;
    if (http_head(r->socket, 200, "text/event-stream", -1))
        return;
    while ((more = answer_next(a, &text, &size)) > 0)
        if (send_event(r, s, id, text, size, NULL))
            return; /* the client is gone: nothing more is computed */
    if (more == 0)
        send_event(r, s, id, NULL, 0, finish(a, &report));
    else
        http_send(r->socket, fault, strlen(fault));
}

static void whole_answer(const http_request *r, const server *s, satchel_reply *a, const char *id) {
    satchel_reply_report report = {0};
    text_buffer b = {0};
    char head[512];
    const char *text;
    size_t size;
    int more, failed;
    snprintf(head, sizeof head,
             "{\"id\": \"%s\", \"object\": \"chat.completion\", \"created\": %lld, \"model\": \"%s\", \"choices\": "
             "[{\"index\": 0, "
             "\"message\": {\"role\": \"assistant\", \"content\": \"",
             id, (long long)time(NULL), s->name);
    failed = put(&b, head, strlen(head));
    while ((more = answer_next(a, &text, &size)) > 0 && !failed)
        failed = put_escaped(&b, text, size);
    if (more < 0 || failed) {
        http_error(r->socket, 500, more < 0 ? satchel_error() : "no memory for the answer");
    } else {
        const char *reason = finish(a, &report);
        snprintf(head, sizeof head,
                 "\"}, \"finish_reason\": \"%s\"}], \"usage\": {\"prompt_tokens\": %lld, \"completion_tokens\": %lld, "
                 "\"total_tokens\": %lld}}\n",
                 reason, (long long)report.prompt_tokens, (long long)report.tokens,
                 (long long)(report.prompt_tokens + report.tokens));
        if (!put(&b, head, strlen(head)))
            http_reply(r->socket, 200, "application/json", b.data);
    }
    free(b.data);
}

static void complete(const http_request *r, server *s) {
    chat_request *c = calloc(1, sizeof *c);
    satchel_reply *a = NULL;
    char id[48];
    int status = c ? read_chat(r, c) : 503, code = 0;
    pthread_mutex_lock(&s->lock);
    snprintf(id, sizeof id, "chatcmpl-%llx-%llu", (unsigned long long)time(NULL), ++s->count);
    pthread_mutex_unlock(&s->lock);
    if (status)
        http_error(r->socket, status, c ? c->refused : "no memory for the request");
    else if ((code = answer_open(s->model, c->messages, c->count, &c->options, &a)) < 0)
        http_error(r->socket, code == SATCHEL_E_FULL || code == SATCHEL_E_MEMORY ? 503 : 400, satchel_error());
    else if (c->stream)
        stream_answer(r, s, a, id);
    else
        whole_answer(r, s, a, id);
    satchel_reply_free(a);
    if (c)
        free(c->texts);
    free(c);
}

/* Whether Host names this machine. */
static int is_local(const char *host) {
    static const char *const names[] = {"127.0.0.1", "localhost", "[::1]"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(names[i]);
        if (!strncmp(host, names[i], n) && (!host[n] || host[n] == ':'))
            return 1;
    }
    return 0;
}

static void answer_request(const http_request *r, server *s) {
    int get = !strcmp(r->method, "GET"), post = !strcmp(r->method, "POST");
    char body[NAME + 256];
    if (!is_local(r->host))
        http_error(r->socket, 403, "Host: expected a name of this machine");
    else if (!strcmp(r->path, "/v1/chat/completions") && !post)
        http_error(r->socket, 405, "expected POST");
    else if (!strcmp(r->path, "/v1/chat/completions")) {
        if (strncmp(r->type, "application/json", 16))
            http_error(r->socket, 415, "Content-Type: expected application/json");
        else
            complete(r, s);
    } else if (!get)
        http_error(r->socket, 405, "expected GET");
    else if (!strcmp(r->path, "/v1/models")) {
        snprintf(
            body, sizeof body,
            "{\"object\": \"list\", \"data\": [{\"id\": \"%s\", \"object\": \"model\", \"created\": 0, \"owned_by\": "
            "\"satchel\"}]}\n",
            s->name);
        http_reply(r->socket, 200, "application/json", body);
    } else if (!strcmp(r->path, "/"))
        http_reply(r->socket, 200, "text/html; charset=utf-8", page);
    else
        http_error(r->socket, 404, "there is /, /v1/models and /v1/chat/completions");
}

static int count_thread(server *s, int by) {
    int now;
    pthread_mutex_lock(&s->lock);
    now = s->threads += by;
    pthread_mutex_unlock(&s->lock);
    return now;
}

static void *converse(void *given) {
    connection *c = given;
    http_request r;
    int status = http_read(c->socket, &r);
    if (!status)
        answer_request(&r, c->of);
    else if (status > 0)
        http_error(c->socket, status,
                   status == 413 ? "the body: expected 1 MiB at most" : "the request is no HTTP/1.1 of this server");
    http_free(&r);
    http_close(c->socket);
    count_thread(c->of, -1);
    free(c);
    return NULL;
}

static void begin(server *s, net_socket socket, const pthread_attr_t *detached) {
    connection *c = count_thread(s, 1) <= SERVE_THREADS ? malloc(sizeof *c) : NULL;
    pthread_t thread;
    if (c) {
        *c = (connection){s, socket};
        if (!pthread_create(&thread, detached, converse, c))
            return;
        free(c);
    }
    http_error(socket, 503, "too many requests at a time");
    net_close(socket);
    count_thread(s, -1);
}

int serve_model(satchel_model *model, const char *name, int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    net_size size = sizeof at;
    server s = {.model = model};
    net_socket listening;
    pthread_attr_t detached;
    json_escape_within(name, strlen(name), s.name, sizeof s.name);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (net_start() || (listening = socket(AF_INET, SOCK_STREAM, 0)) == NET_NONE ||
        bind(listening, (struct sockaddr *)&at, sizeof at) || listen(listening, 64) ||
        getsockname(listening, (struct sockaddr *)&at, &size)) {
        fprintf(stderr, "port %d: can't be listened on: another program may have it; name another by --port\n", port);
        return 1;
    }
    printf("http://127.0.0.1:%d\n", ntohs(at.sin_port));
    fflush(stdout);
    pthread_mutex_init(&s.lock, NULL);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (;;) {
        net_socket client = accept(listening, NULL, NULL);
        if (client != NET_NONE)
            begin(&s, client, &detached);
    }
}
