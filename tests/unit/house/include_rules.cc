#include "tests/unit/house/include_rules.h"

#include <algorithm>
#include <set>

namespace trainyard::house {
namespace {

/// Files under `room` may include quoted paths under `may` only. The first matching room decides.
struct RoomRule {
  std::string_view room;
  std::vector<std::string_view> may;
};

/// In floor order, as docs/ARCHITECTURE.md lists them. A room of worker/ may include itself,
/// kernels/, common/ and these rooms, all of lower floors.
const std::vector<RoomRule>& worker_rooms() {
  static const std::vector<RoomRule> list = {
      {"worker/trace/", {}},
      {"worker/stacks/", {}},
      {"worker/safetensors/", {}},
      {"worker/data/", {}},
      {"worker/device/", {"worker/trace/"}},
      {"worker/model/", {"worker/data/"}},
      {"worker/program/", {}},
      {"worker/comm/", {"worker/device/", "worker/trace/"}},
      {"worker/state/", {"worker/comm/", "worker/device/", "worker/model/"}},
      {"worker/memory/", {"worker/model/", "worker/program/", "worker/state/"}},
      {"worker/engine/",
       {"worker/comm/", "worker/data/", "worker/device/", "worker/memory/", "worker/model/",
        "worker/program/", "worker/state/", "worker/trace/"}},
      {"worker/checkpoint/", {"worker/comm/", "worker/safetensors/", "worker/trace/"}},
      {"worker/hf/",
       {"worker/checkpoint/", "worker/data/", "worker/model/", "worker/safetensors/"}},
      {"worker/job/",
       {"worker/checkpoint/", "worker/comm/", "worker/data/", "worker/device/", "worker/engine/",
        "worker/hf/", "worker/memory/", "worker/model/", "worker/program/", "worker/state/"}},
      {"worker/rank/",
       {"worker/checkpoint/", "worker/comm/", "worker/data/", "worker/device/", "worker/engine/",
        "worker/job/", "worker/program/", "worker/stacks/", "worker/trace/"}},
      {"worker/sample/",
       {"worker/checkpoint/", "worker/comm/", "worker/device/", "worker/engine/", "worker/hf/",
        "worker/job/"}},
      {"worker/matrix/",
       {"worker/comm/", "worker/data/", "worker/device/", "worker/engine/", "worker/job/",
        "worker/state/"}},
      {"worker/main.cc", {"worker/comm/nccl", "worker/rank/"}},
  };
  return list;
}

/// Files under `room` may not include anything under `never`, whatever its room allows.
struct Ban {
  std::string_view room;
  std::vector<std::string_view> never;
  std::string_view why;
};

/// Headers of this library (angle brackets) belong to these files alone.
struct Owner {
  std::string_view library;
  std::vector<std::string_view> files;
};

const std::vector<RoomRule>& room_rules() {
  static const std::vector<RoomRule> list = [] {
    std::vector<RoomRule> rules = {
        {"common/", {"common/"}},
        {"kernels/", {"kernels/", "common/"}},
        {"control/", {"control/", "common/"}},
        {"operator/", {"operator/", "control/", "common/"}},
        {"agent/", {"agent/", "control/", "common/"}},
        {"cli/", {"cli/", "bench/", "control/", "worker/", "kernels/", "common/"}},
        {"bench/operator/", {"bench/", "operator/", "control/", "common/"}},
        {"bench/", {"bench/", "control/", "worker/", "kernels/", "common/"}},
        {"tests/",
         {"tests/", "operator/", "agent/", "cli/", "bench/", "control/", "worker/", "kernels/",
          "common/"}},
    };
    for (const RoomRule& worker : worker_rooms()) {
      rules.push_back(worker);
      rules.back().may.insert(rules.back().may.end(), {worker.room, "kernels/", "common/"});
    }
    return rules;
  }();
  return list;
}

const std::vector<Ban>& bans() {
  static const std::vector<std::string_view> effects = {
      "control/cluster", "control/local", "control/coordinator", "common/base/clock.",
      "common/log",      "common/io",     "common/metrics",
  };
  static const std::vector<Ban> list = {
      {"control/plan", effects, "planning is pure: no cluster, no clock, no log, no files"},
      {"control/policies/", effects, "policies are pure: no cluster, no clock, no log, no files"},
  };
  return list;
}

const std::vector<Owner>& owners() {
  static const std::vector<std::string_view> cuda_places = {
      "kernels/simt/device.h", "kernels/cuda/", "worker/device/cuda", "worker/comm/nccl"};
  static const std::vector<Owner> list = {
      {"cuda", cuda_places},
      {"cublas", cuda_places},
      {"cudnn", {"kernels/cuda/attention_cudnn.cc"}},
      {"nccl", cuda_places},
      {"nvtx3/", cuda_places},
      {"CLI/", {"cli/command.cc", "operator/runtime/"}},
      {"spdlog/", {"common/log/"}},
      {"prometheus/", {"common/metrics/"}},
      {"boost/", {"common/http/", "kernels/simt/emulator/"}},
      {"openssl/",
       {"common/hash/", "common/pem/", "control/front/tls.cc", "operator/kube/tls_setup.cc",
        "operator/stream/certificates.cc", "tests/support/"}},
      {"yaml-cpp/", {"common/"}},
      {"grpcpp/", {"control/coordinator/grpc", "tests/"}},
      {"gtest/", {"tests/"}},
      {"gmock/", {"tests/"}},
      {"benchmark/", {"bench/", "kernels/"}},
  };
  return list;
}

bool is_under(std::string_view path, const std::vector<std::string_view>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return path.starts_with(prefix); });
}

