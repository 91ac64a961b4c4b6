// TTV along the leaves' mode of a tree: each fiber times a vector (src/op/ttv/cuda.rs; Li et al., TKDD 2019, section 6.1).
//
// **Order of additions.** A fiber's nonzeros are cut into segments of BLCO_TTV_SEGMENT from its first nonzero on, independently of
// chunks. Products are in T. A segment's products are added up one after the other in f64, then the segments one after the other. The
// result has the same bits for every kernel here and for any chunks.
//
// A fiber that continues in the next chunk leaves a *carry* in memory: the sum of all its segments except the last, and of its last one.
// The first fiber of the next chunk begins with it.
//
//   two_level    the paper's: slices over one dimension of the grid, a slice's fibers over the other, a thread for each fiber
//                (its Figures 9 and 10, in which the slice should be threadIdx.y and the second figure's fiber must count from its slice)
//   balanced     a thread block for each tile of leaves: the products of as many leaves, then a thread for each segment or fiber
//                that begins among them; `fix_up` adds up the segments of longer fibers
#pragma once
#include "tree.cuh"

namespace ttv {

constexpr u32 SEGMENT = BLCO_TTV_SEGMENT, NOBODY = ~0u;
// Adds nothing: x + -0.0 is x for every x.
constexpr double NOTHING = -0.0;
// Slices, and fibers of each, that a thread block takes at a time.
constexpr u32 SLICES = 4, FIBERS = BLCO_TTV_THREADS / SLICES;
static_assert(BLCO_TILE_NNZ % SEGMENT == 0, "segments that begin at a tile's slots");

__device__ __forceinline__ void note(const TtvArgs& a, bool bad)
{
    if (bad) atomicMin((u32*)a.fault, a.number);
}

// The input of a launch.
struct Fibers {
    Tree tree;
    Level fibers, leaves;

    __device__ __forceinline__ explicit Fibers(const TtvArgs& a)
        : tree((const u8*)a.image), fibers(tree.level(a.order - 2)), leaves(tree.level(a.order - 1))
    {
    }

