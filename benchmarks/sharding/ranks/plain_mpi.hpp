// An exchange by MPI_Irecv, MPI_Isend and MPI_Waitall, and nothing else. No header of deeprec here.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace deeprec_bench {

class plain_exchange {
 public:
  plain_exchange();
  ~plain_exchange();
  /// So many bytes to each other rank, and from each.
  void run(char* const* to, char* const* from, std::size_t bytes);

 private:
  struct parts;
  std::unique_ptr<parts> parts_;
};

}  // namespace deeprec_bench
