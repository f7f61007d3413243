// A reader's thread fills buffers that circulate; the caller takes them from a queue in order.
#include <deeprec/deeprec.hpp>

#include <cstdio>
#include <thread>
#include <vector>
using namespace deeprec;

int main() {
  using ids = std::vector<std::int64_t>;
  staging_pool<ids> buffers(4);  // the queue's two, one that is filled, one that is used
  staging_queue<staging_pool<ids>::lease> queue(2);

  std::thread reader([&] {
    for (std::int64_t batch = 0; batch < 100; ++batch) {
      auto buffer = buffers.acquire();                               // waits for a buffer
      buffer->assign({batch, batch + 1});                            // keeps its memory from batch to batch
      if (queue.put(std::move(buffer)) != queue_result::ok) return;  // waits for room
    }
    queue.close();
  });
  std::int64_t batches = 0, sum = 0;
  while (auto batch = queue.take()) {  // nothing once it is closed and empty
    batches += 1;
    for (const std::int64_t id : **batch) sum += id;
  }
  reader.join();
  std::printf("%ld batches, sum of ids %ld\n", long(batches), long(sum));
}
