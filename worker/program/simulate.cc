#include "worker/program/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "common/base/check.h"
#include "worker/program/meeting.h"
#include "worker/program/rank_rules.h"

namespace trainyard::engine {
namespace {

using Kind = InstructionKind;

/// Rounds whose times differ by less, of the time until then, last equally long.
constexpr double kSameSeconds = 1e-9;

/// Rounds of a loop that are run where it has more: some to get in step, then one to be left out
/// again and again, and one on each side to see that these are alike. Stages of a pipeline get in
/// step once the slowest holds up those before it: in GPipe after as many rounds as a stage has
/// layers.
constexpr std::array kRoundsRun = {4, 16, 64, 256};

/// The groups in which a rank begins collectives, each with an order of its own. kTied: of the
/// copies of a table on two stages. kSliced: of what is summed over tensor ranks. The last four:
/// channels between the ranks of a pipeline.
enum class Axis : uint8_t {
  kWorld,
  kShard,
  kReplica,
  kTied,
  kSliced,
  kActivationOut,
  kActivationIn,
  kGradientOut,
  kGradientIn,
};
constexpr size_t kAxes = 9;
constexpr auto kChannels = static_cast<size_t>(Axis::kActivationOut);

std::optional<Axis> axis_of(const Instruction& i, const layout::Layout& layout) {
  switch (i.kind) {
    case Kind::kReduce:
    case Kind::kGather:
      return Axis::kShard;
    case Kind::kAllReduce:
    case Kind::kRound:
      if (layout.unit(i.unit).summed_over_tensor) return Axis::kSliced;
      return layout.unit(i.unit).stages.size() > 1 ? Axis::kTied : Axis::kReplica;
    case Kind::kReduceControl:
      return Axis::kWorld;
    case Kind::kSendActivation:
      return Axis::kActivationOut;
    case Kind::kReceiveActivation:
      return Axis::kActivationIn;
    case Kind::kSendGradient:
      return Axis::kGradientOut;
    case Kind::kReceiveGradient:
      return Axis::kGradientIn;
    default:
      return std::nullopt;
  }
}

/// What both sides of a message have in common; a collective is the same on every member.
Instruction common_of(Instruction i) {
  if (i.kind == Kind::kReceiveActivation) i.kind = Kind::kSendActivation;
  if (i.kind == Kind::kReceiveGradient) i.kind = Kind::kSendGradient;
  i.peer = -1;
  return i;
}

/// A program with some rounds of its loops left out.
struct Shortened {
  /// Where the last round before those that are left out ends, and its instructions.
  struct Cut {
    size_t end = 0;
    size_t body = 0;
  };
  std::vector<Instruction> instructions;
  int micro_batches = 0;
  std::vector<Cut> cuts;  ///< by loop; empty: nothing is left out
};

/// Leaves out `left_out` rounds of each loop, behind the `kept - 1`-th.
Shortened shorten(const RankProgram& rank, int left_out, int kept) {
  const StepProgram program = rank.program.with_more_rounds(-left_out);
  Shortened shortened{.micro_batches = rank.micro_batches};
  shortened.instructions.reserve(program.size());
  for (const Instruction& instruction : program)
    shortened.instructions.push_back(instruction);
  if (left_out == 0) return shortened;
  bool passes = false;
  size_t again = 0;  // instructions of further rounds of the loops before
  for (const ProgramLoop& loop : program.loops()) {
    shortened.cuts.push_back(
        {.end = loop.begin + again + static_cast<size_t>(kept - 1) * loop.body(),
         .body = loop.body()});
    again += static_cast<size_t>(loop.times - 1) * loop.body();
    for (size_t place = loop.begin; place < loop.end; ++place)
      passes = passes || is_pass(program.listed()[place].kind);
  }
  if (passes) shortened.micro_batches -= left_out * program.loops().front().step;
  return shortened;
}

/// One rank on its way through its program.
struct Walker {
  const RankProgram* rank = nullptr;
  Shortened program;
  const HeldPart* held = nullptr;
  std::array<Group*, kAxes> groups{};
  std::array<size_t, kAxes> begun{};
  std::vector<Pending> reduction;                                ///< by unit
  std::vector<Pending> gathering;                                ///< by unit
  std::array<std::vector<Pending>, kAxes - kChannels> messages;  ///< the newest, by stage
  /// Activations that are received, by micro-batch and stage: several may be.
  std::map<std::pair<int, int>, Pending> received;
  Pending control;

