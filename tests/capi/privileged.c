/*
 * The effect of the environment on a program: the files in the directory that it names, and the
 * reaction to a double free. The test runs it as set-user-ID root, with file capabilities, and with
 * neither, and compares.
 *
 *   privileged DIRECTORY    "secure 0|1", one line for each file in it, "misuse aborts|goes on",
 *                           "ok"
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uslab.h>

/* Prints "own" for a file with the length of a snapshot, which is more than any file that a test
 * creates. */
static void list(const char *path)
{
    DIR *directory = opendir(path);
    struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        char name[512];
        struct stat status;
        snprintf(name, sizeof name, "%s/%.200s", path, entry->d_name);
        if (entry->d_name[0] == '.' || lstat(name, &status) != 0) continue;
        printf("%s %s\n", S_ISREG(status.st_mode) && status.st_size > 4096 ? "snapshot" : "other",
               atoi(entry->d_name) == (int)getpid() ? "PID" : entry->d_name);
    }
    if (directory != NULL) (void)closedir(directory);
}

static void free_twice(void)
{
    /* Hides the misuse from the compiler. */
    void (*volatile give_back)(void *) = uslab_free;
    void *volatile object = uslab_malloc(100);
    pid_t child;
    int status;
    (void)fflush(stdout);
    child = fork();
    if (child == 0) {
        give_back(object);
        give_back(object);
        (void)uslab_trim(0);
        exit(0);
    }
    if (waitpid(child, &status, 0) == child)
        printf("misuse %s\n", WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? "aborts" : "goes on");
}

int main(int argc, char **argv)
{
    void *volatile object = uslab_malloc(10);
    if (argc != 2 || object == NULL) return 2;
    printf("secure %lu\n", getauxval(AT_SECURE));
    list(argv[1]);
    free_twice();
    puts("ok");
    return 0;
}
