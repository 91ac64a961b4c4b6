// A step of a stable radix sort of pairs (u32 rows with u32 positions) by one digit of the row: `count` counts the pairs of
// each digit in each thread block, `scan` adds up the counts, `scatter` moves the pairs. Each thread block takes consecutive
// portions, so pairs with the same digit keep their order.
#pragma once
#include "image.cuh"

namespace mode_sorted {

constexpr u32 WARPS = BLCO_SORT_THREADS / 32, DIGITS = 1 << BLCO_DIGIT_BITS;
// Pairs of a thread in a portion, and of a warp.
constexpr u32 ITEMS = BLCO_SORT_PORTION / BLCO_SORT_THREADS, WARP_ITEMS = 32 * ITEMS;
static_assert(DIGITS == BLCO_SORT_THREADS, "a thread for each digit");

// The pairs of a sorting thread block: portions `begin` to `end - 1`.
struct Portions {
    u32 begin, end;
};

__device__ __forceinline__ Portions portions_of(const SortArgs& a)
{
    const u64 all = ((u64)a.nnz + BLCO_SORT_PORTION - 1) / BLCO_SORT_PORTION;
    return {(u32)(all * blockIdx.x / gridDim.x), (u32)(all * (blockIdx.x + 1) / gridDim.x)};
}

__device__ __forceinline__ u32 digit_of(const SortArgs& a, u32 row)
{
    return row >> a.shift & ((1u << a.bits) - 1);
}

// The place of a thread's first pair in a portion; its next pair is 32 places further. A warp's pairs are consecutive.
__device__ __forceinline__ u32 first_item()
{
    return threadIdx.x / 32 * WARP_ITEMS + threadIdx.x % 32;
}

// A thread's numbers of a portion that has `there` numbers. Missing ones are ~0: as rows they sort after all others.
__device__ __forceinline__ void load_items(u32 (&item)[ITEMS], const u32* portion, u32 there)
{
    const u32* first = portion + first_item();
#pragma unroll
    for (int k = 0; k < (int)ITEMS; ++k) item[k] = first_item() + 32 * k < there ? first[32 * k] : ~0u;
}

// The number of pairs in a portion.
__device__ __forceinline__ u32 pairs_of(const SortArgs& a, u32 portion)
{
    const u32 rest = a.nnz - portion * BLCO_SORT_PORTION;
    return rest < BLCO_SORT_PORTION ? rest : BLCO_SORT_PORTION;
}

// Thread blocks of BLCO_SORT_THREADS, as many as for `scatter`: counts each one's pairs of each digit.
__device__ inline void count(const SortArgs& a)
{
    __shared__ u32 counts[WARPS][DIGITS];
    const u32 warp = threadIdx.x / 32;
    for (u32 w = 0; w < WARPS; ++w) counts[w][threadIdx.x] = 0;
    __syncthreads();
    const Portions mine = portions_of(a);
    for (u32 p = mine.begin; p < mine.end; ++p) {
        const u32 there = pairs_of(a, p);
        u32 row[ITEMS];
        load_items(row, (const u32*)a.rows_in + (u64)p * BLCO_SORT_PORTION, there);
#pragma unroll
        for (u32 k = 0; k < ITEMS; ++k) {
            if (first_item() + 32 * k < there) atomicAdd(&counts[warp][digit_of(a, row[k])], 1u);
        }
    }
    __syncthreads();
    u32 sum = 0;
    for (u32 w = 0; w < WARPS; ++w) sum += counts[w][threadIdx.x];
    if (threadIdx.x < 1u << a.bits) ((u32*)a.counts)[threadIdx.x * gridDim.x + blockIdx.x] = sum;
}

// The sum of `number` over the threads before this one; `warps` then holds the sum of each warp. All threads call it.
__device__ __forceinline__ u32 sum_before(u32 number, u32 (&warps)[WARPS])
{
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 sum = sum_upto(number);
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    for (u32 w = 0; w < warp; ++w) sum += warps[w];
    return sum - number;
}

// A thread block of BLCO_SORT_THREADS for each row of numbers.
__device__ inline void scan(const ScanArgs& a)
{
    __shared__ u32 warps[WARPS];
    u32* numbers = (u32*)a.numbers + (u64)blockIdx.x * a.row;
    const u32 rest = a.count - blockIdx.x * a.row, count = rest < a.row ? rest : a.row;
    u32 total = 0;
    for (u32 first = 0; first < count; first += BLCO_SORT_THREADS) {
        const u32 i = first + threadIdx.x;
        const u32 sum = total + sum_before(i < count ? numbers[i] : 0, warps);
        if (i < count) numbers[i] = sum;
        for (u32 w = 0; w < WARPS; ++w) total += warps[w];
        __syncthreads();
    }
    if (threadIdx.x == 0) ((u32*)a.totals)[blockIdx.x] = total;
}

// The digit of each pair, and how many of the warp's pairs with that digit come before it: `digit << 16 | before`. `counts`,
// the warp's own, ends as the warp's pairs of each digit.
__device__ __forceinline__ void rank_items(u32 (&rank)[ITEMS], const u32 (&row)[ITEMS], u32 (&counts)[DIGITS],
                                           const SortArgs& a)
{
    const u32 lane = threadIdx.x % 32;
    for (u32 digit = lane; digit < DIGITS; digit += 32) counts[digit] = 0;
    __syncwarp();
#pragma unroll
    for (u32 k = 0; k < ITEMS; ++k) {
        const u32 digit = digit_of(a, row[k]), equal = __match_any_sync(~0u, digit);
        const u32 before = counts[digit];
        rank[k] = digit << 16 | (before + __popc(equal & ((1u << lane) - 1)));
        __syncwarp();
        if (lane == (u32)__ffs(equal) - 1) counts[digit] = before + __popc(equal);
        __syncwarp();
    }
}

// Thread blocks of BLCO_SORT_THREADS: moves each pair after those of smaller digits and after earlier pairs of the same digit.
// A portion is ordered in shared memory first, so that writes are contiguous.
__device__ inline void scatter(const SortArgs& a)
{
    __shared__ u32 counts[WARPS][DIGITS], warps[WARPS];
    // For each digit, the distance that its pairs move from their places in `rows` and `positions`.
    __shared__ u32 moves[DIGITS];
    __shared__ u32 rows[BLCO_SORT_PORTION], positions[BLCO_SORT_PORTION];
    const u32 warp = threadIdx.x / 32, digits = 1u << a.bits, digit = threadIdx.x;
    // The place of the thread block's next pair of this thread's digit.
    u32 next = sum_before(digit < digits ? ((const u32*)a.totals)[digit] : 0, warps);
    if (digit < digits) next += ((const u32*)a.counts)[digit * gridDim.x + blockIdx.x];
    const Portions mine = portions_of(a);
    for (u32 p = mine.begin; p < mine.end; ++p) {
        const u32 there = pairs_of(a, p), first = p * BLCO_SORT_PORTION;
        u32 row[ITEMS], place[ITEMS];
        load_items(row, (const u32*)a.rows_in + first, there);
        rank_items(place, row, counts[warp], a);
        __syncthreads();
        u32 sum = 0;
        for (u32 w = 0; w < WARPS; ++w) {
            const u32 of_warp = counts[w][digit];
            counts[w][digit] = sum;
            sum += of_warp;
        }
        const u32 before = sum_before(sum, warps);
        for (u32 w = 0; w < WARPS; ++w) counts[w][digit] += before;
        moves[digit] = next - before;
        next += sum;
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < ITEMS; ++k) {
            place[k] = counts[warp][place[k] >> 16] + (place[k] & 0xffff);
            rows[place[k]] = row[k];
        }
        u32 position[ITEMS];
        if (a.positions_in != 0) {
            load_items(position, (const u32*)a.positions_in + first, there);
        } else {
#pragma unroll
            for (u32 k = 0; k < ITEMS; ++k) position[k] = first + first_item() + 32 * k;
        }
#pragma unroll
        for (u32 k = 0; k < ITEMS; ++k) positions[place[k]] = position[k];
        __syncthreads();
        for (u32 i = threadIdx.x; i < there; i += BLCO_SORT_THREADS) {
            const u32 to = i + moves[digit_of(a, rows[i])];
            ((u32*)a.rows_out)[to] = rows[i];
            ((u32*)a.positions_out)[to] = positions[i];
        }
    }
}

}  // namespace mode_sorted
