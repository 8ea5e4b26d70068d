/* Makes flock fail with the error number $NO_LOCKS, or do nothing where that is 0: LD_PRELOAD this. */

#include <errno.h>
#include <stdlib.h>

int flock(int descriptor, int operation) {
    (void)descriptor, (void)operation;
    errno = atoi(getenv("NO_LOCKS"));
    return errno ? -1 : 0;
}
