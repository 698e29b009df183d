/* Children of a fork that end by `_exit`, `_Exit` or `quick_exit` leave no figures behind, and a
 * child of `vfork` leaves those of its parent.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <sched.h>
#include <sys/wait.h>

#include "check.h"

static int files(void) {
    int count = 0;
    DIR *directory = opendir(getenv("USLAB_SNAPSHOT"));
    CHECK(directory != NULL);
    for (struct dirent *entry; (entry = readdir(directory));) count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static void expect(pid_t child, int status) {
    int ended = 0;
    CHECK(child > 0 && waitpid(child, &ended, 0) == child);
    CHECK(WIFEXITED(ended) && WEXITSTATUS(ended) == status);
}

int main(void) {
    free(malloc(1000));
    CHECK(files() == 1);
    for (int n = 0; n < 20; n++) {
        pid_t child = fork();
        if (child == 0) {
            free(malloc(2000));
            if (n % 3 == 0) _exit(files());
            if (n % 3 == 1) _Exit(files());
            quick_exit(files());
        }
        expect(child, 2);
    }
    CHECK(files() == 1);
    pid_t child = vfork();
    if (child == 0) _exit(3);
    expect(child, 3);
    CHECK(files() == 1);
    /* Process 1 of a pid namespace has a parent without an id. Needs privileges. */
    if (unshare(CLONE_NEWPID) == 0) {
        child = fork();
        if (child == 0) _exit(files());
        expect(child, 2);
        CHECK(files() == 1);
    }
    puts("ok");
    fflush(stdout);
    _exit(0);
}
