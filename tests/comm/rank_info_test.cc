// Rank detection: the variables that every launcher was seen to set, and leaked, incomplete and wrong ones.
#include "comm/rank_info.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace athanor {
namespace {

using Hosts = std::vector<std::string>;

std::string error_of(const RankFlags& flags, const EnvironmentVariables& environment) {
  try {
    find_ranks(flags, environment);
    return "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage) << e.what();
    return e.what();
  }
}

EnvironmentVariables slurm_step() {
  return {{"SLURM_JOB_ID", "42"},        {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "5"},         {"SLURM_NTASKS", "9"},
          {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "2"},         {"SLURM_STEP_NODELIST", "gpu-[007-008,010]"}};
}

TEST(RankInfo, DefaultsToOneRankWithoutALauncher) {
  const RankInfo r = find_ranks({}, {{"HOME", "/nowhere"}});
  EXPECT_EQ(r.rank, 0);
  EXPECT_EQ(r.world, 1);
  EXPECT_EQ(r.launcher, "");
}

TEST(RankInfo, ReadsTorchrunVariables) {
  const EnvironmentVariables env = {{"RANK", "3"},         {"WORLD_SIZE", "8"},      {"LOCAL_RANK", "1"},
                                    {"MASTER_ADDR", "a1"}, {"MASTER_PORT", "12345"}, {"LOCAL_WORLD_SIZE", "2"}};
  RankInfo r = find_ranks({}, env);
  EXPECT_EQ(r.rank, 3);
  EXPECT_EQ(r.world, 8);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.host, "a1");
  EXPECT_EQ(r.port, 12345);
  EnvironmentVariables agent = env;  // the agent's own store sits on MASTER_PORT
  agent["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(find_ranks({}, agent).port, 12346);
}

TEST(RankInfo, OpenMpiOnOneMachineNeedsNoMasterAddress) {
  const RankInfo r = find_ranks({}, {{"OMPI_COMM_WORLD_RANK", "1"},
                                     {"OMPI_COMM_WORLD_SIZE", "4"},
                                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                     {"PMIX_RANK", "1"},
                                     {"PMIX_NAMESPACE", "1234"}});
  EXPECT_EQ(r.rank, 1);
  EXPECT_EQ(r.world, 4);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.host, "127.0.0.1");
  EXPECT_GE(r.port, 61000);
}