std::string at(const SourceFile& file, const Include& include) {
  return file.path + ":" + std::to_string(include.line) + ": includes " + include.target + ": ";
}

std::string joined(const std::vector<std::string_view>& words) {
  std::string out;
  for (const std::string_view word : words) {
    if (!out.empty()) out += ", ";
    out += word;
  }
  return out;
}

void check_quoted(const SourceFile& file, const Include& include, std::vector<Violation>* out) {
  const auto& rules = room_rules();
  const auto room = std::find_if(rules.begin(), rules.end(), [&](const RoomRule& rule) {
    return file.path.starts_with(rule.room);
  });
  if (room == rules.end()) {
    out->push_back(file.path + ": stands in no room of docs/ARCHITECTURE.md");
    return;
  }
  if (!is_under(include.target, room->may)) {
    out->push_back(at(file, include) + std::string(room->room) + " may include " +
                   joined(room->may) + " only, by paths from the repository's root");
  }
  for (const Ban& ban : bans()) {
    if (file.path.starts_with(ban.room) && is_under(include.target, ban.never)) {
      out->push_back(at(file, include) + std::string(ban.why));
    }
  }
}

void check_angled(const SourceFile& file, const Include& include, std::vector<Violation>* out) {
  for (const Owner& owner : owners()) {
    if (include.target.starts_with(owner.library) && !is_under(file.path, owner.files)) {
      out->push_back(at(file, include) + std::string(owner.library) + " belongs to " +
                     joined(owner.files));
    }
  }
}

bool is_cpprest(const Include& include) {
  return !include.quoted && is_under(include.target, {"cpprest/", "pplx/"});
}

/// x.pb.h and x.grpc.pb.h are generated from x.proto.
std::string proto_of(const std::string& header) {
  for (const std::string_view suffix : {".grpc.pb.h", ".pb.h"}) {
    if (header.ends_with(suffix)) {
      return header.substr(0, header.size() - suffix.size()) + ".proto";
    }
  }
  return "";
}

}  // namespace

std::vector<Include> includes_of(std::string_view text) {
  std::vector<Include> includes;
  int line_number = 0;
  while (!text.empty()) {
    ++line_number;
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const auto skip = [&line](std::string_view set) {
      line.remove_prefix(std::min(line.find_first_not_of(set), line.size()));
    };
    skip(" \t");
    if (!line.starts_with('#')) continue;
    line.remove_prefix(1);
    skip(" \t");
    if (!line.starts_with("include")) continue;
    line.remove_prefix(7);
    skip(" \t");
    if (line.empty() || (line.front() != '"' && line.front() != '<')) continue;
    const bool quoted = line.front() == '"';
    line.remove_prefix(1);
    includes.push_back(
        {line_number, std::string(line.substr(0, line.find(quoted ? '"' : '>'))), quoted});
  }
  return includes;
}

std::vector<Violation> check_file(const SourceFile& file) {
  std::vector<Violation> violations;
  for (const Include& include : includes_of(file.text)) {
    if (include.quoted) {
      check_quoted(file, include, &violations);
    } else {
      check_angled(file, include, &violations);
    }
    if (is_cpprest(include) && !file.path.ends_with(".cc")) {
      violations.push_back(at(file, include) + "cpprestsdk is seen by one .cc, never by a header");
    }
  }
  return violations;
}

std::vector<Violation> check_tree(const std::vector<SourceFile>& files) {
  std::set<std::string> paths;
  for (const SourceFile& file : files)
    paths.insert(file.path);

  std::vector<Violation> violations;
  std::string cpprest_owner;
  for (const SourceFile& file : files) {
    if (!is_code(file.path)) continue;
    for (Violation& violation : check_file(file))
      violations.push_back(std::move(violation));
    bool uses_cpprest = false;
    for (const Include& include : includes_of(file.text)) {
      uses_cpprest = uses_cpprest || is_cpprest(include);
      if (include.quoted && !paths.contains(include.target) &&
          !paths.contains(proto_of(include.target)) && !paths.contains(include.target + ".in")) {
        violations.push_back(at(file, include) + "no such file in the repository");
      }
    }
    if (!uses_cpprest) continue;
    if (!cpprest_owner.empty()) {
      violations.push_back(file.path + ": cpprestsdk already belongs to " + cpprest_owner);
    }
    cpprest_owner = file.path;
  }
  return violations;
}

}  // namespace trainyard::house
