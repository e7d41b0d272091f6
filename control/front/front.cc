#include "control/front/front.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <csignal>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <utility>

namespace trainyard::control {
namespace {

/// A thousand agents that lost their leader come at once.
constexpr int kBacklog = 4096;
/// What the kernel keeps of a connection that is not read; it doubles the number.
constexpr int kReceiveBufferBytes = 16 << 10;
constexpr int kAcceptsPerTurn = 64;
constexpr int kEventsPerTurn = 256;
/// Between two looks for connections whose time is over; also how long none is accepted when there
/// are no descriptors.
constexpr std::chrono::milliseconds kLookPeriod{200};
/// For what was written to a stream that has ended, and for gRPC to read what its peer said last.
constexpr std::chrono::seconds kEndTime{2};
constexpr std::chrono::seconds kLogPeriod{1};
/// A connection has its own descriptor and the two ends to gRPC; the rest of the program has these.
constexpr rlim_t kOtherDescriptors = 256;
constexpr rlim_t kDescriptorsPerConnection = 3;

// What epoll gives back: a connection's number and which side of it, or one of ours.
constexpr uint64_t kInner = 1;
constexpr uint64_t kSides = 2;
constexpr uint64_t kOwn = uint64_t{1} << 63;  ///< and the place of a listener, or:
constexpr uint64_t kWake = kOwn | (uint64_t{1} << 62);

MonoTime now_mono() {
  return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
}

FrontBounds within_descriptors(FrontBounds bounds) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return bounds;
  const rlim_t left =
      limit.rlim_cur > kOtherDescriptors ? limit.rlim_cur - kOtherDescriptors : limit.rlim_cur / 2;
  bounds.connections =
      std::min(bounds.connections, static_cast<size_t>(left / kDescriptorsPerConnection));
  return bounds;
}

/// Without port.
std::string text_of(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* number =
      address.ss_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr)
          : &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  ::inet_ntop(address.ss_family, number, text.data(), text.size());
  return text.data();
}

/// Brings what epoll asks about `fd` from one set of events to another.
void ask_epoll(int epoll, int fd, uint64_t data, uint32_t& asked, uint32_t wanted) {
  if (asked == wanted) return;
  epoll_event event{};
  event.events = wanted;
  event.data.u64 = data;
  const int operation = wanted == 0 ? EPOLL_CTL_DEL : asked == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  ::epoll_ctl(epoll, operation, fd, &event);
  asked = wanted;
}

}  // namespace

Result<std::unique_ptr<Front>> Front::listen(Options options) {
  TRAINYARD_ASSIGN(TlsServer tls, TlsServer::make(options.identity));
  TRAINYARD_ASSIGN(std::vector<http::Listening> listening, http::listen_at(options.address));
  for (const http::Listening& one : listening) {
    ::setsockopt(one.fd.get(), SOL_SOCKET, SO_RCVBUF, &kReceiveBufferBytes,
                 sizeof kReceiveBufferBytes);
    ::listen(one.fd.get(), kBacklog);
  }
  return std::unique_ptr<Front>(
      new Front(std::move(options), std::move(tls), std::move(listening)));
}

