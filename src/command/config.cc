// athanor config schema|defaults|reference|validate
#include <memory>

#include "command/command.h"
#include "command/machine.h"
#include "model/adapters.h"
#include "train/setup.h"

namespace athanor {
namespace {

void print_on(Cli& cli, Verb parent, const char* name, const char* help, std::string (*text)()) {
  parent.add_verb(name, help).on_chosen([&cli, text] {
    cli.action = [text] {
      print(text());
      return Exit::done;
    };
  });
}

}  // namespace

void add_config(Cli& cli) {
  Verb verb = cli.app.add_verb("config", "reference of the configuration, and checks of a file");
  verb.require_verb();
  print_on(cli, verb, "schema", "JSON schema of the configuration file", json_schema);
  print_on(cli, verb, "defaults", "all keys with their defaults", defaults);
  print_on(cli, verb, "reference", "the text of configs/README.md", config_reference);
  struct Args {
    std::string config;
    std::vector<std::string> overrides;
  };
  auto args = std::make_shared<Args>();
  Verb validate = verb.add_verb("validate", "check a file and print it with every default filled in");
  validate.add_option("config", args->config, "configuration file").required();
  validate.add_option("--set", args->overrides, "override a key: a.b=value (may repeat)").one_value();
  validate.on_chosen([&cli, args] {
    cli.action = [args] {
      const Config config = load_config_logged(args->config, args->overrides);
      const auto model = make_model(config.model);
      if (config.lora_rank > 0) add_adapters(*model, engine_options(config, true).lora);
      for (const std::string& line : describe_groups(optimizer_options(config), model->params())) log::info(line);
      print(dump_resolved(config));
      return Exit::done;
    };
  });
}

}  // namespace athanor
