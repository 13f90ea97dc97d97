// The secret of a job, by which its ranks know each other: from the environment, from a private file, or, when all
// ranks are on one machine, from a private file that rank 0 writes. Never derived from a job's number, which everybody
// knows.
#pragma once
#include <string>

#include "comm/rank_info.h"

namespace athanor {

class JobSecret {
 public:
  // ATHANOR_SECRET, else the file ATHANOR_SECRET_FILE names (mode 0600, ours). Neither: a file per job in a folder of
  // this user, if the ranks meet on the loopback address; Error(usage) otherwise.
  JobSecret(const RankInfo&, const EnvironmentVariables&);
  ~JobSecret();  // rank 0 removes the file it wrote
  JobSecret(const JobSecret&) = delete;
  JobSecret& operator=(const JobSecret&) = delete;

  // As it is now: before rank 0 has written it there is none, and "" is returned.
  std::string read() const;

 private:
  std::string value_, path_;
  bool written_ = false;
};

}  // namespace athanor
