"""BatchNorm over the batch of several processes, of which each has a share. Torch's SyncBatchNorm refuses the CPU."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitral.processes import Processes


class SharedBatchNorm(nn.BatchNorm2d):
    """A BatchNorm whose means and variances are those of the shares of all processes; so are its gradients."""

    def __init__(self, norm: _BatchNorm, processes: Processes) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        self.processes = processes
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked
        self.train(norm.training)

    def _check_input_dim(self, input: Tensor) -> None:
        return  # (B, C), (B, C, T) or (B, C, H, W)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        weight = input.new_ones(self.num_features) if self.weight is None else self.weight
        bias = input.new_zeros(self.num_features) if self.bias is None else self.bias
        normalised = _Normalise.apply(input, weight, bias, self.eps, self.processes)  # type: ignore[no-untyped-call]
        output, mean, var = normalised
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
            share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            count = input.numel() // self.num_features * self.processes.world
            self.running_mean.lerp_(mean.to(self.running_mean), share)
            self.running_var.lerp_((var * count / (count - 1)).to(self.running_var), share)
        return output


class _Normalise(torch.autograd.Function):
    """Each channel with mean 0 and variance 1 over all processes, then scaled and moved. All shares are as large."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, processes: Processes
    ) -> tuple[Tensor, ...]:
        # Torch's own kernel measures a share: it is many times faster than var_mean, and precise for bfloat16, too.
        _, mean, scale = torch.native_batch_norm(x, None, None, None, None, True, 0.0, eps)  # (C,), (C,)
        means, variances = processes.stack(torch.stack([mean, scale**-2 - eps])).unbind(1)  # (world, C) each
        mean = means.mean(0)
        var = (variances + (means - mean) ** 2).mean(0)
        ctx.save_for_backward(x, weight, mean, var)
        ctx.eps, ctx.processes = eps, processes
        output = torch.native_batch_norm(x, weight, bias, mean, var, False, 0.0, eps)[0]
        ctx.mark_non_differentiable(mean, var)
        return output, mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, var = ctx.saved_tensors
        # As if mean and variance were constants; of these gradients all else can be made.
        plain, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            grads[0], x, weight, mean, var, None, None, False, ctx.eps, [True, True, True]
        )
        count = x.numel() // len(mean) * ctx.processes.world
        by_mean, by_var = ctx.processes.stack(torch.stack([of_bias, of_weight])).sum(0) / count  # (C,) each
        scale = (var + ctx.eps).rsqrt()
        slope = -weight * scale**2 * by_var
        offset = -weight * scale * by_mean - slope * mean
        channels = (1, -1, *[1] * (x.ndim - 2))
        of_x = torch.addcmul(plain + offset.view(channels).to(x), x, slope.view(channels).to(x))
        return of_x, of_weight, of_bias, None, None


def share_norms(model: nn.Module, processes: Processes) -> None:
    """Put a SharedBatchNorm in the place of every BatchNorm, where there are several processes."""
    if not processes.many:
        return
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm):
                setattr(module, name, SharedBatchNorm(child, processes))
