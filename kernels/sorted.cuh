// MTTKRP of nonzeros that are sorted by row of the only target mode. Every row is added up in one order, and written once if these
// are all nonzeros. If they are a part of them (MttkrpArgs.add), each row's sum is added to the result of earlier launches: one
// addition for each row. In both cases a result has the same bits in every run.
//
// A thread block takes a tile without reordering it and gives each group of LANES threads a share (mttkrp.cuh). A row that begins
// and ends inside a share is written by its group. The sums of a share's first and last row go to shared memory, where each thread
// adds up those of the same row in some columns; those of the thread block's first and last row are its *carry-outs*, in memory, which
// `fix_up` adds up in the same way, BLCO_FIX_UP at a time, level by level, until every row is written. `clear_rows` has cleared
// rows without nonzeros. Products and shares of at most BLCO_SHARE additions are in T, all other sums in f64
// (tensor_cores.cuh has longer shares, in f64).
#pragma once
#include "mttkrp.cuh"

// Adds up the sums of consecutive entries of the same row, of `entries` (at least 1), in N columns. `sums_of` has those of an entry; `write`
// gets each row with its sums.
template <int BATCH, int N, class ROW, class SUMS, class WRITE>
__device__ __forceinline__ void add_up_rows(u32 entries, const ROW& row_of, const SUMS& sums_of, const WRITE& write)
{
    u32 row = row_of(0);
    double sum[N];
    sums_of(0, sum);
#pragma unroll 1
    for (u32 e = 1; e < entries; e += BATCH) {
        u32 rows[BATCH];
        double sums[BATCH][N];
#pragma unroll
        for (u32 b = 0; b < BATCH; ++b) {
            const u32 at = e + b < entries ? e + b : entries - 1;
            rows[b] = row_of(at);
            sums_of(at, sums[b]);
        }
#pragma unroll
        for (u32 b = 0; b < BATCH; ++b) {
            if (e + b >= entries) break;
            const bool other = rows[b] != row;
            if (other) write(row, sum);
            row = rows[b];
#pragma unroll
            for (int k = 0; k < N; ++k) sum[k] = other ? sums[b][k] : sum[k] + sums[b][k];
        }
    }
    write(row, sum);
}

// The result: numbers in T that are written, or, to `add` to, sums in f64.
template <class T> struct Result {
    u64 matrix;
    u32 rank, add;

    __device__ __forceinline__ void operator()(u32 row, u32 column, double sum) const
    {
        const u64 at = (u64)row * rank + column;
        // Nothing else adds to the row in this launch.
        if (add) atomicAdd((double*)matrix + at, sum);
        else ((T*)matrix)[at] = (T)sum;
    }
};

// The destination of sums: rows `first` and `last`, which may continue elsewhere, go to their carry-outs, all others to the result.
template <class T> struct Written {
    u32 first, last;
    Result<T> result;
    // The two carry-outs.
    double* carries;

    // Before a column's sums are written.
    __device__ __forceinline__ void begin(u32 column) const
    {
        // One row has one end.
        if (first == last) carries[result.rank + column] = 0;
    }

    __device__ __forceinline__ void operator()(u32 row, u32 column, double sum) const
    {
        if (row == first) carries[column] = sum;
        else if (row == last) carries[result.rank + column] = sum;
        else result(row, column, sum);
    }
};

