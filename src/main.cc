// athanor: see command/cli.cc.
#include "command/command.h"

int main(int argc, char** argv) { return athanor::run_cli(argc, argv); }
