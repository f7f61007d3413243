// A CUDA run time that runs nothing: it keeps what each stream was given, and knows what happens before
// what.
//
//   fake_runtime::lane a(..), b(..);     touch(a, memory, write)  record(e, a)  wait(b, e)  touch(b, ...)
//   fake().ordered(i, j)                  by stream order and events alone, as CUDA promises it; no luck of
//   timing
//
// Graphs are recorded as CUDA does: work on a stream that a capture has reached goes into the graph, and a
// graph that some stream has not rejoined is refused. Whatever a capture does not allow ends it, and all that
// follows says so.
//
// Memory that is freed while work that nobody has waited for uses it is a fault: fake().fault. Streams,
// events and blocks belong to the device that was current when they were made.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <deeprec/core/status.hpp>
#include <deeprec/exec/stream_pool.hpp>

namespace deeprec_test {

class fake_log {
 public:
  using index_t = deeprec::index_t;
  struct node {
    int stream;
    std::vector<std::size_t> after;  // nodes
    long long label;                 // what a test calls it; -1: nothing of its own (a wait, a mark)
  };

  std::vector<node> nodes;
  std::deque<std::vector<std::size_t>> tails;  // of each stream: what its next node comes behind
  std::map<int, std::vector<std::size_t>> events;
  std::vector<std::set<std::size_t>> graphs_;
  int live_events = 0, live_graphs = 0, live_execs = 0, next_event = 0, waits = 0, records = 0;
  std::size_t allocated = 0, limit = SIZE_MAX;
  std::map<void*, std::size_t> blocks;
  std::map<void*, std::vector<std::size_t>> uses;  // of a block: nodes
  std::set<std::size_t> ended;                     // nodes that the host has waited for
  std::string fault;

  // devices
  int device = 0;
  std::vector<int> device_of_stream;
  std::map<int, int> device_of_event;
  std::map<void*, int> device_of_block;

  // capture: streams that it has reached, and the nodes in it
  int origin = -1;
  std::set<int> captured;
  std::vector<std::size_t> in_capture;
  std::set<std::size_t> joined;  // nodes of the capture that some other node of it comes behind
  bool invalid = false;          // it has done what a capture must not

  int add_stream() {
    tails.emplace_back();
    device_of_stream.push_back(device);
    return static_cast<int>(tails.size()) - 1;
  }
  std::size_t add(int stream, long long label) {
    auto& tail = tails[static_cast<std::size_t>(stream)];
    nodes.push_back({stream, tail, label});
    tail = {nodes.size() - 1};
    if (captured.count(stream) != 0) {
      in_capture.push_back(nodes.size() - 1);
      for (const std::size_t before : nodes.back().after) joined.insert(before);
    }
    return nodes.size() - 1;
  }
  /// All nodes that come before a node.
  std::set<std::size_t> before(std::size_t n) const {
    std::set<std::size_t> seen;
    std::vector<std::size_t> open = nodes[n].after;
    while (!open.empty()) {
      const std::size_t m = open.back();
      open.pop_back();
      if (!seen.insert(m).second) continue;
      open.insert(open.end(), nodes[m].after.begin(), nodes[m].after.end());
    }
    return seen;
  }
  /// The node reads or writes the block.
  void use(std::size_t n, void* block) { uses[block].push_back(n); }
  /// The host waits for nodes: what is enqueued later, on any stream, comes behind.
  void host_waits(const std::vector<std::size_t>& wanted) {
    for (auto& tail : tails) {
      for (const std::size_t n : wanted) {
        if (std::find(tail.begin(), tail.end(), n) == tail.end()) tail.push_back(n);
      }
    }
    std::vector<std::size_t> open = wanted;
    while (!open.empty()) {
      const std::size_t n = open.back();
      open.pop_back();
      if (ended.insert(n).second) open.insert(open.end(), nodes[n].after.begin(), nodes[n].after.end());
    }
  }
  bool is_captured(std::size_t n) const {
    return origin >= 0 && std::find(in_capture.begin(), in_capture.end(), n) != in_capture.end();
  }
  deeprec::status refuse(const char* why) {
    invalid |= origin >= 0;
    return {deeprec::errc::device_error, why};
  }
  bool ordered(std::size_t first, std::size_t second) const { return before(second).count(first) != 0; }

  /// Ends of all nodes in one schedule that the device might choose, each taking a random time.
  std::vector<double> schedule(std::mt19937_64& random) const {
    std::uniform_real_distribution<double> time(0, 1);
    std::vector<double> end(nodes.size());
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      double start = 0;
      for (const std::size_t m : nodes[n].after) start = std::max(start, end[m]);
      end[n] = start + (nodes[n].label < 0 ? 0 : time(random));
    }
    return end;
  }
};

inline fake_log& fake() {
  static fake_log log;
  return log;
}

struct fake_runtime {
  using status = deeprec::status;
  using stream = int;
  using event = int;
  using graph = int;
  using graph_exec = int;

