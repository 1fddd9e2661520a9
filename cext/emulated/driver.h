/* driver.h: a GPU driver whose device is this CPU. See driver.c. */
#ifndef SATCHEL_EMULATED_DRIVER_H
#define SATCHEL_EMULATED_DRIVER_H

#include "api.h"

/* Fills the table; gives NULL. */
const char *emulated_driver(gpu_api *);

#endif
