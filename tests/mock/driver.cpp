// A libcuda.so.1 without a GPU: the driver functions that the engine calls, kernels on the CPU (cuda_cpu.h).
//
// Streams are threads that wait at random before each operation and between the halves of a copy. Device memory is host memory
// between guard pages. It is poisoned when it is allocated and never mapped again once it is freed. Asynchronous copies
// read and write host memory when they run. Where a real driver's behavior is undefined, the process ends with
// a line on stderr: asynchronous copies of pageable memory, freeing or destroying something that queued work uses, handles
// that do not exist.
//
//   BLCO_MOCK_FAIL=K     the K-th call fails, counted from 1, and every later call except frees and destroys
//   BLCO_MOCK_ERROR=N    the error [default: 700]. With 2 (out of memory) only the K-th allocation fails, with 701 (out of resources)
//                        only the K-th launch
//   BLCO_MOCK_MEMORY=N   bytes of device memory [default: 2^30]; a list with commas gives one for each device, the last for all others
//   BLCO_MOCK_SEED=N     seed of the delays
//   BLCO_MOCK_SLOW=US    mean delay in microseconds [default: 20]; may be a list too
//   BLCO_MOCK_DEVICES=N  number of devices [default: 1], at most 8, each with its own context, streams and memory; only copies
//                        between devices may access another device's memory
//   BLCO_MOCK_FAIL_DEVICE=D  counts and fails only calls made while this device's context is current
//   BLCO_MOCK_HANG=K     streams stop working at the K-th launch (of BLCO_MOCK_FAIL_DEVICE, if it is set)
//   BLCO_MOCK_PEERS=0    devices cannot access each other's memory
//   BLCO_MOCK_LOG=FILE   appends a line when the process ends: the calls made, and what is still allocated
#include "cuda_cpu.h"
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <sys/mman.h>
#include <thread>

using u32 = uint32_t;
using u64 = uint64_t;
using Clock = std::chrono::steady_clock;
using mock::Range;
using mock::fault;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
};

namespace {

u64 setting(const char* name, u64 otherwise)
{
    const char* text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 0) : otherwise;
}

const u64 DEVICES_MAX = 8;

// The number for a device in a list.
u64 setting_of(const char* name, u64 device, u64 otherwise)
{
    const char* text = getenv(name);
    if (!text || !*text) return otherwise;
    for (; device > 0; --device) {
        const char* comma = strchr(text, ',');
        if (!comma) break;
        text = comma + 1;
    }
    return strtoull(text, nullptr, 0);
}

struct Event {
    int device = 0;
    u64 recorded = 0, done = 0;
    bool timed = false;
    Clock::time_point at;
};

// Work in a stream, and the memory that it is known to use.
struct Operation {
    std::function<void()> work;
    std::vector<Range> device, host;
    std::shared_ptr<Event> record, wait;
    u64 number = 0;
    const void* module = nullptr;
};

struct Stream {
    std::deque<Operation> queue;   // the first one is at work
    bool running = false, stop = false, blocking = false;
    int device = 0;
    std::mt19937_64 random;
    std::thread thread;
};

// Device memory: `begin` to `end` was asked for, `mapped` lies between guard pages.
struct Allocation {
    Range range, mapped, guarded;
    int device = 0;
};

struct Module {
    int device = 0;
    std::set<std::unique_ptr<const mock::Kernel*>> functions;
};

// The driver's whole state, under one lock. One condition variable signals every change.
struct Driver {
    std::mutex mutex;
    std::condition_variable changed;
    const u64 fail = setting("BLCO_MOCK_FAIL", 0), error = setting("BLCO_MOCK_ERROR", ILLEGAL_ADDRESS);
    const u64 hang = setting("BLCO_MOCK_HANG", 0);
    const u64 seed = setting("BLCO_MOCK_SEED", 1);
    const u64 devices = std::min(setting("BLCO_MOCK_DEVICES", 1), DEVICES_MAX);
    const u64 fail_device = setting("BLCO_MOCK_FAIL_DEVICE", DEVICES_MAX), peers = setting("BLCO_MOCK_PEERS", 1);
    u64 capacity[DEVICES_MAX], slow[DEVICES_MAX], bytes_of[DEVICES_MAX] = {};
    bool initialized = false, reaches[DEVICES_MAX][DEVICES_MAX] = {};
    volatile bool dead[DEVICES_MAX] = {};
    Driver()
    {
        for (u64 device = 0; device < DEVICES_MAX; ++device) {
            capacity[device] = setting_of("BLCO_MOCK_MEMORY", device, 1u << 30);
            slow[device] = setting_of("BLCO_MOCK_SLOW", device, 20);
        }
    }
    u64 calls = 0, allocations = 0, launches_asked = 0, streams_made = 0, device_bytes = 0, peak = 0;
    u64 pinned_bytes = 0, registered_bytes = 0;
    std::atomic<u64> blocks{0}, kernel_us{0}, launches{0}, copied{0};
    std::string failed = "-";
    int contexts = 0;
    std::map<u64, Allocation> memory;
    std::map<u64, Range> pinned, registered;
    std::map<void*, std::shared_ptr<Stream>> streams;
    std::map<void*, std::shared_ptr<Event>> events;
    std::map<void*, std::unique_ptr<Module>> modules;
};

