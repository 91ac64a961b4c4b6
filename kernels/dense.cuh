// The dense update of a decomposition: computes a mode's new factor from its MTTKRP, and the matrices that the rest of the iteration
// needs (src/decomp/update.rs is the same for the host). For ranks up to 64, `update` reads the sums once and writes the factor
// once. Larger ranks take `product` or `hals`, then `gram`. `reduce` adds up the partials of thread blocks. `extended_gram` and
// `extended_reduce` compute a factor's Gram matrix again if components are nearly dependent.
//
// Everything except the stored factor is in f64 or more. The order of additions depends on the launch alone.
#pragma once
#include "mttkrp.cuh"

namespace dense {

// As in src/decomp/update.rs: when sweeps of HALS end, and the number that stands for zero.
constexpr int SWEEPS = 50;
constexpr double SWEEP = 0.01, FLOOR = 2.220446049250313e-16;

// Element `at` of the sums: the copies of a short mode added up in order.
template <class Real> __device__ __forceinline__ double sum_at(const DenseArgs& a, u64 at)
{
    if (a.rounded) return (double)((const Real*)a.sums)[at];
    const double* sums = (const double*)a.sums + at;
    double sum = *sums;
    for (u32 copy = 1; copy < a.copies; ++copy) sum += sums[a.rows * a.rank * copy];
    return sum;
}

__device__ __forceinline__ double sum_of_warp(double x)
{
#pragma unroll
    for (u32 distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
    return x;
}

// HALS of a row by a warp: lane l has columns l and l + 32. `old` is the factor's row before the update. `gram` has RANK columns;
// columns from a.rank on are zero.
template <class Real, u32 RANK>
__device__ __forceinline__ void descend(const DenseArgs& a, const double* m, const Real* old, const double* gram, double* row)
{
    constexpr u32 COLUMNS = (RANK + 31) / 32;
    const double* scales = (const double*)a.scales;
    const u32 lane = threadIdx.x % 32;
    double x[COLUMNS], target[COLUMNS];
    bool has_sums = false;
#pragma unroll
    for (u32 j = 0; j < COLUMNS; ++j) {
        const u32 c = lane + 32 * j;
        target[j] = c < a.rank ? m[c] * scales[c] : 0;
        has_sums |= c < a.rank && m[c] != 0;
    }
    // A row whose sums are zero is best zero, and begins there.
    has_sums = __any_sync(~0u, has_sums);
#pragma unroll
    for (u32 j = 0; j < COLUMNS; ++j) {
        const u32 c = lane + 32 * j;
        x[j] = has_sums && c < a.rank ? (double)old[c] * scales[a.rank + c] : 0;
    }
    double first = 0;
    for (int sweep = 0; sweep < SWEEPS; ++sweep) {
        double change = 0;
        for (u32 r = 0; r < a.rank; ++r) {
            double sum = 0;
#pragma unroll
            for (u32 j = 0; j < COLUMNS; ++j) {
                const u32 c = lane + 32 * j;
                if (c < RANK) sum += gram[r * RANK + c] * x[j];
            }
            sum = sum_of_warp(sum);
            const double own = gram[r * RANK + r];
#pragma unroll
            for (u32 j = 0; j < COLUMNS; ++j) {
                if (lane + 32 * j != r) continue;
                const double better = own > 0 ? x[j] + (target[j] - sum) / own : 0;
                const double next = better > 0 ? better : 0;
                change += (next - x[j]) * (next - x[j]);
                x[j] = next;
            }
        }
        change = sum_of_warp(change);
        if (sweep == 0) first = change;
        if (change <= SWEEP * SWEEP * first) break;
    }
#pragma unroll
    for (u32 j = 0; j < COLUMNS; ++j) {
        const u32 c = lane + 32 * j;
        if (c >= a.rank) continue;
        const double scaled = x[j] * scales[2 * a.rank + c];
        row[c] = scaled > FLOOR ? scaled : FLOOR;
    }
}

// How `update` divides a tile of rows among threads. Shared memory limits it as much as device memory does, so each thread loads four
// adjacent numbers at a time and uses each of them four times: it computes 4 columns of DOWN rows of the products, and 4 x 4 inner
// products of every GROUPS-th row. Rows are STRIDE numbers apart, so the rows of a warp are in different banks.
template <u32 RANK> struct Tile {
    static constexpr u32 NUMBERS = RANK < 64 ? 2 * BLCO_DENSE_TILE : BLCO_DENSE_TILE, ROWS = NUMBERS / RANK;
    static constexpr u32 STRIDE = RANK < 64 ? RANK + 2 : RANK, ACROSS = RANK / 4;
    static constexpr u32 ROWS_AT_ONCE = BLCO_DENSE_THREADS / ACROSS, DOWN = ROWS / ROWS_AT_ONCE;
    static constexpr u32 GROUPS = BLCO_DENSE_THREADS / (ACROSS * ACROSS), PER_THREAD = NUMBERS / BLCO_DENSE_THREADS;
    static_assert(GROUPS == 1 || GROUPS * RANK * RANK <= 2 * ROWS * STRIDE, "room for the groups' inner products");

    alignas(16) double matrix[RANK * RANK];
    // The sums and the new rows; at the end, the sums of the groups.
    alignas(16) double both[2 * ROWS * STRIDE];
};

// Any number of thread blocks of BLCO_DENSE_THREADS, for a.rank up to RANK. Each takes every gridDim.x-th tile of rows, computes and
// writes the new rows, and adds up their inner products in registers. Overwrites the factor and the thread block's partials.
template <class Real, u32 RANK> __device__ __forceinline__ void update(const DenseArgs& a)
{
    using Tile = dense::Tile<RANK>;
    constexpr u32 ROWS = Tile::ROWS, STRIDE = Tile::STRIDE, ACROSS = Tile::ACROSS;
    __shared__ Tile tile;
    double *const sums = tile.both, *const rows = tile.both + ROWS * STRIDE;
    const u32 column = threadIdx.x % RANK, across = threadIdx.x % ACROSS * 4, down = threadIdx.x / ACROSS;
    const u32 group = threadIdx.x / (ACROSS * ACROSS), along = threadIdx.x / ACROSS % ACROSS * 4;
    for (u32 e = threadIdx.x; e < RANK * RANK; e += BLCO_DENSE_THREADS) {
        const u32 r = e / RANK, c = e % RANK;
        tile.matrix[e] = r < a.rank && c < a.rank ? ((const double*)a.matrix)[r * a.rank + c] : 0;
    }
    double gram[4][4] = {}, inner = 0;
    const u64 tiles = (a.rows + ROWS - 1) / ROWS;
    for (u64 t = blockIdx.x; t < tiles; t += gridDim.x) {
        const u64 first = t * ROWS;
#pragma unroll
        for (u32 i = 0; i < Tile::PER_THREAD; ++i) {
            const u32 at = (threadIdx.x + BLCO_DENSE_THREADS * i) / RANK;
            const bool inside = first + at < a.rows && column < a.rank;
            sums[at * STRIDE + column] = inside ? sum_at<Real>(a, (first + at) * a.rank + column) : 0;
        }
        __syncthreads();
        if (a.scales) {
            for (u32 at = threadIdx.x / 32; at < ROWS; at += BLCO_DENSE_THREADS / 32) {
                if (first + at >= a.rows) continue;
                const Real* old = (const Real*)a.factor + (first + at) * a.rank;
                descend<Real, RANK>(a, sums + at * STRIDE, old, tile.matrix, rows + at * STRIDE);
            }
        } else {
            double product[Tile::DOWN][4] = {};
            for (u32 k = 0; k < a.rank; ++k) {
                double right[4];
                take(tile.matrix + k * RANK + across, right);
#pragma unroll
                for (u32 i = 0; i < Tile::DOWN; ++i) {
                    const double left = sums[(down + Tile::ROWS_AT_ONCE * i) * STRIDE + k];
#pragma unroll
                    for (u32 j = 0; j < 4; ++j) product[i][j] += left * right[j];
                }
            }
#pragma unroll
            for (u32 i = 0; i < Tile::DOWN; ++i) {
#pragma unroll
                for (u32 j = 0; j < 4; ++j) rows[(down + Tile::ROWS_AT_ONCE * i) * STRIDE + across + j] = product[i][j];
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < Tile::PER_THREAD; ++i) {
            const u32 at = (threadIdx.x + BLCO_DENSE_THREADS * i) / RANK, e = at * STRIDE + column;
            const bool inside = first + at < a.rows && column < a.rank;
            const Real stored = inside ? (Real)rows[e] : (Real)0;
            if (inside) ((Real*)a.factor)[(first + at) * a.rank + column] = stored;
            rows[e] = (double)stored;
            inner += sums[e] * (double)stored;
        }
        __syncthreads();
#pragma unroll 2
        for (u32 at = group; at < ROWS; at += Tile::GROUPS) {
            double left[4], right[4];
            take(rows + at * STRIDE + along, left);
            take(rows + at * STRIDE + across, right);
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
#pragma unroll
                for (u32 j = 0; j < 4; ++j) gram[i][j] += left[i] * right[j];
            }
        }
    }
    __syncthreads();
    double* partials = (double*)a.partials + (u64)blockIdx.x * a.rank * (a.rank + 1);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            const u32 r = along + i, c = across + j;
            if (Tile::GROUPS > 1) tile.both[(group * RANK + r) * RANK + c] = gram[i][j];
            else if (r < a.rank && c < a.rank) partials[r * a.rank + c] = gram[i][j];
        }
    }
    __syncthreads();
    for (u32 e = threadIdx.x; Tile::GROUPS > 1 && e < RANK * RANK; e += BLCO_DENSE_THREADS) {
        const u32 r = e / RANK, c = e % RANK;
        double sum = 0;
        for (u32 g = 0; g < Tile::GROUPS; ++g) sum += tile.both[g * RANK * RANK + e];
        if (r < a.rank && c < a.rank) partials[r * a.rank + c] = sum;
    }
    __syncthreads();
    tile.both[threadIdx.x] = inner;
    __syncthreads();
    if (threadIdx.x >= a.rank || threadIdx.x >= RANK) return;
    double sum = 0;
    for (u32 e = threadIdx.x; e < BLCO_DENSE_THREADS; e += RANK) sum += tile.both[e];
    partials[a.rank * a.rank + threadIdx.x] = sum;
}

