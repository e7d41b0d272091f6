#include "bench/comm/member.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <memory>
#include <sstream>
#include <string_view>
#include <thread>

#include "bench/comm/case.h"
#include "bench/comm/measure.h"
#include "bench/comm/raw_pair.h"
#include "worker/comm/factory.h"

namespace trainyard::bench {
namespace {

using comm::Communicator;

/// Answers one case: a sample or an error for each rank of this process.
using Answer = std::function<std::vector<Result<Sample>>(const Case&)>;

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

Status serve(const Answer& answer, std::istream& in, std::ostream& out) {
  std::string line;
  while (std::getline(in, line)) {
    TRAINYARD_ASSIGN(const Case one, decode_case(line));
    Status failed;
    for (const auto& sample : answer(one)) {
      if (sample) {
        out << encode(*sample) << "\n";
      } else {
        out << "error " << one_line(sample.error().message) << "\n";
        failed = sample.error();
      }
    }
    out << std::flush;
    TRAINYARD_TRY(std::move(failed));
  }
  return {};
}

/// The order as formulas want it: empty for the ascending one, complete otherwise.
std::vector<int> complete(const MemberRole& role) {
  std::vector<int> ring;
  for (const int rank : role.ring) {
    if (rank < role.size) ring.push_back(rank);
  }
  if (ring.empty()) return ring;
  for (int rank = 0; rank < role.size; ++rank) {
    if (std::find(ring.begin(), ring.end(), rank) == ring.end()) ring.push_back(rank);
  }
  return ring;
}

comm::Options options_of(const MemberRole& role, int rank) {
  comm::Options options;
  options.rank = rank;
  options.job_uid = "bench-comm";
  options.ring_order = role.ring;
  for (int peer = 0; peer < role.size; ++peer)
    options.endpoints.push_back({peer, "this-host", ""});
  return options;
}

Status serve_threads(const MemberRole& role, std::istream& in, std::ostream& out) {
  auto world = std::make_shared<comm::LocalWorld>();
  std::vector<std::unique_ptr<Communicator>> ranks(static_cast<size_t>(role.size));
  std::vector<Status> met(ranks.size());
  const auto on_all = [&](const std::function<void(size_t)>& body) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      threads.emplace_back(body, rank);
    for (std::thread& thread : threads)
      thread.join();
  };
  on_all([&](size_t rank) {
    auto made = comm::make_local_communicator(options_of(role, static_cast<int>(rank)), world);
    if (made)
      ranks[rank] = *std::move(made);
    else
      met[rank] = std::move(made).error();
  });
  for (Status& status : met)
    TRAINYARD_TRY(std::move(status));
  const std::vector<int> ring = complete(role);
  return serve(
      [&](const Case& one) {
        std::vector<Result<Sample>> samples(ranks.size());
        on_all([&](size_t rank) { samples[rank] = measure(*ranks[rank], one, ring); });
        return samples;
      },
      in, out);
}

Status serve_rank(const MemberRole& role, std::istream& in, std::ostream& out) {
  TRAINYARD_ASSIGN(comm::Listener listener, comm::Listener::bind("127.0.0.1"));
  out << listener.address() << std::endl;
  comm::Options options = options_of(role, role.rank);
  std::string line;
  std::getline(in, line);
  std::istringstream table(line);
  for (comm::Endpoint& endpoint : options.endpoints)
    table >> endpoint.address;
  if (!table) return Error{ErrorCode::kInvalidData, "no table of addresses: '" + line + "'"};
  if (role.world.starts_with("raw")) {
    const auto buffer = role.world == "raw" ? SendBuffer::kKernels : SendBuffer::kBounded;
    TRAINYARD_ASSIGN(UniqueFd connection,
                     connect_pair(role.rank, listener.fd(), options.endpoints[0].address, buffer));
    RawPair pair(std::move(connection), role.rank);
    return serve([&](const Case& one) { return std::vector{pair.measure(one)}; }, in, out);
  }
  const auto kind = role.world == "tcp" ? comm::TransportKind::kTcp : comm::TransportKind::kShm;
  TRAINYARD_ASSIGN(const auto communicator,
                   comm::make_communicator(kind, options, std::move(listener)));
  const std::vector<int> ring = complete(role);
  return serve([&](const Case& one) { return std::vector{measure(*communicator, one, ring)}; }, in,
               out);
}

/// For the ring as it comes: the command line refuses empty words.
constexpr char kByRank[] = "by-rank";

}  // namespace

std::vector<std::string> encode(const MemberRole& role) {
  std::string ring;
  for (const int rank : role.ring)
    ring += (ring.empty() ? "" : ",") + std::to_string(rank);
  return {role.world, std::to_string(role.rank), std::to_string(role.size),
          ring.empty() ? kByRank : ring};
}

Result<MemberRole> decode_role(const std::vector<std::string>& arguments) {
  const Error wrong{ErrorCode::kInvalidConfig,
                    "a member wants four arguments: shm, tcp, local, raw or raw-bounded; rank; "
                    "size; ring or by-rank"};
  if (arguments.size() != 4) return wrong;
  MemberRole role;
  role.world = arguments[0];
  const auto number = [](const std::string& text, int& out) {
    const auto end = text.data() + text.size();
    return std::from_chars(text.data(), end, out).ptr == end && !text.empty();
  };
  constexpr std::array<std::string_view, 5> kWorlds = {"shm", "tcp", "local", "raw", "raw-bounded"};
  const bool known = std::find(kWorlds.begin(), kWorlds.end(), role.world) != kWorlds.end();
  if (!known || !number(arguments[1], role.rank) || !number(arguments[2], role.size) ||
      role.size < 1 || role.rank < 0 || role.rank >= role.size) {
    return wrong;
  }
  if (arguments[3] == kByRank) return role;
  std::istringstream ring(arguments[3]);
  for (std::string word; std::getline(ring, word, ',');) {
    int rank = 0;
    if (!number(word, rank)) return wrong;
    role.ring.push_back(rank);
  }
  return role;
}

Status run_member(const MemberRole& role, std::istream& in, std::ostream& out) {
  Status status = role.world == "local" ? serve_threads(role, in, out) : serve_rank(role, in, out);
  if (!status) out << "error " << one_line(status.error().message) << std::endl;
  return status;
}

}  // namespace trainyard::bench
