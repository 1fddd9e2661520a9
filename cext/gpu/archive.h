/* archive.h: the archive of images that pack.py makes and a GPU library holds. */
#ifndef SATCHEL_GPU_ARCHIVE_H
#define SATCHEL_GPU_ARCHIVE_H

#include "device.h"

/* Loads the images of the vendor's archive that fit the device, and fills d->image. The context is current. */
int gpu_load_archive(hal_device *);

#endif
