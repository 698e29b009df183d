/* A library behind uslab in the loader's order that counts calls of `sigaction` and its relatives,
 * and passes them on. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>

int counted;

static int (*next_sigaction)(int, const struct sigaction *, struct sigaction *);
static sighandler_t (*next_signal)(int, sighandler_t), (*next_sysv_signal)(int, sighandler_t);

__attribute__((constructor)) static void finds_the_next(void)
{
    next_sigaction = dlsym(RTLD_NEXT, "sigaction");
    next_signal = dlsym(RTLD_NEXT, "signal");
    next_sysv_signal = dlsym(RTLD_NEXT, "sysv_signal");
}

int sigaction(int number, const struct sigaction *new, struct sigaction *old)
{
    counted++;
    return next_sigaction(number, new, old);
}

sighandler_t signal(int number, sighandler_t handler)
{
    counted++;
    return next_signal(number, handler);
}

sighandler_t sysv_signal(int number, sighandler_t handler)
{
    counted++;
    return next_sysv_signal(number, handler);
}
