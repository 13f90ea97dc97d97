#include "train/disk_need.h"

#include <algorithm>

#include "base/error.h"
#include "base/format.h"

namespace athanor {

int64_t checkpoints_to_add(const Config& config, const DiskAtStart& at) {
  const int64_t end = config.train_iters, interval = config.save_interval;
  if (at.step >= end) return 0;
  const int64_t regular = interval > 0 ? end / interval - at.step / interval : 0;
  const bool last_is_regular = interval > 0 && end % interval == 0;
  const int64_t saves = regular + (last_is_regular ? 0 : 1);
  if (config.keep_latest_k == 0) return saves;
  return std::clamp<int64_t>(std::max<int64_t>(2, config.keep_latest_k) - at.existing, 0, saves);
}

std::string lack_of_disk(const Config& config, const DiskAtStart& at) {
  const int64_t count = checkpoints_to_add(config, at);
  if (count == 0 || at.free_bytes / count >= at.checkpoint_bytes) return "";
  return cat(
      "save: the disk of ", config.save, " has ", format_bytes(uint64_t(at.free_bytes)), " free, but ", count,
      " checkpoints of ", format_bytes(uint64_t(at.checkpoint_bytes)),
      config.keep_latest_k == 0 ? " are ahead of this run (save_interval " : " have to fit (checkpoint.keep_latest_k ",
      config.keep_latest_k == 0 ? config.save_interval : config.keep_latest_k, "): free some, ",
      config.keep_latest_k == 0
          ? "set checkpoint.keep_latest_k (with 1 two are there at a time) or a larger save_interval"
          : "lower checkpoint.keep_latest_k",
      ", or choose another folder");
}

}  // namespace athanor
