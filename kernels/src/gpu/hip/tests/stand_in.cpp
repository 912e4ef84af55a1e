// A stand-in for the HIP runtime: device memory is host memory, and nothing that is asked of a stream is done before the
// stream is waited for, so that what is overwritten too early shows.
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {
// add_bytes: adds `value` to each of `count` bytes.
struct Args {
    unsigned char* at;
    unsigned count, value;
};
struct Op {
    void* to;
    const void* from;
    size_t bytes;
    int value;
    bool is_kernel;
    Args args;
};
typedef std::vector<Op> Ops;
struct Ipc {
    char bytes[64];
};
Ops stream;
Ops* recording;
int warp_size = 32, devices = 1, allocations;

int ask(const Op& op) {
    (recording ? *recording : stream).push_back(op);
    return 0;
}
void run(const Ops& ops) {
    for (const Op& op : ops) {
        if (op.is_kernel) for (unsigned i = 0; i < op.args.count; i++) op.args.at[i] += op.args.value;
        else if (op.from) memmove(op.to, op.from, op.bytes);
        else memset(op.to, op.value, op.bytes);
    }
}
}  // namespace

extern "C" {
void stand_in_set(int warp, int count) { warp_size = warp, devices = count; }
int stand_in_allocations() { return allocations; }

int hipInit(unsigned) { return 0; }
int hipRuntimeGetVersion(int* version) { return *version = 60342131, 0; }
int hipGetDeviceCount(int* count) { return *count = devices, devices ? 0 : 100; }
int hipSetDevice(int device) { return device < devices ? 0 : 101; }
int hipDeviceGetAttribute(int* value, int which, int) {
    switch (which) {
        case 63: return *value = 96, 0;
        case 74: return *value = 65536, 0;
        case 87: return *value = warp_size, 0;
        default: return 1;
    }
}
int hipDeviceGetName(char* name, int len, int) { return strncpy(name, "a stand-in", len), 0; }
int hipDeviceGetUuid(void* uuid, int) { return memcpy(uuid, "0123456789abcdef", 16), 0; }
int hipDeviceTotalMem(size_t* bytes, int) { return *bytes = 1 << 30, 0; }
int hipGetDevicePropertiesR0600(void* properties, int) {
    memset(properties, 0, 1472);
    strcpy(static_cast<char*>(properties) + 1160, "gfx1100");
    return 0;
}
int hipMemGetInfo(size_t* free, size_t* total) { return *free = 1 << 29, *total = 1 << 30, 0; }
int hipMalloc(void** at, size_t bytes) {
    if (bytes > 1 << 30) return 2;
    allocations++;
    return *at = malloc(bytes), 0;
}
int hipFree(void* at) { return allocations--, free(at), 0; }
int hipHostMalloc(void** at, size_t bytes, unsigned) {
    if (bytes > 1 << 30) return 2;
    return allocations++, *at = malloc(bytes), 0;
}
int hipHostFree(void* at) { return allocations--, free(at), 0; }
int hipHostRegister(void* at, size_t, unsigned flags) { return allocations++, at && flags == 3 ? 0 : 1; }
int hipHostUnregister(void*) { return allocations--, 0; }
int hipIpcGetMemHandle(void* handle, void* at) { return memcpy(handle, &at, sizeof at), 0; }
int hipIpcOpenMemHandle(void** at, Ipc handle, unsigned flags) {
    return memcpy(at, &handle, sizeof *at), flags == 1 ? 0 : 1;
}
int hipIpcCloseMemHandle(void*) { return 0; }
int hipStreamCreateWithFlags(void** at, unsigned flags) { return *at = &stream, flags == 1 ? 0 : 1; }
int hipStreamDestroy(void*) { return 0; }
int hipStreamSynchronize(void* at) {
    if (recording) return 900;
    if (at != &stream) return 400;
    run(stream);
    stream.clear();
    return 0;
}
int hipStreamQuery(void* at) {
    if (recording) return 900;
    if (at != &stream) return 400;
    return stream.empty() ? 0 : 600;
}
int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* at) {
    if (kind < 1 || kind > 3 || at != &stream) return 1;
    return ask({to, from, bytes, 0, false, {}});
}
int hipMemsetAsync(void* to, int value, size_t bytes, void*) { return ask({to, nullptr, bytes, value, false, {}}); }
int hipModuleLoadData(void** module, const void* image) { return *module = const_cast<void*>(image), 0; }
int hipModuleUnload(void*) { return 0; }
int hipModuleGetFunction(void** function, void* module, const char* name) {
    return *function = module, strcmp(name, "add_bytes") ? 500 : 0;
}
int hipModuleLaunchKernel(void*, unsigned x, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned, void*,
                          void** params, void** extra) {
    if (x == 0 || threads > 1024 || extra) return 9;
    return ask({nullptr, nullptr, 0, 0, true, *static_cast<Args*>(params[0])});
}
int hipStreamBeginCapture(void*, int mode) { return recording = new Ops, mode == 2 ? 0 : 1; }
int hipStreamEndCapture(void*, void** graph) { return *graph = recording, recording = nullptr, 0; }
int hipGraphInstantiate(void** runnable, void* graph, void**, char*, size_t) {
    return *runnable = new Ops(*static_cast<Ops*>(graph)), 0;
}
int hipGraphLaunch(void* runnable, void*) {
    for (const Op& op : *static_cast<Ops*>(runnable)) ask(op);
    return 0;
}
int hipGraphDestroy(void* graph) { return delete static_cast<Ops*>(graph), 0; }
int hipGraphExecDestroy(void* runnable) { return delete static_cast<Ops*>(runnable), 0; }
const char* hipGetErrorName(int error) { return error == 9 ? "hipErrorInvalidConfiguration" : "hipErrorOther"; }
const char* hipGetErrorString(int) { return "as the stand-in says"; }
}
