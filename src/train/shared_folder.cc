#include "train/shared_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/process_mark.h"
#include "comm/rank_info.h"
#include "comm/texts.h"

namespace athanor {
namespace {

bool appears(const std::string& path, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (struct stat info;;) {
    const bool last = Clock::now() >= end;
    if (stat(path.c_str(), &info) == 0) return true;
    if (last) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

void require_shared_folder(Communicator& ranks, const std::string& folder, double seconds) {
  std::string mark, path;
  if (ranks.rank() == 0) {
    // Uses a new name each time, because file systems may cache that an earlier name does not exist.
    mark = cat("seen-by-all-ranks-", std::random_device{}());
    path = cat(folder, "/", mark);
    write_file(path, "");
  }
  mark = share_text(ranks, mark);
  const bool sees = ranks.rank() == 0 || appears(cat(folder, "/", mark), seconds);
  const std::string blind = first_text(ranks, sees ? "" : cat("rank ", ranks.rank(), " (", host_name(), ")"));
  if (ranks.rank() == 0) unlink(path.c_str());
  const std::string writer = share_text(ranks, host_name());
  if (!blind.empty())
    throw Error(cat("save: ", blind, " does not see what rank 0 (", writer, ") has just written in ", folder,
                    "; every rank writes a part of a checkpoint there, so name a folder of a file system that all ",
                    "machines share, at the same path on each"),
                Exit::usage);
}

}  // namespace athanor