// Any number of thread blocks: the factor is the sums times the matrix, a thread for each element.
template <class Real> __device__ __forceinline__ void product(const DenseArgs& a)
{
    const double* matrix = (const double*)a.matrix;
    const u64 threads = (u64)gridDim.x * blockDim.x;
    for (u64 e = (u64)blockIdx.x * blockDim.x + threadIdx.x; e < a.rows * a.rank; e += threads) {
        const u64 row = e / a.rank, column = e % a.rank;
        double sum = 0;
        for (u32 k = 0; k < a.rank; ++k) sum += sum_at<Real>(a, row * a.rank + k) * matrix[(u64)k * a.rank + column];
        ((Real*)a.factor)[e] = (Real)sum;
    }
}

// Any number of thread blocks, for a.rank up to BLCO_DENSE_HALS: HALS of a row by a warp, as in `descend`, but with the row in shared
// memory and the matrix in caches. One warp works for each row that fits. Overwrites the factor.
template <class Real> __device__ __forceinline__ void hals(const DenseArgs& a)
{
    __shared__ double rows[BLCO_DENSE_HALS];
    const u32 room = BLCO_DENSE_HALS / a.rank, all = BLCO_DENSE_THREADS / 32, warps = room < all ? room : all;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp >= warps) return;
    const double *matrix = (const double*)a.matrix, *scales = (const double*)a.scales;
    double* x = rows + warp * a.rank;
    for (u64 row = (u64)blockIdx.x * warps + warp; row < a.rows; row += (u64)gridDim.x * warps) {
        Real* factor = (Real*)a.factor + row * a.rank;
        bool has_sums = false;
        for (u32 c = lane; c < a.rank; c += 32) has_sums |= sum_at<Real>(a, row * a.rank + c) != 0;
        has_sums = __any_sync(~0u, has_sums);
        for (u32 c = lane; c < a.rank; c += 32) x[c] = has_sums ? (double)factor[c] * scales[a.rank + c] : 0;
        __syncwarp();
        double first = 0;
        for (int sweep = 0; sweep < SWEEPS; ++sweep) {
            double change = 0;
            for (u32 r = 0; r < a.rank; ++r) {
                const double* gram = matrix + (u64)r * a.rank;
                double sum = 0;
                for (u32 c = lane; c < a.rank; c += 32) sum += gram[c] * x[c];
                sum = sum_of_warp(sum);
                // Every lane has the same value.
                const double own = gram[r], before = x[r], target = sum_at<Real>(a, row * a.rank + r) * scales[r];
                const double better = own > 0 ? before + (target - sum) / own : 0;
                const double next = better > 0 ? better : 0;
                change += (next - before) * (next - before);
                __syncwarp();
                if (lane == 0) x[r] = next;
                __syncwarp();
            }
            if (sweep == 0) first = change;
            if (change <= SWEEP * SWEEP * first) break;
        }
        for (u32 c = lane; c < a.rank; c += 32) {
            const double scaled = x[c] * scales[2 * a.rank + c];
            factor[c] = (Real)(scaled > FLOOR ? scaled : FLOOR);
        }
        __syncwarp();
    }
}

