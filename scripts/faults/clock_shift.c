/* Moves the time of day of the processes it is preloaded into, by as many seconds as the file named
 * by CLOCK_SHIFT_FILE begins with (a 64-bit integer, read again at every call through a mapping).
 * The machine's own clock and everybody's monotonic clock stay as they are. Waits until an instant of
 * that time are given to the kernel in the machine's own.
 *
 *     cc -shared -fPIC -O1 -o clock_shift.so clock_shift.c
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *shift;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_SHIFT_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED) shift = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *shift;
    return (int)failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec exact;
    int failed = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out) *out = exact.tv_sec;
    return exact.tv_sec;
}

/* Instants since 1970 are of the time of day; those of the monotonic clock are far smaller. */
static const struct timespec *in_machine_time(const struct timespec *until, struct timespec *own) {
    *own = *until;
    if (shift && until->tv_sec > 1000000000 / 2) own->tv_sec -= *shift;
    return own;
}

static void *original(const char *name, const char *version) {
    void *found = dlvsym(RTLD_NEXT, name, version);
    return found ? found : dlsym(RTLD_NEXT, name);
}

int pthread_cond_timedwait(pthread_cond_t *restrict on, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec own;
    if (!real) real = original("pthread_cond_timedwait", "GLIBC_2.3.2");
    return real(on, mutex, in_machine_time(until, &own));
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    static int (*real)(pthread_mutex_t *, const struct timespec *);
    struct timespec own;
    if (!real) real = original("pthread_mutex_timedlock", "GLIBC_2.34");
    return real(mutex, in_machine_time(until, &own));
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    static int (*real)(sem_t *, const struct timespec *);
    struct timespec own;
    if (!real) real = original("sem_timedwait", "GLIBC_2.34");
    return real(semaphore, in_machine_time(until, &own));
}
