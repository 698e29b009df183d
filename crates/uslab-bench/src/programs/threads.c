/*
 * SQLite in several threads, each with a database of its own in memory: programs/sqlite.rs compiles
 * this for each run. The library is opened at run time, as Debian has its headers in a package of
 * their own; the declarations below are those of sqlite3.h.
 *
 *   PROGRAM THREADS ROWS
 *
 * Each thread fills a table, makes an index over it, updates, deletes and sorts. The statistics of
 * memory are off: SQLite would guard every allocation by one lock, which would hide the allocator.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_THREADS = 64, CONFIG_MULTITHREAD = 2, CONFIG_MEMSTATUS = 9 };

typedef int callback(void *, int, char **, char **);
static int (*config)(int, ...);
static int (*open_database)(const char *, void **);
static int (*execute)(void *, const char *, callback *, void *, char **);
static int (*close_database)(void *);
static long rows;

static int remaining(void *count, int columns, char **values, char **names)
{
    (void)columns, (void)names;
    *(long *)count = strtol(values[0], NULL, 10);
    return 0;
}

static void *work(void *unused)
{
    static const char *const script =
        "PRAGMA temp_store = MEMORY;"
        "CREATE TABLE t(id INTEGER PRIMARY KEY, k INTEGER NOT NULL, name TEXT NOT NULL);"
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %ld)"
        " INSERT INTO t SELECT i, (i * 2654435761) %% 1000003, printf('name-%%08x', i * 40503) FROM n;"
        "CREATE INDEX by_k ON t(k); CREATE UNIQUE INDEX by_name ON t(name, id);"
        "UPDATE t SET name = upper(name) || '!' WHERE id %% 7 = 0;"
        "DELETE FROM t WHERE id %% 11 = 0;"
        "SELECT group_concat(name, ',') FROM (SELECT name FROM t ORDER BY name DESC, id LIMIT 500);"
        "SELECT count(*) FROM t;";
    char text[2048];
    void *database = NULL;
    long left = -1;
    snprintf(text, sizeof text, script, rows);
    if (open_database(":memory:", &database) != 0) return unused;
    int status = execute(database, text, remaining, &left, NULL);
    if (close_database(database) != 0 || status != 0 || left != rows - rows / 11) return unused;
    return NULL;
}

int main(int argc, char **argv)
{
    long threads = argc > 1 ? strtol(argv[1], NULL, 10) : 8;
    rows = argc > 2 ? strtol(argv[2], NULL, 10) : 1000;
    void *library = dlopen("libsqlite3.so.0", RTLD_NOW);
    if (library == NULL || threads < 1 || threads > MAX_THREADS) {
        fprintf(stderr, "libsqlite3.so.0 is not installed; on Debian: apt-get install libsqlite3-0\n");
        return 1;
    }
    config = (int (*)(int, ...))dlsym(library, "sqlite3_config");
    open_database = (int (*)(const char *, void **))dlsym(library, "sqlite3_open");
    execute = (int (*)(void *, const char *, callback *, void *, char **))dlsym(library, "sqlite3_exec");
    close_database = (int (*)(void *))dlsym(library, "sqlite3_close");
    if (config(CONFIG_MULTITHREAD) != 0 || config(CONFIG_MEMSTATUS, 0) != 0) return 1;
    pthread_t started[MAX_THREADS];
    void *failed = NULL;
    for (long i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, work, library) != 0) return 1;
    for (long i = 0; i < threads; i++) {
        void *result = NULL;
        if (pthread_join(started[i], &result) != 0 || result != NULL) failed = library;
    }
    if (failed != NULL) fprintf(stderr, "a thread of SQLite failed\n");
    return failed != NULL;
}
