/* Calls of `sigaction` and its relatives reach the library behind uslab (`signals_behind.c`): all
 * but those for SIGSEGV with guard pages. `signals COUNT`: the calls for SIGSEGV that reach it. */

#define _GNU_SOURCE
#include <signal.h>
#include "check.h"

extern int counted;
static volatile int calls;

static void counts(int number)
{
    (void)number;
    calls++;
}

/* The calls for a signal that reached the other library. */
static int counted_for(int number)
{
    struct sigaction action = {.sa_handler = counts}, old;
    counted = 0;
    CHECK(sigaction(number, &action, &old) == 0 && old.sa_handler == SIG_DFL);
    CHECK(signal(number, SIG_DFL) == counts);
    CHECK(sysv_signal(number, counts) == SIG_DFL);
    CHECK(raise(number) == 0);
    CHECK(sysv_signal(number, SIG_DFL) == SIG_DFL);
    CHECK(signal(number, SIG_ERR) == SIG_ERR && errno == EINVAL);
    return counted;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    CHECK(counted_for(SIGUSR1) >= 3 && calls == 1);
    CHECK((counted_for(SIGSEGV) >= 3) == atoi(argv[1]) && calls == 2);
    puts("ok");
    return 0;
}
