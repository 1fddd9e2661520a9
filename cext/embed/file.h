/* file.h: files by paths of UTF-8, on every system; errno says what failed. */
#ifndef SATCHEL_EMBED_FILE_H
#define SATCHEL_EMBED_FILE_H

#include <stdio.h>

FILE *file_read(const char *path);  /* NULL: it can't be */
FILE *file_write(const char *path); /* the same; an old one is emptied */
/* Gives a whole file its name; a file of that name goes. 0, or -1. */
int file_replace(const char *from, const char *to);
void file_remove(const char *path);

#endif
