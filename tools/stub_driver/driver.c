/* A driver of NVIDIA's for machines without a GPU: Triton's launchers run over it, and nothing reaches a device.

   It answers as an H100 does, refuses launches and tensor maps that an H100 refuses, and says in a line on the file
   descriptor in STUB_DRIVER_FD what it was given. The rules are those of the CUDA driver API: cuLaunchKernelEx,
   cuTensorMapEncodeTiled. */
#include "cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARED_BYTES 232448
#define LARGEST_X 2147483647u
#define LARGEST_YZ 65535u
#define LARGEST_BOX 256
#define ALIGNED 16

static char names[1 << 14][128];
static unsigned functions;

static int told(void) {
    const char *number = getenv("STUB_DRIVER_FD");
    return number ? atoi(number) : 2;
}

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { *count = 1; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = (CUcontext)1; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { *device = 0; return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { *value = 0; return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { *context = (CUcontext)1; return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache config) { return CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = SHARED_BYTES; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    default: *value = 1000000;
    }
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_INVALID_VALUE ? "invalid argument" : "an error";
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    static size_t modules;
    *module = (CUmodule)++modules;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name) {
    char *own = names[functions++ % (sizeof names / sizeof *names)];
    strncpy(own, name, sizeof *names - 1);
    *f = (CUfunction)own;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f) {
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction f, const CUlaunchConfig *config) {
    *clusters = 1;
    return CUDA_SUCCESS;
}

/* Memory of the host passes for memory of the device. */
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    *(CUdeviceptr *)data = pointer;
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data, CUdeviceptr pointer) {
    for (unsigned i = 0; i < count; i++) *(CUdeviceptr *)data[i] = pointer;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra) {
    const char *wrong = NULL;
    if (!c->gridDimX || !c->gridDimY || !c->gridDimZ || c->gridDimX > LARGEST_X || c->gridDimY > LARGEST_YZ ||
        c->gridDimZ > LARGEST_YZ)
        wrong = "grid";
    if (c->blockDimX * c->blockDimY * c->blockDimZ > 1024) wrong = "threads";
    if (c->sharedMemBytes > SHARED_BYTES) wrong = "shared memory";
    dprintf(told(), "%s launch %s grid %u %u %u threads %u shared %u\n", wrong ? wrong : "ok", (const char *)f,
            c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->sharedMemBytes);
    return wrong ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static unsigned bytes_of(CUtensorMapDataType type) {
    switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32: return 4;
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16: return 2;
    default: return 0;
    }
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
    const unsigned bytes = bytes_of(type);
    const unsigned widest[] = {1u << 20, 32, 64, 128}; /* of no swizzle, and of each by its number */
    const char *wrong = NULL;
    if (!bytes) wrong = "type";
    if ((size_t)address % ALIGNED) wrong = "address";
    if (rank < 1 || rank > 5) wrong = "rank";
    for (unsigned i = 0; i < rank; i++) {
        if (sizes[i] == 0 || sizes[i] > (1ull << 32)) wrong = "size";
        if (box[i] == 0 || box[i] > LARGEST_BOX) wrong = "box";
        if (element_strides[i] == 0 || element_strides[i] > 8) wrong = "element stride";
    }
    for (unsigned i = 0; i + 1 < rank; i++)
        if (strides[i] == 0 || strides[i] % ALIGNED || strides[i] >= (1ull << 40)) wrong = "stride";
    if (box[0] * bytes % ALIGNED) wrong = "width";
    if (swizzle <= CU_TENSOR_MAP_SWIZZLE_128B && box[0] * bytes > widest[swizzle]) wrong = "width of swizzle";
    dprintf(told(), "%s map rank %u width %u bytes %u\n", wrong ? wrong : "ok", rank, box[0], bytes);
    memset(map, 0, sizeof *map);
    return wrong ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
