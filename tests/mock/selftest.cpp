// Self-test of the mock driver and of the kernels on it:
//
//   selftest VECTORS         all of it; VECTORS is formats-spec/vectors/version-1/valid
//   selftest --speed         tiles per second
//   selftest --case NAME     one fault; aborts, or ends with status 3 if a wrong result shows the fault
//
// The kernels get the images of the stores there, without zstd, as they lie in their files, and are compared with a naive
// loop over the store's text: every kernel, mode and several ranks. Then every fault in `cases` must be caught.
#include "../../kernels/abi.h"
#include <algorithm>
#include <cfloat>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void**, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxSetCurrent(void*);
int cuCtxSynchronize();
int cuMemGetInfo_v2(size_t*, size_t*);
int cuModuleLoadData(void**, const void*);
int cuModuleUnload(void*);
int cuModuleGetFunction(void**, void*, const char*);
int cuStreamCreate(void**, unsigned);
int cuStreamDestroy_v2(void*);
int cuStreamSynchronize(void*);
int cuStreamQuery(void*);
int cuStreamWaitEvent(void*, void*, unsigned);
int cuEventCreate(void**, unsigned);
int cuEventDestroy_v2(void*);
int cuEventRecord(void*, void*);
int cuEventQuery(void*);
int cuEventSynchronize(void*);
int cuEventElapsedTime(float*, void*, void*);
int cuMemAlloc_v2(u64*, size_t);
int cuMemFree_v2(u64);
int cuMemHostAlloc(void**, size_t, unsigned);
int cuMemFreeHost(void*);
int cuMemHostRegister_v2(void*, size_t, unsigned);
int cuMemHostUnregister(void*);
int cuMemcpyHtoDAsync_v2(u64, const void*, size_t, void*);
int cuMemcpyDtoHAsync_v2(void*, u64, size_t, void*);
int cuMemcpyHtoD_v2(u64, const void*, size_t);
int cuMemcpyDtoH_v2(void*, u64, size_t);
int cuMemsetD8Async(u64, unsigned char, size_t, void*);
int cuMemsetD32Async(u64, unsigned, size_t, void*);
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
int cuGetErrorName(int, const char**);
}

using Bytes = std::vector<u8>;

[[noreturn]] static void fail(const std::string& what)
{
    fprintf(stderr, "selftest: %s\n", what.c_str());
    exit(1);
}

static void check(int result, const char* call, int wanted = 0)
{
    if (result == wanted) return;
    const char* name = "?";
    cuGetErrorName(result, &name);
    fail(std::string(call) + ": " + name + ", not " + std::to_string(wanted));
}
#define CU(call) check(call, #call)

// A context, a module and two streams.
struct Device {
    void *context, *module, *first, *second;
    Device()
    {
        CU(cuInit(0));
        CU(cuDevicePrimaryCtxRetain(&context, 0));
        CU(cuCtxSetCurrent(context));
        CU(cuModuleLoadData(&module, ".version"));
        CU(cuStreamCreate(&first, 1));
        CU(cuStreamCreate(&second, 1));
    }
    ~Device()
    {
        cuStreamDestroy_v2(first);
        cuStreamDestroy_v2(second);
        cuModuleUnload(module);
        cuDevicePrimaryCtxRelease_v2(0);
    }
    void launch(const char* name, void* stream, u32 grid, u32 block, std::vector<void*> parameters)
    {
        void* function;
        CU(cuModuleGetFunction(&function, module, name));
        CU(cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, parameters.data(), nullptr));
    }
};

static u64 allocate(size_t bytes)
{
    u64 address;
    CU(cuMemAlloc_v2(&address, bytes));
    return address;
}

template <class T> static u64 upload(const std::vector<T>& data)
{
    const u64 address = allocate(data.size() * sizeof(T));
    CU(cuMemcpyHtoD_v2(address, data.data(), data.size() * sizeof(T)));
    return address;
}

template <class T> static std::vector<T> download(u64 address, size_t count)
{
    std::vector<T> data(count);
    CU(cuMemcpyDtoH_v2(data.data(), address, count * sizeof(T)));
    return data;
}

