#include "tests/numeric/cuda_engine/call_faults.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <sstream>
#include <string_view>
#include <unistd.h>
#include <utility>

#include "tests/support/paths.h"

namespace trainyard::engine::testing {
namespace {

std::string output_of(const std::string& command) {
  std::string text;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  std::array<char, 4096> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr)
    text += buffer.data();
  pclose(pipe);
  return text;
}

/// "worker/device/cuda_stream" of the path of that source, or of the file that the build includes
/// it in, which the compiler names for some lines of destructors.
std::string unit_of(std::string path) {
  for (const char* const folder : {"/worker/", "/kernels/"}) {
    if (const size_t at = path.rfind(folder); at != std::string::npos) path.erase(0, at + 1);
  }
  constexpr std::string_view kIncluding = "emulated/";
  if (const size_t at = path.find(kIncluding); at != std::string::npos)
    path.erase(at, kIncluding.size());
  return path.substr(0, path.rfind('.'));
}

/// Unit and line of all frames of all places, functions that are inlined included.
std::set<std::pair<std::string, int>> lines_of(
    const std::map<std::vector<const void*>, simt::NumberedCall>& places) {
  std::set<uintptr_t> addresses;
  for (const auto& [place, call] : places) {
    for (const void* const frame : place) {
      Dl_info info{};
      if (dladdr(frame, &info) == 0 || info.dli_fbase == nullptr) continue;
      Dl_info own{};
      dladdr(reinterpret_cast<const void*>(&lines_of), &own);
      if (info.dli_fbase != own.dli_fbase) continue;
      // A return address is behind its call.
      addresses.insert(reinterpret_cast<uintptr_t>(frame) -
                       reinterpret_cast<uintptr_t>(info.dli_fbase) - 1);
    }
  }
  std::ostringstream command;
  command << "addr2line -ie /proc/" << getpid() << "/exe" << std::hex;
  for (const uintptr_t address : addresses)
    command << " 0x" << address;
  std::istringstream lines(output_of(command.str()));
  std::set<std::pair<std::string, int>> found;
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.rfind(':');
    if (colon == std::string::npos) continue;
    const long number = std::strtol(line.c_str() + colon + 1, nullptr, 10);
    found.emplace(unit_of(line.substr(0, colon)), static_cast<int>(number));
  }
  return found;
}

}  // namespace

std::string calls_not_made(const std::vector<std::string>& sources) {
  const auto made = lines_of(simt::call_faults().places);
  std::istringstream calls(output_of(testing_support::source_path("tools/cuda_calls")));
  std::string missing;
  int compared = 0;
  for (std::string call; std::getline(calls, call);) {
    const auto is_of = [&](const std::string& source) { return call.starts_with(source); };
    if (std::none_of(sources.begin(), sources.end(), is_of)) continue;
    ++compared;
    const size_t colon = call.find(':');
    const size_t dash = call.find('-', colon);
    const std::string unit = unit_of(call.substr(0, colon));
    const auto first = made.lower_bound({unit, std::stoi(call.substr(colon + 1))});
    const bool is_made = first != made.end() && first->first == unit &&
                         first->second <= std::stoi(call.substr(dash + 1));
    if (!is_made) missing += call + "\n";
  }
  return compared > 0 ? missing : "tools/cuda_calls lists no calls";
}

}  // namespace trainyard::engine::testing
