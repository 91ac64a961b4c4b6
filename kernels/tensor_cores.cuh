// SpTTMc of sorted nonzeros by tensor cores: the nonzeros of a row are added up as products of matrices.
//
// A row of the result is a sum of Kronecker products, one for each nonzero (kronecker.cuh). Of the factors, those of the last two modes beside
// the target are the *sides* of a matrix, `left` and `right`; the value and an element of each other factor *scale* it. So for each choice of
// these elements, a row is the sum over nonzeros of a column, the scaled row of `left`, times the row of `right`: a product of two matrices
// that are as long as there are nonzeros. A warp has several of these products, in blocks of 8 x 8 sums in f64, and takes four nonzeros at a
// time. Where threads multiply rows, an instruction of a warp is 32 multiplications; here it is 256, or 512 from compute capability 9.0 on.
// Factors in f32 have sums in f64, too.
//
// Tensor cores do so from compute capability 8.0 on (`Matrices` in src/backend/cuda/kernels/matrices.rs says when it pays). Elsewhere the same
// code computes by shuffles, for tests. In the store's order rows have too few nonzeros at a time.
#pragma once
#include "kronecker.cuh"
#include "sorted.cuh"

// Adds an 8 x 4 matrix times a 4 x 8 matrix to an 8 x 8 matrix. Of a lane: row lane / 4, column lane % 4 of `left`; row lane % 4,
// column lane / 4 of `right`; row lane / 4, columns 2 (lane % 4) and the next of a sum. The warp calls it together.
static __device__ __forceinline__ void add_product(double (&sum)[2], double left, double right)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(sum[0]), "+d"(sum[1])
        : "d"(left), "d"(right));
#else
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
        const double x = __shfl_sync(~0u, left, lane / 4 * 4 + k);
        const u32 column = 2 * (lane % 4);
        sum[0] += x * __shfl_sync(~0u, right, column * 4 + k);
        sum[1] += x * __shfl_sync(~0u, right, column * 4 + 4 + k);
    }
#endif
}

// Two of them with the same second matrix.
static __device__ __forceinline__ void add_products(double (&sum)[2], double (&other)[2], double left, double other_left, double right)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    // Twice the rate of the smaller matrices.
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+d"(sum[0]), "+d"(sum[1]), "+d"(other[0]), "+d"(other[1])
        : "d"(left), "d"(other_left), "d"(right));
#else
    add_product(sum, left, right);
    add_product(other, other_left, right);
#endif
}

// A warp and its columns, two of each block of 8 x 8 for a lane.
template <int COLUMNS> struct MatrixLanes : Lanes<32, COLUMNS, 4> {
    // Their sums are in f64.
    static constexpr u32 SHARE_MOST = 2 * BLCO_SHARE;
};

