#include "common/contract/progress_figures.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "agent/progress_page.h"
#include "cli/report/history.h"
#include "cli/run/run_metrics.h"
#include "cli/run/snapshot.h"
#include "cli/top/live_state.h"
#include "cli/top/live_view.h"
#include "cli/top/render.h"
#include "cli/top/scrape.h"
#include "common/proto/coordination.pb.h"
#include "control/coordinator/figure_fields.h"
#include "tests/support/temporary_directory.h"

namespace trainyard {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr Time kNow{std::chrono::seconds(1'700'000'000)};

/// Another value for each figure, as a rank that has trained may tell it.
double value_of(size_t slot) { return 0.25 + static_cast<double>(slot); }

template <class F>
void expect_values(const F& figures, const std::string& where) {
  contract::visit_figures(
      [&](const contract::Figure& figure, const auto& value) {
        EXPECT_EQ(value, value_of(figure.slot)) << where << " " << figure.key;
      },
      figures);
}

/// Every figure of the table goes the whole way by its line there: page, message, reading, metrics,
/// snapshot, live state, `top`, JSON and history. A line that is added is held to it as well.
class ProgressFiguresTest : public testing::Test {
 protected:
  ProgressFiguresTest() {
    auto shared = agent::SharedProgressPage::create();
    EXPECT_TRUE(shared);
    contract::ProgressPage& page = shared->page();
    page.phase = static_cast<uint32_t>(contract::Phase::kTraining);
    page.step = 20;
    page.total_steps = 50;
    page.restored_step = 10;
    for (size_t slot = 0; slot < contract::kFigureSlots; ++slot)
      page.figure(slot) = value_of(slot);
    page.magic = contract::kProgressMagic;
    coordination::RankProgress told;
    agent::read_progress(page, told);
    coordination::RankProgress heard;
    EXPECT_TRUE(heard.ParseFromString(told.SerializeAsString()));
    readings_ = {control::reading_of(heard, 0)};
    job_.metadata.name = "tiny";
    job_.spec.engine.emplace();
    status_.phase = api::JobPhase::kRunning;
    snapshot_ = cli::make_snapshot(facts(), kNow);
    live_ = cli::live_state_of({.job_name = "tiny"}, snapshot_);
  }

  cli::RunFacts facts() const { return {.job = &job_, .status = &status_, .readings = &readings_}; }
  std::string metrics() const { return cli::run_metrics_text(facts(), {}, kNow); }

  std::vector<control::RankReading> readings_;
  api::TrainingJob job_;
  api::TrainingJobStatus status_;
  cli::Snapshot snapshot_;
  cli::LiveState live_;
};

TEST_F(ProgressFiguresTest, HaveAPlaceAndNamesOfTheirOwn) {
  std::set<size_t> slots;
  std::set<std::string_view> keys;
  contract::visit_figures([&](const contract::Figure& figure) {
    EXPECT_LT(figure.slot, contract::kFigureSlots) << figure.key;
    EXPECT_TRUE(slots.insert(figure.slot).second) << figure.key;
    EXPECT_TRUE(keys.insert(figure.key).second) << figure.key;
  });
  EXPECT_EQ(slots.size(), contract::kFigures);
}

TEST_F(ProgressFiguresTest, ReachTheReadingAndWhatIsShown) {
  expect_values(readings_[0], "reading");
  expect_values(snapshot_, "snapshot");
  expect_values(live_, "live state");
}

TEST_F(ProgressFiguresTest, OfLaterSlotsTravelToo) {
  coordination::RankProgress progress;
  for (size_t slot = contract::kFigureSlots; slot-- > 0;)
    control::set_figure(progress, slot, value_of(slot));
  for (size_t slot = 0; slot < contract::kFigureSlots; ++slot)
    EXPECT_EQ(control::figure_of(progress, slot), value_of(slot)) << slot;
  EXPECT_EQ(control::figure_of({}, contract::kFigureSlots - 1), 0) << "of an older agent";
}

TEST_F(ProgressFiguresTest, AreMetricsThatTopReads) {
  const std::string text = metrics();
  const auto scraped = cli::live_from_metrics(text, kNow);
  ASSERT_TRUE(scraped);
  contract::visit_figures(
      [&](const contract::Figure& figure, const std::optional<double>& value) {
        if (figure.family.empty()) return;
        std::ostringstream sample;
        sample << figure.family << "{trainer_job=\"tiny\"} " << value_of(figure.slot) << "\n";
        EXPECT_THAT(text, HasSubstr(sample.str()));
        EXPECT_EQ(value, value_of(figure.slot)) << figure.key;
      },
      *scraped);
}

TEST_F(ProgressFiguresTest, AreInTheLiveStateAndOnTopsScreen) {
  const auto read = cli::decode_live(cli::encode_live(live_));
  ASSERT_TRUE(read);
  expect_values(*read, "live.json");
  std::string screen;
  for (const std::string& line : cli::render_top({.now = &live_, .clock = kNow, .columns = 200}))
    screen += line + "\n";
  contract::visit_figures([&](const contract::Figure& figure) {
    if (figure.notation == contract::FigureNotation::kHidden) return;
    EXPECT_THAT(screen, HasSubstr(figure.before)) << figure.key;
    EXPECT_THAT(screen, HasSubstr(figure.after)) << figure.key;
  });
}

TEST_F(ProgressFiguresTest, AreInTheJsonOfARun) {
  std::ostringstream out;
  cli::make_json_view(out)->update(snapshot_);
  const json line = json::parse(out.str());
  contract::visit_figures([&](const contract::Figure& figure) {
    EXPECT_EQ(line.value(figure.key, 0.0), value_of(figure.slot)) << figure.key;
  });
}

TEST_F(ProgressFiguresTest, AreKeptByTheHistory) {
  const testing_support::TemporaryDirectory folder;
  {
    auto writer = cli::HistoryWriter::open(folder.path());
    ASSERT_TRUE(writer);
    (*writer)->add(snapshot_, 1);
  }
  const auto history = cli::read_history(folder.path(), 0);
  ASSERT_TRUE(history);
  ASSERT_EQ(history->points.size(), 1U);
  expect_values(history->points[0], "history.jsonl");
}

TEST_F(ProgressFiguresTest, OfStepsAreUnknownBeforeTheFirst) {
  readings_[0].step = readings_[0].restored_step;
  const cli::Snapshot before = cli::make_snapshot(facts(), kNow);
  contract::visit_figures(
      [&](const contract::Figure& figure, const std::optional<double>& value) {
        EXPECT_EQ(value.has_value(), figure.source == contract::FigureSource::kEvaluation)
            << figure.key;
      },
      before);
}

}  // namespace
}  // namespace trainyard
