/* template_machine.h: runs a variant of a chat template over variables. */
#ifndef SATCHEL_EMBED_TEMPLATE_MACHINE_H
#define SATCHEL_EMBED_TEMPLATE_MACHINE_H

#include <time.h>

#include "template_section.h"

/* Writes what the template writes for these variables (a mapping) to a string of the heap; undefined after a failure, whose reason
 * names the line. escape: n 0: the variables are not escaped. now: the local time, for strftime_now. */
tpl_value template_run(tpl_heap *, const tpl_template *, const template_variant *, tpl_value variables,
                       const tpl_escape *escape, const struct tm *now);

#endif
