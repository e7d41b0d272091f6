#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

/// What a program shows to Prometheus. Values live where they are kept (shared pages, status); one
/// scrape collects them into an Exposition, so that there is no second copy to go stale.
namespace trainyard::metrics {

enum class Kind { kCounter, kGauge, kHistogram };

/// "counter", "gauge", "histogram".
std::string_view name_of(Kind kind);

/// A family of series, declared once per binary. Base units, named in the unit's plural; counters
/// end in `_total` (https://prometheus.io/docs/practices/naming/).
struct Family {
  std::string_view name;
  Kind kind = Kind::kGauge;
  std::string_view help;
  /// Label names beside `trainer_job` and `trainer_namespace`; empty ones are none.
  std::array<std::string_view, 3> labels{};
};

/// Observations by bucket: counts[i] of at most bounds[i], one count more for the rest.
struct HistogramValue {
  std::span<const double> bounds;
  std::span<const int64_t> counts;
  double sum = 0;
};

/// Of the body that text() returns.
inline constexpr char kTextContentType[] = "text/plain; version=0.0.4";

/// The answer to one scrape. Not thread-safe.
class Exposition {
 public:
  /// Of the job that its series are about: values of the labels `trainer_job` and
  /// `trainer_namespace` on each of them; an empty one is left out. (`job`, `instance` and
  /// `namespace` belong to whoever scrapes.)
  explicit Exposition(std::string trainer_job, std::string trainer_namespace = {});
  Exposition(Exposition&&) noexcept;
  ~Exposition();

  /// The series added from here on are about another job.
  void about(std::string trainer_job, std::string trainer_namespace);
  /// Makes the family appear even where it has no series.
  void declare(const Family& family);
  /// One series; `label_values` are as many as the family has label names. A counter that would be
  /// negative or no number is a bug of the caller.
  void add(const Family& family, std::initializer_list<std::string_view> label_values,
           double value);
  void add(const Family& family, std::initializer_list<std::string_view> label_values,
           const HistogramValue& value);

  /// The text format, version 0.0.4; families in the order they were first met.
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainyard::metrics
