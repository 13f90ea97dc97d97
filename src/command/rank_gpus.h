// Assigns GPUs to the ranks of a machine, and describes the assignment in text. Pure functions.
#pragma once
#include <string>
#include <vector>

namespace athanor {

// GPU of this process: the only visible one (chosen by the launcher), else the one at index local_rank. share: several
// ranks may use the same GPU. Throws Error(usage) if there is none.
int choose_gpu(int visible, int local_rank, bool share);

// A rank's GPU, as exchanged among all ranks.
struct RankGpu {
  std::string host, name, uuid;
  bool operator==(const RankGpu&) const = default;
};
std::string to_text(const RankGpu&);
RankGpu parse_rank_gpu(const std::string&);

// Throws Error(usage) naming two ranks that would use the same GPU.
void require_own_gpus(const std::vector<RankGpu>& by_rank);

// "4 ranks: 0-2 on node-a (3 x NVIDIA H200), 3 on node-b (1 x NVIDIA H200)"
std::string roll_call(const std::vector<RankGpu>& by_rank);

}  // namespace athanor
