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

// A warp and its columns, two of each block of 8 x 8 for a lane. It loads what STEPS products of four nonzeros need at a time.
template <int COLUMNS, int STEPS_> struct MatrixLanes : Lanes<32, COLUMNS, 4 * STEPS_> {
    static constexpr int STEPS = STEPS_;
    // Their sums are in f64.
    static constexpr u32 SHARE_MOST = 2 * BLCO_SHARE;
};

// The columns of a Kronecker product of three factors or more in one sweep: ROWS x COLS blocks for each of SCALING consecutive elements of
// the *scaling* factor, the last one before the sides, if there is one. S are its MatrixLanes.
//
// A lane computes the element of one row in each block: an element of the left side times one of the scaling factor. It needs fewer of them if
// the rows of a block have different elements of the scaling factor: PARTS of them, in turn. A lane then has OF_SCALING elements of that factor
// and OF_LEFT of the left side, and each pair of them is its row in one block. They follow one another, but for those of the left side if
// lanes load elements TURNED (`turned`). WHOLE: both numbers divide the ranks of all modes.
template <class S, int ROWS_, int COLS_, bool WHOLE_, bool TURNED_> struct MatrixSweep {
    static constexpr bool WHOLE = WHOLE_, TURNED = TURNED_;
    static constexpr int ROWS = ROWS_, COLS = COLS_, SCALING = S::COLUMNS / (2 * ROWS * COLS);
    static constexpr int PARTS = SCALING >= 4 * ROWS ? 2 : 1, OF_SCALING = SCALING / PARTS, OF_LEFT = ROWS * PARTS, BLOCKS = ROWS * SCALING;
    static_assert(S::LANES == 32 && S::COLUMNS == 2 * ROWS * COLS * SCALING && S::BATCH == 4 * S::STEPS, "a warp multiplies matrices");
    static_assert(SCALING % PARTS == 0 && 8 % PARTS == 0, "each part has as many elements");

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
    // The first column of the product, and how far apart elements are. Those of the right side follow one another.
    u32 first, stride_left, stride_scaling;

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
            // Most often there is one sweep.
            if (number_of == 0) return 0u;
            const u32 all = parts(width, each), own = number_of % all;
            number_of /= all;
            return own * each;
        };
        left = column_of_mode(m.left), right = column_of_mode(m.right);
        width_left = a.widths[m.left], width_right = a.widths[m.right];
        stride_left = a.strides[m.left];
        first_right = next(width_right, 8 * COLS);
        first_left = next(width_left, 8 * ROWS);
        first = first_left * stride_left + first_right;
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

    // Of a lane's row in block b: the elements of the left side and of the scaling factor, behind the sweep's first ones.
    __device__ __forceinline__ u32 left_of(u32 b) const
    {
        const u32 row = lane / 4 / PARTS, element = b % OF_LEFT;
        return TURNED ? 8 / PARTS * element + row : OF_LEFT * row + element;
    }
    __device__ __forceinline__ u32 scaling_of(u32 b) const { return lane / 4 % PARTS * OF_SCALING + b / OF_LEFT; }

    // The column of the product of a lane's number c, behind `first`; ~0 if there is none.
    __device__ __forceinline__ u32 offset(int c) const
    {
        const u32 half = c % 2, col = c / 2 % COLS, block = c / 2 / COLS;
        const u32 l = left_of(block), r = 8 * col + lane % 4 * 2 + half, s = scaling_of(block);
        const bool there = first_left + l < width_left && first_right + r < width_right && first_scaling + s < width_scaling;
        return there ? l * stride_left + r + s * stride_scaling : ~0u;
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
        for (int c = 0; c < S::COLUMNS; c += 2) {
            const u32 at = offset(c);
            const T two[2] = {sum[c], sum[c + 1]};
            if (at == ~0u) continue;
            if (width_right % 2 == 0) put(row + at, two);
            else row[at] = two[0];
            if (width_right % 2 != 0 && offset(c + 1) != ~0u) row[at + 1] = two[1];
        }
    }
};

