// The libraries of this machine: every build can say what is installed; what is installed has all functions wanted.
#include "cuda/libraries/specs.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

TEST(Libraries, EachIsUsableOrReportsAProblemWithItsName) {
  std::vector<LibraryReport> reports = probe_libraries(search_places(library_specs()));
  ASSERT_EQ(reports.size(), 7u);
  for (const LibraryReport& report : reports) {
    SCOPED_TRACE(report.name + ": " + report.path + report.problem);
    EXPECT_NE(report.path.empty(), report.problem.empty());
    if (!built_with_cuda_libraries()) {
      EXPECT_NE(report.problem.find("headers"), std::string::npos);
    }
    const bool needs_driver = report.name == "NVML" || report.name == "CUPTI";  // to tell its version
    if (report.problem.empty() && !needs_driver) {
      EXPECT_GT(report.version.major, 0);
    }
  }
}

TEST(Libraries, AllMissingIsReportedWithPackages) {
  SearchPlaces nowhere;
  nowhere.system = false;
  for (const LibraryReport& report : probe_libraries(nowhere)) {
    EXPECT_TRUE(report.path.empty());
    EXPECT_NE(report.problem.find("install"), std::string::npos) << report.problem;
  }
}

TEST(Libraries, SpecsAreComplete) {
  for (const LibrarySpec& spec : library_specs()) {
    EXPECT_EQ(spec.variable.rfind("ATHANOR_", 0), 0u) << spec.name;
    EXPECT_NE(spec.file.find(".so."), std::string::npos) << spec.name;
    EXPECT_FALSE(spec.packages.empty()) << spec.name;
    EXPECT_GT(spec.oldest.major, 0) << spec.name;
  }
}

// An NCCL of 2.14 lacks functions that the program does not call; one that it calls is named.
TEST(Libraries, OldNcclNeedsOnlyTheCalledFunctions) {
  if (!built_with_cuda_libraries()) GTEST_SKIP() << "built without CUDA's headers";
  const std::string called[] = {"ncclGetErrorString", "ncclGetLastError", "ncclGetUniqueId", "ncclCommInitRankConfig",
                                "ncclCommFinalize",   "ncclCommDestroy",  "ncclCommAbort",   "ncclCommGetAsyncError",
                                "ncclBroadcast",      "ncclAllReduce",    "ncclAllGather",   "ncclSend",
                                "ncclRecv",           "ncclGroupStart",   "ncclGroupEnd",    "ncclReduceScatter"};
  const testing::TempDir folder;
  const auto problem_without = [&](const std::string& missing) {
    const std::string source = cat(folder.path(), "/nccl", missing, ".c"), file = cat(source, ".so");
    std::string text = "int ncclGetVersion(int* version) { *version = 21403; return 0; }\n";
    for (const std::string& name : called)
      if (name != missing) text += cat("int ", name, "(void) { return 0; }\n");
    write_file(source, text);
    EXPECT_EQ(std::system(cat("cc -shared -fPIC -w -o '", file, "' '", source, "'").c_str()), 0);
    for (const LibraryReport& report : probe_libraries({.overrides = {{"ATHANOR_NCCL", file}}}))
      if (report.name == "NCCL") return report.problem;
    return std::string("not probed");
  };
  EXPECT_EQ(problem_without("none"), "");
  const std::string problem = problem_without("ncclReduceScatter");
  EXPECT_NE(problem.find("has no function ncclReduceScatter"), std::string::npos) << problem;
}

// If the toolkit with its libraries is installed, three of them must be found: a search that finds nothing passes the
// tests above.
TEST(Libraries, ToolkitIsFound) {
  const char* toolkit = std::getenv("CUDA_HOME");
  if (!built_with_cuda_libraries() || !toolkit) GTEST_SKIP() << "no CUDA_HOME";
  SearchPlaces places;
  places.system = false;
  places.cuda_folders = {toolkit};
  std::vector<LibraryReport> reports = probe_libraries(places);
  EXPECT_EQ(reports[0].problem, "");
  EXPECT_GE(reports[0].version, (Version{13, 0, 0}));
  if (!reports[1].path.empty()) {
    EXPECT_EQ(reports[1].version.major, 9);
  }
  if (!reports[2].path.empty()) {
    EXPECT_EQ(reports[2].version.major, 13);  // NVRTC
  }
  if (!reports[3].path.empty()) {
    EXPECT_EQ(reports[3].version.major, 2);
  }
}

}  // namespace
}  // namespace athanor
