/* sampling.h: options of an answer as the record that a step carries for its row; runtime/sampling/record.py is the definition. */
#ifndef SATCHEL_EMBED_SAMPLING_H
#define SATCHEL_EMBED_SAMPLING_H

#include "backend.h"
#include "satchel.h"

/* The defaults of all fields; size and seed (-1) with them. */
satchel_generate_options sampling_defaults(void);
/* Whether DRY has an effect. */
int sampling_has_dry(const satchel_generate_options *);
/* An error where an option is out of range; the seed is the options' as it is. */
int sampling_record(const satchel_generate_options *, hal_sampling *out);

#endif