void write_log();

// The driver. It writes its log line when the process that called it ends.
Driver& driver()
{
    static Driver& one = [&]() -> Driver& {
        atexit(write_log);
        mock::watch();
        return *new Driver;
    }();
    return one;
}

// The context of each thread is a number, not a pointer: 0 for none. It is not zero-initialized, see mock::Here.
__thread u64 current_plus_one = 1;

// A context is the address of its device's.
char context_markers[DEVICES_MAX];

// The device whose context is current on this thread; DEVICES_MAX for none.
u64 current_device()
{
    return current_plus_one == 1 ? DEVICES_MAX : (u64)((const char*)(current_plus_one - 1) - context_markers);
}

// Whether all further calls fail: those of the current device, or, without a current device, those of any.
bool is_dead(const Driver& d, u64 device)
{
    if (device < DEVICES_MAX) return d.dead[device];
    bool all = true;
    for (u64 i = 0; i < std::max<u64>(d.devices, 1); ++i) all = all && d.dead[i];
    return all;
}

enum Kind { PLAIN, NO_CONTEXT, ALLOCATES, LAUNCHES, RELEASES };

// Entry into a driver function: counts the call and decides whether it fails. Holds the lock.
struct Call {
    std::unique_lock<std::mutex> lock;
    int error = SUCCESS;
    // A release that fails still releases.
    bool release = true;

    Call(const char* name, Kind kind) : lock(driver().mutex)
    {
        Driver& d = driver();
        const u64 device = current_device();
        const bool counts = d.fail_device == DEVICES_MAX || d.fail_device == device;
        d.calls += counts;
        if (kind == ALLOCATES) d.allocations += counts;
        if (kind == LAUNCHES) d.launches_asked += counts;
        const bool memory_only = d.error == OUT_OF_MEMORY, launch_only = d.error == LAUNCH_OUT_OF_RESOURCES;
        const bool fails = memory_only ? kind == ALLOCATES && d.allocations == d.fail
            : launch_only              ? kind == LAUNCHES && d.launches_asked == d.fail
                                       : d.calls == d.fail;
        if (d.fail && counts && fails) {
            d.failed = name;
            error = (int)d.error;
            if (!memory_only && !launch_only) die(device);
        } else if (is_dead(d, device) && kind != RELEASES) {
            error = (int)d.error;
        } else if (kind != NO_CONTEXT && !d.initialized) {
            error = NOT_INITIALIZED;
            release = false;
        } else if (kind != NO_CONTEXT && current_plus_one == 1) {
            error = INVALID_CONTEXT;
            release = false;
        }
    }

    // Queued work is dropped; work that is running is finished.
    void die(u64 device)
    {
        Driver& d = driver();
        for (u64 i = 0; i < DEVICES_MAX; ++i) d.dead[i] = d.dead[i] || device == DEVICES_MAX || device == i;
        d.changed.notify_all();
        wait([&] {
            for (auto& [handle, stream] : d.streams) {
                if (stream->running && d.dead[stream->device]) return false;
            }
            return true;
        });
    }

    template <class F> void wait(F until) { driver().changed.wait(lock, until); }
};

#define ENTER(kind)                                                                                                    \
    Call call(__func__, kind);                                                                                         \
    Driver& d = driver();                                                                                              \
    (void)d;                                                                                                           \
    if (call.error) return call.error
#define ENTER_RELEASE                                                                                                  \
    Call call(__func__, RELEASES);                                                                                     \
    Driver& d = driver();                                                                                              \
    if (!call.release) return call.error

bool overlap(const Range& a, const Range& b)
{
    return a.begin < b.end && b.begin < a.end;
}

// The device allocation that holds all of `range`.
const Allocation* holding(u64 begin, u64 bytes)
{
    auto& memory = driver().memory;
    auto after = memory.upper_bound(begin);
    if (after == memory.begin()) return nullptr;
    const Allocation& found = std::prev(after)->second;
    return begin + bytes <= found.range.end ? &found : nullptr;
}

bool holds(const std::map<u64, Range>& ranges, const Range& range)
{
    auto after = ranges.upper_bound(range.begin);
    return after != ranges.begin() && range.end <= std::prev(after)->second.end;
}

// Ends the process if queued work uses memory that is about to be freed.
void not_in_use(const char* function, const Range& range, std::vector<Range> Operation::* which)
{
    for (auto& [handle, stream] : driver().streams) {
        if (driver().dead[stream->device]) continue;
        for (auto& operation : stream->queue) {
            for (auto& used : operation.*which) {
                if (overlap(used, range)) fault("%s: queued work uses the memory", function);
            }
        }
    }
}

// Whether the current device is alive and the work that is asked about is not done.
template <class F> bool is_busy(F asked)
{
    std::lock_guard<std::mutex> lock(driver().mutex);
    return driver().initialized && current_plus_one != 1 && !is_dead(driver(), current_device()) && asked();
}

std::shared_ptr<Stream> stream_of(const char* function, void* handle)
{
    if (!handle) fault("%s: on the default stream, which orders all others", function);
    auto found = driver().streams.find(handle);
    if (found == driver().streams.end()) fault("%s: no such stream", function);
    return found->second;
}

