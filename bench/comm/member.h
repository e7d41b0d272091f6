#pragma once

#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "common/base/error.h"

namespace trainyard::bench {

/// What a process of `trainyard bench comm` is.
struct MemberRole {
  /// shm, tcp: one rank; local: all ranks as threads; raw, raw-bounded: one of a raw pair, with
  /// either SendBuffer.
  std::string world = "shm";
  int rank = 0;
  int size = 2;
  std::vector<int> ring;  ///< as comm::Options::ring_order
};

/// Arguments that decode_role understands.
std::vector<std::string> encode(const MemberRole& role);
/// Errors: kInvalidConfig.
Result<MemberRole> decode_role(const std::vector<std::string>& arguments);

/// Serves one process: prints its address (but for local), reads the table of all addresses, then
/// answers every case with one sample a rank, until its input ends. Errors are said in a line
/// "error ..." as well as returned.
Status run_member(const MemberRole& role, std::istream& in, std::ostream& out);

}  // namespace trainyard::bench
