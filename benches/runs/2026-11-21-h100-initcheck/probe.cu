// Allocations, copies and kernels, each waited for by the host before the next is started: what compute-sanitizer's initcheck says of them
// while other processes use the GPU. usage: probe FLAGS SECONDS; flags: 1 asynchronous copies from pinned memory, 2 a new context each
// round, 4 streams that do not wait for the default stream, 8 the last kernels on streams of their own, 16 frees before the last kernels,
// 32 the device waited for before the last kernels
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <cuda_runtime.h>
#include <vector>
typedef unsigned u32;
#define OK(x)                                                                                                                              \
    do {                                                                                                                                   \
        cudaError_t e_ = (x);                                                                                                              \
        if (e_ != cudaSuccess) {                                                                                                           \
            printf("round %d line %d: %s\n", round_, __LINE__, cudaGetErrorString(e_));                                                    \
            return 1;                                                                                                                      \
        }                                                                                                                                  \
    } while (0)
__global__ void put(u32* to, const u32* from, u32 n)
{
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] = from[i % 4096] + i;
}
__global__ void unset(u32* bits, const u32* rows, u32 n, u32 words)
{
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAnd(bits + rows[i] / 32 % words, ~(1u << rows[i] % 32));
}
__global__ void sum(unsigned long long* to, const u32* bits, u32 words, const u32* x, u32 n)
{
    unsigned long long s = 0;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += (bits[i % words] >> i % 32 & 1) * x[i];
    atomicAdd(to, s);
}
int main(int, char** v)
{
    const int flags = atoi(v[1]);
    const time_t end = time(nullptr) + atoi(v[2]);
    int round_ = 0;
    unsigned long long expected = 0;
    unsigned seed = 7;
    for (; time(nullptr) < end; ++round_) {
        seed = 7; // the same sizes each round
        cudaStream_t s[5];
        const unsigned kind = flags & 4 ? cudaStreamNonBlocking : cudaStreamDefault;
        for (auto& x : s) OK(cudaStreamCreateWithFlags(&x, kind));
        const u32 n = 1 << 18, words = 5000;
        u32* big;
        OK(cudaMalloc(&big, 4 * n));
        std::vector<u32> host(n);
        for (u32 i = 0; i < n; ++i) host[i] = i * 2654435761u;
        if (flags & 1) {
            OK(cudaHostRegister(host.data(), 4 * n, 0));
            for (u32 c = 0; c < 16; ++c)
                OK(cudaMemcpyAsync(big + c * (n / 16), host.data() + c * (n / 16), n / 4, cudaMemcpyHostToDevice, s[c % 2]));
            OK(cudaStreamSynchronize(s[0]));
            OK(cudaStreamSynchronize(s[1]));
        } else OK(cudaMemcpy(big, host.data(), 4 * n, cudaMemcpyHostToDevice));
        std::vector<u32*> kept, masks;
        std::vector<unsigned long long*> results;
        for (int part = 0; part < 4; ++part) {
            u32* scratch[6];
            for (auto& x : scratch) {
                const u32 m = 1 << (12 + rand_r(&seed) % 7);
                OK(cudaMalloc(&x, 4 * m));
                put<<<64, 128, 0, s[2]>>>(x, big, m);
                OK(cudaStreamSynchronize(s[2]));
            }
            u32* bits;
            OK(cudaMalloc(&bits, 4 * words));
            OK(cudaMemsetAsync(bits, 0xff, 4 * words, s[2]));
            OK(cudaStreamSynchronize(s[2]));
            unset<<<64, 128, 0, s[2]>>>(bits, scratch[0], 4096, words);
            OK(cudaStreamSynchronize(s[2]));
            u32* images;
            OK(cudaMalloc(&images, 4 * n));
            OK(cudaMemsetAsync(images, 0, 4 * n, s[2]));
            OK(cudaStreamSynchronize(s[2]));
            put<<<256, 128, 0, s[2]>>>(images, scratch[1], n);
            OK(cudaStreamSynchronize(s[2]));
            unsigned long long* r;
            OK(cudaMalloc(&r, 8));
            const unsigned long long zero = 0;
            OK(cudaMemcpy(r, &zero, 8, cudaMemcpyHostToDevice));
            OK(cudaStreamSynchronize(0));
            if (flags & 16)
                for (auto& x : scratch) OK(cudaFree(x));
            else kept.insert(kept.end(), scratch, scratch + 6);
            kept.push_back(images);
            masks.push_back(bits);
            results.push_back(r);
        }
        if (flags & 32) OK(cudaDeviceSynchronize());
        for (int part = 0; part < 4; ++part) {
            u32* images = nullptr;
            for (size_t k = 0, at = 0; k < kept.size(); ++k) {
                const bool is = flags & 16 ? true : k % 7 == 6;
                if (is && (int)at++ == part) images = kept[k];
            }
            sum<<<256, 128, 0, flags & 8 ? s[1 + part] : s[2]>>>(results[part], masks[part], words, images, n);
        }
        for (auto& x : s) OK(cudaStreamSynchronize(x));
        unsigned long long total = 0, one;
        for (auto r : results) {
            OK(cudaMemcpy(&one, r, 8, cudaMemcpyDeviceToHost));
            total = total * 31 + one;
        }
        if (round_ == 0) expected = total;
        else if (total != expected) {
            printf("round %d: wrong\n", round_);
            return 1;
        }
        for (auto x : kept) OK(cudaFree(x));
        for (auto x : masks) OK(cudaFree(x));
        for (auto x : results) OK(cudaFree(x));
        OK(cudaFree(big));
        if (flags & 1) OK(cudaHostUnregister(host.data()));
        for (auto& x : s) OK(cudaStreamDestroy(x));
        if (flags & 2) OK(cudaDeviceReset());
    }
    printf("%d rounds, right\n", round_);
    return 0;
}
