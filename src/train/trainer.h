// Trainer: the loop of one run. Opens data and run folder, plans, resumes, trains, evaluates, saves, and always stops
// cleanly.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "comm/rendezvous.h"
#include "config/config.h"
#include "data/loader.h"
#include "data/logit_cache.h"
#include "device/profiler.h"
#include "infer/evaluate.h"
#include "infer/multiple_choice.h"
#include "metrics/environment.h"
#include "metrics/sink.h"
#include "metrics/trace.h"
#include "perf/step_profile.h"
#include "tokenizer/tokenizer.h"
#include "train/checkpointer.h"
#include "train/memory_checkpoints.h"
#include "train/sensor_watch.h"
#include "train/setup.h"
#include "train/signals.h"
#include "train/step_requests.h"

namespace athanor {

struct TrainerOptions {
  StopRequests& stop;               // must outlive the trainer
  ProgramInfo program;              // written to environment.json and the manifest
  std::string commit;               // source revision
  std::string backend_description;  // text for the log
  double most_flops = 0;            // upper bound of the device's FLOP/s, for MFU; 0: unknown, or from its data sheet
  Sensors* sensors = nullptr;       // may be null
  Profiler* profiler = nullptr;     // used for config.profile; null: ops are timed by events
  std::string why_no_profiler;      // reason for having no profiler; "" if none is expected
  CollectiveWatch* collectives = nullptr;                  // watch of the mesh, for config.profile
  bool allow_changed_data = false;                         // resume although the data's fingerprint differs
  std::function<bool(const StepMetrics&)> on_step = {};    // same result on all ranks; false ends the run
  double first_step_seconds = 30;                          // seconds between progress messages during the first step
  std::function<void(Activity, int64_t step)> doing = {};  // called when an activity begins, for ranks that wait
  std::function<void(int64_t step)> on_checkpoint = {};    // called on rank 0 once a checkpoint is complete
};

class Trainer {
 public:
  Trainer(Config, Backend, TrainerOptions);
  ~Trainer();
  Exit run();

 private:
  struct Resume {
    std::string folder;
    RunState state;
    std::optional<RunBranch> branch;  // set if the horizon has changed
    bool in_memory = false;           // not in the save folder
    bool prunes_anew = false;         // the run uses pruning.mask_from, but the resumed run did not
  };
  struct LaunchedStep {
    PhaseTimes host_times;
    int64_t sequences;
  };
  void doing(Activity) const;
  void require_common_start();                            // ranks have the same program, configuration, data
  void open_run();                                        // run folder, lock, sinks, start records
  std::optional<Resume> find_resume();                    // also checks that the config is compatible
  std::string resume_folder(const Verify&) const;         // called on rank 0; "": start from scratch
  bool was_done_before(const std::string& folder) const;  // its run has already applied `load` and `load_step`
  void leave_other_branch(const std::optional<Resume>&);  // acts on rank 0 only
  void check_resume(Resume&);
  void warn_of_rate(const Resume&, const std::vector<ConfigChange>&) const;  // warns if the learning rate rises
  void tune(const std::optional<Resume>&);          // autotunes GEMMs on rank 0; all ranks use the result
  void choose_gemms(const std::optional<Resume>&);  // imports the choices of the resumed run, or autotunes
  void start(const std::optional<Resume>&);
  std::unique_ptr<ModelFolder> find_weights(const std::optional<Resume>&);
  std::unique_ptr<ModelFolder> find_mask(const std::optional<Resume>&);  // null: no mask is taken from a checkpoint
  void add_settings(const std::string& folder);
  void set_weights(const std::optional<Resume>&, const ModelFolder* from, const ModelFolder* mask);
  // Loads a checkpoint except the optimizer state called `without`; statistics that are not logged are left out.
  void load_state(const std::string& folder, const std::string& without = "");
  std::string choose_peak();  // sets the peak of MFU; returns why it changed, or ""
  void show_masked_sample() const;
  void warn_of_full_disk() const;                      // compares the disk with the checkpoints of the run
  void tell_what_is_ahead() const;                     // logs estimated times, before the first step
  void tell_first_step(int64_t done, int64_t micros);  // logs progress of a slow first step
  Exit run_from_start();
  void tell_error(const std::string& text);
  Exit loop();
  std::string shared(const std::string&);  // returns rank 0's value on all ranks
  StepRequests own_requests() const;
  void hear(const StepRequests& of_step);  // of_step: merged requests of all ranks
  int stop_signal() const;                 // 0: none
  bool asked_to_stop();                    // checks now; collective
  bool of_any(bool mine);                  // true if true on any rank
  void open_loader();                      // opens at the next sample, with the step size due there
  void apply_schedules(int64_t step);      // sets the sliding window and the weights of tokens ahead for that step
  bool launch_step();                      // false: discarded because of a stop signal or missing data
  void drop_poisoned_steps();
  [[noreturn]] void end_with_failure();
  [[noreturn]] void leave_with(const std::optional<Error>& mine);
  void collect_step();  // counts and reports the oldest launched step; does not return if a rank failed in it
  // Returns whether choices have overflowed the buffers of experts on any rank; failure_ then names the factor that
  // would have sufficed. All ranks call this together.
  bool finds_overflow(const std::string& where);
  void collect_steps();  // collects all launched steps
  bool out_of_time(int64_t micro_left) const;
  bool pause_due(int64_t step) const;  // true if work after this step needs its result
  void end_rounds();                   // ends the rounds of local updates that end with the last step
  void report(const StepResult&, const LaunchedStep&, float loss_scale);
  void report_spike(const StepMetrics&, const StepState&);
  void count_quantized();
  void report_quantized();
  void count_routing();
  void report_routing();        // warns only once per problem
  void report_pruned();         // reports each matrix, after pruning
  void report_communication();  // reports the profile's collectives
  std::optional<double> noise_scale(const StepState&, double tokens);
  void read_sensors(StepMetrics&);
  void after_step();
  struct EvalSets {
    bool valid = false, choices = false;
    bool any() const { return valid || choices; }
  };
  void evaluate();  // evaluates the sets in owed_
  void evaluate_weights();
  void evaluate_windows();
  void answer_questions();
  void note_loss(double loss);  // of an evaluation: the run ends if it is within stop_at_loss
  void make_up_evaluation(const Resume&);
  int64_t steps_left() const;  // number of steps not launched yet
  void warn_of_short_limit();  // warns if this start ran one step or none
  enum class Wait { no, durable };
  enum class Health { unknown, diverged };
  // Saves the state after the last step unless it is saved already. Wait::no: a failure is reported, and the save is
  // retried later. Wait::durable: the state is durable on return, else throws. Returns false if the state has diverged
  // and is saved as diverged.
  bool save(const char* why, Wait, Health = Health::unknown);
  void begin_save(const char* why, bool diverged);
  void read_engine_state();
  CheckpointOptions checkpoint_options() const;
  SaveExtras save_extras() const;
  std::string folder_in_memory();
  void start_saving_to_memory();
  bool memory_save_due(int64_t step) const;
  void save_to_memory();
  bool has_diverged();
  bool is_skipping() const { return state_.device.skipped_in_row > 0 || state_.device.spikes_in_row > 0; }
  void follow_save();  // advances the background save
  void settle_save();
  void report_save();
  bool eval_due(int64_t step) const;
  bool save_due(int64_t step) const;
  bool quantized_due(int64_t step) const;
  bool wants_to_save() const;  // true if a save is due by this rank's clock
  bool time_is_up() const;
  bool reached_stop() const;
  std::string newest_before_trouble(const Verify&) const;  // checkpoint folder, on rank 0; "": none
  bool roll_back();                                        // returns false if not configured or already done
  Exit finish(Exit);

