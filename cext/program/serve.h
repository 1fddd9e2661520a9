/* serve.h: a small server on loopback: the page at /, and of OpenAI's API /v1/models and /v1/chat/completions. */
#ifndef SATCHEL_PROGRAM_SERVE_H
#define SATCHEL_PROGRAM_SERVE_H

#include "satchel.h"

/* Serves until the process ends; returns where no connection can be accepted. port 0: a free one, which is told on stdout.
 * name: of the model, at /v1/models, as much of it as 127 bytes hold. */
int serve_model(satchel_model *, const char *name, int port);

#endif