std::shared_ptr<Event> event_of(const char* function, void* handle)
{
    auto found = driver().events.find(handle);
    if (found == driver().events.end()) fault("%s: no such event", function);
    return found->second;
}

// Usually no delay, sometimes a long one; `slow` on average.
void delay(Stream& stream)
{
    const u64 bits = stream.random(), mean = driver().slow[stream.device];
    if (mean == 0 || bits % 8 < 5) return;
    const u64 most = bits % 8 < 7 ? 2 * mean : 12 * mean;
    std::this_thread::sleep_for(std::chrono::microseconds((bits >> 8) % (most + 1)));
}

void serve(Stream& stream)
{
    Driver& d = driver();
    std::unique_lock<std::mutex> lock(d.mutex);
    for (;;) {
        d.changed.wait(lock, [&] { return stream.stop || !stream.queue.empty(); });
        if (stream.queue.empty()) break;
        Operation& operation = stream.queue.front();
        lock.unlock();
        delay(stream);
        lock.lock();
        if (operation.wait) {
            // A dead device never finishes its work.
            d.changed.wait(lock, [&] {
                return d.dead[stream.device] || d.dead[operation.wait->device] || operation.wait->done >= operation.number;
            });
        } else if (operation.record && !d.dead[stream.device]) {
            operation.record->done = std::max(operation.record->done, operation.number);
            operation.record->at = Clock::now();
        } else if (operation.work && !d.dead[stream.device]) {
            if (d.hang && d.launches_asked >= d.hang && (d.fail_device == DEVICES_MAX || d.fail_device == (u64)stream.device)) {
                d.changed.wait(lock, [] { return false; });
            }
            stream.running = true;
            lock.unlock();
            operation.work();
            lock.lock();
            stream.running = false;
        }
        stream.queue.pop_front();
        d.changed.notify_all();
    }
    lock.unlock();
    mock::end_thread();
}

void push(const std::shared_ptr<Stream>& stream, Operation operation)
{
    stream->queue.push_back(std::move(operation));
    driver().changed.notify_all();
}

void poison(void* at, u64 bytes)
{
    const uint16_t pattern = 0x7ff7;
    char* to = (char*)at;
    for (u64 i = 0; i + 1 < bytes; i += 2) memcpy(to + i, &pattern, 2);
    if (bytes % 2) to[bytes - 1] = 0x7f;
}

// The destination is undefined until the copy is complete, and the source must not change until then.
void slow_copy(Stream& stream, void* to, const void* from, u64 bytes)
{
    mock::here.kernel = "a copy";
    poison(to, bytes);
    delay(stream);
    memcpy(to, from, bytes / 2);
    delay(stream);
    memcpy((char*)to + bytes / 2, (const char*)from + bytes / 2, bytes - bytes / 2);
    mock::here.kernel = nullptr;
    driver().copied += bytes;
}

const char* name_of(int error)
{
    switch (error) {
    case SUCCESS: return "CUDA_SUCCESS";
    case INVALID_VALUE: return "CUDA_ERROR_INVALID_VALUE";
    case OUT_OF_MEMORY: return "CUDA_ERROR_OUT_OF_MEMORY";
    case NOT_INITIALIZED: return "CUDA_ERROR_NOT_INITIALIZED";
    case NO_DEVICE: return "CUDA_ERROR_NO_DEVICE";
    case INVALID_DEVICE: return "CUDA_ERROR_INVALID_DEVICE";
    case INVALID_CONTEXT: return "CUDA_ERROR_INVALID_CONTEXT";
    case NO_BINARY_FOR_GPU: return "CUDA_ERROR_NO_BINARY_FOR_GPU";
    case INVALID_HANDLE: return "CUDA_ERROR_INVALID_HANDLE";
    case NOT_FOUND: return "CUDA_ERROR_NOT_FOUND";
    case NOT_READY: return "CUDA_ERROR_NOT_READY";
    case ILLEGAL_ADDRESS: return "CUDA_ERROR_ILLEGAL_ADDRESS";
    case LAUNCH_OUT_OF_RESOURCES: return "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
    case ALREADY_REGISTERED: return "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED";
    case NOT_REGISTERED: return "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED";
    case 719: return "CUDA_ERROR_LAUNCH_FAILED";
    default: return nullptr;
    }
}

void write_log()
{
    Driver& d = driver();
    const char* path = getenv("BLCO_MOCK_LOG");
    if (!path || !*path) return;
    std::lock_guard<std::mutex> lock(d.mutex);
    FILE* file = fopen(path, "a");
    if (!file) return;
    fprintf(file,
            "calls=%llu allocations=%llu failed=%s device_bytes=%llu pinned_bytes=%llu registered_bytes=%llu streams=%zu "
            "events=%zu modules=%zu contexts=%d peak_bytes=%llu copied_bytes=%llu launches=%llu blocks=%llu "
            "kernel_us=%llu\n",
            (unsigned long long)d.calls, (unsigned long long)d.allocations, d.failed.c_str(),
            (unsigned long long)d.device_bytes, (unsigned long long)d.pinned_bytes,
            (unsigned long long)d.registered_bytes, d.streams.size(), d.events.size(), d.modules.size(), d.contexts,
            (unsigned long long)d.peak, (unsigned long long)d.copied, (unsigned long long)d.launches,
            (unsigned long long)d.blocks, (unsigned long long)d.kernel_us);
    fclose(file);
}