Front::Front(Options options, TlsServer tls, std::vector<http::Listening> listening)
    : options_(std::move(options)),
      tls_(std::move(tls)),
      listening_(std::move(listening)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      places_(within_descriptors(options_.bounds)) {
  const std::string& address = listening_.front().address;
  port_ = std::stoi(address.substr(address.rfind(':') + 1));
  uint32_t asked = 0;
  ask_epoll(epoll_.get(), wake_.get(), kWake, asked, EPOLLIN);
  accepts_ = false;
  ask_listeners(true);
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

Front::~Front() {
  thread_.request_stop();
  (void)::eventfd_write(wake_.get(), 1);
}

void Front::run(const std::stop_token& stop) {
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);  // a peer that has left is an error like others
  while (!stop.stop_requested()) {
    serve_events();
    hear();
    for (const Id id : std::exchange(busy_, {})) {
      const auto at = links_.find(id);
      if (at != links_.end()) pump(at);
    }
    const MonoTime now = now_mono();
    if (now >= next_look_) {
      next_look_ = now + kLookPeriod;
      ask_listeners(true);
      cut_overdue(now);
    }
    note_counts();
  }
}

void Front::serve_events() {
  std::array<epoll_event, kEventsPerTurn> events{};
  const int timeout_ms = busy_.empty() ? static_cast<int>(kLookPeriod.count()) : 0;
  const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsPerTurn, timeout_ms);
  for (int i = 0; i < count; ++i) {
    const uint64_t data = events.at(static_cast<size_t>(i)).data.u64;
    if (data == kWake) continue;  // hear() reads it
    if ((data & kOwn) != 0) {
      accept_some(listening_.at(data & ~kOwn).fd.get());
      continue;
    }
    const auto at = links_.find(data / kSides);
    if (at == links_.end()) continue;
    const bool has_gone = data % kSides != kInner && (events.at(static_cast<size_t>(i)).events &
                                                      (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    if (has_gone && at->second->is_bounded()) {
      close(at);
    } else {
      pump(at);
    }
  }
}

// ---- What others say ---------------------------------------------------------------------------

std::optional<std::string> Front::stream_opened(StreamId stream, int fd) {
  std::optional<std::string> address;
  Id id = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = served_.find(fd);
    if (found == served_.end()) return std::nullopt;
    id = found->second.id;
    address = found->second.address;
    streams_[stream] = id;
  }
  tell({News::Kind::kStreamOpened, id});
  return address;
}

void Front::admit(StreamId stream) {
  Id id = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return;
    id = found->second;
  }
  tell({News::Kind::kAdmitted, id});
}

void Front::stream_closed(StreamId stream) {
  Id id = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return;
    id = found->second;
    streams_.erase(found);
  }
  tell({News::Kind::kStreamClosed, id});
}

void Front::tell(News news) {
  const std::lock_guard lock(mutex_);
  news_.push_back(news);
  if (news_.size() == 1) (void)::eventfd_write(wake_.get(), 1);
}

void Front::hear() {
  eventfd_t count = 0;
  (void)::eventfd_read(wake_.get(), &count);
  std::vector<News> news;
  {
    const std::lock_guard lock(mutex_);
    news = std::exchange(news_, {});
  }
  for (const News& one : news) {
    const auto at = links_.find(one.id);
    if (at == links_.end()) continue;
    Link& link = *at->second;
    switch (one.kind) {
      case News::Kind::kStreamOpened:
        link.deadline = MonoTime::max();
        break;
      case News::Kind::kStreamClosed:
        link.is_ending = true;
        link.deadline = now_mono() + kEndTime;
        break;
      case News::Kind::kAdmitted:
        link.admit();
        places_.admit(one.id);
        start_next(link.address());
        pump(at);
        break;
    }
  }
}

Front::Counts Front::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Front::note_counts() {
  const std::lock_guard lock(mutex_);
  counts_.now = places_.counts();
  counts_.bytes_max = std::max(counts_.bytes_max, counts_.now.bytes);
}

// ---- Connections -------------------------------------------------------------------------------

void Front::ask_listeners(bool to_accept) {
  if (std::exchange(accepts_, to_accept) == to_accept) return;
  for (size_t i = 0; i < listening_.size(); ++i) {
    const uint32_t wanted = to_accept ? uint32_t{EPOLLIN} : 0;
    uint32_t asked = uint32_t{EPOLLIN} - wanted;
    ask_epoll(epoll_.get(), listening_[i].fd.get(), kOwn | i, asked, wanted);
  }
}

void Front::accept_some(int listener) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    UniqueFd socket(::accept4(listener, reinterpret_cast<sockaddr*>(&peer), &size,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        ask_listeners(false);
      return;
    }
    accept_one(std::move(socket), text_of(peer));
  }
}

