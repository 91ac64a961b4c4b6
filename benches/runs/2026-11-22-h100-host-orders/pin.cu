// How long it takes until 1 GiB of host memory is there and a device may copy from it: allocated by the driver, or touched by some
// threads, with huge pages (odd modes) or without, and registered in pieces of 32 MiB.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <thread>
#include <vector>

static double now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int main()
{
    const size_t BYTES = 1ull << 30, PIECE = 32 << 20;
    cudaFree(0);
    for (int mode = 0; mode < 6; ++mode) {
        const double start = now();
        void* p = nullptr;
        if (mode == 0) {
            cudaHostAlloc(&p, BYTES, 0);
            printf("hostalloc %.3f s/GiB\n", now() - start);
            cudaFreeHost(p);
            continue;
        }
        if (posix_memalign(&p, 2 << 20, BYTES)) return 1;
        if (mode & 1) madvise(p, BYTES, MADV_HUGEPAGE);
        const int threads = mode <= 2 ? 1 : mode <= 4 ? 8 : 16;
        const size_t part = BYTES / threads;
        const auto each = [&](auto work) {
            std::vector<std::thread> all;
            for (int i = 0; i < threads; ++i) all.emplace_back([=] { work((char*)p + i * part); });
            for (auto& thread : all) thread.join();
        };
        const auto unregister = [&] {
            for (size_t at = 0; at < BYTES; at += PIECE) cudaHostUnregister((char*)p + at);
        };
        each([=](char* from) { memset(from, 0, part); });
        const double touched = now();
        for (size_t at = 0; at < BYTES; at += PIECE) cudaHostRegister((char*)p + at, PIECE, 0);
        printf("mode %d huge %d threads %d: touch %.3f register %.3f\n", mode, mode & 1, threads, touched - start, now() - touched);
        unregister();
        if (threads > 1) {
            const double begin = now();
            each([=](char* from) {
                for (size_t at = 0; at < part; at += PIECE) cudaHostRegister(from + at, PIECE, 0);
            });
            printf("   parallel register %.3f\n", now() - begin);
            unregister();
        }
        free(p);
    }
}
