// A libnccl.so.2 for the mock driver: the collectives that the engine calls, among the devices of one process, whose communicators are one
// thread's or a thread's each. A group's work is done when the group of every thread has ended, once all of its streams have reached it; device
// memory is host memory here. Where a real NCCL's behavior is undefined,
// the process ends: counts that differ between members, memory of another device, a call outside a group.
//
//   BLCO_MOCK_NCCL_FAIL=K   the K-th call, counted from 1, fails with an internal error
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

enum Kind { REDUCE_SCATTER, REDUCE, ALL_GATHER, BROADCAST };

struct Call;

struct Clique {
    int members, alive;
    // Of threads with a communicator each: how many have joined, what those have called whose groups have ended, and how many groups
    // all have ended.
    int joined = 0, arrived = 0, rounds = 0;
    bool aborted = false;
    std::vector<Call> calls;
};

struct Communicator {
    Clique* clique;
    int number, device;
};

struct Call {
    Kind kind;
    const char* from;
    char* to;
    size_t count;
    int type, root;
    Communicator* communicator;
    void* stream;
};

thread_local std::vector<Call> group;
thread_local int depth = 0;
std::atomic<int> calls{0}, cliques{0};
// Of all cliques.
std::mutex lock;
std::condition_variable changed;
std::map<std::string, Clique*> known;

[[noreturn]] void fault(const char* what)
{
    fprintf(stderr, "mock NCCL: %s\n", what);
    abort();
}

template <class F> F driver(const char* name)
{
    static void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void* found = library ? dlsym(library, name) : nullptr;
    if (!found) fault("the mock driver is not loaded");
    return (F)found;
}

bool fails()
{
    const char* text = getenv("BLCO_MOCK_NCCL_FAIL");
    return text && ++calls == atoi(text);
}

// Every range must be memory of the communicator's device.
void check(const void* at, size_t bytes, int device)
{
    auto ask = driver<int (*)(void*, int, unsigned long long)>("cuPointerGetAttribute");
    int of = -1;
    unsigned long long begin = 0, size = 0;
    const auto address = (unsigned long long)at;
    if (ask(&of, 9, address) || ask(&begin, 11, address) || ask(&size, 12, address)) fault("no memory of a device");
    if (of != device || address + bytes > begin + size) fault("memory of another device, or more than there is");
}

int add(Kind kind, const void* from, void* to, size_t count, int type, int root, void* communicator, void* stream)
{
    if (fails()) return 3;
    if (depth == 0) fault("a collective of several devices outside of a group");
    group.push_back({kind, (const char*)from, (char*)to, count, type, root, (Communicator*)communicator, stream});
    return 0;
}

// The calls of one collective, one for each member.
void run(const std::vector<Call>& of)
{
    const Call& first = of[0];
    const int members = first.communicator->clique->members;
    const size_t width = first.type == 8 ? 8 : 1;
    std::vector<const Call*> by(members, nullptr);
    for (auto& call : of) {
        if (call.kind != first.kind || call.count != first.count || call.type != first.type || call.root != first.root) {
            fault("members call different collectives");
        }
        by[call.communicator->number] = &call;
    }
    for (auto* call : by) {
        if (!call) fault("a member is missing");
        const size_t sent = call->count * (call->kind == REDUCE_SCATTER ? members : 1);
        check(call->from, sent * width, call->communicator->device);
        check(call->to, call->count * (call->kind == ALL_GATHER ? members : 1) * width, call->communicator->device);
    }
    if (first.kind == REDUCE_SCATTER || first.kind == REDUCE) {
        const size_t all = first.count * (first.kind == REDUCE_SCATTER ? members : 1);
        std::vector<double> sums(all, 0.0);
        // In a different order than the engine's own.
        for (int m = members; m-- > 0;) {
            for (size_t i = 0; i < all; ++i) sums[i] += ((const double*)by[m]->from)[i];
        }
        for (int m = 0; m < members; ++m) {
            const size_t at = first.kind == REDUCE_SCATTER ? m * first.count : 0;
            if (first.kind == REDUCE && m != first.root) continue;
            memcpy(by[m]->to, sums.data() + at, first.count * 8);
        }
        return;
    }
    std::string sent;
    if (first.kind == BROADCAST) sent.assign(by[first.root]->from, first.count * width);
    for (int m = 0; first.kind == ALL_GATHER && m < members; ++m) sent.append(by[m]->from, first.count * width);
    for (auto* call : by) memcpy(call->to, sent.data(), sent.size());
}

