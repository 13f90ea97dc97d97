#include "command/plan.h"

#include <cmath>
#include <cstdio>
#include <set>

#include "base/error.h"
#include "base/format.h"

namespace athanor {
namespace {

constexpr double kNoticed = 0.001;  // fraction of the time; a smaller gain does not justify a spare node

void print_share(const char* what, double seconds, const ClusterTimes& of, const char* why) {
  std::printf("  %-12s %6.2f %%  %s\n", what, 100 * seconds / of.all(), why);
}

// Prints the effect of halving one parameter on the effective training time.
void print_halves(const ClusterRun& run, int courses, double effective) {
  const auto with = [&](const char* what, double ClusterRun::*member, double factor) {
    ClusterRun other = run;
    other.*member *= factor;
    const double now = simulate_many(other, courses).times.effective();
    std::printf("  %-34s %6.2f %%  %+.2f\n", what, 100 * now, 100 * (now - effective));
  };
  print("\nwith another assumption            effective\n");
  with("half the failures", &ClusterRun::mtbf_hours, 2);
  with("half the time of a restart", &ClusterRun::restart, 0.5);
  with("half the time to notice a failure", &ClusterRun::detection, 0.5);
  with("half the stall of a save", &ClusterRun::save_stall, 0.5);
  if (run.save_write > run.save_stall) with("half the time until saves are durable", &ClusterRun::save_write, 0.5);
  with("twice the time between saves", &ClusterRun::save_every, 2);
}

}  // namespace

void print_cluster(const Config& config, const ClusterArgs& args) {
  ClusterRun run = args.run;
  const auto courses = int(args.courses);
  const double mean = 1 / run.failures_per_second();
  if (mean < run.detection + run.restart)
    throw Error(cat("plan --simulate: ", run.gpus, " GPUs fail every ", format_duration(mean),
                    ", and noticing that and starting again take ", format_duration(run.detection + run.restart),
                    ": such a cluster trains almost never; raise --mtbf-hours, or lower --restart or --gpus"),
                Exit::usage);
  constexpr double kMostFailures = 1e5;
  if (const double all = run.days * 86400 / mean; all > kMostFailures)
    throw Error(cat("plan --simulate: ", format_count(all), " failures in ", run.days, " days are more than the ",
                    format_count(kMostFailures), " that can be simulated; lower --days"),
                Exit::usage);
  const double best = best_interval(run, courses);
  const char* whose = "--save-every";
  if (run.save_every == 0) {
    run.save_every = 60 * config.save_interval_minutes, whose = "checkpoint.interval_minutes";
    if (run.save_every == 0) run.save_every = best, whose = "the best of those tried";
  }
  const ClusterMean now = simulate_many(run, courses);
  const ClusterTimes& t = now.times;
  std::printf(
      "%lld GPUs on %lld nodes for %g days, each GPU fails once in %s hours: every %s, %.0f times (%.0f expected)\n",
      static_cast<long long>(run.gpus), static_cast<long long>(run.nodes()), run.days,
      format_count(run.mtbf_hours).c_str(), format_duration(mean).c_str(), t.failures,
      run.failures_per_second() * run.days * 86400);
  std::printf("effective training time  %.2f %%, in one course of %lld +- %.2f\n", 100 * t.effective(),
              static_cast<long long>(args.courses), 100 * now.deviation);
  print_share(
      "saving", t.saving, t,
      cat("a save of ", format_duration(run.save_stall), " every ", format_duration(run.save_every), " (", whose, ")")
          .c_str());
  print_share("lost", t.lost, t, "training since the last durable save before a failure");
  print_share("restarting", t.restarting, t,
              cat(format_duration(run.detection), " until a failure is noticed, ", format_duration(run.restart),
                  " until training goes on")
                  .c_str());
  print_share("waiting", t.waiting, t,
              run.spares < 0 ? "always enough spare nodes" : "for a node, where no spare is left");
  ClusterRun other = run;
  other.save_every = best;
  std::printf("\nbest save interval       %s by simulation (%.2f %% effective), %s by Young's formula, %s by Daly's\n",
              format_duration(best).c_str(), 100 * simulate_many(other, courses).times.effective(),
              format_duration(young_interval(run)).c_str(), format_duration(daly_interval(run)).c_str());
  const int64_t needed = spares_needed(run, courses, kNoticed);
  std::printf("spare nodes that matter  %lld: with more, less than %.1f %% of the time is gained (a repair takes %s)\n",
              static_cast<long long>(needed), 100 * kNoticed, format_duration(run.repair_hours * 3600).c_str());
  for (const int64_t spares : std::set{int64_t{0}, needed / 4, needed / 2, 3 * needed / 4, needed}) {
    ClusterRun fewer = run;
    fewer.spares = spares;
    std::printf("  %4lld spare nodes: %6.2f %% effective\n", static_cast<long long>(spares),
                100 * simulate_many(fewer, courses).times.effective());
  }
  print_halves(run, courses, t.effective());
}

}  // namespace athanor