  const Pending& message(Axis axis, int stage) const {
    return messages[static_cast<size_t>(axis) - kChannels][static_cast<size_t>(stage)];
  }
  size_t next = 0;
  int64_t now = 0;
  double seconds = 0;
  std::vector<int64_t> levels;  ///< by instruction
  std::vector<double> ended;    ///< the same, where rounds are left out
  std::vector<int> flying;      ///< the same: micro-batches in flight behind it
  std::vector<int> passes;      ///< by micro-batch
  std::vector<int> passed;      ///< of them
  int in_flight = 0;
  int in_flight_max = 0;
  int64_t bytes_sent = 0;

  bool is_done() const { return next == program.instructions.size(); }
};

class World {
 public:
  World(std::span<const RankProgram> ranks, const Lowering& lowering, const Costs& costs,
        const RunObserver& ran, int left_out, int kept)
      : lowering_(lowering), costs_(costs), ran_(ran), left_out_(left_out) {
    for (const RankProgram& rank : ranks) {
      held_.push_back(std::make_unique<HeldPart>(lowering, rank.at));
      Walker walker{
          .rank = &rank, .program = shorten(rank, left_out, kept), .held = held_.back().get()};
      walker.reduction.resize(static_cast<size_t>(lowering.layout->units()));
      walker.gathering.resize(static_cast<size_t>(lowering.layout->units()));
      for (auto& of_channel : walker.messages)
        of_channel.resize(static_cast<size_t>(lowering.stages.size()));
      for (size_t axis = 0; axis < kAxes; ++axis)
        join(walker, static_cast<Axis>(axis));
      walkers_.push_back(std::move(walker));
    }
  }

  Status run() {
    TRAINYARD_TRY(check_ranks());
    for (Walker& walker : walkers_) {
      walker.passed.resize(static_cast<size_t>(walker.program.micro_batches));
      walker.passes = walker.passed;
      for (const Instruction& i : walker.program.instructions) {
        if (is_pass(i.kind)) ++walker.passes[static_cast<size_t>(i.micro_batch)];
      }
    }
    bool moves = true;
    while (moves) {
      moves = false;
      for (Walker& walker : walkers_) {
        while (!walker.is_done() && missing_of(walker) == nullptr) {
          TRAINYARD_TRY(step(walker));
          moves = true;
        }
      }
    }
    for (const Walker& walker : walkers_) {
      if (!walker.is_done()) return deadlock_of(walker);
    }
    return check_ends();
  }

  /// What there is to tell of a run; nothing where the rounds that are left out would not be like
  /// those that have run.
  std::optional<Simulation> result() const;

 private:
  /// Which group of an axis: the coordinates that its members have in common.
  using Key = std::tuple<Axis, int, int, int, int, int>;

  /// A rank becomes a member of its group on an axis.
  void join(Walker& walker, Axis axis) {
    const layout::Coordinate& at = walker.rank->at;
    const int ranks = lowering_.stages.ranks();
    Key key{axis, at.pp, 0, 0, at.cp, at.tp};
    switch (axis) {
      case Axis::kWorld:
        key = {axis, 0, 0, 0, 0, 0};
        break;
      case Axis::kTied:
        if (!holds_tied(at)) return;
        std::get<1>(key) = 0;
        break;
      case Axis::kActivationOut:
      case Axis::kGradientOut:
        key = {axis, at.pp, at.dp, at.fsdp, at.cp, at.tp};
        break;
      case Axis::kActivationIn:
        key = {Axis::kActivationOut, (at.pp + ranks - 1) % ranks, at.dp, at.fsdp, at.cp, at.tp};
        break;
      case Axis::kGradientIn:
        key = {Axis::kGradientOut, (at.pp + 1) % ranks, at.dp, at.fsdp, at.cp, at.tp};
        break;
      default:
        break;
    }
    auto& group = groups_[key];
    if (!group) group = std::make_unique<Group>();
    group->members.push_back(walkers_.size());
    walker.groups[static_cast<size_t>(axis)] = group.get();
  }

  bool holds_tied(const layout::Coordinate& at) const {
    const layout::Layout& layout = *lowering_.layout;
    for (int unit = 0; unit < layout.units(); ++unit) {
      if (layout.unit(unit).stages.size() > 1 && layout.holds(unit, at)) return true;
    }
    return false;
  }

