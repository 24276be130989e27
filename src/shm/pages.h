// The system calls that create, grow and free the pages of shared memory.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/fd.h"

namespace lockstep::shm {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t page_bytes();  // of this system
// Throws SystemError if the result does not fit into a size_t.
size_t whole_pages(size_t bytes);

[[noreturn]] void throw_system_error(const std::string& what, int error, const std::string& hint = {});

// Throws SystemError if a file of this process may not have that size.
void check_file_limit(uint64_t bytes);
base::Fd make_memfd(const std::string& name);
// Frees the pages. A failure only costs memory.
void punch_hole(const base::Fd& file, uint64_t offset, uint64_t bytes);
// Makes this process's own copies of all pages in a range of a private mapping. Other threads may write to
// the range at the same time.
void copy_pages(std::byte* data, size_t bytes);
// Maps all pages of a range in advance, where the kernel can. Returns false if there is no memory for them:
// writing to them would end the process.
bool populate_pages(std::byte* data, size_t bytes);
// Replaces what is mapped there, whole pages, by private memory with undefined contents. Returns false, and
// changes nothing, if the kernel has no memory for it.
bool replace_pages(std::byte* data, size_t bytes);
// Replaces small pages by huge ones, where the kernel can. The range consists of whole huge pages.
void collapse_pages(std::byte* data, size_t bytes);

}  // namespace lockstep::shm
