"""tricoll's hooks for DDP, by name."""

from tricoll import ddp

HOOKS = {"bf16": ddp.bf16_hook, "fp32": ddp.fp32_hook, "reproducible": ddp.reproducible_hook}
