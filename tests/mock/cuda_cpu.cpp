// The fibers behind cuda_cpu.h. Thread blocks run one after another; the threads of a block take turns.
#include "cuda_cpu.h"
#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <link.h>
#include <map>
#include <random>
#include <sys/mman.h>
#include <unistd.h>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace mock {

__thread Here here = {1, {}, {}, {}, {}, nullptr, nullptr, {}, nullptr, nullptr};

std::vector<Kernel>& kernels()
{
    static std::vector<Kernel>& all = *new std::vector<Kernel>;
    return all;
}

void fault(const char* format, ...)
{
    char text[512];
    int at = 0;
    if (here.fiber) {
        at = snprintf(text, sizeof text, "mock CUDA: %s, block %u, thread %u: ", here.kernel, here.block.x,
                      here.thread.x);
    } else {
        at = snprintf(text, sizeof text, "mock CUDA: ");
    }
    va_list list;
    va_start(list, format);
    at += vsnprintf(text + at, sizeof text - at - 1, format, list);
    va_end(list);
    at = std::min<int>(at, sizeof text - 2);
    text[at++] = '\n';
    (void)!write(2, text, at);
    abort();
}

// Switches stacks. On x86-64 this saves only the registers that a call preserves, which takes a few nanoseconds; elsewhere it
// uses ucontext.
#ifdef __x86_64__
struct Stack {
    void* top;
};
extern "C" void mock_switch(Stack* from, Stack* to);
asm(".text\n.globl mock_switch\n.hidden mock_switch\n.type mock_switch,@function\nmock_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq (%rsi), %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size mock_switch, .-mock_switch\n");

static void prepare(Stack& stack, char* low, size_t bytes, void (*entry)())
{
    void** top = (void**)(low + bytes);
    *--top = nullptr;
    *--top = (void*)entry;
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    stack.top = top;
}
#else
struct Stack {
    ucontext_t context;
};
static void mock_switch(Stack* from, Stack* to)
{
    swapcontext(&from->context, &to->context);
}

static void prepare(Stack& stack, char* low, size_t bytes, void (*entry)())
{
    getcontext(&stack.context);
    stack.context.uc_stack.ss_sp = low;
    stack.context.uc_stack.ss_size = bytes;
    stack.context.uc_link = nullptr;
    makecontext(&stack.context, entry, 0);
}
#endif

enum State { READY, AT_BARRIER, AT_MEETING, ENDED };

// A thread of a thread block. `in` is the value that it brings to a barrier or meeting, `out` the value that the others see.
struct Fiber {
    Stack stack;
    State state;
    const char* file;
    unsigned site, mask;
    alignas(16) unsigned char in[16], out[16];
};

// The byte that fills uninitialized memory: NaN as f32 and f64, far out of range as an index.
static const uint16_t POISON = 0x7ff7;

const size_t STACK_BYTES = 64 << 10, GUARD_BYTES = 4096;

// The fibers of an OS thread.
struct Runner {
    Stack scheduler;
    std::vector<Fiber> fibers;
    char* stacks = nullptr;
    size_t stack_count = 0;
    unsigned threads = 0, result = 0;
    const Kernel* kernel = nullptr;
    void* const* arguments = nullptr;
    std::minstd_rand random;
    // The shared memory of all kernels, and the part of it that each kernel is known to use.
    uint16_t *shared = nullptr, *shared_end = nullptr;
    std::map<const char*, std::pair<uint16_t*, uint16_t*>> used;

    ~Runner()
    {
        if (stacks) munmap(stacks, stack_count * (STACK_BYTES + GUARD_BYTES));
    }
    void reserve(unsigned count);
    void find_shared();
    void block();
    void turn();
    unsigned release_meetings();
    void release_barrier();
    [[noreturn]] void stuck();
    void learn();
};

void check_slowly(uint64_t address, size_t bytes, Where where)
{
    const uint64_t shared = (uint64_t)here.runner->shared, shared_end = (uint64_t)here.runner->shared_end;
    if (where == DEVICE_OR_SHARED && shared <= address && address + bytes <= shared_end) return;
    if (here.live) {
        const auto& live = *here.live;
        auto after = std::upper_bound(live.begin(), live.end(), address,
                                      [](uint64_t a, const Range& range) { return a < range.begin; });
        if (after != live.begin() && address + bytes <= (after - 1)->end) {
            here.last = *(after - 1);
            return;
        }
    }
    fault("access of %zu bytes outside of device memory at 0x%llx", bytes, (unsigned long long)address);
}

void Runner::reserve(unsigned count)
{
    threads = count;
    if (count <= stack_count) return;
    if (stacks) munmap(stacks, stack_count * (STACK_BYTES + GUARD_BYTES));
    stack_count = count;
    fibers.resize(count);
    stacks = (char*)mmap(nullptr, count * (STACK_BYTES + GUARD_BYTES), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) fault("no memory for stacks");
    for (size_t i = 0; i < count; ++i) mprotect(stacks + i * (STACK_BYTES + GUARD_BYTES), GUARD_BYTES, PROT_NONE);
}

