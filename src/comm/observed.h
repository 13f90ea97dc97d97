// A communicator that reports when collective calls begin and return: its own, and those of the groups that a
// ProcessMesh splits from it. On devices whose streams run synchronously, a call takes as long as the collective.
#pragma once
#include <memory>
#include <string_view>

#include "comm/communicator.h"

namespace athanor {

class CollectiveObserver {
 public:
  virtual ~CollectiveObserver() = default;
  // kind: "all_reduce", ...; group: what its ranks share or split, such as "tp". CollectiveSubject::name() is the
  // purpose of the call.
  virtual void begins(std::string_view kind, std::string_view group) = 0;
  virtual void ends() = 0;
};

struct CollectiveWatch {
  CollectiveObserver* observer = nullptr;
};

// `watch` must outlive the communicator and all groups of it.
std::unique_ptr<Communicator> observed(std::unique_ptr<Communicator> world, const CollectiveWatch& watch);

// Name of the group that a ProcessMesh splits off as number `split` (comm/mesh.cc); "world" for -1, else "other".
std::string_view group_name(int split);

}  // namespace athanor
