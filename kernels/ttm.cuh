// SpTTM (src/op/ttm/cuda.rs): every fiber along a mode times a matrix. Nonzeros are on the device, all or those of a range of fibers: a
// column of indices for each mode and a column of values. `positions` is their order by fiber.
//
//   append       appends a chunk's nonzeros to the columns
//   count        counts a chunk's nonzeros in bins of fibers' keys, from which the host cuts ranges
//   within       counts those of a range in each tile; `places` adds the counts up
//   take         appends those of a range to the columns, in their order
//   keys         puts the indices of a mode in the order that the sort (sort.cuh) has reached
//   ends         marks the last nonzero of each fiber and counts them in each tile; scans turn the counts into the fibers' numbers
//   rows         writes the coordinates of a tile's fibers, and the rows of those within the tile
//   fix_up       writes the rows of fibers that extend over several tiles
//
// **Order of additions.** Products are in T. The nonzeros of a fiber in a tile are added up one after the other in f64, then the tiles'
// sums one after the other. Tiles are counted from the first of all nonzeros: a range that does not begin with a tile leaves `skip` places
// of its first tile empty. The result has the same bits for any window and range, and on the host.
#pragma once
#include "branches.cuh"
#include "segments.cuh"
#include "sort.cuh"

namespace ttm {

constexpr u32 TILE = BLCO_TILE_NNZ, THREADS = BLCO_TILE_THREADS, WORDS = TILE / 32, WARPS = THREADS / 32;

// Calls `f` with the place in its tile, the indices and the value of each nonzero of a tile, and whether there is one, in their order: for
// THREADS nonzeros at a time. All threads call it, in a thread block for each tile of the chunk.
template <class LAYOUT, class T> struct Nonzeros {
    template <class F> static __device__ __forceinline__ void each(const MttkrpArgs& chunk, const F& f)
    {
        constexpr int PER = 2;
        const Header h = LAYOUT::header_of((const u8*)chunk.one.image);
        const u32 first = blockIdx.x * TILE, rest = h.nnz - first, nnz = rest < TILE ? rest : TILE;
        bool bad = false;
        for (u32 begin = 0; begin < TILE; begin += PER * THREADS) {
            const Slots slots = {begin + threadIdx.x, THREADS, nnz};
            u32 index[PER][BLCO_ORDER_MAX];
            T value[PER];
            LAYOUT::template decode<T, BLCO_ORDER_MAX, PER>(index, value, chunk, h, blockIdx.x, slots, bad);
#pragma unroll
            for (int k = 0; k < PER; ++k) f(slots.first + k * THREADS, index[k], value[k], slots.real(k));
        }
        if (bad) atomicMin((u32*)chunk.fault, chunk.one.number);
    }
};

// The same of a tree whose slots all have a leaf.
template <class T> struct Nonzeros<Tree, T> {
    template <class F> static __device__ __forceinline__ void each(const MttkrpArgs& chunk, const F& f)
    {
        __shared__ Branches<T, BLCO_ORDER_MAX, Shape<1, THREADS>, Lanes<16, 1, 4>> b;
        bool bad = false;
        u32 fibers = 0;
        u32 slots = climb(b, chunk, (const u8*)chunk.one.image, blockIdx.x, fibers, bad);
        const u32 leaves = b.frame.levels[BLCO_ORDER_MAX - 1].nodes;
        if (leaves == b.frame.h.nnz) {
            check_starts<WARPS>(b.frame, root_of<BLCO_ORDER_MAX>(chunk), BLCO_ORDER_MAX, blockIdx.x, (leaves + TILE - 1) / TILE, bad);
        } else {
            // There is room for nonzeros alone.
            bad = true;
            slots = 0;
        }
        if (bad) atomicMin((u32*)chunk.fault, chunk.one.number);
        for (u32 begin = 0; begin < TILE; begin += THREADS) {
            const u32 i = begin + threadIdx.x, at = b.group.place(i);
            u32 index[BLCO_ORDER_MAX];
#pragma unroll
            for (u32 m = 0; m < BLCO_ORDER_MAX; ++m) {
                if (m >= chunk.order) break;
                index[m] = b.group.index[m][at];
            }
            f(i, index, b.group.value[at], i < slots);
        }
    }
};

// A thread block of THREADS for each tile of the chunk.
template <class LAYOUT, class T> __device__ __forceinline__ void append(const AppendArgs& a)
{
    Nonzeros<LAYOUT, T>::each(a.chunk, [&](u32 i, const u32 (&index)[BLCO_ORDER_MAX], T value, bool real) {
        if (!real) return;
        const u64 at = a.first + blockIdx.x * TILE + i;
#pragma unroll
        for (u32 m = 0; m < BLCO_ORDER_MAX; ++m) {
            if (m >= a.chunk.order) break;
            ((u32*)a.columns[m])[at] = index[m];
        }
        ((T*)a.values)[at] = value;
    });
}

// The key of a nonzero's fiber.
__device__ __forceinline__ u64 key_of(const RangeArgs& a, const u32 (&index)[BLCO_ORDER_MAX])
{
    u64 key = 0;
#pragma unroll
    for (u32 m = 0; m < BLCO_ORDER_MAX; ++m) {
        if (m >= a.append.chunk.order) break;
        if (a.bits[m] > 0) key = key << a.bits[m] | index[m] >> a.dropped[m];
    }
    return key;
}

// Calls `f` with the indices and the value of each nonzero of a tile, and whether it is one of the range, as `Nonzeros` does.
template <class LAYOUT, class T, class F> __device__ __forceinline__ void each(const RangeArgs& a, const F& f)
{
    Nonzeros<LAYOUT, T>::each(a.append.chunk, [&](u32, const u32 (&index)[BLCO_ORDER_MAX], T value, bool real) {
        const u64 key = key_of(a, index);
        f(index, value, key, real && key >= a.low && key <= a.high);
    });
}

// A thread block of THREADS for each tile of the chunk.
template <class LAYOUT> __device__ __forceinline__ void count(const RangeArgs& a)
{
    each<LAYOUT, double>(a, [&](const u32 (&)[BLCO_ORDER_MAX], double, u64 key, bool in) {
        // Consecutive nonzeros are often of one bin: a warp adds those of its first thread's bin at once.
        const u32 bin = in ? (u32)((key - a.low) >> a.shift) : ~0u, first = __shfl_sync(~0u, bin, 0);
        const u32 equal = __ballot_sync(~0u, bin == first);
        if (in && bin != first) atomicAdd((u64*)a.bins + bin, (u64)1);
        if (in && threadIdx.x % 32 == 0) atomicAdd((u64*)a.bins + bin, (u64)__popc(equal));
    });
}

// The same grid.
template <class LAYOUT> __device__ __forceinline__ void within(const RangeArgs& a)
{
    u32 count = 0;
    each<LAYOUT, double>(a, [&](const u32 (&)[BLCO_ORDER_MAX], double, u64, bool in) { count += __syncthreads_count(in); });
    if (threadIdx.x == 0) ((u32*)a.places)[blockIdx.x] = count;
}

// One thread block of BLCO_SORT_THREADS. Chunks follow one another.
__device__ inline void places(const RangeArgs& a)
{
    __shared__ u32 warps[mode_sorted::WARPS];
    u32* const places = (u32*)a.places;
    u32 taken = *(u32*)a.taken;
    for (u32 first = 0; first < a.tiles; first += BLCO_SORT_THREADS) {
        const u32 i = first + threadIdx.x;
        const u32 place = taken + mode_sorted::sum_before(i < a.tiles ? places[i] : 0, warps);
        if (i < a.tiles) places[i] = place;
        for (u32 w = 0; w < mode_sorted::WARPS; ++w) taken += warps[w];
        __syncthreads();
    }
    if (threadIdx.x == 0) *(u32*)a.taken = taken;
}

// A thread block of THREADS for each tile of the chunk.
template <class LAYOUT, class T> __device__ __forceinline__ void take(const RangeArgs& a)
{
    __shared__ u32 counts[WARPS];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 next = ((const u32*)a.places)[blockIdx.x];
    each<LAYOUT, T>(a, [&](const u32 (&index)[BLCO_ORDER_MAX], T value, u64, bool in) {
        const u32 word = __ballot_sync(~0u, in);
        if (lane == 0) counts[warp] = __popc(word);
        __syncthreads();
        u32 at = next + __popc(word & ((1u << lane) - 1));
        for (u32 w = 0; w < WARPS; ++w) {
            if (w < warp) at += counts[w];
            next += counts[w];
        }
        __syncthreads();
        // A store that has changed since its nonzeros were counted may have more.
        if (!in || at >= a.room) return;
#pragma unroll
        for (u32 m = 0; m < BLCO_ORDER_MAX; ++m) {
            if (m >= a.append.chunk.order) break;
            ((u32*)a.append.columns[m])[at] = index[m];
        }
        ((T*)a.append.values)[at] = value;
    });
}

// A grid of thread blocks of BLCO_ROW_THREADS: a thread for each nonzero.
__device__ inline void keys(const FiberKeysArgs& a)
{
    const u64 i = (u64)blockIdx.x * BLCO_ROW_THREADS + threadIdx.x;
    if (i < a.nnz) ((u32*)a.keys)[i] = __ldg((const u32*)a.column + ((const u32*)a.positions)[i]);
}

// The place in the columns of sorted nonzero `i`, from `skip` on.
__device__ __forceinline__ u32 position(const TtmArgs& a, u32 i)
{
    return a.positions == 0 ? i - a.skip : __ldg((const u32*)a.positions + (i - a.skip));
}

// Whether the nonzero is the last of its fiber.
__device__ __forceinline__ bool is_last(const TtmArgs& a, u32 i)
{
    if (i + 1 == a.nnz) return true;
    const u32 own = position(a, i), next = position(a, i + 1);
    for (u32 m = 0; m < a.order; ++m) {
        const u32* const column = (const u32*)a.columns[m];
        if (m != a.mode && __ldg(column + own) != __ldg(column + next)) return true;
    }
    return false;
}

// A thread block of THREADS for each tile of all nonzeros.
__device__ inline void ends(const TtmArgs& a)
{
    __shared__ u32 counts[WARPS];
    u32 count = 0;
    for (u32 begin = 0; begin < TILE; begin += THREADS) {
        const u64 i = (u64)blockIdx.x * TILE + begin + threadIdx.x;
        const u32 word = __ballot_sync(~0u, i >= a.skip && i < a.nnz && is_last(a, (u32)i));
        if (threadIdx.x % 32 == 0) ((u32*)a.ends)[i / 32] = word;
        count += __popc(word);
    }
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = count;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (u32 w = 1; w < WARPS; ++w) count += counts[w];
    ((u32*)a.before)[blockIdx.x] = count;
    // After the last tile: all.
    if (blockIdx.x + 1 == gridDim.x) ((u32*)a.before)[gridDim.x] = 0;
}

// The number of fibers that end before a tile, from the window's first on.
__device__ __forceinline__ u32 ended_before(const TtmArgs& a, u32 tile)
{
    return ((const u32*)a.before)[tile] + ((const u32*)a.totals)[tile / BLCO_SCAN_ROW] - a.first_fiber;
}

// Whether the fiber of a tile's first nonzero begins in an earlier tile.
__device__ __forceinline__ bool has_begun(const TtmArgs& a, u32 tile)
{
    return tile > 0 && ((const u32*)a.ends)[tile * WORDS - 1] >> 31 == 0;
}

__device__ __forceinline__ double product(double value, double number)
{
    return __dmul_rn(value, number);
}

__device__ __forceinline__ double product(float value, float number)
{
    return (double)__fmul_rn(value, number);
}

// A tile's part of its first fiber if that begins earlier, or (`last`) of its last fiber if that continues.
__device__ __forceinline__ double* part_of(const TtmArgs& a, u32 tile, bool last)
{
    return (double*)a.parts + (2ull * (tile - a.first_tile) + last) * a.rank;
}

// A thread block of THREADS for each tile of the window. A group of 2^lanes threads adds up a fiber; each has some of the columns.
template <class T> __device__ __forceinline__ void rows(const TtmArgs& a)
{
    __shared__ u32 leaves[TILE], words[WORDS];
    __shared__ T values[TILE];
    // The last nonzero of each fiber. The nonzeros after them belong to a fiber that continues.
    __shared__ u16 lasts[TILE + 1];
    const u32 tile = a.first_tile + blockIdx.x, first = tile * TILE, rest = a.nnz - first, nnz = rest < TILE ? rest : TILE;
    const u32 before = ended_before(a, tile), skip = tile == 0 ? a.skip : 0;
    if (threadIdx.x < WORDS) words[threadIdx.x] = ((const u32*)a.ends)[first / 32 + threadIdx.x];
    for (u32 i = threadIdx.x; i < nnz; i += THREADS) {
        // Empty places repeat the first nonzero; nothing reads them.
        const u32 at = position(a, i < skip ? skip : first + i);
        leaves[i] = __ldg((const u32*)a.columns[a.mode] + at);
        values[i] = __ldg((const T*)a.values + at);
    }
    __syncthreads();
    u32 ended = 0;
    for (u32 w = 0; w < WORDS; ++w) ended += __popc(words[w]);
    for (u32 i = threadIdx.x; i < nnz; i += THREADS) {
        if ((words[i / 32] >> i % 32 & 1) == 0) continue;
        u32 fiber = __popc(words[i / 32] & ((1u << i % 32) - 1));
        for (u32 w = 0; w < i / 32; ++w) fiber += __popc(words[w]);
        lasts[fiber] = (u16)i;
        const u32 at = position(a, first + i);
        u32* to = (u32*)a.coordinates + (u64)(before + fiber) * (a.order - 1);
        for (u32 m = 0; m < a.order; ++m) {
            if (m != a.mode) *to++ = __ldg((const u32*)a.columns[m] + at);
        }
    }
    const bool goes_on = (words[(nnz - 1) / 32] >> (nnz - 1) % 32 & 1) == 0;
    if (threadIdx.x == 0 && goes_on) lasts[ended] = (u16)(nnz - 1);
    const bool begun = has_begun(a, tile);
    __syncthreads();
    const u32 step = 1u << a.lanes;
    for (u32 fiber = threadIdx.x >> a.lanes; fiber < ended + goes_on; fiber += THREADS >> a.lanes) {
        const u32 begin = fiber == 0 ? skip : lasts[fiber - 1] + 1u, end = lasts[fiber] + 1u;
        const bool continues = fiber == 0 && begun, whole = !continues && fiber < ended;
        for (u32 c = threadIdx.x & (step - 1); c < a.rank; c += step) {
            const T* const matrix = (const T*)a.matrix + c;
            double sum = 0.0;
#pragma unroll 8
            for (u32 i = begin; i < end; ++i) {
                sum = __dadd_rn(sum, product(values[i], __ldg(matrix + (u64)leaves[i] * a.rank)));
            }
            if (whole) ((T*)a.results)[(u64)(before + fiber) * a.rank + c] = (T)sum;
            else part_of(a, tile, !continues)[c] = sum;
        }
    }
}

// A warp for each tile of the window, and one before them: adds up the fiber that the tile, or the window before, leaves open, over the
// tiles that follow. If the fiber continues in the next window, its sum is carried over.
template <class T> __device__ __forceinline__ void fix_up(const TtmArgs& a)
{
    const u32 warp = blockIdx.x * (BLCO_ROW_THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp > a.end_tile - a.first_tile) return;
    u32 next = a.first_tile + warp;
    const double* sums = (const double*)a.carry_in;
    if (warp == 0) {
        if (!has_begun(a, next)) return;
    } else {
        // Not if the whole tile belongs to a fiber that begins before it.
        const u32 tile = next - 1;
        if (next == a.tiles || !has_begun(a, next)) return;
        if (has_begun(a, tile) && ended_before(a, tile) == ended_before(a, next)) return;
        sums = part_of(a, tile, true);
    }
    u32 end = next;
    while (end < a.end_tile && ended_before(a, end) == ended_before(a, end + 1)) ++end;
    const bool ends = end < a.end_tile;
    for (u32 c = lane; c < a.rank; c += 32) {
        double sum = sums[c];
#pragma unroll 8
        for (u32 tile = next; tile < end + ends; ++tile) sum = __dadd_rn(sum, part_of(a, tile, false)[c]);
        if (ends) ((T*)a.results)[(u64)ended_before(a, end) * a.rank + c] = (T)sum;
        else ((double*)a.carry_out)[c] = sum;
    }
}

}  // namespace ttm