// A multiple of a.slabs thread blocks. Each computes some of the partials of a slab of rows, one thread for each number.
template <class Real> __device__ __forceinline__ void gram(const DenseArgs& a)
{
    const u32 slab = blockIdx.x % a.slabs;
    const u64 first = a.rows * slab / a.slabs, end = a.rows * (slab + 1) / a.slabs;
    const u64 square = (u64)a.rank * a.rank, numbers = square + a.rank;
    const u64 threads = (u64)(gridDim.x / a.slabs) * blockDim.x;
    const Real* factor = (const Real*)a.factor;
    double* partials = (double*)a.partials + numbers * slab;
    for (u64 i = (u64)(blockIdx.x / a.slabs) * blockDim.x + threadIdx.x; i < numbers; i += threads) {
        const u64 left = i < square ? i / a.rank : i - square, right = i % a.rank;
        double sum = 0;
        for (u64 row = first; row < end; ++row) {
            const double x = (double)factor[row * a.rank + left];
            sum += x * (i < square ? (double)factor[row * a.rank + right] : sum_at<Real>(a, row * a.rank + left));
        }
        partials[i] = sum;
    }
}

// Any number of thread blocks: the first a.rank * (a.rank + 1) partials become the sums of all a.slabs, in order.
__device__ inline void reduce(const DenseArgs& a)
{
    const u64 numbers = (u64)a.rank * (a.rank + 1), threads = (u64)gridDim.x * blockDim.x;
    double* partials = (double*)a.partials;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < numbers; i += threads) {
        double sum = partials[i];
        for (u32 slab = 1; slab < a.slabs; ++slab) sum += partials[numbers * slab + i];
        partials[i] = sum;
    }
}

