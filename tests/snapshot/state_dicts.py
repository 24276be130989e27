"""Reads the state dicts that the C++ test wrote to a directory, and writes others for it to read.

Exits with 77 if torch is not installed. The values that it writes follow formulas that the test knows.
"""
import argparse
import collections
import os
import sys
import zipfile

try:
    import torch
except ImportError:
    sys.exit(77)

os.chdir(sys.argv[1])
DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
          "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8,
          "bool": torch.bool, "c64": torch.complex64, "c128": torch.complex128}


class Twin(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 3, 3)
        self.norm = torch.nn.BatchNorm2d(3)
        self.fc = torch.nn.Linear(3, 4)

    def forward(self, x):
        return self.fc(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil_was_here",)


def check_written():
    written = torch.load("written.pt")
    safe = torch.load("written.pt", weights_only=True)
    assert type(written) is collections.OrderedDict and list(written) == list(safe)
    for name, value in written.items():
        assert value.dtype == safe[name].dtype and torch.equal(value, safe[name]), name
        assert type(value) is torch.Tensor and not value.requires_grad, name
    for name, dtype in DTYPES.items():
        assert written[name].dtype == dtype, name
        assert torch.equal(written[name], torch.arange(6).reshape(2, 3).to(dtype)), name
    assert written["scalar"].shape == () and written["scalar"].item() == -2.5
    assert written["empty"].shape == (0,) and written["hollow"].shape == (2, 0, 3)
    grid = torch.arange(20.).reshape(4, 5)
    assert torch.equal(written["transposed"], grid.t())
    assert torch.equal(written["column"], grid[:, 2])
    assert torch.equal(written["every other"], grid[::2, ::2])
    written["tied.a"].zero_()
    assert torch.equal(written["tied.b"], torch.zeros(3, 3)), "tied tensors share no memory"
    assert not torch.equal(written["f32"], torch.zeros(2, 3))
    torch.save(safe, "resaved.pt")

    assert torch.load("nothing.pt", weights_only=True) == {}

    twin = Twin()
    twin.load_state_dict(torch.load("model.pt", weights_only=True), strict=True)
    case = torch.load("case.pt")
    twin.eval()
    assert torch.allclose(twin(case["input"]), case["output"], atol=1e-6)
    torch.save(twin.state_dict(), "twin.pt")


def write_others():
    plain = collections.OrderedDict(weight=torch.arange(6.).reshape(2, 3), count=torch.tensor(7))
    torch.save(plain, "plain.pt")
    torch.save(dict(plain), "dict.pt")
    torch.save({name: torch.nn.Parameter(value, requires_grad=value.is_floating_point())
                for name, value in plain.items()}, "parameters.pt")
    for protocol in (3, 4, 5):
        torch.save(plain, f"protocol{protocol}.pt", pickle_protocol=protocol)
    noted = collections.OrderedDict((name, value.clone()) for name, value in plain.items())
    noted["weight"].note = "an attribute"
    torch.save(noted, "attribute.pt")
    torch.save({"module." + name: value for name, value in plain.items()}, "ddp.pt")
    with zipfile.ZipFile("plain.pt") as source:
        for method, path in ((zipfile.ZIP_STORED, "rezipped.pt"), (zipfile.ZIP_DEFLATED, "deflated.pt")):
            with zipfile.ZipFile(path, "w", method) as target:
                for entry in source.namelist():
                    target.writestr(entry, source.read(entry))

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save({"epoch": 3, "state_dict": plain, "optimizer": optimizer.state_dict(), "lr": 0.5, "name": "x",
                "args": argparse.Namespace(a=1), "list": [1, (2, None)], "huge": 1 << 70, "long": -(1 << 40),
                "dtype": torch.float32, "device": torch.device("cpu"), "set": {1, 2}, "bytes": b"\0\xff",
                "counts": collections.defaultdict(int, a=1), "best": torch.tensor(1.5), 5: True},
               "wrapped.pt")
    torch.save({"model": plain, "state_dict": plain, "epoch": 1}, "one_under_two_keys.pt")
    torch.save({"model": plain, "ema": dict(plain), "epoch": 1}, "two.pt")
    torch.save({"optimizer": optimizer.state_dict(), "epoch": 1}, "none.pt")

    base = torch.arange(24.).reshape(4, 6)
    torch.save({"base": base, "transposed": base.t(), "row": base[2], "corner": base[1:3, 2:4],
                "every third": base[:, ::3], "empty": base[:, :0]}, "views.pt")
    torch.save({"ones": torch.ones(1).expand(1000)}, "expanded.pt")

    torch.save(plain, "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(Twin(), "module.pt")
    torch.save({"state_dict": plain, "evil": Evil()}, "evil.pt")
    torch.save(torch.ones(3), "tensor.pt")
    torch.save([torch.ones(3)], "list.pt")
    torch.save({"sparse": torch.eye(3).to_sparse()}, "sparse.pt")
    torch.save({"quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)}, "quantized.pt")
    torch.jit.script(torch.nn.Linear(3, 2)).save("script.pt")


check_written()
write_others()