  Config config_;
  Backend backend_;
  TrainerOptions options_;
  Dataset train_;
  std::optional<Dataset> valid_;
  PackingOptions packing_;
  std::unique_ptr<LogitCache> teacher_logits_;  // may be null
  bool logged_given_up_ = false;
  std::vector<Question> questions_;
  std::vector<int32_t> token_bytes_;      // [vocabulary] of valid_data's tokenizer; empty: unknown
  std::vector<TokenizerFile> tokenizer_;  // the data's tokenizer, as read at the start, and the model's settings of it
  std::string adapter_;                   // adapter.json of checkpoints; empty: all weights are trained
  std::unique_ptr<Engine> engine_;
  std::optional<RunLock> lock_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::optional<MemoryCheckpoints> memory_;  // with checkpoint.memory_interval
  std::unique_ptr<Checkpointer> memory_checkpointer_;
  std::optional<DiskState> on_disk_;  // on rank 0, since the last save: reading it reads all manifests of the folder
  MetricFanOut metrics_;
  std::unique_ptr<TraceWriter> trace_;
  std::unique_ptr<StepProfile> profile_;
  std::unique_ptr<SensorWatch> sensors_;  // null if there are no sensors
  int64_t throttle_alarms_ = 0;           // throttle reasons at the last step
  StopRequests& stop_;
  // With several ranks: requests of any rank, up to the last collected step, that were not handled yet. All ranks
  // collect the same steps at the same points, so all act alike. A single rank checks its own requests when needed.
  StepRequests requests_;
  bool each_alone_ = false;  // each step is collected before the next one is launched
  RunState state_;
  FlopCount flops_;  // per token, with the last window
  double peak_flops_ = 0;
  PhaseClock clock_;
  std::unique_ptr<Loader> loader_;
  std::deque<LaunchedStep> launched_;  // not yet collected
  int64_t launched_samples_ = 0;       // samples of all launched steps: the loader's position
  int64_t step_sequences_ = 0;         // sequences of a step launched now
  bool ended_ = false;                 // on_step has ended the run
  int64_t steps_done_ = 0;             // number of steps in this process
  EvalSets owed_;                      // evaluations due after the last step and not complete; the same on all ranks
  bool making_up_ = false;             // owed_ is from an earlier start
  bool spiking_ = false;               // the last collected steps are enough spikes to trigger a rollback
  StepTable table_;
  PhaseClock::Clock::time_point started_, last_save_;
  int64_t last_saved_step_ = -1;
  std::optional<PhaseClock::Clock::time_point> retry_save_;  // when to retry a failed save
  std::optional<Error> save_failure_;                        // failure of a save on this rank
  bool save_put_off_ = false;                                // no saves until a step succeeds
  bool failed_ = false;                                      // any rank has failed: see failure_
  std::optional<Error> failure_;                     // ends the run; the saved state is after the last good step
  std::vector<int32_t> last_tokens_, last_targets_;  // inputs of the last micro-batch
  bool running_ = false;                             // the log of this run has started
  double micro_seconds_ = 0, save_seconds_ = 0, mean_step_seconds_ = 0;  // latest of each, for the stop budget and ETA
  PhaseClock::Clock::time_point last_progress_;                          // last progress report of the first step
  double first_step_seconds_ = kUnknown;  // seconds from the start in this process to the end of its first step
};

}  // namespace athanor
