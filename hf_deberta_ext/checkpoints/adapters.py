# SPDX-License-Identifier: Apache-2.0
"""Support peft adapters (LoRA) on a model with a newly initialised head: train and save the head with the adapter."""

import torch
from torch import nn
from transformers.utils import logging

logger = logging.get_logger(__name__)

__all__ = ["PEFT_TASKS", "AdapterMixin", "module_to_save"]

# Task name on the Hub -> task name in peft, for tasks with a class in peft.
PEFT_TASKS = {"text-classification": "SEQ_CLS", "token-classification": "TOKEN_CLS", "question-answering": "QUESTION_ANS"}
# Modules that peft saves by default for these tasks.
PEFT_HEADS = {"classifier", "qa_outputs"}


class AdapterMixin:
    """Mixin that lets peft train newly initialised modules and save them with the adapter.

    By default, peft neither trains nor saves weights outside the adapter, except modules in the list `modules_to_save`. For
    the tasks that peft knows, it adds the classifier to this list, but not the pooler.
    """

    @property
    def peft_config(self) -> dict:
        """Configuration of each adapter, by name. peft sets this attribute after it adds an adapter to the model."""
        if "peft_config" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no adapters")
        return self.__dict__["peft_config"]

    @peft_config.setter
    def peft_config(self, configs: dict):
        self.__dict__["peft_config"] = configs
        unsaved = self._unsaved_modules()
        if not unsaved:
            return
        for config in configs.values():
            named = getattr(config, "modules_to_save", None) or []
            missing = [name for name in unsaved if module_to_save(self, name) not in named]
            if config.inference_mode and missing:
                logger.warning(
                    f"neither the adapter nor the base model has weights for {', '.join(missing)}: these weights are random"
                )
            elif config.task_type in PEFT_TASKS.values() and PEFT_HEADS & self._modules.keys():
                # For these tasks, peft applies modules_to_save after this assignment. Modules with adapters are excluded,
                # because peft would save the adapter as a part of the module, and not find it when it loads.
                whole = [name for name in missing if not _has_adapters(self.get_submodule(name))]
                config.modules_to_save = [*named, *(module_to_save(self, name) for name in whole)]

    @peft_config.deleter
    def peft_config(self):
        del self.__dict__["peft_config"]

    def check_adapters(self):
        """Raise a ValueError in training if newly initialised modules would not be trained and saved with the adapter."""
        if not (self.training and torch.is_grad_enabled() and self.loading_report and self.loading_report.initialised):
            return
        has_adapters = "peft_config" in self.__dict__ or any(hasattr(x, "modules_to_save") for x in self._modules.values())
        unsaved = self._unsaved_modules()
        if has_adapters and unsaved:
            new = self._new_modules()
            names = [module_to_save(self, name) for name in new]
            task = ""
            if names != new:
                task = "task_type='TOKEN_CLS' and "
            elif not PEFT_HEADS & self._modules.keys():
                task = "task_type=None and "
            raise ValueError(
                f"the weights of {', '.join(unsaved)} are newly initialised, and the adapter would neither train nor save "
                f"them: set {task}modules_to_save={names} in the configuration of the adapter"
            )

    def _new_modules(self) -> list[str]:
        """Return the names of the modules with weights that are missing from the checkpoint.

        For the head, these are names of top-level modules ("classifier"); for the encoder, full paths.
        """
        if self.loading_report is None:
            return []
        reads_positions = self._decodes_absolute_positions or self.config.position_biased_input
        modules = {}
        for name in self.loading_report.initialised:
            if name.endswith("position_embeddings.weight") and not reads_positions:
                continue
            module = name.rpartition(".")[0]
            if self.base_model is not self and not name.startswith(f"{self.base_model_prefix}."):
                module = name.partition(".")[0]
            modules[module] = None
        return list(modules)

    def _unsaved_modules(self) -> list[str]:
        return [name for name in self._new_modules() if not _is_saved(self, name)]


def module_to_save(model: nn.Module, name: str) -> str:
    """Return an entry for `modules_to_save` that matches only the module `name`.

    peft compares entries with the ends of module paths. The entry "proj" matches the modules "proj" and "query_proj"; the
    entry "model.proj" matches only the module "proj". The second form requires an adapter with a `task_type`: without it,
    peft's module paths do not start with "model", and "model.proj" matches nothing.
    """
    if any(path.endswith(name) and path != name for path, _ in model.named_modules()):
        return f"model.{name}"
    return name


def _has_adapters(module: nn.Module) -> bool:
    return any(hasattr(part, "base_layer") or hasattr(part, "modules_to_save") for part in module.modules())


def _is_saved(model: nn.Module, path: str) -> bool:
    """Return True if peft saves the module with the active adapter (`modules_to_save`), or if the module is not frozen."""
    module = model
    for part in path.split("."):
        module = getattr(module, part)
        if hasattr(module, "modules_to_save"):
            # If the wrapped module also contains adapter layers, peft cannot load the saved file.
            return bool(module.active_adapters) and not any(_has_adapters(part) for part in module.modules_to_save.values())
    return all(parameter.requires_grad for parameter in module.parameters())