// Puts the rounded sum of two numbers in `high` and adds the rounding error to `low`. Must not be fused.
__device__ __forceinline__ void add_exactly(double x, double& high, double& low)
{
    const double sum = __dadd_rn(high, x), of_x = __dadd_rn(sum, -high);
    low = __dadd_rn(low, __dadd_rn(__dadd_rn(high, -__dadd_rn(sum, -of_x)), __dadd_rn(x, -of_x)));
    high = sum;
}

// Like `gram`, but only for inner products of the factor's columns, each with twice f64's digits (src/decomp/extended.rs): a sum and
// its rounding error.
template <class Real> __device__ __forceinline__ void extended_gram(const DenseArgs& a)
{
    const u32 slab = blockIdx.x % a.slabs;
    const u64 first = a.rows * slab / a.slabs, end = a.rows * (slab + 1) / a.slabs, square = (u64)a.rank * a.rank;
    const u64 threads = (u64)(gridDim.x / a.slabs) * blockDim.x;
    const Real* factor = (const Real*)a.factor;
    double* partials = (double*)a.partials + 2 * square * slab;
    for (u64 i = (u64)(blockIdx.x / a.slabs) * blockDim.x + threadIdx.x; i < square; i += threads) {
        const u64 left = i / a.rank, right = i % a.rank;
        double high = 0, low = 0;
        for (u64 row = first; row < end; ++row) {
            const double x = (double)factor[row * a.rank + left], y = (double)factor[row * a.rank + right];
            const double product = __dmul_rn(x, y);
            low = __dadd_rn(low, __fma_rn(x, y, -product));
            add_exactly(product, high, low);
        }
        partials[2 * i] = high;
        partials[2 * i + 1] = low;
    }
}

// Like `reduce`, for the a.rank * a.rank pairs of `extended_gram`.
__device__ inline void extended_reduce(const DenseArgs& a)
{
    const u64 square = (u64)a.rank * a.rank, threads = (u64)gridDim.x * blockDim.x;
    double* partials = (double*)a.partials;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < square; i += threads) {
        double high = partials[2 * i], low = partials[2 * i + 1];
        for (u32 slab = 1; slab < a.slabs; ++slab) {
            const double* pair = partials + 2 * (square * slab + i);
            low = __dadd_rn(low, pair[1]);
            add_exactly(pair[0], high, low);
        }
        partials[2 * i] = high;
        partials[2 * i + 1] = low;
    }
}

}  // namespace dense

// The kernels: X(name, body).
#define BLCO_DENSE_KERNELS(X)                                                                                          \
    X(update_f64_r16, (dense::update<double, 16>))                                                                     \
    X(update_f64_r32, (dense::update<double, 32>))                                                                     \
    X(update_f64_r64, (dense::update<double, 64>))                                                                     \
    X(update_f32_r16, (dense::update<float, 16>))                                                                      \
    X(update_f32_r32, (dense::update<float, 32>))                                                                      \
    X(update_f32_r64, (dense::update<float, 64>))                                                                      \
    X(product_f64, dense::product<double>)                                                                             \
    X(product_f32, dense::product<float>)                                                                              \
    X(hals_f64, dense::hals<double>)                                                                                   \
    X(hals_f32, dense::hals<float>)                                                                                    \
    X(gram_f64, dense::gram<double>)                                                                                   \
    X(gram_f32, dense::gram<float>)                                                                                    \
    X(reduce, dense::reduce)                                                                                           \
    X(extended_gram_f64, dense::extended_gram<double>)                                                                 \
    X(extended_gram_f32, dense::extended_gram<float>)                                                                  \
    X(extended_reduce, dense::extended_reduce)

#define BLCO_DENSE(name, body)                                                                                         \
    extern "C" __global__ void __launch_bounds__(BLCO_DENSE_THREADS, 2) dense_##name(const DenseArgs args)                \
    {                                                                                                                  \
        body(args);                                                                                                    \
    }