// Address space between guard pages. The last bytes are handed out, starting at a multiple of 256.
Allocation map_device(u64 bytes)
{
    const u64 guard = 64 << 10, page = 4096, whole = (bytes + 255) / 256 * 256;
    const u64 data = (whole + page - 1) / page * page;
    char* at = (char*)mmap(nullptr, data + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || mprotect(at + guard, data, PROT_READ | PROT_WRITE)) fault("no memory for device memory");
    const u64 low = (u64)at + guard, begin = low + data - whole;
    poison((void*)low, data);
    return {{begin, begin + bytes}, {low, low + data}, {(u64)at, (u64)at + data + 2 * guard}, 0};
}

// The bytes between an allocation and its guard pages must not have changed.
void check_edges(const Allocation& a)
{
    std::vector<unsigned char> wanted(4096 + 256);
    poison(wanted.data(), wanted.size());
    const u64 before = a.range.begin - a.mapped.begin, after = a.mapped.end - a.range.end;
    const bool odd = a.range.end % 2;
    if (memcmp((void*)a.mapped.begin, wanted.data(), before) ||
        memcmp((void*)a.range.end, wanted.data() + odd, after)) {
        fault("a kernel wrote outside of an allocation of %llu bytes", (unsigned long long)(a.range.end - a.range.begin));
    }
}

int host_range(std::map<u64, Range>& ranges, void* at, u64 bytes)
{
    const Range range = {(u64)at, (u64)at + bytes};
    for (auto* all : {&driver().pinned, &driver().registered}) {
        for (auto& [begin, other] : *all) {
            if (overlap(range, other)) return ALREADY_REGISTERED;
        }
    }
    ranges[range.begin] = range;
    return SUCCESS;
}

void must_be_pinned(const char* function, const void* at, u64 bytes)
{
    const Range range = {(u64)at, (u64)at + bytes};
    if (!holds(driver().pinned, range) && !holds(driver().registered, range)) {
        fault("%s: pageable async copy of %llu bytes at %p", function, (unsigned long long)bytes, at);
    }
}

// Waits until the stream has finished the work that is queued now.
int drain(Call& call, const std::shared_ptr<Stream>& stream)
{
    auto mark = std::make_shared<Event>();
    mark->recorded = 1;
    Operation operation;
    operation.record = mark;
    operation.number = 1;
    push(stream, std::move(operation));
    Driver& d = driver();
    call.wait([&] { return d.dead[stream->device] || mark->done; });
    return d.dead[stream->device] ? (int)d.error : SUCCESS;
}

int copy_now(Call& call, void* to, const void* from, u64 bytes)
{
    Driver& d = driver();
    std::vector<std::shared_ptr<Stream>> blocking;
    for (auto& [handle, stream] : d.streams) {
        if (stream->blocking && (u64)stream->device == current_device()) blocking.push_back(stream);
    }
    for (auto& stream : blocking) {
        if (int error = drain(call, stream)) return error;
    }
    memcpy(to, from, bytes);
    d.copied += bytes;
    return SUCCESS;
}

// Ends the process if a stream is used with another device's context or on another device's memory.
void must_be_of(const char* function, const Stream& stream, u64 address = 0)
{
    if ((u64)stream.device != current_device()) fault("%s: a stream of another device than the current context's", function);
    const Allocation* used = address ? holding(address, 1) : nullptr;
    if (used && used->device != stream.device) fault("%s: memory of another device than the stream's", function);
}

template <class T>
int fill(const char* function, u64 to, T value, u64 count, void* handle)
{
    if (!holding(to, count * sizeof(T)) || to % sizeof(T)) return INVALID_VALUE;
    auto stream = stream_of(function, handle);
    must_be_of(function, *stream, to);
    Operation operation;
    operation.device = {{to, to + count * sizeof(T)}};
    Stream& s = *stream;
    operation.work = [=, &s] {
        delay(s);
        for (u64 i = 0; i < count; ++i) ((T*)to)[i] = value;
    };
    push(stream, std::move(operation));
    return SUCCESS;
}

int make_stream(void** out, unsigned flags)
{
    if (!out || flags > 1) return INVALID_VALUE;
    Driver& d = driver();
    auto stream = std::make_shared<Stream>();
    stream->random.seed(d.seed * 1000 + ++d.streams_made);
    stream->blocking = flags == 0;
    stream->device = (int)current_device();
    Stream& s = *stream;
    stream->thread = std::thread([&s] { serve(s); });
    *out = stream.get();
    d.streams[*out] = stream;
    return SUCCESS;
}

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

int cuInit(unsigned flags)
{
    ENTER(NO_CONTEXT);
    if (flags) return INVALID_VALUE;
    d.initialized = true;
    return d.devices ? SUCCESS : NO_DEVICE;
}

int cuDriverGetVersion(int* version)
{
    ENTER(NO_CONTEXT);
    *version = 12080;
    return SUCCESS;
}

int cuDeviceGetCount(int* count)
{
    ENTER(NO_CONTEXT);
    if (!d.initialized) return NOT_INITIALIZED;
    *count = (int)d.devices;
    return SUCCESS;
}

