/*
 * Forks beside threads that allocate while they hold locks of the C library:
 * `fork_library [SECONDS]`.
 *
 * The locks of the loader (dlopen), the time zone (tzset), the locale (newlocale), the name service
 * databases (getpwnam), and the exit and fork handlers. fork itself waits for some of them. The
 * alarm ends a fork that hangs.
 *
 * By hand, with a name service configuration that changes: `unshare -m`, mount a copy of
 * /etc/nsswitch.conf over it, and name the copy in TOUCH.
 */
#define _GNU_SOURCE
#include "process.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <iconv.h>
#include <link.h>
#include <locale.h>
#include <pthread.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

enum { LIMIT_S = 20 };

static void *opens(void *argument) {
    for (;;) {
        void *library = dlopen("libutil.so.1", RTLD_NOW | RTLD_LOCAL);
        void *other = dlopen("libnss_hesiod.so.2", RTLD_NOW | RTLD_LOCAL);
        dlerror();
        if (library) dlclose(library);
        if (other) dlclose(other);
    }
    return argument;
}

static void *zones(void *argument) {
    for (unsigned n = 0;; n++) {
        time_t now = (time_t)n * 86400;
        struct tm broken;
        /* Only this thread changes the environment. */
        setenv("TZ", n % 2 ? "Europe/Berlin" : "America/New_York", 1);
        tzset();
        localtime_r(&now, &broken);
    }
    return argument;
}

static void *locales(void *argument) {
    for (;;) {
        locale_t locale = newlocale(LC_ALL_MASK, "C.UTF-8", NULL);
        if (locale) freelocale(locale);
        iconv_t converter = iconv_open("UTF-16", "UTF-8");
        if (converter != (iconv_t)-1) iconv_close(converter);
    }
    return argument;
}

static void *names(void *argument) {
    const char *touched = getenv("TOUCH");
    for (unsigned n = 0;; n++) {
        char text[1024];
        struct passwd entry, *found;
        getpwnam_r(n % 2 ? "root" : "daemon", &entry, text, sizeof text, &found);
        struct timespec times[2] = {{n, 0}, {n, 0}};
        if (touched) utimensat(AT_FDCWD, touched, times, 0);
    }
    return argument;
}

static int visit(struct dl_phdr_info *info, size_t bytes, void *data) {
    (void)info, (void)bytes, (void)data;
    free(malloc(200));
    return 0;
}

static void *visits(void *argument) {
    for (;;) dl_iterate_phdr(visit, NULL);
    return argument;
}

int main(int argc, char **argv) {
    int seconds = argc > 1 ? atoi(argv[1]) : 3;
    void *(*const bodies[])(void *) = {opens, zones, locales, names, visits};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, bodies[i], NULL) == 0);
    }
    long forks = 0;
    for (time_t end = time(NULL) + seconds; time(NULL) < end; forks++) {
        int status = -1;
        alarm(LIMIT_S);
        pid_t child = fork();
        if (child == 0) {
            churn(200, 9);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    dprintf(1, "%ld forks\nok\n", forks);
    _exit(0);
}
