// What this machine can do at most, to hold figures of docs/performance.md against:
// reading memory, f32 fused multiply-adds, and 8-bit tile products, on 1 and 2 threads.
//
//     cc -O3 -march=native bench/ceilings.c -o target/ceilings -lpthread && target/ceilings
//
// Each line is the best of 20 runs. Needs AVX-512; tiles are left out where the compiler's target
// has none.
#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { RUNS = 20, BUFFER = 320 << 20, STEPS = 2000000 };

static char *buffer;
static int threads;
static size_t megabytes;
static pthread_barrier_t barrier;
static volatile float sink;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void reading(long id) {
    size_t share = megabytes * 1000000 / threads / 4096 * 4096;
    char *from = buffer + id * share;
    __m512i sum = _mm512_setzero_si512();
    for (size_t i = 0; i < share; i += 256)
        for (int k = 0; k < 4; k++) {
            _mm_prefetch(from + i + 64 * k + 6144, _MM_HINT_T0);
            sum = _mm512_add_epi64(sum, _mm512_load_si512(from + i + 64 * k));
        }
    sink = _mm512_reduce_add_epi64(sum);
}

static void multiplying(long id) {
    __m512 sums[12], factor = _mm512_set1_ps(id + 1e-9f);
    for (int k = 0; k < 12; k++) sums[k] = _mm512_set1_ps(k);
    for (int i = 0; i < STEPS; i++)
        for (int k = 0; k < 12; k++) sums[k] = _mm512_fmadd_ps(sums[k], factor, factor);
    for (int k = 0; k < 12; k++) sink = _mm512_reduce_add_ps(sums[k]);
}

#ifdef __AMX_INT8__
static void tiling(long id) {
    (void)id;
    char config[64] = {1};
    for (int i = 0; i < 8; i++) config[16 + 2 * i] = 64, config[48 + i] = 16;
    __asm__ volatile("" ::: "memory"); // GCC 12 does not see that the next line reads it
    _tile_loadconfig(config);
    for (int i = 0; i < STEPS; i++) {
        _tile_dpbssd(0, 4, 5);
        _tile_dpbssd(1, 4, 5);
        _tile_dpbssd(2, 4, 5);
        _tile_dpbssd(3, 4, 5);
    }
    _tile_release();
}
#endif

static void (*work)(long);
static double best;

static void *member(void *id) {
    for (int run = 0; run < RUNS; run++) {
        pthread_barrier_wait(&barrier);
        double start = now();
        work((long)id);
        pthread_barrier_wait(&barrier);
        double took = now() - start;
        if (id == 0 && took < best) best = took;
    }
    return 0;
}

static double seconds(void (*what)(long)) {
    pthread_t handles[2];
    work = what, best = 1e9;
    pthread_barrier_init(&barrier, 0, threads);
    for (long i = 0; i < threads; i++) pthread_create(&handles[i], 0, member, (void *)i);
    for (int i = 0; i < threads; i++) pthread_join(handles[i], 0);
    return best;
}

int main(void) {
    size_t huge = 2 << 20;
    char *map = mmap(0, BUFFER + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return perror("mmap"), 1;
    buffer = (char *)(((size_t)map + huge - 1) & ~(huge - 1));
    madvise(buffer, BUFFER, MADV_HUGEPAGE);
    memset(buffer, 1, BUFFER);
    for (threads = 1; threads <= 2; threads++) {
        size_t sizes[] = {100, 270};
        for (int i = 0; i < 2; i++) {
            megabytes = sizes[i];
            printf("%d threads: read %3zu MB %7.1f GB/s\n", threads, megabytes,
                   megabytes / 1e3 / seconds(reading));
        }
        printf("%d threads: f32 FMA     %7.1f GFLOP/s\n", threads,
               threads * 2.0 * 16 * 12 * STEPS / 1e9 / seconds(multiplying));
#ifdef __AMX_INT8__
        if (syscall(SYS_arch_prctl, 0x1023, 18) == 0)
            printf("%d threads: int8 tiles  %7.1f GMAC/s\n", threads,
                   threads * 4.0 * 16 * 16 * 64 * STEPS / 1e9 / seconds(tiling));
#endif
    }
}