int cuDeviceGet(int* device, int ordinal)
{
    ENTER(NO_CONTEXT);
    if (!d.initialized) return NOT_INITIALIZED;
    if (ordinal < 0 || (u64)ordinal >= d.devices) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

int cuDeviceGetName(char* name, int bytes, int)
{
    ENTER(NO_CONTEXT);
    snprintf(name, (size_t)bytes, "Mock device");
    return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device)
{
    ENTER(NO_CONTEXT);
    *bytes = d.capacity[device];
    return SUCCESS;
}

int cuDeviceGetAttribute(int* value, int attribute, int)
{
    static const std::map<int, int> known = {
        {1, 1024},       // threads of a thread block
        {2, 1024},       // along x
        {5, 0x7fffffff}, // thread blocks along x
        {8, 48 << 10},   // shared bytes of a thread block
        {10, 32},        // threads of a warp
        {12, 65536},     // registers of a thread block
        {13, 1000000},   // kHz
        {16, 2},         // multiprocessors
        {36, 1000000},   // kHz of memory
        {37, 1024},      // bits of the memory bus
        {38, 4 << 20},   // bytes of L2
        {39, 2048},      // threads of a multiprocessor
        {40, 2},         // copy engines
        {41, 1},         // unified addressing
        {75, 9},         // compute capability
        {76, 0},
        {81, 228 << 10}, // shared bytes of a multiprocessor
        {82, 65536},     // registers of a multiprocessor
        {97, 227 << 10}, // shared bytes of a thread block that asks
        {99, 1},         // host memory can be registered
        {106, 32},       // thread blocks of a multiprocessor
        {113, 1},        // read-only host memory too
    };
    ENTER(NO_CONTEXT);
    const auto found = known.find(attribute);
    *value = found == known.end() ? 0 : found->second;
    return SUCCESS;
}

int cuDeviceCanAccessPeer(int* can, int device, int peer)
{
    ENTER(NO_CONTEXT);
    if ((u64)device >= d.devices || (u64)peer >= d.devices || device == peer) return INVALID_DEVICE;
    *can = d.peers != 0;
    return SUCCESS;
}

int cuCtxEnablePeerAccess(void* context, unsigned flags)
{
    ENTER(PLAIN);
    const u64 peer = (u64)((char*)context - context_markers), device = current_device();
    if (flags || peer >= d.devices || peer == device || !d.peers) return INVALID_VALUE;
    if (d.reaches[device][peer]) return 704; // already enabled
    d.reaches[device][peer] = true;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void** context, int device)
{
    ENTER(NO_CONTEXT);
    if (!d.initialized) return NOT_INITIALIZED;
    ++d.contexts;
    *context = &context_markers[device];
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int)
{
    Call call(__func__, RELEASES);
    Driver& d = driver();
    if (d.contexts == 0) return INVALID_CONTEXT;
    --d.contexts;
    return call.error == INVALID_CONTEXT ? SUCCESS : call.error;
}

int cuCtxSetCurrent(void* context)
{
    Call call(__func__, RELEASES);
    // Succeeds like a release: cleanup code must be able to set its context.
    if (call.error == INVALID_CONTEXT) call.error = SUCCESS;
    if (!call.error) current_plus_one = (u64)context + 1;
    return call.error;
}

int cuCtxGetCurrent(void** context)
{
    ENTER(NO_CONTEXT);
    *context = (void*)(current_plus_one - 1);
    return SUCCESS;
}

int cuCtxGetDevice(int* device)
{
    ENTER(NO_CONTEXT);
    if (current_device() == DEVICES_MAX) return INVALID_CONTEXT;
    *device = (int)current_device();
    return SUCCESS;
}

int cuCtxSynchronize()
{
    ENTER(PLAIN);
    std::vector<std::shared_ptr<Stream>> all;
    for (auto& [handle, stream] : d.streams) {
        if ((u64)stream->device == current_device()) all.push_back(stream);
    }
    for (auto& stream : all) {
        if (int error = drain(call, stream)) return error;
    }
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t* free, size_t* total)
{
    ENTER(PLAIN);
    const u64 device = current_device();
    *total = d.capacity[device];
    *free = d.capacity[device] - d.bytes_of[device];
    return SUCCESS;
}

int cuModuleLoadData(void** module, const void* image)
{
    ENTER(PLAIN);
    if (!image) return INVALID_VALUE;
    // A cubin is for a real device. Kernels here come from tests/mock/kernels.cpp, whatever the PTX says.
    if (!memcmp(image, "\x7f" "ELF", 4)) return NO_BINARY_FOR_GPU;
    auto made = std::make_unique<Module>();
    made->device = (int)current_device();
    *module = made.get();
    d.modules[*module] = std::move(made);
    return SUCCESS;
}

int cuModuleUnload(void* module)
{
    ENTER_RELEASE;
    if (!d.modules.count(module)) fault("%s: no such module", __func__);
    for (auto& [handle, stream] : d.streams) {
        for (auto& operation : stream->queue) {
            if (operation.module == module && !d.dead[stream->device]) fault("%s: a kernel of the module is queued", __func__);
        }
    }
    d.modules.erase(module);
    return call.error;
}

int cuModuleGetFunction(void** function, void* module, const char* name)
{
    ENTER(PLAIN);
    if (!d.modules.count(module)) fault("%s: no such module", __func__);
    for (auto& kernel : mock::kernels()) {
        if (strcmp(kernel.name, name)) continue;
        auto made = std::make_unique<const mock::Kernel*>(&kernel);
        *function = made.get();
        d.modules[module]->functions.insert(std::move(made));
        return SUCCESS;
    }
    return NOT_FOUND;
}

static const mock::Kernel* kernel_of(const char* caller, const void* function, const void** module = nullptr)
{
    for (auto& [handle, held] : driver().modules) {
        for (auto& known : held->functions) {
            if (known.get() != function) continue;
            if (module) *module = handle;
            return *known;
        }
    }
    fault("%s: no such function, or its module is unloaded", caller);
}

int cuFuncGetAttribute(int* value, int attribute, void* function)
{
    ENTER(PLAIN);
    const mock::Kernel* kernel = kernel_of(__func__, function);
    switch (attribute) {
    case 0: *value = (int)kernel->threads_max; break;
    case 1: *value = 16 << 10; break;
    case 4: *value = 32; break;
    case 5: case 6: *value = 90; break;
    default: *value = 0;
    }
    return SUCCESS;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads, size_t)
{
    ENTER(PLAIN);
    const mock::Kernel* kernel = kernel_of(__func__, function);
    *blocks = threads > (int)kernel->threads_max ? 0 : 2;
    return SUCCESS;
}

int cuCtxGetStreamPriorityRange(int* least, int* greatest)
{
    ENTER(PLAIN);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return SUCCESS;
}

int cuStreamCreate(void** stream, unsigned flags)
{
    ENTER(PLAIN);
    return make_stream(stream, flags);
}

int cuStreamCreateWithPriority(void** stream, unsigned flags, int)
{
    ENTER(PLAIN);
    return make_stream(stream, flags);
}

int cuStreamDestroy_v2(void* handle)
{
    ENTER_RELEASE;
    auto stream = stream_of(__func__, handle);
    if (!stream->queue.empty() && !d.dead[stream->device]) fault("%s: work is queued in the stream", __func__);
    d.streams.erase(handle);
    stream->stop = true;
    d.changed.notify_all();
    call.lock.unlock();
    stream->thread.join();
    return call.error;
}

int cuStreamSynchronize(void* handle)
{
    ENTER(PLAIN);
    // The default stream has only copies without a stream, which are done at once here.
    if (!handle) return SUCCESS;
    return drain(call, stream_of(__func__, handle));
}

int cuStreamQuery(void* handle)
{
    // The number of polls varies from run to run, so only the answer that the work is done is counted.
    if (is_busy([&] { return !stream_of(__func__, handle)->queue.empty(); })) return NOT_READY;
    ENTER(PLAIN);
    return stream_of(__func__, handle)->queue.empty() ? SUCCESS : NOT_READY;
}

int cuStreamWaitEvent(void* handle, void* event_handle, unsigned)
{
    ENTER(PLAIN);
    auto stream = stream_of(__func__, handle);
    auto event = event_of(__func__, event_handle);
    Operation operation;
    operation.wait = event;
    operation.number = event->recorded;
    push(stream, std::move(operation));
    return SUCCESS;
}

int cuEventCreate(void** handle, unsigned flags)
{
    ENTER(PLAIN);
    auto event = std::make_shared<Event>();
    event->device = (int)current_device();
    event->timed = !(flags & 2);
    *handle = event.get();
    d.events[*handle] = event;
    return SUCCESS;
}

int cuEventDestroy_v2(void* handle)
{
    ENTER_RELEASE;
    auto event = event_of(__func__, handle);
    for (auto& [stream_handle, stream] : d.streams) {
        for (auto& operation : stream->queue) {
            if ((operation.record == event || operation.wait == event) && !d.dead[stream->device]) {
                fault("%s: queued work uses the event", __func__);
            }
        }
    }
    d.events.erase(handle);
    return call.error;
}

int cuEventRecord(void* event_handle, void* handle)
{
    ENTER(PLAIN);
    auto event = event_of(__func__, event_handle);
    auto stream = stream_of(__func__, handle);
    if (event->device != stream->device) fault("%s: an event of another device than the stream's", __func__);
    Operation operation;
    operation.record = event;
    operation.number = ++event->recorded;
    push(stream, std::move(operation));
    return SUCCESS;
}

int cuEventQuery(void* handle)
{
    if (is_busy([&] { auto event = event_of(__func__, handle); return event->done < event->recorded; })) return NOT_READY;
    ENTER(PLAIN);
    auto event = event_of(__func__, handle);
    return event->done >= event->recorded ? SUCCESS : NOT_READY;
}

int cuEventSynchronize(void* handle)
{
    ENTER(PLAIN);
    auto event = event_of(__func__, handle);
    const u64 number = event->recorded;
    call.wait([&] { return d.dead[event->device] || event->done >= number; });
    return d.dead[event->device] ? (int)d.error : SUCCESS;
}

int cuEventElapsedTime(float* milliseconds, void* from, void* to)
{
    ENTER(PLAIN);
    auto start = event_of(__func__, from), end = event_of(__func__, to);
    if (!start->timed || !end->timed || !start->recorded || !end->recorded) return INVALID_HANDLE;
    if (start->done < start->recorded || end->done < end->recorded) return NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(end->at - start->at).count();
    return SUCCESS;
}

int cuEventElapsedTime_v2(float* milliseconds, void* from, void* to)
{
    return cuEventElapsedTime(milliseconds, from, to);
}

int cuMemAlloc_v2(u64* address, size_t bytes)
{
    ENTER(ALLOCATES);
    if (bytes == 0) return INVALID_VALUE;
    const u64 counted = (bytes + 255) / 256 * 256;
    const u64 device = current_device();
    if (bytes > d.capacity[device] || d.bytes_of[device] + counted > d.capacity[device]) return OUT_OF_MEMORY;
    Allocation made = map_device(bytes);
    made.device = (int)device;
    d.memory[made.range.begin] = made;
    d.bytes_of[device] += counted;
    d.device_bytes += counted;
    d.peak = std::max(d.peak, d.device_bytes);
    *address = made.range.begin;
    return SUCCESS;
}

int cuMemFree_v2(u64 address)
{
    ENTER_RELEASE;
    auto found = d.memory.find(address);
    if (found == d.memory.end()) fault("%s: 0x%llx is not allocated", __func__, (unsigned long long)address);
    const Allocation freed = found->second;
    not_in_use(__func__, freed.range, &Operation::device);
    check_edges(freed);
    mmap((void*)freed.guarded.begin, freed.guarded.end - freed.guarded.begin, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    d.device_bytes -= (freed.range.end - freed.range.begin + 255) / 256 * 256;
    d.bytes_of[freed.device] -= (freed.range.end - freed.range.begin + 255) / 256 * 256;
    d.memory.erase(found);
    return call.error;
}

int cuPointerGetAttribute(void* value, int attribute, u64 address)
{
    ENTER(PLAIN);
    const Allocation* found = holding(address, 1);
    const Range byte = {address, address + 1};
    if (!found && (holds(d.pinned, byte) || holds(d.registered, byte)) && attribute == 2) {
        *(unsigned*)value = 1; // host memory
        return SUCCESS;
    }
    if (!found) return INVALID_VALUE;
    switch (attribute) {
    case 2: *(unsigned*)value = 2; return SUCCESS; // device memory
    case 8: *(unsigned*)value = 0; return SUCCESS; // managed
    case 9: *(int*)value = found->device; return SUCCESS;
    case 11: *(u64*)value = found->range.begin; return SUCCESS;
    case 12: *(u64*)value = found->range.end - found->range.begin; return SUCCESS;
    }
    return INVALID_VALUE;
}

int cuMemHostAlloc(void** address, size_t bytes, unsigned)
{
    ENTER(ALLOCATES);
    if (bytes == 0) return INVALID_VALUE;
    const u64 whole = (bytes + 4095) / 4096 * 4096;
    void* at = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return OUT_OF_MEMORY;
    poison(at, bytes);
    host_range(d.pinned, at, bytes);
    d.pinned_bytes += bytes;
    *address = at;
    return SUCCESS;
}

int cuMemFreeHost(void* address)
{
    ENTER_RELEASE;
    auto found = d.pinned.find((u64)address);
    if (found == d.pinned.end()) fault("%s: %p is not allocated", __func__, address);
    not_in_use(__func__, found->second, &Operation::host);
    const u64 bytes = found->second.end - found->second.begin;
    munmap(address, (bytes + 4095) / 4096 * 4096);
    d.pinned_bytes -= bytes;
    d.pinned.erase(found);
    return call.error;
}

int cuMemHostRegister_v2(void* address, size_t bytes, unsigned)
{
    ENTER(ALLOCATES);
    if (!address || bytes == 0) return INVALID_VALUE;
    if (int error = host_range(d.registered, address, bytes)) return error;
    d.registered_bytes += bytes;
    return SUCCESS;
}

int cuMemHostUnregister(void* address)
{
    ENTER_RELEASE;
    auto found = d.registered.find((u64)address);
    if (found == d.registered.end()) return NOT_REGISTERED;
    not_in_use(__func__, found->second, &Operation::host);
    d.registered_bytes -= found->second.end - found->second.begin;
    d.registered.erase(found);
    return call.error;
}

int cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t bytes, void* handle)
{
    ENTER(PLAIN);
    if (!holding(to, bytes)) return INVALID_VALUE;
    must_be_pinned(__func__, from, bytes);
    auto stream = stream_of(__func__, handle);
    must_be_of(__func__, *stream, to);
    Operation operation;
    operation.device = {{to, to + bytes}};
    operation.host = {{(u64)from, (u64)from + bytes}};
    Stream& s = *stream;
    operation.work = [=, &s] { slow_copy(s, (void*)to, from, bytes); };
    push(stream, std::move(operation));
    return SUCCESS;
}

int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t bytes, void* handle)
{
    ENTER(PLAIN);
    if (!holding(from, bytes)) return INVALID_VALUE;
    must_be_pinned(__func__, to, bytes);
    auto stream = stream_of(__func__, handle);
    must_be_of(__func__, *stream, from);
    Operation operation;
    operation.device = {{from, from + bytes}};
    operation.host = {{(u64)to, (u64)to + bytes}};
    Stream& s = *stream;
    operation.work = [=, &s] { slow_copy(s, to, (const void*)from, bytes); };
    push(stream, std::move(operation));
    return SUCCESS;
}