    __device__ __forceinline__ bool is_last(u32 fiber) const { return fiber + 1 == fibers.nodes; }
};

// The begin and end of a fiber, in spots. Spots number slots from SEGMENT on; the nonzeros of the first fiber's open segment that are in
// the chunk before have the spots before SEGMENT.
struct Stretch {
    u32 begin, end;
};

// The first fiber begins in its open segment; the last one ends after its last nonzero. Nothing if that is damaged.
__device__ __forceinline__ Stretch stretch_of(const TtvArgs& a, const Fibers& f, u32 fiber, bool& bad)
{
    const u32 slots = f.leaves.nodes, begin = start_of(f.fibers, fiber, slots, bad);
    const u32 end = f.is_last(fiber) ? a.end : start_of(f.fibers, fiber + 1, slots, bad);
    if (begin >= end || end > a.end) {
        bad = true;
        return {0, 0};
    }
    return {fiber == 0 ? SEGMENT - a.carried : SEGMENT + begin, SEGMENT + end};
}

// Whether a fiber takes the carry.
__device__ __forceinline__ bool goes_on(const TtvArgs& a, u32 fiber)
{
    return fiber == 0 && a.carried > 0;
}

__device__ __forceinline__ double carried_sum(const TtvArgs& a, u32 fiber)
{
    return goes_on(a, fiber) ? ((const double*)a.carry_in)[0] : NOTHING;
}

__device__ __forceinline__ double carried_segment(const TtvArgs& a, u32 fiber)
{
    return goes_on(a, fiber) ? ((const double*)a.carry_in)[1] : NOTHING;
}

// Writes a fiber's sum: `sum` is that of all segments except the last, `segment` that of the last.
template <class T>
__device__ __forceinline__ void write(const TtvArgs& a, const Fibers& f, u32 fiber, double sum, double segment)
{
    ((T*)a.sums)[fiber] = (T)__dadd_rn(sum, segment);
    if (f.is_last(fiber)) {
        ((double*)a.carry_out)[0] = sum;
        ((double*)a.carry_out)[1] = segment;
    }
}

// The product of the leaf in a slot.
template <class T> __device__ __forceinline__ double product(const TtvArgs& a, const Fibers& f, u32 slot, bool& bad)
{
    const Leaf<T> leaf = leaf_of<T>(f.tree, f.leaves, slot, bad);
    return leaf.padding ? NOTHING : (double)(leaf.value * ((const T*)a.vector)[leaf.index]);
}

// A grid of any two dimensions, thread blocks of BLCO_TTV_THREADS.
template <class T> __device__ __forceinline__ void two_level(const TtvArgs& a)
{
    const Fibers f(a);
    const u32 slices = f.tree.nodes(0);
    bool bad = false;
    // The first fiber of a slice: its first child's first child, and so on.
    const auto first_of = [&](u32 slice) {
        u32 node = slice;
        for (u32 l = 0; l + 2 < a.order; ++l) node = start_of(f.tree.level(l), node, f.tree.nodes(l + 1), bad);
        return node;
    };
    for (u32 slice = blockIdx.y * SLICES + threadIdx.x / FIBERS; slice < slices; slice += gridDim.y * SLICES) {
        const u32 end = first_of(slice + 1);
        for (u32 fiber = first_of(slice) + blockIdx.x * FIBERS + threadIdx.x % FIBERS; fiber < end; fiber += gridDim.x * FIBERS) {
            const Stretch all = stretch_of(a, f, fiber, bad);
            double sum = carried_sum(a, fiber), segment = carried_segment(a, fiber);
            for (u32 begin = all.begin; begin < all.end; begin += SEGMENT) {
                if (begin > all.begin) {
                    sum = __dadd_rn(sum, segment);
                    segment = NOTHING;
                }
                const u32 first = begin > SEGMENT ? begin : SEGMENT, end = begin + SEGMENT < all.end ? begin + SEGMENT : all.end;
                for (u32 spot = first; spot < end; ++spot) {
                    segment = __dadd_rn(segment, product<T>(a, f, spot - SEGMENT, bad));
                }
            }
            if (all.begin < all.end) write<T>(a, f, fiber, sum, segment);
        }
    }
    note(a, bad);
}

// The place for the sum of the segment that begins at `spot`, of a fiber that `fix_up` adds up. In a window of SEGMENT spots, at most one
// such fiber begins and at most one continues.
__device__ __forceinline__ double& part_of(const TtvArgs& a, u32 spot, bool first)
{
    return ((double*)a.parts)[2 * (spot / SEGMENT) + first];
}

// A thread block of BLCO_TTV_THREADS for each tile of the leaves before a.end: adds up all segments that begin in it. It writes the sums of
// fibers of one segment. Other fibers leave their segments' sums for `fix_up`: the first if it takes a carry, the last, and those of
// more than one segment.
template <class T> __device__ __forceinline__ void balanced(const TtvArgs& a)
{
    // A segment that begins in the tile's last slot ends in the next tile.
    __shared__ double products[BLCO_TILE_NNZ + SEGMENT - 1];
    constexpr u32 WINDOWS = BLCO_TILE_NNZ / SEGMENT;
    const Fibers f(a);
    const u32 first = blockIdx.x * BLCO_TILE_NNZ, rest = a.end - first;
    const u32 count = rest < BLCO_TILE_NNZ + SEGMENT - 1 ? rest : BLCO_TILE_NNZ + SEGMENT - 1;
    bool bad = false;
    for (u32 i = threadIdx.x; i < count; i += BLCO_TTV_THREADS) products[i] = product<T>(a, f, first + i, bad);
    // Spots; in the first thread block also those before the chunk.
    const u32 from = blockIdx.x == 0 ? 0 : SEGMENT + first, to = SEGMENT + first + (rest < BLCO_TILE_NNZ ? rest : BLCO_TILE_NNZ);
    if (threadIdx.x < WINDOWS) ((u32*)a.owners)[first / SEGMENT + 1 + threadIdx.x] = NOBODY;
    if (threadIdx.x == WINDOWS && blockIdx.x == 0) *(u32*)a.owners = NOBODY;
    __syncthreads();
    for (u32 fiber = parent_of(f.fibers, first, f.leaves.nodes, bad) + threadIdx.x; fiber < f.fibers.nodes; fiber += BLCO_TTV_THREADS) {
        const Stretch all = stretch_of(a, f, fiber, bad);
        if (all.begin >= to || all.begin >= all.end) break;
        const bool apart = all.end - all.begin > SEGMENT || goes_on(a, fiber) || f.is_last(fiber);
        const u32 skipped = all.begin < from ? (from - all.begin + SEGMENT - 1) / SEGMENT : 0;
        for (u32 begin = all.begin + skipped * SEGMENT; begin < all.end && begin < to; begin += SEGMENT) {
            double sum = begin == all.begin ? carried_segment(a, fiber) : NOTHING;
            const u32 end = begin + SEGMENT < all.end ? begin + SEGMENT : all.end;
            for (u32 spot = begin > SEGMENT ? begin : SEGMENT; spot < end; ++spot) {
                sum = __dadd_rn(sum, products[spot - SEGMENT - first]);
            }
            if (!apart) ((T*)a.sums)[fiber] = (T)sum;
            else part_of(a, begin, begin == all.begin) = sum;
        }
        if (apart && skipped == 0) ((u32*)a.owners)[all.begin / SEGMENT] = fiber;
    }
    note(a, bad);
}

// A thread for each window of spots: adds up the segments of the fiber that begins there, if `balanced` left one.
template <class T> __device__ __forceinline__ void fix_up(const TtvArgs& a)
{
    const u32 window = blockIdx.x * BLCO_TTV_THREADS + threadIdx.x;
    if (window > (a.end + SEGMENT - 1) / SEGMENT) return;
    const u32 fiber = ((const u32*)a.owners)[window];
    if (fiber == NOBODY) return;
    const Fibers f(a);
    bool bad = false;
    const Stretch all = stretch_of(a, f, fiber, bad);
    double sum = carried_sum(a, fiber), segment = part_of(a, all.begin, true);
    // Loads several at once, which do not wait for the sum.
    constexpr u32 BATCH = 16;
    for (u32 begin = all.begin + SEGMENT; begin < all.end; begin += BATCH * SEGMENT) {
        double next[BATCH];
#pragma unroll
        for (u32 b = 0; b < BATCH; ++b) {
            const u32 spot = begin + b * SEGMENT;
            next[b] = spot < all.end ? part_of(a, spot, false) : 0.0;
        }
#pragma unroll
        for (u32 b = 0; b < BATCH; ++b) {
            if (begin + b * SEGMENT >= all.end) break;
            sum = __dadd_rn(sum, segment);
            segment = next[b];
        }
    }
    write<T>(a, f, fiber, sum, segment);
}

}  // namespace ttv

// The kernels for one precision.
#define BLCO_TTV(name, real)                                                                                           \
    extern "C" __global__ void __launch_bounds__(BLCO_TTV_THREADS) ttv_two_level_##name(const TtvArgs args)            \
    {                                                                                                                  \
        ttv::two_level<real>(args);                                                                                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(BLCO_TTV_THREADS) ttv_balanced_##name(const TtvArgs args)             \
    {                                                                                                                  \
        ttv::balanced<real>(args);                                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(BLCO_TTV_THREADS) ttv_fix_up_##name(const TtvArgs args)                 \
    {                                                                                                                  \
        ttv::fix_up<real>(args);                                                                                         \
    }
