#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "bench/comm/bench.h"
#include "bench/comm/member.h"
#include "cli/commands.h"
#include "cli/registry.h"
#include "common/text/json_writer.h"
#include "common/worker_contract.h"

namespace trainyard::cli {
namespace {

constexpr char kCommFooter[] =
    R"(Starts one process per rank on this machine (with local, one thread per rank). Runs one
collective after another and alternates between the transports. Prints the times of the slowest
rank, as medians over the rounds, and two bandwidths:
  algbw = S / p50
  busbw = algbw x 2(P-1)/P   all_reduce
          algbw x (P-1)/P    reduce_scatter, all_gather, all_to_all, scatter, gather
          algbw              broadcast, reduce, point_to_point
S is the size of the whole buffer, all parts together. For all_to_all it is the size of what one
rank sends. `wire` counts the payload bytes of all ranks, and `formula` is the expected number.
`wrong` counts elements that differ from a reference. For point_to_point, it also counts unanswered
receives that neither a timeout nor cancel() ended. An untimed barrier separates iterations of
broadcast, reduce, scatter and gather.

`raw` is a bare socket pair that does the same additions, and `gloo` is PyTorch's backend. raw/this
and gloo/this are their times divided by the time of the row: above 1, the row is faster. `raw`
measures two pairs, one with the kernel's send buffer and one with the engine's bounded send buffer.
The row names and shows the pair that is faster at that size.

Examples:
  trainyard bench comm
  trainyard bench comm --ops all --transports local,shm,tcp --ranks 3 --max-bytes 1M --rounds 3
  trainyard bench comm --dtype I64 --max-bytes 128M --raw --peer-python /usr/bin/python3 -o json

Exit codes: 0 all results and byte counts are right; 64 wrong usage; 70 a wrong result, a wrong byte
count, or a failed rank; 75 a rank cannot start or does not answer.)";

struct CommOptions {
  bench::CommBenchOptions bench;
  std::vector<std::string> ops = {"all_reduce"};
  std::string dtype = "F32";
  std::string reduce = "sum";
  std::string output = "text";
};

std::vector<std::string> names_of_ops() {
  std::vector<std::string> names;
  for (const comm::Operation op : comm::kOperations)
    names.emplace_back(comm::name_of(op));
  return names;
}

std::string ratio(const std::optional<double>& value) {
  if (!value || !std::isfinite(*value)) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", *value);
  return text;
}

void print_row(const bench::CommBenchRow& row, std::ostream& out) {
  char line[256];
  if (!row.failed.empty()) {
    std::snprintf(line, sizeof line, "%-5s %-14s %12lld  not measured: %.150s\n", row.world.c_str(),
                  std::string(comm::name_of(row.one.op)).c_str(),
                  static_cast<long long>(row.one.bytes), row.failed.c_str());
    out << line << std::flush;
    return;
  }
  const std::string wrong = row.checked ? std::to_string(row.wrong) : "-";
  std::snprintf(line, sizeof line,
                "%-5s %-14s %12lld %12lld %-4s %-4s %10.2f %10.2f %8.3f %8.3f %12lld %12lld %6s "
                "%8s %9s",
                row.world.c_str(), std::string(comm::name_of(row.one.op)).c_str(),
                static_cast<long long>(row.one.bytes), static_cast<long long>(row.one.count()),
                std::string(name_of(row.one.dtype)).c_str(),
                std::string(comm::name_of(row.one.reduce)).c_str(), row.p50_us, row.p99_us,
                row.algbw_GBps(), row.busbw_GBps(), static_cast<long long>(row.bytes_sent),
                static_cast<long long>(row.bytes_expected), wrong.c_str(),
                ratio(row.raw_over_this).c_str(), ratio(row.gloo_over_this).c_str());
  out << line;
  if (!row.send_buffer.empty()) out << "  send buffer: " << row.send_buffer;
  out << "\n" << std::flush;
}

void write_row(text::JsonWriter& json, const bench::CommBenchRow& row) {
  json.begin_object();
  json.key("transport");
  json.string(row.world);
  json.key("op");
  json.string(comm::name_of(row.one.op));
  json.key("ranks");
  json.integer(row.ranks);
  json.key("bytes");
  json.integer(row.one.bytes);
  json.key("count");
  json.integer(row.one.count());
  json.key("dtype");
  json.string(name_of(row.one.dtype));
  json.key("reduce");
  json.string(comm::name_of(row.one.reduce));
  if (!row.failed.empty()) {
    json.key("notMeasured");
    json.string(row.failed);
    json.end_object();
    return;
  }
  json.key("p50Us");
  json.number(row.p50_us);
  json.key("p99Us");
  json.number(row.p99_us);
  json.key("algbwGBps");
  json.number(row.algbw_GBps());
  json.key("busbwGBps");
  json.number(row.busbw_GBps());
  json.key("wireBytes");
  json.integer(row.bytes_sent);
  json.key("formulaBytes");
  json.integer(row.bytes_expected);
  json.key("wrong");
  if (row.checked)
    json.integer(row.wrong);
  else
    json.null();
  json.key("rawOverThis");
  json.number(row.raw_over_this);
  json.key("glooOverThis");
  json.number(row.gloo_over_this);
  if (!row.send_buffer.empty()) {
    json.key("sendBuffer");
    json.string(row.send_buffer);
  }
  json.end_object();
}

void print_json(const bench::CommBenchResult& result, std::ostream& out) {
  text::JsonWriter json;
  json.begin_object();
  json.key("rows");
  json.begin_array();
  for (const bench::CommBenchRow& row : result.rows)
    write_row(json, row);
  json.end_array();
  json.key("peerNote");
  json.string(result.peer_note);
  json.key("faultyRows");
  json.integer(result.faulty);
  json.end_object();
  out << json.take() << "\n";
}

Status check(const CommOptions& options) {
  const bench::CommBenchOptions& bench = options.bench;
  const auto wrong = [](const std::string& what) { return Error{ErrorCode::kInvalidConfig, what}; };
  if (bench.max_bytes < bench.min_bytes) {
    return wrong("--max-bytes: found " + std::to_string(bench.max_bytes) +
                 ", wanted at least --min-bytes (" + std::to_string(bench.min_bytes) + ")");
  }
  if (bench.raw && bench.ranks != 2) {
    return wrong("--raw: wanted --ranks 2, found " + std::to_string(bench.ranks));
  }
  return {};
}

Status run_comm(CommOptions& options, CommandContext& context) {
  TRAINYARD_TRY(check(options));
  bench::CommBenchOptions& bench = options.bench;
  bench.ops.clear();
  for (const std::string& name : options.ops) {
    if (name == "all") {
      bench.ops.assign(comm::kOperations.begin(), comm::kOperations.end());
      break;
    }
    bench.ops.push_back(*bench::op_from_name(name));
  }
  bench.dtype = *dtype_from_name(options.dtype);
  bench.reduce = *bench::reduce_from_name(options.reduce);
  bench.member_command = {"/proc/self/exe", "bench", "comm-member"};
  const bool as_text = options.output == "text";
  if (as_text) {
    context.out << bench.ranks << " ranks, medians of " << bench.rounds << " rounds\n"
                << "world op                    bytes        count type red.     p50 us     p99 us "
                   "   algbw    busbw         wire      formula  wrong raw/this gloo/this\n"
                << std::flush;
  }
  TRAINYARD_ASSIGN(const bench::CommBenchResult result,
                   bench::run_comm_bench(bench, [&](const bench::CommBenchRow& row) {
                     if (as_text) print_row(row, context.out);
                   }));
  if (as_text) {
    context.out << result.rows.size() << " rows, " << result.faulty
                << " with wrong results or bytes; 1 GB/s is 1e9 bytes per second\n";
    if (!result.peer_note.empty()) context.out << result.peer_note << "\n";
  } else {
    print_json(result, context.out);
  }
  if (result.faulty > 0) context.exit_code = contract::kExitBug;
  return {};
}

void add_comm_options(const Command& command, CommOptions& options) {
  bench::CommBenchOptions& bench = options.bench;
  std::vector<std::string> ops = names_of_ops();
  ops.emplace_back("all");
  command.option("--ops", options.ops, "Operations, or all")
      .separated_by(',')
      .one_of(ops)
      .show_default();
  command.option("--transports", bench.worlds, "Transports: local, shm, tcp")
      .separated_by(',')
      .one_of({"local", "shm", "tcp"})
      .show_default();
  command.option("--ranks", bench.ranks, "Number of processes").between(1, 64).show_default();
  command.option("--min-bytes", bench.min_bytes, "Smallest buffer (suffixes K, M, G)")
      .with_suffixes()
      .between(1, int64_t{1} << 34)
      .show_default();
  command.option("--max-bytes", bench.max_bytes, "Largest buffer")
      .with_suffixes()
      .between(1, int64_t{1} << 34)
      .show_default();
  command.option("--factor", bench.factor, "Factor from one size to the next")
      .between(2, 1024)
      .show_default();
  command.option("--dtype", options.dtype, "Type of the elements")
      .one_of({"F32", "BF16", "F16", "F64", "I8", "U8", "U16", "I32", "U32", "I64"})
      .show_default();
  command.option("--reduce", options.reduce, "Reduction operation")
      .one_of({"sum", "min", "max", "prod", "lor"})
      .show_default();
  command.option("--ring-order", bench.ring, "Order of the ranks in the rings")
      .separated_by(',')
      .between(0, 63);
  command
      .option("--rounds", bench.rounds,
              "Rounds over all transports; the figures are medians of the rounds")
      .between(1, 1000)
      .show_default();
  command
      .option("--iterations", bench.iterations,
              "Calls per round; 0: chosen by the size of the buffer")
      .between(0, 1'000'000)
      .show_default();
  command.flag("--raw", bench.raw, "Also measure bare socket pairs that do the same additions");
  command.option("--peer-python", bench.peer_python,
                 "Python interpreter with torch; also measure PyTorch's gloo");
  command.output(options.output);
  command.footer(kCommFooter);
}

/// What `bench comm` starts its ranks by; not for people.
void register_member(const Command& bench, CommandContext& context) {
  const Command member = bench.command("comm-member", "One rank of `bench comm`.");
  member.hide();
  auto arguments = std::make_shared<std::vector<std::string>>();
  member.option("role", *arguments, "Role of the member, in four words").words(4);
  member.runs([arguments, &context] {
    const auto role = bench::decode_role(*arguments);
    finish(role ? bench::run_member(*role, std::cin, std::cout) : Status(role.error()),
           "trainyard bench comm-member", context);
  });
}

}  // namespace

void register_bench(const Command& app, CommandContext& context) {
  const Command bench = app.command("bench", "Runs benchmarks of this build on this machine.");
  bench.require_command();
  const Command comm = bench.command("comm", "Measures the latency and bandwidth of collectives.");
  auto options = std::make_shared<CommOptions>();
  add_comm_options(comm, *options);
  comm.runs([options, &context] {
    finish(run_comm(*options, context), "trainyard bench comm", context);
  });
  register_member(bench, context);
}

}  // namespace trainyard::cli
