// The losses of a run in a file, one line of JSON each, for programs that draw or compare them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include <lockstep/error.h>

namespace mingpt {

// Without a path it does nothing. A run that goes on adds to the file; steps that it does again are in it
// twice, and the later line counts.
class LossLog {
 public:
  LossLog(const std::string& path, bool goes_on) : path_(path) {
    if (path.empty()) return;
    file_.reset(std::fopen(path.c_str(), goes_on ? "a" : "w"));
    if (!file_) throw lockstep::UsageError("--json: cannot write to " + path);
  }

  void add(int64_t step, const char* what, double loss) {
    if (file_) std::fprintf(file_.get(), "{\"step\": %ld, \"%s\": %.9g}\n", step, what, loss);
  }

  // What was added is with the system, and survives if the program is killed.
  void flush() {
    if (file_ && (std::fflush(file_.get()) != 0 || std::ferror(file_.get()))) {
      throw lockstep::SystemError("--json: writing to " + path_ + " failed\nhint: is the disk full?");
    }
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace mingpt