// The only zero-initialized thread-local memory of this module is shared memory.
void Runner::find_shared()
{
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* data) {
            Runner& runner = *(Runner*)data;
            char* block = (char*)info->dlpi_tls_data;
            for (int i = 0; block && i < info->dlpi_phnum; ++i) {
                const auto& header = info->dlpi_phdr[i];
                if (header.p_type != PT_TLS || (char*)&here < block || (char*)&here >= block + header.p_memsz) continue;
                runner.shared = (uint16_t*)(block + (header.p_filesz + 15) / 16 * 16);
                runner.shared_end = (uint16_t*)(block + header.p_memsz / 2 * 2);
                if ((char*)(&here + 1) > (char*)runner.shared) fault("the state of a thread lies in shared memory");
            }
            return 0;
        },
        this);
    std::fill(shared, shared_end, POISON);
}

// Whether 32 numbers are POISON.
static bool all_poison(const uint16_t* numbers)
{
    uint64_t words[8], differ = 0;
    memcpy(words, numbers, sizeof words);
    for (uint64_t word : words) differ |= word ^ POISON * 0x0001000100010001ull;
    return differ == 0;
}

// Extends the part of shared memory that the kernel is known to use by what it has written.
void Runner::learn()
{
    uint16_t *low = shared, *high = shared_end;
    auto& [first, last] = used[kernel->name];
    // Data that other kernels left does not count.
    const auto others = [&](uint16_t* at) -> const std::pair<uint16_t*, uint16_t*>* {
        for (auto& [name, range] : used) {
            if (name != kernel->name && range.first <= at && at < range.second) return &range;
        }
        return nullptr;
    };
    // Many numbers at a time: kernels have megabytes together, and this is done for each launch.
    while (low < high) {
        if (high - low >= 32 && all_poison(low)) low += 32;
        else if (*low == POISON) ++low;
        else if (const auto* range = others(low)) low = range->second;
        else break;
    }
    while (high > low) {
        if (high - low >= 32 && all_poison(high - 32)) high -= 32;
        else if (high[-1] == POISON) --high;
        else if (const auto* range = others(high - 1)) high = range->first;
        else break;
    }
    if (low >= high) return;
    first = first ? std::min(first, low) : low;
    last = last ? std::max(last, high) : high;
}

static void fiber_main()
{
    Runner& runner = *here.runner;
    runner.kernel->invoke(runner.arguments);
    here.fiber->state = ENDED;
    mock_switch(&here.fiber->stack, &runner.scheduler);
    abort();
}

static __attribute__((noinline)) void wait(Fiber& fiber)
{
    mock_switch(&fiber.stack, &here.runner->scheduler);
}

unsigned barrier(const char* file, unsigned site, bool value)
{
    Fiber& fiber = *here.fiber;
    fiber.state = AT_BARRIER;
    fiber.file = file;
    fiber.site = site;
    fiber.in[0] = value;
    wait(fiber);
    return here.runner->result;
}

void meet(const char* file, unsigned site, unsigned mask, const void* value, size_t bytes)
{
    if (!(mask >> lane() & 1)) fault("%s:%u: calls with mask %08x, which excludes it", file, site / 8, mask);
    Fiber& fiber = *here.fiber;
    fiber.state = AT_MEETING;
    fiber.file = file;
    fiber.site = site;
    fiber.mask = mask;
    if (bytes) memcpy(fiber.in, value, bytes);
    wait(fiber);
}

const void* brought(unsigned lane)
{
    return here.runner->fibers[here.thread.x / 32 * 32 + lane].out;
}

// Every thread that is able to run does so until it waits or ends, starting with a random one, forwards or backwards.
void Runner::turn()
{
    const unsigned bits = random(), step = bits >> 16 & 1 ? 1 : threads - 1;
    unsigned thread = bits % threads;
    for (unsigned i = 0; i < threads; ++i, thread = (thread + step) % threads) {
        if (fibers[thread].state != READY) continue;
        here.fiber = &fibers[thread];
        here.thread = {thread, 0, 0};
        mock_switch(&scheduler, &fibers[thread].stack);
    }
}

