// A double free, with a standard error that is hard to write to. Prints what arrived there.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static int ends[2];

static void fill(void)
{
    char bytes[4096];
    memset(bytes, '.', sizeof bytes);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    while (write(ends[1], bytes, sizeof bytes) > 0)
        ;
}

static void *read_late(void *unused)
{
    (void)unused;
    usleep(300000);
    char bytes[4096];
    ssize_t n;
    while ((n = read(ends[0], bytes, sizeof bytes)) > 0)
        for (ssize_t at = 0; at < n; at++)
            if (bytes[at] != '.')
                putchar(bytes[at]);
    return NULL;
}

static void ignore(int number)
{
    (void)number;
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    pthread_t reader;
    if (pipe(ends) != 0)
        return 2;
    if (strcmp(kind, "closed") != 0) {
        fill();
        if (strcmp(kind, "interrupted") == 0)
            fcntl(ends[1], F_SETFL, 0);
        sigset_t alarm_set;
        sigemptyset(&alarm_set);
        sigaddset(&alarm_set, SIGALRM);
        // The main thread alone gets the signal.
        pthread_sigmask(SIG_BLOCK, &alarm_set, NULL);
        pthread_create(&reader, NULL, read_late, NULL);
        pthread_sigmask(SIG_UNBLOCK, &alarm_set, NULL);
    }
    dup2(ends[1], 2);
    close(ends[1]);
    struct sigaction action = {.sa_handler = ignore};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 10000}, {0, 10000}};
    if (strcmp(kind, "interrupted") == 0)
        setitimer(ITIMER_REAL, &often, NULL);
    if (strcmp(kind, "closed") == 0)
        close(ends[0]);

    char *volatile object = malloc(100);
    free(object);
    free(object);

    memset(&often, 0, sizeof often);
    setitimer(ITIMER_REAL, &often, NULL);
    sigset_t pending;
    sigpending(&pending);
    printf("%s", sigismember(&pending, SIGPIPE) ? "SIGPIPE is left\n" : "");
    // Ends the reader.
    close(2);
    if (strcmp(kind, "closed") != 0)
        pthread_join(reader, NULL);
    puts("end");
    return 0;
}
