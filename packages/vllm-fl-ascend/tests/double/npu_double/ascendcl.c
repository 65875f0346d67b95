/* The part of CANN's runtime that torch_npu links against, for machines without CANN.
 *
 * Without HOST_DEVICE there is no device and everything fails. With it there is one device whose
 * memory is the host's: tensors can be allocated, copied and viewed, and nothing can be computed.
 * `stubs.py` adds a failing function for every other name that the wheel needs.
 */
#include <stdlib.h>
#include <string.h>

#define NO_CONTEXT 107002
#define OUT_OF_MEMORY 207001

int aclInit(const char *config) { return 0; }
int aclFinalize(void) { return 0; }
const char *aclrtGetSocName(void) { return "Ascend910B1"; }
const char *aclGetRecentErrMsg(void) { return "no Ascend driver"; }
void aclAppLog(int level, const char *fn, const char *file, unsigned line, const char *format, ...) {}

#ifndef HOST_DEVICE
int aclrtGetDeviceCount(unsigned *count) { *count = 0; return 0; }
#else
static int current = -1;
static int handle(void **made) { *made = malloc(8); return *made ? 0 : OUT_OF_MEMORY; }

int aclrtGetDeviceCount(unsigned *count) { *count = 1; return 0; }
int aclrtSetDevice(int device) { current = device; return 0; }
int aclrtGetDevice(int *device) { *device = current; return current < 0 ? NO_CONTEXT : 0; }
int aclrtResetDevice(int device) { return 0; }
int aclrtSynchronizeDevice(void) { return 0; }
int aclrtGetCurrentContext(void **context) { *context = &current; return 0; }
int aclrtSetCurrentContext(void *context) { return 0; }

int aclrtCreateStream(void **stream) { return handle(stream); }
int aclrtCreateStreamWithConfig(void **stream, unsigned priority, unsigned flag) { return handle(stream); }
int aclrtDestroyStream(void *stream) { return 0; }
int aclrtSynchronizeStream(void *stream) { return 0; }
int aclrtStreamWaitEvent(void *stream, void *event) { return 0; }
int aclrtCreateEventExWithFlag(void **event, unsigned flag) { return handle(event); }
int aclrtDestroyEvent(void *event) { return 0; }
int aclrtSynchronizeEvent(void *event) { return 0; }
int aclrtRecordEvent(void *event, void *stream) { return 0; }

int aclrtMalloc(void **made, size_t size, int policy) {
  *made = aligned_alloc(512, (size + 511) / 512 * 512);
  return *made ? 0 : OUT_OF_MEMORY;
}
int aclrtFree(void *memory) { free(memory); return 0; }
int aclrtMallocHost(void **made, size_t size) { *made = malloc(size); return *made ? 0 : OUT_OF_MEMORY; }
int aclrtFreeHost(void *memory) { free(memory); return 0; }
int aclrtMemcpy(void *to, size_t room, const void *from, size_t size, int kind) {
  memcpy(to, from, size);
  return 0;
}
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, int kind, void *stream) {
  memcpy(to, from, size);
  return 0;
}
int aclrtMemset(void *memory, size_t room, int value, size_t size) { memset(memory, value, size); return 0; }
int aclrtGetMemInfo(int kind, size_t *available, size_t *total) {
  *available = *total = (size_t)64 << 30;
  return 0;
}

/* Looked up by name at first use, so not among the names that the wheel links against. */
int aclrtSetDeviceSatMode(int mode) { return 0; }
int aclrtGetDeviceSatMode(int *mode) { *mode = 1; return 0; }
int aclrtSetOpExecuteTimeOut(unsigned seconds) { return 0; }
int aclrtSetOpWaitTimeout(unsigned seconds) { return 0; }
int aclSetCompileopt(int option, const char *value) { return 0; }
size_t aclGetCompileoptSize(int option) { return 64; }
int aclGetCompileopt(int option, char *value, size_t size) { if (size) value[0] = 0; return 0; }
int aclopSetCompileFlag(int flag) { return 0; }
int aclrtGetSysParamOpt(int option, long long *value) { *value = 0; return 0; }
int aclrtSetSysParamOpt(int option, long long value) { return 0; }
int aclrtCtxGetSysParamOpt(int option, long long *value) { *value = 0; return 0; }
int aclrtCtxSetSysParamOpt(int option, long long value) { return 0; }
#endif
