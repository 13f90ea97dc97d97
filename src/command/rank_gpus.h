// Which GPU each rank of a machine takes, and who is where, in words. Pure.
#pragma once
#include <string>
#include <vector>

namespace athanor {

// GPU of this process: the only visible one (the launcher chose), else the one with its local rank's number.
// share: ranks may take turns at too few. Throws Error(usage) where there is none.
int choose_gpu(int visible, int local_rank, bool share);

// A rank's GPU as all ranks tell each other.
struct RankGpu {
  std::string host, name, uuid;
  bool operator==(const RankGpu&) const = default;
};
std::string to_text(const RankGpu&);
RankGpu parse_rank_gpu(const std::string&);

// Throws Error(usage) naming two ranks that would have one GPU.
void require_own_gpus(const std::vector<RankGpu>& by_rank);

// "4 ranks: 0-2 on node-a (3 x NVIDIA H200), 3 on node-b (1 x NVIDIA H200)"
std::string roll_call(const std::vector<RankGpu>& by_rank);

}  // namespace athanor