// The columns of a Kronecker product of three factors or more in one sweep: ROWS x COLS blocks for each of SCALING consecutive elements of
// the *scaling* factor, the last one before the sides, if there is one. S are its MatrixLanes.
template <class S, int ROWS_, int COLS_> struct MatrixSweep {
    static constexpr int ROWS = ROWS_, COLS = COLS_, SCALING = S::COLUMNS / (2 * ROWS * COLS);
    static_assert(S::LANES == 32 && S::COLUMNS == 2 * ROWS * COLS * SCALING && S::BATCH == 4, "a warp multiplies matrices");

    static __device__ __forceinline__ u32 before(u32 mode, u32 target) { return mode - 1 != target ? mode - 1 : mode - 2; }

    // The modes of the sides and the scaling one, or ORDER_MAX.
    struct Modes {
        u32 left, right, scaling;

        __device__ __forceinline__ Modes(const MttkrpArgs& a, u32 target)
        {
            right = before(a.order, target);
            left = before(right, target);
            scaling = a.order > 3 ? before(left, target) : BLCO_ORDER_MAX;
        }
    };

    // Factors, at most, of which all blocks of a sweep take the same element.
    static constexpr int OTHERS = BLCO_ORDER_MAX - 4;

    u32 rank, lane;
    // The group's columns of the sides, of the scaling factor and of others, and the element of these factors' rows.
    u32 left, right, scaling, other[OTHERS], number[OTHERS];
    // The first elements of rows of these, and how wide they are.
    u32 first_left, first_right, first_scaling, width_left, width_right, width_scaling;
    // The first column of the product, and how far apart elements are.
    u32 first, stride_left, stride_right, stride_scaling;

    static __device__ __forceinline__ u32 parts(u32 width, u32 of) { return (width + of - 1) / of; }

    // Sweeps by number: those over the right side first, then the left, the scaling factor, all others.
    static __device__ __forceinline__ u32 end(const MttkrpArgs& a, u32 target, u32 rank)
    {
        const Modes m(a, target);
        const u32 l = a.widths[m.left], r = a.widths[m.right], s = m.scaling < BLCO_ORDER_MAX ? a.widths[m.scaling] : 1;
        return rank / (l * r * s) * parts(l, 8 * ROWS) * parts(r, 8 * COLS) * parts(s, SCALING) * S::SWEEP;
    }

    __device__ __forceinline__ MatrixSweep(const MttkrpArgs& a, u32 target, u32 start, u32 rank_, u32 lane_ = threadIdx.x % 32)
        : rank(rank_), lane(lane_)
    {
        const Modes m(a, target);
        const auto column_of_mode = [&](u32 mode) { return mode == 0 ? target : mode; };
        u32 number_of = start / S::SWEEP;
        const auto next = [&](u32 width, u32 each) {
            const u32 all = parts(width, each), own = number_of % all;
            number_of /= all;
            return own * each;
        };
        left = column_of_mode(m.left), right = column_of_mode(m.right);
        width_left = a.widths[m.left], width_right = a.widths[m.right];
        stride_left = a.strides[m.left], stride_right = a.strides[m.right];
        first_right = next(width_right, 8 * COLS);
        first_left = next(width_left, 8 * ROWS);
        first = first_left * stride_left + first_right * stride_right;
        scaling = 0, width_scaling = 1, stride_scaling = 0, first_scaling = 0;
        if (m.scaling < BLCO_ORDER_MAX) {
            scaling = column_of_mode(m.scaling), width_scaling = a.widths[m.scaling], stride_scaling = a.strides[m.scaling];
            first_scaling = next(width_scaling, SCALING);
            first += first_scaling * stride_scaling;
        }
        u32 mode = m.scaling;
#pragma unroll
        for (u32 k = 0; k < OTHERS; ++k) {
            if (k + 4 >= a.order) break;
            mode = before(mode, target);
            other[k] = column_of_mode(mode);
            number[k] = next(a.widths[mode], 1);
            first += number[k] * a.strides[mode];
        }
    }

    // The column of the product of a lane's number c, behind `first`; ~0 if there is none.
    __device__ __forceinline__ u32 offset(int c) const
    {
        const u32 half = c % 2, col = c / 2 % COLS, row = c / 2 / COLS % ROWS, block = c / 2 / COLS / ROWS;
        const u32 l = 8 * row + lane / 4, r = 8 * col + lane % 4 * 2 + half;
        const bool there = first_left + l < width_left && first_right + r < width_right && first_scaling + block < width_scaling;
        return there ? l * stride_left + r * stride_right + block * stride_scaling : ~0u;
    }

    static __device__ __forceinline__ u32 column_of(const MttkrpArgs& a, u32 target, u32 start, u32 i, u32 rank)
    {
        const MatrixSweep of(a, target, start, rank, i % 32);
        const u32 offset = of.offset(i / 32);
        return offset == ~0u ? rank : of.first + offset;
    }

    template <class T> __device__ __forceinline__ T* base(T* matrix) const { return matrix + first; }

    template <class T> __device__ __forceinline__ void add(double* row, const T (&sum)[S::COLUMNS]) const
    {
#pragma unroll
        for (int c = 0; c < S::COLUMNS; ++c) {
            const u32 at = offset(c);
            if (at != ~0u) atomicAdd(row + at, (double)sum[c]);
        }
    }

    template <class T> __device__ __forceinline__ void write(T* row, const T (&sum)[S::COLUMNS]) const
    {
#pragma unroll
        for (int c = 0; c < S::COLUMNS; ++c) {
            const u32 at = offset(c);
            if (at != ~0u) row[at] = sum[c];
        }
    }
};

