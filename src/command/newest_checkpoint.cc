#include "command/newest_checkpoint.h"

#include <unistd.h>

#include <cstdlib>

#include "base/log.h"

namespace athanor {

int64_t read_newest_checkpoint(int descriptor) {
  int64_t step = -1;
  return pread(descriptor, &step, sizeof step, 0) == ssize_t(sizeof step) ? step : -1;
}

void write_newest_checkpoint(const EnvironmentVariables& environment, int64_t step) {
  const std::string descriptor = value_of(environment, kNewestCheckpointVariable);
  if (descriptor.empty()) return;
  if (pwrite(std::atoi(descriptor.c_str()), &step, sizeof step, 0) != ssize_t(sizeof step))
    log::warn("the launcher does not learn of the checkpoint of step ", step, ": it may give up restarts too early");
}

}  // namespace athanor
