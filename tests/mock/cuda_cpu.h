// Runs CUDA kernels on the CPU, unmodified: include this, then the kernels. Each thread of a thread block is a fiber that
// runs until it waits; which one runs first changes from wait to wait. Misuse that a GPU tolerates ends the process
// with a line that names kernel, block and thread: barriers that not all threads reach, masks that exclude
// their caller or name a thread that never arrives, and loads (`__ldg`) or atomics outside device memory.
// Plain loads outside it hit guard pages (driver.cpp). Shared memory is thread-local, so that thread blocks of
// several streams run at the same time, and is poisoned before each thread block.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static __thread
#define __restrict__ __restrict

struct alignas(8) uint2 {
    unsigned x, y;
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

struct dim3 {
    unsigned x, y, z;
};

namespace mock {

// Addresses from begin to end - 1.
struct Range {
    uint64_t begin, end;
};

struct Fiber;
struct Runner;

// The kernel or copy that this thread runs. It is not zero-initialized, so that it does not lie among shared memory.
struct Here {
    uint64_t running;
    dim3 thread, block, block_dim, grid_dim;
    const char* kernel;
    Fiber* fiber;
    Range last;
    const std::vector<Range>* live;
    Runner* runner;
};
extern __thread Here here;

[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));
enum Where { DEVICE, DEVICE_OR_SHARED };
void check_slowly(uint64_t address, size_t bytes, Where where);
// Ends the thread's turn until all threads have reached `site`. Counts the threads whose `value` is not 0.
unsigned barrier(const char* file, unsigned site, bool value);
// Ends the thread's turn until the threads of `mask` have reached `site` with the same mask.
void meet(const char* file, unsigned site, unsigned mask, const void* value, size_t bytes);
// The value that a thread of the warp brought to the meeting that has just ended.
const void* brought(unsigned lane);

inline unsigned lane()
{
    return here.thread.x % 32;
}

inline void check(const void* at, size_t bytes, Where where = DEVICE)
{
    const uint64_t address = (uint64_t)at;
    if (address % bytes) fault("misaligned access of %zu bytes at %p", bytes, at);
    if (address < here.last.begin || address + bytes > here.last.end) check_slowly(address, bytes, where);
}

template <class T> T meet_at(const char* file, unsigned site, unsigned mask, T value, unsigned source)
{
    static_assert(sizeof(T) <= 16, "a value of at most 16 bytes");
    meet(file, site, mask, &value, sizeof value);
    if (!(mask >> source & 1)) fault("reads lane %u, which its mask %08x excludes", source, mask);
    T result;
    memcpy(&result, brought(source), sizeof result);
    return result;
}

// A kernel by name, with the bytes of its parameters.
struct Kernel {
    const char* name;
    unsigned threads_max;
    std::vector<size_t> parameters;
    void (*invoke)(void* const* arguments);
};
std::vector<Kernel>& kernels();

template <auto F> struct Entry;
template <class... A, void (*F)(A...)> struct Entry<F> {
    template <size_t... I> static void call(void* const* arguments, std::index_sequence<I...>)
    {
        F(*(const A*)arguments[I]...);
    }
    static void invoke(void* const* arguments) { call(arguments, std::index_sequence_for<A...>()); }
    Entry(const char* name, unsigned threads_max)
    {
        kernels().push_back({name, threads_max, {sizeof(A)...}, invoke});
    }
};

// Runs a kernel on the calling thread; `live` is device memory. Ends early when `stop` becomes true.
void run(const Kernel& kernel, dim3 grid, dim3 block, void* const* arguments, const std::vector<Range>& live,
         uint64_t seed, const volatile bool& stop);
// Makes signals name the kernel or copy that caused them.
void watch();
// Frees what `run` keeps for the calling thread.
void end_thread();

}  // namespace mock

// Makes a kernel known to the driver.
#define MOCK_KERNEL(name, threads_max) static mock::Entry<&name> mock_entry_##name(#name, threads_max);

#define threadIdx (mock::here.thread)
#define blockIdx (mock::here.block)
#define blockDim (mock::here.block_dim)
#define gridDim (mock::here.grid_dim)
static const int warpSize = 32;

// A call's place in the source, and its kind.
#define MOCK_SITE const char *file = __builtin_FILE(), unsigned line = __builtin_LINE()

inline void __syncthreads(MOCK_SITE) { mock::barrier(file, line * 4, false); }
inline int __syncthreads_count(int p, MOCK_SITE) { return (int)mock::barrier(file, line * 4 + 1, p); }
inline int __syncthreads_or(int p, MOCK_SITE) { return mock::barrier(file, line * 4 + 2, p) > 0; }
inline int __syncthreads_and(int p, MOCK_SITE) { return mock::barrier(file, line * 4 + 3, !p) == 0; }