// Runs the calls of a group. The k-th call of each member belongs to the k-th collective.
void run_all(std::vector<Call> all)
{
    while (!all.empty()) {
        std::vector<Call> one, rest;
        std::vector<bool> met(all[0].communicator->clique->members, false);
        for (auto& call : all) {
            const bool seen = met[call.communicator->number];
            (seen ? rest : one).push_back(call);
            met[call.communicator->number] = true;
        }
        run(one);
        all.swap(rest);
    }
}

// Waits for other threads.
template <class F> void await(std::unique_lock<std::mutex>& held, F done)
{
    if (!changed.wait_for(held, std::chrono::seconds(60), done)) fault("a thread does not come");
}

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

int ncclGetVersion(int* version)
{
    *version = 22703;
    return 0;
}

const char* ncclGetErrorString(int status)
{
    return status == 3 ? "internal error" : "no error";
}

int ncclCommInitAll(void** communicators, int count, const int* devices)
{
    if (fails()) return 3;
    auto* clique = new Clique;
    clique->members = clique->alive = count;
    for (int i = 0; i < count; ++i) communicators[i] = new Communicator{clique, i, devices[i]};
    return 0;
}

struct UniqueId {
    char name[128];
};

int ncclGetUniqueId(UniqueId* id)
{
    if (fails()) return 3;
    *id = UniqueId{};
    snprintf(id->name, sizeof id->name, "clique %d", ++cliques);
    return 0;
}

int ncclCommInitRank(void** communicator, int count, UniqueId id, int number)
{
    int device = -1;
    if (driver<int (*)(int*)>("cuCtxGetDevice")(&device)) fault("no current device");
    std::unique_lock<std::mutex> held(lock);
    Clique*& known_as = known[id.name];
    if (!known_as) known_as = new Clique;
    Clique* clique = known_as;
    clique->members = clique->alive = count;
    clique->joined += 1;
    clique->aborted |= fails();
    changed.notify_all();
    await(held, [&] { return clique->joined == count || clique->aborted; });
    if (clique->aborted) return 3;
    *communicator = new Communicator{clique, number, device};
    return 0;
}

int ncclCommDestroy(void* communicator)
{
    std::unique_lock<std::mutex> held(lock);
    auto* of = (Communicator*)communicator;
    if (--of->clique->alive == 0) delete of->clique;
    delete of;
    return 0;
}

int ncclCommAbort(void* communicator)
{
    {
        std::unique_lock<std::mutex> held(lock);
        ((Communicator*)communicator)->clique->aborted = true;
        changed.notify_all();
    }
    return ncclCommDestroy(communicator);
}

int ncclGroupStart()
{
    ++depth;
    return 0;
}

int ncclGroupEnd()
{
    if (--depth > 0) return 0;
    std::vector<Call> all;
    all.swap(group);
    if (fails()) return 3;
    auto synchronize = driver<int (*)(void*)>("cuStreamSynchronize");
    for (auto& call : all) {
        if (synchronize(call.stream)) return 3;
    }
    Clique* clique = all.empty() ? nullptr : all[0].communicator->clique;
    if (!clique || !clique->joined) {
        run_all(all);
        return 0;
    }
    std::unique_lock<std::mutex> held(lock);
    if (clique->aborted) return 3;
    clique->calls.insert(clique->calls.end(), all.begin(), all.end());
    const int round = clique->rounds;
    if (++clique->arrived == clique->members) {
        run_all(std::move(clique->calls));
        clique->calls.clear();
        clique->arrived = 0;
        ++clique->rounds;
        changed.notify_all();
    }
    await(held, [&] { return clique->rounds > round || clique->aborted; });
    return clique->rounds > round ? 0 : 3;
}

int ncclReduceScatter(const void* from, void* to, size_t count, int type, int, void* communicator, void* stream)
{
    return add(REDUCE_SCATTER, from, to, count, type, 0, communicator, stream);
}

int ncclReduce(const void* from, void* to, size_t count, int type, int, int root, void* communicator, void* stream)
{
    return add(REDUCE, from, to, count, type, root, communicator, stream);
}

int ncclAllGather(const void* from, void* to, size_t count, int type, void* communicator, void* stream)
{
    return add(ALL_GATHER, from, to, count, type, 0, communicator, stream);
}

int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, void* communicator, void* stream)
{
    return add(BROADCAST, from, to, count, type, root, communicator, stream);
}

#pragma GCC visibility pop
}
