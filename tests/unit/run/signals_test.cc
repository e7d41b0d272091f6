#include "cli/run/signals.h"

#include <csignal>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "common/base/signals.h"

namespace trainyard::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{30'000};

/// What a parent may have made of a signal, until the end of the scope.
class Inherited {
 public:
  Inherited(int signal_number, void (*disposition)(int))
      : signal_number_(signal_number), before_(::signal(signal_number, disposition)) {}
  Inherited(const Inherited&) = delete;
  Inherited& operator=(const Inherited&) = delete;
  ~Inherited() { ::signal(signal_number_, before_); }

 private:
  int signal_number_;
  void (*before_)(int);
};

TEST(StopSignalsTest, EachIsTaken) {
  const Inherited interrupt(SIGINT, SIG_DFL);
  const Inherited terminate(SIGTERM, SIG_DFL);
  const Inherited hang_up(SIGHUP, SIG_DFL);
  auto signals = StopSignals::take();
  ASSERT_TRUE(signals) << signals.error().message;
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    ::kill(::getpid(), signal_number);
    EXPECT_EQ(signals->wait(kLong), 1) << signal_number;
  }
}

TEST(StopSignalsTest, WhatTheParentIgnoresStaysIgnored) {
  const Inherited quit(SIGQUIT, SIG_DFL);
  for (const int signal_number : {SIGHUP, SIGTERM, SIGINT}) {
    const Inherited ignored(signal_number, SIG_IGN);
    auto signals = StopSignals::take();
    ASSERT_TRUE(signals) << signals.error().message;
    ::kill(::getpid(), signal_number);
    EXPECT_EQ(signals->wait(milliseconds(0)), 0) << signal_number;
  }
}

TEST(StopSignalsTest, ABackgroundCommandTakesAnInterruptThatAProcessSends) {
  const Inherited interrupt(SIGINT, SIG_IGN);
  const Inherited quit(SIGQUIT, SIG_IGN);
  auto signals = StopSignals::take();
  ASSERT_TRUE(signals) << signals.error().message;
  ::kill(::getpid(), SIGINT);
  EXPECT_EQ(signals->wait(kLong), 1);
}

TEST(StopSignalsTest, ABackgroundCommandLeavesTheTerminalsInterrupt) {
  const Inherited interrupt(SIGINT, SIG_IGN);
  const Inherited quit(SIGQUIT, SIG_IGN);
  EXPECT_FALSE(takes_signal_of(SIGINT, SI_KERNEL));
  EXPECT_TRUE(takes_signal_of(SIGINT, SI_USER));
  // A foreground command takes it.
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGINT, SIG_DFL);
    auto signals = StopSignals::take();
    if (!signals || ::write(STDOUT_FILENO, "r", 1) != 1) ::_exit(2);
    ::_exit(signals->wait(kLong) == 1 ? 0 : 1);
  }
  char ready = 0;
  ASSERT_EQ(::read(terminal, &ready, 1), 1);
  ASSERT_EQ(::write(terminal, "\x03", 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ::close(terminal);
}

TEST(StopSignalsTest, ThePipeSignalIsPutBackAsItWas) {
  const Inherited pipe(SIGPIPE, SIG_IGN);
  { const auto signals = StopSignals::take(); }
  EXPECT_TRUE(ignores_signal(SIGPIPE));
}

}  // namespace
}  // namespace trainyard::cli