  Status check_ranks() const {
    ProgramKind kind{.only_gathers = true};
    for (const Walker& walker : walkers_) {
      kind.rounds = std::max(kind.rounds, walker.program.micro_batches);
      for (const Instruction& i : walker.program.instructions) {
        const bool forward = i.kind == Kind::kForward || i.kind == Kind::kReduceControl ||
                             i.kind == Kind::kFree || i.kind == Kind::kSnapshot ||
                             i.kind == Kind::kSendActivation || i.kind == Kind::kReceiveActivation;
        kind.trains = kind.trains || !(forward || i.kind == Kind::kGather);
        kind.only_gathers = kind.only_gathers && i.kind == Kind::kGather;
      }
    }
    for (const Walker& walker : walkers_) {
      TRAINYARD_TRY(check_rank(walker.program.instructions, walker.rank->rank,
                               walker.program.micro_batches, kind, *walker.held, lowering_));
    }
    return {};
  }

  /// What a rank waits for before or in an instruction.
  std::vector<const Pending*> awaited(const Walker& walker, const Instruction& i) const {
    const auto unit = static_cast<size_t>(std::max(0, i.unit));
    std::vector<const Pending*> all;
    switch (i.kind) {
      case Kind::kForward:
      case Kind::kRecompute:
      case Kind::kBackwardInput:
        for (const int used : walker.held->units_of(i.layer))
          all.push_back(&walker.gathering[static_cast<size_t>(used)]);
        await_messages(walker, i, all);
        break;
      case Kind::kReceiveGradient:  // where the gradient before is sent from
        all.push_back(&walker.message(Axis::kGradientOut, lowering_.stages.stage_of(i.layer)));
        break;
      case Kind::kAccumulate:
      case Kind::kAllReduce:
      case Kind::kRound:
        all.push_back(&walker.reduction[unit]);
        break;
      case Kind::kReduceControl:
        for (int reduced = 0; reduced < lowering_.layout->units(); ++reduced) {
          // What copies have rounded is on its way until OPT reads it.
          if (walker.held->holds(reduced) && !walker.held->has_copies(reduced))
            all.push_back(&walker.reduction[static_cast<size_t>(reduced)]);
        }
        for (const Axis axis : {Axis::kActivationOut, Axis::kGradientOut}) {
          for (const Pending& sent : walker.messages[static_cast<size_t>(axis) - kChannels])
            all.push_back(&sent);
        }
        break;
      case Kind::kOptimize:
        all.push_back(&walker.control);
        all.push_back(&walker.reduction[unit]);
        [[fallthrough]];
      case Kind::kFree:
        all.push_back(&walker.gathering[unit]);
        break;
      default:
        break;
    }
    return all;
  }

  /// What the passes of a stage's first and last layer wait for: for what they read to arrive, and
  /// for what lies where they write to be sent.
  void await_messages(const Walker& walker, const Instruction& i,
                      std::vector<const Pending*>& all) const {
    const int stage = lowering_.stages.stage_of(i.layer);
    const layout::Range layers = lowering_.stages.layers(stage);
    const auto await = [&](Axis axis) { all.push_back(&walker.message(axis, stage)); };
    const auto received = walker.received.find({i.micro_batch, stage});
    if (i.kind == Kind::kForward && i.layer == layers.begin && received != walker.received.end())
      all.push_back(&received->second);
    if (i.kind == Kind::kForward && i.layer == layers.end - 1) await(Axis::kActivationOut);
    if (i.kind == Kind::kBackwardInput && i.layer == layers.end - 1) {
      await(Axis::kGradientIn);
      await(Axis::kGradientOut);
    }
  }

  /// The first collective that keeps a rank from its next instruction; null: none.
  const Pending* missing_of(const Walker& walker) const {
    for (const Pending* pending : awaited(walker, walker.program.instructions[walker.next])) {
      if (!pending->is_complete()) return pending;
    }
    return nullptr;
  }

  Status step(Walker& walker) {
    const Instruction& i = walker.program.instructions[walker.next];
    for (const Pending* pending : awaited(walker, i)) {
      if (pending->group == nullptr) continue;
      walker.now = std::max(walker.now, pending->what().level);
      walker.seconds = std::max(walker.seconds, pending->ended());
    }
    walker.levels.push_back(++walker.now);
    const double seconds = costs_.seconds ? costs_.seconds(*walker.rank, i) : 0;
    const double begin_seconds = walker.seconds;
    const int64_t bytes = costs_.bytes_sent ? costs_.bytes_sent(*walker.rank, i) : 0;
    walker.bytes_sent += bytes;
    if (const std::optional<Axis> axis = axis_of(i, *lowering_.layout)) {
      TRAINYARD_TRY(begin(walker, *axis, i, seconds, bytes));
    } else {
      walker.seconds += seconds;
    }
    if (ran_)
      ran_(static_cast<size_t>(&walker - walkers_.data()), i, begin_seconds, walker.seconds);
    if (is_pass(i.kind)) count_pass(walker, i);
    ++walker.next;
    if (left_out_ > 0) {
      walker.ended.push_back(walker.seconds);
      walker.flying.push_back(walker.in_flight);
      leave_out(walker);
    }
    return {};
  }

