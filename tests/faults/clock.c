/* Sets the clock of a process and of all that it starts: LD_PRELOAD this.

   The file $CLOCK_OFFSET holds a number of seconds, 8 bytes, which is added to the time of day; it may change at any
   moment. Monotonic clocks go on as they do. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static volatile int64_t none, *offset = &none;

__attribute__((constructor)) static void start(void) {
    const char *file = getenv("CLOCK_OFFSET");
    int descriptor = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *shared = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (shared != MAP_FAILED) offset = shared;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = REAL(clock_gettime)(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset;
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    int failed = REAL(gettimeofday)(now, zone);
    if (!failed) now->tv_sec += *offset;
    return failed;
}

time_t time(time_t *result) {
    time_t now = REAL(time)(NULL) + *offset;
    if (result) *result = now;
    return now;
}