// What a lane takes of four nonzeros, one of which is its own. Nothing is multiplied before all is needed: that would wait for loads.
template <class T, int ORDER, class MATRIX> struct Terms {
    static constexpr int OTHERS = ORDER > 4 ? ORDER - 4 : 0;

    u32 row;
    T value, others[OTHERS > 0 ? OTHERS : 1], scaling[MATRIX::SCALING], left[MATRIX::ROWS], right[MATRIX::COLS];

    // Of nonzero i of a group.
    template <class FACTOR, class SHAPE, class S>
    __device__ __forceinline__ void take_from(const MATRIX& sweep, const Group<T, ORDER, SHAPE, S>& group, const MttkrpArgs& a, u32 mode, u32 i)
    {
        const auto row_of = [&](u32 k) {
            const u32 m = KroneckerSweep<S, false>::mode_of(mode, k);
            return (const FACTOR*)a.factors[m] + (u64)group.index[k][i] * a.widths[m];
        };
        row = group.index[0][i];
        value = group.value[i];
#pragma unroll
        for (int k = 0; k < OTHERS; ++k) {
            const bool there = ORDER < BLCO_ORDER_MAX || k + 4 < (int)a.order;
            others[k] = there ? __ldg(row_of(sweep.other[k]) + sweep.number[k]) : FACTOR(1);
        }
        if (ORDER > 3) {
            const FACTOR* const of_scaling = row_of(sweep.scaling) + sweep.first_scaling;
            if (sweep.width_scaling % MATRIX::SCALING == 0) {
                take_read_only(of_scaling, scaling);
            } else {
#pragma unroll
                for (u32 t = 0; t < MATRIX::SCALING; ++t) scaling[t] = __ldg(of_scaling + (sweep.first_scaling + t < sweep.width_scaling ? t : 0));
            }
        }
        const FACTOR* const of_left = row_of(sweep.left);
        const FACTOR* const of_right = row_of(sweep.right);
        const u32 own = sweep.lane / 4;
#pragma unroll
        for (int l = 0; l < MATRIX::ROWS; ++l) {
            const u32 at = sweep.first_left + 8 * l + own;
            left[l] = __ldg(of_left + (at < sweep.width_left ? at : 0));
        }
#pragma unroll
        for (int r = 0; r < MATRIX::COLS; ++r) {
            const u32 at = sweep.first_right + 8 * r + own;
            right[r] = __ldg(of_right + (at < sweep.width_right ? at : 0));
        }
    }

    // The value times the elements of other factors.
    __device__ __forceinline__ T scaled() const
    {
        T product = value;
#pragma unroll
        for (int k = 0; k < OTHERS; ++k) product *= others[k];
        return product;
    }

    // An element of the left side's row for a block, times all but that of the right side.
    __device__ __forceinline__ double left_of(int block, T scaled) const
    {
        const T scale = ORDER > 3 ? scaled * scaling[block / MATRIX::ROWS] : scaled;
        return (double)(scale * left[block % MATRIX::ROWS]);
    }
};