// What a lane takes of four nonzeros, one of which is its own. Nothing is multiplied before all is needed: that would wait for loads.
template <class T, int ORDER, class MATRIX> struct Terms {
    static constexpr int OTHERS = ORDER > 4 ? ORDER - 4 : 0;

    T value, others[OTHERS > 0 ? OTHERS : 1], scaling[MATRIX::OF_SCALING], left[MATRIX::OF_LEFT], right[MATRIX::COLS];

    // What the lane's row has in each block: all but the right side.
    __device__ __forceinline__ void of_blocks(double (&product)[MATRIX::BLOCKS]) const
    {
        T scaled = value;
#pragma unroll
        for (int k = 0; k < OTHERS; ++k) scaled *= others[k];
#pragma unroll
        for (int b = 0; b < MATRIX::BLOCKS; ++b) {
            const T element = scaled * left[b % MATRIX::OF_LEFT];
            product[b] = (double)(ORDER > 3 ? element * scaling[b / MATRIX::OF_LEFT] : element);
        }
    }
};

// Where a lane finds a factor's rows: the indices of its own nonzeros, every fourth of a group, and the element of row 0 that it takes.
template <class FACTOR> struct Rows {
    const u32* index;
    const FACTOR* element;
    // Bytes of a row.
    u32 bytes;

    // The same place in another row.
    __device__ __forceinline__ const FACTOR* in_row(u32 row, const FACTOR* of_row_0) const
    {
        return (const FACTOR*)((const u8*)of_row_0 + (u64)row * bytes);
    }
    __device__ __forceinline__ const FACTOR* of(u32 nonzero) const { return in_row(index[nonzero], element); }
};

// Lanes of four nonzeros load from the same place of four rows, and so from the same banks of the L1 cache, if rows are as long as lines. So they
// load their N elements, if N is even, in different orders: as number i, lane `lane` loads element turned<N>(i, lane).
template <int N> static __device__ __forceinline__ u32 turned(u32 i, u32 lane)
{
    return N % 2 == 0 ? i ^ lane % N : i;
}

// The elements in their order.
template <class T, int N> static __device__ __forceinline__ void turn_back(T (&x)[N], u32 lane)
{
    static_assert(N % 2 != 0 || (N & (N - 1)) == 0, "numbers of elements stay below N");
#pragma unroll
    for (int bit = 1; bit < N && N % 2 == 0; bit *= 2) {
        const bool turned = lane & bit;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (i & bit) continue;
            const T first = x[i], second = x[i | bit];
            x[i] = turned ? second : first;
            x[i | bit] = turned ? first : second;
        }
    }
}

