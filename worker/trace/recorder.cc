#include "worker/trace/recorder.h"

#include <algorithm>
#include <limits>

namespace trainyard::trace {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::min();

}  // namespace

Recorder::Recorder(int64_t steps, int64_t spans)
    : steps_(steps), spans_(static_cast<size_t>(std::clamp<int64_t>(spans, 1, kSpansMax))) {}

void Recorder::add(Track track, const Span& span) {
  Ring& ring = rings_[static_cast<size_t>(track)];
  if (ring.added == 0) ring.entries.reserve(spans_);
  const size_t at = ring.added++ % spans_;
  if (at == ring.entries.size()) {
    ring.entries.push_back(span);
  } else {
    ring.entries[at] = span;
  }
}

std::vector<Span> Recorder::in_order(const Ring& ring) const {
  const size_t size = ring.entries.size();
  const size_t kept = std::min<size_t>(ring.added, size);
  std::vector<Span> spans;
  spans.reserve(kept);
  for (uint64_t i = ring.added - kept; i < ring.added; ++i)
    spans.push_back(ring.entries[i % size]);
  return spans;
}

Spans Recorder::newest() const {
  Spans spans;
  // A ring that wrapped holds everything that ended after its oldest entry: steps that began
  // before that may lack parts.
  int64_t whole_from_ns = kNever;
  for (size_t t = 0; t < kTracks; ++t) {
    spans[t] = in_order(rings_[t]);
    const bool wrapped = rings_[t].added > rings_[t].entries.size();
    if (wrapped) whole_from_ns = std::max(whole_from_ns, spans[t].front().end_ns);
  }
  std::vector<int64_t> begins;
  for (const Span& span : spans[static_cast<size_t>(Track::kStep)]) {
    if (span.activity == Activity::kStep && span.begin_ns >= whole_from_ns) {
      begins.push_back(span.begin_ns);
    }
  }
  if (begins.empty() || steps_ < 1) return {};
  const size_t kept = std::min(begins.size(), static_cast<size_t>(steps_));
  const int64_t from_ns = begins[begins.size() - kept];
  for (std::vector<Span>& track : spans) {
    std::erase_if(track, [&](const Span& span) { return span.begin_ns < from_ns; });
  }
  return spans;
}

}  // namespace trainyard::trace