  /// Where rounds are left out that begin more micro-batches than they end, or fewer.
  void leave_out(Walker& walker) const {
    for (const Shortened::Cut& cut : walker.program.cuts) {
      if (cut.end != walker.next) continue;
      walker.in_flight += left_out_ * (walker.in_flight - walker.flying[cut.end - 1 - cut.body]);
    }
  }

  Status begin(Walker& walker, Axis axis, const Instruction& i, double seconds, int64_t bytes) {
    Group& group = *walker.groups[static_cast<size_t>(axis)];
    const size_t number = walker.begun[static_cast<size_t>(axis)]++;
    if (number == group.meetings.size()) {
      group.meetings.push_back(
          {.instruction = common_of(i), .first = static_cast<size_t>(&walker - walkers_.data())});
    }
    Meeting& meeting = group.meetings[number];
    if (meeting.instruction != common_of(i)) {
      return violation(walker.rank->rank, walker.next, i,
                       "rank " + std::to_string(walkers_[meeting.first].rank->rank) + " begins " +
                           to_string(meeting.instruction) + " instead: deadlock");
    }
    meeting.level = std::max(meeting.level, walker.now);
    meeting.began = std::max(meeting.began, walker.seconds);
    meeting.seconds = std::max(meeting.seconds, seconds);
    const bool sends = i.kind == Kind::kSendActivation || i.kind == Kind::kSendGradient;
    if (sends) {
      meeting.sender_began = walker.seconds;
      meeting.bytes = bytes;
    }
    if (++meeting.arrived == group.members.size()) group.complete(number, costs_.eager_bytes);
    const Pending pending{&group, number, sends};
    if (i.kind == Kind::kReduceControl) {
      walker.control = pending;
    } else if (is_message(i.kind)) {
      const int receiver = lowering_.stages.stage_of(i.layer);
      const int stage = axis == Axis::kActivationOut ? receiver - 1
                        : axis == Axis::kGradientOut ? receiver + 1
                                                     : receiver;
      walker.messages[static_cast<size_t>(axis) - kChannels][static_cast<size_t>(stage)] = pending;
      if (axis == Axis::kActivationIn) walker.received[{i.micro_batch, stage}] = pending;
    } else {
      auto& of_units = i.kind == Kind::kGather ? walker.gathering : walker.reduction;
      of_units[static_cast<size_t>(i.unit)] = pending;
    }
    return {};
  }

  /// A micro-batch is in flight from its first pass to its last.
  static void count_pass(Walker& walker, const Instruction& i) {
    const auto m = static_cast<size_t>(i.micro_batch);
    if (walker.passed[m]++ == 0) ++walker.in_flight;
    walker.in_flight_max = std::max(walker.in_flight_max, walker.in_flight);
    if (walker.passed[m] == walker.passes[m]) --walker.in_flight;
  }

  /// Why a rank does not come to its end: whom it waits for, and where that one is.
  Error deadlock_of(const Walker& walker) const {
    const Pending& pending = *missing_of(walker);
    std::string why = "waits for " + to_string(pending.what().instruction);
    for (const size_t member : pending.group->members) {
      const Walker& other = walkers_[member];
      const auto axis =
          static_cast<size_t>(std::find(other.groups.begin(), other.groups.end(), pending.group) -
                              other.groups.begin());
      if (other.begun[axis] > pending.meeting) continue;
      why += ", which rank " + std::to_string(other.rank->rank) + " does not begin: it ";
      why += other.is_done() ? "ends" : "stands at instruction " + std::to_string(other.next);
      break;
    }
    return violation(walker.rank->rank, walker.next, walker.program.instructions[walker.next],
                     why + ": deadlock");
  }

  /// Nobody may have begun what another has not, though no rank waits for it in this program.
  Status check_ends() const {
    for (const Walker& walker : walkers_) {
      for (size_t axis = 0; axis < kAxes; ++axis) {
        if (walker.groups[axis] == nullptr) continue;
        const Group& group = *walker.groups[axis];
        if (walker.begun[axis] == group.meetings.size()) continue;
        const Meeting& missing = group.meetings[walker.begun[axis]];
        return violation(walker.rank->rank, to_string(missing.instruction) +
                                                " is missing, which rank " +
                                                std::to_string(walkers_[missing.first].rank->rank) +
                                                " begins: deadlock");
      }
    }
    return {};
  }

