#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "common/io/last_words.h"

int main(int argc, char** argv) {
  trainyard::say_last_words("trainyard", trainyard::LastWords::kText);
  // Where a parent ignores it, the kernel keeps no exit status of children.
  std::signal(SIGCHLD, SIG_DFL);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return trainyard::cli::run(arguments, std::cout, std::cerr);
}
