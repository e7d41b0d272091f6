// `start -- COMMAND`, the first process of a pod of somebody else's image: makes way for the agent,
// which it starts by the loader that lies beside it.
//
// An image may want its dynamic loader to load libraries into every program first (LD_PRELOAD).
// They are built for the image's libc, and a loader ends a program whose libc is older than they
// want, before the program itself has a say. So what is meant for loaders is put aside for the
// ranks here, in a program that needs no loader: it is linked statically.
#include <cstdio>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include "agent/bundle_layout.h"
#include "common/worker_contract.h"

namespace {

namespace agent = trainyard::agent;

/// ld.so(8): the variables that the dynamic loader of glibc reads; musl's begin with LD_, too.
bool is_for_loaders(std::string_view variable) {
  return variable.starts_with("LD_") || variable.starts_with("GLIBC_TUNABLES=");
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts)
    pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string own = argc > 0 ? argv[0] : "";
  const std::string folder = own.substr(0, own.rfind('/') + 1);  // a pod names the whole path
  std::vector<std::string> command = {folder + agent::kBundleLoader, "--inhibit-cache",
                                      "--library-path", folder + agent::kBundleLibraries,
                                      folder + agent::kBundleProgram};
  for (int i = 1; i < argc; ++i)
    command.emplace_back(argv[i]);
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry)
    environment.push_back((is_for_loaders(*entry) ? agent::kEnvForRanks : "") +
                          std::string(*entry));
  ::execve(command.front().c_str(), pointers_to(command).data(), pointers_to(environment).data());
  std::perror(("trainyard-agent cannot be started: execute " + command.front()).c_str());
  return trainyard::contract::kExitRetry;
}
