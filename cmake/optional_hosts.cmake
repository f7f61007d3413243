# Which frameworks of include/deeprec/interop this machine has. Read by our own tests only.
#
#   DEEPREC_HAVE_OPENMP, DEEPREC_HAVE_TBB, DEEPREC_HAVE_EIGEN_THREAD_POOL     TRUE or FALSE

find_package(OpenMP QUIET COMPONENTS CXX)
set(DEEPREC_HAVE_OPENMP ${OpenMP_CXX_FOUND})

find_package(TBB QUIET CONFIG)
set(DEEPREC_HAVE_TBB ${TBB_FOUND})

# In Eigen's folder "unsupported" up to 3.4, which some packages leave out.
get_target_property(deeprec_eigen_folders Eigen3::Eigen INTERFACE_INCLUDE_DIRECTORIES)
string(REGEX REPLACE "[$]<BUILD_INTERFACE:([^>]*)>" "\\1" deeprec_eigen_folders
                     "${deeprec_eigen_folders}")
set(DEEPREC_HAVE_EIGEN_THREAD_POOL FALSE)
foreach(folder IN LISTS deeprec_eigen_folders)
  if(EXISTS "${folder}/Eigen/ThreadPool" OR EXISTS
                                            "${folder}/unsupported/Eigen/CXX11/ThreadPool")
    set(DEEPREC_HAVE_EIGEN_THREAD_POOL TRUE)
  endif()
endforeach()