// ---- The kernels against a naive loop

template <class T> static T number(const Bytes& bytes, size_t at)
{
    T value;
    if (at + sizeof value > bytes.size()) fail("a vector is too short");
    memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

static Bytes contents(const std::string& path)
{
    std::ifstream file(path, std::ios::binary);
    return Bytes(std::istreambuf_iterator<char>(file), {});
}

struct Nonzero {
    u32 index[BLCO_ORDER_MAX];
    double value;
};

struct Store {
    u32 order, encoding, codec;
    u32 dims[BLCO_ORDER_MAX];
    std::vector<u8> bit_modes;
    std::vector<Bytes> images;
    std::vector<Nonzero> nonzeros;
};

static Store open(const std::string& path)
{
    Store store = {};
    const Bytes manifest = contents(path + "/manifest");
    const size_t root = manifest.size() - 104;
    store.encoding = number<u32>(manifest, root + 4);
    store.codec = number<u32>(manifest, root + 8);
    const auto list = [&](size_t field, u32& count) {
        count = number<u32>(manifest, root + field + 4);
        return root + field + number<int>(manifest, root + field);
    };
    u32 bits, chunks;
    const size_t modes = list(80, store.order), bit_modes = list(88, bits);
    list(96, chunks);
    for (u32 m = 0; m < store.order; ++m) store.dims[m] = number<u32>(manifest, modes + 16 * m);
    for (u32 b = 0; b < bits; ++b) store.bit_modes.push_back(number<u8>(manifest, bit_modes + b));
    for (u32 c = 0; store.codec == 0 && c < chunks; ++c) {
        char name[32];
        snprintf(name, sizeof name, "/chunk-%06u.bin", c);
        Bytes image = contents(path + name);
        image.resize(number<u32>(image, 36));
        store.images.push_back(image);
    }
    std::ifstream text(path + ".tns");
    for (std::string line; std::getline(text, line);) {
        std::istringstream words(line);
        Nonzero nonzero;
        for (u32 m = 0; m < store.order; ++m) {
            words >> nonzero.index[m];
            --nonzero.index[m];
        }
        std::string value;
        words >> value;
        nonzero.value = strtod(value.c_str(), nullptr);
        store.nonzeros.push_back(nonzero);
    }
    return store;
}

// Element (i, c) of mode m's factor, in [-1, 1). The matrix is not stored, since dims can be large.
static double factor(u32 mode, u64 i, u32 column)
{
    u64 x = (i * 64 + column) * 8 + mode + 1;
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    return (double)(int)(x >> 40) / (1 << 23) - 1;
}

static u64 blocks_run = 0;

// The tiles of a kernel's thread block, which its name says, and the thread blocks that an image gets.
static u32 tiles_of(const std::string& kernel) { return (u32)(kernel[kernel.rfind("_t") + 2] - '0'); }
static u32 blocks_of(const Bytes& image, u32 tiles)
{
    const u32 nnz = tiles * BLCO_TILE_NNZ;
    return (number<u32>(image, 32) + nnz - 1) / nnz;
}

// MTTKRP of one mode by one kernel, against the naive loop.
template <class T>
static void compare(Device& device, const Store& store, const std::string& kernel, const std::vector<u64>& factors,
                    const std::vector<u64>& images, u32 mode, u32 rank, u32 copies, bool listed)
{
    const u64 elements = (u64)store.dims[mode] * rank;
    MttkrpArgs args = {};
    for (u32 m = 0; m < store.order; ++m) {
        args.factors[m] = m == mode ? 0 : factors[m];
        args.dims[m] = store.dims[m];
    }
    args.order = store.order;
    args.rank = rank;
    args.targets[0].mode = mode;
    args.target_count = 1;
    args.targets[0].copies = copies;
    args.targets[0].sums = allocate(copies * elements * 8);
    args.fault = upload(std::vector<u32>{~0u});
    for (size_t b = 0; b < store.bit_modes.size(); ++b) {
        if (b < 64) ++args.block_bits[store.bit_modes[b]];
        else args.key_modes[args.key_bits++] = store.bit_modes[b];
    }
    CU(cuMemsetD8Async(args.targets[0].sums, 0, copies * elements * 8, device.first));
    // One launch for each chunk, or one for all.
    std::vector<Chunk> chunks;
    const u32 tiles = tiles_of(kernel), threads = tiles * BLCO_TILE_THREADS;
    u32 blocks = 0;
    for (size_t c = 0; c < images.size(); ++c) {
        const u32 of_chunk = blocks_of(store.images[c], tiles);
        args.one = {images[c], 0, (u32)c};
        chunks.push_back({images[c], blocks, (u32)c});
        blocks += of_chunk;
        if (!listed) device.launch(kernel.c_str(), device.first, of_chunk, threads, {&args});
    }
    if (listed) {
        args.chunks = upload(chunks);
        args.chunk_count = (u32)chunks.size();
        device.launch(kernel.c_str(), device.first, blocks, threads, {&args});
    }
    blocks_run += blocks;
    u64 result = allocate(elements * sizeof(T));
    u64 count = elements;
    device.launch(sizeof(T) == 8 ? "finish_f64" : "finish_f32", device.first, 3, 128,
                  {&args.targets[0].sums, &copies, &count, &result});
    CU(cuStreamSynchronize(device.first));
    const auto got = download<T>(result, elements);
    if (download<u32>(args.fault, 1)[0] != ~0u) fail(kernel + ": a fault in a valid store");

    std::vector<double> wanted(elements), absolute(elements);
    for (const auto& nonzero : store.nonzeros) {
        for (u32 c = 0; c < rank; ++c) {
            double product = (T)nonzero.value;
            for (u32 m = 0; m < store.order; ++m) {
                if (m != mode) product *= (T)factor(m, nonzero.index[m], c);
            }
            wanted[(u64)nonzero.index[mode] * rank + c] += product;
            absolute[(u64)nonzero.index[mode] * rank + c] += std::abs(product);
        }
    }
    // The rounding of a chain of additions in T and of the products. Sums in f64 have their own bound.
    const double chain = store.order + 2 + BLCO_SHARE, long_chain = store.order + 2.0 + store.nonzeros.size();
    const double epsilon = sizeof(T) == 8 ? DBL_EPSILON : FLT_EPSILON;
    for (u64 i = 0; i < elements; ++i) {
        const double bound = (epsilon * chain + DBL_EPSILON * long_chain) * absolute[i];
        // Values beyond f32's range cannot be compared.
        if (std::isinf((T)absolute[i])) continue;
        if (!(std::abs(got[i] - wanted[i]) <= bound)) {
            fail(kernel + ", mode " + std::to_string(mode + 1) + ", rank " + std::to_string(rank) + ": element " +
                 std::to_string(i) + " is " + std::to_string(got[i]) + ", not " + std::to_string(wanted[i]));
        }
    }
    for (u64 address : {args.targets[0].sums, args.fault, result}) CU(cuMemFree_v2(address));
    if (listed) CU(cuMemFree_v2(args.chunks));
}

template <class T>
static void compare_all(Device& device, const Store& store, const std::vector<u64>& images, const char* type)
{
    u32 turn = 0;
    for (u32 rank : {1u, 5u, 16u, 33u}) {
        std::vector<u64> factors;
        for (u32 m = 0; m < store.order; ++m) {
            std::vector<T> data((u64)store.dims[m] * rank);
            for (u64 i = 0; i < data.size(); ++i) data[i] = (T)factor(m, i / rank, (u32)(i % rank));
            factors.push_back(upload(data));
        }
        for (u32 order : {3u, 4u, 8u}) {
            if (order != 8 && order != store.order) continue;
            const std::string wide = sizeof(T) == 8 ? "l16c2b2" : "l16c2b4";
            for (const std::string& share : {std::string("l8c1b4"), std::string("l16c1b4"), wide}) {
                const std::string kernel = std::string("mttkrp_") + (store.encoding == 1 ? "raw" : "tiled") + "_" + type +
                                           "_o" + std::to_string(order) + (order == 8 ? "_t2" : "_t4") + share;
                // Not every combination, but several for each kernel.
                const u32 mode = turn++ % store.order;
                compare<T>(device, store, kernel, factors, images, mode, rank, 1 + turn % 3, turn % 2);
            }
        }
        for (u64 address : factors) CU(cuMemFree_v2(address));
    }
}

static void vectors(Device& device, const std::string& directory)
{
    std::vector<std::string> names;
    DIR* listing = opendir(directory.c_str());
    if (!listing) fail(directory + ": cannot be listed");
    while (const dirent* entry = readdir(listing)) {
        const std::string name = entry->d_name;
        if (name.size() > 4 && name.substr(name.size() - 4) == ".tns") names.push_back(name.substr(0, name.size() - 4));
    }
    closedir(listing);
    std::sort(names.begin(), names.end());
    u32 stores = 0;
    for (const auto& name : names) {
        const Store store = open(directory + "/" + name);
        // Trees: no kernel reads them.
        if (store.encoding > 2) continue;
        u64 rows = 0;
        for (u32 m = 0; m < store.order; ++m) rows += store.dims[m];
        // Dense factors of huge modes do not fit in memory; those stores are left out.
        if (store.codec || rows > 300000) continue;
        std::vector<u64> images;
        for (const auto& image : store.images) images.push_back(upload(image));
        compare_all<double>(device, store, images, "f64");
        compare_all<float>(device, store, images, "f32");
        for (u64 address : images) CU(cuMemFree_v2(address));
        ++stores;
    }
    if (stores < 10) fail("only " + std::to_string(stores) + " stores in " + directory);
    printf("selftest: %u stores, %llu tiles agree with the naive loop\n", stores, blocks_run);
}

// ---- The shim and the driver

static const u32 N = 128;

static std::vector<u32> counted(u32 count)
{
    std::vector<u32> in(count);
    for (u32 i = 0; i < count; ++i) in[i] = 1 + i * 7 % 1000;
    return in;
}

static void warps(Device& device)
{
    const auto in = counted(4 * N);
    u64 from = upload(in), to = allocate(in.size() * 4);
    device.launch("sums_of_warps", device.first, 4, N, {&from, &to});
    CU(cuStreamSynchronize(device.first));
    const auto got = download<u32>(to, in.size());
    for (u32 i = 0; i < in.size(); ++i) {
        const u32 warp = i / 32 * 32, block = i / N * N;
        u32 sum = 0, prefix = 0, odd = 0, many = 0, half = 0;
        for (u32 k = warp; k < warp + 32; ++k) {
            sum += in[k];
            odd += in[k] & 1;
            if (k <= i) prefix += in[k];
            if (k <= warp + (i % 32 < 16 ? 15 : 31)) half += in[k];
        }
        for (u32 k = block; k < block + N; ++k) many += in[k] & 1;
        const u32 next = in[i % 32 == 31 ? i : i + 1];
        const u32 wanted = sum + 3 * prefix + 5 * odd + 7 * in[warp] + 11 * next + 13 * half + 17 * many;
        if (got[i] != wanted) fail("warp intrinsics: thread " + std::to_string(i));
    }
    device.launch("turned", device.first, 1, N, {&from, &to});
    CU(cuStreamSynchronize(device.first));
    const auto turned = download<u32>(to, N);
    for (u32 i = 0; i < N; ++i) {
        if (turned[i] != in[N - 1 - i]) fail("shared memory: thread " + std::to_string(i));
    }
    CU(cuMemFree_v2(from));
    CU(cuMemFree_v2(to));
}

static void calls(Device& device)
{
    size_t free = 0, total = 0, left = 0;
    CU(cuMemGetInfo_v2(&free, &total));
    u64 address = 0;
    check(cuMemAlloc_v2(&address, total + 1), "more memory than there is", 2);
    check(cuMemAlloc_v2(&address, 0), "no memory", 1);
    address = allocate(1000);
    CU(cuMemGetInfo_v2(&left, &total));
    if (free - left < 1000) fail("memory is not counted");
    for (u8 byte : download<u8>(address, 1000)) {
        if (byte != 0x7f && byte != 0xf7) fail("memory is not poisoned");
    }
    void* function;
    check(cuModuleGetFunction(&function, device.module, "nothing"), "a kernel that is not there", 500);
    check(cuMemcpyHtoD_v2(address, &free, 1001), "a copy past the end", 1);

    void *start, *end, *untimed;
    CU(cuEventCreate(&start, 0));
    CU(cuEventCreate(&end, 0));
    CU(cuEventCreate(&untimed, 2));
    CU(cuEventQuery(start));
    float ms = -1;
    check(cuEventElapsedTime(&ms, start, end), "time of events without a record", 400);
    CU(cuEventRecord(start, device.first));
    CU(cuMemsetD32Async(address, 77, 250, device.first));
    CU(cuEventRecord(end, device.first));
    CU(cuStreamWaitEvent(device.second, end, 0));
    CU(cuEventRecord(untimed, device.second));
    CU(cuEventSynchronize(untimed));
    CU(cuEventElapsedTime(&ms, start, end));
    check(cuEventElapsedTime(&ms, start, untimed), "time of an event without", 400);
    if (!(ms >= 0)) fail("a time");
    if (download<u32>(address, 250) != std::vector<u32>(250, 77)) fail("memset");
    CU(cuCtxSynchronize());
    for (void* event : {start, end, untimed}) CU(cuEventDestroy_v2(event));
    CU(cuMemFree_v2(address));

    std::vector<u8> page(8192);
    CU(cuMemHostRegister_v2(page.data(), page.size(), 0));
    check(cuMemHostRegister_v2(page.data() + 100, 8, 0), "registered twice", 712);
    CU(cuMemHostUnregister(page.data()));
    check(cuMemHostUnregister(page.data()), "not registered", 713);
    CU(cuCtxSetCurrent(nullptr));
    check(cuMemAlloc_v2(&address, 8), "no context", 201);
    check(cuStreamSynchronize(device.first), "no context", 201);
    CU(cuCtxSetCurrent(device.context));
}

// ---- Faults

// A kernel of broken.cpp on N numbers; status 3 if the result is not `in` reversed.
static void broken(const char* kernel)
{
    Device device;
    const auto in = counted(N);
    u64 from = upload(in), to = allocate(N * 4);
    device.launch(kernel, device.first, 1, N, {&from, &to});
    CU(cuStreamSynchronize(device.first));
    const auto got = download<u32>(to, N);
    CU(cuMemFree_v2(from));
    CU(cuMemFree_v2(to));
    for (u32 i = 0; i < N; ++i) {
        if (got[i] != in[N - 1 - i]) exit(3);
    }
}

static const size_t MANY = 1 << 18;

// Copies numbers to the device in one stream and adds them to themselves in another, several times.
static void streams(bool wait, bool reuse)
{
    Device device;
    void *host, *copied, *event_of_kernel;
    CU(cuMemHostAlloc(&host, MANY * 8, 0));
    CU(cuEventCreate(&copied, 2));
    CU(cuEventCreate(&event_of_kernel, 2));
    double* numbers = (double*)host;
    u64 from = allocate(MANY * 8), to = allocate(MANY * 8), count = MANY;
    u32 copies = 1;
    int status = 0;
    for (int round = 1; round <= 20; ++round) {
        std::fill(numbers, numbers + MANY, round);
        CU(cuMemcpyHtoDAsync_v2(from, host, MANY * 8, device.first));
        CU(cuEventRecord(copied, device.first));
        if (reuse) std::fill(numbers, numbers + MANY, -1);
        if (wait) CU(cuStreamWaitEvent(device.second, copied, 0));
        device.launch("finish_f64", device.second, 2, 128, {&from, &copies, &count, &to});
        CU(cuEventRecord(event_of_kernel, device.second));
        CU(cuStreamSynchronize(device.second));
        CU(cuStreamSynchronize(device.first));
        for (double x : download<double>(to, MANY)) {
            if (x != round) status = 3;
        }
    }
    if (status) exit(status);
    for (void* event : {copied, event_of_kernel}) CU(cuEventDestroy_v2(event));
    CU(cuMemFree_v2(from));
    CU(cuMemFree_v2(to));
    CU(cuMemFreeHost(host));
}

// Does `misuse` while a copy is queued behind another.
static void while_queued(const std::function<void(Device&, void*, u64, void*)>& misuse)
{
    Device device;
    void *host, *event;
    CU(cuMemHostAlloc(&host, MANY * 8, 0));
    CU(cuEventCreate(&event, 2));
    const u64 to = allocate(MANY * 8);
    for (int i = 0; i < 8; ++i) CU(cuMemcpyHtoDAsync_v2(to, host, MANY * 8, device.first));
    CU(cuEventRecord(event, device.first));
    misuse(device, host, to, event);
}

// A factor that is a row short.
static void short_factor()
{
    Device device;
    Store store = {};
    // One nonzero of 2 x 2 in raw form: the last of both modes.
    Bytes image(128 + 128 * 3, 0);
    const auto put = [&](size_t at, auto value) { memcpy(image.data() + at, &value, sizeof value); };
    put(8, 1u);
    put(32, 1u);
    image[46] = 3;
    const u32 table[3][3] = {{2, 128, 16}, {3, 256, 8}, {6, 384, 8}};
    for (int s = 0; s < 3; ++s) {
        for (int f = 0; f < 3; ++f) put(56 + 16 * s + 4 * f, table[s][f]);
    }
    put(256, (u64)3);
    put(384, 1.0);
    const u64 at = upload(image);
    MttkrpArgs args = {};
    args.order = 2;
    args.rank = 16;
    args.target_count = 1;
    args.targets[0].copies = 1;
    args.dims[0] = args.dims[1] = 2;
    args.block_bits[0] = args.block_bits[1] = 1;
    args.one.image = at;
    args.factors[1] = upload(std::vector<double>(16, 1.0));
    args.targets[0].sums = upload(std::vector<double>(32, 0.0));
    args.fault = upload(std::vector<u32>{~0u});
    device.launch("mttkrp_raw_f64_o8_t2l16c1b4", device.first, 1, 2 * BLCO_TILE_THREADS, {&args});
    CU(cuStreamSynchronize(device.first));
}

struct Case {
    const char* name;
    // Part of the message, or empty if a wrong result shows the fault.
    const char* message;
    std::function<void()> run;
};

static std::vector<Case> cases()
{
    std::vector<Case> all = {
        {"no_barrier", "", [] { broken("no_barrier"); }},
        {"two_barriers", "divergent", [] { broken("two_barriers"); }},
        {"barrier_of_some", "has ended", [] { broken("barrier_of_some"); }},
        {"mask_excludes_caller", "which excludes it", [] { broken("mask_excludes_caller"); }},
        {"mask_names_absent", "which has ended", [] { broken("mask_names_absent"); }},
        {"mask_excludes_source", "reads lane 20", [] { broken("mask_excludes_source"); }},
        {"reads_outside", "outside of device memory", [] { broken("reads_outside"); }},
        {"loads_outside", "outside of device memory", [] { broken("loads_outside"); }},
        {"loads_shared", "outside of device memory", [] { broken("loads_shared"); }},
        {"adds_outside", "outside of device memory", [] { broken("adds_outside"); }},
        {"misaligned", "misaligned", [] { broken("misaligned"); }},
        {"outside_of_shared", "outside of an array", [] { broken("outside_of_shared"); }},
        {"short_factor", "mttkrp_raw_f64_o8_t2l16c1b4, block 0", short_factor},
        {"no_wait", "", [] { streams(false, false); }},
        {"host_buffer_reused", "", [] { streams(true, true); }},
    };
    all.push_back({"writes_past", "wrote outside of an allocation", [] {
        Device device;
        u64 from = upload(counted(N)), to = allocate(N * 4 - 4);
        device.launch("turned", device.first, 1, N, {&from, &to});
        CU(cuStreamSynchronize(device.first));
        CU(cuMemFree_v2(to));
    }});
    all.push_back({"pageable", "pageable async copy", [] {
        Device device;
        std::vector<u8> host(100);
        CU(cuMemcpyHtoDAsync_v2(allocate(100), host.data(), 100, device.first));
    }});
    all.push_back({"unregistered_end", "pageable async copy", [] {
        Device device;
        std::vector<u8> host(100);
        CU(cuMemHostRegister_v2(host.data(), 99, 0));
        CU(cuMemcpyHtoDAsync_v2(allocate(100), host.data(), 100, device.first));
    }});
    all.push_back({"free_in_use", "cuMemFree_v2: queued work", [] {
        while_queued([](Device&, void*, u64 to, void*) { cuMemFree_v2(to); });
    }});
    all.push_back({"free_in_kernel", "cuMemFree_v2: queued work", [] {
        while_queued([](Device& device, void*, u64 to, void*) {
            u64 result = allocate(8), one = 1;
            u32 copies = 1;
            device.launch("finish_f64", device.first, 1, 32, {&to, &copies, &one, &result});
            cuMemFree_v2(result);
        });
    }});
    all.push_back({"host_in_use", "cuMemFreeHost: queued work", [] {
        while_queued([](Device&, void* host, u64, void*) { cuMemFreeHost(host); });
    }});
    all.push_back({"stream_in_use", "cuStreamDestroy_v2: work is queued", [] {
        while_queued([](Device& device, void*, u64, void*) { cuStreamDestroy_v2(device.first); });
    }});
    all.push_back({"event_in_use", "cuEventDestroy_v2: queued work", [] {
        while_queued([](Device&, void*, u64, void* event) { cuEventDestroy_v2(event); });
    }});
    all.push_back({"default_stream", "default stream", [] {
        Device device;
        cuMemsetD8Async(allocate(8), 0, 8, nullptr);
    }});
    all.push_back({"freed_twice", "is not allocated", [] {
        Device device;
        const u64 address = allocate(8);
        CU(cuMemFree_v2(address));
        cuMemFree_v2(address);
    }});
    all.push_back({"freed_memory", "outside of device memory", [] {
        Device device;
        u64 from = upload(counted(N)), to = allocate(N * 4);
        CU(cuMemFree_v2(from));
        device.launch("turned", device.first, 1, N, {&from, &to});
        cuStreamSynchronize(device.first);
    }});
    return all;
}

// Runs a program with one argument pair; its standard error, and how it ended.
static int child(const char* self, const char* option, const char* name, std::string& text)
{
    int pipes[2];
    if (pipe(pipes)) fail("pipe");
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(pipes[1], 2);
        close(pipes[0]);
        execl(self, self, option, name, (char*)nullptr);
        _exit(99);
    }
    close(pipes[1]);
    char buffer[4096];
    ssize_t count;
    while ((count = read(pipes[0], buffer, sizeof buffer)) > 0) text.append(buffer, (size_t)count);
    close(pipes[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    return status;
}

static void faults(const char* self)
{
    for (const auto& one : cases()) {
        std::string text;
        const int status = child(self, "--case", one.name, text);
        const bool aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
        const bool seen = WIFEXITED(status) && WEXITSTATUS(status) == 3;
        const bool caught = *one.message ? aborted && text.find(one.message) != std::string::npos : seen;
        if (!caught) fail(std::string(one.name) + " is not caught: status " + std::to_string(status) + ", " + text);
    }
    // Correct kernels must pass.
    std::string text;
    if (child(self, "--case", "sound", text)) fail("sound streams: " + text);
    printf("selftest: %zu faults caught\n", cases().size());
}

// A failing call: that call and all later ones fail except releases, and queued work is dropped.
static void failing()
{
    void *context, *stream, *other;
    setenv("BLCO_MOCK_FAIL", "8", 1);
    setenv("BLCO_MOCK_ERROR", "719", 1);
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    CU(cuStreamCreate(&stream, 1));
    const u64 memory = allocate(MANY * 8);
    void* host;
    CU(cuMemHostAlloc(&host, MANY * 8, 0));
    CU(cuMemcpyHtoDAsync_v2(memory, host, MANY * 8, stream));
    check(cuStreamCreate(&other, 1), "the call that fails", 719);
    check(cuStreamSynchronize(stream), "a later call", 719);
    CU(cuMemFreeHost(host));
    CU(cuMemFree_v2(memory));
    CU(cuStreamDestroy_v2(stream));
    CU(cuDevicePrimaryCtxRelease_v2(0));
}

// Only allocations fail, and only once.
static void out_of_memory()
{
    setenv("BLCO_MOCK_FAIL", "2", 1);
    setenv("BLCO_MOCK_ERROR", "2", 1);
    Device device;
    u64 address;
    void* host;
    CU(cuMemAlloc_v2(&address, 8));
    check(cuMemHostAlloc(&host, 8, 0), "the allocation that fails", 2);
    CU(cuMemHostAlloc(&host, 8, 0));
    CU(cuMemFreeHost(host));
    CU(cuMemFree_v2(address));
}

// Tiles per second of a kernel on one stream, for a chunk of integers whose tiles need sorting.
static void speed(const std::string& directory)
{
    Device device;
    const Store store = open(directory + "/cut-nonzeros");
    if (store.images.empty()) fail("no store to measure with");
    std::vector<u64> images, factors;
    for (const auto& image : store.images) images.push_back(upload(image));
    const u32 rank = 16;
    for (u32 m = 0; m < store.order; ++m) factors.push_back(upload(std::vector<double>((u64)store.dims[m] * rank, 0.5)));
    for (u32 mode = 0; mode < store.order; ++mode) {
        const std::string kernel = std::string("mttkrp_") + (store.encoding == 1 ? "raw" : "tiled") + "_f64_o8_t2l16c1b4";
        MttkrpArgs args = {};
        for (u32 m = 0; m < store.order; ++m) {
            args.factors[m] = factors[m];
            args.dims[m] = store.dims[m];
        }
        args.order = store.order;
        args.rank = rank;
        args.targets[0].mode = mode;
        args.target_count = 1;
        args.targets[0].copies = 1;
        args.targets[0].sums = upload(std::vector<double>((u64)store.dims[mode] * rank, 0.0));
        args.fault = upload(std::vector<u32>{~0u});
        args.one.image = images[0];
        const u32 tiles = tiles_of(kernel), blocks = blocks_of(store.images[0], tiles);
        const auto start = std::chrono::steady_clock::now();
        const u32 launches = 2000 / blocks + 1;
        for (u32 i = 0; i < launches; ++i) {
            device.launch(kernel.c_str(), device.first, blocks, tiles * BLCO_TILE_THREADS, {&args});
        }
        CU(cuStreamSynchronize(device.first));
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        printf("mode %u, order %u, %u thread blocks of %u tiles a launch: %.0f tiles/s\n", mode + 1, store.order, blocks, tiles,
               launches * blocks * tiles / seconds);
    }
}

int main(int argc, char** argv)
{
    if (argc == 3 && !strcmp(argv[1], "--case")) {
        setenv("BLCO_MOCK_SLOW", "300", 1);
        const std::string name = argv[2];
        if (name == "sound") streams(true, false);
        if (name == "failing") failing();
        if (name == "out_of_memory") out_of_memory();
        for (const auto& one : cases()) {
            if (name == one.name) one.run();
        }
        return 0;
    }
    if (argc == 3 && !strcmp(argv[1], "--speed")) {
        speed(argv[2]);
        return 0;
    }
    if (argc != 2) fail("selftest VECTORS | --speed VECTORS | --case NAME");
    {
        Device device;
        warps(device);
        calls(device);
        vectors(device, argv[1]);
    }
    faults(argv[0]);
    for (const char* name : {"failing", "out_of_memory"}) {
        std::string text;
        if (child(argv[0], "--case", name, text)) fail(std::string(name) + ": " + text);
    }
    printf("selftest: ok\n");
    return 0;
}