int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t bytes, void* handle)
{
    ENTER(PLAIN);
    if (!holding(to, bytes) || !holding(from, bytes)) return INVALID_VALUE;
    auto stream = stream_of(__func__, handle);
    must_be_of(__func__, *stream, to);
    must_be_of(__func__, *stream, from);
    Operation operation;
    operation.device = {{from, from + bytes}, {to, to + bytes}};
    Stream& s = *stream;
    operation.work = [=, &s] { slow_copy(s, (void*)to, (const void*)from, bytes); };
    push(stream, std::move(operation));
    return SUCCESS;
}

int cuMemcpyPeerAsync(u64 to, void* to_context, u64 from, void* from_context, size_t bytes, void* handle)
{
    ENTER(PLAIN);
    const Allocation *target = holding(to, bytes), *source = holding(from, bytes);
    if (!target || !source || bytes == 0) return INVALID_VALUE;
    if (to_context != &context_markers[target->device] || from_context != &context_markers[source->device]) {
        fault("%s: memory of another device than its context's", __func__);
    }
    auto stream = stream_of(__func__, handle);
    must_be_of(__func__, *stream, to);
    Operation operation;
    operation.device = {{from, from + bytes}, {to, to + bytes}};
    Stream& s = *stream;
    operation.work = [=, &s] { slow_copy(s, (void*)to, (const void*)from, bytes); };
    push(stream, std::move(operation));
    return SUCCESS;
}

