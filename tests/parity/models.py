"""The models, their batches and their optimizers; models.h has the same, and explains them."""
import torch
from torch import nn

from formula import real, whole


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(16)
        self.head = nn.Linear(16 * 3 * 3, 10)

    @staticmethod
    def batch(stream):
        return real(stream, (8, 1, 12, 12)), whole(stream + 1, (8,), 10)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = torch.max_pool2d(torch.relu(self.norm2(self.conv2(x))), 2)
        return self.head(x.flatten(1))

    def optimizer(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2, eps=1e-2, weight_decay=0.1)


class Transformer(nn.Module):
    TOKENS, WORDS, WIDTH = 12, 40, 32

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.empty(self.TOKENS, 1, self.WIDTH))
        self.words = nn.Embedding(self.WORDS, self.WIDTH)
        self.block = nn.TransformerEncoderLayer(self.WIDTH, 4, dim_feedforward=64, dropout=0.0, activation="gelu")
        self.head = nn.Linear(self.WIDTH, self.WORDS)

    @classmethod
    def batch(cls, stream):
        text = whole(stream, (cls.TOKENS + 1, 4), cls.WORDS)
        return text[:-1], text[1:].flatten()

    def forward(self, text):
        future = torch.full((self.TOKENS, self.TOKENS), float("-inf")).triu(1)
        return self.head(self.block(self.words(text) + self.position, future)).flatten(0, 1)

    def optimizer(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Lstm(nn.Module):
    TOKENS, WORDS = 10, 40

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(self.WORDS, 16)
        self.memory = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, self.WORDS)

    @classmethod
    def batch(cls, stream):
        text = whole(stream, (4, cls.TOKENS + 1), cls.WORDS)
        return text[:, :-1], text[:, 1:].flatten()

    def forward(self, text):
        return self.head(self.memory(self.words(text))[0]).flatten(0, 1)

    def optimizer(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2, eps=1e-3)


MODELS = {"cnn": Cnn, "transformer": Transformer, "lstm": Lstm}
