/* stddef.h: for NVRTC. It has size_t by itself, and no __builtin_offsetof. */
#define NULL 0
#define offsetof(type, member) ((size_t)&((type *)0)->member)
