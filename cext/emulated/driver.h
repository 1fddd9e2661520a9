/* driver.h: an emulated GPU driver on the CPU. See driver.c. */
#ifndef SATCHEL_EMULATED_DRIVER_H
#define SATCHEL_EMULATED_DRIVER_H

#include "api.h"

/* Fills the table; gives NULL. */
const char *emulated_driver(gpu_api *);

#endif