void Front::accept_one(UniqueFd socket, const std::string& address) {
  const int at_once = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof at_once);
  const Id id = next_id_++;
  const auto at =
      links_
          .emplace(id, std::make_unique<Link>(std::move(socket), address,
                                              now_mono() + options_.bounds.time_to_show))
          .first;
  places_.add(id, address);
  {
    const std::lock_guard lock(mutex_);
    ++counts_.accepted;
  }
  ask(id, *at->second);
  cut_excess();
  start_next(address);
}

/// Reads of an address as many connections as may be.
void Front::start_next(const std::string& address) {
  while (const std::optional<Id> id = places_.take_turn(address)) {
    const auto at = links_.find(*id);
    std::unique_ptr<TlsSession> session = tls_.accept(at->second->outer());
    if (session == nullptr) {
      cut(*id, "there is no memory for its TLS");
      continue;
    }
    at->second->start(std::move(session));
    busy_.push_back(*id);
  }
}

void Front::pump(Links::iterator at) {
  const auto& [id, link] = *at;
  if (!link->is_started()) return;
  const Link::State state = link->pump(options_.bounds.bytes, [&](int fd) {
    {
      const std::lock_guard lock(mutex_);
      served_[fd] = {at->first, at->second->address()};
    }
    options_.serve(fd);
  });
  if (state == Link::State::kEnded) return close(at);
  if (state == Link::State::kAtFault) return cut(id, link->fault());
  if (link->outer() < 0 && !std::exchange(link->is_ending, true))
    link->deadline = now_mono() + kEndTime;
  places_.set_bytes(id, link->bytes_received());
  if (link->is_busy()) busy_.push_back(id);
  ask(id, *link);
  cut_excess();
}

void Front::ask(Id id, Link& link) {
  // A descriptor that is closed has left epoll by itself.
  if (link.outer() < 0) {
    link.outer_asked = 0;
  } else {
    ask_epoll(epoll_.get(), link.outer(), id * kSides, link.outer_asked, link.outer_events());
  }
  if (link.inner() >= 0) {
    ask_epoll(epoll_.get(), link.inner(), id * kSides + kInner, link.inner_asked,
              link.inner_events());
  }
}

void Front::close(Links::iterator at) {
  const Id id = at->first;
  const std::string address = at->second->address();
  {
    const std::lock_guard lock(mutex_);
    const auto served = served_.find(at->second->served());
    if (served != served_.end() && served->second.id == id) served_.erase(served);
  }
  links_.erase(at);
  places_.remove(id);
  start_next(address);
}

void Front::cut(Id id, std::string_view why) {
  const auto at = links_.find(id);
  const MonoTime now = now_mono();
  ++cuts_untold_;
  {
    const std::lock_guard lock(mutex_);
    ++counts_.cut;
  }
  // Whoever floods the port must not flood the log as well.
  if (options_.logger != nullptr && now >= next_log_) {
    next_log_ = now + kLogPeriod;
    options_.logger->info("cutting a connection to the control port",
                          {{"peer", at->second->address()},
                           {"reason", std::string(why)},
                           {"others", std::exchange(cuts_untold_, 0) - 1}});
  }
  close(at);
}

void Front::cut_excess() {
  while (const std::optional<Id> id = places_.excess())
    cut(*id,
        "there are too many connections, or too many bytes of connections whose tokens are not "
        "known yet");
}

void Front::cut_overdue(MonoTime now) {
  std::vector<Id> overdue;
  for (const auto& [id, link] : links_) {
    if (link->deadline <= now) overdue.push_back(id);
  }
  for (const Id id : overdue) {
    const auto at = links_.find(id);
    if (at == links_.end()) continue;
    at->second->is_ending ? close(at) : cut(id, "it has shown no token in time");
  }
}

}  // namespace trainyard::control