// Adds the products of all four nonzeros, or, if not ALL, of those that are `mine` on their lanes. Of the others, both sides are 0 then, because
// infinity times 0 is not 0.
template <bool ALL, class T, int ORDER, class MATRIX, int BLOCKS, int COLS>
__device__ __forceinline__ void add_up(double (&sum)[BLOCKS][COLS][2], const Terms<T, ORDER, MATRIX>& terms, bool mine)
{
    const T scaled = terms.scaled();
    double right[COLS];
#pragma unroll
    for (int r = 0; r < COLS; ++r) right[r] = ALL || mine ? (double)terms.right[r] : 0;
#pragma unroll
    for (int block = 0; block < BLOCKS; block += 2) {
        const double one = ALL || mine ? terms.left_of(block, scaled) : 0;
        if (block + 1 < BLOCKS) {
            const double other = ALL || mine ? terms.left_of(block + 1, scaled) : 0;
#pragma unroll
            for (int r = 0; r < COLS; ++r) add_products(sum[block][r], sum[block + 1 < BLOCKS ? block + 1 : 0][r], one, other, right[r]);
        } else {
#pragma unroll
            for (int r = 0; r < COLS; ++r) add_product(sum[block][r], one, right[r]);
        }
    }
}

// `accumulate` of mttkrp.cuh by products of matrices, four nonzeros at a time. Four that are of different rows are a product for each row, with
// zeros elsewhere. What the next four need is loaded meanwhile.
template <class FACTOR, class T, int ORDER, class SHAPE, class S, int ROWS, int COLS, class DONE>
__device__ __forceinline__ void accumulate(const MatrixSweep<S, ROWS, COLS>& sweep, const Group<T, ORDER, SHAPE, S>& group,
                                           const MttkrpArgs& a, u32 mode, u32 begin, u32 end, const DONE& done)
{
    typedef MatrixSweep<S, ROWS, COLS> Matrix;
    constexpr int BLOCKS = Matrix::SCALING * ROWS;
    double sum[BLOCKS][COLS][2] = {};
    const u32 own = sweep.lane % 4;
    const auto finish = [&](u32 row, bool last) {
        T rounded[S::COLUMNS];
#pragma unroll
        for (int c = 0; c < S::COLUMNS; ++c) rounded[c] = (T)(&sum[0][0][0])[c];
        done(row, rounded, last);
    };
    u32 row = group.index[0][begin];
    Terms<T, ORDER, Matrix> next;
    next.template take_from<FACTOR>(sweep, group, a, mode, begin + own);
#pragma unroll 1
    for (u32 at = begin; at < end; at += 4) {
        const Terms<T, ORDER, Matrix> now = next;
        if (at + 4 < end) next.template take_from<FACTOR>(sweep, group, a, mode, at + 4 + own);
        if (__all_sync(~0u, now.row == row)) {
            add_up<true>(sum, now, true);
            continue;
        }
        u32 from = 0;
        while (true) {
            // As many as follow in this row.
            const u32 others = ~(__ballot_sync(~0u, now.row == row) >> from), run = __ffs(others | 1u << (4 - from)) - 1;
            if (run > 0) add_up<false>(sum, now, own >= from && own < from + run);
            from += run;
            if (from == 4) break;
            finish(row, false);
            row = __shfl_sync(~0u, now.row, from);
#pragma unroll
            for (int c = 0; c < S::COLUMNS; ++c) (&sum[0][0][0])[c] = 0;
        }
    }
    finish(row, true);
}

// A kernel for sorted nonzeros whose warps multiply matrices, of which a multiprocessor holds `threads` threads.
#define MATRICES_OF(name, real, order, rows, cols, scaling, threads)                                                   \
    template <class S, bool> using of_##name = MatrixSweep<S, rows, cols>;                                             \
    extern "C" __global__ void __launch_bounds__(BLCO_SORTED_TILES * BLCO_TILE_THREADS,                                \
                                                 threads / (BLCO_SORTED_TILES * BLCO_TILE_THREADS))                    \
    name(const MttkrpArgs args)                                                                                        \
    {                                                                                                                  \
        typedef Shape<BLCO_SORTED_TILES, BLCO_SORTED_TILES * BLCO_TILE_THREADS> OfBlock;                               \
        mttkrp_sorted<real, order, OfBlock, MatrixLanes<2 * rows * cols * scaling>, 0, real, of_##name>(args);         \
    }