  static status make_event(event& made, bool) {
    made = ++fake().next_event;
    fake().device_of_event[made] = fake().device;
    ++fake().live_events;
    return {};
  }
  static void end_event(event) { --fake().live_events; }
  static status get_device(int& current) {
    current = fake().device;
    return {};
  }
  static status set_device(int wanted) {
    fake().device = wanted;
    return {};
  }
  static bool is_one_stream(stream on) { return on >= 0; }
  static status record(event at, stream on) {
    if (fake().device_of_event[at] != fake().device_of_stream[static_cast<std::size_t>(on)])
      return fake().refuse("event and stream of two devices");
    if (fake().captured.count(on) != 0 && fake().invalid) return fake().refuse("the capture has failed");
    ++fake().records;
    fake().events[at] = {fake().add(on, -1)};
    return {};
  }
  static status wait(stream on, event at) {
    ++fake().waits;
    const auto found = fake().events.find(at);
    if (found == fake().events.end()) return {};  // never recorded: as CUDA, no wait
    for (const std::size_t n : found->second) {
      const bool captured = fake().is_captured(n);
      const bool drawn = fake().captured.count(on) != 0;
      if ((captured || drawn) && fake().invalid) return fake().refuse("the capture has failed");
      if (!captured && drawn) return fake().refuse("a wait in a capture for what is outside");
      if (captured) fake().captured.insert(on);  // draws the stream into the capture
    }
    auto& tail = fake().tails[static_cast<std::size_t>(on)];
    tail.insert(tail.end(), found->second.begin(), found->second.end());
    fake().add(on, -1);
    return {};
  }
  static status milliseconds(float& out, event from, event to) {
    out = fake().ordered(fake().events[from].front(), fake().events[to].front()) ? 1.0F : -1.0F;
    return {};
  }
  static status synchronize(stream on) {
    if (fake().captured.count(on) != 0) return fake().refuse("a stream that captures can't be waited for");
    fake().host_waits(std::vector<std::size_t>(fake().tails[static_cast<std::size_t>(on)]));
    return {};
  }
  static status wait_for(event at) {
    const auto found = fake().events.find(at);
    if (found != fake().events.end()) fake().host_waits(found->second);
    return {};
  }
  static status pinned_allocate(void*& out, std::size_t bytes) { return allocate(out, bytes); }
  static void pinned_deallocate(void* dead) { deallocate(dead); }
  static status copy_to_device(void* to, const void* from, std::size_t, stream on) {
    const std::size_t copy = fake().add(on, 2'000'000);
    fake().use(copy, to);
    fake().use(copy, const_cast<void*>(from));
    return {};
  }

  static status begin_capture(stream on) {
    if (fake().origin >= 0) return {deeprec::errc::device_error, "already capturing"};
    fake().origin = on;
    fake().captured = {on};
    fake().invalid = false;
    fake().in_capture.clear();
    fake().joined.clear();
    return {};
  }
  static status end_capture(stream on, graph& made) {
    if (fake().origin != on) return {deeprec::errc::device_error, "not the stream of the capture"};
    bool unjoined = false;
    const auto& tail = fake().tails[static_cast<std::size_t>(on)];
    for (const std::size_t n : fake().in_capture) {
      const bool last = fake().joined.count(n) == 0;
      unjoined |= last && (tail.empty() || n != tail.back());
    }
    fake().origin = -1;
    fake().captured.clear();
    if (fake().invalid) return {deeprec::errc::device_error, "the capture has failed"};
    if (unjoined) return {deeprec::errc::device_error, "a stream has not rejoined the capture"};
    ++fake().live_graphs;
    made = 1;
    return {};
  }
  static status capturing(bool& out, stream on) {
    out = fake().captured.count(on) != 0;
    return {};
  }
  static status instantiate(graph_exec& made, graph) {
    ++fake().live_execs;
    made = fake().live_execs;
    return {};
  }
  static status launch(graph_exec what, stream on) {
    fake().add(on, 1'000'000 + what);
    return {};
  }
  static void end_graph(graph) { --fake().live_graphs; }
  static void end_exec(graph_exec) { --fake().live_execs; }

  static status allocate(void*& out, std::size_t bytes) {
    if (fake().origin >= 0) return fake().refuse("no memory is allocated in a capture");
    const bool fits = fake().allocated <= fake().limit && bytes <= fake().limit - fake().allocated;
    out = fits ? std::malloc(bytes) : nullptr;
    if (out == nullptr) return {deeprec::errc::out_of_memory, "fake"};
    fake().allocated += bytes;
    fake().blocks[out] = bytes;
    fake().device_of_block[out] = fake().device;
    return {};
  }
  static void deallocate(void* dead) {
    fake().allocated -= fake().blocks.at(dead);
    fake().blocks.erase(dead);
    for (const std::size_t n : fake().uses[dead]) {
      if (fake().ended.count(n) == 0) fake().fault = "memory is freed under node " + std::to_string(n);
    }
    fake().uses.erase(dead);
    std::free(dead);
  }

  /// A stream as pools take it.
  class lane {
   public:
    explicit lane(deeprec::stream_priority = deeprec::stream_priority::normal)
        : number_(fake().add_stream()) {}
    int get() const { return number_; }
    /// Reads and clears what work has left in the stream's record: a node of its own.
    status synchronize() {
      if (const status s = fake_runtime::synchronize(number_); !s) return s;
      fake().host_waits({fake().add(number_, 3'000'000 + number_)});
      return {};
    }

   private:
    int number_;
  };
};

}  // namespace deeprec_test
