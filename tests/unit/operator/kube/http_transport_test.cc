#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/io/file.h"
#include "tests/support/loopback_server.h"
#include "tests/unit/operator/kube/http_transport_fixture.h"

namespace trainyard::kube {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::kChunkedHead;
using testing_support::LoopbackConnection;
using testing_support::LoopbackServer;
using testing_support::ReceivedRequest;

constexpr Duration kShort = milliseconds(200);

TEST_F(HttpTransportTest, SendsWhatItIsGiven) {
  ReceivedRequest got;
  LoopbackServer server(each([&](LoopbackConnection& connection, const ReceivedRequest& request) {
    got = request;
    connection.answer(201, "{\"a\":1}", "Retry-After: 7\r\n");
  }));
  const auto http = plain(server);
  const auto answer = http->send({Method::kPatch, "/api/v1/a%2Fb/c%20d", "x=1%2C2&y=%25",
                                  "{\"body\":\"\xc3\xa9\"}", "application/merge-patch+json"},
                                 kPatient);
  ASSERT_TRUE(answer.has_value()) << answer.error().message;
  EXPECT_EQ(answer->status, 201);
  EXPECT_EQ(answer->body, "{\"a\":1}");
  EXPECT_EQ(answer->retry_after, seconds(7));
  EXPECT_EQ(got.line, "PATCH /api/v1/a%2Fb/c%20d?x=1%2C2&y=%25 HTTP/1.1");
  EXPECT_EQ(got.body, "{\"body\":\"\xc3\xa9\"}");
  EXPECT_EQ(got.header("Content-Type"), "application/merge-patch+json");
  EXPECT_EQ(got.header("User-Agent"), "trainyard-test/1");
  EXPECT_EQ(got.header("Accept"), "application/json");
  EXPECT_EQ(got.header("Authorization"), "");
}

TEST_F(HttpTransportTest, EveryMethodCarriesItsBody) {
  std::vector<std::string> got;
  LoopbackServer server(each([&](LoopbackConnection& connection, const ReceivedRequest& request) {
    got.push_back(request.line.substr(0, request.line.find(' ')) + " " + request.body);
    connection.answer(200, "");
  }));
  const auto http = plain(server);
  ASSERT_TRUE(http->send({Method::kGet, "/x", "", "", ""}, kPatient).has_value());
  for (const Method method : {Method::kPost, Method::kPut, Method::kPatch, Method::kDelete})
    ASSERT_TRUE(http->send({method, "/x", "", "b", "application/json"}, kPatient).has_value());
  EXPECT_THAT(got, ElementsAre("GET ", "POST b", "PUT b", "PATCH b", "DELETE b"));
}

TEST_F(HttpTransportTest, ConnectionsAreUsedAgain) {
  LoopbackServer server(each(
      [](LoopbackConnection& connection, const ReceivedRequest&) { connection.answer(200, ""); }));
  const auto http = plain(server);
  constexpr int kCalls = 50;
  for (int i = 0; i < kCalls; ++i)
    ASSERT_TRUE(http->send({Method::kGet, "/x", "", "", ""}, kPatient).has_value());
  EXPECT_LT(server.connections(), kCalls);
}

TEST_F(HttpTransportTest, PutsThePrefixBeforeThePath) {
  std::string line;
  LoopbackServer server(each([&](LoopbackConnection& connection, const ReceivedRequest& request) {
    line = request.line;
    connection.answer(200, "{}");
  }));
  const auto http = transport({.server = server.url() + "/k8s/clusters/c-1"});
  ASSERT_TRUE(http->send({Method::kGet, "/api/v1/pods", "limit=1", "", ""}, kPatient).has_value());
  EXPECT_EQ(line, "GET /k8s/clusters/c-1/api/v1/pods?limit=1 HTTP/1.1");
}

TEST_F(HttpTransportTest, ReachesAnIpv6Address) {
  LoopbackServer server(each([](LoopbackConnection& connection, const ReceivedRequest&) {
                          connection.answer(200, "{}");
                        }),
                        {.v6 = true});
  const auto answer = plain(server)->send({Method::kGet, "/", "", "", ""}, kPatient);
  EXPECT_TRUE(answer.has_value()) << answer.error().message;
}

TEST_F(HttpTransportTest, ReadsChunkedBodies) {
  LoopbackServer server(each([](LoopbackConnection& connection, const ReceivedRequest&) {
    connection.write(kChunkedHead);
    for (const char* part : {"one ", "two ", "three"})
      connection.chunk(part);
    connection.chunk("");
  }));
  const auto answer = plain(server)->send({Method::kGet, "/", "", "", ""}, kPatient);
  ASSERT_TRUE(answer.has_value()) << answer.error().message;
  EXPECT_EQ(answer->body, "one two three");
}

TEST_F(HttpTransportTest, ManyCallsSideBySide) {
  LoopbackServer server(each([](LoopbackConnection& connection, const ReceivedRequest& request) {
    connection.answer(200, request.line);
  }));
  const auto http = plain(server);
  std::atomic<int> right = 0;
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 16; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = 0; i < 20; ++i) {
        const std::string path = "/" + std::to_string(caller) + "/" + std::to_string(i);
        const auto answer = http->send({Method::kGet, path, "", "", ""}, kPatient);
        if (answer && answer->body == "GET " + path + " HTTP/1.1") ++right;
      }
    });
  }
  callers.clear();
  EXPECT_EQ(right, 16 * 20);
}

