#include "command/rank_gpus.h"

#include <map>

#include "base/error.h"

namespace athanor {

int choose_gpu(int visible, int local_rank, bool share) {
  CHECK(visible > 0 && local_rank >= 0, "local rank ", local_rank, ", ", visible, " GPUs");
  if (visible == 1) return 0;
  if (local_rank < visible) return local_rank;
  if (share) return local_rank % visible;
  throw Error(cat("device: local rank ", local_rank, " (counted from 0) has no GPU: its machine has ", visible,
                  " GPUs; start at most one rank per GPU"),
              Exit::usage);
}

std::string to_text(const RankGpu& gpu) { return cat(gpu.host, "\n", gpu.name, "\n", gpu.uuid); }

RankGpu parse_rank_gpu(const std::string& text) {
  const size_t first = text.find('\n'), last = text.rfind('\n');
  if (first == last)
    throw Error(
        "device: the message that names another rank's GPU is invalid; start the same version of the program on all "
        "ranks");
  return {text.substr(0, first), text.substr(first + 1, last - first - 1), text.substr(last + 1)};
}

void require_own_gpus(const std::vector<RankGpu>& by_rank) {
  std::map<std::string, size_t> owner;
  for (size_t r = 0; r < by_rank.size(); ++r) {
    const auto [entry, free] = owner.try_emplace(by_rank[r].uuid, r);
    if (free) continue;
    throw Error(
        cat("device: ranks ", entry->second, " and ", r, " would share one GPU, the ", by_rank[r].name, " ",
            by_rank[r].uuid, " of ", by_rank[r].host,
            "; start one rank per GPU (or, for tests, set NCCL_MULTI_RANK_GPU_ENABLE=1, which needs NCCL 2.30)"),
        Exit::usage);
  }
}

std::string roll_call(const std::vector<RankGpu>& by_rank) {
  std::string text = cat(by_rank.size(), " ranks:");
  for (size_t first = 0, end = 0; first < by_rank.size(); first = end) {
    while (end < by_rank.size() && by_rank[end].host == by_rank[first].host && by_rank[end].name == by_rank[first].name)
      ++end;
    text += cat(first == 0 ? " " : ", ", first, end - first > 1 ? cat("-", end - 1) : "", " on ", by_rank[first].host,
                " (", end - first, " x ", by_rank[first].name, ")");
  }
  return text;
}

}  // namespace athanor
