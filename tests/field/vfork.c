/*
 * Children of vfork that allocate in their parent's memory: `vfork CHECK [ROUNDS]`.
 *
 * POSIX forbids that, but programs do it. The child takes the place of its parent's thread while
 * all other threads run, mostly on another CPU than the parent's.
 */
#define _GNU_SOURCE
#include "process.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { STORM_THREADS = 3, FORKERS = 2, LIMIT_S = 60, LEFT = 32 };

static void expect_clean(pid_t child) {
    int status = -1;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

/* Moves the caller to one of the CPUs that it may use. */
static void move_to(const cpu_set_t *may, unsigned turn) {
    int n = CPU_COUNT(may), wanted = (int)(turn % (unsigned)n);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, may) || wanted-- > 0) continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
        return;
    }
}

static volatile int written;

/* Functions of their own, because the child must not return from the function that called vfork. */
__attribute__((noinline)) static pid_t child_that_writes(void) {
    pid_t child = vfork();
    if (child == 0) {
        written = 1;
        _exit(0);
    }
    return child;
}

/* The memory is shared, and the parent waits: the purpose of vfork. */
static void shares(void) {
    for (int n = 0; n < 20; n++) {
        written = 0;
        pid_t child = child_that_writes();
        CHECK(written == 1);
        expect_clean(child);
    }
}

/* glibc's second name of the function leads to the same library. */
static void shares_by_second_name(void) {
    Dl_info first, second;
    void *function = dlsym(RTLD_DEFAULT, "__vfork");
    CHECK(function != NULL && dladdr(function, &second) && dladdr((void *)vfork, &first));
    CHECK(first.dli_fbase == second.dli_fbase);
    pid_t child = ((pid_t(*)(void))function)();
    if (child == 0) {
        churn(200, 3);
        _exit(0);
    }
    expect_clean(child);
}

static volatile int error_of_child;
static sigset_t mask_of_child;

__attribute__((noinline)) static pid_t child_that_looks(void) {
    pid_t child = vfork();
    if (child == 0) {
        error_of_child = errno;
        if (sigprocmask(SIG_BLOCK, NULL, &mask_of_child) != 0) _exit(1);
        _exit(0);
    }
    return child;
}

/* errno and the signal mask are unchanged on both sides. */
static void keeps(void) {
    sigset_t mask, after;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    CHECK(sigprocmask(SIG_SETMASK, &mask, NULL) == 0);
    errno = 77;
    pid_t child = child_that_looks();
    CHECK(errno == 77 && error_of_child == 77);
    expect_clean(child);
    CHECK(sigprocmask(SIG_BLOCK, NULL, &after) == 0);
    CHECK(memcmp(&after, &mask, 8) == 0 && memcmp(&mask_of_child, &mask, 8) == 0);
}

/* The thread's CPU number in the C library's rseq area. */
static int area_cpu(void) {
    const ptrdiff_t *offset = dlsym(RTLD_DEFAULT, "__rseq_offset");
    const unsigned *size = dlsym(RTLD_DEFAULT, "__rseq_size");
    if (!offset || !size || *size == 0) return -1;
    return *(volatile int *)((char *)__builtin_thread_pointer() + *offset + 4);
}

static cpu_set_t all_cpus;

__attribute__((noinline)) static pid_t child_elsewhere(unsigned turn) {
    pid_t child = vfork();
    if (child == 0) {
        move_to(&all_cpus, turn + 1);
        churn(200, turn + 1);
        _exit(0);
    }
    return child;
}

/* After the child, which ran on another CPU, the parent's area names the parent's CPU. */
static void knows_its_cpu(void) {
    for (unsigned n = 0; n < 50; n++) {
        move_to(&all_cpus, n);
        int here = sched_getcpu();
        pid_t child = child_elsewhere(n);
        int said = area_cpu();
        CHECK(said == -1 || said == here);
        expect_clean(child);
    }
}

static atomic_int storm_over;
static atomic_ulong storm_rounds;

static void *storm(void *argument) {
    for (unsigned n = 0; !storm_over; n++) {
        move_to(&all_cpus, n + (unsigned)(uintptr_t)argument);
        churn(2000, (uintptr_t)argument << 32 | n);
        storm_rounds++;
    }
    return NULL;
}

struct left {
    uint64_t *block[LEFT];
};

/* The child replaces the blocks that the parent left to it, and leaves its own to the parent. */
__attribute__((noinline)) static pid_t child_of_storm(struct left *left, uint64_t tag, unsigned turn) {
    pid_t child = vfork();
    if (child == 0) {
        move_to(&all_cpus, turn);
        churn(1000, tag);
        for (int i = 0; i < LEFT; i++) {
            CHECK(is_tagged(left->block[i], 8, tag - 1));
            free(left->block[i]);
            left->block[i] = tagged(8, tag);
        }
        /* Both ways to end, each of which leaves this CPU's number in the area. */
        signal(SIGUSR1, SIG_IGN);
        if (turn % 4 == 0) execl("/bin/true", "true", (char *)NULL);
        _exit(0);
    }
    return child;
}

static int rounds = 200;

static void *forker(void *argument) {
    uint64_t tag = (uint64_t)(uintptr_t)argument << 48;
    struct left left;
    for (int i = 0; i < LEFT; i++) left.block[i] = tagged(8, tag);
    for (int n = 0; n < rounds; n++) {
        move_to(&all_cpus, (unsigned)n / 2);
        expect_clean(child_of_storm(&left, ++tag, (unsigned)n));
        churn(500, tag);
    }
    for (int i = 0; i < LEFT; i++) {
        CHECK(is_tagged(left.block[i], 8, tag));
        free(left.block[i]);
    }
    return NULL;
}

