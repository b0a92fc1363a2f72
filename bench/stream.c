/* How fast do plain C loops read and copy memory? After McCalpin's STREAM: arrays larger than the caches, one contiguous
 * share per thread, the fastest pass counts. Built as a library, so that a probe and a loop can take turns on one buffer.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define MAX_THREADS 256

static uint64_t *target;
static const uint64_t *source;
static size_t n_words;
static int n_threads, n_passes_left;
static double deadline_s, best_s;
static pthread_barrier_t barrier;
static volatile uint64_t sink;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static uint64_t read_words(const uint64_t *from, size_t n)
{
    uint64_t sums[32] = {0}; /* independent chains, which the compiler turns into vector registers */
    size_t i;
    for (i = 0; i + 32 <= n; i += 32)
        for (int k = 0; k < 32; k++)
            sums[k] += from[i + k];
    for (; i < n; i++)
        sums[0] += from[i];
    uint64_t total = 0;
    for (int k = 0; k < 32; k++)
        total += sums[k];
    return total;
}

static void copy_words(uint64_t *restrict to, const uint64_t *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = from[i];
}

static void *work(void *argument)
{
    size_t id = (size_t)argument;
    size_t begin = n_words * id / n_threads, end = n_words * (id + 1) / n_threads;
    while (n_passes_left > 0) {
        pthread_barrier_wait(&barrier);
        double start_s = now_s();
        if (target)
            copy_words(target + begin, source + begin, end - begin);
        else
            sink += read_words(source + begin, end - begin);
        pthread_barrier_wait(&barrier);
        if (id == 0) {
            double taken_s = now_s() - start_s;
            best_s = taken_s < best_s ? taken_s : best_s;
            n_passes_left--;
            if (n_passes_left == 0 && now_s() < deadline_s)
                n_passes_left = 1;
        }
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

/* Seconds of the fastest pass over `bytes`, of at least `passes` of them and for at least `seconds`. `to` NULL: read only. */
double fastest_pass_s(uint64_t *to, const uint64_t *from, size_t bytes, int threads, int passes, double seconds)
{
    pthread_t others[MAX_THREADS];
    target = to;
    source = from;
    n_words = bytes / 8;
    n_threads = threads;
    n_passes_left = passes;
    best_s = 1e9;
    deadline_s = now_s() + seconds;
    pthread_barrier_init(&barrier, NULL, threads);
    for (size_t i = 1; i < (size_t)threads; i++)
        pthread_create(&others[i], NULL, work, (void *)i);
    work((void *)0);
    for (int i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
    pthread_barrier_destroy(&barrier);
    return best_s;
}
