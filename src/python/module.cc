// The Python module lockstep._C: makes c10d backends for torch.distributed, and turns lockstep's errors into
// Python exceptions.
#include <chrono>
#include <cstring>
#include <map>
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include <lockstep/bindings.h>
#include <lockstep/c10d.h>
#include <lockstep/error.h>

namespace lockstep {

namespace {

// One exception class for each class of errors. They exist as long as the process, because errors may be
// raised until the interpreter ends.
struct Classes {
  PyObject *error, *usage, *mismatch, *peer_lost, *timeout, *system;
};
Classes classes;

// Python's scripts expect RuntimeError from torch.distributed.
void add_classes(pybind11::module_& module) {
  const auto add = [&](const char* name, PyObject* base) {
    pybind11::exception<Error> made(module, name, base);
    made.attr("__module__") = "lockstep";  // where users find it
    return made.release().ptr();
  };
  classes.error = add("Error", PyExc_RuntimeError);
  classes.usage = add("UsageError", classes.error);
  classes.mismatch = add("MismatchError", classes.error);
  classes.peer_lost = add("PeerLostError", classes.error);
  classes.timeout = add("TimeoutError", classes.error);
  classes.system = add("SystemError", classes.error);
  pybind11::handle(classes.error).attr("culprits") = pybind11::list();
}

PyObject* class_of(const Error& error) {
  if (dynamic_cast<const UsageError*>(&error) != nullptr) return classes.usage;
  if (dynamic_cast<const MismatchError*>(&error) != nullptr) return classes.mismatch;
  if (dynamic_cast<const PeerLostError*>(&error) != nullptr) return classes.peer_lost;
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) return classes.timeout;
  if (dynamic_cast<const SystemError*>(&error) != nullptr) return classes.system;
  return classes.error;
}

// Another rank's text may have been cut within a character.
pybind11::str text_of(const char* what) {
  return pybind11::reinterpret_steal<pybind11::str>(
      PyUnicode_DecodeUTF8(what, static_cast<Py_ssize_t>(std::strlen(what)), "replace"));
}

void raise(PyObject* type, const char* what, const std::vector<int>& culprits) {
  const auto raised = pybind11::handle(type)(text_of(what));
  raised.attr("culprits") = pybind11::cast(culprits);
  PyErr_SetObject(type, raised.ptr());
}

// An error in a form that PyTorch's autograd knows: in a backward pass, anything else would become a plain
// RuntimeError.
class Known : public torch::PyTorchError {
 public:
  explicit Known(const Error& error)
      : torch::PyTorchError(error.what()), type_(class_of(error)), culprits_(error.culprits()) {}
  // torch calls it to raise the error, and sets no attributes. So the ranks are those of a class of its own,
  // which is made once (under the GIL). Python cannot make it without memory; then the ranks are missing.
  PyObject* python_type() override {
    if (culprits_.empty()) return type_;
    static auto& made = *new std::map<std::pair<PyObject*, std::vector<int>>, PyObject*>;
    auto& made_type = made[{type_, culprits_}];
    if (made_type == nullptr) {
      const pybind11::handle type(type_);
      const auto name = "lockstep." + type.attr("__name__").cast<std::string>();
      pybind11::dict attributes;
      attributes["culprits"] = culprits_;
      attributes["_public"] = type;
      made_type = PyErr_NewException(name.c_str(), type_, attributes.ptr());
    }
    if (made_type == nullptr) PyErr_Clear();
    return made_type != nullptr ? made_type : type_;
  }
  PyObject* type() const { return type_; }
  const std::vector<int>& culprits() const { return culprits_; }

 private:
  PyObject* type_;
  std::vector<int> culprits_;
};

// pybind11 asks the translators of all modules, the last one first, so this also applies to what torch's own
// functions throw, such as Work.wait().
void translate(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(std::move(thrown));
  } catch (const Known& error) {
    raise(error.type(), error.what(), error.culprits());
  } catch (const Error& error) {
    raise(class_of(error), error.what(), error.culprits());
  }
}

}  // namespace

}  // namespace lockstep

PYBIND11_MODULE(_C, module) {
  lockstep::add_classes(module);
  pybind11::register_exception_translator(&lockstep::translate);
  lockstep::bindings::translate_errors(
      [](const lockstep::Error& error) noexcept { return std::make_exception_ptr(lockstep::Known(error)); });
  module.def("stop_callbacks", &lockstep::bindings::stop_callbacks,
             pybind11::call_guard<pybind11::gil_scoped_release>());  // those that run need the GIL
  module.def(
      "make_backend",
      [](const std::string& name, const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
         std::chrono::milliseconds timeout) {
        const pybind11::gil_scoped_release released;  // the store may be written in Python
        return lockstep::make_c10d_backend(name, store, rank, world_size, timeout, true);
      },
      pybind11::arg("name"), pybind11::arg("store"), pybind11::arg("rank"), pybind11::arg("world_size"),
      pybind11::arg("timeout"));
  module.def("make_unconnected_backend", &lockstep::make_unconnected_c10d_backend, pybind11::arg("name"),
             pybind11::arg("store"), pybind11::arg("rank"), pybind11::arg("world_size"),
             pybind11::arg("timeout"));
}