TEST_F(HttpTransportTest, GivesUpOnASilentServer) {
  LoopbackServer server([](LoopbackConnection& connection) { connection.wait_until_gone(); });
  const auto http = plain(server);
  const auto answer = http->send({Method::kGet, "/x", "", "", ""}, {.limit = kShort});
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(answer.error().message, AllOf(HasSubstr("GET /x of http://127.0.0.1:"),
                                            HasSubstr("an answer did not come within")));
  const auto opened =
      http->open({Method::kGet, "/x", "", "", ""}, {.limit = kShort, .idle = seconds(60)});
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kDeadline);
}

TEST_F(HttpTransportTest, GivesUpOnABodyThatDrips) {
  LoopbackServer server([](LoopbackConnection& connection) {
    (void)connection.read_request();
    connection.write(kChunkedHead);
    while (connection.chunk("x"))  // each chunk restarts any idle timer
      std::this_thread::sleep_for(milliseconds(5));
  });
  const auto answer = plain(server)->send({Method::kGet, "/", "", "", ""}, {.limit = kShort});
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::kDeadline);
}

TEST_F(HttpTransportTest, AStopEndsACall) {
  std::stop_source stop;
  LoopbackServer server([&](LoopbackConnection& connection) {
    (void)connection.read_request();
    stop.request_stop();
    connection.wait_until_gone();
  });
  const auto answer = plain(server)->send({Method::kGet, "/", "", "", ""},
                                          {.limit = seconds(60), .stop = stop.get_token()});
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::kAborted);
}

TEST_F(HttpTransportTest, RefusesAnEndlessBody) {
  std::atomic<int64_t> sent = 0;
  LoopbackServer server([&](LoopbackConnection& connection) {
    (void)connection.read_request();
    connection.write(kChunkedHead);
    const std::string part(1 << 20, 'x');
    while (connection.chunk(part))
      sent += 1 << 20;
  });
  const auto answer =
      plain(server, {.body_bytes_max = 4 << 20})->send({Method::kGet, "/", "", "", ""}, kPatient);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::kInvalidData);
  EXPECT_THAT(answer.error().message, HasSubstr("more than 4194304 bytes"));
}