// Decodes tile t of an image into `group`, in order: four nonzeros for each thread, which follow one another. Returns the number of
// nonzeros, padded with zeros to whole batches. The whole thread block calls it, but a warp sees only its own shares, and none waits for another.
template <class T, int ORDER, class SHAPE, class S>
__device__ __forceinline__ u32 gather_sorted(Group<T, ORDER, SHAPE, S>& group, const MttkrpArgs& a, u32 mode, const u8* image, u32 t, bool& bad)
{
    static_assert(SHAPE::PER == 4 && SHAPE::TILES == 1, "a thread unpacks four numbers at a time");
    const Header h = Tiled::header_of(image);
    const u32 left = h.nnz - t * BLCO_TILE_NNZ, nnz = left < BLCO_TILE_NNZ ? left : BLCO_TILE_NNZ;
    const u32 padded = (nnz + S::BATCH - 1) / S::BATCH * S::BATCH, first = 4 * threadIdx.x;
    if (first < padded) {
        const u32 from = first < nnz ? first : (nnz - 1) / 4 * 4, place = group.place(first);
        const u8* const record = h.first.at + (u64)t * (16 + 8 * a.order);
        const u32* const words = (const u32*)(h.second.at + 64ull * load<u32>(record));
        u32 start = 0;
#pragma unroll
        for (int m = 0; m < ORDER; ++m) {
            if (ORDER == BLCO_ORDER_MAX && m >= (int)a.order) break;
            const u32 low = load<u32>(record + 16 + 8 * m), span = load<u32>(record + 20 + 8 * m) - low, width = width_of(span);
            u32 index[4];
            unpack_four(index, words, width, from, start);
            start += 16 * width;
#pragma unroll
            for (u32 k = 0; k < 4; ++k) index[k] = low + inside(index[k], span, bad);
            put(group.index[m == (int)mode ? 0 : m == 0 ? mode : m] + place, index);
        }
        double stored[4];
        four_values(stored, h, words, start, record + 4, record + 8, t * BLCO_TILE_NNZ, from, nnz, bad);
        const T value[4] = {(T)stored[0], (T)stored[1], (T)stored[2], (T)stored[3]};
        put(group.value + place, value);
        // Beyond the end, the last nonzero is repeated with the value 0.
        for (u32 k = nnz > first ? nnz - first : 0; k < 4; ++k) {
            group.value[place + k] = 0;
            for (u32 m = 0; m < a.order; ++m) group.index[m][place + k] = group.index[m][place + (nnz - 1) % 4];
        }
    }
    __syncwarp();
    return padded;
}

// With RANK 0, the rank is an argument. ORDER is the tensor's, or BLCO_ORDER_MAX, which serves every order.
template <class T, int ORDER, class SHAPE, class S, int RANK, class FACTOR = T, template <class, bool> class SWEEP = Sweep>
__device__ __forceinline__ void mttkrp_sorted(const MttkrpArgs& a)
{
    constexpr bool WHOLE = RANK > 0 && RANK % S::SWEEP == 0;
    constexpr u32 SHARE = Group<T, ORDER, SHAPE, S>::SHARE;
    __shared__ Group<T, ORDER, SHAPE, S> group;
    // Sums of the first and the last row of each share.
    __shared__ T ends[2][SHAPE::NNZ / SHARE][S::SWEEP];
    static_assert(sizeof(group) + sizeof(ends) <= 48 << 10, "what every device lets a thread block have");
    const Target target = a.targets[0];
    const Chunk chunk = a.chunks == 0 ? a.one : chunk_of((const Chunk*)a.chunks, a.chunk_count, blockIdx.x);
    const u32 tile = (blockIdx.x - chunk.first_block) * SHAPE::TILES;
    bool bad = false;
    const u32 nnz = gather_sorted(group, a, target.mode, (const u8*)chunk.image, tile, bad);
    if (bad) atomicMin((u32*)a.fault, chunk.number);
    typedef SWEEP<S, WHOLE> Columns;
    const u32 rank = RANK > 0 ? RANK : a.rank, columns = Columns::end(a, target.mode, rank);
    const u32 share = threadIdx.x / S::LANES, entries = 2 * ((nnz + SHARE - 1) / SHARE);
    const u32 begin = share * SHARE, end = begin + SHARE < nnz ? begin + SHARE : nnz;
    const auto row_of = [&](u32 e) {
        const u32 past = (e / 2 + 1) * SHARE;
        return group.index[0][group.place(e % 2 == 0 ? e / 2 * SHARE : (past < nnz ? past : nnz) - 1)];
    };
    for (u32 start = 0; start < columns; start += S::SWEEP) {
        if (begin < end) {
            const Columns sweep(a, target.mode, start, rank);
            T* const out = sweep.base((T*)target.sums);
            double* const sums = sweep.base((double*)target.sums);
            const u32 first = group.index[0][group.place(begin)];
            // The share's first and last row each have an entry; a row that is both has the first.
            const auto keep = [&](u32 which, const T (&sum)[S::COLUMNS], bool there) {
#pragma unroll
                for (int c = 0; c < S::COLUMNS; ++c) ends[which][share][sweep.lane + c * S::LANES] = there ? sum[c] : T(0);
            };
            const auto done = [&](u32 row, const T (&sum)[S::COLUMNS], bool last) {
                if (row == first) keep(0, sum, true);
                if (last) keep(1, sum, row != first);
                else if (row != first && a.add) sweep.add(sums + (u64)row * rank, sum);
                else if (row != first) sweep.write(out + (u64)row * rank, sum);
            };
            accumulate<FACTOR>(sweep, group, a, target.mode, begin, end, done);
        }
        __syncthreads();
        const u32 first_row = row_of(0), last_row = row_of(entries - 1);
        if (start == 0 && threadIdx.x < 2) ((u32*)a.carry_rows)[2 * blockIdx.x + threadIdx.x] = threadIdx.x == 0 ? first_row : last_row;
        // Each thread adds up some columns.
        constexpr int OWN = (S::SWEEP + SHAPE::THREADS - 1) / SHAPE::THREADS;
        u32 own[OWN];
        bool any = false;
        const Written<T> written = {first_row, last_row, {target.sums, rank, a.add}, (double*)a.carry_sums + 2ull * blockIdx.x * rank};
#pragma unroll
        for (int k = 0; k < OWN; ++k) {
            const u32 i = threadIdx.x + k * SHAPE::THREADS;
            own[k] = i < S::SWEEP ? Columns::column_of(a, target.mode, start, i, rank) : rank;
            if (own[k] < rank) written.begin(own[k]);
            any = any || own[k] < rank;
        }
        if (any) {
            const auto sums_of = [&](u32 e, double (&sums)[OWN]) {
#pragma unroll
                for (int k = 0; k < OWN; ++k) {
                    const u32 i = threadIdx.x + k * SHAPE::THREADS;
                    sums[k] = S::SWEEP % SHAPE::THREADS == 0 || i < S::SWEEP ? (double)ends[e % 2][e / 2][i] : 0;
                }
            };
            add_up_rows<OWN == 1 ? 4 : 2, OWN>(entries, row_of, sums_of, [&](u32 row, const double (&sums)[OWN]) {
#pragma unroll
                for (int k = 0; k < OWN; ++k) {
                    if (own[k] < rank) written(row, own[k], sums[k]);
                }
            });
        }
        if (start + S::SWEEP < columns) __syncthreads();
    }
}

