// What a GPU moves in rows, which limits MTTKRP: bytes a second of rows that are read, and of rows of f64 that are added to, for rows of
// different lengths in tables of different sizes. Prints JSON: {"device", "reads"|"updates": {row bytes: {table bytes: bytes a second}}}.
//
//     nvcc -O3 -arch=native -o device_limits tools/device_limits.cu && ./device_limits
//
// Rows are random, without repetition on purpose; of several widths of loads the best counts. The smallest table fits every L1 cache.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define OK(call)                                                                    \
    do {                                                                            \
        cudaError_t error = (call);                                                 \
        if (error != cudaSuccess) {                                                 \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));          \
            exit(2);                                                                \
        }                                                                           \
    } while (0)

constexpr int THREADS = 256, ROUNDS = 64, AHEAD = 8;

// A number from 0 to rows - 1 that the n-th access reads or adds to.
__device__ uint32_t random_row(uint32_t n, uint32_t rows) {
    n *= 0x9E3779B1u;
    n = (n ^ n >> 15) * 0x85EBCA77u;
    n = (n ^ n >> 13) * 0xC2B2AE3Du;
    return __umulhi(n ^ n >> 16, rows);
}

__device__ double number(double x) { return x; }
__device__ double number(double2 x) { return x.x + x.y; }
__device__ double number(float x) { return x; }

// Every LANES threads read a row of LANES x WORDS numbers, AHEAD rows at a time.
template <class T, int LANES, int WORDS>
__global__ void __launch_bounds__(THREADS) read_rows(const T* table, uint32_t rows, double* sink) {
    const uint32_t lane = threadIdx.x % LANES, group = (blockIdx.x * THREADS + threadIdx.x) / LANES;
    double sum = 0;
    for (uint32_t round = 0; round < ROUNDS; round += AHEAD) {
        T values[AHEAD][WORDS];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            const T* row = table + uint64_t(random_row(group * ROUNDS + round + k, rows)) * (LANES * WORDS);
#pragma unroll
            for (int w = 0; w < WORDS; ++w) values[k][w] = __ldg(row + lane + w * LANES);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; ++k)
#pragma unroll
            for (int w = 0; w < WORDS; ++w) sum += number(values[k][w]);
    }
    if (sum == 1) *sink = sum;
}

// Every LANES threads add to a row of LANES x WORDS sums.
template <int LANES, int WORDS>
__global__ void __launch_bounds__(THREADS) update_rows(double* table, uint32_t rows) {
    const uint32_t lane = threadIdx.x % LANES, group = (blockIdx.x * THREADS + threadIdx.x) / LANES;
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        double* row = table + uint64_t(random_row(group * ROUNDS + round, rows)) * (LANES * WORDS);
#pragma unroll
        for (int w = 0; w < WORDS; ++w) atomicAdd(row + lane + w * LANES, 1.0);
    }
}

static cudaEvent_t begin, end;
static char* table;
static double* sink;

// Bytes a second of `launch`, which moves `bytes` with so many thread blocks: the best of four.
template <class Launch>
double best(double bytes, Launch launch) {
    float least = 1e30f;
    for (int turn = 0; turn < 4; ++turn) {
        OK(cudaEventRecord(begin));
        launch();
        OK(cudaEventRecord(end));
        OK(cudaEventSynchronize(end));
        float milliseconds;
        OK(cudaEventElapsedTime(&milliseconds, begin, end));
        least = std::min(least, milliseconds);
    }
    OK(cudaGetLastError());
    return bytes / (least * 1e-3);
}

constexpr double MOVED = 16e9;

template <class T, int LANES, int WORDS>
double reads(uint64_t table_bytes) {
    const uint64_t row = sizeof(T) * LANES * WORDS, of_block = row * (THREADS / LANES) * ROUNDS;
    const unsigned blocks = unsigned(MOVED / of_block);
    return best(double(blocks) * of_block, [&] {
        read_rows<T, LANES, WORDS><<<blocks, THREADS>>>((const T*)table, uint32_t(table_bytes / row), sink);
    });
}

template <int LANES, int WORDS>
double updates(uint64_t table_bytes) {
    const uint64_t row = sizeof(double) * LANES * WORDS, of_block = row * (THREADS / LANES) * ROUNDS;
    const unsigned blocks = unsigned(MOVED / 4 / of_block);
    return best(double(blocks) * of_block,
                [&] { update_rows<LANES, WORDS><<<blocks, THREADS>>>((double*)table, uint32_t(table_bytes / row)); });
}

int main() {
    const uint64_t tables[] = {65536, 1000000, 4000000, 16000000, 25000000, 65000000, 250000000, 1000000000, 4000000000};
    cudaDeviceProp device;
    OK(cudaGetDeviceProperties(&device, 0));
    OK(cudaMalloc(&table, 4000000000));
    OK(cudaMalloc(&sink, 8));
    OK(cudaMemset(table, 0, 4000000000));
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    printf("{\"device\": \"%s\",\n \"reads\": {", device.name);
    for (int bytes = 32; bytes <= 512; bytes *= 2) {
        printf("%s\n  \"%d\": {", bytes > 32 ? "," : "", bytes);
        for (uint64_t size : tables) {
            double most = 0;
            auto tried = [&](double rate) { most = std::max(most, rate); };
            switch (bytes) {
            case 32: tried(reads<double2, 2, 1>(size)), tried(reads<double, 4, 1>(size)), tried(reads<float, 8, 1>(size)); break;
            case 64: tried(reads<double2, 4, 1>(size)), tried(reads<double, 8, 1>(size)), tried(reads<float, 16, 1>(size)); break;
            case 128: tried(reads<double2, 8, 1>(size)), tried(reads<double, 16, 1>(size)), tried(reads<float, 32, 1>(size)); break;
            case 256: tried(reads<double2, 16, 1>(size)), tried(reads<double, 16, 2>(size)), tried(reads<double, 32, 1>(size)); break;
            default: tried(reads<double2, 32, 1>(size)), tried(reads<double, 16, 4>(size)), tried(reads<double, 32, 2>(size)); break;
            }
            printf("%s\"%llu\": %.4g", size == tables[0] ? "" : ", ", (unsigned long long)size, most);
        }
        printf("}");
    }
    printf("},\n \"updates\": {");
    for (int bytes = 64; bytes <= 512; bytes *= 2) {
        printf("%s\n  \"%d\": {", bytes > 64 ? "," : "", bytes);
        for (uint64_t size : tables) {
            double most = 0;
            auto tried = [&](double rate) { most = std::max(most, rate); };
            switch (bytes) {
            case 64: tried(updates<8, 1>(size)); break;
            case 128: tried(updates<16, 1>(size)), tried(updates<8, 2>(size)); break;
            case 256: tried(updates<16, 2>(size)), tried(updates<32, 1>(size)); break;
            default: tried(updates<16, 4>(size)), tried(updates<32, 2>(size)); break;
            }
            printf("%s\"%llu\": %.4g", size == tables[0] ? "" : ", ", (unsigned long long)size, most);
        }
        printf("}");
    }
    printf("}}\n");
}
