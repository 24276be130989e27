// Writes the losses of a run to a file, one JSON object per line, for programs that plot or compare them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include <lockstep/error.h>

namespace mingpt {

// Does nothing without a path. A resumed run appends to the file. Steps that it repeats are in the file
// twice; the later line counts.
class LossLog {
 public:
  LossLog(const std::string& path, bool resumed) : path_(path) {
    if (path.empty()) return;
    file_.reset(std::fopen(path.c_str(), resumed ? "a" : "w"));
    if (!file_) throw lockstep::UsageError("--json: cannot write to " + path);
  }

  void add(int64_t step, const char* what, double loss) {
    if (file_) std::fprintf(file_.get(), "{\"step\": %ld, \"%s\": %.9g}\n", step, what, loss);
  }

  // Passes everything added to the operating system, so that it survives if the program is killed.
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