// A warp for each BLCO_FIX_UP of a.count carry-outs: adds them up, and writes two carry-outs of its own unless it is the only warp.
template <class T> __device__ __forceinline__ void fix_up(const FixUpArgs& a)
{
    const u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, from = warp * BLCO_FIX_UP;
    if (from >= a.count) return;
    const u32 entries = a.count - from < BLCO_FIX_UP ? a.count - from : BLCO_FIX_UP;
    const u32* const rows = (const u32*)a.rows + from;
    const u32 first = rows[0], last = rows[entries - 1];
    const bool all = a.count <= BLCO_FIX_UP;
    if (!all && threadIdx.x % 32 < 2) ((u32*)a.carry_rows)[2 * warp + threadIdx.x % 32] = threadIdx.x % 32 == 0 ? first : last;
    const Result<T> result = {a.result, a.rank, a.add};
    const Written<T> written = {first, last, result, (double*)a.carry_sums + 2ull * warp * a.rank};
    const auto row_of = [&](u32 e) { return rows[e]; };
    for (u32 column = threadIdx.x % 32; column < a.rank; column += 32) {
        const double* const sums = (const double*)a.sums + (u64)from * a.rank + column;
        const auto sum_of = [&](u32 e, double (&sum)[1]) { sum[0] = sums[(u64)e * a.rank]; };
        if (all) {
            add_up_rows<8, 1>(entries, row_of, sum_of, [&](u32 row, const double (&sum)[1]) { result(row, column, sum[0]); });
        } else {
            written.begin(column);
            add_up_rows<8, 1>(entries, row_of, sum_of, [&](u32 row, const double (&sum)[1]) { written(row, column, sum[0]); });
        }
    }
}

// A warp for each 32 rows: clears those whose bits are set.
template <class T> __device__ __forceinline__ void clear_rows(const ClearArgs& a)
{
    const u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (warp >= a.rows / 32 + (a.rows % 32 > 0)) return;
    const u32 bits = ((const u32*)a.empty)[warp];
    for (u32 r = 0; r < 32; ++r) {
        const u32 row = 32 * warp + r;
        if ((bits >> r & 1) == 0 || row >= a.rows) continue;
        for (u32 column = threadIdx.x % 32; column < a.rank; column += 32) ((T*)a.result)[(u64)row * a.rank + column] = T(0);
    }
}
