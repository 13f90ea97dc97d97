// The secret with which the ranks of a job authenticate: from the environment, from a private file, or from a private
// file that rank 0 writes: into a private folder if all ranks are on one machine, else into the save folder that they
// share. It is never derived from the job's number, which is public.
#pragma once
#include <string>

#include "comm/rank_info.h"

namespace athanor {

struct JobKey {
  std::string secret;  // "": not known yet
  int port = 0;        // on which rank 0 listens; 0: the launcher's port or one of the next
};

class JobSecret {
 public:
  // ATHANOR_SECRET, else the file named by ATHANOR_SECRET_FILE (mode 0600, owned by this user). Without either: a file
  // per job, in a private folder if the rendezvous is on the loopback address, else in `save_folder`; Error(usage) if
  // that is "".
  JobSecret(const RankInfo&, const EnvironmentVariables&, const std::string& save_folder = "");
  ~JobSecret();  // calls remove()
  JobSecret(const JobSecret&) = delete;
  JobSecret& operator=(const JobSecret&) = delete;

  // The current key; empty before rank 0 has published it.
  JobKey read() const;
  // Called on rank 0 once it listens on that port. The key file contains the port, so ranks that can read it try no
  // other.
  void publish(int port);
  // On rank 0, once all ranks are connected: removes the file that it wrote.
  void remove();
  // The file into which rank 0 will write the secret, for messages; "": the secret is given.
  const std::string& awaited_file() const { return awaited_; }

 private:
  std::string value_, path_, awaited_;
  bool ours_ = false;  // rank 0 wrote path_
};

}  // namespace athanor