inline void __syncwarp(unsigned mask = ~0u, MOCK_SITE) { mock::meet(file, line * 8, mask, nullptr, 0); }
template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32, MOCK_SITE)
{
    const unsigned lane = mock::lane(), first = lane & ~(width - 1);
    return mock::meet_at(file, line * 8 + 1, mask, value, first | (source & (width - 1)));
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, MOCK_SITE)
{
    const unsigned lane = mock::lane(), first = lane & ~(width - 1);
    return mock::meet_at(file, line * 8 + 2, mask, value, lane >= first + delta ? lane - delta : lane);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, MOCK_SITE)
{
    const unsigned lane = mock::lane(), last = lane | (width - 1);
    return mock::meet_at(file, line * 8 + 3, mask, value, lane + delta <= last ? lane + delta : lane);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, MOCK_SITE)
{
    const unsigned lane = mock::lane(), other = lane ^ bits;
    return mock::meet_at(file, line * 8 + 4, mask, value, other <= (lane | (width - 1)) ? other : lane);
}
inline unsigned __ballot_sync(unsigned mask, int p, MOCK_SITE)
{
    mock::meet(file, line * 8 + 5, mask, &p, sizeof p);
    unsigned set = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
        if (mask >> lane & 1 && *(const int*)mock::brought(lane)) set |= 1u << lane;
    }
    return set;
}
inline int __any_sync(unsigned mask, int p, MOCK_SITE) { return __ballot_sync(mask, p, file, line) != 0; }
inline int __all_sync(unsigned mask, int p, MOCK_SITE) { return __ballot_sync(mask, p, file, line) == mask; }
template <class T> unsigned __match_any_sync(unsigned mask, T value, MOCK_SITE)
{
    mock::meet(file, line * 8 + 6, mask, &value, sizeof value);
    unsigned set = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
        if (mask >> lane & 1 && !memcmp(mock::brought(lane), &value, sizeof value)) set |= 1u << lane;
    }
    return set;
}

template <class T> T __ldg(const T* at)
{
    mock::check(at, sizeof(T));
    return *at;
}

// Applies `update` to the number at `at` atomically and returns the old value.
template <class T, class Bits, class F> T mock_update(T* at, F update)
{
    static_assert(sizeof(T) == sizeof(Bits), "bits of a number");
    mock::check(at, sizeof(T), mock::DEVICE_OR_SHARED);
    Bits* bits = (Bits*)at;
    Bits old = __atomic_load_n(bits, __ATOMIC_RELAXED), next;
    T value;
    do {
        memcpy(&value, &old, sizeof value);
        const T updated = update(value);
        memcpy(&next, &updated, sizeof next);
    } while (!__atomic_compare_exchange_n(bits, &old, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return value;
}

#define MOCK_ATOMICS(T, Bits)                                                                                          \
    inline T atomicAdd(T* at, T v) { return mock_update<T, Bits>(at, [=](T x) { return x + v; }); }                    \
    inline T atomicExch(T* at, T v) { return mock_update<T, Bits>(at, [=](T) { return v; }); }
#define MOCK_INTEGER_ATOMICS(T)                                                                                        \
    MOCK_ATOMICS(T, T)                                                                                                 \
    inline T atomicMin(T* at, T v) { return mock_update<T, T>(at, [=](T x) { return x < v ? x : v; }); }               \
    inline T atomicMax(T* at, T v) { return mock_update<T, T>(at, [=](T x) { return x > v ? x : v; }); }               \
    inline T atomicOr(T* at, T v) { return mock_update<T, T>(at, [=](T x) { return x | v; }); }                        \
    inline T atomicAnd(T* at, T v) { return mock_update<T, T>(at, [=](T x) { return x & v; }); }                       \
    inline T atomicCAS(T* at, T c, T v) { return mock_update<T, T>(at, [=](T x) { return x == c ? v : x; }); }
MOCK_ATOMICS(float, uint32_t)
MOCK_ATOMICS(double, unsigned long long)
MOCK_INTEGER_ATOMICS(int)
MOCK_INTEGER_ATOMICS(unsigned)
MOCK_INTEGER_ATOMICS(unsigned long long)

inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
// Products and sums that the compiler must not fuse: this code is built with -ffp-contract=off.
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __fma_rn(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
template <class T> T min(T x, T y) { return y < x ? y : x; }
template <class T> T max(T x, T y) { return x < y ? y : x; }
