/* linux/futex.h: operations of futex(2); numbers of the kernel's interface. */
#pragma once
#define FUTEX_WAIT_PRIVATE 128
#define FUTEX_WAKE_PRIVATE 129
