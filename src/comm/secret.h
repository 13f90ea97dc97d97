// The secret of a job, by which its ranks know each other: from the environment, from a private file, or, when all
// ranks are on one machine, from a private file that rank 0 writes. Never derived from a job's number, which everybody
// knows.
#pragma once
#include <string>

#include "comm/rank_info.h"

namespace athanor {

struct JobKey {
  std::string secret;  // "": not known yet
  int port = 0;        // where rank 0 listens; 0: on the launcher's port or one of the next
};

class JobSecret {
 public:
  // ATHANOR_SECRET, else the file ATHANOR_SECRET_FILE names (mode 0600, ours). Neither: a file per job in a folder of
  // this user, if the ranks meet on the loopback address; Error(usage) otherwise.
  JobSecret(const RankInfo&, const EnvironmentVariables&);
  ~JobSecret();  // rank 0 removes the file it wrote
  JobSecret(const JobSecret&) = delete;
  JobSecret& operator=(const JobSecret&) = delete;

  // As it is now: before rank 0 has published it there is none.
  JobKey read() const;
  // Rank 0 listens on that port. Its file says so: those who can read it look nowhere else.
  void publish(int port);

 private:
  std::string value_, path_;
  bool ours_ = false;  // path_ is the file of rank 0
};

}  // namespace athanor
