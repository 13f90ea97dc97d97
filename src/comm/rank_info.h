// Which rank of how many this process is, and where the ranks meet: from flags, or from the variables that launchers
// set (torchrun, mpirun of Open MPI and MPICH, srun). Pure: the environment is an argument.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace athanor {

struct RankInfo {
  int rank = 0, world = 1;
  int local_rank = -1;   // among the ranks of this machine; -1: nobody said
  std::string launcher;  // who said so; "" for one rank alone
  std::string host;      // where rank 0 listens
  int port = 0;          // the first one to try
  int listener = -1;     // descriptor that rank 0 was started with and that listens there already; -1: none
  std::string job;       // tells this job from others on the same machine; no secret
};

struct RankFlags {
  int rank = -1, world = -1, local_rank = -1;  // -1: not given
  std::string rendezvous;                      // HOST:PORT; "" = not given
};

using EnvironmentVariables = std::map<std::string, std::string>;
EnvironmentVariables process_environment();

// Flags win over RANK and WORLD_SIZE, these over OMPI_COMM_WORLD_*, over PMI_*, over SLURM_*; all of one rank's numbers
// come from the same source. Slurm's variables count only inside a step: a batch script and what mpirun starts in it
// have them too, with the numbers of the script. Throws Error(usage) for what is half given, contradictory or no
// number.
RankInfo find_ranks(const RankFlags&, const EnvironmentVariables&);

// "n[1-3,07],login1" -> n1 n2 n3 n07 login1; several bracket groups vary like digits, the last one fastest.
std::vector<std::string> expand_host_list(const std::string& list);

struct Endpoint {
  std::string host;
  int port = 0;
};
Endpoint parse_endpoint(const std::string& text);  // HOST:PORT or [IPV6]:PORT

// The numeric address that a loopback name or address means: for localhost 127.0.0.1, whatever else has that name. "":
// other machines have this name or address, too.
std::string loopback_address(const std::string& host);
bool is_loopback(const std::string& host);

std::string host_name();  // of this machine

}  // namespace athanor