/// Connections are closed while the library reads from them, whose thread must not come to wait for
/// itself.
TEST_F(HttpTransportTest, BodiesAreGivenUpInTheirMiddle) {
  LoopbackServer server([&](LoopbackConnection& connection) {
    (void)connection.read_request();
    connection.write(kChunkedHead);
    const std::string part(1 << 20, 'x');
    while (connection.chunk(part)) {
    }
  });
  const auto http = plain(server, {.body_bytes_max = 2 << 20});
  std::atomic<int> refused = 0;
  std::vector<std::jthread> callers(8);
  for (std::jthread& caller : callers) {
    caller = std::jthread([&] {
      for (int i = 0; i < 20; ++i) {
        const auto answer = http->send({Method::kGet, "/", "", "", ""}, kPatient);
        if (!answer && answer.error().code == ErrorCode::kInvalidData) ++refused;
      }
    });
  }
  callers.clear();
  EXPECT_EQ(refused, 8 * 20);
  EXPECT_TRUE(await_network_idle(seconds(60)));
}

TEST_F(HttpTransportTest, ACutBodyIsAnError) {
  LoopbackServer server([](LoopbackConnection& connection) {
    (void)connection.read_request();
    connection.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"half\":");
  });
  const auto answer = plain(server)->send({Method::kGet, "/", "", "", ""}, kPatient);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::kUnavailable);
}

