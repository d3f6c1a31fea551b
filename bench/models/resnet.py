"""ResNet-50 (He et al., "Deep residual learning for image recognition", 2015), with the stride in the 3×3 convolution as torchvision has
it: the model that `bench resnet` counts.

Modules and parameters have torchvision's names, so a state_dict of one loads into the other; bench.models.twin loads this for PyTorch too.
"""
import tritorch as torch
from tritorch import nn
from tritorch.nn import functional as F


class Bottleneck(nn.Module):
    """1×1 to `width` channels, 3×3, 1×1 to four times as many; what came in is added."""

    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu, self.downsample = nn.ReLU(inplace=True), None
        if stride != 1 or channels != 4 * width:
            self.downsample = nn.Sequential(nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """(N, channels, H, W) to (N, classes). `blocks` are the bottlenecks of the stages, the first of which is `width` wide."""

    def __init__(self, blocks=(3, 4, 6, 3), classes=1000, width=64, channels=3):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.stages, channels = len(blocks), width
        for k, count in enumerate(blocks):
            stage = []
            for i in range(count):
                stage.append(Bottleneck(channels, width << k, 2 if k and not i else 1))
                channels = 4 * (width << k)
            setattr(self, f"layer{k + 1}", nn.Sequential(*stage))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for k in range(self.stages):
            x = getattr(self, f"layer{k + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def train_step(model, optimizer, images, labels, kind=None):
    """Forward, backward, update; the loss without history. `kind`: the device type to cast to bfloat16 on, or None."""
    with torch.autocast(kind or "cpu", torch.bfloat16, enabled=kind is not None):
        loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()