int cuMemcpyHtoD_v2(u64 to, const void* from, size_t bytes)
{
    ENTER(PLAIN);
    if (!holding(to, bytes)) return INVALID_VALUE;
    return copy_now(call, (void*)to, from, bytes);
}

int cuMemcpyDtoH_v2(void* to, u64 from, size_t bytes)
{
    ENTER(PLAIN);
    if (!holding(from, bytes)) return INVALID_VALUE;
    return copy_now(call, to, (const void*)from, bytes);
}

int cuMemsetD8Async(u64 to, unsigned char value, size_t count, void* handle)
{
    ENTER(PLAIN);
    return fill(__func__, to, value, count, handle);
}

int cuMemsetD32Async(u64 to, unsigned value, size_t count, void* handle)
{
    ENTER(PLAIN);
    return fill(__func__, to, value, count, handle);
}

int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes, void* handle, void** parameters, void** extra)
{
    ENTER(LAUNCHES);
    const void* module = nullptr;
    const mock::Kernel* kernel = kernel_of(__func__, function, &module);
    auto stream = stream_of(__func__, handle);
    must_be_of(__func__, *stream);
    if (d.modules[(void*)module]->device != stream->device) fault("%s: a kernel of another device's module", __func__);
    if (grid_z != 1 || block_y != 1 || block_z != 1) fault("%s: more dimensions than kernels here have", __func__);
    if (shared_bytes || extra || !parameters) fault("%s: shared bytes or packed parameters", __func__);
    if (grid_x == 0 || grid_y == 0 || grid_y > 0xffff || block_x == 0 || block_x > 1024 || grid_x > 0x7fffffff) return INVALID_VALUE;
    if (block_x > kernel->threads_max) return LAUNCH_OUT_OF_RESOURCES;
    // The parameters are copied now. A word that is an address in device memory is taken to be one.
    std::vector<std::shared_ptr<char>> copies;
    Operation operation;
    for (size_t i = 0; i < kernel->parameters.size(); ++i) {
        const size_t bytes = kernel->parameters[i];
        std::shared_ptr<char> copy((char*)aligned_alloc(16, (bytes + 15) / 16 * 16), free);
        memcpy(copy.get(), parameters[i], bytes);
        for (size_t at = 0; at + 8 <= bytes; at += 8) {
            u64 word;
            memcpy(&word, copy.get() + at, 8);
            if (const Allocation* used = holding(word, 1)) operation.device.push_back(used->range);
        }
        copies.push_back(std::move(copy));
    }
    operation.module = module;
    Stream& s = *stream;
    operation.work = [=, &s, &d] {
        std::vector<Range> live;
        {
            std::lock_guard<std::mutex> lock(d.mutex);
            for (auto& [begin, allocation] : d.memory) {
                if (allocation.device == s.device) live.push_back(allocation.range);
            }
        }
        std::vector<void*> arguments;
        for (auto& copy : copies) arguments.push_back(copy.get());
        const auto start = Clock::now();
        mock::run(*kernel, {grid_x, grid_y, 1}, {block_x, 1, 1}, arguments.data(), live, s.random(), d.dead[s.device]);
        d.kernel_us += std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
        d.blocks += (u64)grid_x * grid_y;
        ++d.launches;
    };
    push(stream, std::move(operation));
    return SUCCESS;
}

int cuGetErrorName(int error, const char** name)
{
    *name = name_of(error);
    return *name ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorString(int error, const char** text)
{
    static const std::map<int, const char*> known = {
        {OUT_OF_MEMORY, "out of memory"},
        {ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
        {719, "unspecified launch failure"},
        {INVALID_VALUE, "invalid argument"},
    };
    const auto found = known.find(error);
    *text = found != known.end() ? found->second : name_of(error);
    return *text ? SUCCESS : INVALID_VALUE;
}

#pragma GCC visibility pop
}
