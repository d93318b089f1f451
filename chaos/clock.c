// A wall clock that can be moved, for the processes that load this library (LD_PRELOAD): every answer is the time plus
// the number of seconds in the file CHAOS_CLOCK, a 64-bit integer that anybody may change meanwhile.
//
// The monotonic clock is left alone, as it is when a machine's clock is set. Deadlines that were computed from the moved
// clock are moved back before the kernel sees them, since the kernel's clock has not moved. The size of a deadline
// shows whether it is on the wall clock: the monotonic clock counts from the start of the machine.

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
#include <threads.h>
#include <time.h>
#include <unistd.h>

static const int64_t nothing = 0;
static volatile const int64_t *ahead = &nothing;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("CHAOS_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file >= 0) {
    void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) ahead = found;
    close(file);
  }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int code = real ? real(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
  if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
  return code;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *where) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (where) *where = now.tv_sec;
  return now.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
  return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

static struct timespec back(const struct timespec *deadline) {
  struct timespec moved = *deadline;
  if (moved.tv_sec > 1000000000) moved.tv_sec -= *ahead;
  return moved;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *deadline) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  if (!real) real = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))dlvsym(
      RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (!real) real = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))dlsym(
      RTLD_NEXT, "pthread_cond_timedwait");
  struct timespec moved = back(deadline);
  return real(condition, mutex, &moved);
}

// librdkafka waits with C's own threads, which in glibc do not come by the function above.
int cnd_timedwait(cnd_t *condition, mtx_t *mutex, const struct timespec *deadline) {
  static int (*real)(cnd_t *, mtx_t *, const struct timespec *);
  if (!real) real = (int (*)(cnd_t *, mtx_t *, const struct timespec *))dlsym(RTLD_NEXT, "cnd_timedwait");
  struct timespec moved = back(deadline);
  return real(condition, mutex, &moved);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *deadline) {
  static int (*real)(sem_t *, const struct timespec *);
  if (!real) real = (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");
  struct timespec moved = back(deadline);
  return real(semaphore, &moved);
}
