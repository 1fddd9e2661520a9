/* driver.h: a GPU driver without a device. See driver.c. */
#ifndef SATCHEL_DRY_DRIVER_H
#define SATCHEL_DRY_DRIVER_H

#include "api.h"

/* Fills the table; gives NULL. */
const char *dry_driver(gpu_api *);
/* The archive of images that SATCHEL_DRY_IMAGES names; NULL where it names none. */
const void *dry_archive(void);

#endif
