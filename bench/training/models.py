"""The models of `make bench` and their data in PyTorch, the same as in models.h, which explains them."""
import math

import torch
import torch.nn.functional as F
from torch import nn

# ---- Numbers

WORD = 0xFFFFFFFF


def key_of(name):
    key = 2166136261
    for letter in name.encode():
        key = ((key ^ letter) * 16777619) & WORD
    return key


PIECE = 1 << 15  # large tensors are filled in pieces, so that this does not add to the peak memory


def bits(begin, end, name):
    """24 bits per element, which a float represents exactly."""
    x = (torch.arange(begin, end) * 2654435769 + key_of(name)) & WORD
    x = ((x ^ (x >> 15)) * 1234567891) & WORD
    x = ((x ^ (x >> 13)) * 987654319) & WORD
    return (x ^ (x >> 16)) >> 8


def fill(tensor, name, values):
    flat = tensor.view(-1)
    for begin in range(0, flat.numel(), PIECE):
        end = min(begin + PIECE, flat.numel())
        flat[begin:end] = values(bits(begin, end, name))
    return tensor


def noise(sizes, name, bound):
    return fill(torch.empty(sizes), name, lambda found: (found.float() * 2**-23 - 1) * bound)


def classes(sizes, name, count):
    return fill(torch.empty(sizes, dtype=torch.long), name, lambda found: found % count)


# ---- Models


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.linear1, self.linear2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.linear2(torch.relu(self.linear1(x.flatten(1))))

    usual_rows = 32

    @staticmethod
    def batch(name, rows):
        return noise((rows, 1, 28, 28), f"input {name}", 1), classes((rows,), f"target {name}", 10)

    loss = staticmethod(F.cross_entropy)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        for i in range(12):
            setattr(self, f"layer{i}", nn.Linear(1024, 1024))
        self.layers = [getattr(self, f"layer{i}") for i in range(12)]

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x

    usual_rows = 32

    @staticmethod
    def batch(name, rows):
        return noise((rows, 1024), f"input {name}", 1), noise((rows, 1024), f"target {name}", 1)

    loss = staticmethod(F.mse_loss)


SEQUENCE, WIDTH, HEADS, LAYERS, VOCABULARY = 128, 192, 6, 6, 64


class GptBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, future):
        x = x + self.attention(self.norm1(x), future)
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def attention(self, x, future):
        heads = self.qkv(x).view(x.size(0), SEQUENCE, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, keys, values = heads.select(0, 0), heads.select(0, 1), heads.select(0, 2)
        weights = torch.matmul(query, keys.transpose(-2, -1)) * (1 / math.sqrt(WIDTH // HEADS))
        weights = weights.masked_fill(future, -math.inf).softmax(-1)
        return self.out(torch.matmul(weights, values).transpose(1, 2).reshape(x.size(0), SEQUENCE, WIDTH))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.empty(SEQUENCE, WIDTH))
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        for i in range(LAYERS):
            setattr(self, f"block{i}", GptBlock())
        self.blocks = [getattr(self, f"block{i}") for i in range(LAYERS)]
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.future = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)

    def forward(self, text):
        x = self.tokens(text) + self.positions
        for block in self.blocks:
            x = block(x, self.future)
        return self.head(self.norm(x)).view(-1, VOCABULARY)

    usual_rows = 8

    @staticmethod
    def batch(name, rows):
        text = classes((rows, SEQUENCE + 1), f"text {name}", VOCABULARY)
        return text[:, :-1].contiguous(), text[:, 1:].flatten()

    loss = staticmethod(F.cross_entropy)


class MinGptAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask):
        batch, time, depth = x.size(0), x.size(1), WIDTH // HEADS
        parts = self.attend(x).view(batch, time, 3, HEADS, depth).permute(2, 0, 3, 1, 4)
        query, keys, values = parts.reshape(3, batch * HEADS, time, depth).unbind(0)
        scores = torch.baddbmm(mask, query, keys.transpose(1, 2), beta=1, alpha=1 / math.sqrt(depth))
        mixed = torch.bmm(torch.softmax(scores, -1), values)
        return self.project(mixed.view(batch, HEADS, time, depth).transpose(1, 2).reshape(batch, time, WIDTH))


class MinGptBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), MinGptAttention(), nn.LayerNorm(WIDTH)
        self.expand, self.project = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.project(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class MinGptCore(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(96, WIDTH), nn.Embedding(MinGpt.CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(MinGptBlock() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 96, bias=False)
        self.mask = torch.full((MinGpt.CONTEXT, MinGpt.CONTEXT), -math.inf).triu(1)

    def forward(self, text):
        x = self.tokens(text) + self.positions.weight
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


class MinGpt(nn.Module):
    CONTEXT = 64

    def __init__(self):
        super().__init__()
        self.gpt = MinGptCore()

    def forward(self, text):
        return self.gpt(text).flatten(0, 1)

    usual_rows = 8

    @staticmethod
    def batch(name, rows):
        text = classes((rows, MinGpt.CONTEXT + 1), f"text {name}", 96)
        return text[:, :-1].contiguous(), text[:, 1:].flatten()

    loss = staticmethod(F.cross_entropy)


def conv(inputs, outputs, size, stride):
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class ResNetBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = conv(outputs, outputs, 3, 1), nn.BatchNorm2d(outputs)
        self.way = self.way_norm = None
        if stride != 1:
            self.way, self.way_norm = conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)

    def forward(self, x):
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + (self.way_norm(self.way(x)) if self.way else x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = conv(3, 64, 3, 1), nn.BatchNorm2d(64)
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        for i, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
            setattr(self, f"block{i}", ResNetBlock(inputs, outputs, 1 if inputs == outputs else 2))
        self.blocks = [getattr(self, f"block{i}") for i in range(8)]
        self.head = nn.Linear(512, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))

    usual_rows = 4

    @staticmethod
    def batch(name, rows):
        return noise((rows, 3, 32, 32), f"input {name}", 1), classes((rows,), f"target {name}", 10)

    loss = staticmethod(F.cross_entropy)


class Stack(nn.Module):
    """Eight square layers with `parameters` parameters in total, to measure growth."""

    def __init__(self, parameters):
        super().__init__()
        self.width = round(math.sqrt(parameters / 8))
        for i in range(8):
            setattr(self, f"layer{i}", nn.Linear(self.width, self.width, bias=False))
        self.layers = [getattr(self, f"layer{i}") for i in range(8)]

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x

    usual_rows = 4

    def batch(self, name, rows):
        return noise((rows, self.width), f"input {name}", 1), noise((rows, self.width), f"target {name}", 1)

    loss = staticmethod(F.mse_loss)


MODELS = {"cnn": Cnn, "gpt": Gpt, "mlp": Mlp, "mingpt": MinGpt, "resnet": ResNet}
STACK = "stack-"  # followed by a number of parameters


def make_model(name):
    model = Stack(int(name[len(STACK):])) if name.startswith(STACK) else MODELS[name]()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() > 1:
                bound = math.sqrt(6 / (parameter.numel() // parameter.size(0)))
                fill(parameter, key, lambda found: (found.float() * 2**-23 - 1) * bound)
            else:
                parameter.fill_(1 if key.endswith("weight") else 0)
    return model