// The kernels that read chunks of a layout, for one precision and for both.
#define BLCO_TTM_READ(name, layout, tag, real)                                                                         \
    extern "C" __global__ void __launch_bounds__(BLCO_TILE_THREADS) ttm_append_##tag##_##name(const AppendArgs args)   \
    {                                                                                                                  \
        ttm::append<layout, real>(args);                                                                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(BLCO_TILE_THREADS) ttm_take_##tag##_##name(const RangeArgs args)      \
    {                                                                                                                  \
        ttm::take<layout, real>(args);                                                                                 \
    }
#define BLCO_TTM_COUNT(layout, tag)                                                                                    \
    extern "C" __global__ void __launch_bounds__(BLCO_TILE_THREADS) ttm_count_##tag(const RangeArgs args)              \
    {                                                                                                                  \
        ttm::count<layout>(args);                                                                                      \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(BLCO_TILE_THREADS) ttm_within_##tag(const RangeArgs args)             \
    {                                                                                                                  \
        ttm::within<layout>(args);                                                                                     \
    }

// The kernels for one precision.
#define BLCO_TTM(name, real)                                                                                           \
    BLCO_TTM_READ(name, Tiled, tiled, real)                                                                            \
    BLCO_TTM_READ(name, Raw, raw, real)                                                                                \
    BLCO_TTM_READ(name, Tree, tree, real)                                                                              \
    BLCO_TTM_READ(name, Segments, segments, real)                                                                      \
    extern "C" __global__ void __launch_bounds__(BLCO_TILE_THREADS) ttm_rows_##name(const TtmArgs args)                \
    {                                                                                                                  \
        ttm::rows<real>(args);                                                                                         \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(BLCO_ROW_THREADS) ttm_fix_up_##name(const TtmArgs args)               \
    {                                                                                                                  \
        ttm::fix_up<real>(args);                                                                                       \
    }

// The kernels that serve both precisions.
#define BLCO_TTM_SORT                                                                                                  \
    BLCO_TTM_COUNT(Tiled, tiled)                                                                                       \
    BLCO_TTM_COUNT(Raw, raw)                                                                                           \
    BLCO_TTM_COUNT(Tree, tree)                                                                                         \
    BLCO_TTM_COUNT(Segments, segments)                                                                                 \
    extern "C" __global__ void __launch_bounds__(BLCO_SORT_THREADS) ttm_places(const RangeArgs args)                   \
    {                                                                                                                  \
        ttm::places(args);                                                                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(BLCO_ROW_THREADS) ttm_keys(const FiberKeysArgs args)                  \
    {                                                                                                                  \
        ttm::keys(args);                                                                                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(BLCO_TILE_THREADS) ttm_ends(const TtmArgs args)                       \
    {                                                                                                                  \
        ttm::ends(args);                                                                                               \
    }