  const Lowering& lowering_;
  const Costs& costs_;
  const RunObserver& ran_;
  const int left_out_;
  std::vector<std::unique_ptr<HeldPart>> held_;
  std::map<Key, std::unique_ptr<Group>> groups_;
  std::vector<Walker> walkers_;
};

std::optional<Simulation> World::result() const {
  Simulation found;
  // By loop, once a rank has told: all keep pace. Where there are two, nobody begins the second
  // before all have ended the first: what one begins in a round of the second is waited for in a
  // round of that alone.
  std::vector<std::optional<int64_t>> per_round(walkers_.front().program.cuts.size());
  std::vector<double> seconds_per_round(per_round.size());
  for (const Walker& walker : walkers_) {
    const Shortened& program = walker.program;
    std::vector<Levels::LeftOut> loops;
    int64_t levels = 0;
    int64_t bytes = 0;
    double seconds = 0;
    for (size_t loop = 0; loop < program.cuts.size(); ++loop) {
      const auto [end, body] = program.cuts[loop];
      for (size_t at = end - body; at < end; ++at) {
        const int64_t pace = walker.levels[at] - walker.levels[at - body];
        const double lasted = walker.ended[at] - walker.ended[at - body];
        if (!per_round[loop]) {
          per_round[loop] = pace;
          seconds_per_round[loop] = lasted;
        }
        if (pace != per_round[loop]) return std::nullopt;
        if (walker.levels[at + body] - walker.levels[at] != pace) return std::nullopt;
        const double lasts = walker.ended[at + body] - walker.ended[at];
        for (const double seconds_of : {lasted, lasts}) {
          if (std::abs(seconds_of - seconds_per_round[loop]) > kSameSeconds * walker.ended[at])
            return std::nullopt;
        }
        if (costs_.bytes_sent) bytes += costs_.bytes_sent(*walker.rank, program.instructions[at]);
      }
      loops.push_back({.cut = end, .body = body, .per_round = *per_round[loop]});
      levels += *per_round[loop];
      seconds += seconds_per_round[loop];
    }
    found.level.emplace_back(walker.levels, std::move(loops), static_cast<size_t>(left_out_));
    found.level_max = std::max(found.level_max, walker.now + left_out_ * levels);
    found.in_flight_max.push_back(walker.in_flight_max);
    found.end_seconds.push_back(walker.seconds + left_out_ * seconds);
    found.bytes_sent.push_back(walker.bytes_sent + left_out_ * bytes);
  }
  return found;
}

/// Rounds of all loops that need not run where `kept` do. A rank whose rounds are empty keeps no
/// pace with others.
int rounds_to_leave_out(std::span<const RankProgram> ranks, int kept) {
  const std::vector<ProgramLoop>& first = ranks.front().program.loops();
  int left_out = first.empty() ? 0 : first.front().times - kept;
  for (const RankProgram& rank : ranks) {
    const std::vector<ProgramLoop>& loops = rank.program.loops();
    if (loops.size() != first.size()) return 0;
    for (const ProgramLoop& loop : loops) {
      if (loop.step != first.front().step || loop.body() == 0) return 0;
      left_out = std::min(left_out, loop.times - kept);
    }
  }
  return std::max(0, left_out);
}

}  // namespace

int64_t Levels::operator[](size_t id) const {
  int64_t later = 0;
  for (const LeftOut& loop : loops_) {
    if (id < loop.cut) break;
    const size_t past = id - loop.cut;
    if (past < rounds_ * loop.body) {
      return stored_[loop.cut - loop.body + past % loop.body] + later +
             static_cast<int64_t>(past / loop.body + 1) * loop.per_round;
    }
    id -= rounds_ * loop.body;
    later += static_cast<int64_t>(rounds_) * loop.per_round;
  }
  return stored_[id] + later;
}

Result<Simulation> simulate(std::span<const RankProgram> ranks, const Lowering& lowering,
                            const Costs& costs, const RunObserver& ran) {
  TRAINYARD_CHECK(!ranks.empty());
  // Ranks that run ahead of those they send to take longer to get in step.
  const bool all = ran || costs.eager_bytes > 0;
  for (const int kept : kRoundsRun) {
    const int left_out = all ? 0 : rounds_to_leave_out(ranks, kept);
    if (left_out == 0) continue;
    World world(ranks, lowering, costs, ran, left_out, kept);
    TRAINYARD_TRY(world.run());
    if (auto found = world.result()) return *std::move(found);
  }
  World world(ranks, lowering, costs, ran, 0, 0);
  TRAINYARD_TRY(world.run());
  return *world.result();
}

}  // namespace trainyard::engine