// Where a lane finds its terms.
template <class FACTOR, class T, int ORDER, class MATRIX> struct Sources {
    typedef Terms<T, ORDER, MATRIX> Own;

    const T* value;
    Rows<FACTOR> left, right, scaling, others[Own::OTHERS > 0 ? Own::OTHERS : 1];
    // The elements of the sides, of the right one and, if TURNED, the left one, in the order in which the lane loads them. Beyond a side it is the
    // first one.
    const FACTOR *of_left[MATRIX::OF_LEFT], *of_cols[MATRIX::COLS];
    // How many elements the factors have from the lane's first ones on. If `whole`, the lane has all of its own, or none.
    u32 left_there, scaling_there;
    bool whole;

    // Of the nonzeros from `begin` on.
    template <class SHAPE, class S>
    __device__ __forceinline__ Sources(const MATRIX& sweep, const Group<T, ORDER, SHAPE, S>& group, const MttkrpArgs& a, u32 mode, u32 begin)
    {
        const u32 own = begin + sweep.lane % 4;
        value = group.value + own;
        const auto rows_of = [&](u32 k, u32 element) {
            const u32 m = KroneckerSweep<S, false>::mode_of(mode, k);
            return Rows<FACTOR>{group.index[k] + own, (const FACTOR*)a.factors[m] + element, (u32)sizeof(FACTOR) * a.widths[m]};
        };
        // A lane whose elements are all beyond the factor takes the first ones.
        const auto from = [](u32 first, u32 behind, u32 width, u32& there) {
            const u32 element = first + behind < width ? first + behind : first;
            there = width - element;
            return element;
        };
        if (MATRIX::TURNED) {
            left = rows_of(sweep.left, sweep.first_left);
            whole = true;
#pragma unroll
            for (int l = 0; l < MATRIX::OF_LEFT; ++l) {
                const u32 behind = sweep.left_of(turned<MATRIX::OF_LEFT>(l, sweep.lane));
                of_left[l] = left.element + (sweep.first_left + behind < sweep.width_left ? behind : 0);
            }
        } else {
            left = rows_of(sweep.left, from(sweep.first_left, sweep.left_of(0), sweep.width_left, left_there));
            whole = MATRIX::WHOLE || sweep.width_left % MATRIX::OF_LEFT == 0;
        }
        right = rows_of(sweep.right, sweep.first_right);
#pragma unroll
        for (int c = 0; c < MATRIX::COLS; ++c) {
            const u32 behind = 8 * (MATRIX::TURNED ? turned<MATRIX::COLS>(c, sweep.lane) : c) + sweep.lane / 4;
            of_cols[c] = right.element + (sweep.first_right + behind < sweep.width_right ? behind : 0);
        }
        if (ORDER > 3) {
            scaling = rows_of(sweep.scaling, from(sweep.first_scaling, sweep.scaling_of(0), sweep.width_scaling, scaling_there));
            whole = MATRIX::WHOLE || (whole && sweep.width_scaling % MATRIX::OF_SCALING == 0);
        }
#pragma unroll
        for (int k = 0; k < Own::OTHERS; ++k) {
            if (ORDER < BLCO_ORDER_MAX || k + 4 < (int)a.order) others[k] = rows_of(sweep.other[k], sweep.number[k]);
            else others[k].bytes = 0;
        }
    }

    template <int N> static __device__ __forceinline__ void take(const FACTOR* from, bool whole, u32 there, T (&x)[N])
    {
        if (whole) {
            take_read_only(from, x);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) x[i] = __ldg(from + (i < (int)there ? i : 0));
        }
    }

    // Of the next nonzeros.
    template <int STEPS> __device__ __forceinline__ void take_next(Own (&terms)[STEPS])
    {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            const int i = 4 * s;
            terms[s].value = value[i];
            const u32 row = right.index[i];
#pragma unroll
            for (int c = 0; c < MATRIX::COLS; ++c) terms[s].right[c] = __ldg(right.in_row(row, of_cols[c]));
            if (MATRIX::TURNED) {
                const u32 row_of_left = left.index[i];
#pragma unroll
                for (int l = 0; l < MATRIX::OF_LEFT; ++l) terms[s].left[l] = __ldg(left.in_row(row_of_left, of_left[l]));
            } else {
                take(left.of(i), whole, left_there, terms[s].left);
            }
            if (ORDER > 3) take(scaling.of(i), whole, scaling_there, terms[s].scaling);
#pragma unroll
            for (int k = 0; k < Own::OTHERS; ++k) {
                const bool is = ORDER < BLCO_ORDER_MAX || others[k].bytes > 0;
                terms[s].others[k] = is ? __ldg(others[k].of(i)) : FACTOR(1);
            }
        }
        constexpr int PAST = 4 * STEPS;
        value += PAST;
        left.index += PAST;
        right.index += PAST;
        if (ORDER > 3) scaling.index += PAST;
#pragma unroll
        for (int k = 0; k < Own::OTHERS; ++k) others[k].index += PAST;
    }
};

// Adds the products of all four nonzeros, or, if not ALL, of those that are `mine` on their lanes. Of the others, both sides are 0 then, because
// infinity times 0 is not 0.
template <bool ALL, class T, int ORDER, class MATRIX, int BLOCKS, int COLS>
__device__ __forceinline__ void add_up(double (&sum)[BLOCKS][COLS][2], const Terms<T, ORDER, MATRIX>& loaded, bool mine)
{
    double left[BLOCKS], right[COLS];
    Terms<T, ORDER, MATRIX> terms = loaded;
    if (MATRIX::TURNED) {
        turn_back(terms.left, threadIdx.x % 32);
        turn_back(terms.right, threadIdx.x % 32);
    }
    terms.of_blocks(left);
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b) left[b] = ALL || mine ? left[b] : 0;
#pragma unroll
    for (int c = 0; c < COLS; ++c) right[c] = ALL || mine ? (double)terms.right[c] : 0;
#pragma unroll
    for (int b = 0; b + 1 < BLOCKS; b += 2) {
#pragma unroll
        for (int c = 0; c < COLS; ++c) add_products(sum[b][c], sum[b + 1][c], left[b], left[b + 1], right[c]);
    }
    if (BLOCKS % 2 == 1) {
#pragma unroll
        for (int c = 0; c < COLS; ++c) add_product(sum[BLOCKS - 1][c], left[BLOCKS - 1], right[c]);
    }
}

