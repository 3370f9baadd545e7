/* A small libnvidia-ml.so.1: what nvidia-ml-py calls, answered from the environment. 0 = success, 1 = uninitialised,
   3 = not supported, 4 = no permission, 6 = not found. Layouts as in NVIDIA's nvml.h. */
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } utilization_t;

static int status(const char *name) { const char *v = getenv(name); return v ? atoi(v) : 0; }
static const char *text(const char *name, const char *fallback) { const char *v = getenv(name); return v ? v : fallback; }

int nvmlInit_v2(void) { return status("FAKE_INIT"); }
int nvmlInitWithFlags(unsigned int flags) { (void)flags; return status("FAKE_INIT"); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "fake error"; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) { (void)index; *handle = (void *)1; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  if (strcmp(uuid, text("FAKE_UUID", "GPU-1234"))) return 6;
  *handle = (void *)1;
  return 0;
}
int nvmlDeviceGetName(void *handle, char *name, unsigned int length) {
  (void)handle; strncpy(name, text("FAKE_NAME", "Tesla T4"), length); return status("FAKE_NAME_STATUS");
}
int nvmlSystemGetDriverVersion(char *version, unsigned int length) { strncpy(version, "550.54.15", length); return 0; }
int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
  (void)handle;
  memory->total = (unsigned long long)status("FAKE_MEMORY_GIB") << 30;
  memory->used = memory->total / 4;
  memory->free = memory->total - memory->used;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, utilization_t *utilization) {
  (void)handle; utilization->gpu = 73; utilization->memory = 20; return status("FAKE_UTILIZATION");
}
int nvmlDeviceGetTemperature(void *handle, unsigned int sensor, unsigned int *degrees) {
  (void)handle; (void)sensor; *degrees = 61; return status("FAKE_TEMPERATURE");
}
int nvmlDeviceGetPowerUsage(void *handle, unsigned int *milliwatts) {
  (void)handle; *milliwatts = 70500; return status("FAKE_POWER");
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
  (void)handle; *reasons = 0x20 | 0x04; return status("FAKE_THROTTLE");
}
