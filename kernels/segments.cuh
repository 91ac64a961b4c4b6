// Reads an image of segments in place (formats-spec/formats.md, layout 4). The segments before each tile are counted
// once behind the copy (`count_segments`; expand.cuh).
#pragma once
#include "tile.cuh"

// How many bits are set up to each. Whole warps make it, each lane from its word, and ask it.
struct Ranks {
    // The lane's word, and the bits in the words before it and up to it.
    u32 word, before, upto;

    __device__ __forceinline__ explicit Ranks(u32 word_) : word(word_)
    {
        upto = sum_upto(__popc(word));
        before = upto - __popc(word);
    }
    // Of the bits up to bit i, i among them.
    __device__ __forceinline__ u32 upto_bit(u32 i) const
    {
        return __shfl_sync(~0u, before, i / 32) + __popc(__shfl_sync(~0u, word, i / 32) << (31 - i % 32));
    }
    __device__ __forceinline__ u32 all() const { return __shfl_sync(~0u, upto, 31); }
};

// The parts that all tiles share.
struct SegmentParts {
    Header h;
    u32 count, tile_record, group_record;
    const u8 *tiles, *groups;
    const u32* flags;

    __device__ __forceinline__ SegmentParts(const Header& h_, u32 product, u32 order) : h(h_)
    {
        const u32 products = __popc(product);
        count = load<u32>(h.first.at);
        tile_record = 16 + 8 * products;
        group_record = 8 + 8 * (order - products);
        tiles = h.first.at + 8;
        groups = tiles + (u64)tile_record * ((h.nnz + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ);
        flags = (const u32*)(groups + (u64)group_record * ((count + BLCO_TILE_NNZ - 1) / BLCO_TILE_NNZ));
    }
    __device__ __forceinline__ SegmentParts(u64 image, u32 product, u32 order)
        : SegmentParts(header((const u8*)image, SECTION_SEGMENTS, SECTION_COLUMNS), product, order)
    {
    }

    __device__ __forceinline__ u32 flag_words() const { return (h.nnz + 31) / 32; }
    // Behind the sections: of each tile of nonzeros, the segments that begin before it.
    __device__ __forceinline__ u32* before() const
    {
        const auto end_of = [](const Section& section) { return (u64)section.at + section.bytes; };
        u64 end = end_of(h.first);
        end = end_of(h.second) > end ? end_of(h.second) : end;
        end = end_of(h.values) > end ? end_of(h.values) : end;
        return (u32*)((end + 3) / 4 * 4);
    }
};

// Tile t of segments.
struct Segments {
    static __device__ Header header_of(const u8* image) { return header(image, SECTION_SEGMENTS, SECTION_COLUMNS); }

    // Segments are in order of their own mode, if they have one.
    static __device__ __forceinline__ bool is_ordered_by(const MttkrpArgs& a, u32 mode)
    {
        return (a.product | 1u << mode) == (1u << a.order) - 1 && (a.product >> mode & 1) == 0;
    }

    template <class T, int ORDER, int PER>
    static __device__ __forceinline__ void decode(u32 (&index)[PER][ORDER], T (&value)[PER], const MttkrpArgs& a, const Header& h,
                                                  u32 t, const Slots& slots, bool& bad)
    {
        constexpr u32 WORDS = BLCO_TILE_NNZ / 32;
        const SegmentParts s(h, a.product, a.order);
        const u32 lane = threadIdx.x % 32, word = t * WORDS + lane;
        const Ranks ranks(lane < WORDS && word < s.flag_words() ? __ldg(s.flags + word) : 0);
        const u32 before = __ldg(s.before() + t);
        const u8* const record = s.tiles + (u64)s.tile_record * t;
        const u32* const words = (const u32*)(h.second.at + 64ull * load<u32>(record));
        // Of each nonzero's segment: the record of its tile, its place there, and where the next column starts.
        const u8* group[PER];
        u32 place[PER], column[PER];
#pragma unroll
        for (int k = 0; k < PER; ++k) {
            const u32 segment = inside(before + ranks.upto_bit(slots(k)) - 1, s.count - 1, bad);
            group[k] = s.groups + (u64)s.group_record * (segment / BLCO_TILE_NNZ);
            place[k] = segment % BLCO_TILE_NNZ;
            column[k] = 0;
        }
        u32 start = 0, product = 0, number = 0;
#pragma unroll
        for (int m = 0; m < ORDER; ++m) {
            if (ORDER == BLCO_ORDER_MAX && m >= (int)a.order) break;
            if (a.product >> m & 1) {
                const u8* const range = record + 16 + 8 * product++;
                const u32 low = load<u32>(range), span = load<u32>(range + 4) - low, width = width_of(span);
#pragma unroll
                for (int k = 0; k < PER; ++k) index[k][m] = low + inside(unpack32(words, width, slots(k), start), span, bad);
                start += 16 * width;
                continue;
            }
#pragma unroll
            for (int k = 0; k < PER; ++k) {
                const u8* const range = group[k] + 8 + 8 * number;
                const u32 low = load<u32>(range), span = load<u32>(range + 4) - low, width = width_of(span);
                const u32* const of_group = (const u32*)(h.second.at + 64ull * load<u32>(group[k]));
                index[k][m] = low + inside(unpack32(of_group, width, place[k], column[k]), span, bad);
                column[k] += 16 * width;
            }
            ++number;
        }
        tile_values(value, h, words, start, record + 4, record + 8, t * BLCO_TILE_NNZ, slots, bad);
    }
};
