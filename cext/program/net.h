/* net.h: sockets of POSIX and Windows under one name. */
#ifndef SATCHEL_PROGRAM_NET_H
#define SATCHEL_PROGRAM_NET_H

#include <stdint.h>

#if defined(_WIN32)
#include <winsock2.h>
#include <ws2tcpip.h>
typedef SOCKET net_socket;
typedef int net_size;
#define NET_WRITES SD_SEND
#define NET_NONE INVALID_SOCKET
#define MSG_NOSIGNAL 0

static inline void net_close(net_socket s) {
    closesocket(s);
}

/* Must be called once before all else. */
static inline int net_start(void) {
    WSADATA data;
    return WSAStartup(MAKEWORD(2, 2), &data);
}

/* A receive or send that waits longer fails. */
static inline void net_limit(net_socket s, int which, int seconds) {
    DWORD milliseconds = (DWORD)seconds * 1000;
    setsockopt(s, SOL_SOCKET, which, (const char *)&milliseconds, sizeof milliseconds);
}
#else
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
typedef int net_socket;
typedef socklen_t net_size;
#define NET_WRITES SHUT_WR
#define NET_NONE (-1)
#if !defined(MSG_NOSIGNAL)
#define MSG_NOSIGNAL 0
#endif

static inline void net_close(net_socket s) {
    close(s);
}

static inline int net_start(void) {
    return signal(SIGPIPE, SIG_IGN) == SIG_ERR; /* a client that is gone is an error of send() */
}

static inline void net_limit(net_socket s, int which, int seconds) {
    struct timeval limit = {seconds, 0};
    setsockopt(s, SOL_SOCKET, which, &limit, sizeof limit);
}
#endif

#endif
