/* A libcuda.so.1 without a GPU, for the real cuda.bindings: device memory is host memory, kernels are noted and not run.
   What a launch was given goes to the file named by STUB_LOG, one line each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
typedef void *P;

static void note(const char *format, ...) {
    const char *path = getenv("STUB_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    va_list rest;
    va_start(rest, format);
    vfprintf(file, format, rest);
    va_end(rest);
    fclose(file);
}

R cuInit(unsigned flags) { return 0; }
R cuDriverGetVersion(int *version) { *version = 13000; return 0; }
R cuDeviceGetCount(int *count) { *count = 1; return 0; }
R cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? 101 : 0; }
R cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "Stub GPU"); return 0; }
R cuDeviceTotalMem(size_t *bytes, int device) { *bytes = (size_t)1 << 34; return 0; }
R cuDeviceGetUuid_v2(char *uuid, int device) { for (int i = 0; i < 16; i++) uuid[i] = i * 17; return 0; }
R cuDeviceGetUuid(char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
R cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
        case 75: *value = 9; break;            /* compute capability 9.0 */
        case 76: *value = 0; break;
        case 16: *value = 132; break;
        case 10: *value = 32; break;
        case 97: *value = 232448; break;
        case 38: *value = 60 << 20; break;
        default: *value = 65536;
    }
    return 0;
}
R cuDevicePrimaryCtxRetain(P *context, int device) { *context = (P)0x77; return 0; }
R cuCtxSetCurrent(P context) { return context == (P)0x77 ? 0 : 201; }
R cuCtxSynchronize(void) { return 0; }
R cuMemGetInfo(size_t *available, size_t *total) { *available = 1 << 30; *total = (size_t)1 << 34; return 0; }
R cuMemAlloc(P *pointer, size_t bytes) { return bytes > (size_t)1 << 33 ? 2 : (posix_memalign(pointer, 512, bytes) ? 2 : 0); }
R cuMemFree(P pointer) { free(pointer); return 0; }
typedef struct { char bytes[64]; } Handle;
R cuMemGetAddressRange(P *base, size_t *size, P pointer) {   /* allocations are of 2 MiB at least, and nothing asks for more than 512 bytes in */
    *base = (P)((uintptr_t)pointer & ~(uintptr_t)511);
    *size = 2 << 20;
    return 0;
}
R cuIpcGetMemHandle(Handle *handle, P pointer) { memset(handle, 0x5A, 64); memcpy(handle->bytes + 32, &pointer, 8); return 0; }
R cuIpcOpenMemHandle(P *pointer, Handle handle, unsigned flags) {
    note("open %u %d %d\n", flags, handle.bytes[0], handle.bytes[63]);
    memcpy(pointer, handle.bytes + 32, 8);
    return 0;
}
R cuIpcCloseMemHandle(P pointer) { note("close %p\n", pointer); return 0; }
R cuMemHostAlloc(P *pointer, size_t bytes, unsigned flags) { note("host_alloc %zu %u\n", bytes, flags); return posix_memalign(pointer, 512, bytes); }
R cuMemFreeHost(P pointer) { free(pointer); return 0; }
R cuMemcpyHtoDAsync(P to, P from, size_t bytes, P stream) { memcpy(to, from, bytes); return 0; }
R cuMemcpyDtoHAsync(P to, P from, size_t bytes, P stream) { memcpy(to, from, bytes); return 0; }
R cuMemcpyDtoDAsync(P to, P from, size_t bytes, P stream) { memcpy(to, from, bytes); return 0; }
R cuMemcpyAsync(P to, P from, size_t bytes, P stream) { memcpy(to, from, bytes); return 0; }
R cuMemsetD8Async(uint8_t *to, unsigned char value, size_t count, P stream) { while (count--) *to++ = value; return 0; }
R cuMemsetD16Async(uint16_t *to, unsigned short value, size_t count, P stream) { while (count--) *to++ = value; return 0; }
R cuMemsetD32Async(uint32_t *to, unsigned value, size_t count, P stream) { while (count--) *to++ = value; return 0; }
R cuStreamCreateWithPriority(P *stream, unsigned flags, int priority) { *stream = (P)(0x5000L - priority); note("stream %u %d\n", flags, priority); return 0; }
R cuStreamDestroy(P stream) { return 0; }
R cuStreamSynchronize(P stream) { return 0; }
R cuStreamQuery(P stream) { return stream ? 600 : 0; }
R cuStreamWaitEvent(P stream, P event, unsigned flags) { return 0; }
R cuEventCreate(P *event, unsigned flags) { *event = (P)(0xE000L + flags); return 0; }
R cuEventDestroy(P event) { return 0; }
R cuEventRecord(P event, P stream) { return 0; }
R cuEventQuery(P event) { return 0; }
R cuEventSynchronize(P event) { return 0; }
R cuEventElapsedTime(float *milliseconds, P start, P end) { *milliseconds = 1.5f; return 0; }
R cuModuleLoadData(P *module, const char *image) { *module = (P)0x90; return memcmp(image, "\177ELF", 4) ? 200 : 0; }
R cuModuleGetFunction(P *function, P module, const char *name) { *function = (P)0x91; note("function %s\n", name); return 0; }
R cuFuncGetAttribute(int *value, int attribute, P function) { *value = 40; return 0; }
R cuFuncSetAttribute(P function, int attribute, int value) { note("attribute %d %d\n", attribute, value); return 0; }
R cuFuncSetCacheConfig(P function, int config) { return 0; }
R cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, P function, int threads, size_t shared) { *blocks = 4; return 0; }
R cuLaunchKernel(P function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, P stream,
                 P *parameters, P *extra) {
    note("launch %p grid %u %u %u block %u %u %u shared %u stream %p first %p extra %p aligned %d\n", function, gx, gy, gz, bx, by, bz, shared,
         stream, *(P *)parameters[0], (P)extra, (int)((uintptr_t)parameters[0] % 64 == 0));
    return gx > 1u << 30 ? 1 : 0;
}
typedef struct { int id; char pad[4]; char value[64]; } Attribute;
typedef struct { unsigned gx, gy, gz, bx, by, bz, shared; P stream; Attribute *attributes; unsigned count; } Config;
R cuLaunchKernelEx(const Config *c, P function, P *parameters, P *extra) {
    note("launch_ex %p grid %u %u %u block %u %u %u shared %u stream %p first %p attributes %u", function, c->gx, c->gy, c->gz, c->bx, c->by,
         c->bz, c->shared, c->stream, *(P *)parameters[0], c->count);
    for (unsigned i = 0; i < c->count; i++) note(" %d=%u", c->attributes[i].id, *(unsigned *)c->attributes[i].value);
    note(" aligned %d\n", (int)((uintptr_t)parameters[0] % 64 == 0));
    return 0;
}
R cuStreamBeginCapture(P stream, int mode) { note("capture %d\n", mode); return 0; }
R cuStreamEndCapture(P stream, P *graph) { *graph = (P)0x61; return 0; }
R cuStreamIsCapturing(P stream, int *status) { *status = 0; return 0; }
R cuGraphInstantiateWithFlags(P *executable, P graph, unsigned long long flags) { *executable = (P)0x62; return graph == (P)0x61 ? 0 : 1; }
R cuGraphLaunch(P executable, P stream) { note("graph %p\n", executable); return executable == (P)0x62 ? 0 : 1; }
R cuGraphDestroy(P graph) { return 0; }
R cuGraphExecDestroy(P executable) { return 0; }
R cuTensorMapEncodeTiled(P map, int type, unsigned rank, P address, const uint64_t *shape, const uint64_t *strides, const unsigned *box,
                         const unsigned *steps, int interleave, int swizzle, int promotion, int fill) {
    note("map type %d rank %u address %p shape %lu %lu stride %lu box %u %u swizzle %d aligned %d\n", type, rank, address, shape[0], shape[1],
         strides[0], box[0], box[1], swizzle, (int)((uintptr_t)map % 64 == 0));
    memset(map, 0xAB, 128);
    return 0;
}
R cuGetErrorName(int error, const char **text) { *text = error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_STUB"; return 0; }
R cuGetErrorString(int error, const char **text) { *text = "what the stub means"; return 0; }
R cuGetExportTable(const void **table, const void *id) { return 801; }

static R missing(void) { return 801; }

R cuGetProcAddress_v2(const char *symbol, P *pointer, int version, uint64_t flags, int *status) {
    *pointer = dlsym(RTLD_DEFAULT, symbol);
    if (!*pointer) {
        Dl_info here;
        dladdr((P)cuInit, &here);
        P self = dlopen(here.dli_fname, RTLD_LAZY);
        *pointer = dlsym(self, symbol);
    }
    if (!*pointer) *pointer = (P)missing;
    if (status) *status = 0;
    return 0;
}
R cuGetProcAddress(const char *symbol, P *pointer, int version, uint64_t flags, int *status) {
    return cuGetProcAddress_v2(symbol, pointer, version, flags, status);
}