unsigned Runner::release_meetings()
{
    unsigned released = 0;
    for (unsigned thread = 0; thread < threads; ++thread) {
        Fiber& fiber = fibers[thread];
        if (fiber.state != AT_MEETING) continue;
        const unsigned warp = thread / 32 * 32;
        bool complete = true;
        for (unsigned lane = 0; lane < 32; ++lane) {
            if (!(fiber.mask >> lane & 1)) continue;
            here.thread.x = thread;
            if (warp + lane >= threads || fibers[warp + lane].state == ENDED) {
                fault("%s:%u: mask %08x names lane %u, which has ended", fiber.file, fiber.site / 8, fiber.mask, lane);
            }
            const Fiber& other = fibers[warp + lane];
            complete &= other.state == AT_MEETING && other.site == fiber.site && other.mask == fiber.mask &&
                        other.file == fiber.file;
        }
        if (!complete) continue;
        const unsigned mask = fiber.mask;
        for (unsigned lane = 0; lane < 32; ++lane) {
            if (!(mask >> lane & 1)) continue;
            Fiber& other = fibers[warp + lane];
            memcpy(other.out, other.in, sizeof other.out);
            other.state = READY;
            ++released;
        }
    }
    return released;
}

// All threads wait and no meeting is complete: either all are at the same barrier, or they wait forever.
void Runner::release_barrier()
{
    const Fiber& first = fibers[0];
    result = 0;
    for (unsigned thread = 0; thread < threads; ++thread) {
        const Fiber& fiber = fibers[thread];
        if (fiber.state != AT_BARRIER || fiber.site != first.site || fiber.file != first.file) stuck();
        result += fiber.in[0];
    }
    for (unsigned thread = 0; thread < threads; ++thread) fibers[thread].state = READY;
}

void Runner::stuck()
{
    unsigned at = 0;
    while (fibers[at].state == ENDED) ++at;
    const Fiber& fiber = fibers[at];
    unsigned other = 0;
    while (fibers[other].state == fiber.state && fibers[other].site == fiber.site) ++other;
    here.thread.x = at;
    const bool barrier = fiber.state == AT_BARRIER;
    const unsigned line = fiber.site / (barrier ? 4 : 8);
    if (fibers[other].state == ENDED) {
        fault("divergent: waits at the %s in line %u, thread %u has ended", barrier ? "barrier" : "meeting", line, other);
    }
    fault("divergent: waits at the %s in line %u, thread %u at the %s in line %u", barrier ? "barrier" : "meeting", line,
          other, fibers[other].state == AT_BARRIER ? "barrier" : "meeting",
          fibers[other].site / (fibers[other].state == AT_BARRIER ? 4 : 8));
}

void Runner::block()
{
    for (unsigned thread = 0; thread < threads; ++thread) {
        char* low = stacks + thread * (STACK_BYTES + GUARD_BYTES) + GUARD_BYTES;
        prepare(fibers[thread].stack, low, STACK_BYTES, fiber_main);
        fibers[thread].state = READY;
    }
    for (;;) {
        turn();
        unsigned ended = 0, meeting = 0;
        for (unsigned thread = 0; thread < threads; ++thread) {
            ended += fibers[thread].state == ENDED;
            meeting += fibers[thread].state == AT_MEETING;
        }
        if (ended == threads) return;
        if (meeting == 0 || release_meetings() == 0) release_barrier();
    }
}

static struct sigaction before[32];

// Names the kernel or copy that hit a guard page or a check of the compiler. Other signals are passed on.
static void on_signal(int signal, siginfo_t* info, void*)
{
    if (here.kernel) {
        if (signal == SIGILL || signal == SIGFPE) fault("index outside of an array, misaligned access or undefined arithmetic");
        if (!here.fiber) fault("%s: memory that is not there at %p", here.kernel, info->si_addr);
        fault("access outside of device memory at %p", info->si_addr);
    }
    sigaction(signal, &before[signal], nullptr);
}

void watch()
{
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) sigaction(signal, &action, &before[signal]);
}

void run(const Kernel& kernel, dim3 grid, dim3 block, void* const* arguments, const std::vector<Range>& live,
         uint64_t seed, const volatile bool& stop)
{
    if (!here.runner) {
        here.runner = new Runner;
        here.runner->find_shared();
    }
    Runner& runner = *here.runner;
    runner.reserve(block.x);
    runner.kernel = &kernel;
    runner.arguments = arguments;
    runner.random.seed((unsigned)(seed % 2147483646 + 1));
    here.kernel = kernel.name;
    here.grid_dim = grid;
    here.block_dim = block;
    here.live = &live;
    here.last = {};
    const unsigned long long blocks = (unsigned long long)grid.x * grid.y, first = runner.random() % blocks;
    for (unsigned long long i = 0; i < blocks && !stop; ++i) {
        const auto used = runner.used.find(kernel.name);
        if (used != runner.used.end()) std::fill(used->second.first, used->second.second, POISON);
        const unsigned long long block = (first + i) % blocks;
        here.block = {(unsigned)(block % grid.x), (unsigned)(block / grid.x), 0};
        runner.block();
        if (i == 0 || i + 1 == blocks) runner.learn();
    }
    here.fiber = nullptr;
    here.kernel = nullptr;
    here.live = nullptr;
}

void end_thread()
{
    delete here.runner;
    here.runner = nullptr;
}

}  // namespace mock
