// Prints the fastest ways to run a configuration on many described GPUs: `plan --search`.
#pragma once
#include <string>

#include "config/config.h"
#include "plan/rank_plan.h"

namespace athanor {

struct SearchArgs {
  bool search = false, json = false;
  double price = 0;   // price of a GPU hour; 0: unknown
  std::string write;  // file for the configuration of the best candidate
};

void print_search(const Config&, const Cluster&, const SearchArgs&);

}  // namespace athanor