TEST_F(HttpTransportTest, ANonsensicalAnswerIsAnError) {
  for (const char* text :
       {"garbage\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "SSH-2.0-OpenSSH\r\n\r\n"}) {
    LoopbackServer server([&](LoopbackConnection& connection) {
      (void)connection.read_request();
      connection.write(text);
    });
    const auto answer = plain(server)->send({Method::kGet, "/", "", "", ""}, kPatient);
    ASSERT_FALSE(answer.has_value()) << text;
    EXPECT_EQ(answer.error().code, ErrorCode::kUnavailable) << text;
  }
}

TEST_F(HttpTransportTest, ARefusedConnectionIsAnError) {
  std::string url;
  {
    const LoopbackServer gone([](LoopbackConnection&) {});
    url = gone.url();
  }
  const auto answer = transport({.server = url})->send({Method::kGet, "/", "", "", ""}, kPatient);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(answer.error().message, HasSubstr(url));
}

TEST_F(HttpTransportTest, ADeadReusedConnectionIsReplaced) {
  std::atomic<int> resets = 0;
  LoopbackServer server([&](LoopbackConnection& connection) {
    for (int requests = 1; connection.read_request(); ++requests) {
      if (requests == 2) {  // what a restarted server does to connections of its life before
        ++resets;
        return connection.reset();
      }
      connection.answer(200, "{}");
    }
  });
  const auto http = plain(server);
  // A call may come before the last one's connection is back for use; some call finds one.
  for (int calls = 0; resets == 0 && calls < 1000; ++calls) {
    const auto answer = http->send({Method::kPost, "/", "", "b", "application/json"}, kPatient);
    ASSERT_TRUE(answer.has_value()) << answer.error().message;
  }
  EXPECT_GT(resets, 0) << "and was sent again: writes must bear to be done twice";
}

TEST_F(HttpTransportTest, StreamsLinesAsTheyCome) {
  std::atomic<bool> first_read = false;
  LoopbackServer server([&](LoopbackConnection& connection) {
    (void)connection.read_request();
    connection.write(kChunkedHead);
    connection.chunk("{\"n\":1}\n");
    first_read.wait(false);
    connection.chunk("{\"n\"");
    connection.chunk(":2}\n{\"n\":3}\n");
    connection.chunk("");
    connection.wait_until_gone();
  });
  auto opened = plain(server)->open({Method::kGet, "/w", "watch=true", "", ""}, kPatient);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  EXPECT_EQ(opened->status, 200);
  EXPECT_EQ(opened->lines->next_line().value(), "{\"n\":1}");
  first_read = true;
  first_read.notify_all();
  EXPECT_EQ(opened->lines->next_line().value(), "{\"n\":2}");
  EXPECT_EQ(opened->lines->next_line().value(), "{\"n\":3}");
  EXPECT_FALSE(opened->lines->next_line().value().has_value());
  EXPECT_FALSE(opened->lines->next_line().value().has_value());
  opened->lines.reset();
}

TEST_F(HttpTransportTest, AStreamCutAtAnyByteGivesWholeLinesOnly) {
  const std::string body = "8\r\n{\"n\":1}\n\r\n8\r\n{\"n\":2}\n\r\n";
  std::atomic<size_t> cut = 0;
  LoopbackServer server([&](LoopbackConnection& connection) {
    (void)connection.read_request();
    connection.write(kChunkedHead + body.substr(0, cut));
  });
  const auto http = plain(server);
  for (; cut <= body.size(); ++cut) {
    auto opened = http->open({Method::kGet, "/w", "", "", ""}, kPatient);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    size_t lines = 0;
    while (true) {
      const auto line = opened->lines->next_line();
      if (!line) {
        EXPECT_EQ(line.error().code, ErrorCode::kUnavailable) << cut;
        EXPECT_FALSE(opened->lines->next_line().has_value()) << "and so it remains";
        break;
      }
      ASSERT_TRUE(line->has_value()) << "no orderly end was sent, cut " << cut;
      ++lines;
      EXPECT_EQ(**line, "{\"n\":" + std::to_string(lines) + "}");
    }
    EXPECT_EQ(lines, cut / 13) << cut;  // 13 bytes a chunk
  }
}

TEST_F(HttpTransportTest, ASilentStreamEndsAfterItsIdleTime) {
  LoopbackServer server([](LoopbackConnection& connection) {
    (void)connection.read_request();
    connection.write(kChunkedHead);
    connection.chunk("line\n");
    connection.wait_until_gone();
  });
  const auto http = plain(server);
  const auto open = [&] {
    return http->open({Method::kGet, "/w", "", "", ""}, {.limit = seconds(60), .idle = kShort});
  };
  auto opened = open();
  ASSERT_TRUE(opened.has_value());
  auto line = opened->lines->next_line();
  // On a busy machine the line itself may take longer.
  for (int i = 0; i < 20 && !line.has_value(); ++i) {
    opened = open();
    ASSERT_TRUE(opened.has_value());
    line = opened->lines->next_line();
  }
  EXPECT_EQ(line.value(), "line");
  const auto silence = opened->lines->next_line();
  ASSERT_FALSE(silence.has_value());
  EXPECT_EQ(silence.error().code, ErrorCode::kDeadline);
}

TEST_F(HttpTransportTest, AStopEndsAStream) {
  LoopbackServer server([](LoopbackConnection& connection) {
    (void)connection.read_request();
    connection.write(kChunkedHead);
    connection.wait_until_gone();
  });
  std::stop_source stop;
  auto opened =
      plain(server)->open({Method::kGet, "/w", "", "", ""},
                          {.limit = seconds(60), .idle = seconds(60), .stop = stop.get_token()});
  ASSERT_TRUE(opened.has_value());
  std::jthread stopper([&] { stop.request_stop(); });
  EXPECT_EQ(opened->lines->next_line().error().code, ErrorCode::kAborted);
}

TEST_F(HttpTransportTest, TheNetworkIsIdleWhenTheLastStreamIsPutAway) {
  LoopbackServer server([](LoopbackConnection& connection) {
    (void)connection.read_request();
    connection.write(kChunkedHead);
    connection.wait_until_gone();
  });
  const auto http = plain(server);
  auto opened = http->open({Method::kGet, "/w", "", "", ""}, kPatient);
  ASSERT_TRUE(opened.has_value());
  EXPECT_FALSE(await_network_idle(kShort));
  opened->lines.reset();
  EXPECT_TRUE(await_network_idle(seconds(60)));
}

TEST_F(HttpTransportTest, AnEndlessLineIsRefused) {
  LoopbackServer server([](LoopbackConnection& connection) {
    (void)connection.read_request();
    connection.write(kChunkedHead);
    const std::string part(64 << 10, 'x');
    while (connection.chunk(part)) {
    }
  });
  auto opened =
      plain(server, {.line_bytes_max = 1 << 20})->open({Method::kGet, "/w", "", "", ""}, kPatient);
  ASSERT_TRUE(opened.has_value());
  EXPECT_EQ(opened->lines->next_line().error().code, ErrorCode::kInvalidData);
}

TEST_F(HttpTransportTest, AStreamThatNobodyReadsHoldsTheServerBack) {
  std::atomic<int64_t> sent = 0;
  std::atomic<bool> gone = false;
  LoopbackServer server([&](LoopbackConnection& connection) {
    (void)connection.read_request();
    connection.write(kChunkedHead);
    const std::string line = std::string((64 << 10) - 1, 'x') + "\n";
    // A client that took all of it would let this go on for ever.
    while (connection.chunk(line))
      sent += static_cast<int64_t>(line.size());
    gone = true;
    gone.notify_all();
  });
  const auto http = plain(server);
  auto opened = http->open({Method::kGet, "/w", "", "", ""}, kPatient);
  ASSERT_TRUE(opened.has_value());
  // Another exchange's worth of time; then it must have come to rest below what buffers hold.
  int64_t before = -1;
  for (int still = 0; still < 5; still = sent == before ? still + 1 : 0) {
    before = sent;
    std::this_thread::sleep_for(milliseconds(20));
    ASSERT_LT(sent, 64 << 20) << "the client holds everything";
  }
  for (int i = 0; i < 200; ++i)  // it goes on when somebody reads
    ASSERT_TRUE(opened->lines->next_line().has_value());
  EXPECT_GT(sent, before);
  opened->lines.reset();
  gone.wait(false);
}

TEST_F(HttpTransportTest, ARefusedStreamGivesItsBody) {
  LoopbackServer server(each([](LoopbackConnection& connection, const ReceivedRequest&) {
    connection.answer(410, "{\"reason\":\"Expired\"}");
  }));
  const auto opened = plain(server)->open({Method::kGet, "/w", "", "", ""}, kPatient);
  ASSERT_TRUE(opened.has_value());
  EXPECT_EQ(opened->status, 410);
  EXPECT_EQ(opened->body, "{\"reason\":\"Expired\"}");
  EXPECT_EQ(opened->lines, nullptr);
}

TEST_F(HttpTransportTest, A401LeadsToTheRotatedToken) {
  const std::string file = directory_.path() / "token";
  ASSERT_TRUE(write_file_atomic(file, "old").has_value());
  std::vector<std::string> tokens;
  LoopbackServer server(each([&](LoopbackConnection& connection, const ReceivedRequest& request) {
    tokens.push_back(request.header("Authorization"));
    connection.answer(tokens.back() == "Bearer new" ? 200 : 401, "{}");
  }));
  const auto http = transport({.server = server.url(), .token_file = file});
  EXPECT_EQ(http->send({Method::kGet, "/", "", "", ""}, kPatient).value().status, 401);
  EXPECT_THAT(tokens, ElementsAre("Bearer old")) << "the file holds no other";
  ASSERT_TRUE(write_file_atomic(file, "new").has_value());
  EXPECT_EQ(http->send({Method::kGet, "/", "", "", ""}, kPatient).value().status, 200);
  EXPECT_THAT(tokens, ElementsAre("Bearer old", "Bearer old", "Bearer new"));
  EXPECT_EQ(http->open({Method::kGet, "/w", "", "", ""}, kPatient).value().status, 200);
  EXPECT_EQ(tokens.back(), "Bearer new");
}

}  // namespace
}  // namespace trainyard::kube
