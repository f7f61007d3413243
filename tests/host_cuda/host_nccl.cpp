// The library of nccl.h beside it.
#include "nccl.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace {

struct ranks_of_job;

// One end of a send and a receive.
struct half {
  void* at = nullptr;
  std::size_t bytes = 0;
  bool there = false;  // its stream has come to it
};
struct transfer {
  half send, receive;
  bool done = false;
};
struct operation {
  bool sends;
  int peer;
  void* at;
  std::size_t bytes;
  cudaStream_t on;
};
struct group {
  cudaStream_t on = nullptr;
  std::vector<std::shared_ptr<transfer>> parts;
  host_cuda::gate behind;
  bool opened = false;
};

}  // namespace

struct ncclComm {
  std::shared_ptr<ranks_of_job> job;
  int rank = 0;
  std::vector<operation> open;                  // of the group that is being made
  std::deque<std::vector<operation>> to_issue;  // enqueued after some looks
  int looks = 0;
  std::vector<std::shared_ptr<group>> groups;
  int splits = 0;
  bool ended = false;
};

namespace {

struct ranks_of_job {
  std::vector<ncclComm*> all;
  // Of each pair (from, to), in their order.
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<transfer>>> sends, receives;
  bool broken = false;
  struct split {
    std::map<int, std::pair<int, int>> come;  // rank -> color, key
    std::map<int, ncclComm*> made;
  };
  std::map<int, split> splits;
};

host_nccl::behaviour how;
std::set<ncclComm*> comms;
int depth = 0;
std::set<ncclComm*> in_group;

bool refused() {
  if (how.refuse_after < 0) return false;
  return how.refuse_after-- == 0;
}
void fault(const char* what) {
  if (how.fault.empty()) how.fault = what;
}
void copy(transfer& t) {
  if (t.done || !t.send.there || !t.receive.there) return;
  if (t.send.bytes != t.receive.bytes) return fault("a send and a receive of other sizes");
  std::memcpy(t.receive.at, t.send.at, t.send.bytes);
  t.done = true;
}
void open_groups(ranks_of_job& job) {
  for (ncclComm* c : job.all) {
    if (c == nullptr) continue;
    for (const auto& g : c->groups) {
      const bool done = std::all_of(g->parts.begin(), g->parts.end(), [](const auto& t) { return t->done; });
      if (!done) break;  // one group after the other
      if (!g->opened) host_cuda::open(g->behind);
      g->opened = true;
    }
    std::erase_if(c->groups, [](const auto& g) { return g->opened; });
  }
}
void issue(ncclComm& c, const std::vector<operation>& operations) {
  if (operations.empty()) return;
  auto made = std::make_shared<group>();
  made->on = operations[0].on;
  std::vector<std::pair<std::shared_ptr<transfer>, bool>> halves;
  for (const operation& o : operations) {
    if (o.on != made->on) fault("a group on several streams");
    const auto pair = o.sends ? std::pair(c.rank, o.peer) : std::pair(o.peer, c.rank);
    auto& own = o.sends ? c.job->sends[pair] : c.job->receives[pair];
    auto& others = o.sends ? c.job->receives[pair] : c.job->sends[pair];
    std::shared_ptr<transfer> t;
    if (!others.empty()) {
      t = others.front();
      others.pop_front();
    } else {
      own.push_back(t = std::make_shared<transfer>());
    }
    (o.sends ? t->send : t->receive) = {o.at, o.bytes, false};
    made->parts.push_back(t);
    halves.emplace_back(t, o.sends);
  }
  c.groups.push_back(made);
  host_cuda::enqueue(made->on, [job = c.job, halves] {
    for (const auto& [t, sends] : halves) {
      (sends ? t->send : t->receive).there = true;
      copy(*t);
    }
    open_groups(*job);
  });
  made->behind = host_cuda::close(made->on);
}
void finish_split(ranks_of_job::split& of) {
  std::map<int, std::vector<std::tuple<int, int>>> colors;  // color -> (key, rank)
  for (const auto& [rank, wish] : of.come) {
    if (wish.first != NCCL_SPLIT_NOCOLOR) colors[wish.first].emplace_back(wish.second, rank);
  }
  for (auto& [color, members] : colors) {
    std::sort(members.begin(), members.end());
    auto made = std::make_shared<ranks_of_job>();
    for (const auto& [key, rank] : members) {
      ncclComm* const c = of.made.at(rank);
      if (comms.count(c) == 0) continue;
      c->job = made;
      c->rank = static_cast<int>(made->all.size());
      made->all.push_back(c);
    }
  }
}
// The others learn of an end.
void leave(ncclComm* c) {
  if (c->job == nullptr) return;
  c->job->all[static_cast<std::size_t>(c->rank)] = nullptr;
  // What lies on the stream is over.
  for (const auto& g : c->groups) {
    if (!g->opened) host_cuda::open(g->behind);
    g->opened = true;
  }
}

}  // namespace