// `accumulate` of mttkrp.cuh by products of matrices, four nonzeros at a time. Four that are of different rows are a product for each row, with
// zeros elsewhere. What the next ones need is loaded meanwhile.
template <class FACTOR, class T, int ORDER, class SHAPE, class S, int ROWS, int COLS, bool WHOLE, bool TURNED, class DONE>
__device__ __forceinline__ void accumulate(const MatrixSweep<S, ROWS, COLS, WHOLE, TURNED>& sweep, const Group<T, ORDER, SHAPE, S>& group,
                                           const MttkrpArgs& a, u32 mode, u32 begin, u32 end, const DONE& done)
{
    typedef MatrixSweep<S, ROWS, COLS, WHOLE, TURNED> Matrix;
    constexpr u32 STEPS = S::STEPS, EACH = S::BATCH;
    double sum[Matrix::BLOCKS][COLS][2] = {};
    const u32 own = sweep.lane % 4;
    const auto finish = [&](u32 row, bool last) {
        T rounded[S::COLUMNS];
#pragma unroll
        for (int c = 0; c < S::COLUMNS; ++c) rounded[c] = (T)(&sum[0][0][0])[c];
        done(row, rounded, last);
    };
    Sources<FACTOR, T, ORDER, Matrix> sources(sweep, group, a, mode, begin);
    Terms<T, ORDER, Matrix> next[STEPS];
    sources.take_next(next);
    // Four consecutive nonzeros for each lane: a bit for each that is of another row than the one before, and a bit for each lane that has such.
    u32 rows[4], starts = 0;
    take(group.index[0] + begin + (4 * sweep.lane < end - begin ? 4 * sweep.lane : 0), rows);
    u32 before = __shfl_up_sync(~0u, rows[3], 1), row = __shfl_sync(~0u, rows[0], 0);
    if (sweep.lane == 0) before = row;
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
        if (rows[k] != before) starts |= 1u << k;
        before = rows[k];
    }
    u32 broken = __ballot_sync(~0u, starts != 0), at = 0;
    u32 remaining = (end - begin) / EACH;
#pragma unroll 1
    while (true) {
        Terms<T, ORDER, Matrix> now[STEPS];
#pragma unroll
        for (u32 s = 0; s < STEPS; ++s) now[s] = next[s];
        remaining -= 1;
        if (remaining > 0) sources.take_next(next);
        if ((broken & ((1u << STEPS) - 1)) == 0) {
#pragma unroll
            for (u32 s = 0; s < STEPS; ++s) add_up<true>(sum, now[s], true);
        } else {
            u32 of_these = 0, from = 0;
#pragma unroll
            for (u32 s = 0; s < STEPS; ++s) of_these |= __shfl_sync(~0u, starts, at / 4 + s) << 4 * s;
#pragma unroll 1
            while (true) {
                // As many as follow in this row.
                const u32 to = of_these == 0 ? EACH : __ffs(of_these) - 1;
#pragma unroll
                for (u32 s = 0; s < STEPS; ++s) {
                    if (from < 4 * s + 4 && to > 4 * s) add_up<false>(sum, now[s], 4 * s + own >= from && 4 * s + own < to);
                }
                if (to == EACH) break;
                finish(row, false);
                row = group.index[0][begin + at + to];
#pragma unroll
                for (int c = 0; c < S::COLUMNS; ++c) (&sum[0][0][0])[c] = 0;
                from = to;
                of_these &= of_these - 1;
            }
        }
        if (remaining == 0) break;
        broken >>= STEPS;
        at += EACH;
    }
    finish(row, true);
}

// A kernel for sorted nonzeros whose warps multiply matrices, of which a multiprocessor holds `threads` threads. In f32, fewer loads of two
// elements at a time are mostly faster than turned ones.
#define MATRICES_OF(name, real, order, rows, cols, scaling, threads, steps, whole)                                     \
    template <class S, bool> using of_##name = MatrixSweep<S, rows, cols, whole, sizeof(real) == 8>;                   \
    extern "C" __global__ void __launch_bounds__(BLCO_SORTED_TILES * BLCO_TILE_THREADS,                                \
                                                 threads / (BLCO_SORTED_TILES * BLCO_TILE_THREADS))                    \
    name(const MttkrpArgs args)                                                                                        \
    {                                                                                                                  \
        typedef Shape<BLCO_SORTED_TILES, BLCO_SORTED_TILES * BLCO_TILE_THREADS> OfBlock;                               \
        mttkrp_sorted<real, order, OfBlock, MatrixLanes<2 * rows * cols * scaling, steps>, 0, real, of_##name>(args);  \
    }
