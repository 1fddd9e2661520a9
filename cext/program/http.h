/* http.h: one HTTP/1.1 request of a connection, and its response. A request costs no more memory than its bytes, which are limited; a
 * response ends with the connection. */
#ifndef SATCHEL_PROGRAM_HTTP_H
#define SATCHEL_PROGRAM_HTTP_H

#include <stddef.h>

#include "net.h"

enum { HTTP_HEAD = 16 << 10, HTTP_BODY = 1 << 20 }; /* most bytes */
enum { HTTP_SECONDS = 20 };                         /* until a request is read */

typedef struct {
    net_socket socket;
    char method[8], path[128], host[128], type[64];
    char *body; /* with a zero byte behind it */
    size_t size;
} http_request;

/* Reads a request; 0, or the status of the error that it deserves (-1: there is nobody to tell). http_free() ends it in any case. */
int http_read(net_socket, http_request *out);
void http_free(http_request *);
/* Sends all of it; -1 where the client is gone. */
int http_send(net_socket, const char *data, size_t size);
/* Sends a status line and headers. type: of the content; size: of its bytes, -1: until the connection ends. */
int http_head(net_socket, int status, const char *type, long long size);
int http_reply(net_socket, int status, const char *type, const char *body);
/* An error in OpenAI's form, with as much of the text as 1 KiB holds. */
int http_error(net_socket, int status, const char *text);

/* Closes a connection after its response. What the client still sends is read, within limits: a system that closes with bytes unread
 * takes the response away from it. */
void http_close(net_socket);

#endif
