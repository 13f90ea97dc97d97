// Rank of this process, number of ranks and address of the rendezvous: from flags or from the environment variables of
// launchers (torchrun, mpirun of Open MPI and MPICH, srun). Pure: the environment is an argument.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace athanor {

struct RankInfo {
  int rank = 0, world = 1;
  int local_rank = -1;   // among the ranks of this machine; -1: unknown
  std::string launcher;  // which launcher set them; "" for a single rank
  std::string host;      // where rank 0 listens
  int port = 0;          // first port to try
  int listener = -1;     // inherited descriptor that already listens on rank 0; -1: none
  std::string job;       // distinguishes this job from others on the machine; not secret
};

struct RankFlags {
  int rank = -1, world = -1, local_rank = -1;  // -1: not given
  std::string rendezvous;                      // HOST:PORT; "" = not given
};

using EnvironmentVariables = std::map<std::string, std::string>;
EnvironmentVariables process_environment();
std::string value_of(const EnvironmentVariables&, const char* name);  // "" if it is not set

// Precedence: flags, RANK and WORLD_SIZE, OMPI_COMM_WORLD_*, PMI_*, SLURM_*; rank and size come from the same source.
// Slurm's variables count only inside a step: a batch script, and processes that mpirun starts in it, inherit the
// script's values. They precede PMI_* of the same rank and size, which srun sets with PMI-2. Throws Error(usage) for
// incomplete, contradictory or non-numeric values.
RankInfo find_ranks(const RankFlags&, const EnvironmentVariables&);

// "n[1-3,07],login1" -> n1 n2 n3 n07 login1; with several bracket groups the last one varies fastest.
std::vector<std::string> expand_host_list(const std::string& list);

struct Endpoint {
  std::string host;
  int port = 0;
};
Endpoint parse_endpoint(const std::string& text);  // HOST:PORT or [IPV6]:PORT

// The numeric address of a loopback name or address; for localhost always 127.0.0.1, even if it resolves to others. "":
// not a loopback name.
std::string loopback_address(const std::string& host);
bool is_loopback(const std::string& host);

std::string boot_id();  // identifies this boot of the machine, also in its containers; "": unknown

}  // namespace athanor
