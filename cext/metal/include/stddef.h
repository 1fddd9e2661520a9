/* stddef.h: for a text that is compiled by Metal, which has its own. */
