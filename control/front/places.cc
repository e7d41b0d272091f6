#include "control/front/places.h"

#include <algorithm>
#include <utility>

namespace trainyard::control {

void Places::add(Id id, const std::string& address) {
  entries_.emplace(id, Entry{address});
  addresses_[address].waiting.push_back(id);
  ++waiting_;
}

/// Takes it out of its address.
void Places::leave(Id id, Entry& entry) {
  if (entry.state == State::kAdmitted) return;
  const auto found = addresses_.find(entry.address);
  Address& address = found->second;
  if (entry.state == State::kWaiting) {
    std::erase(address.waiting, id);
    --waiting_;
  } else {
    address.read.erase(id);
  }
  address.bytes -= entry.bytes;
  bytes_ -= entry.bytes;
  if (address.waiting.empty() && address.read.empty()) addresses_.erase(found);
}

void Places::remove(Id id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  if (found->second.state == State::kAdmitted) --admitted_;
  leave(id, found->second);
  entries_.erase(found);
}

void Places::admit(Id id) {
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.state == State::kAdmitted) return;
  leave(id, found->second);
  found->second.state = State::kAdmitted;
  ++admitted_;
}

void Places::set_bytes(Id id, int64_t bytes) {
  Entry& entry = entries_.at(id);
  if (entry.state == State::kAdmitted) return;
  const int64_t more = bytes - entry.bytes;
  entry.bytes = bytes;
  addresses_.at(entry.address).bytes += more;
  bytes_ += more;
}

std::optional<Places::Id> Places::take_turn(const std::string& address) {
  const auto found = addresses_.find(address);
  if (found == addresses_.end()) return std::nullopt;
  Address& queue = found->second;
  if (queue.waiting.empty() || queue.read.size() >= bounds_.read_per_address) return std::nullopt;
  const Id id = queue.waiting.back();
  queue.waiting.pop_back();
  --waiting_;
  queue.read.insert(id);
  entries_.at(id).state = State::kRead;
  return id;
}

/// Ids rise, so that the lowest has been there for longest.
Places::Id Places::oldest_of(const Address& address) {
  if (address.waiting.empty()) return *address.read.begin();
  if (address.read.empty()) return address.waiting.front();
  return std::min(address.waiting.front(), *address.read.begin());
}

std::optional<Places::Id> Places::excess() const {
  if (addresses_.empty()) return std::nullopt;
  const auto with_most = [&](const auto& amount_of) -> const Address& {
    const auto most =
        std::max_element(addresses_.begin(), addresses_.end(), [&](const auto& a, const auto& b) {
          return std::pair(amount_of(a.second), oldest_of(b.second)) <
                 std::pair(amount_of(b.second), oldest_of(a.second));
        });
    return most->second;
  };
  if (entries_.size() > bounds_.connections) {
    const Address& address =
        with_most([](const Address& some) { return some.waiting.size() + some.read.size(); });
    return address.waiting.empty() ? *address.read.rbegin() : address.waiting.back();
  }
  if (bytes_ > bounds_.bytes_of_all) {
    const std::set<Id>& read = with_most([](const Address& some) { return some.bytes; }).read;
    return *std::max_element(read.begin(), read.end(), [&](Id a, Id b) {
      return entries_.at(a).bytes < entries_.at(b).bytes;
    });
  }
  return std::nullopt;
}

Places::Counts Places::counts() const {
  return {static_cast<int64_t>(entries_.size()), waiting_, admitted_, bytes_};
}

}  // namespace trainyard::control