namespace host_nccl {

behaviour& settings() { return how; }
std::size_t alive() { return comms.size(); }
world::world(int ranks) {
  const auto lock = host_cuda::hold();
  auto job = std::make_shared<ranks_of_job>();
  for (int r = 0; r < ranks; ++r) {
    auto* const c = new ncclComm;
    c->job = job;
    c->rank = r;
    job->all.push_back(c);
    comms.insert(c);
  }
  static std::deque<std::vector<ncclComm_t>> made;
  first_ = made.emplace_back(job->all.begin(), job->all.end()).data();
}

}  // namespace host_nccl

extern "C" {

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  const auto lock = host_cuda::hold();
  if (refused()) return ncclSystemError;
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  const auto lock = host_cuda::hold();
  if (refused()) return ncclSystemError;
  *count = static_cast<int>(comm->job->all.size());
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const auto lock = host_cuda::hold();
  if (comms.erase(comm) == 0) return ncclInvalidArgument;
  if (!comm->groups.empty()) fault("a communicator is destroyed while its groups run");
  leave(comm);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const auto lock = host_cuda::hold();
  if (comms.erase(comm) == 0) return ncclInvalidArgument;
  if (comm->job != nullptr) comm->job->broken = true;
  leave(comm);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t*) {
  const auto lock = host_cuda::hold();
  if (refused()) return ncclSystemError;
  ranks_of_job::split& of = comm->job->splits[comm->splits++];
  *made = nullptr;
  if (color != NCCL_SPLIT_NOCOLOR) comms.insert(*made = new ncclComm);
  of.come[comm->rank] = {color, key};
  of.made[comm->rank] = *made;
  if (of.come.size() == comm->job->all.size()) finish_split(of);
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* now) {
  const auto lock = host_cuda::hold();
  if (comms.count(comm) == 0) return ncclInvalidArgument;
  if (refused()) return ncclSystemError;
  *now = ncclSuccess;
  if (comm->job == nullptr) {  // not made yet
    *now = ncclInProgress;
    return ncclSuccess;
  }
  if (comm->job->broken && how.tells) {
    *now = ncclRemoteError;
    return ncclSuccess;
  }
  const auto open = comm->job->splits.find(comm->splits - 1);
  if (open != comm->job->splits.end() && open->second.come.size() < comm->job->all.size())
    *now = ncclInProgress;
  if (comm->to_issue.empty()) return ncclSuccess;
  if (comm->looks-- > 0) {
    *now = ncclInProgress;
    return ncclSuccess;
  }
  while (!comm->to_issue.empty()) {
    issue(*comm, comm->to_issue.front());
    comm->to_issue.pop_front();
  }
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  const auto lock = host_cuda::hold();
  if (refused()) return ncclSystemError;
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  const auto lock = host_cuda::hold();
  if (depth == 0) {
    fault("a group ends that has not begun");
    return ncclInvalidUsage;
  }
  --depth;
  bool later = false;
  for (ncclComm* c : in_group) {
    if (how.looks > 0) {
      c->looks = how.looks;
      c->to_issue.push_back(std::move(c->open));
      later = true;
    } else {
      issue(*c, c->open);
    }
    c->open.clear();
  }
  in_group.clear();
  if (refused()) return ncclSystemError;
  return later ? ncclInProgress : ncclSuccess;
}
static ncclResult_t add(bool sends, void* at, std::size_t bytes, int peer, ncclComm_t comm, cudaStream_t on) {
  const auto lock = host_cuda::hold();
  if (refused()) return ncclSystemError;
  if (depth == 0) fault("an operation outside of a group");
  if (peer == comm->rank || peer < 0 || peer >= static_cast<int>(comm->job->all.size()))
    fault("no such peer");
  if (host_cuda::bytes_behind(at) < bytes) fault("memory that is not of a device");
  comm->open.push_back({sends, peer, at, bytes, on});
  in_group.insert(comm);
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t, int to, ncclComm_t comm,
                      cudaStream_t on) {
  return add(true, const_cast<void*>(from), count, to, comm, on);
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t, int from, ncclComm_t comm,
                      cudaStream_t on) {
  return add(false, to, count, from, comm, on);
}
const char* ncclGetErrorString(ncclResult_t code) {
  return code == ncclSuccess ? "no error" : "NCCL: a call was refused";
}

}  // extern "C"