static volatile sig_atomic_t signals;

static void on_signal(int number) {
    (void)number;
    signals++;
}

static void storms(void) {
    pthread_t threads[STORM_THREADS], forkers[FORKERS];
    /* Signals arrive meanwhile, in all threads and in the children. */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    for (uintptr_t i = 0; i < STORM_THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, storm, (void *)(i + 1)) == 0);
    for (uintptr_t i = 0; i < FORKERS; i++)
        CHECK(pthread_create(&forkers[i], NULL, forker, (void *)(i + 100)) == 0);
    for (int n = 0; n < rounds; n++) {
        kill(0, SIGUSR1);
        usleep(1000);
        if (n % 8 != 0) continue;
        /* A fork holds off children of vfork, as it holds off threads. */
        pid_t child = fork();
        if (child == 0) {
            alarm(LIMIT_S);
            churn(1000, 7);
            _exit(0);
        }
        expect_clean(child);
    }
    for (int i = 0; i < FORKERS; i++) CHECK(pthread_join(forkers[i], NULL) == 0);
    storm_over = 1;
    for (int i = 0; i < STORM_THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(storm_rounds > 0 && signals > 0);
}

__attribute__((noinline)) static pid_t child_with_child(uint64_t tag) {
    pid_t child = vfork();
    if (child == 0) {
        churn(100, tag);
        int status = -1;
        pid_t inner = child_that_writes();
        churn(100, tag);
        _exit(inner > 0 && waitpid(inner, &status, 0) == inner && status == 0 ? 0 : 1);
    }
    return child;
}

/* Children of children. */
static void nests(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, storm, (void *)1) == 0);
    for (uint64_t n = 1; n < 30; n++) {
        written = 0;
        pid_t child = child_with_child(n);
        CHECK(written == 1);
        expect_clean(child);
        churn(100, n);
    }
    storm_over = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

/* The C library's own functions to start programs, whose children use the parent's area too. */
static void spawns(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, storm, (void *)1) == 0);
    for (uint64_t n = 1; n < 20; n++) {
        pid_t child = -1;
        char *arguments[] = {"sh", "-c", "read line; test \"$line\" = text", NULL};
        int ends[2];
        posix_spawn_file_actions_t actions;
        CHECK(pipe(ends) == 0 && posix_spawn_file_actions_init(&actions) == 0);
        CHECK(posix_spawn_file_actions_adddup2(&actions, ends[0], 0) == 0);
        CHECK(posix_spawnp(&child, "sh", &actions, NULL, arguments, environ) == 0);
        CHECK(write(ends[1], "text\n", 5) == 5);
        expect_clean(child);
        close(ends[0]), close(ends[1]);
        posix_spawn_file_actions_destroy(&actions);

        char line[16] = "";
        FILE *piped = popen("echo text", "r");
        CHECK(piped != NULL && fgets(line, sizeof line, piped) != NULL && strcmp(line, "text\n") == 0);
        CHECK(pclose(piped) == 0);
        CHECK(system("exit 3") == 3 << 8);
        churn(500, n);
    }
    storm_over = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

static int threads(void) {
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    for (struct dirent *entry; (entry = readdir(tasks));) n += entry->d_name[0] != '.';
    closedir(tasks);
    return n;
}

enum { LARGE = 40, LARGE_BYTES = 1 << 20 };

/* Allocates more than the background thread's threshold, in small and large blocks. */
static void grow(void) {
    static void *block[LARGE];
    for (int i = 0; i < LARGE; i++) CHECK((block[i] = malloc(LARGE_BYTES)) != NULL);
    churn(20000, 5);
    for (int i = 0; i < LARGE; i++) free(block[i]);
}

static volatile int threads_of_child;

__attribute__((noinline)) static pid_t child_that_grows(void) {
    pid_t child = vfork();
    if (child == 0) {
        grow();
        threads_of_child = threads();
        _exit(0);
    }
    return child;
}

/* The child starts no background thread: it would end with the child, but count as the parent's. */
static void starts_no_thread(void) {
    pid_t child = child_that_grows();
    CHECK(threads_of_child == 1);
    expect_clean(child);
    for (int n = 0; n < 100 && threads() == 1; n++) grow(), usleep(1000);
    CHECK(getenv("USLAB_SNAPSHOT") == NULL || threads() == 2);
}

/* Where the kernel refuses to register threads, the child gets its own memory. */
static void falls_back(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rseq, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    for (uint64_t n = 1; n < 10; n++) {
        written = 0;
        errno = 77;
        pid_t child = child_that_writes();
        CHECK(errno == 77);
        dprintf(1, "%s\n", written ? "shared" : "copied");
        expect_clean(child);
        churn(100, n);
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } checks[] = {{"shares", shares}, {"second_name", shares_by_second_name}, {"keeps", keeps},
                  {"knows_its_cpu", knows_its_cpu}, {"storms", storms}, {"nests", nests},
                  {"spawns", spawns}, {"starts_no_thread", starts_no_thread},
                  {"falls_back", falls_back}};
    alarm(LIMIT_S);
    CHECK(argc >= 2 && sched_getaffinity(0, sizeof all_cpus, &all_cpus) == 0);
    if (argc > 2) rounds = atoi(argv[2]), alarm(0);
    /* A process group of its own, for the signals. */
    CHECK(setpgid(0, 0) == 0);
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        if (strcmp(argv[1], checks[i].name) != 0) continue;
        checks[i].run();
        dprintf(1, "ok\n");
        return 0;
    }
    return 2;
}