TEST(RankInfo, OpenMpiOnSeveralMachinesNeedsMasterAddress) {
  EnvironmentVariables env = {
      {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_NE(error_of({}, env).find("MASTER_ADDR"), std::string::npos);
  env["MASTER_ADDR"] = "head";
  EXPECT_EQ(find_ranks({}, env).host, "head");
}

// mpirun in a batch script: the script's own SLURM_PROCID and SLURM_LOCALID, 0, reach every rank.
TEST(RankInfo, MpirunInsideSlurmIgnoresTheSlurmRankOfTheScript) {
  const RankInfo r = find_ranks({}, {{"OMPI_COMM_WORLD_RANK", "2"},
                                     {"OMPI_COMM_WORLD_SIZE", "4"},
                                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                     {"SLURM_PROCID", "0"},
                                     {"SLURM_LOCALID", "0"},
                                     {"SLURM_NTASKS", "4"},
                                     {"SLURM_JOB_ID", "7"}});
  EXPECT_EQ(r.rank, 2);
  EXPECT_EQ(r.local_rank, -1);  // not Slurm's
}

TEST(RankInfo, ReadsMpichVariables) {
  const RankInfo r = find_ranks(
      {}, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_FD", "9"}});
  EXPECT_EQ(r.rank, 1);
  EXPECT_EQ(r.world, 2);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.host, "127.0.0.1");
}

TEST(RankInfo, ReadsSlurmStepVariables) {
  const RankInfo r = find_ranks({}, slurm_step());
  EXPECT_EQ(r.rank, 5);
  EXPECT_EQ(r.world, 8);  // ranks of the step, not of the job
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.host, "gpu-007");
  EnvironmentVariables next = slurm_step();
  next["SLURM_STEP_ID"] = "1";
  EXPECT_NE(r.port, find_ranks({}, next).port);  // two steps of one job use different ports
  next["SLURM_STEP_NODELIST"] = "gpu-007";
  EXPECT_EQ(find_ranks({}, next).host, "127.0.0.1");
}

TEST(RankInfo, SrunWithPmixUsesSlurmLocalRanks) {
  EnvironmentVariables env = slurm_step();
  env["PMIX_RANK"] = "5", env["PMIX_NAMESPACE"] = "slurm.pmix.42.0";
  EXPECT_EQ(find_ranks({}, env).local_rank, 1);
}

TEST(RankInfo, SrunWithPmi2UsesSlurmHostsAndLocalRanks) {
  EnvironmentVariables env = slurm_step();
  env["PMI_RANK"] = "5", env["PMI_SIZE"] = "8", env["PMI_JOBID"] = "42.0", env["PMI_FD"] = "9";
  const RankInfo r = find_ranks({}, env);
  EXPECT_EQ(r.rank, 5);
  EXPECT_EQ(r.world, 8);
  EXPECT_EQ(r.local_rank, 1);
  EXPECT_EQ(r.host, "gpu-007");
}

TEST(RankInfo, ABatchScriptIsNotARank) {
  const EnvironmentVariables script = {
      {"SLURM_JOB_ID", "42"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NTASKS", "2"}};
  EXPECT_NE(error_of({}, script).find("did you forget srun?"), std::string::npos);
  EnvironmentVariables shell = script;  // the shell of an interactive allocation is a pseudo step
  shell["SLURM_STEP_ID"] = "4294967290";
  EXPECT_NE(error_of({}, shell).find("did you forget srun?"), std::string::npos);
  EnvironmentVariables one = script;
  one["SLURM_NTASKS"] = "1";
  EXPECT_EQ(find_ranks({}, one).world, 1);
}

TEST(RankInfo, FlagsPrecedeTorchrunMpiAndSlurm) {
  EnvironmentVariables env = slurm_step();
  env["MASTER_ADDR"] = "m";
  EXPECT_EQ(find_ranks({}, env).rank, 5);
  env["PMI_RANK"] = "1", env["PMI_SIZE"] = "16";
  EXPECT_EQ(find_ranks({}, env).world, 16);
  env["OMPI_COMM_WORLD_RANK"] = "2", env["OMPI_COMM_WORLD_SIZE"] = "17";
  EXPECT_EQ(find_ranks({}, env).world, 17);
  env["RANK"] = "3", env["WORLD_SIZE"] = "18";
  EXPECT_EQ(find_ranks({}, env).world, 18);
  const RankInfo r = find_ranks({.rank = 4, .world = 19, .local_rank = 2, .rendezvous = "[::1]:77"}, env);
  EXPECT_EQ(r.rank, 4);
  EXPECT_EQ(r.world, 19);
  EXPECT_EQ(r.local_rank, 2);
  EXPECT_EQ(r.host, "::1");
  EXPECT_EQ(r.port, 77);
}

TEST(RankInfo, IncompleteAndInvalidNumbersAreRefused) {
  EXPECT_NE(error_of({}, {{"RANK", "0"}}).find("WORLD_SIZE is not set"), std::string::npos);
  EXPECT_NE(error_of({}, {{"WORLD_SIZE", "2"}}).find("RANK is not set"), std::string::npos);
  EXPECT_NE(error_of({.rank = 0}, {}).find("--world-size"), std::string::npos);
  EXPECT_NE(error_of({.rendezvous = "head:29500"}, {}).find("add --rank and --world-size"), std::string::npos);
  for (const char* bad : {"-1", "x", "1x", "", "99999999999999999999", " 1", "0x1"})
    EXPECT_NE(error_of({}, {{"RANK", bad}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}), "no error") << bad;
  EXPECT_NE(error_of({}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}}).find("rank 2 of 2"), std::string::npos);
  EXPECT_NE(error_of({.rank = 0, .world = 0}, {}).find("rank 0 of 0"), std::string::npos);
  EXPECT_NE(error_of({.rank = 0, .world = 2}, {}).find("MASTER_ADDR"), std::string::npos);
  EXPECT_NE(error_of({}, {{"PMIX_RANK", "0"}}).find("number of ranks"), std::string::npos);
  EXPECT_NE(
      error_of({}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}}).find("65535"),
      std::string::npos);
}

TEST(HostList, ExpandsLikeScontrol) {
  EXPECT_EQ(expand_host_list("n[1-3,5]"), (Hosts{"n1", "n2", "n3", "n5"}));
  EXPECT_EQ(expand_host_list("gpu-a100-[001-002,010],login1"),
            (Hosts{"gpu-a100-001", "gpu-a100-002", "gpu-a100-010", "login1"}));
  EXPECT_EQ(expand_host_list("a[1-2]b[3-4]"), (Hosts{"a1b3", "a1b4", "a2b3", "a2b4"}));
  EXPECT_EQ(expand_host_list("node-12"), (Hosts{"node-12"}));
  EXPECT_EQ(expand_host_list("b[08-11]-ib"), (Hosts{"b08-ib", "b09-ib", "b10-ib", "b11-ib"}));
  EXPECT_EQ(expand_host_list(""), Hosts{});
}

TEST(HostList, MalformedListsAreRefused) {
  for (const char* bad : {"n[1-3", "n[]", "n[3-1]", "n[a]", "n[1-]", "n[-1]", "n[0-99999999999]", "n[1-2,]"})
    EXPECT_THROW(expand_host_list(bad), Error) << bad;
}

TEST(Endpoint, ParsesNamesAddressesAndIpv6) {
  EXPECT_EQ(parse_endpoint("head.cluster:29500").host, "head.cluster");
  EXPECT_EQ(parse_endpoint("[fe80::1]:5").host, "fe80::1");
  EXPECT_EQ(parse_endpoint("[fe80::1]:5").port, 5);
  for (const char* bad : {"", "host", "host:", ":5", "host:0", "host:65536", "fe80::1:5", "[]:5", "host:5x"})
    EXPECT_THROW(parse_endpoint(bad), Error) << bad;
}

}  // namespace
}  // namespace athanor
